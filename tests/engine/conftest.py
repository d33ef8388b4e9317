"""An engine over a fake runtime: no process, no isolation, time that stands still."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings
from cellfork.model import events
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecuteRequest, SandboxSpec
from cellfork.testing.fakes import FakeClock, FakeGuest, FakeRuntime, settle


@dataclass
class Stage:
    """A sandbox with its fake guest and the clock."""

    engine: Engine
    runtime: FakeRuntime
    clock: FakeClock
    sandbox: Sandbox

    @property
    def guest(self) -> FakeGuest:
        return self.runtime.guests[0]

    async def run(self, code: str, **fields) -> Any:
        return await self.sandbox.run(None, ExecuteRequest(code, **fields))

    async def start(self, code: str, on_event=None, context=None, **fields):
        running = self.sandbox.start(context, ExecuteRequest(code, **fields), on_event=on_event)
        await settle()
        return running


async def recorded(running) -> list[events.Event]:
    return [event async for event in running.events()]


def spec(**fields) -> SandboxSpec:
    return SandboxSpec(isolation="fake", **{"limits": Limits(), **fields})


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    clock, runtime = FakeClock(), FakeRuntime()
    engine = Engine({"fake": runtime}, Settings(clock=clock, queue=5))
    sandbox = await engine.create(spec(timeout=None))
    yield Stage(engine, runtime, clock, sandbox)
    await engine.aclose()
