"""The time, as the engine asks for it.  A test passes a clock of its own."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do nothing when the time comes."""
        ...


class Clock(Protocol):
    """Tells the time and calls back when some of it has passed."""

    def time_ns(self) -> int:
        """Unix time in nanoseconds: when something happened."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever grow: how long something took."""
        ...

    def later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` once, ``seconds`` from now, in the running event loop."""
        ...


class SystemClock:
    """The machine's time and asyncio's timers."""

    time_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    def later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` once, ``seconds`` from now, in the running event loop."""
        return asyncio.get_running_loop().call_later(seconds, callback)
