"""One run of code as a bridge sees it: what is known of it so far, and how it ended."""

import time
from collections.abc import Mapping
from typing import Any

from cellfork.guest.python.failures import INTERRUPTED, Failure, without_ansi

SETTLE_SECONDS = 0.03
"""How long a kernel that says that it begins may take until it can be interrupted."""
PRESS_SECONDS = 0.5
MOST_PRESSES = 3
NO_INPUT = Failure(
    "error",
    "StdinNotImplementedError",
    "input was asked for, but this frontend does not support input requests.",
    "StdinNotImplementedError: input was asked for, but this frontend does not support input requests.",
)

Content = Mapping[str, Any]


class Execution:
    """A run of code.  Its end is the reply *and* the return to idle.

    ``quiet`` is code of ours, of which nothing is seen.  ``stdin`` tells whether somebody would answer a question.
    """

    def __init__(self, *, quiet: bool = False, stdin: bool = False) -> None:
        self.id = ""
        self.quiet = quiet
        self.stdin = stdin
        self.idle = False
        self.interrupted = False
        self.refused = False
        self.reply: Content | None = None
        self.error: Content | None = None
        self._begun: float | None = None
        self._pressed_at = 0.0
        self._first_press: float | None = None
        self._presses = 0

    def begin(self) -> None:
        """Note that the kernel says it is at it."""
        if self._begun is None:
            self._begun = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        return self.idle and self.reply is not None

    def wait(self) -> float | None:
        """Return the seconds until the kernel is to be interrupted (again), ``None`` for never."""
        wanted = (self.interrupted or self.refused) and not self.is_over
        if not wanted or self._begun is None or self._presses >= MOST_PRESSES:
            return None
        due = self._pressed_at + PRESS_SECONDS if self._presses else self._begun + SETTLE_SECONDS
        return max(0.0, due - time.monotonic())

    def is_deaf(self, patience: float) -> bool:
        """Tell whether it goes on ``patience`` seconds after it was interrupted first."""
        return self._first_press is not None and time.monotonic() - self._first_press >= patience

    def press(self) -> None:
        """Note that the kernel is interrupted now."""
        self._presses += 1
        self._pressed_at = time.monotonic()
        if self._first_press is None:
            self._first_press = self._pressed_at

    @property
    def count(self) -> int | None:
        """The number that the kernel gave it."""
        count = (self.reply or {}).get("execution_count")
        return count if type(count) is int and 0 < count < 1 << 53 else None

    @property
    def leaves(self) -> bool:
        """Whether the code asked its kernel to exit."""
        payload = (self.reply or {}).get("payload")
        asked = [one for one in payload if isinstance(one, dict)] if isinstance(payload, list) else []
        return any(one.get("source") == "ask_exit" and not one.get("keepkernel") for one in asked)

    def failure(self) -> Failure | None:
        """Return what is told of its end, ``None`` where it ran through."""
        reply = self.reply or {}
        error = self.error or (reply if reply.get("status") == "error" else None)
        aborted = reply.get("status") in {"abort", "aborted"}
        if self.refused and (error is not None or aborted):
            return NO_INPUT
        if error is None:
            return INTERRUPTED if self.interrupted or aborted else None
        lines = error.get("traceback") or []
        text = _plain("\n".join(map(str, lines)) if isinstance(lines, list) else lines)
        name, value = _plain(error.get("ename") or "Error"), _plain(error.get("evalue", "")).rstrip("\n")
        text = text or f"{name}: {value}"
        if self.interrupted:
            return INTERRUPTED._replace(value=value, traceback=text)
        return Failure("error", name, value, text)


def _plain(value: Any) -> str:
    """Return text without colours, and without what UTF-8 cannot say."""
    return without_ansi(str(value)).encode("utf-8", "backslashreplace").decode()
