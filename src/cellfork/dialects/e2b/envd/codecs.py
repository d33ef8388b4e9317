"""How messages of the RPCs are written: JSON and Protocol Buffers, decoded only as deep as a message can be.

The decoder for JSON is native code that recurses without a bound wherever a value is not of the type that a field has: 100 kB of
``[`` end the whole process (protobuf-py-ext 0.7.0).  So what nests too deeply never reaches it.  The binary one has a bound.
"""

import re
from typing import Any

from connectrpc.code import Code
from connectrpc.codec import Codec, proto_binary_codec, proto_json_codec
from connectrpc.errors import ConnectError

from cellfork.model.limits import MiB

MAX_DEPTH = 16
"""Levels that any message may have, at least; those of envd have fewer than ten."""
MAX_MESSAGE = 16 * MiB
"""Bytes of one message."""

_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b'"[]{}'))
_STRING = re.compile(rb'"[^"]*"')


class ShallowJSON:
    """The codec for JSON, for messages of which the depth was checked."""

    def __init__(self) -> None:
        self._codec: Codec[Any, Any] = proto_json_codec()

    def name(self) -> str:
        """Return the word in content types."""
        return self._codec.name()

    def encode(self, message: Any) -> bytes:
        """Write a message."""
        return self._codec.encode(message)

    def decode(self, data: bytes | bytearray, message_class: type[Any]) -> Any:
        """Read a message.  Raises ``invalid_argument`` for what is none."""
        check_depth(bytes(data))
        return self._codec.decode(data, message_class)


def check_depth(data: bytes) -> None:
    """Raise ``invalid_argument`` for JSON that nests too deeply, or whose brackets have no pairs.

    Linear in the size, and without a loop over its characters.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    # What is left without escapes, without everything that is no bracket and without strings: brackets.
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _ALL_BUT_BRACKETS)
    bare = _STRING.sub(b"", bare)
    for _ in range(MAX_DEPTH):
        size = len(bare)
        bare = bare.replace(b"[]", b"").replace(b"{}", b"")
        if not bare:
            return
        if len(bare) == size:
            break
    raise ConnectError(
        Code.INVALID_ARGUMENT, "unmarshal message: brackets without a pair, or too many levels"
    )


CODECS: tuple[Codec[Any, Any], ...] = (proto_binary_codec(), ShallowJSON())
"""Binary and JSON."""
