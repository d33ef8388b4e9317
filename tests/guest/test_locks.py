"""The table of locks: each verification tells a process that is locked from one that is not; the first failure ends it."""

import errno
import json
import os
import resource
import subprocess
import sys
import textwrap

import pytest

from cellfork.guest import linux, locks
from cellfork.model.errors import StartupFailed


@pytest.fixture
def plan(tmp_path):
    """A plan whose locks nobody has taken on this process."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "rlimits": [[resource.RLIMIT_NOFILE, soft - 1, soft - 1]],
        "single_id": False,
        "landlock": 7,
        "writable": [str(tmp_path)],
        "disk_path": str(tmp_path),
    }


@pytest.mark.parametrize("lock", locks.LOCKS, ids=lambda lock: lock.name)
def test_a_process_without_the_lock_is_found_out(lock, plan):
    """Asked in an ordinary process, no verification says that its lock holds: one that always agrees proves nothing."""
    assert lock.holds(plan) is False


def test_the_order_is_the_one_that_the_rights_need():
    """Ids after securebits, capabilities after ids, Landlock and filter after no_new_privs, the filter last."""
    names = [lock.name for lock in locks.LOCKS]
    assert names == [
        "resource limits", "user namespace", "securebits", "ids", "capabilities", "no dumps", "no new privileges", "landlock", "seccomp",
    ]  # fmt: skip


@pytest.fixture
def journal(monkeypatch):
    """Replace the table by three locks that write down what is done; a name in ``broken`` says how it fails."""
    done: list[str] = []
    broken: dict[str, str] = {}

    def make(name):
        def take(plan):
            done.append(f"take {name}")
            if broken.get(name) == "take":
                raise OSError(errno.EPERM, "not permitted")

        def holds(plan):
            done.append(f"verify {name}")
            if broken.get(name) == "verify":
                raise OSError(errno.ENOENT, "nothing to read")
            return broken.get(name) != "hold"

        return locks.Lock(name, take, holds)

    monkeypatch.setattr(locks, "LOCKS", tuple(make(name) for name in ("one", "two", "three")))
    return done, broken


def test_each_lock_is_verified_before_the_next_is_taken(journal):
    """Take, verify, take, verify: in the order of the table."""
    done, _broken = journal
    locks.lock({}, -1)
    assert done == ["take one", "verify one", "take two", "verify two", "take three", "verify three"]


@pytest.mark.parametrize("how", ["take", "hold", "verify"])
def test_the_first_failure_ends_it_with_its_name(journal, how):
    """A lock that cannot be taken, cannot be verified or does not hold is named, and no later one is tried."""
    done, broken = journal
    broken["two"] = how
    with pytest.raises(StartupFailed, match="the lock 'two'"):
        locks.lock({}, -1)
    assert "take three" not in done


RESTRICTED = """
import errno, json, os, stat, sys
from cellfork.guest import linux, locks
inside, outside = sys.argv[1:]
abi = linux.landlock_abi()
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
locks.restrict_files(abi, [inside])
def answer(call, *arguments):
    try:
        call(*arguments)
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def write(path):
    with open(path, "w") as file:
        file.write("x")
print(json.dumps({
    "write inside": answer(write, inside + "/new"),
    "write outside": answer(write, outside + "/new"),
    "append outside": answer(open, outside + "/old", "a"),
    "truncate outside": answer(os.truncate, outside + "/old", 0) if abi >= 3 else "EACCES",
    "make a directory outside": answer(os.mkdir, outside + "/dir"),
    "remove outside": answer(os.unlink, outside + "/old"),
    "link outside": answer(os.symlink, "x", outside + "/link"),
    "move out": answer(os.rename, inside + "/new", outside + "/moved"),
    "read outside": answer(open, outside + "/old"),
    "device inside": answer(os.mknod, inside + "/device", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "pipe inside": answer(os.mkfifo, inside + "/pipe"),
    "write to a device": answer(write, "/dev/null"),
    "remove a device": answer(os.unlink, "/dev/cellfork-is-not-there") ,
}))
"""


@pytest.mark.skipif(not linux.landlock_abi(), reason="this kernel has no Landlock")
def test_files_are_written_in_the_named_places_alone(tmp_path):
    """Landlock by itself, with nothing mounted read-only: reading everywhere, writing below ``writable`` only, no device."""
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "old").write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RESTRICTED), tmp_path / "inside", tmp_path / "outside"],
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(done.stdout)
    allowed = {"write inside", "read outside", "pipe inside", "write to a device"}
    assert {name for name, answer in answers.items() if answer == "done"} == allowed
    refused = {name: answer for name, answer in answers.items() if name not in allowed}
    assert refused.pop("move out") in {"EACCES", "EXDEV"}
    assert refused.pop("remove a device") in {"EACCES", "ENOENT"}
    assert set(refused.values()) == {"EACCES"}
    assert (tmp_path / "outside" / "old").read_text() == "old"
    assert os.listdir(tmp_path / "outside") == ["old"]
