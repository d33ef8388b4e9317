"""Pause and resume: nothing is lost, nothing counts meanwhile, and whatever goes wrong leaves a sandbox that goes on."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.holding import MAX_KEPT, Outbox, PausableClock
from cellfork.engine.settings import Settings
from cellfork.model import events
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    ProtocolViolation,
    SandboxGone,
    SandboxPaused,
    StartupFailed,
    UnavailableError,
    Unsupported,
)
from cellfork.model.specs import ContextSpec, ExecSpec, ExecuteRequest
from cellfork.testing.fakes import FakeClock, FakeGuest, FakeRuntime, settle
from tests.engine.conftest import Stage, spec

NEEDS_IT = {
    "code": lambda sandbox: sandbox.run(None, ExecuteRequest("1")),
    "a file": lambda sandbox: sandbox.files.read("f"),
    "an upload": lambda sandbox: sandbox.files.write("f", b""),
    "a context": lambda sandbox: sandbox.contexts.create(),
    "a command": lambda sandbox: sandbox.execs.create(ExecSpec(("a",))),
    "a watch": lambda sandbox: sandbox.watches.start("d"),
    "languages": lambda sandbox: sandbox.languages(),
    "a port": lambda sandbox: sandbox.connect(80),
    "another pause": lambda sandbox: sandbox.pause(),
    "a pause without memory": lambda sandbox: sandbox.pause(memory=False),
}
BOTH = pytest.mark.parametrize("memory", [True, False])


@BOTH
@pytest.mark.parametrize("what", NEEDS_IT)
async def test_whatever_needs_the_sandbox_is_refused(stage: Stage, what: str, memory: bool):
    """In a pause every call that needs something of the sandbox says so, at once; nothing of it happens later."""
    await stage.sandbox.pause(memory=memory)
    sent = len(stage.guest.sent)
    with pytest.raises(SandboxPaused):
        async with asyncio.timeout(2):
            await NEEDS_IT[what](stage.sandbox)
    assert stage.sandbox.contexts.list() == []
    await stage.sandbox.resume()
    await settle()
    assert [frame.header["op"] for frame in stage.guest.sent[sent:] if not frame.channel] == []


async def test_what_runs_goes_on(stage: Stage):
    """Code, commands and requests that were under way end after the pause as if there had been none."""
    sandbox, guest = stage.sandbox, stage.guest
    running, waiting = await stage.start("hang"), await stage.start("2")
    exec_ = await sandbox.execs.create(ExecSpec(("sh", "print a; hang")))
    watch, other = await sandbox.watches.start("d"), await sandbox.watches.start("e")
    guest.files["f"] = b"content"
    reading = asyncio.ensure_future(sandbox.files.read("f"))
    await asyncio.sleep(0)  # it is sent, and not answered yet
    await sandbox.pause()
    assert guest.frozen == "all"
    assert watch.take() == []
    event = asyncio.ensure_future(watch.batch())
    await other.stop()
    await stage.clock.advance(1000)
    assert not running.ended
    await sandbox.resume()
    assert await reading == b"content"
    await settle()
    assert guest.requests("watch.stop") == [{"op": "watch.stop", "id": ANY, "watch": other.number}]
    guest.say({"op": "watch.event", "watch": watch.number, "name": "f", "kind": "write"})
    assert [change.name for change in await event] == ["f"]
    running.interrupt()
    assert isinstance((await running.wait()).terminal, events.Interrupted)
    assert (await waiting.wait()).text == "2"
    exec_.kill()
    await exec_.wait()
    assert exec_.exit_code == 128 + 9


async def test_time_stands_still(stage: Stage):
    """The timeouts of code and of commands count the time in which the sandbox runs; so does the time that code took."""
    running = await stage.start("hang", timeout=10)
    exec_ = await stage.sandbox.execs.create(ExecSpec(("sh", "hang")), timeout=10)
    for _ in range(3):
        await stage.clock.advance(3)
        await stage.sandbox.pause()
        await stage.clock.advance(1000)
        await stage.sandbox.resume()
    assert not running.ended
    assert not exec_.ended
    await stage.clock.advance(1.5)
    assert isinstance(running.execution.terminal, events.TimedOut)
    assert running.execution.accounting.wall_time == pytest.approx(10, abs=0.6)
    assert exec_.timed_out


async def test_stopping_waits_for_the_end_of_the_pause(stage: Stage):
    """Code that is asked to stop in a pause is asked when it can hear it: a kernel is not ended for standing still."""
    running = await stage.start("hang")
    await stage.sandbox.pause()
    running.interrupt()
    await stage.clock.advance(1000)
    assert not running.ended
    await stage.sandbox.resume()
    execution = await running.wait()
    assert isinstance(execution.terminal, events.Interrupted)
    assert execution.terminal.step == "interrupt"
    assert stage.guest.requests("terminate") == []


@BOTH
async def test_deadlines(stage: Stage, memory: bool):
    """A paused sandbox has no deadline; resumed, it has the one that was asked for, or one as it was created with."""
    sandbox = await stage.engine.create(spec(timeout=60))
    await sandbox.pause(memory=memory)
    assert sandbox.deadline is None
    await stage.clock.advance(100_000)
    assert sandbox.state == "paused"
    for asked, expected in ((..., 60), (7, 7), (None, None)):
        await sandbox.resume(*(() if asked is ... else (asked,)))
        now = stage.clock.time_ns() / 1e9
        assert sandbox.deadline == (None if expected is None else pytest.approx(now + expected))
        await sandbox.pause(memory=memory)
    with pytest.raises(InvalidRequest):
        await sandbox.resume(-1)
    assert sandbox.state == "paused"
    await sandbox.resume(5)
    await stage.clock.advance(6)
    assert sandbox.end_reason == "deadline"


@BOTH
async def test_pauses_have_a_bound_where_the_owner_wants_one(memory: bool):
    """With ``Settings.paused`` a sandbox that is paused for longer is killed; one that was resumed is not."""
    clock = FakeClock()
    engine = Engine({"fake": FakeRuntime()}, Settings(clock=clock, paused=100))
    one, two = [await engine.create(spec(timeout=None)) for _ in range(2)]
    await one.pause(memory=memory)
    await two.pause(memory=memory)
    await clock.advance(60)
    await two.resume()
    await clock.advance(60)
    assert (one.state, one.end_reason, two.state) == ("ended", "deadline", "running")
    await engine.aclose()
    assert engine.archives.used == 0


async def test_one_change_at_a_time(stage: Stage):
    """While a sandbox is being paused or resumed another change is refused; so is a resume of what runs."""
    sandbox = stage.sandbox
    with pytest.raises(Conflict):
        await sandbox.resume()
    pausing = asyncio.ensure_future(sandbox.pause())
    await asyncio.sleep(0)
    for change in (
        sandbox.pause(),
        sandbox.resume(),
        stage.engine.snapshot(sandbox.id),
        stage.engine.fork(sandbox.id),
    ):
        with pytest.raises(Conflict, match="at this moment"):
            await change
    await sandbox.pausing.settled()
    assert pausing.done()
    resuming = asyncio.ensure_future(sandbox.resume())
    await asyncio.sleep(0)
    with pytest.raises(Conflict):
        await sandbox.resume()
    await resuming
    assert sandbox.state == "running"


ENDS = {
    "kill": lambda stage: stage.sandbox.kill(),
    "own end": lambda stage: stage.guest.close(None, "init is gone"),
    "memory": lambda stage: stage.guest.close("memory", "full"),
    "close": lambda stage: stage.engine.aclose(),
}


@pytest.mark.parametrize("end", ENDS)
async def test_the_end_comes_in_a_pause_too(stage: Stage, end: str):
    """A paused sandbox can be killed and can end; what ran in it ends with the reason, and nothing can wake it."""
    running = await stage.start("hang")
    await stage.sandbox.pause()
    outcome = ENDS[end](stage)
    if outcome is not None:
        await outcome
    async with asyncio.timeout(2):
        assert (await running.wait()).terminal is not None
    assert stage.sandbox.state == "ended"
    with pytest.raises(SandboxGone):
        await stage.sandbox.resume()
    with pytest.raises(SandboxGone):
        await stage.sandbox.pause()
    with pytest.raises(NotFound):
        stage.engine.get(stage.sandbox.id)


@BOTH
async def test_an_end_while_it_is_paused(stage: Stage, memory: bool):
    """A sandbox that ends while it is being paused is gone, not paused."""
    pausing = asyncio.ensure_future(stage.sandbox.pause(memory=memory))
    await asyncio.sleep(0)
    await stage.sandbox.kill()
    with pytest.raises(SandboxGone):
        await pausing
    assert stage.sandbox.state == "ended"
    assert stage.engine.archives.used == 0


@BOTH
async def test_a_pause_that_fails_changes_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, memory: bool
):
    """Where the host cannot hold the sandbox still, it goes on, with everything that was asked of it meanwhile."""
    sandbox, guest = stage.sandbox, stage.guest
    sandbox.set_timeout(50)
    guest.files["f"] = b"x"

    async def refuse(*, but_init: bool = False) -> None:
        await asyncio.sleep(0)
        raise UnavailableError("a process waits for a device")

    monkeypatch.setattr(guest, "freeze", refuse)
    pausing = asyncio.ensure_future(sandbox.pause(memory=memory))
    await asyncio.sleep(0)
    reading = asyncio.ensure_future(sandbox.files.read("f"))
    with pytest.raises(UnavailableError):
        await pausing
    assert await reading == b"x"
    assert sandbox.state == "running"
    await stage.clock.advance(51)
    assert sandbox.end_reason == "deadline"


async def test_a_pause_nobody_waits_for(stage: Stage):
    """A pause whose caller is cancelled is either done or not: the sandbox can be used or resumed."""
    for turns in range(4):
        pausing = asyncio.ensure_future(stage.sandbox.pause())
        for _ in range(turns):
            await asyncio.sleep(0)
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)
        if stage.sandbox.state == "paused":
            await stage.sandbox.resume()
        assert (await stage.run("1")).text == "1"


# ------------------------------------------------------------------------------------- without memory


async def test_files_alone(stage: Stage):
    """Without memory the files are kept, and nothing else: processes end, what runs ends as killed, contexts are new."""
    sandbox, first = stage.sandbox, stage.guest
    await sandbox.files.write("a", b"1")
    context = await sandbox.contexts.create(ContextSpec(cwd="/tmp"))
    running = await stage.start("hang", context=context)
    waiting = await stage.start("1", context=context)
    exec_ = await sandbox.execs.create(ExecSpec(("sh", "hang")))
    watch = await sandbox.watches.start("d")
    await sandbox.pause(memory=False)
    assert first.killed
    for execution in (running, waiting):
        terminal = (await execution.wait()).terminal
        assert isinstance(terminal, events.Killed)
        assert "without its memory" in terminal.message
    assert (exec_.status, exec_.exit_code) == ("STOPPED", None)
    with pytest.raises(SandboxGone):
        await watch.batch()
    assert sandbox.usage().memory == 0
    assert len(stage.runtime.guests) == 1

    await sandbox.resume()
    second = stage.runtime.guests[1]
    assert sandbox.guest is second
    assert await sandbox.files.read("a") == b"1"
    assert sandbox.contexts.list() == []
    with pytest.raises(NotFound):
        sandbox.contexts.get(context.id)
    assert (await stage.run("3")).text == "3"
    assert sandbox.execution(running.id) is running
    assert sandbox.execs.get(exec_.id) is exec_
    assert stage.engine.archives.used == 0


async def test_nothing_is_lost_however_often(stage: Stage):
    """Files that were written between pauses are all there after the last one, with memory or without."""
    sandbox = stage.sandbox
    for number in range(6):
        await sandbox.files.write(f"f{number}", str(number).encode())
        await sandbox.pause(memory=number % 3 == 0)
        await sandbox.resume()
        assert [await sandbox.files.read(f"f{known}") for known in range(number + 1)] == [
            str(known).encode() for known in range(number + 1)
        ]


async def test_an_old_guest_says_nothing_any_more(stage: Stage):
    """What the guest before a pause still says, its end above all, does not reach the sandbox."""
    first = stage.guest
    handlers = first._on_frame, first._on_close
    await stage.sandbox.pause(memory=False)
    await stage.sandbox.resume()
    handlers[1](None, "the old guest ended")  # type: ignore[misc]
    assert stage.sandbox.state == "running"


async def test_restarted_processes_are_told_of(stage: Stage):
    """Whoever listens in a sandbox learns that it goes on with new processes, and only then."""
    restarts: list[int] = []
    stage.sandbox.on_restart(lambda: restarts.append(1))
    await stage.sandbox.pause()
    await stage.sandbox.resume()
    assert restarts == []
    await stage.sandbox.pause(memory=False)
    await stage.sandbox.resume()
    assert restarts == [1]


@pytest.mark.parametrize("failing", ["the start", "the files", "its own end"])
async def test_a_resume_that_fails_can_be_tried_again(stage: Stage, failing: str):
    """A sandbox whose new processes cannot be started, or not be given its files, stays paused with its files."""
    sandbox = stage.sandbox
    await sandbox.files.write("a", b"1")
    await sandbox.pause(memory=False)

    def refuse(_guest: FakeGuest, _header: Any, _body: bytes) -> None:
        raise LimitExceeded("the disk is full")

    def end(guest: FakeGuest, _header: Any, _body: bytes) -> None:
        guest.close("memory", "full")

    def break_it(guest: FakeGuest) -> None:
        if failing == "the start":
            raise StartupFailed("no room")
        guest.script["archive.write"] = refuse if failing == "the files" else end

    stage.runtime.on_start = break_it
    for _ in range(2):
        with pytest.raises(CellforkError):
            await sandbox.resume()
        assert sandbox.state == "paused"
        assert all(guest.killed for guest in stage.runtime.guests)
    stage.runtime.on_start = None
    await sandbox.resume()
    assert await sandbox.files.read("a") == b"1"


async def test_where_the_host_has_no_freezer(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """Without a freezer a pause with memory is refused, and one without it ends every other process before the files are read."""

    async def refuse(*, but_init: bool = False) -> None:
        raise Unsupported("no freezer")

    monkeypatch.setattr(stage.guest, "freezes", False)
    monkeypatch.setattr(stage.guest, "freeze", refuse)
    with pytest.raises(Unsupported):
        await stage.sandbox.pause()
    with pytest.raises(Unsupported):
        await stage.engine.snapshot(stage.sandbox.id)
    assert (await stage.run("1")).text == "1"
    await stage.sandbox.pause(memory=False)
    assert [header["alone"] for header in stage.guest.requests("archive.read")] == [True]
    assert stage.sandbox.state == "paused"


async def test_no_room_for_the_files(tmp_path: Path):
    """Where there is no room for an archive the sandbox goes on; nothing of it is left on the host's disk."""
    engine = Engine(
        {"fake": FakeRuntime()}, Settings(clock=FakeClock(), archives=str(tmp_path / "a"), archive_bytes=1000)
    )
    sandbox = await engine.create(spec())
    await sandbox.files.write("a", b"x" * 2000)
    for change in (sandbox.pause(memory=False), engine.snapshot(sandbox.id), engine.fork(sandbox.id)):
        with pytest.raises(LimitExceeded):
            await change
    assert (await sandbox.files.read("a"))[:1] == b"x"
    assert sandbox.guest.frozen == ""  # type: ignore[attr-defined]
    assert list((tmp_path / "a").iterdir()) == []
    assert engine.archives.used == 0
    await sandbox.files.write("a", b"x")
    await sandbox.pause(memory=False)
    await engine.aclose()


