"""Both forms of the client over a fake runtime: no process, no isolation."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cellfork import AsyncSandbox, Sandbox
from cellfork.client.transport import EmbeddedTransport
from cellfork.testing.fakes import FakeGuest, FakeRuntime


@dataclass
class Embedded:
    """A transport of the test's own, with its fake runtime."""

    transport: EmbeddedTransport
    runtime: FakeRuntime

    @property
    def guest(self) -> FakeGuest:
        return self.runtime.guests[-1]

    def create(self, **fields) -> Sandbox:
        return Sandbox.create(isolation="fake", transport=self.transport, **fields)

    async def create_async(self, **fields) -> AsyncSandbox:
        return await AsyncSandbox.create(isolation="fake", transport=self.transport, **fields)


@pytest.fixture
def embedded() -> Iterator[Embedded]:
    runtime = FakeRuntime()
    transport = EmbeddedTransport({"fake": runtime})
    yield Embedded(transport, runtime)
    transport.close()


@pytest.fixture
def sandbox(embedded: Embedded) -> Sandbox:
    return embedded.create()
