"""A started sandbox as the host holds it."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cellfork.model.errors import CellforkError, ProtocolViolation, SandboxGone, StartupFailed, from_code
from cellfork.model.events import KillReason
from cellfork.runtimes.base import CloseHandler, FrameHandler, Network, Usage
from cellfork.runtimes.connection import Connection
from cellfork.runtimes.egress.listener import check_listener
from cellfork.runtimes.zygote import ZYGOTE_LOST, Child
from cellfork.wire.frames import Frame
from cellfork.wire.messages import VERSION

START_SECONDS = 10.0
LEAVE_SECONDS = 5.0
AHEAD_SECONDS = 60.0
AHEAD = -1
"""Number of the request to start kernels ahead: the engine counts its own from 1."""


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
        self._locked: asyncio.Future[None] = self._loop.create_future()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ahead: asyncio.Future[None] | None = None
        self._early: list[Frame] = []
        self._on_frame: FrameHandler = self._first_frame
        self._on_close: CloseHandler | None = None
        self._closed: tuple[KillReason | None, str] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._connection = Connection(stream, self._deliver, self._ended)
        self.on_end: Callable[[ProcessGuest], None] | None = None
        self.network: Network | None = None
        self._descriptors: list[int] = []
        self._listener: socket.socket | None = None
        child.on_exit = self._exited

    @property
    def alive(self) -> bool:
        """Whether its end is not known yet."""
        return self._closed is None

    def expect_listener(self, network: Network) -> None:
        """Let init hand over a listening socket before it takes its locks; ``network`` serves it from :meth:`attach` on."""
        self.network = network
        self._connection.take_descriptors = self._descriptors.extend

    def claim(self) -> None:
        """Note that it belongs to somebody now: its zygote is kept as long as it lives."""
        self._child.claimed = True

    async def wait_ready(self) -> int:
        """Wait for init's ``ready``; return its pid.  Raises :class:`StartupFailed`, with everything given back."""
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
        self.info = {**self.info, "pid": pid}
        return pid

    async def start_ahead(self, languages: Sequence[str], *, wait: bool) -> None:
        """Have kernels started that nobody has asked for yet; with ``wait`` return when they wait for code.

        To be called between :meth:`wait_ready` and :meth:`attach`.  Raises :class:`Unsupported` where the template has no
        kernel of a language, :class:`StartupFailed`; then everything is given back.
        """
        self._ahead = self._loop.create_future()
        try:
            self.send({"op": "ahead", "id": AHEAD, "languages": list(languages), "wait": wait})
            async with asyncio.timeout(AHEAD_SECONDS):
                await self._ahead
        except TimeoutError as error:
            await self.kill()
            raise StartupFailed(f"the kernels were not ready within {AHEAD_SECONDS:g} s") from error
        except BaseException:
            await self.kill()
            raise

    def attach(self, on_frame: FrameHandler, on_close: CloseHandler) -> None:
        """Deliver frames and the end from now on; what came before is delivered first."""
        self._on_frame, self._on_close = on_frame, on_close
        listener, self._listener = self._listener, None
        if self.network is not None and listener is not None:
            self.network.open(listener)
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
        """End every process and give everything back; idempotent.

        Returns after :data:`LEAVE_SECONDS` at the latest.  What the kernel has not let go by then, a process
        that cannot be interrupted, is given back when it ends, without anybody waiting.
        """
        self._close(reason, message)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._end()), LEAVE_SECONDS)

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
        self._close_network()
        if self.network is not None:
            await self.network.aclose()
        with contextlib.suppress(CellforkError):  # it was never forked
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
        if self._ready.done() and self._ahead is not None and not self._ahead.done():
            self._take_ahead(frame)
        elif self._ready.done():
            self._early.append(frame)
        elif header["op"] == "listening" and not self._locked.done() and self._listener is None:
            self._take_listener()
        elif header["op"] == "locked" and not self._locked.done():
            self._check_listener()
            self._locked.set_result(None)
        elif header["op"] == "ready" and self._locked.done() and header["version"] == VERSION:
            self._ready.set_result(None)
        elif header["op"] == "reply" and not header["ok"]:
            self._refuse_start(from_code(header["code"], header["message"]))
        else:
            raise ProtocolViolation(f"the guest began with {header['op']!r}")

    def _take_ahead(self, frame: Frame) -> None:
        """Nothing else is expected of a sandbox in which nobody's code runs yet."""
        header = frame.header
        if header["op"] != "reply" or header["id"] != AHEAD or self._ahead is None:
            raise ProtocolViolation(f"the guest was asked for kernels and said {header['op']!r}")
        if header["ok"]:
            self._ahead.set_result(None)
        else:
            self._ahead.set_exception(from_code(header["code"], header["message"]))

    def _take_listener(self) -> None:
        fds = self._descriptors.copy()
        self._descriptors.clear()
        self._listener = check_listener(fds)

    def _check_listener(self) -> None:
        """See that there is a listener where there is to be one, and that nothing else came with it."""
        self._connection.take_descriptors = None
        if (self._listener is None) != (self.network is None) or self._descriptors:
            raise ProtocolViolation("the guest has no way out, or another one than it should")

    def _refuse_start(self, error: Exception) -> None:
        for step in (self._locked, self._ready, self._ahead):
            if step is not None and not step.done():
                step.set_exception(error)
                step.exception()  # mark as looked at: not everybody waits

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
        self._close_network()
        self._refuse_start(SandboxGone(message or "the sandbox was killed", reason or "lost"))
        if self._on_close is not None:
            self._on_close(reason, message)

    def _close_network(self) -> None:
        """End every connection to the outside, and let nobody make another one."""
        if self.network is not None:
            self.network.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
