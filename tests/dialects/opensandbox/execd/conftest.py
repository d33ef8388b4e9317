"""execd over a real sandbox, called as a server calls it: raw ASGI, no socket."""

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from cellfork.dialects.base import Admission, RequestLimits, Services
from cellfork.dialects.opensandbox.execd.routes import ExecdApp
from cellfork.engine.engine import Engine
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.engine.sandbox import Sandbox
from cellfork.model.limits import Limits, MiB
from cellfork.model.specs import SandboxSpec, Template
from tests.dialects.e2b.envd.conftest import Answer, Exchange

UPLOAD = 64 * MiB
Event = dict[str, Any]


class Nobody:
    """Keys and templates for an app that needs neither."""


@dataclass
class Client:
    """Calls execd of one sandbox."""

    app: ExecdApp
    sandbox: Sandbox
    engine: Engine
    services: Services

    def scope(
        self, kind: str, method: str, target: str, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        path, _mark, query = target.partition("?")
        lines = {"host": "localhost", **(headers or {})}
        return {
            "type": kind,
            "method": method,
            "scheme": "http" if kind == "http" else "ws",
            "path": path,
            "raw_path": quote(path).encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in lines.items()],
            "state": {"sandbox": self.sandbox},
            "extensions": {},
        }

    def begin(
        self,
        method: str,
        target: str,
        pieces: Iterable[bytes] | object = (),
        headers: dict[str, str] | None = None,
    ) -> Exchange:
        """Begin a request; a body that is no list of pieces is sent as JSON."""
        if not isinstance(pieces, list | tuple) or (pieces and not isinstance(pieces[0], bytes)):
            pieces = [json.dumps(pieces).encode()]
        return Exchange(self.app, self.scope("http", method, target, headers), pieces)

    async def ask(
        self, method: str, target: str, body: object = (), headers: dict[str, str] | None = None, **query: Any
    ) -> Answer:
        if query:
            target += "?" + urlencode(query, doseq=True)
        return await self.begin(method, target, body, headers).done()

    async def get(self, target: str, **query: Any) -> Answer:
        return await self.ask("GET", target, **query)

    async def code(self, code: str, **context: Any) -> list[Event]:
        """Run code to its end; return its events."""
        body = {"code": code, **({"context": context} if context else {})}
        return events_of(await self.ask("POST", "/code", body))

    async def run(self, command: str, **fields: Any) -> list[Event]:
        """Run a command to its end; return its events."""
        return events_of(await self.ask("POST", "/command", {"command": command, **fields}))

    async def background(self, command: str, **fields: Any) -> str:
        """Start a command in the background; return its id."""
        events = await self.run(command, background=True, **fields)
        assert [event["type"] for event in events] == ["init", "ping", "execution_complete"]
        id = events[0]["text"]
        assert isinstance(id, str)
        return id


def events_of(answer: Answer) -> list[Event]:
    """Return the events of a stream, as strictly as the strictest client reads them."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.isascii()
    *frames, rest = answer.body.split(b"\n\n")
    assert rest == b""
    events = [json.loads(frame) for frame in frames]
    for event in events:
        assert isinstance(event["type"], str)
        assert isinstance(event["timestamp"], int)
        assert event.get("text") != ""
        assert None not in event.values()
    assert [event["type"] for event in events].count("init") == 1
    assert [event["type"] for event in events[:2]] == ["init", "ping"]
    return events


def of(events: list[Event], kind: str) -> list[Event]:
    """Return the events of one type."""
    return [event for event in events if event["type"] == kind]


def text_of(events: list[Event], kind: str = "stdout") -> str:
    """Return the text of the events of one type."""
    return "".join(event["text"] for event in of(events, kind))


def failure_of(answer: Answer) -> tuple[int, str]:
    """Return the status and the code of an error, which has the shape that every client reads."""
    assert answer.json.keys() == {"code", "message"}, answer.body
    assert answer.json["message"]
    return answer.status, answer.json["code"]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    engine = Engine(LazyRuntimes())
    try:
        yield await make_client(engine)
    finally:
        await engine.aclose()


async def make_client(engine: Engine, **fields: Any) -> Client:
    """Return a client of a new sandbox."""
    nobody: Any = Nobody()
    services = Services(engine, nobody, nobody, Admission(engine), RequestLimits(upload=UPLOAD))
    spec = SandboxSpec(
        template=Template(preload=()),
        limits=fields.pop("limits", Limits(memory="512M", disk="128M")),
        **fields,
    )
    return Client(ExecdApp(services), await engine.create(spec), engine, services)
