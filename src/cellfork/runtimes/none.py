"""The ``none`` runtime: the same guest in plain processes, without any isolation.

Only for code that is trusted; every answer is labelled ``isolation: none``.
"""

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
from typing import ClassVar

from cellfork.model.errors import Unsupported
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes import interpreter, plan
from cellfork.runtimes.base import RuntimeReport
from cellfork.runtimes.guest import Meter, ProcessGuest
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

    async def _stop(self, pidfd: int) -> None:
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await asyncio.shield(self._child.exited)
        except TimeoutError:
            await super()._stop(pidfd)


class NoneRuntime:
    """Starts plain processes.  Implements :class:`cellfork.runtimes.base.Runtime`."""

    name: ClassVar[str] = "none"

    def __init__(self) -> None:
        self._zygotes = Zygotes(self._launch)
        self._guests: set[ProcessGuest] = set()

    async def start(self, spec: SandboxSpec) -> ProcessGuest:
        """Fork a process tree with a temporary home directory; no limit of ``spec`` is enforced."""
        if spec.network.mode == "allow":
            raise Unsupported(
                "without isolation no network policy can be enforced; ask for 'none' or 'public'"
            )
        zygote = await self._zygotes.of(spec.template)
        home = tempfile.mkdtemp(prefix="cellfork-none-")
        ours, theirs = socket.socketpair()
        with theirs:
            child = zygote.fork(secrets.token_hex(8), [theirs.fileno()])
        guest = NoneGuest(ours, child, HomeMeter(home), self.name)
        self._guests.add(guest)
        guest.on_end = self._guests.discard
        guest.send({"op": "become", "envs": dict(spec.envs), "home_path": home, "warm": False})
        await guest.wait_ready()
        return guest

    async def probe(self) -> RuntimeReport:
        """Plain processes can be started everywhere."""
        return RuntimeReport(self.name, available=True, features={"isolation": "none: only for trusted code"})

    async def aclose(self) -> None:
        """Kill every sandbox and zygote."""
        await asyncio.gather(*(guest.kill("owner") for guest in [*self._guests]))
        await self._zygotes.aclose()

    async def _launch(self, template: Template) -> Zygote:
        python = await asyncio.to_thread(interpreter.describe, template.interpreter)
        argv = plan.zygote_argv(python.executable, os.path.dirname(plan.package_directory()))
        env = plan.environment(f"{python.prefix}/bin:{os.defpath}", tempfile.gettempdir())
        settings = {
            "preload": list(template.preload),
            "seccomp_base": "",
            "plan": {"owns_pid_namespace": False},
        }
        return await Zygote.launch(Launch(argv, env, None, settings))
