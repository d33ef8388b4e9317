"""Processes that were there before this one: a zygote that is no child of ours, a sandbox whose host has ended."""

import asyncio
import os
import select
import signal
import socket
import struct
from typing import Any

from cellfork.model.errors import ProtocolViolation, StartupFailed
from cellfork.runtimes.guest import Meter, ProcessGuest
from cellfork.runtimes.kept import Kept
from cellfork.runtimes.zygote import Child
from cellfork.wire.frames import Frame
from cellfork.wire.messages import VERSION

ADOPT_SECONDS = 10.0
"""How long a sandbox may take to answer its new host."""
_CREDENTIALS = struct.Struct("3i")


class Stranger:
    """A process that is not a child of this one, held by a pidfd, which belongs to it.

    As far as a zygote needs it, it is like :class:`subprocess.Popen`.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    def poll(self) -> int | None:
        """Return 0 where it has ended: whoever inherited it gets its status."""
        return 0 if self._pidfd < 0 or select.select([self._pidfd], [], [], 0)[0] else None

    def kill(self) -> None:
        """Kill it; nothing happens where it has ended."""
        if self._pidfd >= 0:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, at most ``timeout`` seconds, and let go of it."""
        if self._pidfd >= 0:
            select.select([self._pidfd], [], [], timeout)
            os.close(self._pidfd)
            self._pidfd = -1
        return 0


def peer_of(connection: socket.socket) -> Stranger:
    """Return the process that listens at the other end, as the kernel knows it.

    Raises :class:`StartupFailed` where it is gone.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, _uid, _gid = _CREDENTIALS.unpack(data)
    if pid <= 0:
        raise StartupFailed("who listens is in another pid namespace")
    try:
        stranger = Stranger(pid, os.pidfd_open(pid))
    except ProcessLookupError as error:
        raise StartupFailed("who listened is gone") from error
    # The number may be another's by now, but then this connection is at its end: nobody else has its other end.
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    if any(mask & (select.POLLHUP | select.POLLERR) for _, mask in poll.poll(0)):
        stranger.wait(0)
        raise StartupFailed("who listened is gone")
    return stranger


class AdoptedGuest(ProcessGuest):
    """A sandbox that was another host's."""

    def __init__(self, stream: socket.socket, child: Child, meter: Meter, isolation: str) -> None:
        super().__init__(stream, child, meter, isolation)
        self.kept = Kept()

    async def take_over(self, first: int) -> Kept:
        """Tell init that its requests come from here now, numbered from ``first`` on; return what it has.

        Raises :class:`StartupFailed` where it does not answer; nothing is given back then.
        """
        self.send({"op": "adopt", "version": VERSION, "first": first})
        try:
            async with asyncio.timeout(ADOPT_SECONDS):
                await self._ready
        except TimeoutError as error:
            raise StartupFailed(f"the sandbox did not answer within {ADOPT_SECONDS:g} s") from error
        return self.kept

    def _first_frame(self, frame: Frame) -> None:
        header: dict[str, Any] = frame.header
        if self._ready.done():
            self._early.append(frame)
        elif header["op"] == "listening" and self._listener is None:
            self._take_listener()
        elif header["op"] == "kept":
            self.kept.add(header["kind"], frame.body)
        elif header["op"] == "adopted" and header["version"] == VERSION:
            self._check_listener()
            self.kept.end(header["channel"], header["process"])
            self._ready.set_result(None)
        else:
            raise ProtocolViolation(f"a sandbox began with {header['op']!r}")
