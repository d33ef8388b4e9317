"""Rows B: processes that do not want to end, and what stays when they have."""

import asyncio
import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellfork import Sandbox
from cellfork.engine.values import CommandTimeout
from cellfork.guest.loop import Loop
from cellfork.guest.marks import MOST, SPREAD, Mark, Sweep, strike_all
from cellfork.model.errors import SandboxGone, StartupFailed
from cellfork.model.events import TimedOut
from cellfork.runtimes import guest as guests
from cellfork.testing.leaks import descendants
from scripts import kills
from tests.lifecycle import programs
from tests.lifecycle.test_owner import OWNER
from tests.security.adversaries import ADVERSARIES
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell

GRACE = 2.0
"""Seconds for which each step of stopping waits."""
KILL_SECONDS = 1.0
"""What a kill may take at most; on an idle machine it takes milliseconds."""

INIT, KERNEL = "cellfork-init", "cellfork-python"
STUBBORN = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"


def left_in(sandbox: Sandbox) -> list[str]:
    """Return the names of the processes of a sandbox, as the host sees them."""
    return [line.split(" ", 1)[1] for line in kills.processes_in(kills.namespace_of(sandbox._remote))]


def wait_for(fact: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


@contextmanager
def killed(sandbox: Sandbox) -> Iterator[None]:
    """The block is followed by a kill that leaves nothing, in time."""
    namespace = kills.namespace_of(sandbox._remote)
    yield
    started = time.monotonic()
    sandbox.kill()
    wait_for(lambda: not list(kills.processes_in(namespace)))
    assert time.monotonic() - started < KILL_SECONDS
    assert kills.groups_of(sandbox._remote) == []


# ------------------------------------------------------------------------------- what does not want to end


@row("B01", "interrupt, then the kernel is killed: a typed timeout; the context works on")
def test_b01_loop_that_ignores_signals_python(sandbox):
    """Code that ignores and blocks every signal loses its kernel one grace after its timeout."""
    execution = sandbox.run_code(ADVERSARIES["ignores every signal"], timeout=0.2)
    assert execution.status == "timed_out"
    assert isinstance(execution.terminal, TimedOut)
    assert execution.terminal.step == "terminate"
    assert left_in(sandbox) == [INIT]
    assert sandbox.run_code("1 + 1").text == "2"


@row("B01", "SIGTERM, then SIGKILL: a typed timeout")
def test_b01_loop_that_ignores_signals_bash(sandbox):
    """A command that ignores every signal is killed one grace after its timeout."""
    started = time.monotonic()
    with pytest.raises(CommandTimeout):
        sandbox.commands.run("trap '' INT TERM HUP QUIT; while :; do :; done", timeout=0.2)
    assert time.monotonic() - started < 0.2 + GRACE + 5
    wait_for(lambda: "bash" not in left_in(sandbox))


@row("B02", "what a kernel started ends with it, in whatever session; what others started lives on")
@row("B03", "stopped processes are killed all the same")
@pytest.mark.parametrize(
    "adversary",
    ["double fork", "stops itself and its children", "bash, disowned", "other terminals and groups"],
)
def test_b02_daemons_end_with_their_context(sandbox, adversary):
    """Removing a context leaves nothing of it, and everything of another context and of a command."""
    sandbox.commands.run("setsid sleep 1000 >/dev/null 2>&1 & disown")
    other = sandbox.create_code_context()
    sandbox.run_code(
        "import os\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', '2000'])",
        context=other,
    )
    context = sandbox.create_code_context()
    sandbox.run_code(ADVERSARIES[adversary], context=context, timeout=0.3)
    sandbox.remove_code_context(context)
    wait_for(lambda: sorted(left_in(sandbox)) == [INIT, KERNEL, "sleep", "sleep"])
    assert sandbox.run_code("6 * 7", context=other).text == "42"


@row("B02", "a timeout that ends the kernel ends its daemons before it is told")
def test_b02_daemons_end_with_a_timeout(sandbox):
    """When the terminal event of a timed-out execution is there, its daemons are gone."""
    execution = sandbox.run_code(f"{ADVERSARIES['double fork']}\n{STUBBORN}\nwhile True: pass", timeout=0.3)
    assert execution.status == "timed_out"
    assert left_in(sandbox) == [INIT]


@row("B02", "a kernel that ends by itself takes its daemons along")
@pytest.mark.parametrize("ending", ["os._exit(3)", "os.kill(os.getpid(), 9)", "exit()"])
def test_b02_daemons_end_with_a_kernel_that_ends(sandbox, ending):
    """However a kernel ends, nothing that it started stays."""
    sandbox.run_code(f"{ADVERSARIES['double fork']}\nimport os\n{ending}")
    wait_for(lambda: left_in(sandbox) == [INIT])


@row("B02", "a kill of the sandbox ends daemons of cells and of commands")
@row("B03", "stopped processes are killed all the same")
def test_b02_daemons_end_with_the_sandbox():
    """Daemons and stopped processes of Python and of bash are gone when kill() returns."""
    sandbox = Sandbox.create(limits=LIMITS)
    with killed(sandbox):
        sandbox.run_code(ADVERSARIES["double fork"])
        shell(
            sandbox, "for i in 1 2 3; do setsid nohup bash -c 'kill -STOP $$' >/dev/null 2>&1 & disown; done"
        )
        shell(sandbox, "for i in 1 2 3; do (trap '' TERM INT HUP; sleep 1000) >/dev/null 2>&1 & disown; done")
        assert len(left_in(sandbox)) >= 10


@row("B03", "a sandbox whose processes have all stopped one another is killed, and its context before that")
def test_b03_everybody_is_stopped(sandbox):
    """A storm of SIGSTOP to everybody reaches neither init nor the kill."""
    execution = sandbox.run_code(ADVERSARIES["stops everybody"], timeout=0.3)
    assert execution.status == "timed_out"
    assert left_in(sandbox) == [INIT]
    sandbox.run_code(ADVERSARIES["stops itself and its children"], timeout=0.1)
    with killed(sandbox):
        pass


def _stop_the_zygote(sandbox: Sandbox) -> Iterator[None]:
    """Nobody hears of init's end: its parent is stopped."""
    init = sandbox._remote.guest.info["pid"]
    zygote = int(re.findall(r"PPid:\s+(\d+)", Path(f"/proc/{init}/status").read_text())[0])
    os.kill(zygote, signal.SIGSTOP)
    yield
    os.kill(zygote, signal.SIGCONT)


def _freeze_init(sandbox: Sandbox) -> Iterator[None]:
    """Init sleeps where no signal reaches it, SIGKILL included: the freezer of version 1."""
    group = Path("/sys/fs/cgroup/freezer") / f"cellfork-test-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(sandbox._remote.guest.info["pid"]))
    (group / "freezer.state").write_text("FROZEN")
    yield
    (group / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


STUCK = [_stop_the_zygote]
if os.access("/sys/fs/cgroup/freezer", os.W_OK):
    STUCK.append(_freeze_init)


@row(
    "B04", "the sandbox counts as ended within a deadline; its place is given back when the kernel lets it go"
)
@pytest.mark.parametrize("stuck", STUCK)
def test_b04_what_cannot_be_interrupted(monkeypatch, stuck):
    """kill() returns in bounded time though a process does not die; when it does, everything is given back."""
    monkeypatch.setattr(guests, "LEAVE_SECONDS", 0.3)
    sandbox = Sandbox.create(limits=LIMITS)
    sandbox.run_code("1")
    remote = sandbox._remote
    namespace = kills.namespace_of(remote)
    blocking = contextmanager(stuck)(sandbox)
    with blocking:
        started = time.monotonic()
        sandbox.kill()
        assert 0.2 < time.monotonic() - started < 3
        with pytest.raises(SandboxGone):
            sandbox.run_code("1")
        assert kills.groups_of(remote)
    wait_for(lambda: not kills.groups_of(remote))
    assert not list(kills.processes_in(namespace))


@row(
    "B05", "every fork is killed: there is no moment between a look and the next in which one is born unseen"
)
@pytest.mark.parametrize(
    "adversary", sorted({"forks for ever", "relay", "relays", "bomb"} & ADVERSARIES.keys())
)
def test_b05_fork_storm_races_the_end_of_its_context(sandbox, adversary):
    """Neither generations that end as soon as they have forked, nor a bomb at the limit, outlive their context."""
    context = sandbox.create_code_context()
    ending = threading.Timer(0.15, sandbox.remove_code_context, [context])
    ending.start()
    sandbox.run_code(ADVERSARIES[adversary], context=context, timeout=10)
    ending.join()
    wait_for(lambda: left_in(sandbox) == [INIT], 3)
    assert sandbox.run_code("1 + 1").text == "2"


@row("B05", "the kill of a control group is atomic")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_b05_fork_storm_races_the_kill(language):
    """A sandbox in the middle of a fork storm is gone when kill() returns."""
    sandbox = Sandbox.create(limits=LIMITS)
    with killed(sandbox):
        if language == "python":
            storm = ADVERSARIES.get("bomb", ADVERSARIES["forks for ever"])
            sandbox.run_code(f"import os\nif os.fork() == 0:\n    os.setsid()\n    exec({storm!r})")
        else:
            sandbox.commands.run("f() { f | f & }; f", background=True)
        wait_for(lambda: len(left_in(sandbox)) > 20, 10)


@row("B06", "init takes no signal of its sandbox; the kernel is lost, typed, and replaced")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_b06_kill_everybody(sandbox, language):
    """SIGKILL and SIGSTOP to process 1 and to everybody end what runs, never the sandbox."""
    if language == "python":
        execution = sandbox.run_code(f"{ADVERSARIES['kills everybody']}", timeout=20)
        assert execution.status == "lost"
    else:
        sandbox.run_code("1")
        done = shell(sandbox, "kill -9 1; kill -STOP 1; kill -TERM 1; kill -9 -1")
        assert done.exit_code in {0, 137}
        assert sandbox.run_code("1").status in {"ok", "lost"}  # the kernel's end may not have been told yet
    assert sandbox.run_code("1 + 1").text == "2"
    wait_for(lambda: sorted(left_in(sandbox)) == [INIT, KERNEL])


@row("B07", "the sandbox is gone within five seconds")
def test_b07_the_owner_is_killed():
    """Sandboxes of a program that was killed with SIGKILL end with it."""
    with programs.program(OWNER) as owner:
        assert programs.hear(owner) == "busy"
        pids = programs.processes_of(owner.pid)
        owner.kill()
        owner.wait()
        assert programs.wait_until(lambda: not programs.alive(pids), 5) < 5
    kills_of_groups = [path for path in programs.groups_of(owner.pid) if path]
    for path in kills_of_groups:
        os.rmdir(path)


# ------------------------------------------------------------------------------------ pids and reaping


@row("B08", "init reaps; no zombie stays, inside or on the host")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_b08_zombies(sandbox, language):
    """Orphans that end are reaped as they do; nothing of them counts against the limit of processes."""
    if language == "python":
        code = "import os\nfor _ in range(100):\n    if os.fork() == 0:\n        os.fork()\n        os._exit(0)\n    os.wait()"
        assert sandbox.run_code(code).status == "ok"
    else:
        assert shell(sandbox, "for i in $(seq 300); do (true &); done").exit_code == 0
    wait_for(lambda: shell(sandbox, "ps -eo stat | grep -c '^Z'").stdout.strip() == "0")
    with killed(sandbox):
        pass
    wait_for(lambda: not any(process.state == "Z" for process in descendants(os.getpid())))


@row("B09", "a kill goes to a process by its descriptor, whoever has its number since")
def test_b09_a_number_that_was_given_anew(monkeypatch):
    """Where a process ends and is reaped between the look and the kill, the signal reaches nobody."""
    child = subprocess.Popen(["sleep", "100"])
    own = os.pidfd_open(child.pid)
    mark = Mark.fresh()

    def end_meanwhile(_mark: Mark, _pid: int) -> bool:
        signal.pidfd_send_signal(own, signal.SIGKILL)
        child.wait()
        return True

    def by_number(*_arguments: int) -> None:
        raise AssertionError("a signal by number may hit whoever has the number now")

    monkeypatch.setattr(Mark, "is_on", end_meanwhile)
    monkeypatch.setattr(os, "kill", by_number)
    monkeypatch.setattr(os, "killpg", by_number)
    try:
        assert mark.strike(child.pid)
    finally:
        os.close(own)


@row("B09", "the host kills by descriptors, and refuses what has ended")
def test_b09_signals_come_too_late(sandbox, monkeypatch):
    """A command that has ended is told so; killing a sandbox whose init is gone kills nobody."""
    handle = sandbox.commands.run("exit 0", background=True)
    handle.wait()
    assert handle.kill() is False
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    sandbox.kill()
    sandbox.kill()
    assert sent == []


@row("B10", "exactly one terminal event: a result or a timeout")
def test_b10_timeout_at_the_very_end(sandbox):
    """Code that ends when its time does has one end, and the next execution is not touched by it."""
    sandbox.run_code("import time")
    for n in range(20):
        events = list(sandbox.stream_code("time.sleep(0.02)", timeout=0.02 + (n - 10) * 2e-4))
        assert [type(event).__name__ for event in events if hasattr(event, "accounting")][1:] == []
        assert type(events[-1]).__name__ in {"Finished", "TimedOut"}
    assert sandbox.run_code("1 + 1").text == "2"


@row("B11", "idempotent: nothing is stopped twice, no place is lost")
def test_b11_cancel_before_twice_and_after(sandbox):
    """An interrupt before anything ran, twice while it does, and after it ended does what it says once."""
    assert sandbox.interrupt() is False
    ended = []
    thread = threading.Thread(target=lambda: ended.append(sandbox.run_code("import time; time.sleep(60)")))
    thread.start()
    wait_for(sandbox.interrupt)
    sandbox.interrupt()
    thread.join(10)
    assert [execution.status for execution in ended] == ["interrupted"]
    assert sandbox.interrupt() is False
    command = sandbox.commands.run("sleep 100", background=True)
    assert command.kill() is True
    wait_for(lambda: command.kill() is False)
    assert sandbox.run_code("1 + 1").text == "2"
    wait_for(lambda: sorted(left_in(sandbox)) == [INIT, KERNEL])


ENDINGS = {
    "os._exit(3)": "code 3",
    "os.abort()": "SIGABRT",
    "ctypes.string_at(0)": "SIGSEGV",
    "os.kill(os.getpid(), signal.SIGILL)": "SIGILL",
    "os.kill(os.getpid(), signal.SIGBUS)": "SIGBUS",
    "os.kill(os.getpid(), signal.SIGFPE)": "SIGFPE",
    "os.kill(os.getpid(), signal.SIGSYS)": "SIGSYS",
}


@row("B12", "a typed end that names the signal; the next run has a fresh kernel")
def test_b12_kernels_that_crash(sandbox):
    """However the interpreter dies the execution is ``lost`` and says how; the next one works."""
    for ending, told in ENDINGS.items():
        execution = sandbox.run_code(f"import ctypes, os, signal\nkept = 1\n{ending}", timeout=20)
        assert execution.status == "lost", ending
        assert execution.error is not None
        assert told in execution.error.value
        assert sandbox.run_code("'kept' in globals()").text == "False"


@row("B12", "sys.exit is no crash; the exit code of a command names its signal")
def test_b12_commands_that_crash(sandbox):
    """A command that a signal ended has the code 128 + n; ``sys.exit`` in a cell ends in an answer."""
    for number in (signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGABRT, signal.SIGKILL):
        assert shell(sandbox, f"kill -{int(number)} $$").exit_code == 128 + number
    assert sandbox.run_code("import sys; sys.exit(3)").status in {"ok", "error"}
    assert sandbox.run_code("1 + 1").text == "2"


@row("B13", "the context goes on with a new kernel; nobody waits for ever")
@pytest.mark.parametrize(
    "adversary", ["closes everything", "replaces everything", "sweeps descriptors with frames"]
)
def test_b13_descriptors_closed_and_replaced(sandbox, adversary):
    """A kernel that lost its own descriptors is lost, soon, and what it forked ends with it."""
    started = time.monotonic()
    execution = sandbox.run_code(ADVERSARIES[adversary], timeout=10)
    assert execution.status == "lost"
    assert time.monotonic() - started < 8
    assert left_in(sandbox) == [INIT]
    assert sandbox.run_code("1 + 1").text == "2"


@row("B13", "a command without descriptors ends as any other")
def test_b13_descriptors_of_a_command(sandbox):
    """A shell that closes what it has is waited for and reported."""
    script = 'exec 0<&- 1>&- 2>&-; for fd in /proc/self/fd/*; do eval "exec ${fd##*/}>&-"; done; exit 7'
    assert shell(sandbox, script).exit_code == 7


@row("B14", "bounded, then killed")
def test_b14_a_kernel_that_does_not_leave(sandbox):
    """Exit handlers, threads and forks at the end delay a kernel for one grace; then it is ended with all of them."""
    sandbox.run_code(ADVERSARIES["never leaves"])
    started = time.monotonic()
    assert sandbox.run_code("1 + 1", timeout=60).text == "2"
    assert time.monotonic() - started < GRACE + 8
    wait_for(lambda: sorted(left_in(sandbox)) == [INIT, KERNEL])


@row("B15", "reaped and ended: no way to be waited for differently helps")
@pytest.mark.parametrize(
    "adversary",
    [
        "stopped vfork",
        "children without a signal",
        "a reaper of its own",
        "signals of a parent",
        "first thread ends",
    ],
)
def test_b15_dodging_the_wait(sandbox, adversary):
    """vfork with a stopped child, other exit signals, a reaper in between, a first thread that is gone: all end."""
    context = sandbox.create_code_context()
    sandbox.run_code(ADVERSARIES[adversary], context=context, timeout=0.3)
    sandbox.remove_code_context(context)
    wait_for(lambda: left_in(sandbox) == [INIT])


@row("B15", "ptrace is refused, so that nothing can be held in a tracing stop")
def test_b15_no_tracing(sandbox):
    """PTRACE_TRACEME and PTRACE_SEIZE answer EPERM."""
    code = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    answer = []
    for request, pid in ((0, 0), (0x4206, os.getppid())):
        libc.ptrace(request, pid, 0, 0)
        answer.append(ctypes.get_errno())
    """
    assert ask(sandbox, code) == [errno.EPERM, errno.EPERM]


@row(
    "B02",
    "a process that lowers the limits by which it is known stays known; one that is not marked never is",
)
def test_b02_marks_cannot_be_forged(sandbox):
    """Lowering its own limits only makes a process belong to more kernels; raising them is refused."""
    context = sandbox.create_code_context()
    sandbox.run_code(ADVERSARIES["lowers its limits"], context=context)
    code = """
    import resource
    answer = []
    for number in (10, resource.RLIMIT_RSS):
        hard = resource.getrlimit(number)[1]
        for wish in (hard + 1, resource.RLIM_INFINITY):
            try:
                resource.setrlimit(number, (wish, wish))
                answer.append('raised')
            except (OSError, ValueError):
                answer.append('refused')
    """
    assert ask(sandbox, code) == ["refused"] * 4
    sandbox.remove_code_context(context)
    wait_for(lambda: sorted(left_in(sandbox)) == [INIT, KERNEL])


def test_marks_of_two_kernels_tell_them_apart():
    """No mark covers another: what belongs to one kernel can never come to belong to another one instead."""
    marks = [Mark.fresh() for _ in range(200)]
    for one in marks:
        assert not any(
            other is not one and other.locks <= one.locks and other.resident <= one.resident
            for other in marks
        )


def test_a_mark_is_recognised_and_nothing_else_is():
    """From outside a mark shows as one; limits that are lower, higher or unchanged do not."""
    for locks, resident in ((MOST, MOST), (1 << 63, 1 << 63), (1 << 50, 1 << 45)):
        low = Mark(min(locks, MOST) - 7, min(resident, MOST) - SPREAD + 7)
        assert low.is_from(locks, resident)
        for other in (
            Mark(low.locks - 1, low.resident),
            Mark(low.locks, low.resident - 1),
            Mark(low.locks + 7, low.resident - 7),
        ):
            assert not other.is_from(locks, resident)
    assert not Mark(MOST, MOST).is_from(MOST, MOST)


@row("B06", "limits that a sandbox takes from its own init are its own loss, typed")
def test_b06_limits_of_init(sandbox):
    """Where code lowers the limits of init, what cannot be done any more is refused, and the kill is as good as ever."""
    sandbox.run_code("kept = 1")
    code = """
    import resource
    answer = []
    for number in (10, resource.RLIMIT_RSS):
        try:
            resource.prlimit(1, number, (0, 0))
            answer.append('lowered')
        except OSError:
            answer.append('refused')
    """
    lowered = "lowered" in ask(sandbox, code)
    assert sandbox.run_code("kept").text == "1"
    if lowered:
        with pytest.raises(StartupFailed):
            sandbox.create_code_context()
    with killed(sandbox):
        sandbox.run_code(ADVERSARIES["double fork"])


def test_a_sweep_that_finds_nobody_says_so():
    """Nobody carries a new mark, this process included; who ends while the machine's processes are looked at is no reason to stop."""
    done = []
    mark = Mark.fresh()
    loop = Loop()
    Sweep(loop, mark, lambda: done.append(1)).look()
    until = time.monotonic() + 20
    while not done and time.monotonic() < until:
        loop.run_once(0.1)
    loop.close()
    assert done == [1]
    assert not all(strike_all(mark) for _ in range(100))


# -------------------------------------------------------------------------------------- clocks, rights


@row("B16", "EPERM")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_b16_clocks_cannot_be_set(sandbox, language):
    """No clock of the machine can be set or adjusted from inside."""
    if language == "bash":
        done = shell(sandbox, "date -s '2001-01-01'; date +%Y")
        assert int(done.stdout.split()[-1]) > 2020
        return
    code = """
    import ctypes, time
    libc = ctypes.CDLL(None, use_errno=True)
    answer = []
    for call in (lambda: libc.settimeofday(bytes(16), None), lambda: libc.clock_settime(0, bytes(16)),
                 lambda: libc.clock_settime(1, bytes(16)), lambda: libc.adjtimex(b'\\x01' + bytes(207)),
                 lambda: libc.clock_adjtime(0, b'\\x01' + bytes(207))):
        ctypes.set_errno(0)
        answer.append(call() == -1 and ctypes.get_errno())
    """
    assert set(ask(sandbox, code)) <= {errno.EPERM, errno.EINVAL}
    assert errno.EPERM in ask(sandbox, code)


@row("B16", "deadlines use the monotonic clock of the host")
def test_b16_the_hosts_clock_jumps(sandbox, monkeypatch):
    """A jump of the time of day, there and back, neither ends an execution early nor keeps it alive."""
    real, jump = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + jump[0])
    monkeypatch.setattr(time, "time", lambda: (real() + jump[0]) / 1e9)
    for seconds in (3600, -7200):
        jump[0] = seconds * 10**9
        assert sandbox.run_code("import time; time.sleep(0.2)", timeout=20).status == "ok"
        started = time.monotonic()
        assert sandbox.run_code("time.sleep(60)", timeout=0.3).status == "timed_out"
        assert 0.3 <= time.monotonic() - started < 5


@row("B17", "no gain: no_new_privs, nosuid, and no right to set file capabilities")
def test_b17_setuid_and_file_capabilities(sandbox):
    """A program with the set-user-id bit runs as its caller; file capabilities cannot be given; mounts are nosuid."""
    code = """
    import glob, os, shutil, stat, subprocess
    program = '/home/user/id'
    shutil.copy('/usr/bin/id', program)
    os.chmod(program, 0o6755)
    own = subprocess.run([program, '-u'], capture_output=True, text=True).stdout.strip()
    try:
        os.setxattr(program, 'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))
        capability = 'given'
    except OSError as error:
        capability = error.errno
    found = [p for p in glob.glob('/usr/bin/*') if os.path.isfile(p) and os.stat(p).st_mode & stat.S_ISUID]
    loose = [p for p in found + [program, '/tmp', '/dev/shm', '/'] if not os.statvfs(p).f_flag & os.ST_NOSUID]
    answer = [own, capability, loose, os.stat(program).st_uid]
    """
    own, capability, loose, owner = ask(sandbox, code)
    assert own == "1000" == str(owner)
    assert capability in {errno.EPERM, errno.EOPNOTSUPP, errno.EACCES}
    assert loose == []


@row("B17", "no gain in bash either")
def test_b17_setuid_programs_of_the_system(sandbox):
    """A set-user-id program of the host gives its caller nothing: no effective id, no capability."""
    script = """
    for program in $(find /usr/bin -perm -4000 -type f 2>/dev/null | head -20); do
        setsid $program </dev/null >/dev/null 2>&1 &
        grep -h -E '^(Uid|CapEff|CapPrm):' /proc/$!/status 2>/dev/null
    done
    grep -h -E '^(Uid|CapEff|CapPrm):' /proc/self/status
    """
    done = shell(sandbox, script)
    facts = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert facts == {
        ("Uid:", "1000", "1000", "1000", "1000"),
        ("CapEff:", "0" * 16),
        ("CapPrm:", "0" * 16),
    }


# ----------------------------------------------------------------------------------------- the campaign


@row("B02", "nothing survives, whatever it tries: a short form of the campaign")
@row("B05", "nothing survives")
@row("B15", "nothing survives")
def test_b02_campaign(monkeypatch):
    """Sixty kills of contexts and sandboxes with adversaries drawn at random leave nothing."""
    monkeypatch.setattr(kills, "GRACE", 0.3)  # that less of it is spent on waiting
    campaign = asyncio.run(kills.run(60, seed=int.from_bytes(os.urandom(4), "big")))
    assert campaign.count == 60
    assert campaign.survivors == []
    assert max(value for values in campaign.times.values() for value in values) < kills.PATIENCE * 1000
