"""The life of a sandbox: deadline, kill, its own end; its death wakes everybody."""

import asyncio
from typing import Any

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.settings import Settings
from cellfork.model import events
from cellfork.model.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    SandboxGone,
    StartupFailed,
    UnavailableError,
    Unsupported,
)
from cellfork.model.network import NetworkPolicy
from cellfork.model.specs import ExecSpec, ExecuteRequest, SandboxSpec
from cellfork.runtimes.base import Usage
from cellfork.testing.fakes import FakeClock, FakeRuntime, settle
from tests.engine.conftest import Stage, recorded, spec

ENDS = {
    "kill": lambda stage: asyncio.ensure_future(stage.sandbox.kill()),
    "deadline": lambda stage: asyncio.ensure_future(stage.clock.advance(100)),
    "own end": lambda stage: stage.guest.close(None, "init is gone"),
    "violation": lambda stage: stage.guest.say({"op": "reply", "id": 10**6, "ok": True, "result": {}}),
    "close": lambda stage: asyncio.ensure_future(stage.engine.aclose()),
}


@pytest.mark.parametrize("end", ENDS)
async def test_death_wakes_everybody(stage: Stage, end: str):
    """However a sandbox ends: what runs and waits, requests, execs, their readers and watches all end, with the reason."""
    sandbox = stage.sandbox
    sandbox.set_timeout(100)
    running, waiting = await stage.start("hang"), await stage.start("2")
    exec_ = await sandbox.execs.create(ExecSpec(("sh", "print a; hang")))
    watch = await sandbox.watches.start("d")
    stage.guest.script["file.stat"] = lambda guest, header, body: None
    waiters = [
        asyncio.ensure_future(work)
        for work in (running.wait(), waiting.wait(), exec_.wait(), watch.batch(), sandbox.files.stat("x"))
    ]
    command = asyncio.ensure_future(sandbox.commands.run("hang", ExecSpec(()), None))
    await settle()
    ENDS[end](stage)
    async with asyncio.timeout(2):
        outcomes: list[Any] = await asyncio.gather(*waiters, command, return_exceptions=True)
    kinds = events.Lost if end == "own end" else events.Killed
    assert isinstance(outcomes[0].terminal, kinds)
    assert isinstance(outcomes[1].terminal, kinds)
    assert (exec_.status, exec_.exit_code) == ("STOPPED", None)
    assert [type(outcome) for outcome in outcomes[3:]] == [SandboxGone] * 3
    await settle()
    assert stage.guest.killed
    with pytest.raises(NotFound):
        stage.engine.get(sandbox.id)


async def test_everything_raises_after_the_end(stage: Stage):
    """After the end each call raises ``SandboxGone`` with the reason."""
    sandbox = stage.sandbox
    context = await sandbox.contexts.create()
    await sandbox.kill()
    calls: list[Any] = [
        lambda: sandbox.run(None, ExecuteRequest("1")),
        lambda: sandbox.contexts.create(),
        lambda: sandbox.contexts.restart(context.id),
        lambda: sandbox.files.read("x"),
        lambda: sandbox.execs.create(ExecSpec(("sh",))),
        lambda: sandbox.watches.start("d"),
        lambda: sandbox.set_timeout(5),
    ]
    for call in calls:
        with pytest.raises(SandboxGone) as caught:
            await call()
        assert caught.value.reason == "request"


async def test_a_timeout_of_zero_is_the_end(stage: Stage):
    """0 ends the sandbox in the same moment, for the reason that a deadline has; ``False`` is no number."""
    running = await stage.start("hang")
    with pytest.raises(InvalidRequest):
        stage.sandbox.set_timeout(False)
    stage.sandbox.set_timeout(0)
    assert (stage.sandbox.state, stage.sandbox.end_reason) == ("ended", "deadline")
    assert (await running.wait()).terminal.reason == "deadline"
    await settle()
    assert stage.guest.killed == ["deadline"]


async def test_deadline_kills_with_its_reason(stage: Stage):
    """At the deadline what runs is ``killed: deadline``; a new timeout moves it."""
    stage.sandbox.set_timeout(10)
    running = await stage.start("hang")
    await stage.clock.advance(9)
    stage.sandbox.set_timeout(10)
    await stage.clock.advance(9)
    assert not running.ended
    await stage.clock.advance(1)
    assert (await running.wait()).terminal.reason == "deadline"
    assert stage.guest.killed == ["deadline"]


