"""Bytes between two sockets, in the event loop: bounded buffers, backpressure, half-close, one bound of idleness."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from cellfork.runtimes.egress.heads import BadHead, HeadReader

PIECE = 64 * 1024
LINGER_SECONDS = 1.0
LINGER_BYTES = 1 << 20

Count = Callable[[int], None]


class Stream:
    """A connected socket that does not block.  Holds at most what was read beyond a head."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._rest = b""

    async def read(self, most: int = PIECE) -> bytes:
        """Return what is there, at least one byte; nothing at the end."""
        if self._rest:
            piece, self._rest = self._rest[:most], self._rest[most:]
            return piece
        return await self._loop.sock_recv(self._socket, min(most, PIECE))

    async def read_head(self) -> bytes:
        """Return a head; empty where the other end says nothing.  Raises :class:`BadHead` for half a head."""
        reader = HeadReader()
        begun = False
        while piece := await self.read():
            begun = True
            found = reader.feed(piece)
            if found is not None:
                head, self._rest = found[0], found[1] + self._rest
                return head
        if begun:
            raise BadHead("the connection ended within the head")
        return b""

    async def read_line(self, most: int = 256) -> bytes:
        """Return a line without its CR LF; raises :class:`BadHead` where none ends within ``most`` bytes."""
        line = b""
        while b"\r\n" not in line:
            piece = await self.read()
            if not piece or len(line) > most:
                raise BadHead("a line of the body does not end")
            line += piece
        line, _, rest = line.partition(b"\r\n")
        self._rest = rest + self._rest
        if len(line) > most or b"\n" in line or b"\r" in line:
            raise BadHead("a line of the body is malformed")
        return line

    async def write(self, data: bytes) -> None:
        """Send everything."""
        await self._loop.sock_sendall(self._socket, data)

    def end(self) -> None:
        """Say that nothing more will be sent; the other direction stays open."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    async def linger(self) -> None:
        """End, and take a little of what still comes: closing at once could destroy the answer on its way."""
        self.end()
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0 and (piece := await self.read()):
                    left -= len(piece)


async def pump(source: Stream, sink: Stream, count: Count, moved: Callable[[], None]) -> None:
    """Carry bytes until ``source`` ends, then end ``sink``.  ``count`` may refuse a piece before it is passed on."""
    while piece := await source.read():
        count(len(piece))
        await sink.write(piece)
        moved()
    sink.end()


async def carry(size: int, source: Stream, sink: Stream, count: Count, moved: Callable[[], None]) -> None:
    """Carry exactly ``size`` bytes; raises ``ConnectionError`` where ``source`` ends before."""
    while size:
        piece = await source.read(size)
        if not piece:
            raise ConnectionResetError("the body ended early")
        size -= len(piece)
        count(len(piece))
        await sink.write(piece)
        moved()


async def both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, None]) -> None:
    """Run both to their ends; the first exception ends the other and is raised."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(first), loop.create_task(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


class Idle:
    """Ends a block with ``TimeoutError`` when nothing has moved for ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._bound = asyncio.timeout(seconds)

    def moved(self) -> None:
        """Start the time again."""
        self._bound.reschedule(self._loop.time() + self._seconds)

    async def __aenter__(self) -> Self:
        await self._bound.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._bound.__aexit__(kind, error, trace)
