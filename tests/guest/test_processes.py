"""Commands: streams, ends, signals, terminals, hostile ones."""

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfork.guest.processes import MAX_QUEUED, Processes
from cellfork.model.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotADirectory,
    NotFound,
    PathNotFound,
    PathNotPermitted,
    Unsupported,
)
from cellfork.wire.frames import Frame
from tests.guest.driver import Driver

PATH = "/usr/local/bin:/usr/bin:/bin"


class Commands(Driver):
    """Starts commands and looks at what they gave."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.service = Processes(
            self.loop, self.link, base_env={"PATH": PATH, "HOME": str(home), "BASE": "1"}
        )
        self.serve(self.service.operations())
        self.reap_for(self.service.exited)
        self.last = 0
        self.pids: dict[int, int] = {}

    def start(self, *argv: str, **fields: Any) -> int:
        self.last += 1
        fields = {"cwd": "", "envs": {}, "user": "user", "stdin": False, "pty": None, **fields}
        self.pids[self.last] = self.call("process.start", process=self.last, argv=list(argv), **fields)["pid"]
        return self.last

    def shell(self, script: str, **fields: Any) -> int:
        return self.start("/bin/sh", "-c", script, **fields)

    def exit_of(self, process: int, timeout: float = 60.0) -> Frame:
        self.wait(lambda: self.frames("process.exit", process=process), timeout)
        ends = self.frames("process.exit", process=process)
        assert len(ends) == 1
        assert self.frames_of(process)[-1] is ends[0], "the exit is the last word"
        return ends[0]

    def code(self, process: int) -> int:
        code: int = self.exit_of(process).header["code"]
        return code

    def frames_of(self, process: int) -> list[Frame]:
        return [frame for frame in self.link.frames if frame.header.get("process") == process]

    def output(self, process: int, stream: str = "stdout") -> bytes:
        return self.body("process.output", process=process, stream=stream)

    def run(self, script: str, **fields: Any) -> bytes:
        process = self.shell(script, **fields)
        assert self.code(process) == 0, self.output(process, "stderr")
        return self.output(process, "pty" if fields.get("pty") else "stdout")


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    driver = Commands(tmp_path)
    yield driver
    driver.service.stop_all()
    driver.wait(lambda: not driver.service._processes)
    driver.close()


# Start


def test_streams_and_exit_code(commands):
    """Each stream arrives under its name, then the exit with the code and no signal."""
    process = commands.shell("echo out; echo err >&2; exit 3")
    end = commands.exit_of(process)
    assert (commands.output(process), commands.output(process, "stderr")) == (b"out\n", b"err\n")
    assert (end.header["code"], end.header["signal"]) == (3, None)


def test_arguments_are_not_a_shell(commands):
    """Arguments reach the program as they are: spaces, quotes, newlines, empty ones."""
    arguments = ["a b", "$HOME", "'\"", "", "x\ny", "é"]
    process = commands.start("printf", "[%s]", *arguments)
    commands.exit_of(process)
    assert commands.output(process).decode() == "".join(f"[{argument}]" for argument in arguments)


def test_environment_is_the_base_overlaid(commands, monkeypatch):
    """The environment is the base with the request over it, and nothing of init's own."""
    monkeypatch.setenv("SECRET_OF_INIT", "1")
    shown = commands.run("env", envs={"BASE": "2", "QUOTE": 'it\'s "so"\n', "EMPTY": ""}).decode()
    assert "BASE=2\n" in shown
    assert 'QUOTE=it\'s "so"\n\n' in shown
    assert "EMPTY=\n" in shown
    assert "SECRET_OF_INIT" not in shown


def test_working_directory(commands, tmp_path):
    """``cwd`` is the command's; relative ones start at HOME; init's own stays."""
    (tmp_path / "below").mkdir()
    here = os.getcwd()
    assert commands.run("pwd", cwd="below").decode().strip() == str(tmp_path / "below")
    assert commands.run("pwd", cwd="~").decode().strip() == str(tmp_path)
    assert commands.run("pwd").decode().strip() == str(tmp_path)
    assert os.getcwd() == here


def test_program_beside_the_working_directory(commands, tmp_path):
    """A command with a slash is found from the working directory."""
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\necho mine\n")
    script.chmod(0o755)
    process = commands.start("./tool", cwd=str(tmp_path))
    commands.exit_of(process)
    assert commands.output(process) == b"mine\n"


