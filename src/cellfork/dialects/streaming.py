"""The events of one execution on their way to one client, who may be slow, or gone."""

import asyncio
from collections.abc import Callable

from cellfork.dialects.asgi import Receive, disconnected
from cellfork.model import events

MOST_PENDING = 4 * 1024 * 1024
"""Bytes, roughly, that wait for a client before it has to take them from the log."""
UNMEASURED = 1024 * 1024
"""What a value counts that is neither text nor bytes: its memory is not known without walking it."""
EACH = 256
"""What an event counts besides what it holds."""

Since = Callable[[int], list[events.Event]]


class Follower:
    """Takes events from the engine as they happen, and hands them over in batches.

    A client that keeps up gets every event.  For one that lags, what waits is let go, and taken later from the execution's
    log: that is bounded, and has forgotten only what later events made void.  Belongs to one event loop.
    """

    __slots__ = ("_last", "_pending", "_ready", "_waiter", "_watcher", "_weight", "gone")

    def __init__(self) -> None:
        self.gone = False
        """Whether the client has closed its connection."""
        self._pending: list[events.Event] = []
        self._weight = 0
        self._last = 0
        self._ready = False
        self._waiter: asyncio.Future[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def put(self, event: events.Event) -> None:
        """Take an event.  That the code has begun is nothing to wake up for: more follows at once."""
        if self._weight <= MOST_PENDING:
            self._weight += weight_of(event)
            self._pending.append(event)
        if not isinstance(event, events.Started):
            self._ready = True
            self._wake()

    def take(self, since: Since) -> list[events.Event]:
        """Return what has happened since the last time; ``since`` reads the log after a number."""
        batch = self._pending if self._weight <= MOST_PENDING else since(self._last)
        self._pending, self._weight, self._ready = [], 0, False
        if batch:
            self._last = batch[-1].seq
        return batch

    async def wait(self, seconds: float) -> None:
        """Return when there is something to take, when the client is gone, or after ``seconds``."""
        if self._ready or self.gone:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def watch(self, receive: Receive) -> None:
        """Notice from now on that the client closes its connection."""
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(_gone(receive))
            self._watcher.add_done_callback(self._on_gone)

    def close(self) -> None:
        """Watch no longer."""
        if self._watcher is not None:
            self._watcher.cancel()

    def _on_gone(self, watcher: "asyncio.Task[None]") -> None:
        if not watcher.cancelled():
            self.gone = True
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def weight_of(event: events.Event) -> int:
    """Return roughly the memory that an event holds."""
    if isinstance(event, events.Stdout | events.Stderr):
        return EACH + len(event.text)
    if isinstance(event, events.Display | events.Update):
        return EACH + sum(
            len(value) if isinstance(value, str | bytes) else UNMEASURED for value in event.data.values()
        )
    return EACH


async def _gone(receive: Receive) -> None:
    try:
        await disconnected(receive)
    except Exception:  # noqa: BLE001, S110 - however the connection ended, it has
        pass
