"""The engine: creates sandboxes with the runtimes it was given, knows those that live, ends them."""

import asyncio
from collections.abc import Mapping

from cellfork.engine.background import Background
from cellfork.engine.checks import check_envs, check_seconds, check_tenant
from cellfork.engine.languages import with_languages
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings
from cellfork.model.errors import Conflict, InvalidRequest, NotFound, StartupFailed, Unsupported
from cellfork.model.ids import new_sandbox_id
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes.base import Runtime


class Engine:
    """The sandboxes of one process.  All methods belong to one event loop.

    ``runtimes`` maps the names of isolations to runtimes; the engine closes them with itself.
    """

    def __init__(self, runtimes: Mapping[str, Runtime], settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._runtimes = runtimes
        self._used: dict[str, Runtime] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        self._background = Background()
        self._closed = False

    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Start a sandbox.

        Raises :class:`InvalidRequest`, :class:`Unsupported` (network), :class:`IsolationUnavailable`,
        :class:`StartupFailed`.
        """
        spec = with_languages(spec or SandboxSpec())
        runtime = self._runtime(spec)
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
        id = new_sandbox_id(self.settings.node_token)
        sandbox = Sandbox(id, spec, guest, self.settings, self._on_end, self._background)
        sandbox.check_running()
        self._sandboxes[id] = sandbox
        return sandbox

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

    async def aclose(self) -> None:
        """Kill every sandbox, close every runtime that was used.  Idempotent."""
        self._closed = True
        kills = [sandbox.kill("owner", "the engine was closed") for sandbox in self.list()]
        await asyncio.gather(*kills, return_exceptions=True)
        await self._background.join()
        closing = [runtime.aclose() for runtime in self._used.values()]
        self._used.clear()
        await asyncio.gather(*closing, return_exceptions=True)

    def _runtime(self, spec: SandboxSpec) -> Runtime:
        if self._closed:
            raise Conflict("the engine is closed")
        check_envs(spec.envs, self.settings.envs)
        check_seconds(spec.timeout)
        check_tenant(spec.tenant)
        if spec.isolation not in self._runtimes:
            known = ", ".join(sorted(self._runtimes))
            raise InvalidRequest(f"unknown isolation {str(spec.isolation)[:80]!r}; known: {known}")
        runtime = self._used[spec.isolation] = self._runtimes[spec.isolation]
        return runtime

    def _on_end(self, sandbox: Sandbox) -> None:
        self._sandboxes.pop(sandbox.id, None)