def test_path_of_the_request_is_searched(commands, tmp_path):
    """PATH of the request decides where a command is found; files that are not executable are passed over."""
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tool").write_text(f"#!/bin/sh\necho {name}\n")
        (tmp_path / name / "tool").chmod(mode)
    process = commands.start("tool", envs={"PATH": f"{tmp_path}/first:{tmp_path}/second"})
    commands.exit_of(process)
    assert commands.output(process) == b"second\n"


@pytest.mark.parametrize(
    "argv, fields, error, words",
    [
        (["no-such-command"], {}, PathNotFound, "no such command in PATH"),
        (["/no/such"], {}, PathNotFound, "'/no/such'"),
        (["true"], {"cwd": "/no/such"}, PathNotFound, "'/no/such'"),
        (["true"], {"cwd": "/etc/passwd"}, NotADirectory, "'/etc/passwd'"),
        (["/etc/passwd"], {}, PathNotPermitted, "'/etc/passwd'"),
        (["/etc"], {}, PathNotPermitted, "'/etc'"),
        (["./data"], {}, PathNotPermitted, "not a program"),
        (["./lost"], {}, PathNotFound, "interpreter in its first line"),
        (["plain"], {"envs": {"PATH": "."}}, PathNotPermitted, "not executable"),
        (["true"], {"user": "nobody"}, Unsupported, "'user'"),
        (["true", "x" * 200_000], {}, LimitExceeded, "too long"),
        ([], {}, InvalidRequest, "argv"),
        ([""], {}, InvalidRequest, "argv"),
        (["true", 1], {}, InvalidRequest, "text"),
        (["a\0b"], {}, InvalidRequest, "NUL"),
        (["true", "\udc80"], {}, InvalidRequest, "surrogate"),
        (["true"], {"envs": {"A=B": "1"}}, InvalidRequest, "="),
        (["true"], {"envs": {"": "1"}}, InvalidRequest, "empty"),
        (["true"], {"envs": {"A": "\0"}}, InvalidRequest, "NUL"),
        (["true"], {"envs": {"A": 1}}, InvalidRequest, "text"),
        (["true"], {"envs": []}, InvalidRequest, "envs"),
        (["true"], {"stdin": 1}, InvalidRequest, "stdin"),
        (["true"], {"pty": [0, 80]}, InvalidRequest, "rows"),
        (["true"], {"pty": [24]}, InvalidRequest, "pty"),
        (["true"], {"pty": [24, 70_000]}, InvalidRequest, "cols"),
        (["no-such-command"], {"pty": [24, 80]}, PathNotFound, "PATH"),
    ],
)
def test_start_refuses(commands, tmp_path, argv, fields, error, words):
    """Whatever cannot be started is refused with its reason, leaves nothing open, and the number stays free."""
    (tmp_path / "data").write_bytes(b"\x00\x01")
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "plain").write_text("")
    for name in ("data", "lost"):
        (tmp_path / name).chmod(0o755)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=re.escape(words)):
        commands.start(*argv, **fields)
    assert sorted(os.listdir("/proc/self/fd")) == before
    commands.last -= 1
    assert commands.code(commands.start("true")) == 0


def test_process_limit_is_a_limit(commands, monkeypatch):
    """A sandbox whose process limit is reached says so."""

    def refuse(*_args: object, **_options: object) -> int:
        raise OSError(errno.EAGAIN, "no")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with pytest.raises(LimitExceeded, match="limit of processes"):
        commands.start("true")


def test_root_is_the_same_user_with_another_name(commands):
    """Who asks for root gets root's name, and the rights that everybody has."""
    line = 'test "$USER $LOGNAME $(id -u)" = "root root '
    for user in ("root", "0"):
        process = commands.start("sh", "-c", f'{line}{os.getuid()}"', user=user)
        assert commands.code(process) == 0


def test_own_user_by_any_name(commands):
    """The sandbox's user may be named, numbered or left out."""
    for user in ("", "user", "1000"):
        assert commands.code(commands.start("true", user=user)) == 0


def test_number_is_used_once_at_a_time(commands):
    """Two live commands cannot have one number."""
    process = commands.start("sleep", "60")
    with pytest.raises(Conflict):
        commands.call("process.start", process=process, argv=["true"])


def test_nothing_of_init_is_inherited(commands):
    """A command gets descriptors 0 to 2 only, also where init holds inheritable ones."""
    end, other = os.pipe()
    os.set_inheritable(other, True)
    try:
        shown = commands.run("ls /proc/self/fd").split()
    finally:
        os.close(end)
        os.close(other)
    assert shown == [b"0", b"1", b"2", b"3"]  # 3 is ls's own


