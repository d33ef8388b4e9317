"""A server on a real socket, a fake sandbox behind it, and programs "inside" that are servers of this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellfork.dialects.e2b.notes import Notes, as_notes
from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.model.specs import SandboxSpec
from cellfork.testing.fakes import FakeGuest
from tests.server.conftest import Live, Reply, Wire, connected, live

Program = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PORT = 8000


@dataclass
class Place:
    """A server with one sandbox, whose port 8000 a test gives a program."""

    server: Live
    engine: Engine
    sandbox: Sandbox
    stack: AsyncExitStack

    @property
    def guest(self) -> FakeGuest:
        assert isinstance(self.sandbox.guest, FakeGuest)
        return self.sandbox.guest

    @property
    def address(self) -> dict[str, str]:
        """The headers that lead to port 8000."""
        return self.to(PORT)

    def to(self, port: int) -> dict[str, str]:
        return {"e2b_sandbox_id": self.sandbox.id, "e2b_sandbox_port": str(port)}

    async def new_sandbox(self, **notes: object) -> Sandbox:
        spec = SandboxSpec(isolation="fake", notes=as_notes(Notes("default", **notes)))  # type: ignore[arg-type]
        return await self.engine.create(spec)

    async def run(self, program: Program, port: int = PORT) -> None:
        """Let a program serve a port of the sandbox."""

        async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await program(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        listening = await asyncio.start_server(guarded, "127.0.0.1", 0)
        self.stack.callback(listening.close)
        self.guest.ports[port] = listening.sockets[0].getsockname()

    async def connect(self) -> Wire:
        return await self.stack.enter_async_context(connected(self.server.port))

    async def ask(self, method: str = "GET", path: str = "/", body: bytes = b"", **headers: str) -> Reply:
        """Send one request to port 8000 of the sandbox."""
        wire = await self.connect()
        return await wire.ask(method, path, body, **{**self.address, **headers})


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with live(tmp_path) as server, AsyncExitStack() as stack:
        assert server.app.parts is not None
        engine = server.app.parts.services.engine
        made = Place(server, engine, None, stack)  # type: ignore[arg-type]
        made.sandbox = await made.new_sandbox()
        yield made


def answering(answer: bytes) -> Program:
    """Return a program that reads a head and says ``answer``."""

    async def program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return program


def length(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    """Return an answer with its length."""
    head = "".join(f"{line}\r\n" for line in lines)
    return f"HTTP/1.1 {status}\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body
