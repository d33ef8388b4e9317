"""Control groups, v2 and v1: where limits can be set, one group for each sandbox, what it has used.

On a hybrid host each controller is taken from wherever it is: the v1 hierarchy that has it, or v2.
The v2 tree, where there is one, also gives ``cgroup.kill`` and CPU time without any controller.

Sources: cgroups(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

import contextlib
import errno
import os
import re
import secrets
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cellfork.model.errors import IsolationUnavailable, Missing
from cellfork.model.limits import Limits
from cellfork.runtimes.base import Usage
from cellfork.runtimes.freezing import Freezer, NoFreezer
from cellfork.runtimes.namespaces.freezer import HELD, OldFreezer, UnifiedFreezer, thaw_abandoned
from cellfork.runtimes.waiting import until

PREFIX = "cellfork"
ENVIRONMENT = "CELLFORK_CGROUP"
"""Names the directory (relative to each hierarchy) below which groups are made; for delegated groups."""
CPU_PERIOD = 100_000
SOCKETS_SHARE = 8
"""On version 1 the buffers of sockets may take this part of the memory limit, on top of it."""
SWAPS = Path("/proc/swaps")
CONTROLLERS = ("memory", "pids", "cpu")
FREEZER = "freezer"
"""On version 1 a controller of its own; every group of version 2 has it."""
NO_FREEZER = (
    "this host cannot hold a sandbox still: that takes control groups of version 2, or the 'freezer' of version 1, in which "
    "cellfork may make groups; 'cellfork doctor' tells what there is. What can be kept without is the files alone"
)
KEPT = "k"
"""Begins the mark of groups that belong to a state directory and not to a process."""
OLD = 300.0
"""Seconds after which a group of a state directory that has no process has none any more: it gets its first at once."""
_FORGOTTEN = re.compile(rf"{PREFIX}-{KEPT}[0-9a-f]{{12}}-\w+")
_MARKED = re.compile(rf"{PREFIX}-(\d+)\.(\d+)\.(\d+)-\w+")

DELEGATE = (
    "as an ordinary user run inside a delegated group, for instance "
    "'systemd-run --user --scope -p Delegate=yes cellfork …' or the provided systemd unit; "
    f"or let an administrator give you a group and name it in {ENVIRONMENT}; "
    "or ask for no such limit (Limits(memory=None, cpu=None, pids=None))"
)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted cgroup tree, the group in it that new groups are made in, and its controllers."""

    version: int
    mount: Path
    base: Path
    controllers: frozenset[str]


