"""Absences: whatever the host lacks, a sandbox is what was asked for or is refused with the name of what is missing.

System calls are taken away by a filter around a program of its own (``absences.py``), so that the boot stage, the
zygote and every fork meet them as they would meet a host that lacks them.  In every case: a typed refusal, no
process, mount, control group or descriptor left behind, and never a weaker sandbox instead.
"""

import asyncio
import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfork import (
    CellforkError,
    InvalidRequest,
    IsolationUnavailable,
    Limits,
    Sandbox,
    StartupFailed,
    Template,
    Unsupported,
)
from cellfork.engine.runtimes import LazyRuntimes, RuntimeEntry
from cellfork.guest import linux
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes.namespaces import seccomp
from cellfork.runtimes.namespaces.cgroups import CONTROLLERS, Cgroups, Group, Hierarchy, remove_when_empty
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.runtimes.waiting import until
from cellfork.testing.leaks import Snapshot, descendants, find_leaks
from tests.security.catalogue import row

BARE = Template("bare", preload=())
NO_LIMITS = Limits(memory=None, cpu=None, pids=None)
SPEC = SandboxSpec(template=BARE, limits=NO_LIMITS)
ROOT = os.geteuid() == 0
TYPED = {"IsolationUnavailable", "StartupFailed", "PostureMismatch", "SandboxGone"}
ANSWER = "a typed refusal that names what is missing; never a weaker sandbox; nothing left behind"

PROC, TMPFS = 14, 6
"""Flags with which /proc and a tmpfs are mounted."""


