"""Control groups on made-up trees of both versions: what is written where, and what is refused."""

from pathlib import Path

import pytest

from cellfork.model.errors import IsolationUnavailable
from cellfork.model.limits import Limits, MiB
from cellfork.runtimes.namespaces import cgroups as module
from cellfork.runtimes.namespaces.cgroups import Cgroups, Group, Hierarchy

FILES_V2 = ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
FILES_V1 = {
    "memory": (
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.swappiness",
        "memory.kmem.tcp.limit_in_bytes",
        "memory.oom_control",
    ),
    "pids": ("pids.max",),
    "cpu": ("cpu.cfs_period_us", "cpu.cfs_quota_us"),
}


def limited(cgroups: Cgroups, limits: Limits) -> Group:
    group = cgroups.create("x")
    cgroups.limit(group, limits)
    return group


class MadeUp(Cgroups):
    """Puts the kernel's files into each new group before limits are written, but for those ``lacking``."""

    lacking: tuple[str, ...] = ()

    def _set(self, paths, limits):
        for controller, path in paths.items():
            version = self.hierarchies[controller].version
            for name in FILES_V2 if version == 2 else FILES_V1.get(controller, ()):
                if name not in self.lacking:
                    (path / name).touch()
        super()._set(paths, limits)


def v2(tmp_path: Path, *controllers: str) -> Cgroups:
    tree = Hierarchy(2, tmp_path, tmp_path, frozenset({*controllers, "unified"}))
    return MadeUp(dict.fromkeys(tree.controllers, tree))


def v1(tmp_path: Path, *controllers: str) -> MadeUp:
    trees = {}
    for name in controllers:
        (tmp_path / name).mkdir()
        trees[name] = Hierarchy(1, tmp_path / name, tmp_path / name, frozenset({name}))
    return MadeUp(trees)


def read(path: Path) -> str:
    return path.read_text()


def test_limits_on_v2(tmp_path):
    """Memory without swap, pids and a CPU quota, in one group."""
    limited(v2(tmp_path, "memory", "pids", "cpu"), Limits(memory="64M", pids=20, cpu=0.5))
    group = tmp_path / "cellfork-x"
    assert read(group / "memory.max") == str(64 * MiB)
    assert read(group / "memory.swap.max") == "0"
    assert read(group / "pids.max") == "20"
    assert read(group / "cpu.max") == "50000 100000"


def test_limits_on_v1(tmp_path):
    """The same limits, each in its own hierarchy; memory and swap together are bounded by memory."""
    limited(v1(tmp_path, "memory", "pids", "cpu"), Limits(memory="64M", pids=20, cpu=2))
    assert read(tmp_path / "memory/cellfork-x/memory.limit_in_bytes") == str(64 * MiB)
    assert read(tmp_path / "memory/cellfork-x/memory.memsw.limit_in_bytes") == str(64 * MiB)
    assert read(tmp_path / "memory/cellfork-x/memory.kmem.tcp.limit_in_bytes") == str(8 * MiB)
    assert read(tmp_path / "memory/cellfork-x/memory.oom_control") == "0"
    assert read(tmp_path / "pids/cellfork-x/pids.max") == "20"
    assert read(tmp_path / "cpu/cellfork-x/cpu.cfs_quota_us") == "200000"


SWAP_LIMITS = [(v2, "memory.swap.max"), (v1, "memory.memsw.limit_in_bytes")]


@pytest.mark.parametrize("layout, file", SWAP_LIMITS)
def test_swap_that_cannot_be_forbidden_is_refused(tmp_path, monkeypatch, layout, file):
    """Where the host swaps and the kernel has no limit on that, a memory limit is refused: it would not hold."""
    swaps = tmp_path / "swaps"
    swaps.write_text("Filename\tType\tSize\tUsed\tPriority\n/dev/sdb1\tpartition\t1000\t0\t-2\n")
    monkeypatch.setattr(module, "SWAPS", swaps)
    cgroups = layout(tmp_path, "memory", "pids", "cpu")
    cgroups.lacking = (file,)
    with pytest.raises(IsolationUnavailable, match="/dev/sdb1") as refused:
        limited(cgroups, Limits())
    assert [missing.feature for missing in refused.value.missing] == ["swap limit"]


@pytest.mark.parametrize("layout, file", SWAP_LIMITS)
def test_without_swap_no_limit_on_it_is_needed(tmp_path, monkeypatch, layout, file):
    """Where nothing swaps, a kernel without the limit will do."""
    swaps = tmp_path / "swaps"
    swaps.write_text("Filename\tType\tSize\tUsed\tPriority\n")
    monkeypatch.setattr(module, "SWAPS", swaps)
    cgroups = layout(tmp_path, "memory", "pids", "cpu")
    cgroups.lacking = (file,)
    limited(cgroups, Limits())


