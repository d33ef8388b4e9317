"""Pause and resume: a sandbox that stands still, with its memory or with its files alone.

With its memory every process is held where it is (the kernel's freezer), and goes on later.  Without, init packs the files, the
sandbox's processes end, and a resume starts a new guest that unpacks them.  Either way the sandbox keeps its id, its
notes and what is known of its executions, and time that passes in a pause counts for nobody.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol

from cellfork.engine.archives import Archives, pack, unpack
from cellfork.engine.checks import check_seconds
from cellfork.engine.clock import Clock, Timer
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InternalError,
    ProtocolViolation,
    SandboxPaused,
)
from cellfork.model.events import KillReason
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes.base import CloseHandler, FrameHandler, Guest, Network, Usage

if TYPE_CHECKING:
    import socket

    from cellfork.engine.sandbox import Sandbox

WITHOUT_MEMORY = "the sandbox was paused without its memory"


class Keeper(Protocol):
    """What a pause needs of the engine."""

    archives: Archives

    async def start_guest(self, spec: SandboxSpec) -> Guest:
        """Start a guest as a sandbox with this spec has it, not attached yet; raises as creating a sandbox does."""
        ...

    def save(self, sandbox: "Sandbox") -> Awaitable[None]:
        """Keep what has to be known of a sandbox after a restart, where anything is; whoever awaits knows that it is."""
        ...

    def settled(self) -> Awaitable[None]:
        """Wait until everything that was saved is kept, or could not be."""
        ...


class AbsentGuest:
    """Stands for the guest of a sandbox that is paused without its memory: there is none.

    Implements :class:`cellfork.runtimes.base.Guest`.
    """

    network: Network | None = None
    record: Mapping[str, Any] | None = None
    freezes = False
    keeps_files = False

    def __init__(self, isolation: str) -> None:
        self.isolation = isolation
        self.info: Mapping[str, Any] = {}

    def leave(self) -> None:
        """Do nothing: nothing is here to go on."""

    def attach(self, on_frame: FrameHandler, on_close: CloseHandler) -> None:
        """Deliver nothing: nothing happens."""

    def send(self, header: dict[str, Any], body: bytes = b"", channel: int = 0) -> None:
        """Refuse."""
        raise self._error()

    async def drain(self) -> None:
        """Return at once."""

    async def connect(self, port: int) -> "socket.socket":
        """Refuse."""
        raise self._error()

    async def listen(self, port: int, host: str) -> "socket.socket":
        """Refuse."""
        raise self._error()

    def usage(self) -> Usage:
        """Return that nothing is used."""
        return Usage(memory=0, pids=0)

    def measure(self) -> Usage:
        """Return that nothing is used."""
        return self.usage()

    def reset_peak(self) -> None:
        """Do nothing."""

    async def freeze(self, *, but_init: bool = False) -> None:
        """Refuse."""
        raise self._error()

    async def thaw(self) -> None:
        """Do nothing."""

    async def kill(self, reason: KillReason = "request", message: str = "") -> None:
        """Do nothing: there is nothing left to end."""

    def _error(self) -> SandboxPaused:
        return SandboxPaused("the sandbox is paused, without its memory; resume it first")


class Pausing:
    """The pauses of one sandbox.  All methods belong to the engine's event loop.

    One change at a time: while one is under way, another is refused with :class:`Conflict`.
    """

    def __init__(self, sandbox: "Sandbox", keeper: Keeper | None, clock: Clock) -> None:
        self.archive: str | None = None
        """The archive of the files, where the sandbox is paused without its memory."""
        self.since: float | None = None
        """Unix time at which the pause began, or at which this engine found it; ``None``: there is none."""
        self._sandbox = sandbox
        self._keeper = keeper
        self._clock = clock
        self._changing = asyncio.Lock()
        self._timer: Timer | None = None

    # --------------------------------------------------------------------------------------- changes

    async def pause(self, memory: bool) -> None:
        """See :meth:`Sandbox.pause`."""
        async with self._change():
            self._sandbox.check_running()
            await self._pause(memory)

    async def pause_at_deadline(self) -> None:
        """Pause as the spec says, now that the time is over; where that is not possible, kill."""
        sandbox, spec = self._sandbox, self._sandbox.spec
        async with self._changing:
            if sandbox.state != "running" or not sandbox.is_overdue:
                return
            try:
                await self._pause(spec.pause_memory)
            except CellforkError as error:
                sandbox.end_soon(
                    "deadline", f"the sandbox reached its deadline and could not be paused: {error}"
                )

    async def resume(self, timeout: float | EllipsisType | None) -> None:
        """See :meth:`Sandbox.resume`."""
        sandbox = self._sandbox
        async with self._change():
            if sandbox.state == "running":
                raise Conflict(f"the sandbox {sandbox.id} is not paused")
            self._check_alive()
            seconds = check_seconds(sandbox.spec.timeout if timeout is ... else timeout)
            archive = self.archive
            if archive is None:
                await sandbox.guest.thaw()
            else:
                await self._start_anew(archive)
            self._check_alive()
            self._go_on()
            sandbox.set_timeout(seconds)
            await sandbox.save()  # from here on the files are in the sandbox, for another engine too
            if archive is not None:
                await self._archives.discard(archive)

    async def keep_files(self) -> str:
        """Archive the files as they are now; return the archive's id.  The sandbox goes on, or stays paused.

        Raises what :func:`~cellfork.engine.archives.pack` raises, and :class:`Conflict`, :class:`Unsupported`.
        """
        async with self._archives.handed_over() as made, self._change():
            self._check_alive()
            if self.archive is not None:
                made.append(await self._archives.copy(self.archive))
            else:
                paused = self._sandbox.state == "paused"
                async with self._awake_in_pause() if paused else self._standing_still():
                    made.append(await self._pack())
        return made[0]

    def restore(self, archive: str) -> None:
        """Be paused without memory, as the sandbox was when its engine ended; ``archive`` has its files."""
        self.archive = archive
        self._stay()

    async def settled(self) -> None:
        """Return when no change is under way: what the sandbox's state says then is what it is."""
        async with self._changing:
            pass

    def leave(self) -> None:
        """Keep the archive for another engine: the sandbox ends here alone."""
        self.archive = None

    def on_sandbox_end(self) -> None:
        """Give back what a pause holds."""
        if self._timer is not None:
            self._timer.cancel()
        archive, self.archive = self.archive, None
        if archive is not None:
            self._sandbox.in_background(self._archives.discard(archive))

    # --------------------------------------------------------------------------------------- details

    @property
    def _archives(self) -> Archives:
        if self._keeper is None:
            raise InternalError("a sandbox without an engine has no place for its files")
        return self._keeper.archives

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncGenerator[None, None]:
        if self._changing.locked():
            raise Conflict(
                f"the sandbox {self._sandbox.id} is being paused, resumed or copied at this moment"
            )
        async with self._changing:
            yield

    async def _pause(self, memory: bool) -> None:
        if memory:
            await self._hold()
        else:
            await self._end_what_runs()
        await self._stay()  # whoever is told of a pause finds it after a restart as well

    async def _hold(self) -> None:
        """Hold every process still, and everything that is sent to them."""
        sandbox = self._sandbox
        sandbox.outbox.hold()
        try:
            await sandbox.guest.freeze()
            sandbox.check_running()  # it may have ended meanwhile
        except BaseException:
            sandbox.outbox.release()
            raise

    async def _end_what_runs(self) -> None:
        """Pack the files, then end the guest."""
        sandbox, guest = self._sandbox, self._sandbox.guest
        async with self._standing_still(thaw=False):
            archive = await self._pack(alone=not guest.freezes)
        if sandbox.state != "running":
            await self._archives.discard(archive)
            raise sandbox.gone()
        self.archive = archive
        sandbox.state = "paused"
        sandbox.guest = AbsentGuest(guest.isolation)
        sandbox.outbox.redirect(sandbox.guest.send)
        sandbox.end_what_runs(WITHOUT_MEMORY)
        try:
            await sandbox.save()  # whatever happens now, the files are where the record says
        finally:
            await guest.kill("request", WITHOUT_MEMORY)

    @contextlib.asynccontextmanager
    async def _standing_still(self, *, thaw: bool = True) -> AsyncGenerator[None, None]:
        """Hold everything but init still; without ``thaw`` it stays so where the block succeeds."""
        sandbox, guest = self._sandbox, self._sandbox.guest
        sandbox.outbox.hold()
        sandbox.clock.stop()
        done = False
        try:
            if guest.freezes or thaw:  # where it ends anyway, its other processes may do so first
                await guest.freeze(but_init=True)
            yield
            done = True
        finally:
            if thaw or not done:
                try:
                    await asyncio.shield(guest.thaw())
                except CellforkError as error:
                    sandbox.end_soon("limit", f"the sandbox could not be let go: {error}")
                sandbox.clock.go()
                sandbox.outbox.release()

    async def _pack(self, *, alone: bool = False) -> str:
        sandbox = self._sandbox
        try:
            return await pack(sandbox.requests, self._archives, sandbox.limits, alone=alone)
        except ProtocolViolation as error:
            sandbox.end_soon("protocol", str(error))
            raise

    @contextlib.asynccontextmanager
    async def _awake_in_pause(self) -> AsyncGenerator[None, None]:
        """Let init do something in a pause; if that cannot be ended again, the sandbox is."""
        sandbox = self._sandbox
        try:
            await sandbox.guest.freeze(but_init=True)
            yield
        finally:
            try:
                await asyncio.shield(sandbox.guest.freeze())
            except CellforkError as error:
                sandbox.end_soon("limit", f"the sandbox could not be held still again: {error}")

    async def _start_anew(self, archive: str) -> None:
        """Start a guest and give it the files."""
        sandbox, keeper = self._sandbox, self._keeper
        if keeper is None:
            raise InternalError("a sandbox without an engine cannot be started again")
        guest = await keeper.start_guest(sandbox.spec)
        try:
            await unpack(guest, keeper.archives, archive)
            self._check_alive()
        except BaseException:
            await guest.kill("request", "its files could not be unpacked")
            raise
        sandbox.replace_guest(guest)
        self._check_alive()
        self.archive = None

    def _stay(self) -> Awaitable[None]:
        """Be paused: take no request, have no deadline but that of pauses, and let no timer run.  Return when that is kept."""
        sandbox = self._sandbox
        sandbox.state = "paused"
        self.since = self._clock.time_ns() / 1e9
        sandbox.clock.stop()
        sandbox.void_deadline()
        sandbox.requests.refuse(sandbox.paused)
        seconds = sandbox.settings.paused
        if seconds is not None:
            message = f"the sandbox was paused for more than {seconds:g} s"
            self._timer = self._clock.later(seconds, lambda: sandbox.end_soon("deadline", message))
        return sandbox.save()

    def _go_on(self) -> None:
        sandbox = self._sandbox
        sandbox.state = "running"
        self.since = None
        if self._timer is not None:
            self._timer.cancel()
        sandbox.clock.go()
        sandbox.requests.refuse(None)
        sandbox.outbox.release()

    def _check_alive(self) -> None:
        if self._sandbox.state == "ended":
            raise self._sandbox.gone()
