"""Execs and commands: states, output with numbers, bounds, stdin, timeouts."""

import asyncio

import pytest

from cellfork.engine.exec_log import ExecLog
from cellfork.engine.output import complete_length
from cellfork.engine.values import CommandTimeout
from cellfork.model.errors import (
    CommandFailed,
    Conflict,
    InvalidRequest,
    NotFound,
    PathNotFound,
    SandboxGone,
)
from cellfork.model.specs import ExecSpec, PtySize
from cellfork.testing.fakes import settle
from tests.engine.conftest import Stage


def sh(command: str, **fields) -> ExecSpec:
    return ExecSpec(("sh", "-c", command), **fields)


async def test_states(stage: Stage):
    """CREATED until it is started, then RUNNING, EXITED by itself, STOPPED by us."""
    execs = stage.sandbox.execs
    exec_ = await execs.create(sh("hang"), autostart=False)
    assert (exec_.status, exec_.pid, stage.guest.requests("process.start")) == ("CREATED", None, [])
    await exec_.start()
    await exec_.start()
    assert (exec_.status, exec_.pid) == ("RUNNING", 101)
    assert len(stage.guest.requests("process.start")) == 1
    exec_.kill()
    await exec_.wait()
    assert (exec_.status, exec_.exit_code, exec_.signal) == ("STOPPED", 137, 9)
    other = await execs.create(sh("exit 3"))
    await other.wait()
    assert (other.status, other.exit_code) == ("EXITED", 3)
    with pytest.raises(Conflict):
        await other.start()
    assert execs.list() == [exec_, other]


async def test_output_is_replayed_with_numbers_and_ends_with_the_exit_code(stage: Stage):
    """A stream that is opened late begins at the start; ``after`` leaves out what is known; the last has the code."""
    exec_ = await stage.sandbox.execs.create(sh("print a; warn b; exit 3"))
    await exec_.wait()
    found = [item async for item in exec_.stream_output()]
    assert [(item.sequence, item.type, item.output, item.exit_code) for item in found] == [
        (1, "stdout", "a\n", None),
        (2, "stderr", "b\n", None),
        (3, "stdout", "", 3),
    ]
    assert [item async for item in exec_.stream_output(after=1)] == found[1:]
    assert exec_.log.text("stdout", "stderr") == "a\nb\n"


async def test_run_joins_both_streams(stage: Stage):
    """Together's ``exec``: a number and the output in the order of arrival."""
    assert await stage.sandbox.execs.run(sh("print a; warn b; exit 3")) == (3, "a\nb\n")


async def test_run_without_exit_code_is_a_runtime_error(stage: Stage):
    """A command that the sandbox took with it has no exit code, and that is an error."""
    run = asyncio.ensure_future(stage.sandbox.execs.run(sh("hang")))
    await settle()
    await stage.sandbox.kill()
    with pytest.raises(RuntimeError, match="stream ended without an exit code"):
        await run


async def test_delete_kills_and_forgets(stage: Stage):
    """After ``delete`` the exec is gone, and so is its process."""
    exec_ = await stage.sandbox.execs.create(sh("hang"))
    await stage.sandbox.execs.delete(exec_.id)
    assert exec_.status == "STOPPED"
    with pytest.raises(NotFound):
        stage.sandbox.execs.get(exec_.id)
    unstarted = await stage.sandbox.execs.create(sh("x"), autostart=False)
    await stage.sandbox.execs.delete(unstarted.id)
    assert stage.sandbox.execs.list() == []


async def test_start_errors_leave_nothing(stage: Stage):
    """A program that does not exist is a typed error, and no exec stays behind."""
    stage.guest.missing_programs = {"nope"}
    with pytest.raises(PathNotFound):
        await stage.sandbox.execs.create(ExecSpec(("nope",)))
    assert stage.sandbox.execs.list() == []


@pytest.mark.parametrize("argv", [(), ("",), ("sh", "a\0b"), ("sh", "\ud800"), ("sh", "x" * 200_000)])
async def test_malformed_arguments(stage: Stage, argv):
    """What cannot be an argument is refused before anything is sent."""
    with pytest.raises(InvalidRequest):
        await stage.sandbox.execs.create(ExecSpec(argv))
    assert stage.guest.sent == []


