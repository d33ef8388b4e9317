"""The leak check, which the other tests rely on."""

import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from cellfork.testing import leaks
from cellfork.testing.leaks import Process, Snapshot, find_leaks, mark, no_leaks, orphans, role_of

SHORT = 0.05


def test_nothing_left_is_no_leak():
    """A block that cleans up passes."""
    with no_leaks(grace=SHORT):
        subprocess.run(["true"], check=True)
        with tempfile.TemporaryDirectory(prefix="cellfork-"):
            pass


def test_process_is_a_leak():
    """A child that still runs is named with its command."""
    before = Snapshot.take()
    with subprocess.Popen(["sleep", "60"]) as child:
        leaks = find_leaks(before, grace=SHORT)
        child.kill()
    assert f"{child.pid} (sleep)" in str(leaks)
    assert "sleep 60" in str(leaks)


def test_grandchild_and_zombie_are_leaks():
    """A process counts however deep it is, and also when nobody waited for it."""
    before = Snapshot.take()
    program = (
        "import subprocess, sys; child = subprocess.Popen(['true']); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        leaks = find_leaks(before, grace=SHORT)
        child.communicate()
    assert len(leaks.of("process")) == 2
    assert any("(true) Z" in line for line in leaks.of("process"))


def test_descriptor_is_a_leak():
    """An open descriptor is named with what it refers to."""
    before = Snapshot.take()
    read, write = os.pipe()
    leaks = find_leaks(before, grace=SHORT)
    os.close(read)
    os.close(write)
    assert len(leaks.of("fd")) == 2
    assert all("pipe:" in line for line in leaks.of("fd"))


def test_temporary_file_is_a_leak_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only what carries cellfork's name is ours to remove."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = Snapshot.take()
    (tmp_path / "cellfork-left").touch()
    (tmp_path / "something-else").touch()
    assert find_leaks(before, grace=SHORT).of("file") == [str(tmp_path / "cellfork-left")]


def test_slow_farewell_is_no_leak():
    """What goes within the grace period is not reported."""
    with no_leaks(grace=5):
        child = subprocess.Popen(["sleep", "0.1"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.wait()


def test_leak_is_an_assertion():
    """The context manager fails with one line for each thing."""
    read, write = -1, -1
    with pytest.raises(AssertionError, match=r"left behind:\nfd: \d+ → pipe:"), no_leaks(grace=SHORT):
        read, write = os.pipe()
    os.close(read)
    os.close(write)


def test_a_socket_that_leaks_is_described():
    """The line of a socket tells what it is, so that one look at a report of a test that fails once is enough."""
    before = Snapshot.take()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (line,) = find_leaks(before, grace=SHORT).of("fd")
    assert "SOCK_STREAM listening at ('127.0.0.1', " in line
    assert listener.fileno() == -1


def process(comm: str, depth: int, cmdline: str = "") -> Process:
    return Process(pid=1, comm=comm, cmdline=cmdline, state="S", started="1", depth=depth)


def test_host_is_told_from_its_sandboxes():
    """A sandbox forked from the zygote shares its name; its place and its pid namespace give it away."""
    zygote = replace(process("cellfork-zygote", 2), role=role_of(process("cellfork-zygote", 2), None))
    assert zygote.role == "zygote"
    assert role_of(process("python3", 2), zygote) == "helper"
    assert role_of(process("cellfork-zygote", 3), zygote) == "sandbox"
    plain = replace(process("cellfork-zygote", 1), role="zygote")
    assert role_of(process("cellfork-zygote", 1), plain) == "sandbox"
    assert role_of(process("sh", 1), None) == "other"
    assert role_of(process("python3", 1, "python3 -I -S src/cellfork/guest/boot.py 5 6"), None) == "zygote"


def test_host_may_stay_unless_it_must_not():
    """The zygote, and what came with it, counts only for code that has to close its host."""
    host = replace(process("cellfork-zygote", 2), role="zygote")
    after = Snapshot(processes={host.identity: host}, fds={7: "socket:[1]"})
    assert not after.leaks_since(Snapshot())
    assert len(after.leaks_since(Snapshot(), allow_host=False).found) == 2
    assert after.leaks_since(Snapshot(processes={host.identity: host})).of("fd") == ["7 → socket:[1]"]


def test_empty_group_of_another_program_is_its_own_affair():
    """A group names its owner: whether that lives or was killed, what it leaves behind is not this program's leak."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    owners = {os.getppid(): True, os.getpid(): False, ended.pid: True}
    for owner, belongs in owners.items():
        assert leaks._belongs_to_another(f"/sys/fs/cgroup/cellfork-1.{owner}.3-ab") is belongs
    assert not leaks._belongs_to_another("/sys/fs/cgroup/cellfork-ab")


DETACH = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(3, 1000)
        print(os.getpid(), flush=True)
        os.dup2(os.open("/dev/null", os.O_RDWR), 1)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], {})
    os._exit(0)
os.wait()
"""
"""Leaves a process behind with another parent, another session, and nothing in its environment."""


def test_an_orphan_is_a_leak():
    """A process that has left its parent and its session behind, and its environment, is found and named."""
    before = Snapshot.take()
    left = int(subprocess.run([sys.executable, "-c", DETACH], check=True, stdout=subprocess.PIPE).stdout)
    try:
        assert left not in [process.pid for process in leaks.descendants(os.getpid())]
        found = find_leaks(before, grace=SHORT).of("process")
        assert [line.partition(" ")[0] for line in found] == [str(left)]
        assert not Snapshot.take(before).leaks_since(Snapshot.take(before))  # what was there already
    finally:
        os.kill(left, 9)
    assert not find_leaks(before)


def test_an_orphan_of_another_test_process_is_its_own_affair():
    """What a process that has marked itself leaves behind is not ours, and what lives below us is no orphan."""
    before = Snapshot.take()
    program = f"from cellfork.testing.leaks import mark\nmark()\n{DETACH}"
    left = int(subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE).stdout)
    try:
        with subprocess.Popen(["sleep", "60"]) as child:
            assert [*orphans(before.pids)] == []
            assert find_leaks(before, grace=SHORT).of("process") != []  # the child
            child.kill()
        assert not find_leaks(before)
    finally:
        os.kill(left, 9)


def test_a_mark_is_for_its_process():
    """It is made of the process's id, and changes nothing that a program could feel."""
    mark()
    assert f"{leaks.MARK + os.getpid()} " in Path("/proc/self/limits").read_text()


@pytest.mark.parametrize(("name", "ours"), [("cellfork-1.{pid}.2-ab", True), ("cellfork-1.{other}.2-ab", False), ("cellfork-k0123456789ab-x", True), ("cellfork-k000000000000-x", False), ("cellfork-zz", False)])  # fmt: skip
def test_a_group_is_known_by_its_name(name: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A group in which a process lives that is none of ours any more is ours where its name says so, and else is not."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    state = tmp_path / "tmp" / "state"
    state.mkdir(parents=True)
    (state / "id").write_text("0123456789ab")
    (state / "lock").touch()
    group = tmp_path / "groups" / name.format(pid=os.getpid(), other=os.getppid())
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("1\n")
    monkeypatch.setattr(leaks, "_cgroup_parents", lambda: {str(group.parent)})
    assert [*leaks.cgroups()] == ([str(group)] if ours else [])
