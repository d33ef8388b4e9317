"""A sandbox of a server, in the shape of the engine's own."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cellfork.client.http.contexts import HttpContexts
from cellfork.client.http.execs import HttpCommands, HttpExecs
from cellfork.client.http.executions import HttpExecution
from cellfork.client.http.files import HttpFiles, HttpWatches
from cellfork.client.http.wire import Wire, quoted
from cellfork.client.values import SandboxInfo, utc
from cellfork.dialects.e2b.extension.codec import read_policy
from cellfork.engine.checks import check_seconds
from cellfork.model import events
from cellfork.model.errors import (
    Conflict,
    NotFound,
    ProtocolViolation,
    SandboxGone,
    SandboxPaused,
    UnavailableError,
)
from cellfork.model.limits import Limits
from cellfork.model.network import NetworkPolicy
from cellfork.model.specs import ExecuteRequest

CODE_PORT = "49999"
RESUME_SECONDS = 60
"""Life of a sandbox between its resumption and the moment at which it is told that it has no end."""
Listener = Callable[[events.Event], object]


class HttpSandbox:
    """What the client knows of a sandbox of a server, and how it asks for more.

    ``contexts``, ``execs``, ``commands``, ``files`` and ``watches`` have the methods of the engine's, as coroutines.
    """

    def __init__(self, wire: Wire, known: Mapping[str, Any]) -> None:
        self.wire = wire
        self.known = dict(known)
        try:
            self.id: str = known["sandbox_id"]
            self.isolation: str = known["isolation"]
            self.policy: NetworkPolicy = read_policy(known["network"])
            self.info()
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolViolation(f"the server told of a sandbox what cannot be: {error!r}") from None
        self._plane = {"e2b-sandbox-id": self.id, "e2b-sandbox-port": CODE_PORT}
        for header, name in (
            ("x-access-token", "envd_access_token"),
            ("e2b-traffic-access-token", "traffic_access_token"),
        ):
            if known.get(name):
                self._plane[header] = known[name]
        self._gone: SandboxGone | None = None
        self._told: asyncio.Task[Any] | None = None
        self._turns: dict[str, asyncio.Lock] = {}
        """One for each context: what was asked for first gets to the server first, whichever connection carries it."""
        self.contexts = HttpContexts(self)
        self.execs = HttpExecs(self)
        self.commands = HttpCommands(self.execs)
        self.files = HttpFiles(self)
        self.watches = HttpWatches(self)

    @property
    def state(self) -> str:
        """The state that the client knows of."""
        state: str = self.known["state"]
        return state

    # ------------------------------------------------------------------------------------------- asking

    async def do(self, operation: str, **body: Any) -> Any:
        """Carry out an operation.  Raises what it raises on the server, :class:`SandboxGone` after the end."""
        return await self.ask("POST", operation, body)

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Ask for a path below the sandbox's own, after what was told before."""
        if self._told is not None and not self._told.done():
            await asyncio.wait([self._told])
        return await self._ask(method, path, body, **options)

    async def _ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        self.check_running()
        try:
            return await self.wire.call(method, f"{self._path}/{path}", body, **options)
        except SandboxGone as error:
            self.note_gone(error)
            raise

    async def open(self, path: str, query: Mapping[str, str]) -> Any:
        """Return the answer to a request for a path below the sandbox's own, as it comes."""
        self.check_running()
        try:
            return await self.wire.stream("GET", f"{self._path}/{path}", query=query)
        except SandboxGone as error:
            self.note_gone(error)
            raise

    def tell(self, operation: str, **body: Any) -> None:
        """Carry out an operation whose outcome does not matter, after those that were told before."""
        before = self._told

        async def go() -> None:
            if before is not None:
                await asyncio.wait([before])
            await self._ask("POST", operation, body)

        if self._gone is None:
            self._told = self.wire.spawn(go())

    @property
    def _path(self) -> str:
        return f"/cellfork/sandboxes/{quoted(self.id)}"

    # --------------------------------------------------------------------------------------------- life

    def check_running(self) -> None:
        """Raise :class:`SandboxGone` after the end, as far as it is known."""
        if self._gone is not None:
            raise SandboxGone(str(self._gone), self._gone.reason)

    def note_gone(self, error: SandboxGone) -> None:
        """Remember that the sandbox has ended, and why."""
        self._gone = self._gone or error
        self.known["state"] = "ended"

    async def refresh(self) -> SandboxInfo:
        """Ask what is known of the sandbox; after its end: what was known last."""
        if self._gone is None:
            try:
                told = await self.wire.call("GET", self._path)
                self.known.update(told)
                if told["state"] == "ended":
                    self.note_gone(SandboxGone(told["end_message"], told["end_reason"] or "lost"))
            except SandboxGone as error:
                self.note_gone(error)
        return self.info()

    async def kill(self) -> bool:
        """End the sandbox; return whether there was anything to end."""
        if self._gone is not None:
            return False
        try:
            await self.wire.call("DELETE", f"/sandboxes/{quoted(self.id)}")
        except NotFound:
            await self.refresh()
            return False
        self.note_gone(SandboxGone("the sandbox was killed", "request"))
        return True

    async def pause(self, memory: bool) -> bool:
        """Pause the sandbox; ``False`` where it is paused already."""
        self.check_running()
        try:
            await self.wire.call("POST", f"/sandboxes/{quoted(self.id)}/pause", {"memory": memory})
        except Conflict:
            if (await self.refresh()).state != "paused":
                raise
            return False
        except NotFound:
            await self.refresh()
            self.check_running()
            raise
        await self.refresh()
        return True

    async def resume(self, seconds: float | None) -> None:
        """Let the paused sandbox go on, to end ``seconds`` from now (``None``: when it is killed)."""
        self.check_running()
        seconds = check_seconds(seconds)
        body = {"timeout": RESUME_SECONDS if seconds is None else max(1, round(seconds))}
        try:
            await self.wire.call("POST", f"/sandboxes/{quoted(self.id)}/resume", body)
        except NotFound:
            await self.refresh()
            self.check_running()
            raise
        if seconds is None:
            await self.set_timeout(None)
        await self.refresh()

    async def set_timeout(self, seconds: float | None) -> None:
        """Let the sandbox end ``seconds`` from now; ``None``: when it is killed, 0: now."""
        if seconds == 0 and not isinstance(seconds, bool):
            await self._end_now()
            return
        self.known["end_at"] = (await self.do("timeout", seconds=check_seconds(seconds)))["end_at"]

    async def _end_now(self) -> None:
        """Let the time be over, by E2B's path; the server remembers why a sandbox ended that was asked about before."""
        await self.refresh()
        self.check_running()
        try:
            await self.wire.call("POST", f"/sandboxes/{quoted(self.id)}/timeout", {"timeout": 0})
        except NotFound:
            await self.refresh()
            self.check_running()
            raise
        await self.refresh()

    async def languages(self) -> list[str]:
        """Return the languages that have a kernel in the sandbox's template."""
        return (await self.do("languages"))["languages"]  # type: ignore[no-any-return]

    # --------------------------------------------------------------------------------------------- code

    async def start(
        self,
        context: str | None,
        request: ExecuteRequest,
        *,
        language: str | None = None,
        on_event: Listener | None = None,
    ) -> HttpExecution:
        """Run code; return its handle when the server has taken it.  See :meth:`cellfork.engine.sandbox.Sandbox.start`."""
        self.check_running()
        async with self._turns.setdefault(context or language or "", asyncio.Lock()):
            return await self._start(context, request, language, on_event)

    async def _start(
        self, context: str | None, request: ExecuteRequest, language: str | None, on_event: Listener | None
    ) -> HttpExecution:
        options = {"timeout": check_seconds(request.timeout), "input": request.allow_input}
        body = {
            "code": request.code,
            "context_id": context,
            "language": language,
            "env_vars": dict(request.envs),
            "cellfork": options,
        }
        try:
            stream = await self.wire.stream("POST", "/execute", body, headers=self._plane)
        except UnavailableError:
            await self.refresh()  # the data plane knows no reasons
            self.check_running()
            if self.state == "paused":
                raise SandboxPaused(f"the sandbox {self.id} is paused; resume it first") from None
            raise
        return await HttpExecution.begin(self, stream, on_event)

    # --------------------------------------------------------------------------------------------- info

    def info(self) -> SandboxInfo:
        """Return what is known of the sandbox."""
        known = self.known
        return SandboxInfo(
            sandbox_id=known["sandbox_id"],
            template=known["template"],
            metadata=dict(known["metadata"]),
            started_at=utc(known["started_at"]),
            end_at=None if known["end_at"] is None else utc(known["end_at"]),
            state=known["state"],
            isolation=known["isolation"],
            limits=Limits.from_dict(known["limits"]),
            features=dict(known["features"]),
            tenant=known["tenant"],
            posture=known["posture"],
        )
