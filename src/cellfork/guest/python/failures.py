"""What is told of an error: class, message, IPython's traceback as plain text."""

import re
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Failure(NamedTuple):
    """How a cell failed: ``status`` is ``error`` or ``interrupted``."""

    status: str
    name: str
    value: str
    traceback: str


INTERRUPTED = Failure("interrupted", "KeyboardInterrupt", "", "KeyboardInterrupt")


def describe(
    result: Any, shown: Sequence[tuple[type[BaseException], BaseException, list[str]]], *, fired: bool
) -> Failure | None:
    """Return the failure of a cell, ``None`` where it ran through.

    ``shown`` are the tracebacks that IPython showed meanwhile.  An error that did not end the cell (a
    display that raised) counts as well; beside one that did, it is written to stderr.
    """
    error = result.error_before_exec if result.error_before_exec is not None else result.error_in_exec
    traces = list(shown)
    if error is None:
        if not traces:
            return None
        error = traces.pop(0)[1]
        text = _text_of(shown[0][2])
    else:
        own = next((trace for trace in reversed(traces) if trace[1] is error), None)
        text = _format(error) if own is None else _text_of(own[2])
        traces = [trace for trace in traces if trace is not own]
    for _, _, lines in traces:
        print(_text_of(lines), file=sys.stderr)
    return _failure(error, text, fired=fired)


def _failure(error: BaseException, text: str, *, fired: bool) -> Failure:
    interrupted = isinstance(error, KeyboardInterrupt) or (fired and type(error).__name__ == "CancelledError")
    if interrupted:
        return Failure("interrupted", "KeyboardInterrupt", safe_str(error), text)
    return Failure("error", type(error).__name__, safe_str(error), text)


def safe_str(error: BaseException) -> str:
    """Return ``str(error)``, or a note where that raises."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - the user's own __str__
        return f"<{type(error).__name__}: its text could not be made, {type(second).__name__} was raised>"


def without_ansi(text: str) -> str:
    """Return ``text`` without colours and other escape sequences."""
    return _ANSI.sub("", text)


def _text_of(lines: Sequence[object]) -> str:
    return without_ansi("\n".join(map(str, lines)))


def _format(error: BaseException) -> str:
    """Return the text of what IPython prints instead of handing it over: usage errors, exception groups."""
    if type(error).__name__ == "UsageError":
        return f"UsageError: {safe_str(error)}"
    return native_traceback(error).rstrip("\n")


def holds_group(error: BaseException | None) -> bool:
    """Tell whether ``error``, or what it came of, is an exception group: IPython leaves these to Python's own format."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, BaseExceptionGroup):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def native_traceback(error: BaseException) -> str:
    """Return the traceback of ``error`` as Python writes it, from the code's own first frame on."""
    try:
        return "".join(traceback.format_exception(type(error), error, _from_the_code_on(error.__traceback__)))
    except Exception:  # noqa: BLE001 - the user's own __str__
        return type(error).__name__


def _from_the_code_on(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_machinery(trace.tb_frame.f_globals.get("__name__")):
        trace = trace.tb_next
    return trace


def _is_machinery(module: object) -> bool:
    return isinstance(module, str) and module.startswith(("IPython.", "cellfork.guest."))
