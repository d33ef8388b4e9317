"""A server on a real socket, over an engine that is fake: no process, no isolation."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from uvicorn.server import ServerState

from cellfork.dialects.asgi import ASGIApp
from cellfork.engine.engine import Engine
from cellfork.runtimes.base import Runtime
from cellfork.server.app import App, create_app
from cellfork.server.logs import make_logger
from cellfork.server.protocol import patience_of, speaker
from cellfork.server.serving import serving
from cellfork.server.settings import Settings
from cellfork.testing.fakes import FakeRuntime

KEY = "e2b_" + 40 * "a"
OTHER_KEY = "e2b_" + 40 * "b"


class Reply(NamedTuple):
    """One answer, as it was on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Recorder:
    """Keeps what is logged, as text."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def msg(self, message: str) -> None:
        self.lines.append(message)

    debug = info = warning = error = critical = msg

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


class Wire:
    """A connection that sends bytes as they are and reads whole answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, method: str, path: str, body: bytes = b"", /, **headers: str) -> Reply:
        lines = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body:
            lines.setdefault("content-length", str(len(body)))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        await self.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return await self.reply(head_only=method == "HEAD")

    async def reply(self, *, head_only: bool = False) -> Reply:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        first, *lines = head.decode("latin-1").splitlines()
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        status = int(first.split()[1])
        size = 0 if head_only or status in {204, 304} else int(headers.get("content-length", 0))
        body = await asyncio.wait_for(self.reader.readexactly(size), 10)
        return Reply(status, headers, body, headers.get("connection") == "close")

    async def rest(self) -> bytes:
        """Return everything until the other side closes, or resets, the connection."""
        pieces = []
        try:
            while piece := await asyncio.wait_for(self.reader.read(65536), 10):
                pieces.append(piece)
        except ConnectionError:
            pieces.append(bytes(self.reader._buffer))  # type: ignore[attr-defined]  # what came before the reset
        return b"".join(pieces)

    def close(self) -> None:
        self.writer.close()


def body_of(answer: bytes) -> bytes:
    """Return the body of an answer, which is in chunks where it was begun before its end was known."""
    head, _, data = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return data
    pieces = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        pieces.append(data[:length])
        data = data[length + 2 :]
    return b"".join(pieces)


class Live(NamedTuple):
    """A server that runs."""

    url: str
    app: App
    log: Recorder

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def live(state: Path, engine: Engine | None = None, **settings: Any) -> AsyncIterator[Live]:
    """Serve with an engine, by default with one that is fake."""
    fields = {
        "port": 0,
        "api_key": (KEY, f"other:{OTHER_KEY}"),
        "isolation": "fake",
        "state": state,
        "drain": 1.0,
    }
    log = Recorder()
    runtimes: dict[str, Runtime] = {"fake": FakeRuntime()}
    engine = engine or Engine(runtimes)
    app = create_app(
        Settings(**{**fields, **settings}),
        engine,
        make_logger("debug", "json", log),  # type: ignore[arg-type]
    )
    try:
        async with serving(app) as url:
            yield Live(url, app, log)
    finally:
        await engine.aclose()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Live]:
    async with live(tmp_path) as running:
        yield running


@pytest.fixture
async def wire(server: Live) -> AsyncIterator[Wire]:
    async with connected(server.port) as connection:
        yield connection


Speak = Callable[..., Any]


@pytest.fixture
async def speak() -> AsyncIterator[Speak]:
    """Serve one ASGI app, without anything around it but the protocol; return a connection to it."""
    async with AsyncExitStack() as stack:

        async def start(app: ASGIApp, body_after_answer: float = 10.0, **settings: Any) -> Wire:
            patience = replace(patience_of(Settings(**settings)), body_after_answer=body_after_answer)
            speaks = speaker(app, Settings(**settings), ServerState(), patience=patience)
            loop = asyncio.get_running_loop()
            listening = await loop.create_server(lambda: speaks({}), "127.0.0.1", 0)
            stack.callback(listening.close)
            return await stack.enter_async_context(connected(listening.sockets[0].getsockname()[1]))

        yield start
