"""Leak checks: what a piece of code left behind on this machine.

::

    with no_leaks():
        with Sandbox.create() as sandbox:
            sandbox.run_code("1 + 1")

Five kinds are watched: processes that descend from this one, open descriptors of this process, mounts,
cgroups and temporary files whose name tells that they are cellfork's.  After :func:`mark` processes count as well that
this one began and that have lost their parent since, wherever they went.  Something is a leak when it is
there at every look during a grace period, so that neither a slow farewell nor a neighbour that runs
the same code at the same time is mistaken for one.

The embedded host keeps a thread, a zygote and its helpers for the life of the process.  They are no leak, nor is
what the host opens when it starts; ``allow_host=False`` is for code that must close its host as well.
"""

import contextlib
import os
import re
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

GRACE_SECONDS = 3.0
"""How long something may take to go before it counts as a leak."""

NAME = "cellfork"
OWNER = re.compile(rf"/{NAME}-\d+\.(\d+)\.\d+-\w+$")
KEPT = re.compile(r"/cellfork-k([0-9a-f]{12})-")
MARK = 1 << 50
"""Microseconds of real-time scheduling, of which nothing here has any: with a process's id added, a limit that is its mark."""
MARKED = re.compile(r"^Max realtime timeout +(\d+) ", re.MULTILINE)
ZYGOTE = re.compile(r"cellfork-zygote|cellfork\S*(zygote|boot)")
"""What the name or the command line of a zygote shows, from its first moment on."""

Role = Literal["zygote", "helper", "sandbox", "other"]


@dataclass(frozen=True)
class Leaks:
    """What is there now and was not before: (kind, identity) → a line of text for people."""

    found: dict[tuple[str, str], str]

    def __bool__(self) -> bool:
        """Tell whether anything leaked."""
        return bool(self.found)

    def __and__(self, later: "Leaks") -> "Leaks":
        """Return what leaked according to both looks, as the later one saw it."""
        return Leaks({key: line for key, line in later.found.items() if key in self.found})

    def __str__(self) -> str:
        """Return one line for each leak."""
        return "\n".join(f"{kind}: {line}" for (kind, _), line in sorted(self.found.items()))

    def of(self, kind: str) -> list[str]:
        """Return the lines of one kind: ``process``, ``fd``, ``mount``, ``cgroup`` or ``file``."""
        return [line for (found, _), line in sorted(self.found.items()) if found == kind]


@dataclass(frozen=True)
class Process:
    """A process as ``/proc`` shows it: ``comm`` is its name, ``cmdline`` its arguments."""

    pid: int
    comm: str
    cmdline: str
    state: str
    started: str
    depth: int
    """How many pid namespaces it is in, counted from this process's: 1 is ours."""
    role: Role = "other"

    @property
    def identity(self) -> str:
        """The same for as long as the process lives, and never given twice."""
        return f"{self.pid}@{self.started}"

    @property
    def is_host(self) -> bool:
        """Whether this belongs to the embedded host, and not to a sandbox."""
        return self.role in {"zygote", "helper"}

    def __str__(self) -> str:
        """Return the line that a report shows."""
        return f"{self.pid} ({self.comm}) {self.state}: {self.cmdline[:120]}"