def test_socket_buffers_that_cannot_be_counted_are_refused(tmp_path):
    """Version 1 without a limit on the buffers of sockets leaves memory that nobody counts: refused."""
    cgroups = v1(tmp_path, "memory", "pids", "cpu")
    cgroups.lacking = ("memory.kmem.tcp.limit_in_bytes",)
    with pytest.raises(IsolationUnavailable, match="could not be set"):
        limited(cgroups, Limits())


@pytest.mark.parametrize("absent", ["memory", "pids", "cpu"])
def test_a_limit_that_cannot_be_enforced_is_refused(tmp_path, absent):
    """One missing controller is a typed refusal that names it and says how to get it: never a weaker sandbox."""
    present = {"memory", "pids", "cpu"} - {absent}
    with pytest.raises(IsolationUnavailable) as refused:
        limited(v2(tmp_path, *present), Limits())
    assert [missing.feature for missing in refused.value.missing] == [f"cgroup {absent}"]
    assert "Delegate" in str(refused.value)


def test_what_is_not_limited_needs_no_controller(tmp_path):
    """Asking for no limit is the one way to run without control groups."""
    group = limited(Cgroups({}), Limits(memory=None, cpu=None, pids=None))
    assert group.directories == []
    assert group.open_procs() == []
    assert group.usage().memory is None


def test_a_limit_that_the_kernel_refuses_is_an_error(tmp_path):
    """When a write fails, the refusal says which; here the kernel's files are not there to be written."""
    tree = Hierarchy(2, tmp_path, tmp_path, frozenset({"memory", "pids", "cpu", "unified"}))
    with pytest.raises(IsolationUnavailable, match="could not be set"):
        limited(Cgroups(dict.fromkeys(tree.controllers, tree)), Limits())


def test_a_group_that_cannot_be_made_leaves_nothing_behind(tmp_path):
    """When one directory cannot be made, those that were are removed again."""
    good = Hierarchy(1, tmp_path, tmp_path, frozenset({"memory"}))
    bad = Hierarchy(1, tmp_path / "absent", tmp_path / "absent", frozenset({"pids"}))
    with pytest.raises(IsolationUnavailable, match="could not be made"):
        Cgroups({"memory": good, "pids": bad}).create("x")
    assert not list(tmp_path.iterdir())


def test_usage_on_v2(tmp_path):
    """CPU time, memory, its peak and kills are read from the v2 files."""
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.peak").write_text("3000\n")
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (tmp_path / "pids.current").write_text("4\n")
    controllers = ("memory", "pids", "cpu", "unified")
    group = Group(dict.fromkeys(controllers, tmp_path), dict.fromkeys(controllers, 2))
    usage = group.usage()
    group.close()
    assert (usage.cpu_time, usage.memory, usage.peak_memory, usage.oom_kills, usage.pids) == (
        1.5,
        1000,
        3000,
        1,
        4,
    )


def test_throttling_swap_and_sockets(tmp_path):
    """What the self-test looks at besides: throttled periods, swap, buffers of sockets, from the files of each version."""
    (tmp_path / "cpu.stat").write_text("nr_periods 9\nnr_throttled 3\nthrottled_time 5\n")
    (tmp_path / "memory.swap.current").write_text("4096\n")
    (tmp_path / "memory.stat").write_text("anon 1\nsock 77\n")
    (tmp_path / "memory.usage_in_bytes").write_text("1000\n")
    (tmp_path / "memory.memsw.usage_in_bytes").write_text("1500\n")
    (tmp_path / "memory.kmem.tcp.usage_in_bytes").write_text("99\n")
    for version, swap, sockets in ((2, 4096, 77), (1, 500, 99)):
        group = Group(dict.fromkeys(("memory", "cpu"), tmp_path), dict.fromkeys(("memory", "cpu"), version))
        found = group.throttled(), group.swap(), group.sockets()
        group.close()
        assert found == (3, swap, sockets)
    bare = Group({}, {})
    assert (bare.throttled(), bare.swap(), bare.sockets()) == (None, None, None)


def test_usage_on_v1(tmp_path):
    """The same from the v1 files."""
    (tmp_path / "cpuacct.usage").write_text("2500000000\n")
    (tmp_path / "memory.usage_in_bytes").write_text("1000\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text("3000\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
    (tmp_path / "pids.current").write_text("4\n")
    controllers = ("memory", "pids", "cpuacct")
    group = Group(dict.fromkeys(controllers, tmp_path), dict.fromkeys(controllers, 1))
    usage = group.usage()
    group.close()
    assert (usage.cpu_time, usage.memory, usage.peak_memory, usage.oom_kills, usage.pids) == (
        2.5,
        1000,
        3000,
        7,
        4,
    )