async def test_stdin_and_resize(stage: Stage):
    """Input goes in pieces that a frame can hold; the size of a terminal is data."""
    exec_ = await stage.sandbox.execs.create(sh("cat", stdin=True, pty=PtySize(1, 2)))
    await exec_.send_stdin(b"x" * 300_000)
    assert [len(frame.body) for frame in stage.guest.sent if frame.header["op"] == "process.stdin"] == [
        262_144,
        37_856,
    ]
    await exec_.resize(PtySize(30, 100))
    assert stage.guest.requests("process.resize")[0] == {
        "op": "process.resize",
        "id": stage.guest.requests("process.resize")[0]["id"],
        "process": 1,
        "rows": 30,
        "cols": 100,
    }
    await exec_.send_stdin(b"", eof=True)
    await exec_.wait()
    assert exec_.exit_code == 0
    with pytest.raises(Conflict):
        await exec_.send_stdin(b"late")


@pytest.mark.parametrize(("command", "signals"), [("hang", [15]), ("deaf", [15, 9])])
async def test_timeout_escalates(stage: Stage, command: str, signals: list[int]):
    """SIGTERM first, SIGKILL two seconds later; the output so far is kept."""
    exec_ = await stage.sandbox.execs.create(sh("print kept; " + command), timeout=5)
    await stage.clock.advance(7)
    assert exec_.timed_out
    assert [header["signal"] for header in stage.guest.requests("process.signal")] == signals
    assert exec_.log.text("stdout") == "kept\n"


async def test_a_deadly_timeout(stage: Stage):
    """A timeout that is deadly ends a command with SIGKILL at once, and one that has ended before not at all."""
    exec_ = await stage.sandbox.execs.create(sh("deaf"), timeout=5, deadly=True)
    await stage.clock.advance(4.9)
    assert exec_.status == "RUNNING"
    await stage.clock.advance(0.2)
    assert (exec_.status, exec_.signal, exec_.timed_out) == ("STOPPED", 9, True)
    assert [request["signal"] for request in stage.guest.requests("process.signal")] == [9]
    quick = await stage.sandbox.execs.create(sh("exit 3"), timeout=5, deadly=True)
    await quick.wait()
    await stage.clock.advance(10)
    assert (quick.status, quick.exit_code, quick.timed_out) == ("EXITED", 3, False)


async def test_the_end_is_told(stage: Stage):
    """Whoever asked is told once that a command ended, at once where it has already, and when its sandbox ends."""
    told: list[object] = []
    exec_ = await stage.sandbox.execs.create(sh("hang"))
    exec_.when_ended(told.append)
    assert told == []
    exec_.kill()
    await exec_.wait()
    exec_.when_ended(told.append)
    assert told == [exec_, exec_]
    other = await stage.sandbox.execs.create(sh("hang"))
    other.when_ended(told.append)
    await stage.sandbox.kill()
    assert told[2:] == [other]


async def test_exit_in_the_same_breath_as_the_start(stage: Stage):
    """An exit that is read together with the reply to the start is not lost, nor is the pid."""

    def start(guest, header, body):
        guest.say({"op": "reply", "id": header["id"], "ok": True, "result": {"pid": 7}})
        guest.say({"op": "process.output", "process": header["process"], "stream": "stdout"}, b"x")
        guest.say({"op": "process.exit", "process": header["process"], "code": 4, "signal": None})

    stage.guest.script["process.start"] = start
    exec_ = await stage.sandbox.execs.create(sh("x"))
    assert (exec_.status, exec_.pid, exec_.exit_code, exec_.log.text("stdout")) == ("EXITED", 7, 4, "x")


async def test_frames_of_unknown_processes_change_nothing(stage: Stage):
    """Output and exits of a process that nobody started are ignored."""
    stage.guest.say({"op": "process.output", "process": 9, "stream": "stdout"}, b"x")
    stage.guest.say({"op": "process.exit", "process": 9, "code": 0, "signal": None})
    assert stage.sandbox.state == "running"


async def test_command_result(stage: Stage):
    """A command's streams are apart, and nothing of it is kept."""
    result = await stage.sandbox.commands.run("print a; warn b", ExecSpec(()), None)
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("a\n", "b\n", 0, None)
    assert stage.guest.requests("process.start")[0]["argv"] == ["/bin/bash", "-c", "print a; warn b"]
    assert stage.sandbox.execs.list() == []