async def test_timeout_of_the_spec_is_the_deadline(stage: Stage):
    """A sandbox made for 30 s ends after 30 s; its deadline is told as Unix time."""
    sandbox = await stage.engine.create(spec(timeout=30))
    assert sandbox.deadline == pytest.approx(sandbox.started_at + 30)
    await stage.clock.advance(30)
    assert (sandbox.state, sandbox.end_reason) == ("ended", "deadline")


async def test_own_end_after_an_oom_kill_is_memory(stage: Stage):
    """Init killed by the kernel for memory is told as such, not as a loss."""
    running = await stage.start("hang")
    stage.guest.measured = Usage(oom_kills=1)
    stage.guest.close(None, "")
    assert (await running.wait()).terminal.reason == "memory"


async def test_kill_is_idempotent_and_waits_for_the_guest(stage: Stage):
    """Two kills are one, and each returns when the guest is gone."""
    await asyncio.gather(stage.sandbox.kill(), stage.sandbox.kill())
    assert stage.guest.killed == ["request"]


async def test_terminal_event_is_last_even_when_killed(stage: Stage):
    """Frames that come after the end change nothing."""
    running = await stage.start("print a\nhang")
    kernel = stage.guest.kernels[1]
    await stage.sandbox.kill()
    kernel.stdout("late")
    assert [type(event) for event in await recorded(running)] == [
        events.Started,
        events.Stdout,
        events.Killed,
    ]


async def test_engine_lists_and_finds(stage: Stage):
    """Live sandboxes are listed in the order of their creation, and killed by id."""
    second = await stage.engine.create(spec())
    assert stage.engine.list() == [stage.sandbox, second]
    assert stage.engine.get(second.id) is second
    await stage.engine.kill(second.id)
    assert stage.engine.list() == [stage.sandbox]
    with pytest.raises(NotFound):
        await stage.engine.kill(second.id)


async def test_closed_engine_refuses(stage: Stage):
    """After ``aclose`` every sandbox and runtime is closed, and none can be made."""
    await stage.engine.aclose()
    await stage.engine.aclose()
    assert (stage.sandbox.end_reason, stage.runtime.closed) == ("owner", True)
    with pytest.raises(Conflict):
        await stage.engine.create(spec())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"isolation": "hope"}, InvalidRequest),
        ({"envs": {"A": 1}}, InvalidRequest),
        ({"timeout": -1}, InvalidRequest),
    ],
    ids=str,
)
async def test_bad_specs_start_nothing(stage: Stage, fields, error):
    """What cannot be given is refused before a runtime is asked."""
    with pytest.raises(error):
        await stage.engine.create(SandboxSpec(**{"isolation": "fake", **fields}))
    assert len(stage.runtime.guests) == 1


async def test_a_policy_that_a_runtime_does_not_apply_ends_the_start(stage: Stage):
    """A runtime that gives no way out is not believed to enforce one: the guest is killed, and nothing listed."""
    with pytest.raises(Unsupported, match="network policy"):
        await stage.engine.create(SandboxSpec(isolation="fake", network=NetworkPolicy("public")))
    assert stage.runtime.guests[-1].killed == ["owner"]
    assert stage.engine.list() == [stage.sandbox]


async def test_start_errors_pass_through():
    """What a runtime raises reaches the caller, and nothing is listed."""

    def fail(guest):
        raise StartupFailed("no")

    engine = Engine({"fake": FakeRuntime(on_start=fail)}, Settings(clock=FakeClock()))
    with pytest.raises(UnavailableError):
        await engine.create(spec())
    assert engine.list() == []
    await engine.aclose()


async def test_usage_is_the_guests(stage: Stage):
    """Use is what the host measures."""
    stage.guest.measured = Usage(memory=5)
    assert stage.sandbox.usage().memory == 5


async def test_a_tenant_is_named_by_printable_text(stage: Stage):
    """The name reaches the runtime with the request; what is no name, or too long, is refused before anything starts."""
    sandbox = await stage.engine.create(SandboxSpec(isolation="fake", tenant="Zoë & Söhne, key 7"))
    assert sandbox.spec.tenant == "Zoë & Söhne, key 7"
    wrong: Any
    for wrong in ("line\nbreak", "NUL\0", "\ud800", "x" * 257, None, 7, b"bytes"):
        with pytest.raises(InvalidRequest, match="tenant"):
            await stage.engine.create(SandboxSpec(isolation="fake", tenant=wrong))
