"""Events of an execution as lines of upstream's stream, one JSON object each.

What upstream's wire has no line for is left out: clears, updates of a display, artifacts, accounting.  Our own
client asks for all of them by another route.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from cellfork.model import events
from cellfork.model.execution import outcome_of
from cellfork.model.results import CHART_MIME, ExecutionError, Result, json_safe

LONGEST_TEXT = 64 * 1024
"""Characters of one line's text: clients that put lines together piece by piece stay quick."""
END = b'{"type":"end_of_execution"}\n'
KEEPALIVE = b'{"type":"keepalive"}\n'

SAVED_IMAGES: Mapping[str, str] = {"CELLFORK_DISPLAY_SAVED_IMAGES": "1"}
"""Variables of a sandbox that upstream's clients use: an image that code saves under a name is displayed as well."""

_FORMATS = (
    "text",
    "html",
    "markdown",
    "svg",
    "png",
    "jpeg",
    "pdf",
    "latex",
    "json",
    "javascript",
    "data",
)
_encode = msgspec.json.Encoder().encode


class Lines:
    """Lines for one execution.

    ``split_newline`` has the newline at the end of a text as a line of its own: upstream's Java kernel writes it so.
    """

    __slots__ = ("_split_newline",)

    def __init__(self, language: str) -> None:
        self._split_newline = language == "java"

    def of(self, event: events.Event) -> bytes:
        """Return the lines of an event that is not the last one; none where upstream has none."""
        match event:
            case events.Stdout():
                return self._text("stdout", event.text, event.timestamp)
            case events.Stderr():
                return self._text("stderr", event.text, event.timestamp)
            case events.Display():
                return line(_result(event))
            case events.Started(execution_count=count) if count is not None:
                return b'{"type":"number_of_executions","execution_count":%d}\n' % count
        return b""

    def _text(self, kind: str, text: str, timestamp: int) -> bytes:
        head = b'{"type":"%s","text":' % kind.encode()
        tail = b',"timestamp":"%s"}\n' % _time(timestamp)
        pieces = self._pieces(text)
        return b"".join(part for piece in pieces for part in (head, _encode(piece), tail))

    def _pieces(self, text: str) -> Iterable[str]:
        if self._split_newline and len(text) > 1 and text[-1] == "\n":
            return [*cut(text[:-1]), "\n"]
        return (text,) if len(text) <= LONGEST_TEXT else cut(text)


def last_lines(event: events.Terminal, *, removed: bool) -> bytes:
    """Return the lines that end a stream whose sandbox lives on.

    ``removed`` tells that the context is gone, which upstream says in other words than that it was restarted.
    """
    error = _error(event, removed=removed)
    return END if error is None else line(error) + END


def cut(text: str) -> Iterator[str]:
    """Yield pieces of at most :data:`LONGEST_TEXT` characters, at ends of lines where there are any."""
    start, size = 0, len(text)
    while size - start > LONGEST_TEXT:
        end = text.rfind("\n", start, start + LONGEST_TEXT) + 1 or start + LONGEST_TEXT
        yield text[start:end]
        start = end
    yield text[start:]


def line(value: Mapping[str, Any]) -> bytes:
    """Return a line of JSON.  NaN and infinities become ``null``: upstream sends what no JSON parser but Python's takes."""
    try:
        return _encode(value) + b"\n"
    except (OverflowError, TypeError, ValueError):  # integers beyond 64 bits, lone surrogates
        return json.dumps(json_safe(value)).encode() + b"\n"


def _result(event: events.Display) -> dict[str, Any]:
    """Return the line of a result: no nulls but those within it.

    The description of a chart goes as the kernel made it, with its own nulls.
    """
    chart = event.data.get(CHART_MIME)
    is_chart = isinstance(chart, dict)
    bundle = (
        {mime: value for mime, value in event.data.items() if mime != CHART_MIME} if is_chart else event.data
    )
    result = Result.from_bundle(bundle)
    told: dict[str, Any] = {"type": "result"}
    for name in _FORMATS:
        value = getattr(result, name)
        if value is not None:
            told[name] = value
    if result.text:
        told["text"] = _without_quotes(result.text)
    if is_chart and chart:
        told["chart"] = chart
    told["extra"] = result.extra
    told["is_main_result"] = event.is_main_result
    return told


def _without_quotes(text: str) -> str:
    """Return the text of a string's repr without its quotes (upstream does that to every text)."""
    return text[1:-1] if text[0] in "'\"" and text[-1] == text[0] else text


def _error(event: events.Terminal, *, removed: bool) -> dict[str, str] | None:
    """Return the error line of a terminal event.

    A kernel that ended under its code is told as upstream tells it: its context was restarted, or closed.
    """
    error = outcome_of(event)[1]
    if isinstance(event, events.Lost | events.Killed):
        if removed:
            value = "Connection to the execution was closed before the execution was finished"
            error = ExecutionError("UnexpectedEndOfExecution", value)
        else:
            error = ExecutionError("ContextRestarting", _restarted(event))
    return None if error is None else {"type": "error", **error.to_dict()}


def _restarted(event: events.Lost | events.Killed) -> str:
    on_request = isinstance(event, events.Killed) and event.reason == "request"
    return "Context was restarted" if on_request else f"Context was restarted: {event.message}"


def _time(nanoseconds: int) -> bytes:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    return moment.isoformat().encode()
