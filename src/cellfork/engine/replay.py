"""The log of an execution's events: late subscribers get everything that still matters, then follow.

The log is bounded because what goes in is (see :mod:`cellfork.engine.recorder`), and because what a later event makes
void is forgotten: output before a clear, and contents of a display before its newest update.  Of questions
the newest are kept.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable
from operator import attrgetter

from cellfork.model import events

MAX_QUESTIONS = 100

_seq = attrgetter("seq")


class Changes:
    """Wakes those who wait for something to change.  Belongs to one event loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def next(self) -> None:
        """Return when :meth:`tell` is called next."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def tell(self) -> None:
        """Wake everybody who waits."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class EventLog:
    """Events in the order of ``seq``.  Reads and writes belong to one event loop."""

    __slots__ = ("_changes", "_clear_pending", "_items", "_questions", "_updates", "closed")

    def __init__(self) -> None:
        self._items: list[events.Event] = []
        self._updates: dict[str, events.Update] = {}
        self._questions: deque[events.InputRequest] = deque()
        self._clear_pending: events.Clear | None = None
        self._changes = Changes()
        self.closed = False

    def append(self, event: events.Event) -> None:
        """Add the next event; the terminal one closes the log."""
        kind = type(event)
        if kind is events.Update or kind is events.Clear or self._clear_pending:
            self._compact(event)
        elif isinstance(event, events.InputRequest):
            self._keep_question(event)
        self._items.append(event)
        if isinstance(event, events.Terminal):
            self.closed = True
        self._changes.tell()

    def since(self, seq: int) -> list[events.Event]:
        """Return the events after number ``seq`` (0: all)."""
        items = self._items
        if not items or items[-1].seq <= seq:
            return []
        return items[bisect_right(items, seq, key=_seq) :]

    async def follow(self, seq: int = 0) -> AsyncIterator[events.Event]:
        """Yield the events after number ``seq``, those to come as well, up to the terminal one."""
        while True:
            batch = self.since(seq)
            for event in batch:
                yield event
            if batch:
                seq = batch[-1].seq
            elif self.closed:
                return
            else:
                await self._changes.next()

    async def wait_closed(self) -> None:
        """Return when the terminal event is there."""
        while not self.closed:
            await self._changes.next()

    def _compact(self, event: events.Event) -> None:
        if isinstance(event, events.Clear):
            if not event.wait:
                self._forget(lambda item: not isinstance(item, events.Started))
            elif self._clear_pending is not None:
                self._forget_one(self._clear_pending)
            self._clear_pending = event if event.wait else None
        elif isinstance(event, events.Update):
            previous = self._updates.get(event.display_id)
            if previous is not None:
                self._forget_one(previous)
            self._updates[event.display_id] = event
        elif isinstance(event, events.Stdout | events.Stderr | events.Display):
            newest = max(item.seq for item in self._items if isinstance(item, events.Clear))
            self._forget(lambda item: item.seq < newest and not isinstance(item, events.Started))
        elif isinstance(event, events.InputRequest):
            self._keep_question(event)

    def _keep_question(self, event: events.InputRequest) -> None:
        self._questions.append(event)
        if len(self._questions) > MAX_QUESTIONS:
            self._forget_one(self._questions.popleft())

    def _forget(self, is_void: Callable[[events.Event], bool]) -> None:
        self._items = [item for item in self._items if not is_void(item)]
        self._updates = {item.display_id: item for item in self._items if isinstance(item, events.Update)}
        self._clear_pending = None

    def _forget_one(self, event: events.Event) -> None:
        index = bisect_left(self._items, event.seq, key=_seq)
        if index < len(self._items) and self._items[index] is event:
            del self._items[index]
