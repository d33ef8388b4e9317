"""Both forms of the client, over both transports, with a fake runtime: no process, no isolation."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from cellfork import AsyncSandbox, Sandbox
from cellfork.client.http.transport import HttpTransport
from cellfork.client.transport import EmbeddedTransport
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.testing.fakes import FakeGuest, FakeRuntime
from tests.served import KEY, Served, served


@dataclass
class Place:
    """Where sandboxes live: a transport of the test's own, and the fake runtime behind it."""

    transport: Any
    runtime: FakeRuntime
    tenant: str = ""
    server: Served | None = None

    @property
    def guest(self) -> FakeGuest:
        return self.runtime.guests[-1]

    def create(self, **fields: Any) -> Sandbox:
        return Sandbox.create(isolation="fake", transport=self.transport, **fields)

    async def create_async(self, **fields: Any) -> AsyncSandbox:
        return await AsyncSandbox.create(isolation="fake", transport=self.transport, **fields)

    def happen(self, function: Callable[..., Any], *args: Any) -> Any:
        """Let something happen in the loop of the engine."""
        if self.server is not None:
            return self.server.run(function, *args)
        from cellfork.client.bridges import Bridge

        return Bridge(self.transport.host).call(function, *args)


def in_this_process() -> Iterator[Place]:
    runtime = FakeRuntime()
    transport = EmbeddedTransport({"fake": runtime})
    yield Place(transport, runtime)
    transport.close()


def behind_a_server() -> Iterator[Place]:
    runtime = FakeRuntime()
    with served({"fake": runtime}) as server:
        transport = HttpTransport(server.url, KEY)
        yield Place(transport, runtime, "alice", server)
        transport.close()


@pytest.fixture
def embedded() -> Iterator[Place]:
    """A place in this process."""
    yield from in_this_process()


@pytest.fixture
def remote() -> Iterator[Place]:
    """A place behind a server."""
    yield from behind_a_server()


@pytest.fixture(params=[in_this_process, behind_a_server], ids=["embedded", "http"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each of both, one after the other: the same is expected of them."""
    yield from request.param()


@pytest.fixture
def sandbox(place: Place) -> Sandbox:
    return place.create()


class Servers:
    """Servers of real sandboxes, one for each isolation, started when they are needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._urls: dict[str, str] = {}

    def url(self, isolation: str) -> str:
        """Return the URL of the server of an isolation."""
        if isolation not in self._urls:
            server = self._stack.enter_context(served(LazyRuntimes(), isolation=isolation))
            self._urls[isolation] = server.url
        return self._urls[isolation]


@pytest.fixture(scope="module", params=["embedded", "http"])
def servers(request: pytest.FixtureRequest) -> Iterator[Servers | None]:
    """The servers of this module's sandboxes; ``None``: they are embedded."""
    with ExitStack() as stack:
        made = Servers(stack) if request.param == "http" else None
        if made is not None:  # what a server opens for all is no leak of the first test
            made.url("namespaces")
            made.url("none")
        yield made


@pytest.fixture
def create(servers: Servers | None) -> Iterator[Callable[..., Sandbox]]:
    """Make real sandboxes: of this process, and of servers, over connections of the test's own."""
    if servers is None:
        yield Sandbox.create
        return
    transports: dict[str, HttpTransport] = {}

    def create(*, isolation: str = "namespaces", **fields: Any) -> Sandbox:
        transport = transports.setdefault(isolation, HttpTransport(servers.url(isolation), KEY))
        return Sandbox.create(isolation=isolation, transport=transport, **fields)

    yield create
    for transport in transports.values():
        transport.close()