@dataclass(frozen=True)
class Snapshot:
    """What is there at one moment."""

    processes: dict[str, Process] = field(default_factory=dict)
    fds: dict[int, str] = field(default_factory=dict)
    mounts: frozenset[str] = frozenset()
    cgroups: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    threads: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()
    """Every process of the machine."""

    @classmethod
    def take(cls, before: "Snapshot | None" = None) -> "Snapshot":
        """Look at this process and this machine; at orphans that are there since ``before``."""
        pids = frozenset(_pids())
        found = [*descendants(os.getpid())]
        if before is not None:
            found += orphans(before.pids | {process.pid for process in found})
        return cls(
            pids=pids,
            processes={process.identity: process for process in found},
            fds=open_fds(),
            mounts=frozenset(mounts()),
            cgroups=frozenset(cgroups()),
            files=frozenset(temporary_files()),
            threads=frozenset(
                f"{t.name} {t.ident}" for t in threading.enumerate() if t.name.startswith(NAME)
            ),
        )

    @property
    def host(self) -> frozenset[str]:
        """What the embedded host consists of: its threads, its zygotes and their helpers."""
        return self.threads | {identity for identity, process in self.processes.items() if process.is_host}

    def leaks_since(self, before: "Snapshot", *, allow_host: bool = True) -> Leaks:
        """Return what this snapshot has and ``before`` had not."""
        processes = {
            ("process", identity): str(process)
            for identity, process in self.processes.items()
            if identity not in before.processes and not (allow_host and process.is_host)
        }
        mounts = {("mount", line): line for line in self.mounts - before.mounts}
        if allow_host and self.host - before.host:  # it started or grew meanwhile, and stays
            return Leaks(processes | mounts)
        fds = {
            ("fd", f"{fd} → {target}"): f"{fd} → {target}{_described(fd)}"
            for fd, target in self.fds.items()
            if before.fds.get(fd) != target
        }
        cgroups = {("cgroup", path): path for path in self.cgroups - before.cgroups}
        files = {("file", path): path for path in self.files - before.files}
        return Leaks(processes | fds | mounts | cgroups | files)


def find_leaks(before: Snapshot, *, grace: float = GRACE_SECONDS, allow_host: bool = True) -> Leaks:
    """Return what is there at every look for ``grace`` seconds and was not at ``before``."""
    deadline = time.monotonic() + grace
    pause = 0.002
    leaks = Snapshot.take(before).leaks_since(before, allow_host=allow_host)
    while leaks and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 2, 0.2)
        leaks &= Snapshot.take(before).leaks_since(before, allow_host=allow_host)
    return leaks


@contextmanager
def no_leaks(*, grace: float = GRACE_SECONDS, allow_host: bool = True) -> Iterator[None]:
    """Raise ``AssertionError`` when the block leaves anything behind.

    An exception of the block itself passes through unchecked.
    """
    before = Snapshot.take()
    yield
    leaks = find_leaks(before, grace=grace, allow_host=allow_host)
    if leaks:
        raise AssertionError(f"left behind:\n{leaks}")


def descendants(root: int) -> Iterator[Process]:
    """Yield every process below ``root``, zombies included, parents before their children."""
    pending: list[tuple[int, Process | None]] = [(root, None)]
    while pending:
        pid, parent = pending.pop()
        for child in _children(pid):
            process = _process(child)
            if process is not None:
                process = replace(process, role=role_of(process, parent))
                pending.append((child, process))
                yield process


def mark() -> None:
    """Mark this process and whatever it begins from now on, so that :func:`orphans` are told from those of others.

    The mark is a soft resource limit without effect.  It stays with a process that leaves its parent, its session and its
    environment behind; a child that marks itself, as another test process does, is on its own.
    """
    _soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    with contextlib.suppress(ValueError):  # somebody gave this process hardly any: then no orphans are found
        resource.setrlimit(resource.RLIMIT_RTTIME, (MARK + os.getpid(), hard))


def orphans(known: Container[int] = ()) -> Iterator[Process]:
    """Yield the processes that carry this one's mark and are not below it, without those in ``known``.

    Those that have ended are their new parent's, who may take its time.
    """
    own = MARK + os.getpid()
    for pid in _pids():
        if pid in known or pid == os.getpid():
            continue
        found = MARKED.search(_read(f"/proc/{pid}/limits"))
        if found is not None and int(found[1]) == own:
            process = _process(pid)
            if process is not None and process.state != "Z" and not _is_below(pid, os.getpid()):
                yield process


def role_of(process: Process, parent: Process | None) -> Role:
    """Tell what a process is to the embedded host, ``parent`` being the one that started it.

    A sandbox is forked from the zygote and looks like it, but for its place in the tree and its pid namespace.
    """
    if parent is None or parent.role == "other":
        return "zygote" if ZYGOTE.search(f"{process.comm} {process.cmdline}") else "other"
    if parent.role == "sandbox":
        return "sandbox"
    return "helper" if process.depth == parent.depth > 1 else "sandbox"


