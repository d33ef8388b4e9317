"""One engine after another, over guests that outlive the first: the second goes on where the first was."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellfork.engine.adoption import KIND, Adoption
from cellfork.engine.engine import Engine
from cellfork.engine.records import NoRecords, SqliteRecords
from cellfork.engine.settings import Settings
from cellfork.model.errors import NotFound, SandboxGone, SandboxPaused, UnavailableError
from cellfork.model.events import Interrupted, Killed
from cellfork.model.limits import Limits
from cellfork.model.network import NetworkPolicy
from cellfork.model.specs import ContextSpec, ExecSpec, ExecuteRequest, PtySize, Template
from cellfork.testing.fakes import FakeClock, FakeGuest, FakeRuntime, settle
from tests.held import held

from .conftest import spec


class Lives:
    """Engines that use the same runtime, clock and file, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.runtime = FakeRuntime(keep=True)
        self.engine = self.new_engine()

    def new_engine(self) -> Engine:
        settings = Settings(clock=self.clock, archives=str(self.path / "archives"))
        return Engine({"fake": self.runtime}, settings, SqliteRecords(self.path / "records.sqlite"))

    async def die(self, seconds: float = 0) -> Adoption:
        """Let the engine end without a word, as ``kill -9`` does, and the next one adopt after some ``seconds``."""
        for sandbox in self.engine.list():
            sandbox.guest.leave()
        await self.engine.records.aclose()
        self.clock._timers.clear()
        await self.clock.advance(seconds)
        self.engine = self.new_engine()
        self.runtime.adopted.clear()
        return await self.engine.adopt()

    @property
    def guest(self) -> FakeGuest:
        return self.runtime.guests[0]


@pytest.fixture
async def lives(tmp_path: Path) -> AsyncIterator[Lives]:
    lives = Lives(tmp_path)
    yield lives
    await lives.engine.aclose()


async def run(sandbox: Any, code: str, context: Any = None) -> Any:
    return await sandbox.run(context, ExecuteRequest(code))


async def test_code_has_run_when_its_context_is_kept(lives: Lives):
    """The first code of a language makes a context: it is answered when the next engine would know that, not before."""
    sandbox = await lives.engine.create(spec())
    with held(lives.path / "records.sqlite"):
        running = asyncio.create_task(run(sandbox, "1"))
        while not sandbox.contexts.list():
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert not running.done()
    assert (await asyncio.wait_for(running, 5)).text == "1"
    (context,) = sandbox.contexts.list()
    (again,) = (await lives.die()).adopted
    assert [known.id for known in again.contexts.list()] == [context.id]


async def test_a_sandbox_goes_on(lives: Lives):
    """Id, spec, notes, start, deadline, contexts and their ids are as they were, and code runs in the same kernels."""
    wanted = spec(
        template=Template("own", preload=("json",), languages=("bash",)),
        limits=Limits(memory="1G", pids=99),
        envs={"A": "1"},
        metadata={"who": "me"},
        tenant="someone",
        timeout=100,
        notes={"e2b": {"token": "t"}},
    )
    sandbox = await lives.engine.create(wanted)
    await run(sandbox, "1")
    context = await sandbox.contexts.create(ContextSpec(language="bash", cwd="/tmp", envs={"B": "2"}))
    await lives.clock.advance(30)
    adoption = await lives.die()
    (again,) = adoption.adopted
    assert adoption.ended == {}
    assert lives.engine.list() == [again] == [lives.engine.get(sandbox.id)]
    assert (again.id, again.spec, again.notes) == (sandbox.id, sandbox.spec, {"e2b": {"token": "t"}})
    assert (again.started_at, again.deadline) == (sandbox.started_at, sandbox.deadline)
    assert [(c.id, c.spec) for c in again.contexts.list()] == [
        (c.id, c.spec) for c in sandbox.contexts.list()
    ]
    before = len(lives.guest.requests("context.start"))
    assert (await run(again, "print x")).logs.stdout == ["x\n"]
    assert (await run(again, "2", context.id)).text == "2"
    assert again.contexts.default("bash").id != context.id
    await settle()
    assert len(lives.guest.requests("context.start")) == before  # no kernel was started anew


