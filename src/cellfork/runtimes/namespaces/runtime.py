"""The ``namespaces`` runtime: a zygote in its own namespaces, and a locked fork of it for every sandbox."""

import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from cellfork.guest import linux
from cellfork.model.errors import (
    CellforkError,
    IsolationUnavailable,
    LimitExceeded,
    Missing,
    PostureMismatch,
    SandboxGone,
    StartupFailed,
    Unsupported,
)
from cellfork.model.limits import Limits
from cellfork.model.specs import HOME, SandboxSpec, Template
from cellfork.runtimes import interpreter, plan
from cellfork.runtimes.base import RuntimeReport, Stock
from cellfork.runtimes.guest import ProcessGuest, kill_all
from cellfork.runtimes.keeping import Keeping
from cellfork.runtimes.kept import Kept
from cellfork.runtimes.namespaces import layout, proofs, seccomp, selftest, volumes
from cellfork.runtimes.namespaces.cgroups import Cgroups
from cellfork.runtimes.namespaces.ids import Slots, host_ids
from cellfork.runtimes.namespaces.inspection import Inspector, Tally
from cellfork.runtimes.namespaces.prefork import NAME, Fork, Prefork
from cellfork.runtimes.namespaces.survivors import Record, Survivors, note_of, record_of
from cellfork.runtimes.pool import Pool
from cellfork.runtimes.state import StateDirectory
from cellfork.runtimes.variables import number_of
from cellfork.runtimes.zygote import Launch, Zygote
from cellfork.runtimes.zygotes import Domain, Zygotes

if TYPE_CHECKING:
    from cellfork.runtimes.egress.gate import Gate
    from cellfork.runtimes.egress.proxy import Proxy

POOL_ENVIRONMENT = "CELLFORK_POOL"
PREFORK_ENVIRONMENT = "CELLFORK_PREFORK"
MOST_AHEAD = 100
WRITABLE = (layout.DISK, *layout.PRIVATE_PLACES)
"""What every sandbox may write to."""