def open_fds() -> dict[int, str]:
    """Return the open descriptors of this process: number → what it refers to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        target = _readlink(f"/proc/self/fd/{name}")
        if target is not None:
            found[int(name)] = target
    return found


def _described(fd: int) -> str:
    """Return what a socket is, for people; nothing for whatever else a descriptor refers to."""
    try:
        opened = socket.socket(fileno=fd)
    except OSError:
        return ""
    try:
        listens = " listening" if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else ""
        family, kind = (getattr(each, "name", each) for each in (opened.family, opened.type))
        return f" ({family} {kind}{listens} at {opened.getsockname()!r})"
    except OSError:  # it was closed meanwhile
        return ""
    finally:
        opened.detach()


def mounts() -> Iterator[str]:
    """Yield the mounts of this mount namespace that name cellfork."""
    for line in _read("/proc/self/mountinfo").splitlines():
        if NAME in line:
            yield line


def cgroups() -> Iterator[str]:
    """Yield cgroups of cellfork that hold processes below this one, and empty ones that no other program owns.

    One that holds this process itself is the host's own, where its cgroup was delegated to it.
    """
    below = {process.pid for process in descendants(os.getpid())}
    states: set[str] | None = None
    for parent in _cgroup_parents():
        for path in _named(parent):
            members = set(_members(path))
            if states is None and KEPT.search(path):
                states = _state_directories()
            if os.getpid() not in members and (
                members & below
                or ((not members or _is_named(path)) and not _belongs_to_another(path, states))
            ):
                yield path


def _is_named(path: str) -> bool:
    """Tell whether the name of a group says whose it is, whoever is in it."""
    return bool(KEPT.search(path) or OWNER.search(path))


def _belongs_to_another(path: str, states: Container[str] | None = None) -> bool:
    """Tell whether a group is that of another program, which may be at starting or ending a sandbox, or was killed."""
    kept = KEPT.search(path)
    if kept is not None:
        return kept[1] not in (_state_directories() if states is None else states)
    owner = OWNER.search(path)
    return owner is not None and int(owner[1]) != os.getpid()


def _state_directories() -> set[str]:
    """Return the ids of the state directories below the directory for temporary files, which is a test process's own."""
    found = set()
    for path, _, names in os.walk(tempfile.gettempdir()):
        if "id" in names and "lock" in names:
            found.add(_read(os.path.join(path, "id")).strip())
    return found


def temporary_files() -> Iterator[str]:
    """Yield the files and directories of cellfork where temporary ones are made."""
    for parent in {tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR") or "/run", "/dev/shm"}:
        yield from _named(parent)


def _named(parent: str) -> Iterator[str]:
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in names:
        if name.startswith(NAME):
            yield os.path.join(parent, name)


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _is_below(pid: int, root: int) -> bool:
    """Tell whether a process descends from another: it may have begun since the tree was looked at."""
    while pid > 1 and pid != root:
        stat = _read(f"/proc/{pid}/stat")
        pid = int(stat[stat.rindex(")") + 2 :].split()[1]) if stat else 0
    return pid == root


def _process(pid: int) -> Process | None:
    stat = _read(f"/proc/{pid}/stat")
    if not stat:
        return None
    comm = stat[stat.index("(") + 1 : stat.rindex(")")]
    values = stat[stat.rindex(")") + 2 :].split()
    cmdline = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    status = _read(f"/proc/{pid}/status")
    depth = next((len(line.split()) - 1 for line in status.splitlines() if line.startswith("NSpid:")), 1)
    return Process(pid, comm, cmdline, state=values[0], started=values[19], depth=depth)


def _cgroup_parents() -> set[str]:
    """Return the directories in which cellfork may make cgroups: this process's own and those above it."""
    parents = set()
    for line in _read("/proc/self/mountinfo").splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup"):
            parents |= set(_upwards(fields.split()[4]))
    return parents


def _upwards(mount: str) -> Iterator[str]:
    yield mount
    for line in _read("/proc/self/cgroup").splitlines():
        path = line.split(":", 2)[2].strip("/")
        while path:
            if os.path.isdir(os.path.join(mount, path)):
                yield os.path.join(mount, path)
            path = os.path.dirname(path)


def _members(cgroup: str) -> Iterator[int]:
    for path, _, _ in os.walk(cgroup):
        yield from map(int, _read(os.path.join(path, "cgroup.procs")).split())


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _readlink(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
