"""The code plane over a fake runtime, called as a server calls it: no socket, no process, time of the machine."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cellfork.dialects.base import RequestLimits, Services
from cellfork.dialects.e2b.code.routes import CodeApp
from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings
from cellfork.model.specs import SandboxSpec
from cellfork.testing.fakes import FakeGuest, FakeRuntime

TOKEN = "t" * 32


@dataclass
class Answer:
    """What came back: a status, headers, the pieces of the body, whether it was complete."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == kind]


@dataclass
class Exchange:
    """A request that is being answered.  ``leave`` closes the client's connection; ``slow`` holds what it reads."""

    answer: Answer = field(default_factory=Answer)
    task: "asyncio.Task[None]" = None  # type: ignore[assignment]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Event = field(default_factory=asyncio.Event)
    body: bytes = b""
    _sent: bool = False

    async def receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reading.wait()
        if self.gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = dict(message["headers"])
        else:
            self.answer.pieces.append(message.get("body", b""))
            self.answer.complete = not message.get("more_body", False)

    def leave(self) -> None:
        self.gone.set()
        self.reading.set()

    async def until(self, text: str) -> None:
        while text.encode() not in self.answer.body:
            assert not self.task.done()
            await asyncio.sleep(0.001)


@dataclass
class Plane:
    """The app, its engine and one sandbox."""

    app: CodeApp
    engine: Engine
    runtime: FakeRuntime
    sandbox: Sandbox

    @property
    def guest(self) -> FakeGuest:
        return self.runtime.guests[0]

    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        inside: bool = False,
        reading: bool = True,
        **headers: str,
    ) -> Exchange:
        exchange = Exchange(
            body=body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        if reading:
            exchange.reading.set()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
            "state": {"sandbox": self.sandbox, "inside": inside},
        }
        exchange.task = asyncio.get_running_loop().create_task(
            self.app(scope, exchange.receive, exchange.send)
        )
        return exchange

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        exchange = self.open(method, path, body, **options)
        await exchange.task
        return exchange.answer

    async def run(self, code: str, **fields: Any) -> Answer:
        return await self.call("POST", "/execute", {"code": code, **fields})


class Anybody:
    def owner(self, presented: str | None) -> str | None:
        return ""


async def make_plane(runtime: FakeRuntime, **notes: Any) -> Plane:
    engine = Engine({"fake": runtime}, Settings(queue=3, code=100_000, grace=0.05))
    spec = SandboxSpec(isolation="fake", timeout=None, notes={"e2b": {"template": "t", **notes}})
    services = Services(engine, Anybody(), None, None, RequestLimits(body=200_000))  # type: ignore[arg-type]
    return Plane(CodeApp(services), engine, runtime, await engine.create(spec))


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    plane = await make_plane(FakeRuntime())
    yield plane
    await plane.engine.aclose()


@pytest.fixture
async def secure() -> AsyncIterator[Plane]:
    plane = await make_plane(FakeRuntime(), envd_token=TOKEN)
    yield plane
    await plane.engine.aclose()