class Group:
    """The groups of one sandbox, one in each hierarchy that is used.

    ``freezer_base`` is where version 1 of the freezer can have groups, if it can.
    """

    def __init__(
        self, paths: Mapping[str, Path], versions: Mapping[str, int], freezer_base: Path | None = None
    ) -> None:
        self.paths = paths
        self._versions = versions
        self._freezer_base = freezer_base
        self._files: dict[str, int] = {}

    @property
    def directories(self) -> list[Path]:
        """The distinct directories."""
        return sorted(set(self.paths.values()))

    @property
    def name(self) -> str:
        """What its directories are called; empty where there is none."""
        return next((path.name for path in self.paths.values()), "")

    @property
    def trees(self) -> frozenset[str]:
        """Where it is, as ``/proc/<pid>/cgroup`` names trees: by a controller of version 1, or ``unified``."""
        return frozenset("unified" if self._versions[name] == 2 else name for name in self.paths)

    def open_procs(self) -> list[int]:
        """Return a descriptor of each ``cgroup.procs``; writing ``0`` to it moves the writer in."""
        fds: list[int] = []
        try:
            for path in self.directories:
                fds.append(os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))  # noqa: PERF401 - to close them
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    def usage(self) -> Usage:
        """Measure now."""
        memory_file, peak_file = (
            ("memory.current", "memory.peak")
            if self._versions.get("memory") == 2
            else ("memory.usage_in_bytes", "memory.max_usage_in_bytes")
        )
        return Usage(
            cpu_time=self._cpu_time(),
            memory=self._number("memory", memory_file),
            peak_memory=self._number("memory", peak_file),
            oom_kills=self._oom_kills(),
            pids=self._number("pids", "pids.current"),
        )

    def cache(self) -> int | None:
        """Return the bytes of the group's memory that hold files; ``None`` where the kernel does not count them."""
        word = b"file " if self._versions.get("memory") == 2 else b"total_cache "
        for line in self._read_once("memory", "memory.stat").splitlines():
            if line.startswith(word):
                return int(line.split()[1])
        return None

    def reset_peak(self) -> None:
        """Let the peak start again (v1; v2 since Linux 6.12)."""
        name = "memory.peak" if self._versions.get("memory") == 2 else "memory.max_usage_in_bytes"
        fd = self._open("memory", name, os.O_RDWR)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(fd, b"0", 0)

    def throttled(self) -> int | None:
        """Return in how many periods the group had used up its processor time; ``None`` where it has no quota."""
        for line in (self._read("cpu", "cpu.stat") or b"").splitlines():
            if line.startswith(b"nr_throttled "):
                return int(line.split()[1])
        return None

    def swap(self) -> int | None:
        """Return the bytes of the group that are in swap space; ``None`` where the kernel does not count them."""
        if self._versions.get("memory") == 2:
            return self._number("memory", "memory.swap.current")
        both = self._number("memory", "memory.memsw.usage_in_bytes")
        memory = self._number("memory", "memory.usage_in_bytes")
        return None if both is None or memory is None else max(0, both - memory)

    def sockets(self) -> int | None:
        """Return the bytes in buffers of sockets; ``None`` where the kernel does not count them."""
        if self.counts_sockets_apart:
            return self._number("memory", "memory.kmem.tcp.usage_in_bytes")
        for line in self._read_once("memory", "memory.stat").splitlines():
            if line.startswith(b"sock "):
                return int(line.split()[1])
        return None

    @property
    def counts_sockets_apart(self) -> bool:
        """Whether the buffers of sockets have a counter and a limit of their own, beside the memory's."""
        return self._versions.get("memory") == 1

    def freezer(self) -> Freezer:
        """Return what holds the group's processes still."""
        unified = self.paths.get("unified")
        if unified is not None:
            return UnifiedFreezer(unified)
        if self._freezer_base is not None and self.paths:
            return OldFreezer(self._freezer_base / self.name, self.processes)
        return NoFreezer(NO_FREEZER)

    def processes(self) -> list[int]:
        """Return the pids in the group."""
        pids: set[int] = set()
        for path in [*self.directories, *self._inner()]:
            with contextlib.suppress(OSError):
                pids |= {int(pid) for pid in (path / "cgroup.procs").read_text().split()}
        return sorted(pids)

    def kill(self) -> bool:
        """Kill every process in the group at once; ``False`` where the kernel cannot (before Linux 5.14)."""
        path = self.paths.get("unified")
        if path is None:
            return False
        try:
            (path / "cgroup.kill").write_text("1")
        except OSError:
            return False
        return True

    def _read_once(self, controller: str, name: str) -> bytes:
        """Return a file that is read too seldom for a descriptor of its own; nothing where there is none."""
        path = self.paths.get(controller)
        if path is None:
            return b""
        try:
            return (path / name).read_bytes()
        except OSError:
            return b""

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def remove(self) -> bool:
        """Remove the directories; ``False`` while a process is still leaving."""
        self.close()
        left = [path for path in [*self._inner(), *self.directories] if not _remove(path)]
        return not left

    def _inner(self) -> list[Path]:
        """Return the groups that a freezer may have made."""
        unified = self.paths.get("unified")
        if unified is not None:
            return [unified / HELD]
        return [self._freezer_base / self.name] if self._freezer_base is not None and self.paths else []

    def _cpu_time(self) -> float | None:
        text = self._read("unified", "cpu.stat")
        if text is not None and text.startswith(b"usage_usec "):
            return int(text.split(None, 2)[1]) / 1e6
        nanoseconds = self._number("cpuacct", "cpuacct.usage")
        return None if nanoseconds is None else nanoseconds / 1e9

    def _oom_kills(self) -> int:
        name = "memory.events" if self._versions.get("memory") == 2 else "memory.oom_control"
        for line in (self._read("memory", name) or b"").splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def _number(self, controller: str, name: str) -> int | None:
        text = self._read(controller, name)
        return int(text) if text and text.strip().isdigit() else None

    def _read(self, controller: str, name: str) -> bytes | None:
        fd = self._open(controller, name, os.O_RDONLY)
        if fd is None:
            return None
        try:
            return os.pread(fd, 16384, 0)
        except OSError:
            return None

    def _open(self, controller: str, name: str, flags: int) -> int | None:
        path = self.paths.get(controller)
        if path is None:
            return None
        key = f"{controller}/{name}"
        if key not in self._files:
            try:
                self._files[key] = os.open(path / name, flags | os.O_CLOEXEC)
            except OSError:
                return None
        return self._files[key]


