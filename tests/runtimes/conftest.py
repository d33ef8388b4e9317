"""Runtimes of both kinds behind one fixture, and a small client that speaks the wire protocol."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellfork.model.errors import StartupFailed
from cellfork.model.limits import Limits
from cellfork.model.specs import HOME, SandboxSpec, Template
from cellfork.runtimes.guest import Meter, ProcessGuest
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.runtimes.none import NoneRuntime
from cellfork.runtimes.zygote import Child
from cellfork.wire.frames import Frame

BARE = Template("bare", preload=())
SPEC = SandboxSpec(template=BARE, limits=Limits(memory="256M", pids=64))


class Client:
    """Attached to a guest: keeps every frame, and waits for the one that matters."""

    def __init__(self, guest: Any) -> None:
        self.guest = guest
        self.frames: list[Frame] = []
        self.closed: asyncio.Future[tuple[Any, str]] = asyncio.get_running_loop().create_future()
        self._arrived = asyncio.Event()
        guest.attach(self._on_frame, lambda reason, message: self.closed.set_result((reason, message)))

    def _on_frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._arrived.set()

    async def until(self, op: str, **fields: Any) -> Frame:
        """Return the first frame with this ``op`` and these fields, waiting for it."""
        async with asyncio.timeout(20):
            while True:
                for frame in self.frames:
                    if frame.header["op"] == op and fields.items() <= frame.header.items():
                        return frame
                self._arrived.clear()
                await self._arrived.wait()

    async def request(self, number: int, op: str, **fields: Any) -> dict[str, Any]:
        self.guest.send({"op": op, "id": number, **fields})
        return (await self.until("reply", id=number)).header

    async def run(self, code: str, execution: str = "e1", channel: int = 1) -> Frame:
        """Run code on a channel and return its ``done``."""
        header = {"op": "execute", "execution": execution, "envs": {}, "stdin": False}
        self.guest.send({**header, "output": 1 << 20, "result": 1 << 20}, code.encode(), channel)
        return await self.until("done", execution=execution)

    async def start_context(self, channel: int = 1, cwd: str = HOME, **envs: str) -> None:
        reply = await self.request(
            channel, "context.start", context=channel, language="python", cwd=cwd, envs=envs
        )
        assert reply["ok"], reply


def guest_without_processes() -> tuple[ProcessGuest, socket.socket]:
    """Return a guest, and init's end of its connection."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    child = Child(loop.create_future(), loop.create_future())
    child.forked.set_exception(StartupFailed("made up"))
    child.forked.exception()
    return ProcessGuest(ours, child, Meter(), "test"), theirs


@pytest.fixture(params=["namespaces", "none"])
async def runtime(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Every runtime passes the same tests."""
    runtime = NamespacesRuntime(pool=0) if request.param == "namespaces" else NoneRuntime()
    yield runtime
    await runtime.aclose()
