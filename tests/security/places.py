"""One server with every dialect, sandboxes of each for two tenants, and everything that is served, from the tables themselves."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from starlette.routing import Route

from cellfork.dialects.base import Services
from cellfork.dialects.e2b.extension.operations import Operations
from cellfork.dialects.e2b.routes import SERVED
from cellfork.dialects.e2b.unserved import REASONS
from cellfork.dialects.opensandbox.execd.routes import ExecdApp
from cellfork.dialects.opensandbox.lifecycle import Lifecycle
from cellfork.dialects.together import agent, management
from cellfork.dialects.together.snapshots import DEFAULT_ID
from cellfork.engine.engine import Engine
from tests.server.conftest import KEY, OTHER_KEY, Live, Reply, Wire, connected, live

KEY_HEADERS: Mapping[str, str] = {
    "e2b": "x-api-key",
    "together": "authorization",
    "opensandbox": "open-sandbox-api-key",
}
"""Dialect → the header in which it takes keys."""
TOKEN_HEADERS = (
    "x-access-token",
    "e2b-traffic-access-token",
    "opensandbox-secure-access",
    "opensandbox-egress-auth",
    "x-execd-access-token",
)
READERS = frozenset({"GET", "HEAD"})
ABSENT: Mapping[str, str] = {
    "e2b": "i0000" + 26 * "z",
    "together": "00000000-0000-4000-8000-000000000000",
    "opensandbox": "i0000" + 26 * "z",
}
"""Ids that no sandbox has."""


class Operation(NamedTuple):
    """Something that is served: its dialect, method, and path with ``{id}`` for a sandbox and other names in braces."""

    dialect: str
    method: str
    path: str
    needs: str = "key"
    """``key``, or the least token: ``admin``, ``readonly``, ``sandbox``, ``egress``."""

    def target(self, id: str) -> str:
        """Return a path of a sandbox that can be asked for."""
        return self.path.replace("{id}", id).replace("{", "").replace("}", "").replace(":path", "")


@dataclass
class Made:
    """A sandbox: its dialect, the key of its tenant, its id, and every secret that its creator was told."""

    dialect: str
    key: str
    id: str
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Place:
    """A server, a connection to it, and its sandboxes."""

    server: Live
    wire: Wire
    stack: AsyncExitStack
    made: list[Made] = field(default_factory=list)

    async def create(self, dialect: str, key: str = KEY, /, **fields: Any) -> Made:
        """Create a sandbox that asks for every token that its dialect has."""
        told = await self.told_of(await creation(self.wire, dialect, key, **fields), dialect, key)
        self.made.append(told)
        return told

    async def told_of(self, reply: Reply, dialect: str, key: str) -> Made:
        """Return what a create's answer says, and the tokens that are told later."""
        assert 200 <= reply.status < 300, reply
        told = reply.json
        if dialect == "e2b":
            secrets = {"sandbox": told["envdAccessToken"], "traffic": told["trafficAccessToken"]}
            return Made(dialect, key, told["sandboxID"], secrets)
        if dialect == "together":
            tokens = {"admin": told["agent"]["token"], "readonly": told["agent"]["readonly_token"]}
            return Made(dialect, key, told["id"], tokens)
        headers: dict[str, str] = {}
        for port in (44772, 18080):
            path = f"/v1/sandboxes/{told['id']}/endpoints/{port}"
            headers |= (await self.wire.ask("GET", path, **keyed(dialect, key))).json["headers"]
        named = {name.lower(): value for name, value in headers.items()}
        secrets = {"sandbox": named["opensandbox-secure-access"], "egress": named["opensandbox-egress-auth"]}
        return Made(dialect, key, told["id"], secrets)

    async def again(self) -> Wire:
        """Return another connection."""
        return await self.stack.enter_async_context(connected(self.server.port))

    @property
    def services(self) -> Services:
        """What the dialects were made with."""
        assert self.server.app.parts is not None
        return self.server.app.parts.services

    def operations(self) -> list[Operation]:
        """Return everything that is served, of every dialect."""
        return [*of_e2b(self.services), *of_together(), *of_opensandbox(self.services)]


