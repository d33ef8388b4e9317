"""The process that embeds cellfork ends, in whatever way: its sandboxes end with it."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellfork.runtimes.namespaces.cgroups import Cgroups, Hierarchy, is_abandoned, owner_mark

from .programs import BUSY, alive, finish, groups_of, hear, parents, processes_of, program, say, wait_until

OWNER = f"""
import threading
from cellfork import Sandbox
code = {BUSY!r}
sandboxes = [Sandbox.create(timeout=None) for _ in range(3)]
for sandbox in sandboxes:
    threading.Thread(target=sandbox.run_code, args=(code,), kwargs=dict(timeout=None), daemon=True).start()
while not all(metrics.processes >= 5 for sandbox in sandboxes for metrics in sandbox.get_metrics()):
    pass
print("busy", flush=True)
input()
"""

NOTHING = {"CELLFORK_PREFORK": "0", "CELLFORK_POOL": "0"}
AHEAD = {"CELLFORK_PREFORK": "2", "CELLFORK_POOL": "2"}
"""What is kept started ahead belongs to the owner as well."""


@pytest.mark.parametrize(
    ("number", "ahead"),
    [
        (signal.SIGKILL, NOTHING),
        (signal.SIGKILL, AHEAD),
        (signal.SIGTERM, NOTHING),
        (signal.SIGSEGV, NOTHING),
    ],
)
def test_owner_that_is_killed(number: signal.Signals, ahead: dict[str, str]) -> None:
    """Within five seconds every process of its sandboxes is gone, busy ones and daemons; groups go with the next start."""
    with program(OWNER, **ahead) as owner:
        assert hear(owner) == "busy"
        pids, groups = processes_of(owner.pid), groups_of(owner.pid)
        assert len(pids) >= 3 * 4
        assert groups
        owner.send_signal(number)
        took = wait_until(lambda: not alive(pids), 5)
        owner.wait()
        Cgroups.detect()  # as every engine does at its start
        wait_until(lambda: not groups_of(owner.pid), 1)
    assert took < 5


def test_next_start_sweeps() -> None:
    """The next program that starts a sandbox removes the groups that a killed one left."""
    with program(OWNER) as owner:
        assert hear(owner) == "busy"
        pids = processes_of(owner.pid)
        owner.kill()
        owner.wait()
        wait_until(lambda: not alive(pids), 5)
    assert groups_of(owner.pid)
    with program(
        "from cellfork import Sandbox\nwith Sandbox.create() as s: print(s.run_code('1+1').text)"
    ) as other:
        assert finish(other) == "2\n"
    assert not groups_of(owner.pid)


def test_owner_that_is_killed_while_it_looks_around() -> None:
    """The group with which a program finds out whether it may make groups is removed by the next one, if it could not itself."""
    code = """
    import os, signal
    from cellfork.runtimes.namespaces import cgroups
    cgroups._remove = lambda path: os.kill(os.getpid(), signal.SIGKILL)
    cgroups.Cgroups.detect()
    """
    with program(code) as owner:
        owner.wait()
    assert groups_of(owner.pid)
    Cgroups.detect()
    assert not groups_of(owner.pid)


def test_many_look_around_at_once() -> None:
    """What each finds does not depend on the others: none takes another's group for a refusal."""
    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(lambda _: sorted(Cgroups.detect().hierarchies), range(64))]
    assert found == [found[0]] * 64
    assert found[0]


@pytest.mark.parametrize("ahead", [NOTHING, AHEAD], ids=["nothing", "ahead"])
@pytest.mark.parametrize(
    "ending",
    ["", "sys.exit(0)", "del sandboxes, sandbox; import gc; gc.collect()"],
    ids=["end", "exit", "collected"],
)
def test_owner_that_ends(ending: str, ahead: dict[str, str]) -> None:
    """A program that ends without killing its sandboxes leaves nothing, not even control groups, and says nothing."""
    with program(OWNER + f"import sys\n{ending}\n", **ahead) as owner:
        assert hear(owner) == "busy"
        pids = processes_of(owner.pid)
        say(owner, "")
        finish(owner, 15)
        wait_until(lambda: not alive(pids), 2)
        assert not groups_of(owner.pid)


@pytest.mark.parametrize("ending", ["raise ValueError('mine')", "os._exit(3)", "raise KeyboardInterrupt"])
def test_owner_that_fails(ending: str) -> None:
    """However the program ends, its sandboxes do."""
    with program(OWNER + f"import os\n{ending}\n") as owner:
        assert hear(owner) == "busy"
        pids = processes_of(owner.pid)
        owner.communicate("\n", timeout=15)
        wait_until(lambda: not alive(pids), 5)
    Cgroups.detect()
    assert not groups_of(owner.pid)


