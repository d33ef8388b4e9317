"""The host looks at every sandbox before anything runs in it: sandboxes made wrong on purpose are refused."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import cellfork
from cellfork import Limits, Sandbox, Template
from cellfork.guest import linux
from cellfork.model.errors import PostureMismatch, StartupFailed
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes import guest as guests
from cellfork.runtimes import plan
from cellfork.runtimes.guest import ProcessGuest
from cellfork.runtimes.namespaces import layout, readings
from cellfork.runtimes.namespaces.prefork import Fork
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.runtimes.zygote import Launch, Zygote
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell

ROOT = os.geteuid() == 0
BARE = SandboxSpec(template=Template("bare", preload=()), limits=LIMITS)
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")

Edit = tuple[str, str, str]
"""A file of the guest's code, what is replaced in it, and by what."""
Careless = Callable[[Iterable[Edit]], None]


@pytest.fixture
async def runtime(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NamespacesRuntime]:
    """A runtime of its own, which takes for granted that limits hold: here they may be wrong on purpose."""

    async def nothing(*_args: object) -> None:
        pass

    monkeypatch.setattr(NamespacesRuntime, "_test_limits", nothing)
    runtime = NamespacesRuntime(pool=0, prefork=0)
    yield runtime
    await runtime.aclose()


@pytest.fixture
def careless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Careless:
    """Let sandboxes run a copy of the guest's code in which something is left out, or done that should not be."""

    def change(edits: Iterable[Edit]) -> None:
        package = tmp_path / "cellfork"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(cellfork.__file__).parent, package, ignore=ignored)
        for name, old, new in edits:
            path = package / "guest" / name
            text = path.read_text()
            assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
            path.write_text(text.replace(old, new))
        monkeypatch.setattr(plan, "package_directory", lambda: str(package))

    return change


async def refusal(runtime: NamespacesRuntime) -> tuple[str, ...]:
    """Ask for a sandbox; return what the refusal names, after a look that nothing of it is left."""
    taken: list[Fork] = []
    become = runtime._become

    async def watched(fork: Fork, *arguments: Any, **options: Any) -> None:
        taken.append(fork)
        await become(fork, *arguments, **options)

    runtime._become = watched  # type: ignore[method-assign]
    with pytest.raises(PostureMismatch) as caught:
        await runtime.start(BARE)
    runtime._become = become  # type: ignore[method-assign]
    (fork,) = taken
    assert not fork.guest.alive
    assert fork.guest._closed == ("posture", str(caught.value))
    assert fork.group.processes() == []
    assert not any(path.exists() for path in fork.group.directories)
    assert runtime._guests == set()
    assert (runtime.postures.looked_at, runtime.postures.refused) == (1, 1)
    return caught.value.differences


SETTLE = ("init.py", "        locks.lock(plan, fds[0])\n")
SERVE = ("init.py", "        self._watch_children()\n        self._loop.watch(self")
MOUNT = ("sandbox.py", '    disk = plan["disk_path"]\n')


def extra(place: tuple[str, str], line: str) -> Edit:
    """Add a line before or after a place in the guest's code."""
    name, text = place
    indent = " " * (len(text) - len(text.lstrip()))
    return (name, text, f"{indent}{line}\n{text}")


