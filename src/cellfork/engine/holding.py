"""What stands still while a sandbox does: its timers, and what is sent to it."""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from cellfork.engine.clock import Clock, Timer
from cellfork.model.errors import CellforkError, LimitExceeded

Header = dict[str, Any]
Send = Callable[[Header, bytes, int], None]
MAX_KEPT = 10_000
"""Frames that wait for one sandbox to go on."""
ARCHIVE = "archive."
"""How the names of the operations begin that are not kept back: a sandbox is held still for them."""


class HeldTimer:
    """A call that is due when its clock has run long enough."""

    __slots__ = ("_clock", "callback", "due", "inner")

    def __init__(self, clock: "PausableClock", callback: Callable[[], object], due: float) -> None:
        self.callback = callback
        self.due = due
        self.inner: Timer | None = None
        self._clock = clock

    def cancel(self) -> None:
        """Do nothing when the time comes."""
        self._clock.forget(self)

    def fire(self) -> None:
        """Make the call."""
        self._clock.forget(self)
        self.callback()


class PausableClock:
    """The time that a sandbox runs: ``clock`` without its pauses.  The time of day (``time_ns``) goes on.

    Implements :class:`cellfork.engine.clock.Clock`.
    """

    def __init__(self, clock: Clock) -> None:
        self.time_ns = clock.time_ns
        self._clock = clock
        self._lost = 0.0
        self._stopped_at: float | None = None
        self._timers: set[HeldTimer] = set()

    def monotonic(self) -> float:
        """Seconds that only ever grow, and stand still during a pause."""
        now = self._clock.monotonic() if self._stopped_at is None else self._stopped_at
        return now - self._lost

    def later(self, seconds: float, callback: Callable[[], object]) -> HeldTimer:
        """Call ``callback`` once, when the sandbox has run for another ``seconds``."""
        timer = HeldTimer(self, callback, self.monotonic() + seconds)
        self._timers.add(timer)
        if self._stopped_at is None:
            timer.inner = self._clock.later(seconds, timer.fire)
        return timer

    def forget(self, timer: HeldTimer) -> None:
        """Drop a timer."""
        self._timers.discard(timer)
        if timer.inner is not None:
            timer.inner.cancel()

    def stop(self) -> None:
        """Stand still: no timer is due from now on."""
        if self._stopped_at is not None:
            return
        self._stopped_at = self._clock.monotonic()
        for timer in self._timers:
            if timer.inner is not None:
                timer.inner.cancel()
                timer.inner = None

    def go(self) -> None:
        """Go on: every timer has the time left that it had."""
        if self._stopped_at is None:
            return
        self._lost += self._clock.monotonic() - self._stopped_at
        self._stopped_at = None
        now = self.monotonic()
        for timer in [*self._timers]:
            timer.inner = self._clock.later(max(0.0, timer.due - now), timer.fire)


class Outbox:
    """Sends frames to a guest, or keeps them, in their order, while the sandbox is held still."""

    def __init__(self, send: Send) -> None:
        self.send = self._send = send
        self._kept: deque[tuple[Header, bytes, int]] = deque()

    def hold(self) -> None:
        """Keep what is sent from now on."""
        self.send = self._keep

    def release(self) -> None:
        """Send what was kept, and what comes."""
        self.send = self._send
        with contextlib.suppress(
            CellforkError
        ):  # it has ended, which whoever waits for an answer is told elsewhere
            while self._kept:
                self._send(*self._kept.popleft())
        self._kept.clear()

    def redirect(self, send: Send) -> None:
        """Send to another guest from now on.  What was kept for the old one is dropped."""
        self._kept.clear()
        self.send = self._send = send

    def _keep(self, header: Header, body: bytes = b"", channel: int = 0) -> None:
        if header["op"].startswith(ARCHIVE):
            self._send(header, body, channel)
        elif len(self._kept) >= MAX_KEPT:
            raise LimitExceeded(f"{MAX_KEPT:,} requests wait for the sandbox to go on already")
        else:
            self._kept.append((header, body, channel))
