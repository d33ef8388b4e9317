"""The ``none`` runtime: the same guest in plain processes, without any isolation.

Only for code that is trusted; every answer is labelled ``isolation: none``.
"""

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping
from typing import Any, ClassVar

from cellfork.model.errors import Unsupported
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes import interpreter, plan
from cellfork.runtimes.base import RuntimeReport, Stock
from cellfork.runtimes.guest import Meter, ProcessGuest, kill_all
from cellfork.runtimes.keeping import Keeping
from cellfork.runtimes.kept import Kept
from cellfork.runtimes.zygote import Launch, Zygote
from cellfork.runtimes.zygotes import Zygotes

SHUTDOWN_SECONDS = 2.0


class HomeMeter(Meter):
    """Owns the temporary home directory of a sandbox; measures nothing."""

    def __init__(self, home: str) -> None:
        self._home = home

    async def release(self) -> None:
        """Remove the home directory."""
        await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)


class NoneGuest(ProcessGuest):
    """Ends its processes by asking init, which knows them; nothing else could find them all."""

    async def connect(self, port: int) -> socket.socket:
        """Refuse: without a network of its own a sandbox's ports are those of this machine, everybody's."""
        raise Unsupported(f"without isolation port {port} is this machine's own; connect to it directly")

    async def listen(self, port: int, host: str) -> socket.socket:
        """Refuse, for the same reason."""
        raise Unsupported(
            f"without isolation {host} port {port} is this machine's own; listen on it directly"
        )

    @property
    def keeps_files(self) -> bool:
        """Whether there are places of its own: its files are this machine's."""
        return False

    async def _stop(self, pidfd: int) -> None:
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await asyncio.shield(self._child.exited)
        except TimeoutError:
            await super()._stop(pidfd)


class NoneRuntime:
    """Starts plain processes.  Implements :class:`cellfork.runtimes.base.Runtime`."""

    name: ClassVar[str] = "none"

    def __init__(self, *, keeping: Keeping | None = None) -> None:
        """``keeping`` says how zygotes are kept (default: what the environment says)."""
        self._zygotes = Zygotes(self._launch, keeping or Keeping.from_environment())
        self._guests: set[ProcessGuest] = set()
        self._zygote_home: str | None = None

    async def start(self, spec: SandboxSpec) -> ProcessGuest:
        """Fork a process tree with a temporary home directory; no limit of ``spec`` is enforced."""
        if spec.network.mode != "none":
            raise Unsupported(
                "without isolation no network policy can be enforced: the code has this machine's network as it is; "
                "leave network out"
            )
        if spec.volumes:
            raise Unsupported(
                "without isolation nothing is mounted: the code sees this machine's files as they are"
            )
        zygote = await self._zygotes.of(spec.template, spec.tenant)
        home = tempfile.mkdtemp(prefix="cellfork-none-")
        ours, theirs = socket.socketpair()
        with theirs:
            child = zygote.fork(secrets.token_hex(8), [theirs.fileno()])
        guest = NoneGuest(ours, child, HomeMeter(home), self.name)
        guest.claim()
        self._guests.add(guest)
        guest.on_end = self._guests.discard
        guest.send({"op": "become", "envs": dict(spec.envs), "home_path": home, "warm": False})
        await guest.wait_ready()
        if spec.template.languages:
            await guest.start_ahead(spec.template.languages, wait=False)
        return guest

    def stock(self, template: Template, tenant: str) -> Stock:
        """Nothing is started ahead."""
        return Stock()

    async def probe(self, *, fresh: bool = False) -> RuntimeReport:
        """Plain processes can be started everywhere."""
        return RuntimeReport(self.name, available=True, features={"isolation": "none: only for trusted code"})

    async def adopt(
        self, spec: SandboxSpec, record: Mapping[str, Any], first: int
    ) -> tuple[ProcessGuest, Kept]:
        """Refuse: plain processes end with their host."""
        raise Unsupported("without isolation sandboxes end with their host")

    async def sweep(self) -> None:
        """Nothing outlives a host."""

    async def leave(self) -> None:
        """Kill every sandbox and zygote."""
        await self.aclose()

    async def aclose(self) -> None:
        """Kill every sandbox and zygote."""
        await kill_all(self._guests)
        await self._zygotes.aclose()  # with a zygote ends the wait for what it has not told of in time
        await kill_all(self._guests)
        home, self._zygote_home = self._zygote_home, None
        if home is not None:
            await HomeMeter(home).release()

    async def _launch(self, template: Template) -> Zygote:
        python = await asyncio.to_thread(interpreter.describe, template.interpreter)
        argv = plan.zygote_argv(python.executable, os.path.dirname(plan.package_directory()))
        if self._zygote_home is None:  # what is imported looks for settings there: nobody else may write them
            self._zygote_home = tempfile.mkdtemp(prefix="cellfork-none-zygote-")
        env = plan.environment(f"{python.prefix}/bin:{os.defpath}", self._zygote_home)
        settings = {
            "preload": list(template.preload),
            "seccomp_base": "",
            "plan": {"owns_pid_namespace": False},
        }
        return await Zygote.launch(Launch(argv, env, None, settings))
