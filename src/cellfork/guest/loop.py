"""Init's event loop: epoll, one thread, timers.  Small, so that a process forked from init stays small."""

import heapq
import itertools
import select
import time
from collections.abc import Callable

Callback = Callable[[], None]

READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
WRITABLE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR


class Timer:
    """A call that is due at a time; ``cancel()`` forgets it."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Do nothing when the time comes."""
        self.callback = None


class Loop:
    """Calls back when descriptors become readable or writable and when timers are due."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = False

    def watch(self, fd: int, callback: Callback) -> None:
        """Call ``callback`` whenever ``fd`` is readable or at its end, until :meth:`unwatch`."""
        self._readers[fd] = callback
        self._update(fd)

    def watch_writable(self, fd: int, callback: Callback) -> None:
        """Call ``callback`` whenever ``fd`` is writable, until :meth:`unwatch_writable`."""
        self._writers[fd] = callback
        self._update(fd)

    def unwatch(self, fd: int) -> None:
        """Stop reading ``fd``.  Call before closing it."""
        if self._readers.pop(fd, None) is not None:
            self._update(fd)

    def unwatch_writable(self, fd: int) -> None:
        """Stop writing ``fd``."""
        if self._writers.pop(fd, None) is not None:
            self._update(fd)

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Call ``callback`` once, ``seconds`` from now."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        self._running = True
        while self._running:
            self.run_once(self._time_to_next_timer())

    def run_once(self, timeout: float | None) -> None:
        """Wait at most ``timeout`` seconds (``None``: for ever), then make the calls that are due.

        One descriptor a turn, and the kernel sees to it that all have theirs: what a call does can make void what was
        true of the others, which it may have read, closed, or opened anew under the same number.
        """
        for fd, mask in self._epoll.poll(timeout, 1):
            reader, writer = self._readers.get(fd), self._writers.get(fd)
            if mask & READABLE and reader is not None:
                reader()
            if mask & WRITABLE and writer is not None and self._writers.get(fd) is writer:
                writer()
        self._call_due_timers()

    def stop(self) -> None:
        """Make :meth:`run` return."""
        self._running = False

    def close(self) -> None:
        """Give the epoll descriptor back (a forked child does this first)."""
        self._epoll.close()

    def _update(self, fd: int) -> None:
        mask = (READABLE if fd in self._readers else 0) | (WRITABLE if fd in self._writers else 0)
        if not mask:
            self._epoll.unregister(fd)
            return
        try:
            self._epoll.modify(fd, mask)
        except FileNotFoundError:
            self._epoll.register(fd, mask)

    def _time_to_next_timer(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _call_due_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()