async def test_command_failure_carries_everything(stage: Stage):
    """An exit code other than 0 raises, with the output."""
    with pytest.raises(CommandFailed) as caught:
        await stage.sandbox.commands.run("print a; warn b; exit 2", ExecSpec(()), None)
    assert (caught.value.exit_code, caught.value.stdout, caught.value.stderr) == (2, "a\n", "b\n")


async def test_command_timeout_keeps_what_was_written(stage: Stage):
    """A command whose time ran out raises, with its output so far."""
    run = asyncio.ensure_future(stage.sandbox.commands.run("print a; hang", ExecSpec(()), 5))
    await settle()
    await stage.clock.advance(5)
    with pytest.raises(CommandTimeout) as caught:
        await run
    assert (caught.value.stdout, str(caught.value)) == (
        "a\n",
        "the command did not end within 5 s and was stopped",
    )


async def test_command_without_bash(stage: Stage):
    """Where there is no bash, sh runs the commands, and bash is not tried again."""
    stage.guest.missing_programs = {"/bin/bash"}
    for _ in range(2):
        assert (await stage.sandbox.commands.run("print a", ExecSpec(()), None)).stdout == "a\n"
    shells = [header["argv"][0] for header in stage.guest.requests("process.start")]
    assert shells == ["/bin/bash", "/bin/sh", "/bin/sh"]


async def test_command_in_a_sandbox_that_dies(stage: Stage):
    """The command's waiter is told that the sandbox is gone, not that the command failed."""
    run = asyncio.ensure_future(stage.sandbox.commands.run("hang", ExecSpec(()), None))
    await settle()
    stage.guest.close("memory", "full")
    with pytest.raises(SandboxGone):
        await run


async def test_cancelled_command_is_killed(stage: Stage):
    """Cancelling the wait kills the command."""
    run = asyncio.ensure_future(stage.sandbox.commands.run("hang", ExecSpec(()), None))
    await settle()
    run.cancel()
    await settle()
    assert stage.guest.processes == {}


async def test_terminal_has_a_size_and_a_name(stage: Stage):
    """A terminal is an interactive shell whose output is one stream of bytes."""
    exec_ = await stage.sandbox.commands.start_terminal(ExecSpec((), envs={"A": "1"}), PtySize(3, 4), None)
    (header,) = stage.guest.requests("process.start")
    assert (header["pty"], header["argv"], header["stdin"]) == ([3, 4], ["/bin/bash", "-i"], True)
    assert header["envs"]["TERM"] == "xterm-256color"
    assert header["envs"]["A"] == "1"
    await exec_.end()


def test_log_keeps_head_and_tail():
    """Of more than the limit the first and the last half are kept, with a marker of what is missing."""
    log = ExecLog(10_000)
    for index in range(1000):
        log.add("stdout", f"{index:04}|".encode(), 0)
    log.end(0, 0)
    text = log.text("stdout")
    assert text.startswith("0000|0001|")
    assert text.endswith("0998|0999|")
    dropped = 5000 - len(text.replace("\n", "").split("…")[0]) - len(text.split("…\n")[-1])
    assert f"\n… {dropped:,} bytes of output dropped …\n" in text
    assert log.size <= 11_000
    sequences = [item.sequence for item in log.since(0)]
    assert sequences == sorted(set(sequences))
    assert log.since(sequences[-2])[0].exit_code == 0


def test_log_since_is_what_it_says():
    """For every number, what comes after it is a suffix of everything."""
    log = ExecLog(2_000)
    for _ in range(50):
        log.add("stdout", b"x", 0)
    everything = log.since(0)
    for number in range(60):
        assert log.since(number) == [item for item in everything if item.sequence > number]


def test_characters_are_not_cut():
    """A piece ends where a character ends; a rest that never becomes one is passed on at the end."""
    log = ExecLog(10_000)
    for byte in "é€𝄞".encode():
        log.add("stdout", bytes([byte]), 0)
    log.add("stdout", "€".encode()[:2], 0)
    log.end(0, None)
    assert [item.output for item in log.since(0)] == ["é", "€", "𝄞", "\ufffd"]


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (b"", 0),
        (b"a", 1),
        (b"a\xc3", 1),
        (b"\xe2\x82", 0),
        (b"\xf0\x9d\x84", 0),
        (b"\x80\x80\x80\x80", 4),
        (b"\xff", 1),
    ],
)
def test_complete_length(data: bytes, complete: int):
    """Only what may become a character is held back."""
    assert complete_length(data) == complete