LIES = {
    "too much": lambda guest, header, body: _say(guest, header, b"x" * 300_000, times=20),
    "nothing": lambda guest, header, body: {"size": 0, "end": False},
    "no end": lambda guest, header, body: {"size": 0},
}


def _say(guest: FakeGuest, header: Any, body: bytes, times: int) -> Any:
    for _ in range(times):
        guest.say({"op": "chunk", "id": header["id"]}, body)
    return {"size": 0, "end": True}


@pytest.mark.parametrize("lie", LIES)
async def test_an_init_that_lies(stage: Stage, lie: str):
    """An archive that is more than was asked for, or never goes on, is a violation: its sandbox is killed."""
    stage.guest.script["archive.read"] = LIES[lie]
    with pytest.raises((ProtocolViolation, SandboxGone)):
        await stage.sandbox.pause(memory=False)
    assert stage.sandbox.end_reason == "protocol"
    assert stage.engine.archives.used == 0


# ---------------------------------------------------------------------------------------- at deadlines


@BOTH
async def test_a_pause_at_the_deadline(stage: Stage, memory: bool):
    """``on_deadline="pause"`` pauses the sandbox when its time is over, as often as that happens."""
    sandbox = await stage.engine.create(spec(timeout=5, on_deadline="pause", pause_memory=memory))
    await sandbox.files.write("a", b"1")
    for _ in range(2):
        await stage.clock.advance(5)
        await sandbox.pausing.settled()
        while sandbox.state == "running":
            await asyncio.sleep(0.001)
        assert sandbox.state == "paused"
        await sandbox.resume()
    assert await sandbox.files.read("a") == b"1"


