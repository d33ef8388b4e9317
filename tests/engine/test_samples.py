"""Samples: one timer for all sandboxes, a bounded history that reaches back to the beginning."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.samples import INTERVAL, KEPT, MOST_PER_SECOND, Sample, Sampler
from cellfork.engine.settings import Settings
from cellfork.model.limits import Limits
from cellfork.runtimes.base import Usage
from cellfork.testing.fakes import FakeClock, FakeRuntime
from tests.engine.conftest import Stage, spec


async def test_the_first_at_once_then_regularly(stage: Stage):
    """A sandbox has a sample when it is asked for one, and another every few seconds."""
    (first,) = stage.sandbox.samples()
    await stage.clock.advance(20.5)
    samples = stage.sandbox.samples()
    assert samples[0] == first
    gaps = [later.time - earlier.time for earlier, later in pairwise(samples[1:])]
    assert gaps == pytest.approx([INTERVAL] * len(gaps))
    assert len(samples) >= 5
    assert stage.sandbox.samples(start=samples[2].time, end=samples[3].time) == samples[2:4]
    assert stage.sandbox.samples(end=first.time - 1800) == []


async def test_numbers(stage: Stage):
    """Processor time is told as a part of what the sandbox may use since the sample before; sizes as they are."""
    sandbox = await stage.engine.create(spec(limits=Limits(memory="100M", cpu=2)))
    guest: Any = sandbox.guest
    guest.measured = Usage(cpu_time=0.0, memory=10, cache=3, disk=4, disk_total=5)
    await stage.clock.advance(0.1)
    guest.measured = Usage(cpu_time=5.0, memory=20)
    await stage.clock.advance(INTERVAL)
    first, second = sandbox.samples()
    assert first == Sample(first.time, 2, 0.0, 10, 100 * 2**20, 3, 4, 5)
    assert second == Sample(second.time, 2, 50.0, 20, 100 * 2**20, None, None, None)


async def test_what_the_host_cannot_tell(stage: Stage):
    """Where the host measures nothing and no limit is set, numbers are absent, not zero."""
    sandbox = await stage.engine.create(spec(limits=Limits(memory=None, cpu=None)))
    sandbox.guest.measured = Usage()  # type: ignore[attr-defined]
    (sample,) = sandbox.samples()
    assert sample.cpu_count >= 1
    assert (sample.cpu_percent, sample.memory_used, sample.memory_total, sample.disk_used) == (None,) * 4


@pytest.mark.parametrize("memory", [True, False])
async def test_pauses_are_no_part_of_it(stage: Stage, memory: bool):
    """In a pause nothing is sampled, and its time does not make the use before and after it look small."""
    sandbox, guest = stage.sandbox, stage.guest
    guest.measured = Usage(cpu_time=0.0)
    await stage.clock.advance(0.1)
    await sandbox.pause(memory=memory)
    count = len(sandbox.samples())
    await stage.clock.advance(100)
    assert len(sandbox.samples()) == count
    await sandbox.resume()
    await stage.clock.advance(INTERVAL)
    stage.runtime.guests[-1].measured = Usage(cpu_time=2.5 if memory else 1.0)
    await stage.clock.advance(INTERVAL)
    percents = [sample.cpu_percent for sample in sandbox.samples()[count:]]
    assert all(percent is not None and percent <= 100 for percent in percents)
    assert max(percent or 0 for percent in percents) >= 20


async def test_history_is_bounded_and_whole(stage: Stage):
    """However long a sandbox lives, its history is small, begins with its life and is closest at the end."""
    (first,) = stage.sandbox.samples()
    await stage.clock.advance(INTERVAL * 3 * KEPT)
    samples = stage.sandbox.samples()
    assert len(samples) <= KEPT
    assert samples[0] == first
    assert samples[-1].time > stage.clock.time_ns() / 1e9 - 2 * INTERVAL
    times = [sample.time for sample in samples]
    assert times == sorted(times)


async def test_one_timer(monkeypatch: pytest.MonkeyPatch):
    """A thousand sandboxes share one timer, and more of them wait longer: the work of a second is bounded."""
    clock = FakeClock()
    pending: list[float] = []
    later = clock.later

    def count(seconds: float, callback: Any) -> Any:
        pending.append(seconds)
        return later(seconds, callback)

    monkeypatch.setattr(clock, "later", count)
    sampler = Sampler(clock)
    taken: list[float] = []

    class Still:
        state = "running"
        history: Any = None

    class Taken:
        def take(self, _sandbox: Any) -> None:
            taken.append(clock.monotonic())

    number = 2000
    sandboxes: list[Any] = [Still() for _ in range(number)]
    for sandbox in sandboxes:
        sandbox.history = Taken()
        sampler.add(sandbox)
        await clock.advance(0.01)
    assert len(pending) < number / 2
    taken.clear()
    await clock.advance(40)
    assert len(taken) <= 40 * MOST_PER_SECOND * 1.1
    assert len(taken) >= 3 * number
    for sandbox in sandboxes:
        sampler.discard(sandbox)
    taken.clear()
    await clock.advance(100)
    assert taken == []


async def test_nothing_ticks_where_nothing_lives():
    """An engine without sandboxes has no timer; one that ended is not held for its samples."""
    clock = FakeClock()
    engine = Engine({"fake": FakeRuntime()}, Settings(clock=clock))
    sandbox = await engine.create(spec(timeout=None))
    await clock.advance(1)
    await sandbox.kill()
    await asyncio.sleep(0)
    assert engine._sampler._timer is None
    assert len(engine._sampler._turns) == 0
    assert sandbox.samples() != []
    await engine.aclose()
