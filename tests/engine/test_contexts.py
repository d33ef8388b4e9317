"""Contexts: made lazily and by request, restarted, removed; kernels that die are replaced."""

from typing import Any

import pytest

from cellfork.model.errors import InvalidRequest, NotFound, StartupFailed, Unsupported
from cellfork.model.specs import ContextSpec, ExecuteRequest
from cellfork.testing.fakes import settle
from tests.engine.conftest import Stage


def refuse(error):
    def script(guest, header, body):
        raise error

    return script


async def test_default_context_is_made_once(stage: Stage):
    """The first run makes the default context, later ones use it."""
    await stage.run("1")
    await stage.run("2")
    assert len(stage.guest.requests("context.start")) == 1
    assert len(stage.sandbox.contexts.list()) == 1


async def test_create_passes_cwd_and_envs(stage: Stage):
    """Directory and variables of a context reach init as data."""
    context = await stage.sandbox.contexts.create(ContextSpec(" Python ", "/tmp", {"A": "1"}))
    (header,) = stage.guest.requests("context.start")
    assert (header["language"], header["cwd"], header["envs"]) == ("python", "/tmp", {"A": "1"})
    assert stage.sandbox.contexts.get(context.id) is context


async def test_create_raises_what_init_says_and_leaves_nothing(stage: Stage):
    """A directory that does not exist is a typed error, and no context stays behind."""
    stage.guest.script["context.start"] = refuse(InvalidRequest("no such directory"))
    with pytest.raises(InvalidRequest, match="no such directory"):
        await stage.sandbox.contexts.create(ContextSpec(cwd="/nope"))
    assert stage.sandbox.contexts.list() == []


async def test_unknown_language(stage: Stage):
    """Nothing is sent for what cannot be a language's name; what could be one is for the template to know."""
    with pytest.raises(Unsupported, match="known: bash, go, java"):
        await stage.sandbox.contexts.create(ContextSpec("../fortran"))
    assert stage.guest.sent == []


async def test_contexts_do_not_wait_for_each_other(stage: Stage):
    """Two contexts run at the same time."""
    first = await stage.start("hang")
    context = await stage.sandbox.contexts.create()
    assert (await stage.sandbox.run(context.id, ExecuteRequest("2"))).text == "2"
    first.interrupt()
    await first.wait()


async def test_dead_kernel_is_replaced_on_a_new_channel(stage: Stage):
    """After ``exit`` the next execution gets a fresh kernel; what waited runs there; the channel is never reused."""
    first = await stage.start("exit 1")
    second = await stage.start("2")
    assert (await first.wait()).status == "lost"
    assert ((await second.wait()).text, second.execution.execution_count) == ("2", 1)
    assert [header["context"] for header in stage.guest.requests("context.start")] == [1, 2]
    assert stage.guest.requests("context.stop")[0]["context"] == 1


async def test_kernel_that_ends_idle_is_replaced(stage: Stage):
    """``exit()`` ends the kernel after its execution; the next one finds a new one."""
    await stage.run("1")
    stage.guest.kernels[1].exit(0)
    assert (await stage.run("2")).execution_count == 1


async def test_kernel_that_does_not_start_ends_the_execution(stage: Stage):
    """Code that was handed to a kernel which never came is ``lost``, with the reason."""
    stage.guest.script["context.start"] = refuse(StartupFailed("no memory"))
    execution = await stage.run("1")
    assert (execution.status, "no memory" in execution.error.value) == ("lost", True)
    del stage.guest.script["context.start"]
    assert (await stage.run("2")).text == "2"


async def test_kernel_start_is_bounded(stage: Stage):
    """An init that never answers does not hang the caller."""
    stage.guest.script["context.start"] = lambda guest, header, body: None
    running = await stage.start("1")
    await stage.clock.advance(stage.engine.settings.start_timeout)
    assert "did not start within 30 s" in (await running.wait()).error.value


async def test_restart_keeps_the_id_and_kills_what_runs(stage: Stage):
    """Restarting ends what runs and what waits as ``killed``, and the number begins anew."""
    running = await stage.start("hang")
    waiting = await stage.start("2")
    context = stage.sandbox.contexts.list()[0]
    await stage.sandbox.contexts.restart(context.id)
    for execution in (await running.wait(), await waiting.wait()):
        assert (execution.status, "restarted" in execution.error.value) == ("killed", True)
    assert (await stage.sandbox.run(context.id, ExecuteRequest("3"))).execution_count == 1


async def test_remove(stage: Stage):
    """A removed context is not found, what ran in it was killed, and a default one is made anew."""
    running = await stage.start("hang")
    context = stage.sandbox.contexts.list()[0]
    stage.sandbox.contexts.remove(context.id)
    assert (await running.wait()).status == "killed"
    with pytest.raises(NotFound):
        stage.sandbox.start(context.id, ExecuteRequest("1"))
    with pytest.raises(NotFound):
        context.submit(running)
    assert (await stage.run("1")).text == "1"


async def test_forged_frames_are_dropped_and_counted(stage: Stage):
    """A kernel can speak for the execution it runs, and for nothing else."""
    await stage.run("1")
    kernel = stage.guest.kernels[1]
    kernel.done()
    running = await stage.start("hang")
    kernel.say("stdout", b"forged", execution="somebody else", dropped=0)
    stage.guest.say({"op": "stdout", "execution": running.id, "dropped": 0}, b"forged", channel=7)
    stage.guest.say({"op": "kernel_exit", "code": 0, "signal": None, "execution": None}, channel=9)
    assert stage.sandbox.dropped_frames == 4
    running.interrupt()
    assert (await running.wait()).logs.stdout == []


async def test_frames_of_a_dead_kernel_are_dropped(stage: Stage):
    """What comes late on an old channel does not touch the new kernel's execution."""
    old = await stage.start("hang")
    kernel = stage.guest.kernels[1]
    kernel.exit(1)
    await old.wait()
    running = await stage.start("hang")
    kernel.execution = running.id
    kernel.stdout("late")
    kernel.done()
    await settle()
    assert not running.ended
    running.interrupt()
    assert (await running.wait()).logs.stdout == []


DONE = {"status": "error", "count": 1, "next_count": 2, "name": "E"}
MALFORMED: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "status": ("done", {**DONE, "status": "well", "parts": []}, b""),
    "short": ("done", {**DONE, "parts": [["value", "s", 5]]}, b""),
    "number": ("done", {**DONE, "parts": [["value", "j", 3]]}, b"123"),
    "part": ("display", {"parts": [[1, 2, 3]], "metadata": {}, "display_id": None, "main": False}, b""),
    "long": ("update", {"parts": [], "metadata": {}, "display_id": "d"}, b"more"),
    "op": ("stdour", {}, b""),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_frames_kill_the_sandbox(stage: Stage, case: str):
    """A guest that breaks the protocol loses its sandbox, and everybody is told the reason."""
    running = await stage.start("hang")
    op, fields, body = MALFORMED[case]
    stage.guest.kernels[1].say(op, body, execution=running.id, **fields)
    execution = await running.wait()
    assert (execution.terminal.reason, stage.sandbox.end_reason) == ("protocol", "protocol")
    await settle()
    assert stage.guest.killed == ["protocol"]