@asynccontextmanager
async def place(directory: Path, engine: Engine | None = None, **settings: Any) -> AsyncIterator[Place]:
    """Serve; by default over sandboxes that are fake."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(live(directory, engine, **settings))
        yield Place(server, await stack.enter_async_context(connected(server.port)), stack)


def keyed(dialect: str, key: str) -> dict[str, str]:
    """Return the header with which a dialect is shown a key."""
    value = f"Bearer {key}" if dialect == "together" else key
    return {KEY_HEADERS[dialect].replace("-", "_"): value}


async def creation(wire: Wire, dialect: str, key: str = KEY, /, **fields: Any) -> Reply:
    """Ask a dialect for a sandbox."""
    path, body = wanted(dialect)
    return await wire.ask(
        "POST",
        path,
        json.dumps({**body, **fields}).encode(),
        content_type="application/json",
        **keyed(dialect, key),
    )


def wanted(dialect: str) -> tuple[str, dict[str, Any]]:
    """Return where a dialect creates sandboxes, and what it is asked."""
    if dialect == "e2b":
        return "/v2/sandboxes", {"templateID": "base", "network": {"allowPublicTraffic": False}}
    if dialect == "together":
        return "/together/v1/sandboxes", {"snapshot_id": DEFAULT_ID, "memory_bytes": 2**28}
    return "/v1/sandboxes", {"templateId": "default", "secureAccess": True}


def of_e2b(services: Services) -> Iterator[Operation]:
    """Yield the control plane, the extension, and the planes of a sandbox."""
    for method, path in {**SERVED, **REASONS}:
        yield Operation("e2b", method, path.replace("{sandboxID}", "{id}"))
    yield Operation("e2b", "GET", "/cellfork/sandboxes")
    yield Operation("e2b", "GET", "/cellfork/sandboxes/{id}")
    yield Operation("e2b", "GET", "/cellfork/sandboxes/{id}/files?path=x")
    yield Operation("e2b", "PUT", "/cellfork/sandboxes/{id}/files?path=x")
    yield Operation("e2b", "PUT", "/cellfork/sandboxes/{id}/uploads/1")
    for name in Operations(services).by_name:
        yield Operation("e2b", "POST", f"/cellfork/sandboxes/{{id}}/{name}")


def of_together() -> Iterator[Operation]:
    """Yield the management API, and the agent with what each route needs."""
    for method, path, *_ in management.ROUTES:
        yield Operation("together", method, "/together" + path)
    for method, path, _name, needs in agent.ROUTES:
        yield Operation("together", method, "/together/agents/{id}" + path, needs)


def of_opensandbox(services: Services) -> Iterator[Operation]:
    """Yield the lifecycle API, execd, and the network policy on its port."""
    for route in Lifecycle(services).routes():
        assert isinstance(route, Route)
        for method in route.methods or ():
            prefix = "" if route.path.startswith("/v1/") else "/opensandbox"
            yield Operation("opensandbox", method, prefix + route.path)
    execd = "/sandboxes/{id}/proxy/44772"
    for method, path in routes_of_execd(services):
        yield Operation("opensandbox", method, execd + path.replace("{id}", "x"), "sandbox")
    yield Operation("opensandbox", "GET", execd + "/proxy/8000/", "sandbox")
    yield Operation("opensandbox", "GET", "/sandboxes/{id}/proxy/8000/", "sandbox")
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        yield Operation("opensandbox", method, "/sandboxes/{id}/proxy/18080/policy", "egress")
    yield Operation("opensandbox", "GET", "/sandboxes/{id}/proxy/18080/healthz", "egress")


def routes_of_execd(services: Services) -> list[tuple[str, str]]:
    """Return method and path of everything that execd serves, but for its WebSocket."""
    table = ExecdApp(services)._all
    exact = [(method, path) for path, found in table._exact.items() for method in found]
    return exact + [
        (route.method, route.path) for found in table._patterns.values() for route in found.values()
    ]


def sockets(made: Made) -> list[str]:
    """Return the paths of a sandbox at which WebSockets are served."""
    if made.dialect == "together":
        return [f"/together/agents/{made.id}/ws/v1/execs/x"]
    if made.dialect == "opensandbox":
        return [f"/sandboxes/{made.id}/proxy/44772/pty/x/ws", f"/sandboxes/{made.id}/proxy/8000/"]
    return []


__all__ = ["ABSENT", "KEY", "OTHER_KEY", "Made", "Operation", "Place", "creation", "keyed", "place"]