async def test_a_pause_at_the_deadline_that_fails_is_an_end(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """Where the sandbox cannot be paused at its deadline, it is killed: it never lives on by mistake."""
    sandbox = await stage.engine.create(spec(timeout=5, on_deadline="pause"))

    async def refuse(*, but_init: bool = False) -> None:
        raise UnavailableError("no")

    monkeypatch.setattr(sandbox.guest, "freeze", refuse)
    await stage.clock.advance(5)
    assert (sandbox.state, sandbox.end_reason) == ("ended", "deadline")


async def test_a_deadline_that_moved_meanwhile(stage: Stage):
    """A deadline that is moved while a change is under way holds when that is done, not the old one."""
    sandbox = await stage.engine.create(spec(timeout=5, on_deadline="pause"))
    async with sandbox.pausing._changing:
        await stage.clock.advance(6)
        sandbox.set_timeout(100)
    await settle()
    assert sandbox.state == "running"


@BOTH
async def test_a_timeout_of_zero_pauses_now(stage: Stage, memory: bool):
    """Whoever sets 0 gets what the deadline does, at once and not when the sandbox is killed."""
    sandbox = await stage.engine.create(spec(on_deadline="pause", pause_memory=memory, timeout=None))
    sandbox.set_timeout(0)
    await asyncio.sleep(0)
    await sandbox.pausing.settled()
    assert (sandbox.state, sandbox.deadline) == ("paused", None)
    await sandbox.resume(timeout=10)
    assert sandbox.state == "running"
    await stage.clock.advance(9)
    assert sandbox.state == "running"


async def test_what_could_not_be_paused_is_not_promised(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """A sandbox that is to be paused at its deadline is refused where the host could not do it."""
    monkeypatch.setattr(FakeGuest, "freezes", False)
    with pytest.raises(Unsupported):
        await stage.engine.create(spec(on_deadline="pause"))
    assert stage.runtime.guests[-1].killed
    files = await stage.engine.create(spec(on_deadline="pause", pause_memory=False))  # needs no freezer
    await files.kill()
    monkeypatch.setattr(FakeGuest, "keeps_files", False)
    with pytest.raises(Unsupported):
        await stage.engine.create(spec(on_deadline="pause", pause_memory=False))
    assert stage.runtime.guests[-1].killed
    with pytest.raises(InvalidRequest):
        await stage.engine.create(spec(on_deadline="hide"))
    assert len(stage.engine.list()) == 1


# -------------------------------------------------------------------------------------------- the parts


async def test_the_clock_of_a_sandbox():
    """Timers of a pausable clock have the time left that they had; those made in a pause begin after it."""
    clock = FakeClock()
    own = PausableClock(clock)
    due: list[str] = []
    own.later(10, lambda: due.append("before"))
    own.later(10, lambda: due.append("cancelled")).cancel()
    await clock.advance(4)
    start = own.monotonic()
    own.stop()
    own.stop()
    await clock.advance(100)
    own.later(3, lambda: due.append("inside"))
    own.later(1, lambda: due.append("cancelled inside")).cancel()
    assert own.monotonic() == start
    own.go()
    own.go()
    await clock.advance(2.9)
    assert due == []
    await clock.advance(0.2)
    assert due == ["inside"]
    await clock.advance(3)
    assert due == ["inside", "before"]
    assert own.monotonic() == pytest.approx(start + 6.1)
    assert own._timers == set()


def test_what_is_kept_back():
    """Frames that are kept go out in their order; those for an archive pass; too many are refused."""
    sent: list[str] = []
    outbox = Outbox(lambda header, _body, _channel: sent.append(header["op"]))
    outbox.hold()
    outbox.send({"op": "a"}, b"", 0)
    outbox.send({"op": "archive.read"}, b"", 0)
    outbox.send({"op": "b"}, b"", 1)
    assert sent == ["archive.read"]
    outbox.release()
    outbox.send({"op": "c"}, b"", 0)
    assert sent == ["archive.read", "a", "b", "c"]
    outbox.hold()
    for _ in range(MAX_KEPT):
        outbox.send({"op": "d"}, b"", 0)
    with pytest.raises(LimitExceeded):
        outbox.send({"op": "d"}, b"", 0)
