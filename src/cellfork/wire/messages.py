"""The closed sets of messages, and the check of everything that comes from a guest."""

from collections.abc import Mapping
from typing import Any

from cellfork.model.errors import ProtocolViolation
from cellfork.wire.frames import Frame
from cellfork.wire.values import is_shallow

VERSION = 1

FieldTypes = Mapping[str, tuple[type, ...]]

_INT = (int,)
_STR = (str,)
_BOOL = (bool,)
_DICT = (dict,)
_LIST = (list,)
_INT_OR_NONE = (int, type(None))
_STR_OR_NONE = (str, type(None))

FROM_INIT: Mapping[str, FieldTypes] = {
    "listening": {},
    "kept": {"kind": _STR},
    "adopted": {"version": _INT, "channel": _INT, "process": _INT},
    "locked": {},
    "ready": {"version": _INT, "pid": _INT},
    "reply": {"id": _INT, "ok": _BOOL},
    "chunk": {"id": _INT},
    "process.output": {"process": _INT, "stream": _STR},
    "process.exit": {"process": _INT, "code": _INT, "signal": _INT_OR_NONE},
    "watch.event": {"watch": _INT, "name": _STR, "kind": _STR},
}
"""What init may say on channel 0, with the types of its fields."""

FROM_CONTEXT: Mapping[str, FieldTypes] = {
    "stdout": {"execution": _STR, "dropped": _INT},
    "stderr": {"execution": _STR, "dropped": _INT},
    "display": {
        "execution": _STR,
        "parts": _LIST,
        "metadata": _DICT,
        "display_id": _STR_OR_NONE,
        "main": _BOOL,
    },
    "update": {"execution": _STR, "parts": _LIST, "metadata": _DICT, "display_id": _STR},
    "clear": {"execution": _STR, "wait": _BOOL},
    "artifacts": {"execution": _STR, "truncated": _BOOL},
    "input_request": {"execution": _STR, "prompt": _STR, "password": _BOOL},
    "done": {
        "execution": _STR,
        "status": _STR,
        "count": _INT_OR_NONE,
        "next_count": _INT_OR_NONE,
        "name": _STR_OR_NONE,
        "parts": _LIST,
    },
    "kernel_exit": {"code": _INT_OR_NONE, "signal": _INT_OR_NONE, "execution": _STR_OR_NONE},
}
"""What may be said on a context's channel."""


REPLY: Mapping[bool, FieldTypes] = {True: {"result": _DICT}, False: {"code": _STR, "message": _STR}}
"""What a reply has besides, by its ``ok``."""

WORDS: Mapping[tuple[str, str], frozenset[str]] = {
    ("process.output", "stream"): frozenset({"stdout", "stderr", "pty"}),
    ("kept", "kind"): frozenset({"kernel", "process"}),
    ("watch.event", "kind"): frozenset({"create", "write", "remove", "rename", "chmod"}),
    ("done", "status"): frozenset({"ok", "error", "interrupted"}),
}
"""The fields whose values are closed sets, by message and field."""

MAX_INT = 2**63 - 1


def check_from_guest(frame: Frame) -> None:
    """Raise :class:`ProtocolViolation` unless ``frame`` is a known message with fields of the right types."""
    known = FROM_CONTEXT if frame.channel else FROM_INIT
    header = frame.header
    op = header["op"]
    types = known.get(op)
    if types is None:
        raise ProtocolViolation(f"unexpected message {op[:40]!r} on channel {frame.channel}")
    _check_types(header, types)
    if op == "reply":
        _check_types(header, REPLY[header["ok"]])
    for (message, name), words in WORDS.items():
        if op == message and header[name] not in words:
            raise ProtocolViolation(f"field {name!r} of {op!r} is {header[name][:40]!r}")
    if not is_shallow(header):
        raise ProtocolViolation(f"a header of {op!r} nests too deeply")


def _check_types(header: Mapping[str, Any], types: FieldTypes) -> None:
    for name, expected in types.items():
        if name not in header or not _is_a(header[name], expected):
            raise ProtocolViolation(f"field {name!r} of {header['op']!r} is missing or of the wrong type")


def _is_a(value: Any, expected: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in expected
    return isinstance(value, expected) and not (isinstance(value, int) and abs(value) > MAX_INT)