def test_signals_are_at_their_defaults(commands):
    """A command starts with no signal ignored or blocked, whatever init did."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        status = commands.run("cat /proc/self/status").decode()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGUSR1, before)
    for name in ("SigBlk", "SigIgn"):
        mask = int(re.findall(rf"{name}:\t(\w+)\n", status)[0], 16)
        assert mask & ~(0b11 << 31) == 0, status  # 32 and 33 are the C library's own
    assert commands.run("yes | head -n 1") == b"y\n"


def test_own_session(commands):
    """A command leads a session and a process group of its own."""
    process = commands.shell("ps -o sid=,pgid= -p $$ 2>/dev/null || cut -d' ' -f5,6 /proc/$$/stat")
    commands.exit_of(process)
    assert {int(part) for part in commands.output(process).split()} == {commands.pids[process]}


# Output and exit


def test_megabytes_arrive_whole(commands):
    """Output larger than any pipe arrives complete and in order, in pieces of bounded size, before the exit."""
    process = commands.shell("seq 1 400000; seq 1 1000 >&2")
    commands.exit_of(process)
    assert commands.output(process) == b"".join(b"%d\n" % n for n in range(1, 400_001))
    assert commands.output(process, "stderr") == b"".join(b"%d\n" % n for n in range(1, 1001))
    assert max(len(frame.body) for frame in commands.frames("process.output")) <= 64 * 1024


def test_output_is_sent_while_the_command_runs(commands):
    """What is written is sent at once, not at the end."""
    process = commands.shell("echo now; sleep 60")
    commands.wait(lambda: commands.output(process) == b"now\n", 5)
    assert not commands.frames("process.exit")


def test_daemon_holding_the_pipe(commands, tmp_path):
    """A child left behind with the streams open delays the exit by a bounded time; nothing is lost before it."""
    pid_file = tmp_path / "pid"
    started = time.monotonic()
    process = commands.shell(
        f"(setsid sh -c 'echo $$ > {pid_file}; sleep 0.2; echo late; exec sleep 60' &); echo early"
    )
    end = commands.exit_of(process)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert end.header["code"] == 0
    assert commands.output(process) == b"early\nlate\n"
    assert 0.4 < time.monotonic() - started < 3


def test_flood_from_a_child_left_behind(commands, tmp_path):
    """A child left behind that writes without end cannot delay the exit; the closed pipe ends it."""
    process = commands.shell("yes & echo $! >&2")
    started = time.monotonic()
    commands.exit_of(process, 10)
    assert time.monotonic() - started < 5
    pid = int(commands.output(process, "stderr"))
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}/stat") and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline, "yes still runs"
        time.sleep(0.01)


def test_flood_does_not_starve_others(commands):
    """While one command writes without end, others start, are answered and end."""
    flood = commands.start("yes")
    assert commands.run("echo quick") == b"quick\n"
    commands.call("process.signal", process=flood, signal=9)
    assert commands.code(flood) == 137


def test_streams_closed_early(commands):
    """A command that closes its streams and goes on is not taken for ended."""
    process = commands.shell("exec >&- 2>&-; sleep 0.3; exit 4")
    commands.turn_for(0.1)
    assert not commands.frames("process.exit")
    assert commands.code(process) == 4


def test_many_at_once(commands):
    """Fifty commands at once each get their own output and code."""
    started = [commands.shell(f"echo {n}; exit {n}") for n in range(50)]
    for n, process in enumerate(started):
        assert commands.code(process) == n
        assert commands.output(process) == b"%d\n" % n


def test_strangers_are_not_ours(commands):
    """A pid that no command has is left to others."""
    assert not commands.service.exited(2**22 + 1, 0)


# Signals


def test_killed_by_signal(commands):
    """The end by a signal is told as 128 + n and as the signal's number."""
    process = commands.start("sleep", "60")
    commands.call("process.signal", process=process, signal=signal.SIGTERM)
    assert commands.exit_of(process).header | {"op": ""} == {
        "op": "",
        "process": process,
        "code": 143,
        "signal": 15,
    }