class NamespacesRuntime:
    """Starts isolated sandboxes.  Implements :class:`cellfork.runtimes.base.Runtime`."""

    name: ClassVar[str] = NAME

    def __init__(
        self,
        cgroups: Cgroups | None = None,
        *,
        pool: int | None = None,
        prefork: int | None = None,
        keeping: Keeping | None = None,
        proxy: "Proxy | None" = None,
        state: StateDirectory | None = None,
    ) -> None:
        """``pool`` sandboxes are kept started ahead for every tenant and template (default: ``CELLFORK_POOL``,
        or 0), and of each zygote ``prefork`` forks that can become any sandbox (default: ``CELLFORK_PREFORK``,
        or 1).  ``keeping`` says how zygotes are kept (default: what the environment says).  ``proxy`` serves the
        sandboxes that have a network (default: one with this machine's resolver and network).  With ``state``
        sandboxes outlive this process, and :meth:`adopt` takes them over in the next one; without they end with it.
        """
        self._cgroups = cgroups
        self._state = state
        self._survivors: Survivors | None = None
        self._proxy = proxy
        pool = number_of(POOL_ENVIRONMENT, 0, most=MOST_AHEAD) if pool is None else pool
        self._pool = Pool(pool, partial(self._start, warm=True))
        if prefork is None:
            prefork = number_of(PREFORK_ENVIRONMENT, 1, most=MOST_AHEAD)
        self._prefork_size = prefork
        self._zygotes = Zygotes(
            self._launch,
            keeping or Keeping.from_environment(),
            on_prepared=self._prepare,
            on_retired=self._retire,
        )
        self.selftest = selftest.SelfTest(self._launch, self._become, proofs.directory())
        self._id_slots = Slots()
        self._preforks: dict[Zygote, Prefork] = {}
        self._inspectors: dict[Zygote, Inspector] = {}
        self._guests: set[ProcessGuest] = set()
        self.postures = Tally()
        """How many sandboxes were looked at before they were given out, and how many were not as they should be."""

    def prepare(self) -> None:
        """Start the spare zygotes now, not with the first sandbox."""
        self._zygotes.prepare()

    def stock(self, template: Template, tenant: str) -> Stock:
        """Tell what the pool keeps."""
        return self._pool.stock(Domain(tenant, template))

    async def start(self, spec: SandboxSpec) -> ProcessGuest:
        """Give out a sandbox that was started ahead, or fork one from the tenant's zygote."""
        guest = await self._pool.take(spec) or await self._start(spec)
        guest.claim()
        return guest

    async def _start(self, spec: SandboxSpec, *, warm: bool = False, again: bool = False) -> ProcessGuest:
        """Start a sandbox; where its zygote turns out to be unfit to fork, one of the zygote's successor, ``again``."""
        gate = self._gate(spec)
        cgroups = self._detect_cgroups()
        missing = cgroups.missing(spec.limits)
        if missing:
            raise IsolationUnavailable("this host cannot enforce the limits", tuple(missing))
        if not self.selftest.passed:
            await self._test_limits(spec, cgroups)
        volumes.check(spec.volumes, with_files=spec.snapshot is not None)
        template = volumes.provided(spec.template, spec.volumes)
        if isinstance(template, volumes.Provided):
            self._make_room(Domain(spec.tenant, template))
        zygote = await self._zygotes.of(template, spec.tenant)  # forks at once: it may be retired later
        try:
            fork = self._prefork(zygote, cgroups).take()
        except OSError as error:
            raise StartupFailed(f"a sandbox could not be started: {error}") from error
        if not warm:
            fork.guest.claim()
        fork.guest.info = {"image": zygote.report.get("image", "")}
        self._guests.add(fork.guest)
        fork.guest.on_end = self._guests.discard
        try:
            await self._become(fork, cgroups, spec, warm=warm, gate=gate)
        except (SandboxGone, StartupFailed) as error:
            if not (zygote.fit or again):
                return await self._start(spec, warm=warm, again=True)
            if isinstance(error, StartupFailed):
                raise
            raise StartupFailed(f"the sandbox ended while it was started: {error}") from error
        if spec.template.languages:
            await fork.guest.start_ahead(spec.template.languages, wait=warm)
        return fork.guest

    def _make_room(self, domain: Domain) -> None:
        """Let a tenant have few zygotes for the paths of volumes: nobody else's are to suffer.  Raises :class:`LimitExceeded`."""

        def rivals(other: Domain) -> bool:
            return other.tenant == domain.tenant and isinstance(other.template, volumes.Provided)

        if not self._zygotes.make_room(domain, rivals, volumes.MOST_PROVIDED):
            raise LimitExceeded(
                f"sandboxes with volumes at {volumes.MOST_PROVIDED} other combinations of paths live; end some, or mount "
                f"volumes below {HOME!r}"
            )

    def _gate(self, spec: SandboxSpec, record: Record | None = None) -> "Gate | None":
        """Return the way out of a sandbox that is to have one; the proxy is made for the first of them."""
        if spec.network.mode == "none":
            return None
        from cellfork.runtimes.egress.gate import Gate

        if self._proxy is None:
            from cellfork.runtimes.egress.proxy import Proxy

            self._proxy = Proxy()
        return Gate(self._proxy, spec.network, record)

    async def _test_limits(self, spec: SandboxSpec, cgroups: Cgroups) -> None:
        """See whether the limits hold, while the zygote imports its modules.

        Raises :class:`IsolationUnavailable` where one does not that ``spec`` asks for.  Whichever fails, nothing goes on then:
        who is refused may be about to end, and a test makes control groups.
        """
        tested = self.selftest.result(cgroups, spec.template.interpreter)
        waiting = self._zygotes.of(spec.template, spec.tenant), tested
        zygote, test = await asyncio.gather(*waiting, return_exceptions=True)
        if isinstance(zygote, BaseException):
            raise zygote
        if isinstance(test, BaseException):
            raise test
        selftest.require(test, spec.limits)

    async def _become(
        self,
        fork: Fork,
        cgroups: Cgroups,
        spec: SandboxSpec,
        *,
        warm: bool = False,
        gate: "Gate | None" = None,
    ) -> None:
        """Set the limits, then tell the fork what it is to be: nothing runs without its limits."""
        try:
            cgroups.limit(fork.group, spec.limits)
            if gate is not None:
                fork.guest.expect_listener(gate)
            request = {"op": "become", **plan.fork_request(spec, warm=warm, gate=gate)}
            certificates = gate.certificates if gate else b""
            if spec.volumes:
                await self._send_with_volumes(fork, spec, request, certificates)
            else:
                fork.guest.send(request, certificates)
        except SandboxGone:
            pass  # whoever waits for it is about to hear why
        except BaseException:
            await fork.guest.kill()
            raise
        pid = await fork.guest.wait_ready()
        await self._inspect(fork, pid, spec)

    async def _send_with_volumes(
        self, fork: Fork, spec: SandboxSpec, request: dict[str, Any], certificates: bytes
    ) -> None:
        mounts = await volumes.mounts_of(spec.volumes, await fork.guest.process())
        try:
            told = {
                "volumes": [volumes.point_of(volume) for volume in spec.volumes],
                "writable": [*WRITABLE, *volumes.writable(spec.volumes)],
            }
            fork.guest.send_with(mounts, {**request, **told}, certificates)
        finally:
            for mount in mounts:
                os.close(mount)

    async def _inspect(self, fork: Fork, pid: int, spec: SandboxSpec) -> None:
        """See from outside that the sandbox is what was asked for, before anything runs in it; otherwise kill it.

        Its zygote then forks no more: what is wrong with one may be wrong with all.
        """
        start = time.perf_counter()
        try:
            inspector = self._inspector(fork.zygote)
            posture = inspector.inspect(pid, spec, fork.group, door=fork.door)
        except PostureMismatch as error:
            fork.zygote.fit = False
            await fork.guest.kill("posture", str(error))
            raise
        except BaseException:
            await fork.guest.kill()
            raise
        seconds = time.perf_counter() - start
        fork.guest.info = {**fork.guest.info, "posture": posture, "posture_seconds": seconds}
        if fork.door:
            seen = {
                "posture": posture,
                "image": fork.guest.info.get("image", ""),
                "fingerprint": inspector.fingerprint,
            }
            fork.guest.lasting = record_of(fork.zygote, fork.name, pid, fork.group, seen)

    def _inspector(self, zygote: Zygote) -> Inspector:
        """Return who looks at the sandboxes of ``zygote``.  Raises :class:`StartupFailed` where it is gone."""
        if zygote not in self._inspectors:
            self._inspectors = {known: one for known, one in self._inspectors.items() if known.alive}
            self._inspectors[zygote] = Inspector(zygote, plan.package_directory(), self.postures)
        return self._inspectors[zygote]

    def _prefork(self, zygote: Zygote, cgroups: Cgroups) -> Prefork:
        if zygote not in self._preforks:
            self._preforks = {known: ahead for known, ahead in self._preforks.items() if known.alive}
            self._preforks[zygote] = Prefork(zygote, cgroups, self._prefork_size, self._state)
        return self._preforks[zygote]

    async def _launch(self, template: Template) -> Zygote:
        """Start a zygote whose host ids no other living zygote of this runtime has."""
        slot = self._id_slots.take()
        alive = False
        try:
            zygote = await launch_zygote(template, host_ids(slot), self._state)
            alive = True
        finally:
            self._id_slots.give(slot, lambda: alive and zygote.alive)
        if self._state is not None:
            self._state.write("zygotes", zygote.name, note_of(zygote, slot))
        return zygote

    async def adopt(self, spec: SandboxSpec, record: Record, first: int) -> tuple[ProcessGuest, Kept]:
        """Take over a sandbox of ``spec`` that has outlived its host, as :meth:`cellfork.runtimes.base.Runtime.adopt` says."""
        survivors = self._find_survivors()
        gate = None if spec.network.mode == "none" else self._gate(spec, record.get("network"))
        guest, kept, zygote = await survivors.sandbox(record, gate, first)
        guest.lasting = record
        self._guests.add(guest)
        guest.on_end = self._guests.discard
        self._zygotes.adopt(Domain(spec.tenant, spec.template), zygote)
        return guest, kept

    async def sweep(self) -> None:
        """End what a former host has left and nobody took over."""
        if self._state is not None:
            await self._find_survivors().sweep()
            self._survivors = None

    async def leave(self) -> None:
        """End with every sandbox going on, for another process to take over; without a state directory as :meth:`aclose`."""
        if self._state is None:
            await self.aclose()
            return
        await self._close_what_is_ahead()
        for guest in [*self._guests]:
            guest.leave()
        self._guests.clear()
        await self._zygotes.leave()

    def _find_survivors(self) -> Survivors:
        if self._state is None:
            raise Unsupported("there is no state directory: sandboxes end with their host")
        if self._survivors is None:
            self._survivors = Survivors(self._state, self._detect_cgroups(), self._id_slots)
        return self._survivors

    async def _prepare(self, zygote: Zygote) -> None:
        """Make forks of a zygote that is to serve soon, and know what to expect of them."""
        self._prefork(zygote, self._detect_cgroups())
        with contextlib.suppress(StartupFailed):  # it is gone; whoever asks for a sandbox will be told
            self._inspector(zygote)

    async def _retire(self, domain: Domain, zygote: Zygote) -> None:
        """End what was forked from a zygote and belongs to nobody."""
        await self._pool.drop(domain)
        ahead = self._preforks.pop(zygote, None)
        if ahead is not None:
            await ahead.aclose()

    async def probe(self, *, fresh: bool = False) -> RuntimeReport:
        """Hit every limit, or recall that it holds; start a bare sandbox and end it; report what was found."""
        cgroups = self._detect_cgroups()
        features = describe_host(cgroups)
        missing = tuple(cgroups.missing(Limits()))
        limits = None
        try:
            limits = await self.selftest.result(cgroups, None, fresh=fresh)
            missing += selftest.missing_of(limits, Limits())
            if not missing:
                await self._try_once()
            features = {**features, "posture": str(self.postures)}
        except IsolationUnavailable as error:
            missing += error.missing or (Missing("isolation", str(error), "see the message"),)
        except CellforkError as error:
            missing += (Missing("start", str(error), "see the message"),)
        return RuntimeReport(self.name, not missing, missing, features, limits)

    async def aclose(self) -> None:
        """Kill every sandbox and zygote."""
        await self._close_what_is_ahead()
        await kill_all(self._guests)
        await self._zygotes.aclose()  # with a zygote ends what the kernel had not let go in time
        await kill_all(self._guests)
        self._guests.clear()

    async def _close_what_is_ahead(self) -> None:
        await self._pool.aclose()
        await self.selftest.aclose()
        await asyncio.gather(*(ahead.aclose() for ahead in self._preforks.values()))
        self._preforks.clear()

    async def _try_once(self) -> None:
        limits = Limits(memory=None, cpu=None, pids=None)
        bare = SandboxSpec(template=Template("probe", preload=()), limits=limits)
        probing = NamespacesRuntime(self._detect_cgroups(), pool=0, prefork=0)
        probing.postures = self.postures
        probing.selftest = self.selftest
        try:
            await probing.start(bare)
        finally:
            await probing.aclose()

    def _detect_cgroups(self) -> Cgroups:
        if self._cgroups is None:
            self._cgroups = Cgroups.detect()
            if self._state is not None:
                self._cgroups = self._cgroups.kept(self._state.id)
        return self._cgroups