async def test_a_kill_takes_all_or_nothing(lives: Lives):
    """What is inside hears nothing of a kill: one that an engine's own end cuts short leaves the sandbox whole."""
    sandbox = await lives.engine.create(spec())
    await run(sandbox, "1")
    await sandbox.contexts.create()
    await sandbox.execs.create(ExecSpec(("sleep", "100")))
    await sandbox.watches.start("/home/user")
    before = len(lives.guest.sent)
    await lives.engine.kill(sandbox.id)
    assert lives.guest.sent[before:] == []


async def test_the_next_number(lives: Lives):
    """Executions go on counting; ids of executions, requests and channels are never given twice."""
    sandbox = await lives.engine.create(spec())
    first = await run(sandbox, "1")
    (again,) = (await lives.die()).adopted
    second = await run(again, "2")
    assert (first.execution_count, second.execution_count) == (1, 2)
    await again.contexts.create()
    (third,) = (await lives.die()).adopted
    ids = [first.id, second.id, (await run(third, "3")).id]
    assert len({*ids}) == 3
    numbers = [frame.header["id"] for frame in lives.guest.sent if "id" in frame.header]
    channels = [header["context"] for header in lives.guest.requests("context.start")]
    assert len({*numbers}) == len(numbers)
    assert len({*channels}) == len(channels)


async def test_what_ran_is_interrupted(lives: Lives):
    """An execution whose engine ended is stopped, and can be asked for; what waited is gone; the context goes on."""
    sandbox = await lives.engine.create(spec())
    running = sandbox.start(None, ExecuteRequest("hang"))
    sandbox.start(None, ExecuteRequest("print late"))
    await settle()
    (again,) = (await lives.die()).adopted
    stopped = again.execution(running.id)
    await settle()
    assert isinstance(stopped.execution.terminal, Interrupted)
    assert [frame.body for frame in lives.guest.sent if frame.header["op"] == "execute"] == [b"hang"]
    assert (await run(again, "1")).text == "1"


async def test_what_cannot_be_interrupted_is_terminated(lives: Lives):
    """It is stopped like any other execution: step by step, each bounded; the context has a new kernel then."""
    sandbox = await lives.engine.create(spec())
    running = sandbox.start(None, ExecuteRequest("deaf"))
    await settle()
    (again,) = (await lives.die()).adopted
    after = again.start(None, ExecuteRequest("1"))
    await settle()
    assert not after.ended
    await lives.clock.advance(2.5)
    assert isinstance(again.execution(running.id).execution.terminal, Interrupted)
    assert (await after.wait()).text == "1"


async def test_commands_go_on(lives: Lives):
    """A command has its id, pid, arguments, tag and terminal; its output and its exit code come to the next engine."""
    sandbox = await lives.engine.create(spec())
    wanted = ExecSpec(("sh", "-c", "hang"), "/tmp", {"A": "b"}, stdin=True, pty=PtySize(5, 7), tag="mine")
    exec_ = await sandbox.execs.create(wanted)
    other = await sandbox.execs.create(ExecSpec(("sh", "-c", "hang")))
    (again,) = (await lives.die()).adopted
    known = again.execs.get(exec_.id)
    assert (known.spec, known.pid, known.status) == (wanted, exec_.pid, "RUNNING")
    lives.guest.processes[exec_.number].write("later", "pty")
    lives.guest.processes[exec_.number].exit(5)
    assert (known.exit_code, known.status, known.log.text("pty")) == (5, "EXITED", "later")
    await again.execs.get(other.id).send_signal(15)
    assert again.execs.get(other.id).exit_code == 143
    new = await again.execs.create(ExecSpec(("sh", "-c", "hang")))
    assert new.number > other.number


