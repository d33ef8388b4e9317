"""The log: one line for each request, on stderr.  Never a body, a query, a header or a token.

A line that nobody takes is dropped and counted: whoever started the server with a pipe and does not read it
must not stop it.
"""

import logging
import os
import select
import sys
from typing import TYPE_CHECKING, Any

from cellfork.render.text import clean

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
PIECE = 4096
"""Bytes that a pipe takes at once where it takes any (pipe(7), PIPE_BUF)."""


class Lines:
    """Writes lines to a descriptor without ever waiting for its reader."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._in_line = False
        self.dropped = 0

    def msg(self, message: str) -> None:
        """Write one line, or count it where there is no room."""
        if self.dropped and self._write(f"cellfork: {self.dropped} lines of the log were dropped"):
            self.dropped = 0
        if not self._write(message):
            self.dropped += 1

    debug = info = warning = error = critical = msg

    def _write(self, message: str) -> bool:
        line = f"\n{message}\n" if self._in_line else f"{message}\n"
        data = line.encode("utf-8", "backslashreplace")
        for start in range(0, len(data), PIECE):
            if not self._put(data[start : start + PIECE]):
                self._in_line = self._in_line or start > 0
                return False
        self._in_line = False
        return True

    def _put(self, piece: bytes) -> bool:
        try:
            ready = self._poll.poll(0)
            return bool(
                ready and ready[0][1] & select.POLLOUT and os.write(self._descriptor, piece) == len(piece)
            )
        except OSError:
            return False


def make_logger(
    level: str = "info", form: str = "auto", lines: Lines | None = None
) -> "FilteringBoundLogger":
    """Return the server's logger; ``form`` is ``json``, ``console`` or ``auto`` (console on a terminal)."""
    import structlog

    tty = sys.stderr is not None and sys.stderr.isatty()
    console = form == "console" or (form == "auto" and tty)
    logger: FilteringBoundLogger = structlog.wrap_logger(
        lines or Lines(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *((_harmless, _console) if console else (structlog.processors.JSONRenderer(),)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=True,
    )
    return logger


def _harmless(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
    """Take escapes and line ends out of values: a terminal would obey them.  JSON escapes them by itself."""
    return {key: value if key == "exception" else _flat(value) for key, value in event.items()}


def _flat(value: Any) -> Any:
    return " ".join(clean(value).split()) if isinstance(value, str) else value


def _console(_logger: "WrappedLogger", _method: str, event: "EventDict") -> str:
    time, level, what = event.pop("timestamp", ""), event.pop("level", ""), event.pop("event", "")
    trace = event.pop("exception", None)
    rest = " ".join(f"{key}={value}" for key, value in event.items() if value not in {None, ""})
    line = f"{time[11:23]} {level:7} {what} {rest}".rstrip()
    return f"{line}\n{clean(trace)}" if trace else line


class Forwarder(logging.Handler):
    """Hands what uvicorn and asyncio log to the server's logger."""

    def __init__(self, logger: "FilteringBoundLogger") -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record at its own level."""
        # uvicorn tells at length about its start and end; the server does that itself
        if record.name.startswith("uvicorn") and record.levelno < logging.WARNING:
            return
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        self._logger.log(record.levelno, record.getMessage().strip(), source=record.name, exc_info=exc_info)
