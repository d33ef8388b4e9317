"""MIME bundles as they travel: bytes, bounded, whatever the objects were."""

import base64
import binascii
import datetime as dt
import decimal
import json
import math
import numbers
import pathlib
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from cellfork.wire.bundles import MAX_PARTS, Parts, is_mime
from cellfork.wire.values import is_shallow

MAX_METADATA = 64 * 1024
MAX_BODY = 90 * 1024 * 1024
"""Upper bound of every bundle, below the cap of a frame's body."""


AS_TEXT = (decimal.Decimal, complex, dt.timedelta, uuid.UUID, pathlib.PurePath)
"""What is written as text in JSON: as a number it would lose something, or be none."""


class Content(NamedTuple):
    """A bundle ready to be sent."""

    parts: Parts
    body: bytes
    metadata: dict[str, Any]


def encode_bundle(data: Mapping[str, Any], metadata: Mapping[str, Any], limit: int) -> Content:
    """Encode MIME type → content, at most ``limit`` bytes.

    What does not fit is left out, text is cut in its middle; a note in ``text/plain`` says what is missing,
    and ``metadata["cellfork"]["dropped"]`` gives the sizes.
    """
    limit = min(limit, MAX_BODY)
    encoded, notes = _encode_all(data)
    dropped = _drop_largest(encoded, limit)
    if dropped:
        notes += [
            f"[{mime} of {_size(size)} dropped: a result has at most {_size(limit)}]"
            for mime, size in dropped.items()
        ]
    if notes:
        _add_notes(encoded, notes)
    clean = _clean_metadata(metadata)
    if dropped:
        clean["cellfork"] = {"dropped": dropped}
    parts = [[mime, kind, len(content)] for mime, (kind, content) in encoded.items()]
    return Content(parts, b"".join(content for _, content in encoded.values()), clean)


def encode_error(value: str, traceback: str) -> Content:
    """Encode the message and the traceback of an error; the traceback is cut first."""
    text = cut(value.encode("utf-8", "backslashreplace"), 64 * 1024 * 1024)
    trace = cut(traceback.encode("utf-8", "backslashreplace"), 256 * 1024)
    return Content([["value", "s", len(text)], ["traceback", "s", len(trace)]], text + trace, {})


NOTHING = Content([], b"", {})


def cut(content: bytes, limit: int) -> bytes:
    """Return UTF-8 ``content``, or its beginning and its end around a note, in at most ``limit`` bytes or so."""
    if len(content) <= limit:
        return content
    note = f"\n… [{_size(len(content))}, cut to {_size(limit)}] …\n".encode()
    half = max(0, limit - len(note)) // 2
    head = content[:half].decode("utf-8", "ignore").encode()
    tail = content[len(content) - half :].decode("utf-8", "ignore").encode() if half else b""
    return head + note + tail


Encoded = dict[str, tuple[str, bytes]]


def _encode_all(data: Mapping[str, Any]) -> tuple[Encoded, list[str]]:
    encoded: Encoded = {}
    notes: list[str] = []
    for mime, value in list(data.items())[: MAX_PARTS - 1]:
        if not isinstance(mime, str) or not is_mime(mime) or value is None:
            continue
        try:
            encoded[mime] = encode_value(mime, value)
        except (TypeError, ValueError, RecursionError, MemoryError) as error:
            notes.append(f"[{mime} dropped: {type(error).__name__}: {str(error)[:200]}]")
    return encoded, notes


def encode_value(mime: str, value: Any) -> tuple[str, bytes]:
    """Return the kind and the bytes of one part.  Raises ``TypeError`` or ``ValueError`` for what cannot travel."""
    if isinstance(value, str):
        binary = _from_base64(value) if is_binary(mime) else None
        return ("s", value.encode("utf-8", "backslashreplace")) if binary is None else ("b", binary)
    if isinstance(value, bytes | bytearray | memoryview):
        return "b", bytes(value)
    return "j", json.dumps(value, separators=(",", ":"), default=plain).encode("ascii")


def is_binary(mime: str) -> bool:
    """Tell whether Jupyter carries content of this type as base64."""
    return (
        mime.startswith(("image/", "audio/", "video/")) and not mime.endswith("+xml")
    ) or mime == "application/pdf"


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return None


def _drop_largest(encoded: Encoded, limit: int) -> dict[str, int]:
    """Take parts out, the largest first, until ``limit`` is kept; cut ``text/plain`` instead."""
    dropped: dict[str, int] = {}
    if "text/plain" in encoded:
        kind, text = encoded["text/plain"]
        encoded["text/plain"] = (kind, cut(text, limit))
    total = sum(len(content) for _, content in encoded.values())
    for mime in sorted(encoded, key=lambda mime: len(encoded[mime][1]), reverse=True):
        if total <= limit:
            break
        if mime != "text/plain":
            size = len(encoded.pop(mime)[1])
            dropped[mime] = size
            total -= size
    return dropped


def _add_notes(encoded: Encoded, notes: list[str]) -> None:
    kind, text = encoded.pop("text/plain", ("s", b""))
    joined = (text + b"\n" if text else b"") + "\n".join(notes).encode("utf-8", "backslashreplace")
    rest = dict(encoded)
    encoded.clear()
    encoded["text/plain"] = (kind, joined)
    encoded.update(rest)


def _clean_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    if not metadata:
        return {}
    try:
        text = json.dumps(dict(metadata), default=plain, allow_nan=False)
        clean = json.loads(text) if len(text) <= MAX_METADATA else {}
        return clean if is_shallow({"metadata": clean}) else {}  # init takes a deeper header for an attack
    except (TypeError, ValueError, RecursionError):
        return {}


def plain(value: Any) -> Any:
    """Return a JSON value for what ``json`` does not know: numpy's scalars and arrays, dates, sets, bytes, exact numbers.

    Raises ``TypeError`` for anything else.
    """
    if isinstance(value, dt.date | dt.time):
        return None if value != value else value.isoformat()  # noqa: PLR0124 - NaT is not equal to itself
    if isinstance(value, AS_TEXT):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} bytes"
    unit = min(int(math.log2(count) // 10), 4)
    return f"{count / 1024**unit:.1f} {' KMGT'[unit]}iB"