FAULTS: dict[str, tuple[list[Edit], str]] = {
    "capabilities kept": (
        [("locks.py", '    Lock("capabilities", _drop_capabilities, _capabilities_are_gone),\n', "")],
        "CapBnd: expected 0000000000000000, found",
    ),
    "delta filter left out": (
        [("locks.py", '    Lock("seccomp", _filter_calls, _calls_are_filtered),\n', "")],
        "Seccomp_filters: expected",
    ),
    "resource limits left out": (
        [("locks.py", '    Lock("resource limits", _take_limits, _limits_hold),\n', "")],
        "limit Max open files: expected 1024",
    ),
    "the kernel takes no locks": ([(*SETTLE, "")], "kernel: CapEff: expected 0000000000000000, found"),
    "umask": ([("sandbox.py", "os.umask(0o022)", "os.umask(0)")], "Umask: expected 0022, found 0000"),
    "no session": ([("sandbox.py", "    os.setsid()\n", "")], "init: NSsid: expected 1, found 0"),
    "ignored signal": (
        [("sandbox.py", "    os.setsid()\n", "    os.setsid()\n    signal.signal(1, signal.SIG_IGN)\n")],
        "SigIgn: expected",
    ),
    "open file in init": (
        [extra(SERVE, "os.open('/etc/passwd', os.O_RDONLY)")],
        "init: descriptors: expected nothing, found /etc/passwd",
    ),
    "open directory in the kernel": (
        [extra(SETTLE, "os.open('/', os.O_RDONLY)")],
        "kernel: descriptors: expected nothing, found /",
    ),
    "another process": (
        [extra(SERVE, "os.fork() or signal.pause()")],
        "init: children: expected nothing, found",
    ),
    "another thread": (
        [extra(SERVE, "import threading; threading.Thread(target=signal.sigwait, args=([30],)).start()")],
        "init: Threads: expected 1, found 2",
    ),
    "another mount": (
        [extra(MOUNT, "linux.mount('tmpfs', '/mnt', 'tmpfs')")],
        "mount /mnt: expected nothing, found tmpfs",
    ),
    "nothing hidden in /proc": (
        [("sandbox.py", 'linux.mount("/dev/null", path, flags=linux.MS_BIND)', "pass")],
        "mount /proc/keys: expected devtmpfs host:/dev/null noexec nosuid rw, found nothing",
    ),
    "settings of the kernel writable": (
        [("sandbox.py", "linux.bind(path, path, linux.MS_RDONLY | ", "linux.bind(path, path, ")],
        "mount /proc/sys: expected",
    ),
    "no bound on files": (
        [("sandbox.py", ",nr_inodes={plan['inodes']}", "")],
        "mount /tmp, layer 1: expected",
    ),
    "set-uid programs and devices": (
        [("sandbox.py", 'linux.mount("disk", disk, "tmpfs", _NO_DEVICES,', 'linux.mount("disk", disk, "tmpfs", 0,')],
        "mount /run/sandbox: expected",
    ),
    "one network for all": (
        [("sandbox.py", "    linux.setns(net_ns, linux.CLONE_NEWNET)\n", "")],
        "init: namespace net: expected its own, found the zygote's",
    ),
    "one set of queues for all": (
        [("sandbox.py", "linux.CLONE_NEWIPC | ", "")],
        "init: namespace ipc: expected its own, found the zygote's",
    ),
    "not in its control groups": (
        [("sandbox.py", '        os.write(fd, b"0")\n', "")],
        "control groups: expected",
    ),
    "init dies first": (
        [("kernels.py", "        oom.volunteer(oom.KERNEL)\n", "")],
        "kernel: oom_score_adj: expected",
    ),
}  # fmt: skip

SEEN_AS_ROOT: dict[str, tuple[list[Edit], str]] = {
    "another group": (
        [
            ("locks.py", "os.setresgid(USER_ID, USER_ID, USER_ID)", "os.setresgid(USER_ID, USER_ID, 1001)"),
            ("locks.py", "_take_ids, _ids_hold", "_take_ids, lambda _plan: True"),
        ],
        "Gid: expected 1000, found 1001",
    ),
    "init can be dumped": (
        [
            ("locks.py", "linux.prctl(linux.PR_SET_DUMPABLE, 0)", "linux.prctl(linux.PR_SET_DUMPABLE, 1)"),
            ("locks.py", "_refuse_dumps, _dumps_are_refused", "_refuse_dumps, lambda _plan: True"),
        ],
        "init: files of its own belong to: expected the zygote's root, found 1000",
    ),
}
"""As an ordinary user there is one id, which all of them have."""


