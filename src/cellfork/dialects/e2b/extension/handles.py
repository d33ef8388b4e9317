"""What a client has opened and will close, unless it is gone: uploads and watches, by number."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cellfork.engine.clock import Clock, Timer
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import LimitExceeded, NotFound

T = TypeVar("T")


@dataclass(slots=True)
class _Open(Generic[T]):
    sandbox: Sandbox
    thing: T
    timer: Timer


class Handles(Generic[T]):
    """Things by handle, at most ``most`` of one sandbox; one that nobody uses for ``idle`` seconds is given to ``drop``.

    All methods belong to one event loop.
    """

    def __init__(self, clock: Clock, what: str, most: int, idle: float, drop: Callable[[T], None]) -> None:
        self._clock = clock
        self._what = what
        self._most = most
        self._idle = idle
        self._drop = drop
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open[T]] = {}

    def check_room(self, sandbox: Sandbox) -> None:
        """Raise :class:`LimitExceeded` where a sandbox has as many as it may."""
        if sum(entry.sandbox is sandbox for entry in self._open.values()) >= self._most:
            raise LimitExceeded(f"a sandbox has at most {self._most} {self._what} open at once")

    def add(self, sandbox: Sandbox, thing: T) -> int:
        """Keep a thing; return its handle."""
        handle = next(self._numbers)
        self._open[handle] = _Open(
            sandbox, thing, self._clock.later(self._idle, lambda: self._expire(handle))
        )
        sandbox.on_end(lambda: self._forget(handle))
        return handle

    def get(self, sandbox: Sandbox, handle: int) -> T:
        """Return a thing of a sandbox, and let its time begin anew.  Raises :class:`NotFound`."""
        entry = self._of(sandbox, handle)
        entry.timer.cancel()
        entry.timer = self._clock.later(self._idle, lambda: self._expire(handle))
        return entry.thing

    def take(self, sandbox: Sandbox, handle: int) -> T:
        """Return a thing of a sandbox, and keep it no longer.  Raises :class:`NotFound`."""
        entry = self._of(sandbox, handle)
        self._forget(handle)
        return entry.thing

    def _of(self, sandbox: Sandbox, handle: int) -> _Open[T]:
        entry = self._open.get(handle)
        if entry is None or entry.sandbox is not sandbox:
            raise NotFound(f"no {self._what} {handle} here: it was closed, or not used for {self._idle:g} s")
        return entry

    def _expire(self, handle: int) -> None:
        entry = self._open.get(handle)
        if entry is not None:
            self._forget(handle)
            self._drop(entry.thing)

    def _forget(self, handle: int) -> None:
        entry = self._open.pop(handle, None)
        if entry is not None:
            entry.timer.cancel()