def test_owner_that_is_interrupted() -> None:
    """Ctrl-C while code runs ends the code and raises in the caller; the sandbox can be used on."""
    code = """
    from cellfork import Sandbox
    with Sandbox.create() as sandbox:
        print("ready", flush=True)
        try:
            sandbox.run_code("import time\\nkept = 1\\ntime.sleep(3600)")
        except KeyboardInterrupt:
            print("interrupted", sandbox.run_code("kept").text, flush=True)
    """
    with program(code) as owner:
        assert hear(owner) == "ready"
        time.sleep(0.5)
        owner.send_signal(signal.SIGINT)
        assert hear(owner) == "interrupted 1"
        finish(owner)
        assert not groups_of(owner.pid)


def test_owner_that_is_stopped() -> None:
    """Sandboxes of a stopped program wait with it, and go on when it does."""
    code = """
    from cellfork import Sandbox
    with Sandbox.create() as sandbox:
        print(sandbox.run_code("1 + 1").text, flush=True)
        input()
        print(sandbox.run_code("2 + 2").text, flush=True)
    """
    with program(code) as owner:
        assert hear(owner) == "2"
        owner.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        owner.send_signal(signal.SIGCONT)
        say(owner, "")
        assert hear(owner) == "4"
        finish(owner)


def test_two_owners() -> None:
    """Two programs at once do not disturb each other: neither by starting, nor by ending, nor by being killed."""
    code = """
    from cellfork import Sandbox
    sandbox = Sandbox.create()
    sandbox.run_code("x = 0")
    print("ready", flush=True)
    while input() != "end":
        print(sandbox.run_code("x += 1; x").text, flush=True)
    """
    with program(code) as first, program(OWNER) as second:
        assert (hear(first), hear(second)) == ("ready", "busy")
        for n in range(1, 4):
            say(first, "go on")
            assert hear(first) == str(n)
        pids = processes_of(second.pid)
        second.kill()
        second.wait()
        wait_until(lambda: not alive(pids), 5)
        Cgroups.detect()
        assert not groups_of(second.pid)
        assert groups_of(first.pid)
        say(first, "go on")
        assert hear(first) == "4"
        with program(code) as third:
            assert hear(third) == "ready"
            say(third, "end")
            finish(third)
        say(first, "go on")
        assert hear(first) == "5"
        say(first, "end")
        finish(first)


def test_zygote_that_is_killed() -> None:
    """Where the zygote is gone, its sandboxes are, too: calls say so at once, and the next create starts another."""
    code = """
    import os, signal, subprocess
    from cellfork import Sandbox
    from cellfork.model.errors import CellforkError
    sandbox = Sandbox.create()
    print(os.getpid(), flush=True)
    input()
    try: print(sandbox.run_code("1"), flush=True)
    except CellforkError as error: print(type(error).__name__, flush=True)
    with Sandbox.create() as sandbox: print(sandbox.run_code("1 + 1").text, flush=True)
    """
    with program(code) as owner:
        hear(owner)
        children = [pid for pid, parent in parents().items() if parent == owner.pid]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
        say(owner, "")
        assert hear(owner) == "SandboxGone"
        assert hear(owner) == "2"
        finish(owner)
        assert not groups_of(owner.pid)


# ---------------------------------------------------------------------------------------- sweeping


def test_marks() -> None:
    """A name tells its owner: alive (this process), gone, of another pid namespace, or nobody's."""
    mine = owner_mark()
    namespace, pid, start = mine.rstrip("-").split(".")
    assert int(pid) == os.getpid()
    assert not is_abandoned(f"cellfork-{mine}abc")
    assert is_abandoned(f"cellfork-{namespace}.{pid}.{int(start) + 1}-abc")  # the pid was given anew
    assert is_abandoned(f"cellfork-{namespace}.{2**22 + 1}.5-abc")
    assert not is_abandoned(f"cellfork-{int(namespace) + 1}.{2**22 + 1}.5-abc")
    for name in ("cellfork-abc", "cellfork-host", "cellfork-probe-1", "system.slice", f"other-{mine}abc"):
        assert not is_abandoned(name)


def test_sweep(tmp_path: Path) -> None:
    """Sweeping removes the empty groups of owners that are gone, and nothing else."""
    namespace = owner_mark().split(".")[0]
    names = {
        "abandoned": f"cellfork-{namespace}.{2**22 + 1}.5-a",
        "in use": f"cellfork-{namespace}.{2**22 + 1}.5-b",
        "mine": f"cellfork-{owner_mark()}c",
        "other": "cellfork-host",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
    (tmp_path / names["in use"] / "process").touch()
    hierarchy = Hierarchy(2, tmp_path, tmp_path, frozenset({"memory"}))
    Cgroups({"memory": hierarchy, "pids": Hierarchy(1, tmp_path, tmp_path / "none", frozenset())}).sweep()
    assert {path.name for path in tmp_path.iterdir()} == set(names.values()) - {names["abandoned"]}