def test_signal_reaches_the_whole_group(commands):
    """A signal goes to the command's process group: children of a shell end as well."""
    process = commands.shell("sleep 60 & echo $!; wait")
    child = int(commands.wait(lambda: commands.output(process)))
    commands.call("process.signal", process=process, signal=9)
    assert commands.code(process) == 137
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{child}/stat") and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ignoring_sigterm(commands):
    """A command that ignores SIGTERM goes on, and ends by SIGKILL."""
    process = commands.shell("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    commands.wait(lambda: commands.output(process))
    commands.call("process.signal", process=process, signal=15)
    commands.turn_for(0.2)
    assert not commands.frames("process.exit", process=process)
    commands.call("process.signal", process=process, signal=9)
    assert commands.exit_of(process).header["signal"] == 9


def test_never_signals_a_reaped_pid(commands, monkeypatch):
    """After the command was reaped its pid may be somebody else's: no signal is sent, the caller is told."""
    process = commands.shell("sleep 5 & exit 0")  # the sleep holds the pipes, so the record lives on
    pid = commands.pids[process]
    commands.wait(lambda: not commands.service._by_pid)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("signalled"))
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda target, _: sent.append(target))
    with pytest.raises(Conflict, match="has ended"):
        commands.call("process.signal", process=process, signal=9)
    commands.exit_of(process)
    with pytest.raises(Conflict, match="has ended"):
        commands.call("process.signal", process=process, signal=9)
    commands.service.stop_all()
    assert sent == []
    monkeypatch.undo()
    os.killpg(pid, signal.SIGKILL)  # the sleep that was left


def test_signal_to_a_zombie(commands):
    """A command that has ended but was not reaped takes a signal without an error."""
    process = commands.start("true")
    time.sleep(0.1)
    commands.call("process.signal", process=process, signal=15)
    assert commands.code(process) == 0


@pytest.mark.parametrize("number", [0, -1, 32, 65, 10**9, True, "9", None])
def test_signal_that_does_not_exist(commands, number):
    """Only real signals can be sent."""
    process = commands.start("sleep", "60")
    with pytest.raises(InvalidRequest):
        commands.call("process.signal", process=process, signal=number)


def test_unknown_process(commands):
    """A number that was never given is not found; one that has ended is a conflict."""
    with pytest.raises(NotFound):
        commands.call("process.signal", process=77, signal=9)
    process = commands.start("true")
    commands.exit_of(process)
    for op, fields in (
        ("process.signal", {"signal": 9}),
        ("process.stdin", {"eof": True}),
        ("process.resize", {"rows": 1, "cols": 1}),
    ):
        with pytest.raises(Conflict, match="has ended"):
            commands.call(op, process=process, **fields)


def test_stop_all(commands):
    """``stop_all`` kills every command, also those that ignore signals."""
    started = [commands.shell("trap '' TERM INT HUP; sleep 60"), commands.start("sleep", "60", pty=[24, 80])]
    commands.service.stop_all()
    assert [commands.exit_of(process).header["signal"] for process in started] == [9, 9]


# stdin


def test_stdin_is_empty_by_default(commands):
    """Without ``stdin`` a command reads end of file at once, and cannot be written to."""
    assert commands.run("cat; readlink /proc/self/fd/0") == b"/dev/null\n"
    process = commands.start("sleep", "60")
    with pytest.raises(Conflict, match="is closed"):
        commands.call("process.stdin", b"x", process=process, eof=False)


def test_stdin_and_eof(commands):
    """What is written arrives in order; ``eof`` ends it; writing afterwards is a conflict."""
    process = commands.start("cat", stdin=True)
    commands.call("process.stdin", b"one\n", process=process, eof=False)
    commands.wait(lambda: commands.output(process) == b"one\n")
    commands.call("process.stdin", b"two\n", process=process, eof=True)
    with pytest.raises(Conflict):
        commands.call("process.stdin", b"three\n", process=process, eof=False)
    assert commands.code(process) == 0
    assert commands.output(process) == b"one\ntwo\n"


def test_stdin_answers_when_taken_over(commands):
    """The answer comes when the last byte was taken over: a command that reads nothing holds it back."""
    process = commands.shell("sleep 0.3; cat | wc -c", stdin=True)
    request = commands.begin("process.stdin", bytes(1_000_000), process=process, eof=True)
    commands.turn_for(0.1)
    assert commands.answer(request) is None
    assert commands.result(request) == {}
    assert commands.code(process) == 0
    assert commands.output(process).strip() == b"1000000"


def test_stdin_queue_is_bounded(commands):
    """What waits for a command that does not read is bounded; the refused bytes are not written."""
    process = commands.start("sleep", "60", stdin=True)
    first = commands.begin("process.stdin", bytes(MAX_QUEUED), process=process, eof=False)
    with pytest.raises(LimitExceeded):
        commands.call("process.stdin", bytes(MAX_QUEUED), process=process, eof=False)
    commands.call("process.signal", process=process, signal=9)
    commands.exit_of(process)
    with pytest.raises(Conflict):
        commands.result(first)


