"""A started sandbox as the host holds it."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cellfork.model.errors import (
    CellforkError,
    OperationTimeout,
    ProtocolViolation,
    SandboxGone,
    StartupFailed,
    from_code,
)
from cellfork.model.events import KillReason
from cellfork.runtimes.base import CloseHandler, FrameHandler, Network, Usage
from cellfork.runtimes.connection import Connection
from cellfork.runtimes.egress.listener import check_listener
from cellfork.runtimes.freezing import Freezer, NoFreezer
from cellfork.runtimes.sockets import Check, Handovers, Namespace, connects_to, listens_on, namespace_of
from cellfork.runtimes.waiting import finished
from cellfork.runtimes.zygote import ZYGOTE_LOST, Child
from cellfork.wire.frames import Frame
from cellfork.wire.messages import VERSION

START_SECONDS = 10.0
LEAVE_SECONDS = 5.0
AHEAD_SECONDS = 60.0
HANDOVER_SECONDS = 10.0
AHEAD = -1
"""Number of the request to start kernels ahead: the engine counts its own from 1."""


class Meter:
    """Measures a sandbox from outside and ends it; this one can do neither (no isolation)."""

    def usage(self) -> Usage:
        """Measure now."""
        return Usage()

    def measure(self, pid: int) -> Usage:
        """Measure everything of the sandbox whose init is ``pid``."""
        return self.usage()

    def reset_peak(self) -> None:
        """Let the peak start again."""

    def kill(self) -> bool:
        """Kill every process at once; ``False`` where that is not possible."""
        return False

    @property
    def freezer(self) -> Freezer:
        """What holds the processes still."""
        return NoFreezer(
            "without isolation nothing could hold every process of a sandbox still: it cannot be paused"
        )

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
        self.lasting: Mapping[str, Any] | None = None
        """What stays the same of :attr:`record`."""
        self._descriptors: list[int] = []
        self._listener: socket.socket | None = None
        self._handovers = Handovers()
        self._namespace: Namespace | None = None
        child.on_exit = self._exited

    @property
    def alive(self) -> bool:
        """Whether its end is not known yet."""
        return self._closed is None

    @property
    def record(self) -> Mapping[str, Any] | None:
        """What its runtime needs to adopt it, as :class:`cellfork.runtimes.base.Guest` says."""
        if self.lasting is None:
            return None
        return {**self.lasting, "network": self.network.record if self.network is not None else None}

    def leave(self) -> None:
        """Let it go on without this process; nothing is delivered any more, and whoever waits for a socket is told."""
        self._connection.close()
        self._handovers.fail_all(SandboxGone("the sandbox goes on without this program"))
        self._close_network()

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

    def send_with(self, descriptors: Sequence[int], header: dict[str, Any], body: bytes = b"") -> None:
        """Send the first frame, with descriptors."""
        self._connection.send_with(descriptors, header, body)

    async def process(self) -> int:
        """Return the pid of init, once it was forked.  Raises :class:`StartupFailed` where it cannot be."""
        pid, _pidfd = await asyncio.shield(self._child.forked)
        return pid

    async def drain(self) -> None:
        """Wait until little is left unsent."""
        await self._connection.drain()

    async def connect(self, port: int) -> socket.socket:
        """Have init connect to a program (see :meth:`cellfork.runtimes.base.Guest.connect`)."""
        return await self._ask({"op": "port.connect", "port": port}, connects_to(port, self._own_namespace()))

    async def listen(self, port: int, host: str) -> socket.socket:
        """Have init listen for the host (see :meth:`cellfork.runtimes.base.Guest.listen`)."""
        check = listens_on(host, port, self._own_namespace())
        return await self._ask({"op": "port.listen", "port": port, "host": host}, check)

    async def _ask(self, request: dict[str, Any], check: Check) -> socket.socket:
        """Ask init for a socket, and take descriptors until the last one that was asked for has come."""
        number, future = self._handovers.expect(check)
        self._connection.take_descriptors = self._handovers.take
        self.send({**request, "id": number})
        try:
            async with asyncio.timeout(HANDOVER_SECONDS):
                return await future
        except TimeoutError as error:
            raise OperationTimeout(f"the sandbox did not answer within {HANDOVER_SECONDS:g} s") from error

    def _own_namespace(self) -> Namespace:
        if self._namespace is None:
            self._namespace = namespace_of(self.info["pid"])
        return self._namespace

    def usage(self) -> Usage:
        """Measure now."""
        return self._meter.usage()

    def measure(self) -> Usage:
        """Measure everything now."""
        return self._meter.measure(self.info["pid"]) if self.alive else self.usage()

    def reset_peak(self) -> None:
        """Let the peak start again."""
        self._meter.reset_peak()

    @property
    def freezes(self) -> bool:
        """Whether :meth:`freeze` is possible here."""
        return self._meter.freezer.available

    @property
    def keeps_files(self) -> bool:
        """Whether there are places of its own, whose files can be packed."""
        return True

    async def freeze(self, *, but_init: bool = False) -> None:
        """Hold every process still; with ``but_init`` init goes on, and nothing else."""
        await self._meter.freezer.freeze(self.info["pid"] if but_init else None)

    async def thaw(self) -> None:
        """Let every process go on."""
        await self._meter.freezer.thaw()

    async def kill(self, reason: KillReason = "request", message: str = "") -> None:
        """End every process and give everything back; idempotent.

        Returns after :data:`LEAVE_SECONDS` at the latest.  What the kernel has not let go by then, a process
        that cannot be interrupted, is given back when it ends, without anybody waiting.  Who is cancelled is so afterwards.
        """
        self._close(reason, message)
        ending = self._end()
        if await finished(ending, LEAVE_SECONDS):
            ending.result()

    def _exited(self, status: int) -> None:
        """Take note of init's end; where the zygote ended first nobody will tell of it, so let go."""
        if status == ZYGOTE_LOST and self.alive:
            self._ended(None)

    def _end(self) -> "asyncio.Task[None]":
        if self._ending is None:
            self._ending = self._loop.create_task(self._give_back())
        return self._ending

    async def _give_back(self) -> None:
        try:
            if self.network is not None:
                await self.network.aclose()
            with contextlib.suppress(CellforkError):  # it was never forked
                _pid, pidfd = await self._child.forked
                try:
                    await self._stop(pidfd)
                finally:
                    os.close(pidfd)
            await self._meter.release()
        finally:
            if self.on_end is not None:
                self.on_end(self)

    async def _stop(self, pidfd: int) -> None:
        if not self._meter.kill():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await asyncio.shield(self._child.exited)

    def _deliver(self, frame: Frame) -> None:
        if self._handovers.waiting and not frame.channel and self._handovers.is_reply(frame.header):
            try:
                self._handovers.on_reply(frame.header)
            finally:
                if not self._handovers.waiting:
                    self._connection.take_descriptors = None
            return
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
        self._connection.close()  # now: what came with bytes that are still read would be nobody's, and stay open
        self._close_network()
        gone = SandboxGone(message or "the sandbox was killed", reason or "lost")
        self._handovers.fail_all(gone)
        self._refuse_start(gone)
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


async def kill_all(guests: Iterable[ProcessGuest]) -> None:
    """Kill the sandboxes of a runtime that closes; each as :meth:`ProcessGuest.kill`."""
    await asyncio.gather(*(guest.kill("owner") for guest in [*guests]))
