"""The engine: creates sandboxes with the runtimes it was given, knows those that live, ends them."""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cellfork.engine.archives import Archives, unpack
from cellfork.engine.background import Background
from cellfork.engine.checks import check_envs, check_seconds, check_tenant
from cellfork.engine.languages import with_languages
from cellfork.engine.records import DONE, NoRecords, Records
from cellfork.engine.samples import Sampler
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings
from cellfork.engine.snapshots import Snapshot, Snapshots, check_name
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InvalidRequest,
    NotFound,
    StartupFailed,
    Unsupported,
)
from cellfork.model.ids import new_sandbox_id, new_snapshot_id
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes.base import Guest, Runtime, Stock

if TYPE_CHECKING:
    from cellfork.engine.adoption import Adoption, Past

MOST_FORKS = 100
"""Of one sandbox at a time."""


class Engine:
    """The sandboxes of one process.  All methods belong to one event loop.

    ``runtimes`` maps the names of isolations to runtimes; the engine closes them with itself, and ``records``, which keep
    what :meth:`adopt` of the next engine has to know (default: nothing is kept).
    """

    def __init__(
        self,
        runtimes: Mapping[str, Runtime],
        settings: Settings | None = None,
        records: Records | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.records: Records = records or NoRecords()
        self._runtimes = runtimes
        self._used: dict[str, Runtime] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        self._background = Background()
        self._closed = False
        self.archives = Archives(self.settings.archives, self.settings.archive_bytes)
        self._snapshots = Snapshots(self.archives, self.records)
        self._sampler = Sampler(self.settings.clock)

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Start a sandbox.

        Raises :class:`InvalidRequest`, :class:`Unsupported` (network, pausing), :class:`IsolationUnavailable`,
        :class:`StartupFailed`, :class:`NotFound` (snapshot).
        """
        spec = spec or SandboxSpec()
        if spec.snapshot is None:
            return await self._keep(self._give_out(spec, await self.start_guest(spec)))
        snapshot = self._snapshots.get(spec.snapshot, spec.tenant)
        return await self._start_with(replace(spec, template=snapshot.template), snapshot.archive)

    async def start_guest(self, spec: SandboxSpec) -> Guest:
        """Start the guest of a sandbox, without giving it out: nobody is attached to it yet.  Raises as :meth:`create`."""
        spec = with_languages(spec)
        runtime = self.runtime_of(spec)
        try:
            guest = await runtime.start(spec)
        except (OSError, RuntimeError, MemoryError) as error:
            # No descriptor, thread, process or memory was left here.
            raise StartupFailed(f"a sandbox could not be started: {type(error).__name__}: {error}") from error
        if self._closed:
            await guest.kill("owner", "the engine was closed")
            raise Conflict("the engine is closed")
        if (guest.network is None) != (spec.network.mode == "none"):
            await guest.kill("owner", "the runtime did not apply the network policy")
            raise Unsupported(
                f"isolation {spec.isolation!r} cannot apply the network policy {spec.network.mode!r}"
            )
        pausable = guest.freezes if spec.pause_memory else guest.keeps_files
        if spec.on_deadline == "pause" and not pausable:
            await guest.kill("owner", "the sandbox could not be paused at its deadline")
            raise Unsupported("this sandbox could not be paused at its deadline: ask for on_deadline='kill'")
        return guest

    def _give_out(self, spec: SandboxSpec, guest: Guest) -> Sandbox:
        return self.take(new_sandbox_id(self.settings.node_token), with_languages(spec), guest)

    def take(self, id: str, spec: SandboxSpec, guest: Guest, past: "Past | None" = None) -> Sandbox:
        """Make a sandbox of a guest; ``past`` is what it was, where it has outlived another engine."""
        sandbox = Sandbox(id, spec, guest, self.settings, self._on_end, self._background, self, past)
        sandbox.check_running()
        self._sandboxes[id] = sandbox
        self._sampler.add(sandbox)
        return sandbox

    async def _keep(self, sandbox: Sandbox) -> Sandbox:
        """Give a sandbox out when it would be found again after a restart, not before."""
        try:
            await sandbox.save()
        except BaseException:
            await sandbox.kill("owner", "the sandbox could not be recorded")
            raise
        return sandbox

    def save(self, sandbox: Sandbox) -> Awaitable[None]:
        """Record a sandbox as it is now, where it outlives this engine (see :meth:`Sandbox.save`)."""
        if not self.records.keep or sandbox.state == "ended":
            return DONE
        from cellfork.engine.adoption import KIND, record_of

        record = record_of(sandbox)
        return DONE if record is None else self.records.put(KIND, sandbox.id, record)

    def settled(self) -> Awaitable[None]:
        """Wait until everything that was saved is kept, or could not be: what is told after that outlives this process."""
        return self.records.settled()

    async def adopt(self) -> "Adoption":
        """Take over what an earlier engine left, as its records say: sandboxes, snapshots.  Once, before anything else.

        What cannot be taken over is ended, and nothing else of that engine stays.  Raises :class:`UnavailableError` where the
        records cannot be read.
        """
        from cellfork.engine.adoption import adopt

        await asyncio.to_thread(self.archives.open)
        await self._snapshots.load()
        outcome = await adopt(self)
        paused = [sandbox.pausing.archive for sandbox in outcome.adopted]
        await self.archives.keep_only([*self._snapshots.archives, *filter(None, paused)])
        return outcome

    @property
    def runtimes(self) -> Mapping[str, Runtime]:
        """The runtimes by the names of isolations."""
        return self._runtimes

    async def _start_with(self, spec: SandboxSpec, archive: str) -> Sandbox:
        """Start a sandbox that has the files of an archive."""
        guest = await self.start_guest(spec)
        try:
            await unpack(guest, self.archives, archive)
            return await self._keep(self._give_out(spec, guest))
        except BaseException:
            await guest.kill("owner", "the sandbox could not be given its files")
            raise

    async def snapshot(self, id: str, name: str | None = None) -> Snapshot:
        """Keep the files of a sandbox as they are now; it goes on when that is done.

        ``name`` can be used in place of the snapshot's id; where another snapshot of the tenant has it, that one loses it.
        Everything in the sandbox stands still meanwhile.  Raises :class:`NotFound`, :class:`Conflict`,
        :class:`Unsupported` (isolation, host), :class:`LimitExceeded` (room for archives), :class:`UnavailableError`.
        """
        names = check_name(name)
        sandbox = self.get(id)
        archive = await sandbox.pausing.keep_files()
        spec = sandbox.spec
        snapshot = Snapshot(
            id=new_snapshot_id(self.settings.node_token),
            names=names,
            created_at=self.settings.clock.time_ns() / 1e9,
            sandbox_id=id,
            template=spec.template,
            limits=spec.limits,
            isolation=spec.isolation,
            tenant=spec.tenant,
            size=self.archives.size(archive),
            archive=archive,
        )
        try:
            return await self._snapshots.add(snapshot)
        except BaseException:
            await self._snapshots.take_back(snapshot)
            raise

    def snapshots(
        self, *, sandbox_id: str | None = None, name: str | None = None, tenant: str | None = None
    ) -> list[Snapshot]:
        """Return the snapshots, the newest first: of one sandbox, with one name, of one tenant (``None``: any)."""
        return self._snapshots.list(sandbox_id=sandbox_id, name=name, tenant=tenant)

    def find_snapshot(self, id: str, tenant: str | None = None) -> Snapshot:
        """Return the snapshot with an id or a name; :class:`NotFound` where the tenant has none such."""
        return self._snapshots.get(id, tenant)

    async def name_snapshot(self, id: str, names: tuple[str, ...], tenant: str | None = None) -> Snapshot:
        """Give a snapshot other names; one that another snapshot of the tenant has is this one's from now on.

        Raises :class:`NotFound`, :class:`InvalidRequest`, :class:`UnavailableError`.
        """
        return await self._snapshots.name(id, names, tenant)

    async def delete_snapshot(self, id: str, tenant: str | None = None) -> None:
        """Delete a snapshot, named by id or name; :class:`NotFound` where the tenant has none such."""
        await self._snapshots.delete(id, tenant)

    async def fork(
        self, id: str, count: int = 1, timeout: float | None = 300.0
    ) -> list[Sandbox | CellforkError]:
        """Start ``count`` sandboxes with the files that a sandbox has now; return each, or why it could not be started.

        They are as the source was asked for, with no notes, and live for ``timeout`` seconds.  The source goes on; what runs
        in it is not copied.  Raises as :meth:`snapshot` does, :class:`InvalidRequest` for the count.
        """
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_FORKS:
            raise InvalidRequest(f"count is a whole number from 1 to {MOST_FORKS}")
        check_seconds(timeout)
        source = self.get(id)
        spec = replace(source.spec, timeout=timeout, notes={}, snapshot=None)
        archive = await source.pausing.keep_files()
        starts = [asyncio.ensure_future(self._try(self._start_with(spec, archive))) for _ in range(count)]
        try:
            return [*await asyncio.gather(*starts)]
        except BaseException:  # nobody waits for the forks any more
            for start in starts:
                start.cancel()
            for outcome in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(outcome, Sandbox):
                    outcome.end_soon("request", "nobody waited for the fork")
            raise
        finally:
            await asyncio.shield(self.archives.discard(archive))

    @staticmethod
    async def _try(start: Coroutine[Any, Any, Sandbox]) -> Sandbox | CellforkError:
        try:
            return await start
        except CellforkError as error:
            return error

    def get(self, id: str) -> Sandbox:
        """Return a live sandbox; :class:`NotFound` where there is none with this id."""
        sandbox = self._sandboxes.get(id)
        if sandbox is None:
            raise NotFound(f"no sandbox {str(id)[:80]!r}")
        return sandbox

    def list(self) -> list[Sandbox]:
        """Return the live sandboxes, the oldest first."""
        return list(self._sandboxes.values())

    async def kill(self, id: str) -> None:
        """Kill a sandbox; :class:`NotFound` where there is none with this id."""
        await self.get(id).kill()

    async def leave(self) -> None:
        """End, and let those sandboxes go on that are recorded, for another engine to adopt; kill the others."""
        self._closed = True
        gone = [
            sandbox
            for sandbox in self.list()
            if sandbox.guest.record is None and sandbox.pausing.archive is None
        ]
        kills = [sandbox.kill("owner", "the engine was closed") for sandbox in gone]
        await asyncio.gather(*kills, return_exceptions=True)
        for sandbox in self.list():
            sandbox.leave()
        self._sandboxes.clear()
        await self._background.join()
        leaving = [runtime.leave() for runtime in self._used.values()]
        self._used.clear()
        await asyncio.gather(*leaving, return_exceptions=True)
        await self.records.aclose()

    async def aclose(self) -> None:
        """Kill every sandbox, close every runtime that was used.  Idempotent."""
        self._closed = True
        kills = [sandbox.kill("owner", "the engine was closed") for sandbox in self.list()]
        await asyncio.gather(*kills, return_exceptions=True)
        await self._background.join()
        self.archives.close()
        closing = [runtime.aclose() for runtime in self._used.values()]
        self._used.clear()
        await asyncio.gather(*closing, return_exceptions=True)
        await self.records.aclose()

    def runtime_of(self, spec: SandboxSpec) -> Runtime:
        """Return the runtime that a spec asks for; raises as :meth:`create` where there is none, or where it is malformed."""
        if self._closed:
            raise Conflict("the engine is closed")
        check_envs(spec.envs, self.settings.envs)
        check_seconds(spec.timeout)
        check_tenant(spec.tenant)
        if spec.on_deadline not in {"kill", "pause"}:
            raise InvalidRequest(f"on_deadline is 'kill' or 'pause', not {str(spec.on_deadline)[:80]!r}")
        if spec.isolation not in self._runtimes:
            known = ", ".join(sorted(self._runtimes))
            raise InvalidRequest(f"unknown isolation {str(spec.isolation)[:80]!r}; known: {known}")
        runtime = self._used[spec.isolation] = self._runtimes[spec.isolation]
        return runtime

    def stock(self, template: Template, tenant: str, isolation: str) -> Stock:
        """Tell what is started ahead for a tenant, of a template."""
        named = with_languages(SandboxSpec(template=template)).template
        return self._runtimes[isolation].stock(named, tenant)

    def _on_end(self, sandbox: Sandbox) -> None:
        self._sampler.discard(sandbox)
        if self._sandboxes.pop(sandbox.id, None) is not None and self.records.keep:
            self.records.delete("sandbox", sandbox.id)
