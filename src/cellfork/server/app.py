"""The composition root: settings in, one ASGI app out.  Everything that a server is made of is made here."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from cellfork.dialects.asgi import ASGIApp, Receive, Scope, Send, name_route, send_json, state
from cellfork.dialects.base import Admission, Dialect, RequestLimits, Services
from cellfork.dialects.e2b.debug import Debug
from cellfork.dialects.e2b.dialect import E2B
from cellfork.engine.engine import Engine
from cellfork.engine.records import SqliteRecords
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.engine.settings import Settings as EngineSettings
from cellfork.model.errors import CellforkError
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes.state import StateDirectory
from cellfork.server.edge import Edge, bounds_of
from cellfork.server.hosts import LOCAL, Hosts, hosts_of
from cellfork.server.insides import speaks_inside
from cellfork.server.keys import Opened, open_keys
from cellfork.server.logs import make_logger
from cellfork.server.measured import MeasuredEngine
from cellfork.server.metrics import Metrics
from cellfork.server.origins import Origins
from cellfork.server.settings import Settings
from cellfork.server.site import Site
from cellfork.server.templates import DEFAULT, TemplateTable

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

DIALECTS: Mapping[str, str] = MappingProxyType(
    {
        "e2b": "cellfork.dialects.e2b.dialect:E2B",
        "together": "cellfork.dialects.together.dialect:Together",
        "opensandbox": "cellfork.dialects.opensandbox.dialect:OpenSandbox",
    }
)
"""Name of a dialect (and its prefix) → ``module:Class``."""
ARCHIVES = "archives"
"""Where snapshots and the files of paused sandboxes are, in the state directory."""
BARE = "e2b"
"""The dialect that owns the paths without a prefix."""
OTHERS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {"opensandbox": re.compile(r"/v1(/.*)?|/sandboxes/[^/]*/proxy/[0-9]+(/.*)?", re.DOTALL)}
)
"""Paths without a prefix that another dialect owns: its clients know no prefix either."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a running server is made of."""

    services: Services
    metrics: Metrics
    dialects: Sequence[Dialect]
    site: Site
    edge: Edge


class App:
    """The ASGI app of a server (see :func:`create_app`).

    The engine is made, and belongs to, the event loop in which the lifespan begins.  ``keys`` tells the key that
    was made at the first start.
    """

    def __init__(self, settings: Settings, engine: Engine | None, logger: "FilteringBoundLogger") -> None:
        self.settings = settings
        self.logger = logger
        self.keys: Opened = open_keys(settings)
        self.parts: Parts | None = None
        self._given = engine
        self._held: Held | None = None
        self._warming: asyncio.Task[None] | None = None
        self._is_warm = engine is not None or not settings.warm

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if self.parts is None:
            raise RuntimeError("the lifespan has not begun")
        await self.parts.edge(scope, receive, send)

    @property
    def ready(self) -> bool:
        """Whether the first sandbox would start fast."""
        return self.parts is not None and self._is_warm

    async def start(self) -> None:
        """Make everything, take over the sandboxes of the server before this one, begin to serve."""
        metrics = Metrics()
        self._held = Held(self._given) if self._given else await _new_engine(self.settings, metrics)
        engine = self._held.engine
        if self._given is None:
            await self._adopt(engine)
        services = _services(self, engine, metrics)
        metrics.watch(engine)
        dialects = [_load(target)(services) for target in DIALECTS.values()]
        site = Site(dialects, services.keys, metrics, lambda: self.ready)
        edge = _edge(self, site, dialects, services.engine, metrics)
        for dialect in dialects:
            await dialect.start()
        self.parts = Parts(services, metrics, dialects, site, edge)
        if not self._is_warm:
            self._warming = asyncio.create_task(self._warm(engine))

    def extra_listeners(self) -> list[tuple[str, int, ASGIApp]]:
        """Return further addresses to listen on, and what answers there."""
        parts, settings = self.parts, self.settings
        if parts is None or not settings.e2b_debug:
            return []
        e2b = next(dialect for dialect in parts.dialects if isinstance(dialect, E2B))
        found = Debug(parts.services, e2b).listeners()
        return [(host, port, _local_edge(self, app, parts)) for host, port, app in found]

    async def aclose(self) -> None:
        """Give everything back.  Idempotent."""
        parts, self.parts = self.parts, None
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        for dialect in parts.dialects if parts is not None else ():
            await dialect.aclose()
        held, self._held = self._held, None
        if held is not None and self._given is None:
            await held.aclose(kill=self.settings.kill_on_exit)

    async def _adopt(self, engine: Engine) -> None:
        """Take over what the server before this one left, and tell what came of it."""
        outcome = await engine.adopt()
        if outcome.adopted or outcome.ended:
            self.logger.info("adopted", sandboxes=len(outcome.adopted), ended=len(outcome.ended))
        for id, reason in outcome.ended.items():
            self.logger.warning("a sandbox could not be adopted", sandbox=id, reason=reason)

    async def _warm(self, engine: Engine) -> None:
        """Start a sandbox that nobody asked for: what it was forked from is there for the next one."""
        settings = self.settings
        template = TemplateTable(settings.templates, settings.limits).find(DEFAULT)
        try:
            if template is not None:
                spec = SandboxSpec(template, template.limits, isolation=settings.isolation, timeout=60)
                await (await engine.create(spec)).kill()
            self._is_warm = True
        except CellforkError as error:
            self.logger.warning("no sandbox can be started", error=str(error))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except (CellforkError, OSError) as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})