async def launch_zygote(
    template: Template, ids: list[int] | None = None, state: StateDirectory | None = None
) -> Zygote:
    """Start a zygote for ``template`` in namespaces of its own.

    As root it gets the host ids ``[first, count]`` (``None``: any range).  With ``state`` it has a door there.
    """
    if not sys.platform.startswith("linux") or not linux.supported_machine():
        raise IsolationUnavailable("the namespaces runtime needs Linux on x86_64 or aarch64")
    python = await asyncio.to_thread(interpreter.describe, template.interpreter)
    package = plan.package_directory()
    env = {**plan.environment(layout.search_path(python)), "VIRTUAL_ENV": layout.VENV}
    boot_plan = {
        "ids": (ids or host_ids()) if os.geteuid() == 0 else None,
        "root": volumes.root_entries(template, layout.template_root(python, package)),
        "argv": plan.zygote_argv(f"{layout.VENV}/bin/python", layout.LIBRARY),
        "env": env,
        "hostname": layout.HOSTNAME,
    }
    settings: dict[str, Any] = {
        "preload": list(template.preload),
        "seccomp_base": seccomp.base_filter().hex(),
        "plan": sandbox_plan(python),
    }
    launch = Launch(boot_argv(package), {}, boot_plan, settings)
    if state is None:
        zygote = await Zygote.launch(launch)
    else:
        name = secrets.token_hex(8)
        patience = {"patience": state.patience}
        settings |= {**patience, "plan": {**settings["plan"], **patience}}
        try:
            with state.bind("zygotes", name) as door:
                zygote = await Zygote.launch(replace(launch, door=door))
        except BaseException:
            state.forget("zygotes", name)
            raise
        zygote.name, zygote.on_over = name, partial(state.forget, "zygotes", name)
    zygote.interpreter = python
    return zygote


