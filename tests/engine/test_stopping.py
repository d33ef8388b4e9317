"""Stopping: every step of the escalation, and which one the terminal event names."""

import pytest

from cellfork.model import events
from cellfork.model.specs import ExecuteRequest
from cellfork.testing.fakes import settle
from tests.engine.conftest import Stage

STEPS = [("hang", 0.0, "interrupt"), ("deaf", 2.0, "terminate"), ("immortal", 4.0, "kill")]


@pytest.mark.parametrize(("code", "patience", "step"), STEPS)
async def test_timeout_escalates(stage: Stage, code: str, patience: float, step: str):
    """After the timeout: interrupt, 2 s later the kernel's end, 2 s later the sandbox's; always ``timed_out``."""
    running = await stage.start("print kept\n" + code, timeout=5.0)
    await stage.clock.advance(5.0 + patience - 0.1)
    assert not running.ended
    await stage.clock.advance(0.1)
    execution = await running.wait()
    assert (execution.status, execution.terminal.step) == ("timed_out", step)
    assert execution.logs.stdout == ["kept\n"]


@pytest.mark.parametrize(("code", "patience", "step"), STEPS)
async def test_interrupt_escalates_the_same_way(stage: Stage, code: str, patience: float, step: str):
    """A request to stop takes the same steps; the terminal event is ``Interrupted`` and names the last one."""
    running = await stage.start(code)
    running.interrupt()
    running.interrupt()
    await stage.clock.advance(patience)
    execution = await running.wait()
    assert (execution.status, execution.terminal.step) == ("interrupted", step)
    assert len(stage.guest.requests("interrupt")) == 1


async def test_code_that_catches_the_interrupt_still_timed_out(stage: Stage):
    """Ending well after the timeout does not undo it."""
    running = await stage.start("catch", timeout=1.0)
    await stage.clock.advance(1.0)
    execution = await running.wait()
    assert (execution.status, execution.terminal.step) == ("timed_out", "interrupt")


async def test_code_that_catches_a_requested_interrupt_finished(stage: Stage):
    """Where somebody asked and the code went on to its end, it finished."""
    running = await stage.start("catch")
    running.interrupt()
    assert (await running.wait()).status == "ok"


async def test_context_is_usable_after_each_step(stage: Stage):
    """After an interrupt the same kernel goes on; after its end a new one begins at 1."""
    for code, count in (("hang", 2), ("deaf", 1)):
        running = await stage.start(code, timeout=1.0)
        await stage.clock.advance(3.0)
        await running.wait()
        assert (await stage.run("2")).execution_count == count


async def test_no_step_is_taken_after_the_end(stage: Stage):
    """The escalation stops with the code: what runs next is not hit by it."""
    running = await stage.start("hang", timeout=1.0)
    await stage.clock.advance(1.0)
    await running.wait()
    following = await stage.start("hang")
    await stage.clock.advance(60.0)
    assert not following.ended
    assert len(stage.guest.requests("terminate")) == 0
    following.interrupt()
    await following.wait()


async def test_timeout_counts_from_the_hand_over(stage: Stage):
    """Waiting in the queue does not use up the time."""
    first = await stage.start("hang")
    second = await stage.start("hang", timeout=1.0)
    await stage.clock.advance(10.0)
    first.interrupt()
    await settle()
    assert second.state == "running"
    await stage.clock.advance(1.0)
    assert (await second.wait()).status == "timed_out"


async def test_kill_step_ends_the_others_as_killed(stage: Stage):
    """When the sandbox has to be killed, whoever else runs in it is ``killed``, and the sandbox says why."""
    context = await stage.sandbox.contexts.create()
    other = stage.sandbox.start(context, ExecuteRequest("hang"))
    await stage.start("immortal", timeout=1.0)
    await stage.clock.advance(5.0)
    assert isinstance((await other.wait()).terminal, events.Killed)
    assert (stage.sandbox.state, stage.sandbox.end_reason) == ("ended", "limit")
    assert stage.guest.killed == ["limit"]


async def test_zero_and_none_mean_no_timeout(stage: Stage):
    """``timeout=0`` is E2B's spelling of no bound."""
    for timeout in (0, None):
        running = await stage.start("hang", timeout=timeout)
        await stage.clock.advance(10_000.0)
        assert not running.ended
        running.interrupt()
        await running.wait()
