"""The one escalation that stops code: interrupt, terminate the kernel, kill the sandbox."""

from collections.abc import Callable
from typing import Literal, Protocol

from cellfork.engine.clock import Clock, Timer
from cellfork.model.events import Step

Cause = Literal["timeout", "request"]
"""Why code is stopped: its time ran out, or somebody asked."""


class Stoppable(Protocol):
    """What can be stopped: the context that runs the code."""

    def send_interrupt(self) -> None:
        """Send SIGINT to the kernel's process group."""
        ...

    def send_terminate(self) -> None:
        """Kill the kernel."""
        ...

    def kill_sandbox(self) -> None:
        """Kill the sandbox."""
        ...


class Stopper:
    """Takes one step after the other, each after ``grace`` seconds, until it is told that the code ended."""

    __slots__ = ("_clock", "_grace", "_target", "_timer", "cause", "step")

    def __init__(self, target: Stoppable, cause: Cause, clock: Clock, grace: float) -> None:
        self.cause = cause
        self.step: Step = "interrupt"
        self._target = target
        self._clock = clock
        self._grace = grace
        self._timer: Timer | None = None

    def start(self) -> None:
        """Interrupt now, and go on while the code does."""
        self._then(self._terminate)
        self._target.send_interrupt()

    def cancel(self) -> None:
        """Take no further step: the code ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _terminate(self) -> None:
        self.step = "terminate"
        self._then(self._kill)
        self._target.send_terminate()

    def _kill(self) -> None:
        self.step = "kill"
        self._target.kill_sandbox()

    def _then(self, step: Callable[[], None]) -> None:
        self._timer = self._clock.later(self._grace, step)