def boot_argv(package: str) -> list[str]:
    """Return the command of the boot stage: a bare interpreter that sees nothing but cellfork's guest code."""
    code = (
        f"import sys; sys.path.append({os.path.dirname(package)!r}); "
        "from cellfork.guest.boot import main; main(*map(int, sys.argv[1:]))"
    )
    return [sys.executable, "-I", "-S", "-B", "-c", code]


def sandbox_plan(python: interpreter.Interpreter) -> dict[str, Any]:
    """Return what is the same for every sandbox of a zygote."""
    return {
        "owns_pid_namespace": True,
        "home_path": HOME,
        "hostname": layout.HOSTNAME,
        "single_id": os.geteuid() != 0,
        "landlock": linux.landlock_abi(),
        "disk_path": layout.DISK,
        "covered": [list(pair) for pair in layout.covered_prefixes(python)],
        "writable": [*WRITABLE],
        "seccomp_delta": seccomp.delta_filter().hex(),
        "home": [list(entry) for entry in layout.sandbox_environment(python)],
        "empty_path": layout.EMPTY,
        **layout.proc_restrictions(),
    }


def describe_host(cgroups: Cgroups) -> Mapping[str, str]:
    """Return what this host has, by name."""
    abi = linux.landlock_abi()
    return {
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "ids": "a host id range per sandbox" if os.geteuid() == 0 else "one host id (ordinary user)",
        "landlock": f"ABI {abi}" if abi else "absent (the other locks remain)",
        "seccomp": f"{len(seccomp.allowed())} calls allowed"
        if linux.supported_machine()
        else "unknown machine",
        **{
            f"cgroup {name}": f"v{hierarchy.version} at {hierarchy.base}"
            for name, hierarchy in sorted(cgroups.hierarchies.items())
        },
    }
