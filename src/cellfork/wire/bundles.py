"""MIME bundles as bytes: the header lists ``[mime, kind, size]``, the body holds the contents one after another.

Kinds: ``s`` text (UTF-8), ``b`` bytes, ``j`` JSON.
"""

import json
from collections.abc import Mapping
from typing import Any

from cellfork.model.errors import ProtocolViolation
from cellfork.wire.values import is_shallow, parse

Parts = list[list[Any]]
MAX_PARTS = 64
MAX_MIME = 255


def encode_bundle(data: Mapping[str, Any]) -> tuple[Parts, bytes]:
    """Return the list of parts and the body for MIME type → ``str``, ``bytes`` or JSON value.

    Raises ``ValueError`` for what :func:`decode_bundle` would refuse: too many types, or too long a name.
    """
    if len(data) > MAX_PARTS or any(len(mime) > MAX_MIME for mime in data):
        raise ValueError(f"a bundle has at most {MAX_PARTS} types of at most {MAX_MIME} characters")
    parts: Parts = []
    contents: list[bytes] = []
    for mime, value in data.items():
        kind, content = _encode_value(value)
        parts.append([mime, kind, len(content)])
        contents.append(content)
    return parts, b"".join(contents)


def decode_bundle(parts: object, body: bytes) -> dict[str, Any]:
    """Return MIME type → value.

    Raises :class:`ProtocolViolation` where parts and body do not fit, and nothing else.  JSON that does
    not parse, or nests too deeply, is kept as text: it is the sandbox's own affair.
    """
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        raise ProtocolViolation("a bundle's parts are not a short list")
    bundle: dict[str, Any] = {}
    position = 0
    for part in parts:
        mime, kind, size = _checked(part)
        content = body[position : position + size]
        if len(content) != size:
            raise ProtocolViolation("a bundle's parts are longer than its body")
        position += size
        bundle[mime] = _decode_value(kind, content)
    if position != len(body):
        raise ProtocolViolation("a bundle's body is longer than its parts")
    return bundle


def _encode_value(value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return "b", value
    if isinstance(value, str):
        return "s", value.encode("utf-8", "backslashreplace")
    return "j", json.dumps(value, separators=(",", ":")).encode("ascii")


def _checked(part: object) -> tuple[str, str, int]:
    match part:
        case [str() as mime, "s" | "b" | "j" as kind, int() as size] if size >= 0 and len(mime) <= MAX_MIME:
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