@pytest.mark.parametrize("fault", [*FAULTS, *(SEEN_AS_ROOT if ROOT else ())])
async def test_a_sandbox_made_wrong_is_refused(fault: str, runtime: NamespacesRuntime, careless: Careless):
    """Whatever the guest forgets or does too much is seen by the host, named, and ends the sandbox: nothing is left."""
    edits, message = (FAULTS | SEEN_AS_ROOT)[fault]
    careless(edits)
    differences = await refusal(runtime)
    assert any(message in line for line in differences), differences


Tamper = Callable[[Launch], None]


def with_variable(launch: Launch) -> None:
    assert launch.plan is not None
    launch.plan["env"]["AWS_SECRET_ACCESS_KEY"] = "x"


def with_more_of_the_host(launch: Launch) -> None:
    assert launch.plan is not None
    launch.plan["root"].append(["bind", "/mnt/etc", "/etc", layout.READ_ONLY])


def with_writable_settings(launch: Launch) -> None:
    assert launch.plan is not None
    entry = next(
        entry for entry in launch.plan["root"] if entry[0] == "bind" and entry[1].startswith("/etc/")
    )
    entry[3] = layout.READ_ONLY & ~linux.MS_RDONLY


def with_less_hidden(launch: Launch) -> None:
    launch.settings["plan"]["proc_hidden_files"].remove("/proc/kallsyms")


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (with_variable, "environment: expected nothing, found AWS_SECRET_ACCESS_KEY"),
        (with_more_of_the_host, "mount /mnt/etc: expected nothing, found"),
        (with_writable_settings, "mount /etc/"),
        (with_less_hidden, "mount /proc/kallsyms: expected"),
    ],
)
async def test_a_zygote_told_wrong_is_seen(
    tamper: Tamper, message: str, runtime: NamespacesRuntime, monkeypatch: pytest.MonkeyPatch
):
    """What is expected comes from the request, not from what was told: a plan that changed on its way is found.

    The zygote forks no more, and the next request gets one that is right.
    """
    launch = Zygote.launch

    async def tampered(told: Launch) -> Zygote:
        tamper(told)
        return await launch(told)

    with monkeypatch.context() as wrong:
        wrong.setattr(Zygote, "launch", tampered)
        differences = await refusal(runtime)
    assert any(message in line for line in differences), differences
    guest = await runtime.start(BARE)
    assert len(guest.info["posture"]) == 64
    assert runtime.postures.refused == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rlimits": []}, "limit Max open files: expected 1024"),
        ({"disk": 1 << 30}, "mount /home/user: expected"),
        ({"inodes": 100_000}, "mount /home/user: expected"),
        ({"shm": 1 << 30}, "mount /dev/shm: expected"),
    ],
)
async def test_a_request_told_wrong_is_seen(
    changes: dict[str, Any], message: str, runtime: NamespacesRuntime, monkeypatch: pytest.MonkeyPatch
):
    """Limits that do not arrive are missed."""
    send = ProcessGuest.send

    def changed(guest: ProcessGuest, header: dict[str, Any], *rest: Any) -> None:
        send(guest, header | changes if header["op"] == "become" else header, *rest)

    monkeypatch.setattr(ProcessGuest, "send", changed)
    differences = await refusal(runtime)
    assert any(message in line for line in differences), differences


async def test_what_cannot_be_read_is_refused(runtime: NamespacesRuntime, monkeypatch: pytest.MonkeyPatch):
    """A kernel that lacks one of the files is not trusted in silence."""
    read = readings._read

    def lacking(name: str, directory: int) -> bytes:
        if name == "setgroups":
            raise FileNotFoundError(2, "No such file", name)
        return read(name, directory)

    await runtime.start(BARE)  # the zygote was looked at while all was there
    runtime.postures.looked_at = 0
    for guest in [*runtime._guests]:
        await guest.kill()
    monkeypatch.setattr(readings, "_read", lacking)
    (difference,) = await refusal(runtime)
    assert difference.startswith("unreadable: ")
    assert "setgroups" in difference