def ask(environ: dict[str, str] | None = None, **wanted: Any) -> dict[str, Any]:
    """Run the program of ``absences.py`` and return what it tells."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.absences", json.dumps(wanted)],
        env={**os.environ, "CELLFORK_PREFORK": "0", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def assert_refused(told: dict[str, Any], *names: str) -> None:
    assert told["error"] in TYPED, told
    assert "isolation" not in told
    for name in names:
        assert name.lower() in told["message"].lower(), told
    assert told["left"] == ""


def assert_whole(told: dict[str, Any]) -> None:
    assert (told["error"], told.get("isolation"), told.get("answer")) == (None, "namespaces", "42"), told
    assert told["left"] == ""


EQUAL, UNEQUAL, ANY_BIT = "equal", "unequal", "any bit"
ABSENT: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "no namespaces allowed": (["unshare", errno.EPERM, None, "", 0], ("namespaces", "unshare")),
    "no namespaces left": (["unshare", errno.ENOSPC, None, "", 0], ("namespaces", "unshare")),
    "no namespaces known": (["unshare", errno.ENOSYS, None, "", 0], ("namespaces", "unshare")),
    "no user namespace": (
        ["unshare", errno.EPERM, 0, ANY_BIT, linux.CLONE_NEWUSER],
        ("namespace", "unshare"),
    ),
    "no namespace to enter": (["setns", errno.EPERM, None, "", 0], ("setns",)),
    "no mounts": (["mount", errno.EPERM, None, "", 0], ("root", "mount")),
    "no /proc": (["mount", errno.EPERM, 3, EQUAL, PROC], ("mount proc",)),
    "no tmpfs": (["mount", errno.ENODEV, 3, EQUAL, TMPFS], ("mount tmpfs",)),
    "no read-only binds": (["mount", errno.EPERM, 3, ANY_BIT, linux.MS_REMOUNT], ("mount",)),
    "no pivot_root": (["pivot_root", errno.EINVAL, None, "", 0], ("pivot_root",)),
    "no umount": (["umount2", errno.EPERM, None, "", 0], ("umount",)),
    "no host name": (["sethostname", errno.EPERM, None, "", 0], ("sethostname",)),
    "no seccomp": (["prctl", errno.EINVAL, 0, EQUAL, linux.PR_SET_SECCOMP], ("seccomp",)),
    "no no_new_privs": (["prctl", errno.EINVAL, 0, EQUAL, linux.PR_SET_NO_NEW_PRIVS], ("NO_NEW_PRIVS",)),
    "no dropping of the bounding set": (
        ["prctl", errno.EPERM, 0, EQUAL, linux.PR_CAPBSET_DROP],
        ("capabilities",),
    ),
    "no securebits": (["prctl", errno.EPERM, 0, EQUAL, linux.PR_SET_SECUREBITS], ("securebits",)),
    "no clearing of ambient capabilities": (
        ["prctl", errno.EPERM, 0, EQUAL, linux.PR_CAP_AMBIENT],
        ("AMBIENT",),
    ),
    "no capset": (["capset", errno.EPERM, None, "", 0], ("capset",)),
    "no hiding of memory": (["prctl", errno.EPERM, 0, EQUAL, linux.PR_SET_DUMPABLE], ("DUMPABLE",)),
    "no death signal": (["prctl", errno.EPERM, 0, EQUAL, linux.PR_SET_PDEATHSIG], ("PDEATHSIG",)),
    "landlock without rulesets": (["landlock_create_ruleset", errno.ENOMEM, 2, EQUAL, 0], ("landlock",)),
    "landlock without rules": (["landlock_add_rule", errno.ENOMEM, None, "", 0], ("landlock",)),
    "landlock that restricts nothing": (["landlock_restrict_self", errno.EPERM, None, "", 0], ("landlock",)),
    "no change of user": (["setresuid", errno.EPERM, None, "", 0], ("ids",)),
    "no change of group": (["setresgid", errno.EPERM, None, "", 0], ("ids",)),
    "no process limits": (["prlimit64", errno.EPERM, 2, UNEQUAL, 0], ()),
    "no sibling processes": (
        ["clone", errno.EAGAIN, 0, EQUAL, linux.CLONE_PARENT | linux.SIGCHLD],
        ("clone",),
    ),
    "no processes": (["clone", errno.EAGAIN, None, "", 0], ("unavailable",)),
    "no threads": (["clone3", errno.EAGAIN, None, "", 0], ("thread",)),
    "no pidfd": (["pidfd_open", errno.ENOSYS, None, "", 0], ("pidfd",)),
    "no close_range": (["close_range", errno.ENOSYS, None, "", 0], ("close_range",)),
    "no descriptors over sockets": (["sendmsg", errno.EPERM, None, "", 0], ("zygote",)),
    "no programs to start": (["execve", errno.EACCES, None, "", 0], ("permission denied",)),
}
if ROOT:
    ABSENT["no groups to give up"] = (["setgroups", errno.EPERM, None, "", 0], ("groups",))


@row("D01", ANSWER)
@pytest.mark.parametrize("absence", ABSENT)
def test_d01_system_calls_that_fail(absence: str) -> None:
    """Each step of the isolation that fails refuses the sandbox, and the refusal says which step."""
    rule, names = ABSENT[absence]
    assert_refused(ask(refuse=[rule]), *names)


def test_the_filter_itself_takes_nothing_away() -> None:
    """Below a filter that refuses what nobody calls, all is as it should be: the refusals above are not the filter's doing."""
    assert_whole(ask(refuse=[["acct", errno.EPERM, None, "", 0]]))


