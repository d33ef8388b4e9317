"""The ``namespaces`` runtime: a zygote in its own namespaces, and a locked fork of it for every sandbox."""

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from cellfork.guest import linux
from cellfork.model.errors import (
    CellforkError,
    InvalidRequest,
    IsolationUnavailable,
    Missing,
    StartupFailed,
    Unsupported,
)
from cellfork.model.limits import Limits
from cellfork.model.specs import HOME, SandboxSpec, Template
from cellfork.runtimes import interpreter, plan
from cellfork.runtimes.base import RuntimeReport
from cellfork.runtimes.guest import ProcessGuest
from cellfork.runtimes.namespaces import layout, seccomp
from cellfork.runtimes.namespaces.cgroups import Cgroups
from cellfork.runtimes.namespaces.prefork import NAME, Fork, Prefork
from cellfork.runtimes.pool import Pool
from cellfork.runtimes.zygote import Launch, Zygote
from cellfork.runtimes.zygotes import Zygotes

FIRST_HOST_ID = 1 << 29
IDS_PER_ZYGOTE = 1 << 21
ID_SLOTS = ((1 << 32) - FIRST_HOST_ID) // IDS_PER_ZYGOTE - 1
"""Ranges of host ids, far above those of users and of /etc/subuid; each zygote takes one at random."""

POOL_ENVIRONMENT = "CELLFORK_POOL"
PREFORK_ENVIRONMENT = "CELLFORK_PREFORK"
MOST_AHEAD = 100


class NamespacesRuntime:
    """Starts isolated sandboxes.  Implements :class:`cellfork.runtimes.base.Runtime`."""

    name: ClassVar[str] = NAME

    def __init__(
        self, cgroups: Cgroups | None = None, *, pool: int | None = None, prefork: int | None = None
    ) -> None:
        """``pool`` sandboxes are kept started ahead (default: ``CELLFORK_POOL``, or 0), and of each zygote
        ``prefork`` forks that can become any sandbox (default: ``CELLFORK_PREFORK``, or 1).
        """
        self._cgroups = cgroups
        pool = number_of(POOL_ENVIRONMENT, 0) if pool is None else pool
        self._pool = Pool(pool, partial(self._start, warm=True))
        self._prefork_size = number_of(PREFORK_ENVIRONMENT, 1) if prefork is None else prefork
        self._zygotes = Zygotes(launch_zygote)
        self._preforks: dict[Zygote, Prefork] = {}
        self._guests: set[ProcessGuest] = set()

    async def start(self, spec: SandboxSpec) -> ProcessGuest:
        """Give out a sandbox that was started ahead, or fork one from the template's zygote."""
        return await self._pool.take(spec) or await self._start(spec)

    async def _start(self, spec: SandboxSpec, *, warm: bool = False) -> ProcessGuest:
        if spec.network.mode != "none":
            raise Unsupported(
                f"the network policy {spec.network.mode!r} is not available yet; sandboxes have no network"
            )
        cgroups = self._detect_cgroups()
        missing = cgroups.missing(spec.limits)
        if missing:
            raise IsolationUnavailable("this host cannot enforce the limits", tuple(missing))
        zygote = await self._zygotes.of(spec.template)
        try:
            fork = self._prefork(zygote, cgroups).take()
        except OSError as error:
            raise StartupFailed(f"a sandbox could not be started: {error}") from error
        self._guests.add(fork.guest)
        fork.guest.on_end = self._guests.discard
        await self._become(fork, cgroups, spec, warm=warm)
        return fork.guest

    @staticmethod
    async def _become(fork: Fork, cgroups: Cgroups, spec: SandboxSpec, *, warm: bool) -> None:
        """Set the limits, then tell the fork what it is to be: nothing runs without its limits."""
        try:
            cgroups.limit(fork.group, spec.limits)
            fork.guest.send({"op": "become", **plan.fork_request(spec, warm=warm)})
        except BaseException:
            await fork.guest.kill()
            raise
        await fork.guest.wait_ready()

    def _prefork(self, zygote: Zygote, cgroups: Cgroups) -> Prefork:
        if zygote not in self._preforks:
            self._preforks = {known: ahead for known, ahead in self._preforks.items() if known.alive}
            self._preforks[zygote] = Prefork(zygote, cgroups, self._prefork_size)
        return self._preforks[zygote]

    async def probe(self) -> RuntimeReport:
        """Start a bare sandbox and end it; report what was found and what is missing."""
        features = describe_host(self._detect_cgroups())
        missing = tuple(self._detect_cgroups().missing(Limits()))
        try:
            await self._try_once()
        except IsolationUnavailable as error:
            missing += error.missing or (Missing("isolation", str(error), "see the message"),)
        except CellforkError as error:
            missing += (Missing("start", str(error), "see the message"),)
        return RuntimeReport(self.name, not missing, missing, features)

    async def aclose(self) -> None:
        """Kill every sandbox and zygote."""
        await self._pool.aclose()
        await asyncio.gather(*(ahead.aclose() for ahead in self._preforks.values()))
        self._preforks.clear()
        await asyncio.gather(*(guest.kill("owner") for guest in [*self._guests]))
        self._guests.clear()
        await self._zygotes.aclose()

    async def _try_once(self) -> None:
        limits = Limits(memory=None, cpu=None, pids=None)
        bare = SandboxSpec(template=Template("probe", preload=()), limits=limits)
        probing = NamespacesRuntime(self._detect_cgroups(), pool=0, prefork=0)
        try:
            await probing.start(bare)
        finally:
            await probing.aclose()

    def _detect_cgroups(self) -> Cgroups:
        if self._cgroups is None:
            self._cgroups = Cgroups.detect()
        return self._cgroups


def number_of(variable: str, otherwise: int) -> int:
    """Return the number from 0 to 100 in an environment variable; :class:`InvalidRequest` for anything else."""
    text = os.environ.get(variable, str(otherwise))
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= MOST_AHEAD):
        raise InvalidRequest(f"{variable} is a number from 0 to {MOST_AHEAD}, not {text!r}")
    return int(text)


async def launch_zygote(template: Template) -> Zygote:
    """Start a zygote for ``template`` in namespaces of its own."""
    if not sys.platform.startswith("linux") or not linux.supported_machine():
        raise IsolationUnavailable("the namespaces runtime needs Linux on x86_64 or aarch64")
    python = await asyncio.to_thread(interpreter.describe, template.interpreter)
    package = plan.package_directory()
    env = {**plan.environment(layout.search_path(python)), "VIRTUAL_ENV": layout.VENV}
    boot_plan = {
        "ids": host_ids() if os.geteuid() == 0 else None,
        "root": layout.template_root(python, package),
        "argv": plan.zygote_argv(f"{layout.VENV}/bin/python", layout.LIBRARY),
        "env": env,
    }
    settings = {
        "preload": list(template.preload),
        "seccomp_base": seccomp.base_filter().hex(),
        "plan": sandbox_plan(python),
    }
    return await Zygote.launch(Launch(boot_argv(package), {}, boot_plan, settings))


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
        "writable": [layout.DISK, *layout.PRIVATE_PLACES],
        "seccomp_delta": seccomp.delta_filter().hex(),
        "home": [list(entry) for entry in layout.sandbox_environment(python)],
        **layout.proc_restrictions(),
    }


def host_ids() -> list[int]:
    """Return first and count of a range of host ids for one zygote."""
    return [FIRST_HOST_ID + secrets.randbelow(ID_SLOTS) * IDS_PER_ZYGOTE, IDS_PER_ZYGOTE]


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
