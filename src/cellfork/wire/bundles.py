"""MIME bundles as bytes: the header lists ``[mime, kind, size]``, the body holds the contents one after another.

Kinds: ``s`` text (UTF-8), ``b`` bytes, ``j`` JSON.  A MIME type is printable: it ends up in headers, names and logs.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from cellfork.model.errors import ProtocolViolation
from cellfork.wire.values import is_shallow, parse, weigh

Parts = list[list[Any]]
MAX_PARTS = 64
MAX_MIME = 255


def encode_bundle(data: Mapping[str, Any]) -> tuple[Parts, bytes]:
    """Return the list of parts and the body for MIME type → ``str``, ``bytes`` or JSON value.

    Raises ``ValueError`` for what :func:`decode_bundle` would refuse: too many types, or too long a name.
    """
    if len(data) > MAX_PARTS or not all(map(is_mime, data)):
        raise ValueError(f"a bundle has at most {MAX_PARTS} types of at most {MAX_MIME} printable characters")
    parts: Parts = []
    contents: list[bytes] = []
    for mime, value in data.items():
        kind, content = _encode_value(value)
        parts.append([mime, kind, len(content)])
        contents.append(content)
    return parts, b"".join(contents)


def is_mime(name: str) -> bool:
    """Tell whether ``name`` may stand for a type: it is short, and nothing in it ends a line or steers a terminal."""
    return len(name) <= MAX_MIME and name.isprintable()


class Part(NamedTuple):
    """One content of a bundle, not read yet."""

    mime: str
    kind: str
    content: bytes

    @property
    def weight(self) -> int:
        """The most memory that its JSON can take when it is read, in bytes; 0 for text and bytes, which stay what they are."""
        return weigh(self.content) if self.kind == "j" else 0

    def read(self) -> Any:
        """Return the value.  JSON that does not parse, or nests too deeply, is text: it is the sandbox's own affair."""
        return _decode_value(self.kind, self.content)


def cut_bundle(parts: object, body: bytes) -> list[Part]:
    """Return the contents of a bundle, none of them read yet.

    Raises :class:`ProtocolViolation` where parts and body do not fit, and nothing else.
    """
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        raise ProtocolViolation("a bundle's parts are not a short list")
    cut: list[Part] = []
    position = 0
    for part in parts:
        mime, kind, size = _checked(part)
        content = body[position : position + size]
        if len(content) != size:
            raise ProtocolViolation("a bundle's parts are longer than its body")
        position += size
        cut.append(Part(mime, kind, content))
    if position != len(body):
        raise ProtocolViolation("a bundle's body is longer than its parts")
    return cut


def decode_bundle(parts: object, body: bytes) -> dict[str, Any]:
    """Return MIME type → value; raises as :func:`cut_bundle` does.

    What comes from a sandbox is weighed first (:attr:`Part.weight`).
    """
    return {part.mime: part.read() for part in cut_bundle(parts, body)}


def _encode_value(value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return "b", value
    if isinstance(value, str):
        return "s", value.encode("utf-8", "backslashreplace")
    return "j", json.dumps(value, separators=(",", ":")).encode("ascii")


def _checked(part: object) -> tuple[str, str, int]:
    match part:
        case [str() as mime, "s" | "b" | "j" as kind, int() as size] if size >= 0 and is_mime(mime):
            if not isinstance(size, bool):
                return mime, kind, size
    raise ProtocolViolation("a bundle's part is not [mime, kind, size]")


def _decode_value(kind: str, content: bytes) -> Any:
    if kind == "b":
        return content
    text = content.decode("utf-8", "replace")
    if kind == "s":
        return text
    try:
        value = parse(text)
    except (ValueError, RecursionError):
        return text
    return value if is_shallow(value) else text