def test_landlock_is_told_absent() -> None:
    """Landlock may be absent, which the runtime tells; the other locks are all there."""
    absent = [["landlock_create_ruleset", errno.ENOSYS, None, "", 0]]
    assert_whole(ask(refuse=absent))
    code = (
        "import json, sys\n"
        "from tests.security.absences import take_away\n"
        f"take_away({{'refuse': {absent!r}}})\n"
        "from cellfork.runtimes.namespaces.cgroups import Cgroups\n"
        "from cellfork.runtimes.namespaces.runtime import describe_host\n"
        "print(describe_host(Cgroups({}))['landlock'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("absent")


def test_no_user_namespaces_by_sysctl() -> None:
    """In a namespace in which no further user namespaces may be made, the refusal says so."""
    program = f"""
        echo 0 > /proc/sys/user/max_user_namespaces &&
        exec {sys.executable} -m tests.security.absences '{{}}'
    """
    done = subprocess.run(
        ["unshare", "--user", "--map-user=1000", "--keep-caps", "sh", "-c", program],
        env={**os.environ, "CELLFORK_PREFORK": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_refused(json.loads(done.stdout.splitlines()[-1]), "unshare")


# ------------------------------------------------------------------------------------------ control groups


@pytest.mark.parametrize("absent", CONTROLLERS)
async def test_a_controller_is_missing(absent: str) -> None:
    """A limit whose controller is absent is refused by its name; asking for no such limit is the only way around."""
    found = Cgroups.detect()
    some = Cgroups({name: hierarchy for name, hierarchy in found.hierarchies.items() if name != absent})
    async with runtime(some) as namespaces:
        with pytest.raises(IsolationUnavailable) as refused:
            await namespaces.start(SandboxSpec(template=BARE, limits=Limits(memory="128M", pids=20)))
        assert [missing.feature for missing in refused.value.missing] == [f"cgroup {absent}"]


async def test_control_groups_cannot_be_written() -> None:
    """A tree in which no group can be made is no tree."""
    base = Path("/proc/sys/kernel")
    tree = Hierarchy(2, base, base, frozenset({*CONTROLLERS, "unified"}))
    async with runtime(Cgroups(dict.fromkeys(tree.controllers, tree))) as namespaces:
        with pytest.raises(CellforkError, match="group could not be made"):
            await namespaces.start(SPEC)


def test_no_place_for_control_groups() -> None:
    """Where the place that was named does not exist, every limit is missing by name."""
    told = ask({"CELLFORK_CGROUP": "/no-such-group"}, limits={"memory": "128M", "pids": 20})
    assert_refused(told)
    assert sorted(told["missing"]) == ["cgroup cpu", "cgroup memory", "cgroup pids"]


# ------------------------------------------------------------------------------------ the host's own limits


@pytest.mark.parametrize("most", [3, 4, 5, 6, 8, 10])
@row(
    "A01", "a host without processes to spare refuses a sandbox, typed; it neither hangs nor leaves anything"
)
def test_a01_few_processes_for_the_host(few: "Few", most: int) -> None:
    """With room for so few processes a create ends in bounded time, whole or refused, whichever step had no room."""
    with few.group(pids=most) as paths:
        told = ask(group=paths)
    if told["error"] is None:
        assert_whole(told)
    else:
        assert_refused(told)


@row(
    "I06",
    "a host without descriptors to spare refuses a sandbox, typed; it neither hangs nor leaves anything",
)
@pytest.mark.parametrize("free", range(4, 28, 2))
def test_i06_few_descriptors_for_the_host(free: int) -> None:
    """Whichever step finds no descriptor left, what was opened before is closed."""
    told = ask(descriptors=free)
    if told["error"] is None:
        assert_whole(told)
    else:
        assert_refused(told)


@row("I07", "a host without memory to spare refuses a sandbox, typed; it neither hangs nor leaves anything")
@pytest.mark.parametrize("most", ["24M", "40M", "56M", "66M"])
def test_i07_little_memory_for_the_host(few: "Few", most: str) -> None:
    """Where the host's processes are killed for want of memory, there is a refusal, or no program left to be refused."""
    with few.group(memory=most) as paths:
        try:
            told = ask(group=paths)
        except AssertionError:
            return  # the program itself was killed: it got nothing
    if told["error"] is None:
        assert_whole(told)
    else:
        assert_refused(told)


@row("I05", "a host without space for files refuses a sandbox, typed")
def test_i05_no_space_for_files() -> None:
    """Where no file can be made, the root of a sandbox cannot be built, and the refusal says so."""
    assert_refused(ask(refuse=[["openat", errno.ENOSPC, 2, ANY_BIT, os.O_CREAT]]), "root", "space")


@row("I05", "a host without space for files refuses a sandbox, typed")
def test_i05_files_that_cannot_grow() -> None:
    """Where not a byte can be written to a file, there is a refusal as well."""
    assert_refused(ask(rlimits=[["RLIMIT_FSIZE", 0]]))


class Few:
    """Makes control groups with small limits, for the program that asks."""

    def __init__(self) -> None:
        self._cgroups = Cgroups.detect()

    @contextlib.contextmanager
    def group(self, **limits: Any) -> Iterator[list[str]]:
        group: Group = self._cgroups.create(f"few{os.getpid()}")
        try:
            if "pids" in limits:
                (group.paths["pids"] / "pids.max").write_text(str(limits["pids"]))
            if "memory" in limits:
                self._cgroups.limit(group, Limits(memory="32M", cpu=None, pids=None))
                name = (
                    "memory.max"
                    if self._cgroups.hierarchies["memory"].version == 2
                    else "memory.limit_in_bytes"
                )
                with contextlib.suppress(OSError):
                    (group.paths["memory"] / "memory.memsw.limit_in_bytes").write_text("-1")
                (group.paths["memory"] / name).write_text(limits["memory"])
            yield [str(path) for path in group.directories]
        finally:
            assert asyncio.run(until(lambda: _emptied(group), 20))
            assert asyncio.run(remove_when_empty(group, 20))


def _emptied(group: Group) -> bool:
    """Remove the groups of sandboxes whose owner was killed: nobody else does, for no engine ever has this base again."""
    inside = [path for directory in group.directories for path in directory.rglob("*") if path.is_dir()]
    for path in sorted(inside, reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()
    return not any(path.exists() for path in inside)


@pytest.fixture
def few() -> Few:
    return Few()


# ------------------------------------------------------------------------------------------ the template


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(path)


@pytest.mark.parametrize(
    "answer",
    [
        "exit 1",
        "true",
        "echo 5",
        "echo '[1,2,3,4,5]'",
        'echo \'["a","b","c","3.10",[]]\'',
        "echo null",
        "kill -9 $$",
    ],
)
async def test_interpreters_that_are_none(tmp_path: Path, answer: str) -> None:
    """A program that is no Python from 3.11 on, whatever it answers, is refused by its name."""
    name = script(tmp_path / "python-like", answer)
    async with runtime() as namespaces:
        with pytest.raises(StartupFailed, match="python-like"):
            await namespaces.start(
                SandboxSpec(template=Template("odd", interpreter=name, preload=()), limits=NO_LIMITS)
            )


async def test_an_interpreter_that_is_missing() -> None:
    """An interpreter that does not exist is refused by its name; no other takes its place."""
    async with runtime() as namespaces:
        with pytest.raises(StartupFailed, match="/nonexistent/python"):
            template = Template("gone", interpreter="/nonexistent/python", preload=())
            await namespaces.start(SandboxSpec(template=template, limits=NO_LIMITS))


# -------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    "name", ["", "None", "namespace", "NAMESPACES", "none ", "gvisor", "none\0", "../none", "namespaces,none"]
)
def test_an_isolation_that_nobody_knows(name: str) -> None:
    """A name is one of the table or is refused; nothing is guessed."""
    with pytest.raises(InvalidRequest, match="known: namespaces, none"):
        Sandbox.create(isolation=name)


def test_none_is_never_chosen_by_itself() -> None:
    """No environment makes an unisolated sandbox out of one that cannot be isolated."""
    told = ask(
        {
            "CELLFORK_ISOLATION": "none",
            "CELLFORK_RUNTIME": "none",
            "CELLFORK_SELFTEST": "off",
            "CELLFORK_UNSAFE": "1",
        },
        refuse=[["unshare", errno.EPERM, None, "", 0]],
    )
    assert_refused(told, "namespaces")


def test_a_runtime_that_cannot_be_loaded() -> None:
    """A runtime whose code is not there is refused with a hint; no other takes its place."""
    runtimes = LazyRuntimes({"namespaces": RuntimeEntry("cellfork.no_such_module:Runtime", "install it")})
    with pytest.raises(Unsupported, match="install it"):
        runtimes["namespaces"]


async def test_an_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the numbers of system calls are not known there is no filter, hence no sandbox."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    async with runtime() as namespaces:
        with pytest.raises(IsolationUnavailable, match="x86_64 or aarch64"):
            await namespaces.start(SPEC)
    with pytest.raises(KeyError):
        seccomp.base_filter()


@pytest.mark.parametrize(
    "network",
    [
        [],
        [""],
        ["*"],
        ["*.*"],
        ["exa mple.com"],
        ["a\0b.com"],
        {"allow": []},
        {"deny": ["x"]},
        "all",
        5,
        "public,none",
    ],
)
def test_network_policies_that_are_none(network: Any) -> None:
    """An empty or malformed policy is an error, never an open network."""
    with pytest.raises(InvalidRequest):
        Sandbox.create(BARE, network=network, limits=NO_LIMITS)


def test_a_network_that_nothing_would_enforce() -> None:
    """Without isolation no policy can be kept: the combination is refused."""
    with pytest.raises(Unsupported):
        Sandbox.create(BARE, network=["example.com"], isolation="none", limits=NO_LIMITS)


# ------------------------------------------------------------------------------- deaths in the middle


@contextlib.asynccontextmanager
async def runtime(cgroups: Cgroups | None = None, **options: Any) -> AsyncIterator[NamespacesRuntime]:
    namespaces = NamespacesRuntime(cgroups, **{"pool": 0, "prefork": 0, **options})
    try:
        yield namespaces
    finally:
        await namespaces.aclose()


def maker_of(zygote: int) -> int:
    """Return the pid of the process that makes namespaces for ``zygote``."""
    makers = [process.pid for process in descendants(zygote) if process.comm == "cellfork-maker"]
    (pid,) = [pid for pid in makers if Path(f"/proc/{pid}/stat").read_text().split()[3] == str(zygote)]
    return pid


async def test_the_zygote_dies_in_the_middle_of_a_create() -> None:
    """Who waits for a fork is refused as soon as the zygote is gone; the next request gets a new one."""
    async with runtime() as namespaces:
        first = await namespaces.start(SPEC)
        zygote = next(iter(namespaces._preforks)).pid
        os.kill(zygote, signal.SIGSTOP)
        waiting = asyncio.create_task(namespaces.start(SPEC))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        os.kill(zygote, signal.SIGKILL)
        async with asyncio.timeout(10):
            with pytest.raises(CellforkError, match="zygote"):
                await waiting
        assert not first.alive
        assert (await namespaces.start(SPEC)).isolation == "namespaces"


async def test_the_maker_dies() -> None:
    """Without the process that makes namespaces no more sandboxes come from its zygote, but from a new one: nobody notices."""
    async with runtime() as namespaces:
        first = await namespaces.start(SPEC)
        os.kill(maker_of(next(iter(namespaces._preforks)).pid), signal.SIGKILL)
        pid = next(iter(namespaces._preforks)).pid
        outcomes = [await one(namespaces) for _ in range(20)]  # more than were made ahead
        assert set(outcomes) == {"namespaces"}, outcomes
        assert pid not in {zygote.pid for zygote in namespaces._preforks if zygote.fit}
        assert first.alive


async def one(namespaces: NamespacesRuntime) -> str:
    """Return the isolation of a sandbox that is killed at once, or the name of the refusal."""
    try:
        async with asyncio.timeout(20):
            guest = await namespaces.start(SPEC)
    except CellforkError as error:
        return f"{type(error).__name__}: {error}"
    await guest.kill()
    return guest.isolation


async def test_init_dies_before_it_is_ready() -> None:
    """A fork that dies between the request and its answer is a refusal, in bounded time; the next one is whole."""
    async with runtime(prefork=1) as namespaces:
        await (await namespaces.start(SPEC)).kill()
        async with asyncio.timeout(10):
            while not (
                ahead := [p for p in descendants(os.getpid()) if p.comm == "cellfork-ahead" and p.depth == 3]
            ):
                await asyncio.sleep(0.02)
        for process in ahead:
            os.kill(process.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(namespaces.start(SPEC))
        await asyncio.sleep(0.1)
        for process in ahead:
            os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            with pytest.raises(CellforkError):
                await waiting
        assert (await namespaces.start(SPEC)).isolation == "namespaces"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a process write the id maps")
def test_nobody_waits_for_ever_where_namespaces_are_refused() -> None:
    """The process that was to write the id maps ends with the boot stage, not only when it is told to write."""
    before = Snapshot.take()
    assert_refused(ask(refuse=[["unshare", errno.EPERM, 0, ANY_BIT, linux.CLONE_NEWUSER]]))
    assert not find_leaks(before).of("process")