def test_stdin_closed_by_the_command(commands):
    """Writing to a command that closed its stdin is a conflict for everybody who waits; the command lives."""
    process = commands.shell("exec <&-; echo closed; sleep 60", stdin=True)
    commands.wait(lambda: commands.output(process))
    requests = [commands.begin("process.stdin", b"x", process=process, eof=False) for _ in range(3)]
    for request in requests:
        with pytest.raises(Conflict, match="stdin"):
            commands.result(request)
    assert not commands.frames("process.exit")


def test_stdin_of_a_killed_command(commands):
    """Bytes that wait when the command dies are refused before its exit is told."""
    process = commands.start("sleep", "60", stdin=True)
    request = commands.begin("process.stdin", bytes(500_000), process=process, eof=False)
    commands.call("process.signal", process=process, signal=9)
    with pytest.raises(Conflict):
        commands.result(request)
    commands.exit_of(process)
    order = [frame.header["op"] for frame in commands.link.frames]
    assert order.index("process.exit") == len(order) - 1


# Terminals


def test_terminal(commands):
    """With ``pty`` all three streams are one controlling terminal of the wanted size; output is one stream."""
    shown = commands.run("tty; stty size; echo $TERM; echo err >&2; echo > /dev/tty", pty=[30, 100]).decode()
    lines = shown.split("\r\n")
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:] == ["30 100", "xterm-256color", "err", "", ""]


def test_term_of_the_request_wins(commands):
    """TERM of the request is kept."""
    assert commands.run("echo $TERM", pty=[24, 80], envs={"TERM": "vt100"}) == b"vt100\r\n"


def test_resize(commands):
    """A new size reaches the program as SIGWINCH."""
    process = commands.shell(
        "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done", pty=[24, 80]
    )
    commands.wait(lambda: b"ready" in commands.output(process, "pty"))
    commands.call("process.resize", process=process, rows=50, cols=132)
    assert commands.code(process) == 0
    assert b"50 132" in commands.output(process, "pty")


def test_resize_without_terminal(commands):
    """A command without a terminal has no size."""
    process = commands.start("sleep", "60")
    with pytest.raises(Conflict, match="no terminal"):
        commands.call("process.resize", process=process, rows=1, cols=1)
    with pytest.raises(InvalidRequest):
        commands.call("process.resize", process=process, rows=0, cols=1)


def test_typing_into_a_terminal(commands):
    """Input is typed: echoed, ctrl-C interrupts, end of file ends ``cat``."""
    process = commands.start("cat", pty=[24, 80])
    commands.call("process.stdin", b"hello\n", process=process, eof=False)
    commands.wait(lambda: commands.output(process, "pty") == b"hello\r\nhello\r\n")
    commands.call("process.stdin", b"", process=process, eof=True)
    assert commands.code(process) == 0

    process = commands.start("cat", pty=[24, 80])
    commands.call("process.stdin", b"\x03", process=process, eof=False)
    assert commands.exit_of(process).header["signal"] == signal.SIGINT


def test_terminal_opened_again(commands):
    """A command may close its terminal, which does not hang it up, and open it again."""
    process = commands.shell("exec <&- >&- 2>&-; sleep 0.2; echo back > /dev/tty; exit 5", pty=[24, 80])
    end = commands.exit_of(process)
    assert (end.header["code"], commands.output(process, "pty")) == (5, b"back\r\n")


def test_terminal_output_is_complete(commands):
    """All that was written to a terminal before the exit arrives."""
    for _ in range(5):
        shown = commands.run("seq 1 20000", pty=[24, 80])
        assert shown == b"".join(b"%d\r\n" % n for n in range(1, 20_001))


def test_terminal_held_by_a_child_left_behind(commands, tmp_path):
    """A child that ignores the hang-up and keeps the terminal delays the exit by a bounded time only."""
    pid_file = tmp_path / "pid"
    process = commands.shell(
        f"(trap '' HUP; setsid sh -c 'echo $$ > {pid_file}; exec sleep 60' & ); sleep 0.2; echo bye",
        pty=[24, 80],
    )
    end = commands.exit_of(process, 5)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert end.header["code"] == 0
    assert commands.output(process, "pty") == b"bye\r\n"
