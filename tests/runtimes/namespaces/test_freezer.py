"""The freezer of both versions, on this machine's own groups: what is held stands, goes on where it was, and can be killed."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cellfork.model.errors import UnavailableError, Unsupported
from cellfork.runtimes.freezing import Freezer
from cellfork.runtimes.namespaces import freezer as module
from cellfork.runtimes.namespaces.cgroups import FREEZER, Cgroups, Group, Hierarchy, remove_when_empty
from cellfork.runtimes.namespaces.freezer import HELD, OldFreezer, UnifiedFreezer
from cellfork.runtimes.namespaces.prefork import GroupMeter

BUSY = "while True: pass"
CHURN = """
import os, time
while True:
    pid = os.fork()
    if pid == 0:
        end = time.monotonic() + 0.002
        while time.monotonic() < end: pass
        if os.fork(): os._exit(0)
        while time.monotonic() < end + 0.005: pass
        os._exit(0)
    os.waitpid(pid, 0)
"""
Start = Callable[[str], "subprocess.Popen[bytes]"]


def hierarchies(version: int) -> Cgroups:
    """Return this machine's hierarchies as if it had this version alone; skip where it has not."""
    found = Cgroups.detect().hierarchies
    if version == 2 and "unified" in found:
        return Cgroups({"unified": found["unified"]})
    if version == 1 and FREEZER in found and "pids" in found and found["pids"].version == 1:
        return Cgroups({name: found[name] for name in (FREEZER, "pids")})
    pytest.skip(f"this machine has no freezer of version {version} that can be used here")


@pytest.fixture(params=[2, 1])
def cgroups(request: pytest.FixtureRequest) -> Cgroups:
    return hierarchies(request.param)


@pytest.fixture
def group(cgroups: Cgroups) -> Iterator[Group]:
    made = cgroups.create(secrets.token_hex(8))
    yield made
    deadline = time.monotonic() + 5
    while not made.remove() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.fixture
def start(group: Group) -> Iterator[Start]:
    """Start programs in the group; whatever is in it at the end is let go and killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([sys.executable, "-S", "-c", f"input()\n{code}"], stdin=subprocess.PIPE)
        started.append(process)
        for directory in group.directories:
            (directory / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        time.sleep(0.1)
        return process

    yield start
    for path in (*group.directories, *group._inner()):
        module.thaw_abandoned(path)
    deadline = time.monotonic() + 5
    while (left := group.processes()) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in started:
            process.poll()
        time.sleep(0.005)
    for process in started:
        process.wait(5)


def cpu_of(pids: list[int]) -> dict[int, int]:
    found = {}
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        found[pid] = sum(map(int, stat[stat.rindex(")") + 2 :].split()[11:13]))
    return found


def stands(pids: list[int]) -> bool:
    """Tell whether processes, and what they consist of, are the same after a while."""
    before = cpu_of(pids)
    time.sleep(0.15)
    return cpu_of(pids) == before


async def test_all_stand_and_go_on(group: Group, start: Start):
    """Held processes use no processor time; let go, they run; one that was stopped before is stopped still."""
    running, stopped = start(BUSY), start(BUSY)
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(0.05)
    freezer = group.freezer()
    assert not freezer.held
    await freezer.freeze()
    assert freezer.held
    assert stands([running.pid, stopped.pid])
    await freezer.freeze()
    await freezer.thaw()
    await freezer.thaw()
    assert not freezer.held
    assert not stands([running.pid])
    assert stands([stopped.pid])


async def test_one_is_left_out(group: Group, start: Start):
    """The one that is left out goes on while the others stand, also where they make processes all the time."""
    spared, *others = start(BUSY), start(CHURN), start(CHURN), start(BUSY)
    freezer = group.freezer()
    for _ in range(5):
        await freezer.freeze(spared.pid)
        held = group.processes()
        assert {process.pid for process in (spared, *others)} <= set(held)
        held.remove(spared.pid)
        assert stands(held)
        assert sorted([*held, spared.pid]) == group.processes()
        assert not stands([spared.pid])
        await freezer.freeze()
        assert freezer.held
        assert stands([*held, spared.pid])
        await freezer.freeze(spared.pid)
        assert not stands([spared.pid])
        await freezer.thaw()
        assert not freezer.held
        assert not stands([spared.pid])
    directories = [path for path in group.directories if (path / HELD).exists()]
    assert directories == []


@pytest.mark.parametrize("spare", [False, True])
async def test_what_is_held_can_be_killed(group: Group, start: Start, spare: bool):
    """Killing ends everything at once, held or not, and its groups can be removed."""
    processes = [start(BUSY) for _ in range(3)]
    meter = GroupMeter(group)
    await meter.freezer.freeze(processes[0].pid if spare else None)
    if not meter.kill():  # as a guest does: its init
        for process in processes:
            process.kill()
    for process in processes:
        assert process.wait(5) == -signal.SIGKILL
    assert await remove_when_empty(group, 5)
    assert not any(path.exists() for path in [*group.directories, *group._inner()])


async def test_what_an_owner_held_who_is_gone(cgroups: Cgroups, group: Group, start: Start):
    """What is abandoned while it is held can be let go, so that it can end."""
    process = start(BUSY)
    await group.freezer().freeze()
    for path in [*group.directories, *group._inner()]:
        module.thaw_abandoned(path)
    assert not stands([process.pid])


async def test_a_group_that_is_gone(group: Group):
    """A sandbox that has ended cannot be held, and letting it go does nothing."""
    freezer = group.freezer()
    group.remove()
    if isinstance(freezer, UnifiedFreezer):
        with pytest.raises(UnavailableError):
            await freezer.freeze()
    await freezer.thaw()
    assert not freezer.held


@pytest.mark.parametrize("kind", [UnifiedFreezer, OldFreezer])
async def test_a_process_that_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type):
    """Where a process does not stop in time, nothing is held: it is an error, and no half of a pause."""
    monkeypatch.setattr(module, "SECONDS", 0.05)
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    for name in ("cgroup.freeze", "cgroup.procs"):
        (tmp_path / name).touch()
    freezer: Freezer
    if kind is UnifiedFreezer:
        freezer = UnifiedFreezer(tmp_path)
        state = tmp_path / "cgroup.freeze"
    else:
        freezer = OldFreezer(tmp_path, list)
        state = tmp_path / "freezer.state"
        state.write_text("FREEZING")
        monkeypatch.setattr(
            module, "_write", lambda path, text: path.write_text({"FROZEN": "FREEZING"}.get(text, text))
        )
    with pytest.raises(UnavailableError):
        await freezer.freeze()
    assert state.read_text()[-6:] in {"10", "THAWED"} or state.read_text().endswith("0")


async def test_no_freezer(tmp_path: Path):
    """Where the host has none, the refusal says what it takes."""
    tree = Hierarchy(1, tmp_path, tmp_path, frozenset({"memory"}))
    freezer = Cgroups({"memory": tree}).create("x").freezer()
    assert not freezer.available
    with pytest.raises(Unsupported, match="freezer"):
        await freezer.freeze()
    await freezer.thaw()