SETTLED = ("python/kernel.py", 'connection.sendall(encode({"op": "settled"}))')


@pytest.mark.parametrize(
    ("instead", "message"),
    [
        ("pass", "did not come up within"),
        ("os._exit(3)", "the first kernel ended before it was locked"),
    ],
)
async def test_a_kernel_that_does_not_settle_is_no_start(
    instead: str,
    message: str,
    runtime: NamespacesRuntime,
    careless: Careless,
    monkeypatch: pytest.MonkeyPatch,
):
    """The host looks when the kernel says that it is locked; one that never does, or dies, is a start that failed."""
    careless([(*SETTLED, instead)])
    monkeypatch.setattr(guests, "START_SECONDS", 1.5)
    with pytest.raises(StartupFailed, match=message):
        await runtime.start(BARE)
    assert runtime.postures.looked_at == 0


async def test_what_waits_in_a_pool_was_looked_at(monkeypatch: pytest.MonkeyPatch):
    """A sandbox that was started ahead is looked at when it is started, and has the same posture as any other."""
    runtime = NamespacesRuntime(pool=1, prefork=0)
    try:
        first = await runtime.start(BARE)
        while not (
            found := [guest for guest in runtime._guests if guest is not first and "posture" in guest.info]
        ):
            await asyncio.sleep(0.01)
        second = await runtime.start(BARE)
        assert second in found
        assert second.info["posture"] == first.info["posture"]
    finally:
        await runtime.aclose()


def test_the_posture_is_told():
    """Its hash is in the sandbox's facts and in every account, equal for equal limits and different for others."""
    with Sandbox.create(limits=LIMITS) as one, Sandbox.create(limits=LIMITS) as same:
        with Sandbox.create(limits=Limits(memory="256M", pids=40, disk="31M")) as other:
            assert one.info.posture == same.info.posture
            assert one.info.posture != other.info.posture
        execution = one.run_code("1 / 0")
        assert execution.accounting.posture == one.info.posture
        assert json.loads(execution.to_json())["accounting"]["posture"] == one.info.posture
    with Sandbox.create(isolation="none") as trusted:
        assert trusted.info.posture is None
        assert trusted.run_code("1").accounting.posture is None


# ------------------------------------------------------------------------------------------- the catalogue


def processes_of(sandbox: Sandbox) -> list[int]:
    """Return the host's pids of init and of everything below it."""
    found = [sandbox.info.features["pid"]]
    for pid in found:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


LOCKS_OF_THREADS = (*SETS, "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters", "SigIgn")
START_THREADS = """
import threading, time
for _ in range(8):
    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
answer = threading.active_count()
"""


@row("D21", "all five capability sets are empty, in init, in kernels, in commands and in their children")
def test_d21_no_capabilities(sandbox: Sandbox):
    """The kernel says so to the host, for every process and thread, and to whoever asks inside."""
    ask(sandbox, START_THREADS)
    handle = sandbox.commands.run("sleep 20 & sleep 20 & wait", background=True)
    while len(pids := processes_of(sandbox)) < 5:  # init, kernel, shell, two more
        time.sleep(0.01)
    statuses = [
        readings.parse_status(text)
        for pid in pids
        for text in readings.read_process(pid, mounts=False).threads
    ]
    handle.kill()
    assert len(statuses) >= 5 + 8
    assert {status[name] for status in statuses for name in SETS} == {"0" * 16}
    inside = ask(sandbox, "answer = [l.split()[1] for l in open('/proc/self/status') if l.startswith('Cap')]")
    assert inside == ["0" * 16] * 5
    listed = shell(sandbox, "grep ^Cap /proc/self/status /proc/$$/status | awk '{print $2}' | sort -u")
    assert listed.stdout.split() == ["0" * 16]


