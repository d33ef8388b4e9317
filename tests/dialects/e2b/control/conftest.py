"""The control plane over an engine with a fake runtime: no socket, no process, time that stands still.

A test that is marked ``route("POST /sandboxes")`` fails where it never got a success, or a refusal with a reason, from that route.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from cellfork.dialects.base import Admission, RequestLimits, Services
from cellfork.dialects.e2b.routes import ControlApp
from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.testing.fakes import FakeClock, FakeGuest, FakeRuntime

KEYS = {"key-of-one": "one", "key-of-two": "two"}


class FakeKeys:
    """Two keys, each of a tenant of its own."""

    def owner(self, presented: str | None) -> str | None:
        return KEYS.get(presented or "")


class FakeTemplates:
    """Two templates; the default one is what clients of E2B ask for."""

    def __init__(self) -> None:
        self.known = {
            "default": Template(),
            "Large.One": Template("Large.One", limits=Limits(memory="2G", cpu=2.5)),
        }
        self.other_names = {"default": ["code-interpreter-v1", "base"]}

    def find(self, name: str) -> Template | None:
        real = next((known for known, others in self.other_names.items() if name in others), name)
        return self.known.get(real)

    def names(self) -> list[str]:
        return list(self.known)

    def aliases(self, name: str) -> list[str]:
        return self.other_names.get(name, [])


@dataclass
class Stage:
    """A control plane, its engine, its clock, and a client that sends the key of ``one``."""

    runtime: FakeRuntime
    clock: FakeClock
    engine: Engine
    services: Services
    client: httpx2.AsyncClient = field(init=False)
    called: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.client = self.client_of("key-of-one")

    def client_of(self, key: str | None, **services: Any) -> httpx2.AsyncClient:
        """Return a client with a key, of a control plane whose ``services`` differ."""
        fields = {name: getattr(self.services, name) for name in self.services.__dataclass_fields__}
        control = ControlApp(Services(**{**fields, **services}))

        async def app(scope, receive, send) -> None:
            try:
                await control(scope, receive, send)
            finally:
                if "route" in scope.get("state", {}):
                    self.called.add(f"{scope['method']} {scope['state']['route']}")

        headers = {} if key is None else {"X-API-KEY": key}
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://test", headers=headers)

    async def create(self, client: httpx2.AsyncClient | None = None, **fields: Any) -> dict[str, Any]:
        """Create a sandbox; return what its creator is told."""
        body = {"templateID": "base", **fields}
        answer = await (client or self.client).post("/v2/sandboxes", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def ids(self, query: str = "") -> list[str]:
        """Return the ids of a list."""
        answer = await self.client.get(f"/v2/sandboxes{query}")
        assert answer.status_code == 200, answer.text
        return [entry["sandboxID"] for entry in answer.json()]

    def sandbox(self, told: Mapping[str, Any]) -> Sandbox:
        """Return the engine's sandbox of an answer."""
        return self.engine.get(told["sandboxID"])

    @property
    def guest(self) -> FakeGuest:
        return self.runtime.guests[-1]


@pytest.fixture
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    clock, runtime = FakeClock(), FakeRuntime()
    engine = Engine({"namespaces": runtime}, Settings(clock=clock))
    services = Services(engine, FakeKeys(), FakeTemplates(), Admission(engine), RequestLimits())
    stage = Stage(runtime, clock, engine, services)
    yield stage
    await stage.client.aclose()
    await engine.aclose()
    promised = {mark.args[0] for mark in request.node.iter_markers("route")}
    assert promised <= stage.called, f"never called: {promised - stage.called}"


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    """Return the status and message of a refusal, whose body is of the dialect's one form."""
    body = answer.json()
    assert set(body) <= {"code", "message", "error_code"}
    assert body["code"] == answer.status_code >= 400
    assert answer.headers["content-type"] == "application/json"
    return body["code"], body["message"]
