"""A started sandbox as the host holds it."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from cellfork.model.errors import ProtocolViolation, SandboxGone, StartupFailed, from_code
from cellfork.model.events import KillReason
from cellfork.runtimes.base import CloseHandler, FrameHandler, Usage
from cellfork.runtimes.connection import Connection
from cellfork.runtimes.zygote import ZYGOTE_LOST, Child
from cellfork.wire.frames import Frame
from cellfork.wire.messages import VERSION

START_SECONDS = 10.0


class Meter:
    """Measures a sandbox from outside and ends it; this one can do neither (no isolation)."""

    def usage(self) -> Usage:
        """Measure now."""
        return Usage()

    def reset_peak(self) -> None:
        """Let the peak start again."""

    def kill(self) -> bool:
        """Kill every process at once; ``False`` where that is not possible."""
        return False

    async def release(self) -> None:
        """Give back what belongs to the sandbox, after its last process."""


class ProcessGuest:
    """A sandbox whose init was forked from a zygote.  Implements :class:`cellfork.runtimes.base.Guest`."""

    def __init__(self, stream: socket.socket, child: Child, meter: Meter, isolation: str) -> None:
        self.isolation = isolation
        self.info: Mapping[str, Any] = {}
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._meter = meter
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._early: list[Frame] = []
        self._on_frame: FrameHandler = self._first_frame
        self._on_close: CloseHandler | None = None
        self._closed: tuple[KillReason | None, str] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._connection = Connection(stream, self._deliver, self._ended)
        self.on_end: Callable[[ProcessGuest], None] | None = None
        child.on_exit = self._exited

    @property
    def alive(self) -> bool:
        """Whether its end is not known yet."""
        return self._closed is None

    async def wait_ready(self) -> None:
        """Wait for init's ``ready``.  Raises :class:`StartupFailed`, with everything given back."""
        try:
            async with asyncio.timeout(START_SECONDS):
                pid, _pidfd = await asyncio.shield(self._child.forked)
                await self._ready
        except TimeoutError as error:
            await self.kill()
            raise StartupFailed(f"the sandbox did not come up within {START_SECONDS:g} s") from error
        except BaseException:
            await self.kill()
            raise
        self.info = {"pid": pid}

    def attach(self, on_frame: FrameHandler, on_close: CloseHandler) -> None:
        """Deliver frames and the end from now on; what came before is delivered first."""
        self._on_frame, self._on_close = on_frame, on_close
        early, self._early = self._early, []
        for frame in early:
            on_frame(frame)
        if self._closed is not None:
            on_close(*self._closed)

    def send(self, header: dict[str, Any], body: bytes = b"", channel: int = 0) -> None:
        """Send one frame."""
        self._connection.send(header, body, channel)

    async def drain(self) -> None:
        """Wait until little is left unsent."""
        await self._connection.drain()

    def usage(self) -> Usage:
        """Measure now."""
        return self._meter.usage()

    def reset_peak(self) -> None:
        """Let the peak start again."""
        self._meter.reset_peak()

    async def kill(self, reason: KillReason = "request", message: str = "") -> None:
        """End every process and give everything back; idempotent."""
        self._close(reason, message)
        await asyncio.shield(self._end())

    def _exited(self, status: int) -> None:
        """Take note of init's end; where the zygote ended first nobody will tell of it, so let go."""
        if status == ZYGOTE_LOST and self.alive:
            self._ended(None)
        if self.on_end is not None:
            self.on_end(self)

    def _end(self) -> "asyncio.Task[None]":
        if self._ending is None:
            self._ending = self._loop.create_task(self._give_back())
        return self._ending

    async def _give_back(self) -> None:
        self._connection.close()
        with contextlib.suppress(StartupFailed):
            _pid, pidfd = await self._child.forked
            try:
                await self._stop(pidfd)
            finally:
                os.close(pidfd)
        await self._meter.release()

    async def _stop(self, pidfd: int) -> None:
        if not self._meter.kill():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await asyncio.shield(self._child.exited)

    def _deliver(self, frame: Frame) -> None:
        self._on_frame(frame)

    def _first_frame(self, frame: Frame) -> None:
        header = frame.header
        if self._ready.done():
            self._early.append(frame)
        elif header["op"] == "ready" and header["version"] == VERSION:
            self._ready.set_result(None)
        elif header["op"] == "reply" and not header["ok"]:
            self._ready.set_exception(from_code(header["code"], header["message"]))
        else:
            raise ProtocolViolation(f"the guest began with {header['op']!r}")

    def _ended(self, violation: ProtocolViolation | None) -> None:
        if violation is not None:
            self._close("protocol", str(violation))
        elif self._meter.usage().oom_kills:
            self._close("memory", "the sandbox ran out of memory")
        else:
            self._close(None, "the sandbox ended by itself")
        self._end()

    def _close(self, reason: KillReason | None, message: str) -> None:
        if self._closed is not None:
            return
        self._closed = reason, message
        if not self._ready.done():
            self._ready.set_exception(SandboxGone(message or "the sandbox was killed", reason or "lost"))
            self._ready.exception()
        if self._on_close is not None:
            self._on_close(reason, message)