def create_app(
    settings: Settings, engine: Engine | None = None, logger: "FilteringBoundLogger | None" = None
) -> App:
    """Return the app of a server with these settings.

    An ``engine`` that is given stays its owner's: it is neither warmed nor closed.  Raises
    :class:`~cellfork.model.errors.InvalidRequest` where the keys cannot be read.
    """
    return App(settings, engine, logger or make_logger(settings.log_level, settings.log_format))


@dataclass(frozen=True, slots=True)
class Held:
    """The engine of a server, and the state directory that it holds (``None``: nothing outlives the server)."""

    engine: Engine
    state: StateDirectory | None = None

    async def aclose(self, *, kill: bool) -> None:
        """End the engine; its sandboxes go on for another server on the same directory, unless they are to be killed."""
        if self.state is None or kill:
            await self.engine.aclose()
        else:
            await self.engine.leave()
        if self.state is not None:
            self.state.close()


async def _new_engine(settings: Settings, metrics: Metrics) -> Held:
    """Make the engine.  Raises :class:`Conflict` where another server has the state directory."""
    if settings.state is None:
        kept = EngineSettings(node_token=settings.node_token, on_execution=metrics.executed)
        return Held(MeasuredEngine(LazyRuntimes(), kept, None, metrics))
    state = await asyncio.to_thread(StateDirectory, settings.state)
    kept = EngineSettings(
        node_token=settings.node_token, archives=str(state.path / ARCHIVES), on_execution=metrics.executed
    )
    records = SqliteRecords(state.records)
    return Held(MeasuredEngine(LazyRuntimes(state=state), kept, records, metrics), state)


def _services(app: App, engine: Engine, metrics: Metrics) -> Services:
    settings = app.settings
    return Services(
        engine=engine,
        keys=app.keys.ring,
        templates=TemplateTable(settings.templates, settings.limits),
        admission=Admission(engine, settings.max_sandboxes, settings.max_sandboxes_per_key),
        limits=RequestLimits(
            settings.body_limit, settings.upload_limit, settings.default_timeout, settings.max_timeout
        ),
        domain=settings.domain,
        internet=settings.internet,
        isolation=settings.isolation,
        images=dict(settings.images),
        host_volumes=tuple(map(str, settings.host_volumes)),
        volumes=None if settings.volumes is None else str(settings.volumes),
        speaks=speaks_inside(settings, metrics, app.logger, engine.settled),
    )


def _load(target: str) -> Callable[[Services], Dialect]:
    module, _, name = target.partition(":")
    found: Callable[[Services], Dialect] = getattr(import_module(module), name)
    return found


def _edge(app: App, site: Site, dialects: Sequence[Dialect], engine: Engine, metrics: Metrics) -> Edge:
    settings = app.settings
    return Edge(
        Switch(site, dialects),
        hosts=hosts_of(settings),
        origins=Origins(settings.cors_origins),
        bounds=bounds_of(settings),
        metrics=metrics,
        logger=app.logger,
        settled=engine.settled,
        owned=lambda scope: any(dialect.owns(scope) for dialect in dialects),
        headers=[(b"x-cellfork-isolation", b"none")] if settings.isolation == "none" else [],
    )


def _local_edge(app: App, answers: ASGIApp, parts: Parts) -> Edge:
    """Return the edge of a listener that only this machine's programs are to use."""
    settings = app.settings
    return Edge(
        answers,
        hosts=Hosts(LOCAL, loopback=True),
        origins=Origins(()),
        bounds=bounds_of(settings),
        metrics=parts.metrics,
        logger=app.logger,
        settled=parts.services.engine.settled,
        owned=lambda _scope: True,
        headers=[(b"x-cellfork-isolation", b"none")] if settings.isolation == "none" else [],
    )


class Switch:
    """Finds who answers: a dialect by headers or host name, one by prefix, the server itself, the bare dialect."""

    def __init__(self, site: Site, dialects: Sequence[Dialect]) -> None:
        self._site = site
        self._dialects = [(dialect, dialect.app()) for dialect in dialects]
        self._prefixes = {f"/{dialect.name}": app for dialect, app in self._dialects}
        self._bare = next((app for dialect, app in self._dialects if dialect.name == BARE), _nothing)
        self._others = [
            (OTHERS[dialect.name], app) for dialect, app in self._dialects if dialect.name in OTHERS
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        await self._answerer(scope)(scope, receive, send)

    def _answerer(self, scope: Scope) -> ASGIApp:
        for dialect, app in self._dialects:
            if dialect.owns(scope):
                return app
        path: str = scope["path"]
        if scope["type"] == "http" and self._site.has(path):
            return self._site
        second = path.find("/", 1)
        prefix = path[:second] if second > 0 else path
        if (prefixed := self._prefixes.get(prefix)) is not None:
            _strip(scope, prefix)
            return prefixed
        return next((app for paths, app in self._others if paths.fullmatch(path)), self._bare)


def _strip(scope: Scope, prefix: str) -> None:
    """Let a dialect see the paths that it has without its prefix."""
    scope["path"] = scope["path"][len(prefix) :] or "/"
    raw = scope.get("raw_path") or b""
    if raw.startswith(prefix.encode()):
        scope["raw_path"] = raw[len(prefix) :] or b"/"
    state(scope)["prefix"] = prefix


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    name_route(scope, "server", "unknown")
    await send_json(send, 404, {"code": 404, "message": "nothing is served here"})
