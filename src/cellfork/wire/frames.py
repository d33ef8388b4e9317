"""Framing: ``u32 header length · u32 body length · u32 channel`` (big endian), a JSON header, raw bytes.

Channel 0 is init's own; every other channel is a context's, numbered by the host.  Init stamps the
channel of what a kernel sends, so a kernel cannot speak for another one.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from cellfork.model.errors import ProtocolViolation
from cellfork.wire.values import parse

PREFIX = struct.Struct(">III")
MAX_HEADER = 256 * 1024
MAX_BODY = 96 * 1024 * 1024
CHUNK = 256 * 1024
"""Size of the pieces in which files and outputs travel."""


class Frame(NamedTuple):
    """One message: a flat JSON object with an ``op``, and raw bytes."""

    channel: int
    header: dict[str, Any]
    body: bytes = b""


def encode(header: dict[str, Any], body: bytes = b"", channel: int = 0) -> bytes:
    """Return the bytes of one frame.

    Raises ``ValueError`` where header or body pass the caps, or the header holds NaN or an infinity: whoever
    sends must have seen to that.
    """
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(text) > MAX_HEADER or len(body) > MAX_BODY:
        raise ValueError(f"frame too large: header {len(text)}, body {len(body)} bytes")
    return PREFIX.pack(len(text), len(body), channel) + text + body


class Decoder:
    """Turns bytes into frames, however they were cut.

    Holds at most one incomplete frame.  Raises :class:`ProtocolViolation` for a length beyond the
    caps (before anything is stored) and for a header that is not a JSON object; nothing else.
    """

    def __init__(self, *, max_body: int = MAX_BODY) -> None:
        self._buffer = bytearray()
        self._max_body = max_body

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield each frame that ``data`` completes."""
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            while len(buffer) - position >= PREFIX.size:
                header_size, body_size, channel = PREFIX.unpack_from(buffer, position)
                if header_size > MAX_HEADER or body_size > self._max_body:
                    raise ProtocolViolation(f"frame of {header_size} + {body_size} bytes")
                start = position + PREFIX.size
                end = start + header_size + body_size
                if len(buffer) < end:
                    break
                header = decode_header(bytes(buffer[start : start + header_size]))
                body = bytes(buffer[start + header_size : end])
                position = end
                yield Frame(channel, header, body)
        finally:
            del buffer[:position]

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)


def decode_header(text: bytes) -> dict[str, Any]:
    """Return the JSON object in ``text``, its strings clean; anything else is a :class:`ProtocolViolation`."""
    try:
        header = parse(text.decode("utf-8"), strict=True)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation("a frame's header is not JSON") from error
    if not isinstance(header, dict) or not isinstance(header.get("op"), str):
        raise ProtocolViolation("a frame's header is not an object with an op")
    return header
