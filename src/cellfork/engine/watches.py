"""Watches: what happens to the files of a directory, as bounded queues of events."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Protocol

from cellfork.engine.checks import check_text
from cellfork.engine.replay import Changes
from cellfork.engine.requests import Requests
from cellfork.engine.values import FilesystemEvent
from cellfork.model.errors import SandboxGone, SandboxPaused

MAX_EVENTS = 10_000
MAX_NAMES = 8 * 1024 * 1024
"""Events that wait to be taken, and characters of their names together; of more, the oldest are lost."""


LOST = FilesystemEvent("", "write")


class Host(Protocol):
    """What watches need of their sandbox."""

    requests: Requests

    def check_running(self) -> None:
        """Raise :class:`SandboxGone` after the end."""
        ...

    def gone(self) -> SandboxGone:
        """Return the error that tells why the sandbox is gone."""
        ...


class Watch:
    """One watched directory.  All methods belong to the engine's event loop."""

    def __init__(self, watches: "Watches", number: int) -> None:
        self.number = number
        self._watches = watches
        self._events: deque[FilesystemEvent] = deque()
        self._size = 0
        self._lost = False
        self._stopped = self._over = False
        self._changes = Changes()

    def take(self) -> list[FilesystemEvent]:
        """Return the events since the last call.  Raises :class:`SandboxGone` after the end of what made them."""
        taken = [LOST] if self._lost else []
        taken += self._events
        self._events.clear()
        self._size = 0
        self._lost = False
        if not taken and not self._stopped and self._over:
            raise self._watches.host.gone()
        return taken

    async def batch(self) -> list[FilesystemEvent]:
        """Return the events since the last call; wait for one.  Nothing means that the watch was stopped."""
        while not (taken := self.take()) and not self._stopped:
            await self._changes.next()
        return taken

    async def flush(self) -> None:
        """Return when everything that has happened up to now can be taken."""
        if not self._stopped:
            await self._watches.host.requests.send("watch.flush", watch=self.number)

    async def events(self) -> AsyncIterator[FilesystemEvent]:
        """Yield events until the watch is stopped."""
        while taken := await self.batch():
            for event in taken:
                yield event

    async def stop(self) -> None:
        """Watch no longer.  Idempotent."""
        if not self._stopped:
            self._stopped = True
            self._changes.tell()
            await self._watches.stop(self)

    def add(self, event: FilesystemEvent) -> None:
        """Take an event."""
        self._events.append(event)
        self._size += len(event.name)
        while len(self._events) > MAX_EVENTS or self._size > MAX_NAMES:
            self._size -= len(self._events.popleft().name)
            self._lost = True
        self._changes.tell()

    def on_sandbox_end(self) -> None:
        """Wake whoever waits."""
        self._over = True
        self._changes.tell()


class Watches:
    """The watches of one sandbox."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._last = 0
        self._watches: dict[int, Watch] = {}

    async def start(self, path: str, *, recursive: bool = False, local: bool = False) -> Watch:
        """Watch a directory; with ``recursive`` those below it too, also those that come later.

        Raises :class:`PathNotFound`, :class:`NotADirectory`, :class:`LimitExceeded`; with ``local`` also
        :class:`InvalidRequest` for a file system of the network, whose changes by others nobody tells.
        """
        check_text(path, "a path")
        self._last += 1
        watch = self._watches[self._last] = Watch(self, self._last)
        fields: dict[str, Any] = {"path": path, "recursive": recursive, "local": local}
        started = self.host.requests.send("watch.start", watch=watch.number, **fields)
        try:
            await started
        except BaseException as error:
            self._watches.pop(watch.number, None)
            if isinstance(error, asyncio.CancelledError):
                self.host.requests.tell("watch.stop", watch=watch.number)
            raise
        return watch

    async def stop(self, watch: Watch) -> None:
        """Stop a watch."""
        if self._watches.pop(watch.number, None) is not None:
            try:
                await self.host.requests.send("watch.stop", watch=watch.number)
            except SandboxPaused:
                self.host.requests.tell("watch.stop", watch=watch.number)  # init hears of it later

    def on_event(self, header: dict[str, Any]) -> None:
        """Hand an event to its watch."""
        watch = self._watches.get(header["watch"])
        if watch is not None:
            watch.add(FilesystemEvent(header["name"], header["kind"]))

    def on_sandbox_end(self) -> None:
        """Wake everybody who waits for an event."""
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.on_sandbox_end()