class Cgroups:
    """Finds the hierarchies of this host and makes groups in them; their names carry ``mark``."""

    def __init__(self, hierarchies: Mapping[str, Hierarchy], mark: str = "") -> None:
        self.hierarchies = hierarchies
        self._mark = mark

    @classmethod
    def detect(cls) -> "Cgroups":
        """Look at what is mounted and where this process may make groups; sweep what is abandoned there."""
        found: dict[str, Hierarchy] = {}
        for hierarchy in _mounted():
            if not _can_make_groups(hierarchy):
                continue
            for controller in hierarchy.controllers:
                found.setdefault(controller, hierarchy)
        cgroups = cls(found, owner_mark())
        cgroups.sweep()
        return cgroups

    def kept(self, id: str) -> "Cgroups":
        """Return the same for groups that outlive this process: their names carry ``id``, and nobody else sweeps them."""
        return Cgroups(self.hierarchies, f"{KEPT}{id}-")

    def names(self) -> list[str]:
        """Return what the directories of the groups are called that carry this mark."""
        prefix = f"{PREFIX}-{self._mark}"
        found: set[str] = set()
        for base in {hierarchy.base for hierarchy in self.hierarchies.values()}:
            with contextlib.suppress(OSError):
                found |= {name for name in os.listdir(base) if name.startswith(prefix)}
        return sorted(found)

    def sweep(self) -> None:
        """Remove the groups of owners that are gone: who was killed could not do it."""
        for base in {hierarchy.base for hierarchy in self.hierarchies.values()}:
            with contextlib.suppress(OSError):
                for name in filter(is_abandoned, os.listdir(base)):
                    thaw_abandoned(base / name)
                    _remove(base / name / HELD)
                    _remove(base / name)  # which fails, and shall, where a process is left in it
                for name in os.listdir(base):
                    if _FORGOTTEN.fullmatch(name) and _is_old(base / name):
                        _remove(base / name / HELD)
                        _remove(base / name)

    def missing(self, limits: Limits) -> list[Missing]:
        """Return what of ``limits`` cannot be enforced here."""
        wanted = {"memory": limits.memory, "pids": limits.pids, "cpu": limits.cpu}
        return [
            Missing(f"cgroup {name}", f"the limit on {name} cannot be enforced without it", DELEGATE)
            for name, value in wanted.items()
            if value is not None and name not in self.hierarchies
        ]

    def create(self, name: str) -> Group:
        """Make the groups of a sandbox, without limits.  Raises :class:`IsolationUnavailable`."""
        group = self.find(f"{PREFIX}-{self._mark}{name}")
        try:
            for path in group.directories:
                path.mkdir()
        except OSError as error:
            group.remove()
            raise IsolationUnavailable(f"a control group could not be made: {error}") from error
        return group

    def find(self, directory: str) -> Group:
        """Return the groups whose directories are called ``directory``, whether they are there or not; of ``""`` none."""
        if not directory.startswith(f"{PREFIX}-") or "/" in directory:
            return Group({}, {})
        used = [c for c in (*CONTROLLERS, "unified", "cpuacct") if c in self.hierarchies]
        paths = {c: self.hierarchies[c].base / directory for c in used}
        return Group(paths, {c: self.hierarchies[c].version for c in used}, self._freezer_base())

    def _freezer_base(self) -> Path | None:
        old = self.hierarchies.get(FREEZER)
        return old.base if old is not None and "unified" not in self.hierarchies else None

    def limit(self, group: Group, limits: Limits) -> None:
        """Set the limits of a sandbox.

        Raises :class:`IsolationUnavailable` where a limit cannot be set: it is never left out.
        """
        missing = self.missing(limits)
        if missing:
            raise IsolationUnavailable("this host cannot enforce the limits", tuple(missing))
        try:
            self._set(group.paths, limits)
        except OSError as error:
            raise IsolationUnavailable(f"a limit could not be set: {error}") from error

    def _set(self, paths: Mapping[str, Path], limits: Limits) -> None:
        if limits.memory is not None:
            self._set_memory(paths["memory"], limits.memory_bytes)
        if limits.pids is not None:
            _write(paths["pids"] / "pids.max", limits.pids)
        if limits.cpu is not None:
            self._set_cpu(paths["cpu"], int(limits.cpu * CPU_PERIOD))

    def _set_memory(self, path: Path, size: int) -> None:
        """Bound the memory, and let nothing of it go to swap.

        On version 2 ``memory.oom.group`` stays 0: a kernel that runs out of memory ends, its sandbox goes on.
        Version 1 counts the buffers of TCP and UDP sockets only where they have a limit of their own, and may have
        inherited from above to let processes wait where there is no memory, instead of ending one.
        """
        if self.hierarchies["memory"].version == 2:
            _write(path / "memory.max", size)
            _forbid_swap(path / "memory.swap.max", 0)
            return
        _write(path / "memory.limit_in_bytes", size)
        _forbid_swap(path / "memory.memsw.limit_in_bytes", size)
        _write_if_present(path / "memory.swappiness", 0)
        _write(path / "memory.kmem.tcp.limit_in_bytes", size // SOCKETS_SHARE)
        _write(path / "memory.oom_control", 0)

    def _set_cpu(self, path: Path, quota: int) -> None:
        if self.hierarchies["cpu"].version == 2:
            _write(path / "cpu.max", f"{quota} {CPU_PERIOD}")
            return
        _write(path / "cpu.cfs_period_us", CPU_PERIOD)
        _write(path / "cpu.cfs_quota_us", quota)


def owner_mark() -> str:
    """Return what the names of this process's groups carry: its pid namespace, pid and start time."""
    return f"{_pid_namespace()}.{os.getpid()}.{_start_time(os.getpid())}-"


def is_abandoned(name: str) -> bool:
    """Tell whether the owner of the group ``name`` is known, and gone.

    Of the owners in another pid namespace nothing can be known.
    """
    match = _MARKED.fullmatch(name)
    if match is None or int(match[1]) != _pid_namespace():
        return False
    return _start_time(int(match[2])) != int(match[3])


def _is_old(path: Path) -> bool:
    """Tell whether a directory was made a while ago."""
    try:
        return time.time() - path.stat().st_mtime > OLD
    except OSError:
        return False


def start_time(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 where there is none, or a zombie only."""
    return _start_time(pid)


async def remove_when_empty(group: Group, seconds: float = 30.0) -> bool:
    """Remove ``group``, waiting up to ``seconds`` for its last processes to leave: giving memory back takes its time.

    Needs no thread: there may be no room for one, and then least of all may anything be left behind.
    """
    return await until(group.remove, seconds)


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_time(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 where there is none, or a zombie only."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = stat[stat.rindex(")") + 2 :].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def _mounted() -> list[Hierarchy]:
    own = _own_groups()
    hierarchies: list[Hierarchy] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, mount_point, kind, options, *_ = line.split()
        mount = Path(mount_point.replace("\\040", " "))
        if kind == "cgroup2":
            hierarchies.append(_unified(mount, own.get("", "/")))
        elif kind == "cgroup":
            controllers = frozenset(options.split(",")) & {*CONTROLLERS, "cpuacct", FREEZER}
            path = next((own[c] for c in controllers if c in own), "/")
            hierarchies.append(Hierarchy(1, mount, _base(mount, path), controllers))
    return hierarchies


def _unified(mount: Path, own: str) -> Hierarchy:
    base = _base(mount, "/" if os.geteuid() == 0 else own)
    available = frozenset(_words(base / "cgroup.controllers")) & set(CONTROLLERS)
    return Hierarchy(2, mount, base, frozenset(_enable(base, available)) | {"unified"})


def _enable(base: Path, controllers: frozenset[str]) -> set[str]:
    """Turn the controllers on for groups below ``base``; return those that are on."""
    for controller in sorted(controllers - set(_words(base / "cgroup.subtree_control"))):
        try:
            _write(base / "cgroup.subtree_control", f"+{controller}")
        except OSError as error:
            if error.errno != errno.EBUSY:
                continue
            _leave_to_leaf(base)
            with contextlib.suppress(OSError):
                _write(base / "cgroup.subtree_control", f"+{controller}")
    return set(_words(base / "cgroup.subtree_control")) & controllers


def _leave_to_leaf(base: Path) -> None:
    """Move the processes of ``base`` into a group of their own: v2 allows limits only below empty groups."""
    leaf = base / f"{PREFIX}-host"
    with contextlib.suppress(OSError):
        leaf.mkdir(exist_ok=True)
        for pid in _words(base / "cgroup.procs"):
            _write(leaf / "cgroup.procs", pid)


def _base(mount: Path, own: str) -> Path:
    return mount / os.environ.get(ENVIRONMENT, own).lstrip("/")


def _own_groups() -> dict[str, str]:
    groups: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _can_make_groups(hierarchy: Hierarchy) -> bool:
    """Make a group and move a process into it: v2 asks for rights on the common ancestor as well.

    Its name tells whose it is: who is killed meanwhile leaves it to the next one's :meth:`Cgroups.sweep`.
    """
    probe = hierarchy.base / f"{PREFIX}-{owner_mark()}probe{secrets.token_hex(4)}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        move = ["/bin/sh", "-c", 'echo 0 > "$1"', "sh", str(probe / "cgroup.procs")]
        return os.geteuid() == 0 or subprocess.run(move, capture_output=True, check=False).returncode == 0
    finally:
        _remove(probe)


def _remove(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _write(path: Path, value: int | str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _forbid_swap(file: Path, value: int) -> None:
    """Write the limit that leaves no swap; where the kernel has none, :class:`IsolationUnavailable` if there is swap."""
    if file.exists():
        _write(file, value)
        return
    devices = SWAPS.read_text().splitlines()[1:]
    if devices:
        missing = Missing(
            "swap limit",
            f"the host swaps to {devices[0].split()[0]} and its kernel cannot keep sandboxes from it, so that a limit "
            "on memory would not hold",
            "boot with 'swapaccount=1', or turn swap off ('swapoff -a')",
        )
        raise IsolationUnavailable("this host cannot enforce the limits", (missing,))


def _write_if_present(path: Path, value: int) -> None:
    if path.exists():
        _write(path, value)