async def test_the_timeout_of_a_command_goes_on(lives: Lives):
    """What is left of a command's time is what it has, the time between two engines counted."""
    sandbox = await lives.engine.create(spec())
    exec_ = await sandbox.execs.create(ExecSpec(("sh", "-c", "hang")), timeout=50)
    await lives.clock.advance(20)
    (again,) = (await lives.die(20)).adopted
    await lives.clock.advance(9)
    assert not again.execs.get(exec_.id).ended
    await lives.clock.advance(2)
    assert again.execs.get(exec_.id).timed_out


async def test_changes_are_kept(lives: Lives):
    """A new deadline, saved notes, a removed context: the next engine knows them."""
    sandbox = await lives.engine.create(spec(timeout=100))
    context = await sandbox.contexts.create()
    await run(sandbox, "1", context.id)
    sandbox.contexts.remove(context.id)
    sandbox.set_timeout(500)
    sandbox.notes["seen"] = [1, 2]
    await sandbox.save()
    sandbox.notes["unsaved"] = True
    (again,) = (await lives.die()).adopted
    assert again.deadline == sandbox.deadline
    assert again.notes == {"seen": [1, 2]}
    with pytest.raises(NotFound):
        again.contexts.get(context.id)


async def test_a_kernel_that_nobody_can_ask_for_is_stopped(lives: Lives):
    """A kernel of no recorded context takes memory for nobody: it ends."""
    sandbox = await lives.engine.create(spec())
    await sandbox.contexts.create()
    (kernel,) = lives.guest.kernels.values()
    kernel.label = "another"
    await lives.die()
    await settle()
    assert lives.guest.kernels == {}


async def test_a_deadline_that_passed_meanwhile(lives: Lives):
    """It ends the sandbox when it is adopted, with the reason ``deadline``; the record goes."""
    sandbox = await lives.engine.create(spec(timeout=10))
    (again,) = (await lives.die(20)).adopted
    await lives.clock.advance(0.01)
    assert (again.state, again.end_reason) == ("ended", "deadline")
    assert lives.guest.killed == ["deadline"]
    assert lives.engine.list() == []
    assert await lives.engine.records.load(KIND) == {}
    with pytest.raises(NotFound):
        lives.engine.get(sandbox.id)


async def test_a_deadline_that_is_to_come(lives: Lives):
    """It comes when it was to come."""
    await lives.engine.create(spec(timeout=10))
    await lives.clock.advance(4)
    (again,) = (await lives.die()).adopted
    await lives.clock.advance(5.9)
    assert lives.engine.list() == [again]
    await lives.clock.advance(0.2)
    assert lives.engine.list() == []


async def test_that_has_ended_meanwhile(lives: Lives):
    """A sandbox that cannot be adopted is named with its reason, its record goes, the others are adopted."""
    sandboxes = [await lives.engine.create(spec()) for _ in range(3)]
    lives.runtime.guests[1].killed.append("memory")
    adoption = await lives.die()
    assert [sandbox.id for sandbox in adoption.adopted] == [sandboxes[0].id, sandboxes[2].id]
    assert [*adoption.ended] == [sandboxes[1].id]
    assert "StartupFailed" in adoption.ended[sandboxes[1].id]
    assert {*await lives.engine.records.load(KIND)} == {sandboxes[0].id, sandboxes[2].id}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"spec": {"limits": {"memory": "lots"}}},
        {"spec": 5},
        {"guest": None},
        {"life": "x"},
        {"contexts": [{"id": 1}]},
    ],
)
async def test_a_record_that_is_malformed(lives: Lives, change: dict[str, Any]):
    """It costs its own sandbox, which is ended, and no other."""
    good, bad = [await lives.engine.create(spec()) for _ in range(2)]
    record = (await lives.engine.records.load(KIND))[bad.id]
    await lives.engine.records.put(KIND, bad.id, {**record, **change})
    adoption = await lives.die()
    assert [sandbox.id for sandbox in adoption.adopted] == [good.id]
    assert [*adoption.ended] == [bad.id]
    assert lives.runtime.guests[1].killed


