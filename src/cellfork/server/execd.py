"""One sandbox as a plain execd on a port of its own: the second composition root.

The sandbox is made at the start, lives as long as the server, and another one takes its place where it has ended.
"""

import asyncio
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cellfork.dialects.asgi import ASGIApp, Receive, Scope, Send, header, name_route, send_json
from cellfork.dialects.base import Admission, RequestLimits, Services, policy_for
from cellfork.dialects.opensandbox.execd import sockets
from cellfork.dialects.opensandbox.execd.errors import UNAUTHORIZED
from cellfork.dialects.opensandbox.execd.routes import DIALECT, ExecdApp
from cellfork.engine.engine import Engine
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings as EngineSettings
from cellfork.model.errors import CellforkError, InvalidRequest
from cellfork.model.specs import SandboxSpec
from cellfork.server.edge import Edge, bounds_of
from cellfork.server.hosts import hosts_of
from cellfork.server.keys import KeyRing
from cellfork.server.logs import make_logger
from cellfork.server.measured import MeasuredEngine
from cellfork.server.metrics import Metrics
from cellfork.server.settings import Settings
from cellfork.server.templates import DEFAULT, TemplateTable

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

PORT: Final = 44772
HEADER: Final = b"x-execd-access-token"


class ExecdServer:
    """The ASGI app of one sandbox's execd.

    ``token`` is what every request has to show; ``None`` is allowed on loopback only, and then no page of a browser is
    answered.  ``template`` names what the sandbox starts from.  An ``engine`` that is given stays its owner's.
    """

    def __init__(
        self,
        settings: Settings,
        token: str | None,
        template: str = DEFAULT,
        engine: Engine | None = None,
        logger: "FilteringBoundLogger | None" = None,
    ) -> None:
        """Raises :class:`InvalidRequest` for a template that is not there, and where anybody could come in."""
        if token is None and not settings.on_loopback:
            raise InvalidRequest(
                "without an access token execd is only served on a loopback address such as 127.0.0.1"
            )
        if token is not None and not (token and token.isascii() and token.isprintable()):
            raise InvalidRequest("an access token is one or more printable ASCII characters")
        self.settings = settings
        self.logger = logger or make_logger(settings.log_level, settings.log_format)
        self._spec = _spec_of(settings, template)
        self._token = None if token is None else token.encode()
        self._given = engine
        self._engine: Engine | None = None
        self._edge: ASGIApp | None = None
        self._sandbox: Sandbox | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope."""
        if self._edge is None:
            raise RuntimeError("the server was not started")
        await self._edge(scope, receive, send)

    async def start(self) -> None:
        """Make the sandbox and what serves it.  Raises what :meth:`Engine.create` raises."""
        metrics = Metrics()
        kept = EngineSettings(node_token=self.settings.node_token, on_execution=metrics.executed)
        self._engine = self._given or MeasuredEngine(LazyRuntimes(), kept, None, metrics)
        execd = ExecdApp(_services(self.settings, self._engine))
        self._edge = Edge(
            self._guarded(execd),
            hosts=hosts_of(self.settings),
            bounds=bounds_of(self.settings),
            metrics=metrics,
            logger=self.logger,
            settled=self._engine.settled,
            owned=lambda _scope: True,
            headers=[(b"x-cellfork-isolation", b"none")] if self.settings.isolation == "none" else [],
        )
        await self.sandbox()

    async def sandbox(self) -> Sandbox:
        """Return the sandbox, made now where there is none.  Raises what :meth:`Engine.create` raises."""
        async with self._making:
            if self._engine is None:
                raise RuntimeError("the server was not started")
            if self._sandbox is None or self._sandbox.state == "ended":
                if self._sandbox is not None:
                    self.logger.warning(
                        "the sandbox has ended; this is another one", was=self._sandbox.end_message
                    )
                self._sandbox = await self._engine.create(self._spec)
            return self._sandbox

    def extra_listeners(self) -> Sequence[tuple[str, int, ASGIApp]]:
        """Return no further addresses."""
        return ()

    async def aclose(self) -> None:
        """End the sandbox and give everything back.  Idempotent."""
        self._edge = None
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.kill("owner", "the server has ended")
        engine, self._engine = self._engine, None
        if engine is not None and self._given is None:
            await engine.aclose()

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        """Return an app that answers whoever may come in, with the sandbox in the scope."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if not self._admits(scope):
                name_route(scope, DIALECT, "refused")
                await _refuse(scope, receive, send, 401, {"error": UNAUTHORIZED})
                return
            try:
                scope["state"]["sandbox"] = await self.sandbox()
            except CellforkError as error:
                name_route(scope, DIALECT, "refused")
                body = {"code": "RUNTIME_ERROR", "message": f"there is no sandbox: {error}"}
                await _refuse(scope, receive, send, 503, body)
                return
            await app(scope, receive, send)

        return guarded

    def _admits(self, scope: Scope) -> bool:
        """Tell whether a request may come in.  Without a token only programs may: a page in a browser says where it is from."""
        if self._token is None:
            return header(scope, b"origin") is None
        return hmac.compare_digest((header(scope, HEADER) or "").encode("latin-1"), self._token)


def _spec_of(settings: Settings, name: str) -> SandboxSpec:
    template = TemplateTable(settings.templates, settings.limits).find(name)
    if template is None:
        raise InvalidRequest(f"there is no template {name[:80]!r}")
    return SandboxSpec(
        template=template,
        limits=template.limits,
        network=policy_for(settings.internet),
        timeout=None,
        isolation=settings.isolation,
    )


def _services(settings: Settings, engine: Engine) -> Services:
    limits = RequestLimits(body=settings.body_limit, upload=settings.upload_limit)
    templates = TemplateTable(settings.templates, settings.limits)
    return Services(engine, KeyRing(()), templates, Admission(engine), limits, isolation=settings.isolation)


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, body: dict[str, str]) -> None:
    if scope["type"] == "websocket":
        await receive()
        await sockets.refuse(scope, send, status, body)
    else:
        await send_json(send, status, body)
