"""The stream of execd: one compact JSON object and an empty line for each event.

That is not what a browser calls server-sent events (there is no ``data:``), and it is what every client parses.  Only ASCII is
sent: clients of the 0.1 generation cut lines at U+0085 and U+2028 as well.
"""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from cellfork.dialects.asgi import Headers
from cellfork.model import events
from cellfork.model.execution import outcome_of
from cellfork.model.results import ExecutionError, json_safe

PING_SECONDS = 3.0
"""After so much silence a ping is sent."""
LONGEST_TEXT = 64 * 1024
"""Characters of one event's text, where it may be cut anywhere."""
LONGEST_LINE = 512 * 1024
"""Characters of a line of a command, which is an event of its own; with all of them escaped, Go's client reads it still."""
STREAM_HEADERS: Headers = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
JAVA_THROWN: Final = "EvalException"
JAVA_NAMES: Final = frozenset({JAVA_THROWN, "CompilationException", "IncompleteSourceException"})
COMMAND_FAILED: Final = "CommandExecError"
NANOSECONDS_PER_MS = 1_000_000

Json = dict[str, Any]


def frame(kind: str, timestamp: int | None = None, **fields: Any) -> bytes:
    """Return one event; ``timestamp`` is Unix time in nanoseconds (``None``: now)."""
    told = time.time_ns() if timestamp is None else timestamp
    value = {"type": kind, **fields, "timestamp": told // NANOSECONDS_PER_MS}
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"
    except ValueError:  # numbers that JSON has not
        return json.dumps(json_safe(value), separators=(",", ":")).encode() + b"\n\n"


def init(id: str) -> bytes:
    """Return the first two events of every stream: the id, and a ping."""
    return frame("init", text=id) + ping()


def ping() -> bytes:
    """Return the event that says nothing."""
    return frame("ping", text="pong")


def text(kind: str, content: str, timestamp: int) -> bytes:
    """Return a piece of output, in several events where it is long; nothing where it is empty."""
    pieces = range(0, len(content), LONGEST_TEXT)
    return b"".join(frame(kind, timestamp, text=content[start : start + LONGEST_TEXT]) for start in pieces)


def complete(seconds: float, count: int | None = None) -> bytes:
    """Return the event that tells that all went well, how long it took, and the number of the execution."""
    fields = {"execution_time": round(seconds * 1000), "execution_count": count}
    return frame("execution_complete", **{name: value for name, value in fields.items() if value})


def error(name: str, value: str, traceback: list[str]) -> bytes:
    """Return an error."""
    return frame("error", error={"ename": name, "evalue": value, "traceback": traceback})


def of_event(event: events.Event) -> bytes:
    """Return what an event of an execution is on this wire; nothing for what it has no word for."""
    match event:
        case events.Stdout():
            return text("stdout", event.text, event.timestamp)
        case events.Stderr():
            return text("stderr", event.text, event.timestamp)
        case events.Display():
            return frame("result", event.timestamp, results=_bundle(event.data))
        case events.Update():
            return frame("result", event.timestamp, results=_bundle(event.data))
    return b""


def of_end(event: events.Terminal, language: str, count: int | None) -> bytes:
    """Return the last events of an execution: it is complete, or it failed, never both."""
    _status, failure = outcome_of(event)
    if failure is None:
        return complete(event.accounting.wall_time, count)
    told = named(failure, language) if isinstance(event, events.Failed) else failure
    traceback = told.traceback.split("\n") if told.traceback else []
    return frame("status", text="error") + error(told.name, told.value, traceback)


def named(failure: ExecutionError, language: str) -> ExecutionError:
    """Return an error as clients know it: whatever Java code throws is an ``EvalException``."""
    if language != "java" or failure.name in JAVA_NAMES:
        return failure
    value = f"{failure.name}: {failure.value}" if failure.value else failure.name
    return replace(failure, name=JAVA_THROWN, value=value)


def _bundle(data: Mapping[str, Any]) -> Json:
    """Return a result: every type by its name, and ``text/plain`` as ``text`` too.

    Upstream's documentation has the one name, its server the other; no client minds both.
    """
    told = {mime: _value(value) for mime, value in data.items()}
    return {"text": told["text/plain"], **told} if "text/plain" in told else told


def _value(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