@row("D22", "every thread of every process has the same ids, capabilities and filters")
def test_d22_threads_alike(sandbox: Sandbox):
    """Threads that code starts have the locks of the first one; a filter of its own is all that one can add."""
    ask(sandbox, START_THREADS)
    readings_ = [readings.read_process(pid, mounts=False) for pid in processes_of(sandbox)]
    assert max(len(reading.threads) for reading in readings_) >= 9
    statuses = [readings.parse_status(text) for reading in readings_ for text in reading.threads]
    assert len({tuple(status[name] for name in LOCKS_OF_THREADS) for status in statuses}) == 1


@row("F02", "a kernel and a command have the declared descriptors, and no other up to 65535")
@row("J04", "nothing that the zygote or the host has open is there")
@pytest.mark.parametrize("language", ["python", "bash"])
def test_f02_descriptors(sandbox: Sandbox, language: str):
    """Python code has its streams and, out of the way, the kernel's socket and two pipes; a command only its streams."""
    if language == "python":
        code = """
        import fcntl, os
        answer = {}
        for fd in range(65536):
            try:
                fcntl.fcntl(fd, fcntl.F_GETFD)
            except OSError:
                continue
            answer[fd] = os.readlink(f'/proc/self/fd/{fd}').partition(':')[0]
        """
        found = {int(fd): kind for fd, kind in ask(sandbox, code).items()}
        assert [found.pop(fd) for fd in (0, 1, 2)] == ["/dev/null", "pipe", "pipe"]
        assert sorted(found.values()) == ["pipe", "pipe", "socket"]
        assert min(found) >= 200
    else:
        listed = shell(sandbox, "ls /proc/$$/fd; readlink /proc/$$/fd/*").stdout.split()
        assert [word.partition(":")[0] for word in listed] == ["0", "1", "2", "/dev/null", "pipe", "pipe"]


OWNER = """
import fcntl, json, os, resource, signal, sys
os.umask(0)
os.chdir('/usr')
os.environ['OWNERS_SECRET'] = 'x'
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGINT, signal.SIGALRM})
os.set_inheritable(os.open('/etc/passwd', os.O_RDONLY), True)
from cellfork import Limits, Sandbox, Template
code, command = sys.argv[1:]
with Sandbox.create(template=Template('bare', preload=()), limits=Limits(memory='256M', pids=40)) as sandbox:
    print(json.dumps([sandbox.run_code(code).logs.stdout, sandbox.commands.run(command).stdout]))
"""
"""An owner with odd habits."""

INHERITED = """
import json, os, resource, signal
mask = os.umask(0)
ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
print(json.dumps([mask, ignored, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), os.getcwd(),
                  'OWNERS_SECRET' in os.environ, resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


@row("J12", "umask, signals, directory, environment and limits are the sandbox's own, whoever starts it")
def test_j12_nothing_is_inherited():
    """An owner that ignores and blocks signals, with another umask, directory and environment, changes nothing inside."""
    command = "umask; pwd; grep -E '^Sig(Blk|Ign)' /proc/self/status; env | grep -c OWNERS"
    argv = [sys.executable, "-c", textwrap.dedent(OWNER), INHERITED, f"{command}; true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (printed,), listed = json.loads(done.stdout)
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]  # as in every Python
    assert json.loads(printed) == [0o022, ignored, [], "/home/user", False, [1024, 1024]]
    mask, cwd, blocked, ignored_, secrets = listed.splitlines()
    assert (mask, cwd, secrets) == ("0022", "/home/user", "0")
    assert blocked.split()[1] == "0" * 16
    # The C library ignores two signals of its own in what it spawns.
    assert int(ignored_.split()[1], 16) & ~sum(1 << (number - 1) for number in (*ignored, 32, 33)) == 0
