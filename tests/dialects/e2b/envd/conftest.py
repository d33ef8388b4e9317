"""envd over a real sandbox, called as a server calls it: raw ASGI, no socket."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cellfork.dialects.asgi import Abort
from cellfork.dialects.base import Admission, RequestLimits, Services
from cellfork.dialects.e2b.envd.routes import EnvdApp
from cellfork.dialects.e2b.notes import Notes, as_notes
from cellfork.engine.engine import Engine
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.engine.sandbox import Sandbox
from cellfork.model.limits import Limits, MiB
from cellfork.model.specs import SandboxSpec, Template

TOKEN = "t" * 32
UPLOAD = 64 * MiB
END = 2


class Nobody:
    """Keys and templates for an app that needs neither."""


@dataclass
class Answer:
    """What came back; ``complete`` unless the connection was aborted."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of a stream, without its end."""
        return [json.loads(data) for flags, data in envelopes(self.body) if flags != END]

    @property
    def end(self) -> dict[str, Any]:
        """Return what a stream says at its end."""
        (data,) = [data for flags, data in envelopes(self.body) if flags == END]
        value: dict[str, Any] = json.loads(data)
        return value

    @property
    def error(self) -> tuple[str, str]:
        """Return code and message of the error of a stream, or of a call without one."""
        error = (
            self.end["error"] if self.headers["content-type"].startswith("application/connect") else self.json
        )
        return error["code"], error["message"]


def envelopes(body: bytes) -> list[tuple[int, bytes]]:
    found = []
    while len(body) >= 5:
        flags, size = struct.unpack(">BI", body[:5])
        if len(body) < 5 + size:
            break
        found.append((flags, body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def enveloped(*messages: Any) -> bytes:
    encoded = [json.dumps(message).encode() for message in messages]
    return b"".join(struct.pack(">BI", 0, len(data)) + data for data in encoded)


class Exchange:
    """One request that is being answered.  ``leave`` closes the client's connection."""

    def __init__(self, app: Any, scope: dict[str, Any], pieces: Iterable[bytes]) -> None:
        self.answer = Answer()
        self.aborted = False
        self.pieces = list(pieces) or [b""]
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: Any, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Abort:
            self.aborted = True
        finally:
            self._news.set()

    async def _receive(self) -> dict[str, Any]:
        if self.pieces and not self._gone.is_set():
            await asyncio.sleep(0)
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {
                name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            self.answer.body += message.get("body", b"")
            self.answer.complete = not message.get("more_body", False)
        self._news.set()

    def leave(self) -> None:
        self._gone.set()

    async def until(self, text: str) -> None:
        """Return when the answer holds ``text``."""
        async with asyncio.timeout(10):
            while text.encode() not in self.answer.body:
                assert not self.task.done(), f"the answer ended without {text!r}: {self.answer}"
                self._news.clear()
                await self._news.wait()

    async def done(self) -> Answer:
        async with asyncio.timeout(20):
            await self.task
        return self.answer


@dataclass
class Client:
    """Calls envd for one sandbox."""

    app: EnvdApp
    sandbox: Sandbox
    engine: Engine
    token: str | None = TOKEN
    user: str | None = None
    inside: bool = False

    def begin(
        self, method: str, target: str, pieces: Iterable[bytes] = (), headers: dict[str, str] | None = None
    ) -> Exchange:
        path, _mark, query = target.partition("?")
        lines = {"host": "localhost"}
        if self.token is not None:
            lines["x-access-token"] = self.token
        if self.user is not None:
            lines["authorization"] = "Basic " + basic(self.user)
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": query.encode(),
            "headers": [
                (name.encode(), value.encode("latin-1")) for name, value in (lines | (headers or {})).items()
            ],
            "state": {"sandbox": self.sandbox, "inside": self.inside},
            "extensions": {},
        }
        return Exchange(self.app, scope, pieces)

    async def ask(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        pieces = [body[start : start + 65536] for start in range(0, len(body), 65536)]
        return await self.begin(method, target, pieces, headers).done()

    async def call(self, name: str, message: Any = None, **headers: str) -> Answer:
        """Make a call without streams: ``Filesystem/Stat``."""
        lines = {"content-type": "application/json", "connect-protocol-version": "1", **_headers(headers)}
        return await self.ask("POST", path_of(name), json.dumps(message or {}).encode(), lines)

    def stream(self, name: str, *messages: Any, **headers: str) -> Exchange:
        """Begin a call whose answer, or request, is a stream."""
        lines = {"content-type": "application/connect+json", "connect-protocol-version": "1"}
        return self.begin("POST", path_of(name), [enveloped(*messages)], lines | _headers(headers))

    async def run(self, line: str, **fields: Any) -> Answer:
        """Run a line with bash, to its end."""
        return await self.stream("Process/Start", start_of(line, **fields)).done()

    async def start(
        self, line: str, headers: dict[str, str] | None = None, **fields: Any
    ) -> tuple[Exchange, int]:
        """Start a line with bash; return the stream and the pid."""
        exchange = self.stream("Process/Start", start_of(line, **fields), **(headers or {}))
        await exchange.until('"start"')
        return exchange, exchange.answer.messages[0]["event"]["start"]["pid"]


def basic(user: str) -> str:
    from base64 import b64encode

    return b64encode(f"{user}:".encode()).decode()


def start_of(line: str, **fields: Any) -> dict[str, Any]:
    process = {"cmd": "/bin/bash", "args": ["-l", "-c", line]}
    process |= {name: fields.pop(name) for name in ("cwd", "envs") if name in fields}
    return {"process": process, "stdin": False, **fields}


def path_of(name: str) -> str:
    service, _slash, method = name.partition("/")
    return f"/{service.lower()}.{service}/{method}"


def _headers(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def output(answer: Answer, stream: str = "stdout") -> bytes:
    """Return what a process wrote."""
    from base64 import b64decode

    data = [message["event"]["data"] for message in answer.messages if "data" in message["event"]]
    return b"".join(b64decode(piece[stream]) for piece in data if stream in piece)


def end_of(answer: Answer) -> dict[str, Any]:
    """Return how a process ended."""
    value: dict[str, Any] = answer.messages[-1]["event"]["end"]
    return value


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    engine = Engine(LazyRuntimes())
    try:
        yield await make_client(engine)
    finally:
        await engine.aclose()


async def make_client(engine: Engine, token: str | None = TOKEN, **fields: Any) -> Client:
    """Return a client of a new sandbox."""
    nobody: Any = Nobody()
    limits = RequestLimits(upload=UPLOAD)
    services = Services(engine, nobody, nobody, Admission(engine), limits)
    spec = SandboxSpec(
        template=Template(preload=()),
        limits=fields.pop("limits", Limits(memory="256M", disk="48M")),
        notes=as_notes(Notes("base", envd_token=token)),
        **fields,
    )
    return Client(EnvdApp(services), await engine.create(spec), engine, token)