async def test_what_nobody_recorded_is_swept(lives: Lives):
    """A guest that was started and never given out is ended by the next engine."""
    await lives.runtime.start(spec())
    await lives.die()
    assert lives.guest.killed


async def test_a_create_that_cannot_be_recorded(lives: Lives):
    """It is refused, and its guest ended: nothing is given out that would be lost at the next restart."""
    await lives.engine.records.aclose()
    with pytest.raises(UnavailableError):
        await lives.engine.create(spec())
    assert lives.guest.killed
    assert lives.engine.list() == []


async def test_an_end_is_recorded(lives: Lives):
    """However a sandbox ended, its record goes: the next engine does not look for it."""
    killed, closed, violated = [await lives.engine.create(spec()) for _ in range(3)]
    await killed.kill()
    lives.runtime.guests[1].close()
    lives.runtime.guests[2].say({"op": "reply", "id": 999, "ok": True, "result": {}})
    await settle()
    assert {killed.state, closed.state, violated.state} == {"ended"}
    assert await lives.engine.records.load(KIND) == {}


async def test_leaving(lives: Lives):
    """An engine that leaves tells everybody who waits, kills nothing, and the next one adopts everything."""
    sandbox = await lives.engine.create(spec())
    running = sandbox.start(None, ExecuteRequest("hang"))
    exec_ = await sandbox.execs.create(ExecSpec(("sh", "-c", "hang")))
    await lives.engine.leave()
    assert isinstance((await running.wait()).terminal, Killed)
    with pytest.raises(SandboxGone):
        sandbox.check_running()
    assert lives.runtime.closed
    assert not lives.guest.killed
    assert not lives.guest.requests("context.stop")
    (again,) = (await lives.die()).adopted
    assert again.execs.get(exec_.id).status == "RUNNING"
    assert (await run(again, "1")).text == "1"


async def test_leaving_without_records(tmp_path: Path):
    """Where nothing is kept, leaving is closing: every guest is ended."""
    runtime = FakeRuntime()
    engine = Engine({"fake": runtime}, Settings(clock=FakeClock()), NoRecords())
    await engine.create(spec())
    await engine.leave()
    assert runtime.guests[0].killed
    assert (await engine.adopt()).adopted == []


async def test_a_paused_sandbox(lives: Lives):
    """One that was paused with its memory is paused again, without a deadline, and goes on when it is resumed."""
    sandbox = await lives.engine.create(spec(timeout=100))
    await run(sandbox, "1")
    await sandbox.pause()
    (again,) = (await lives.die()).adopted
    assert (again.state, again.deadline) == ("paused", None)
    assert lives.guest.frozen == "all"
    with pytest.raises(SandboxPaused):
        again.check_running()
    await again.resume(50)
    assert (await run(again, "2")).text == "2"
    assert again.deadline == pytest.approx(lives.clock.time_ns() / 1e9 + 50)


async def test_a_network(lives: Lives):
    """A sandbox without a network has none in its record; the policy that holds is the one that was set last."""
    await lives.engine.create(spec())
    (record,) = (await lives.engine.records.load(KIND)).values()
    assert record["policy"] is None
    assert record["spec"]["network"]["mode"] == NetworkPolicy().mode


async def test_nothing_to_adopt(lives: Lives):
    """An engine without anything to adopt does so in no time, and starts sandboxes afterwards."""
    adoption = await asyncio.wait_for(lives.engine.adopt(), 5)
    assert (adoption.adopted, adoption.ended) == ([], {})
    assert (await run(await lives.engine.create(spec()), "1")).text == "1"
