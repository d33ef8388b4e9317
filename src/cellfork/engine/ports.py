"""Ports of a sandbox as the host uses them: streams to programs inside.

A socket that init handed over may be shared with a hostile guest, which can take its non-blocking flag away at any
moment.  So nothing here relies on that flag: reads and writes ask for themselves not to block.  Listening sockets are
:mod:`cellfork.runtimes.listening`'s.
"""

import asyncio
import socket

from cellfork.model.errors import InvalidRequest

READ_SIZE = 64 * 1024


def check_port(port: object) -> int:
    """Return a port that a program can have.  Raises :class:`InvalidRequest`."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise InvalidRequest("a port is a whole number from 1 to 65535")
    return port


class Stream:
    """A connection that belongs to a sandbox, without buffers of its own: whoever sends waits for the other end.

    One task may receive and one may send at a time.  Errors are ``OSError``; after :meth:`close` whoever waits is told
    ``ConnectionAbortedError``.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Take ``connection`` over."""
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._open = True

    async def receive(self, limit: int = READ_SIZE) -> bytes:
        """Return what has arrived, at most ``limit`` bytes; nothing at the end."""
        while self._open:
            try:
                return self._socket.recv(limit, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                await self._ready("read")
        raise ConnectionAbortedError("the stream is closed")

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything; return when the kernel has taken it."""
        view = memoryview(data)
        while view:
            if not self._open:
                raise ConnectionAbortedError("the stream is closed")
            try:
                view = view[self._socket.send(view, socket.MSG_DONTWAIT) :]
            except (BlockingIOError, InterruptedError):
                await self._ready("write")

    def close(self) -> None:
        """Close at once.  Idempotent."""
        if self._open:
            self._open = False
            for waiting in list(self._waiting.values()):
                if not waiting.done():
                    waiting.set_result(None)
            self._forget("read")
            self._forget("write")
            self._socket.close()

    async def _ready(self, what: str) -> None:
        fd, ready = self._socket.fileno(), self._loop.create_future()
        self._waiting[what] = ready
        watch = self._loop.add_reader if what == "read" else self._loop.add_writer
        watch(fd, _settle, ready)
        try:
            await ready
        finally:
            self._forget(what)

    def _forget(self, what: str) -> None:
        if self._waiting.pop(what, None) is not None:
            unwatch = self._loop.remove_reader if what == "read" else self._loop.remove_writer
            unwatch(self._socket.fileno())


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
