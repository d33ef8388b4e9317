"""What ``/proc`` says of a process: read by the host, from outside, in the kernel's own words.

Nothing here is believed because a sandbox says it, and nothing is judged: :mod:`.posture` does that.
Every file is read once, relative to one descriptor of the process's directory, so that another process
that got the same number later cannot be mixed in.

Source: proc(5) and its pages for each file.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

NAMESPACES = (
    "cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts",
)  # fmt: skip
READ_SIZE = 64 * 1024
ORDINARY_FLAGS = frozenset({b"ro", b"rw", b"nosuid", b"nodev", b"noexec", b"nosymfollow"})
"""Of a mount's flags those that protect; how access times are kept does not matter."""
LASTING = (
    "Umask", "Uid", "Gid", "Groups", "NSpid", "NSsid", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd",
    "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters",
)  # fmt: skip
"""Fields of ``status`` that stay as they are once a process has its locks."""
NUMBERED = ("pipe:", "socket:")
"""Links of descriptors that carry a number of their own."""

Status = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reading:
    """One process, as it was found.  ``threads`` are their ``status`` files, the first thread's first.

    ``mountinfo`` is empty where it was not asked for.  ``owner`` is the user to whom the files that only the
    process itself may read belong: its own where it is dumpable, root of its user namespace otherwise.
    A link that is not there (a kind of namespace that this kernel does not have) is missing.
    """

    pid: int
    threads: tuple[bytes, ...]
    children: tuple[int, ...]
    limits: bytes
    environ: bytes
    uid_map: bytes
    gid_map: bytes
    setgroups: bytes
    oom_score_adj: bytes
    cgroup: bytes
    namespaces: Mapping[str, str]
    descriptors: Mapping[int, str]
    root: str
    cwd: str
    owner: int
    mountinfo: bytes = b""


class Mount(NamedTuple):
    """One line of ``mountinfo``: ``root`` is the part of the file system on ``device`` that is seen at ``point``."""

    number: int
    parent: int
    device: str
    root: str
    point: str
    flags: tuple[str, ...]
    kind: str
    options: tuple[str, ...]


def read_process(pid: int, *, mounts: bool, descriptors: bool = True) -> Reading:
    """Read what there is to know of ``pid``, without ``descriptors`` where it opens and closes some meanwhile.

    Raises ``OSError`` where the process is gone, or where this kernel lacks one of the files.
    """
    directory = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return Reading(
            pid=pid,
            threads=_read_threads(pid, directory),
            children=tuple(map(int, _read(f"task/{pid}/children", directory).split())),
            limits=_read("limits", directory),
            environ=_read_pages("environ", directory),
            uid_map=_read("uid_map", directory),
            gid_map=_read("gid_map", directory),
            setgroups=_read("setgroups", directory),
            oom_score_adj=_read("oom_score_adj", directory),
            cgroup=_read("cgroup", directory),
            namespaces=_read_namespaces(directory),
            descriptors=_read_descriptors(directory) if descriptors else {},
            root=os.readlink("root", dir_fd=directory),
            cwd=os.readlink("cwd", dir_fd=directory),
            owner=_owner_of("environ", directory),
            mountinfo=_read_pages("mountinfo", directory) if mounts else b"",
        )
    finally:
        os.close(directory)


def fingerprint(reading: Reading) -> str:
    """Return a hash of what nothing inside can change about a locked process, in the kernel's own words.

    Ids, capabilities, filters, namespaces, limits, root and mounts; not what comes and goes with its work: descriptors,
    children, waiting signals, the part of its control group in which it is held still.  That a source of a bind was removed on the host since does not count.
    """
    words = [
        *(parse_status(reading.threads[0]).get(name, "?") for name in LASTING),
        *(f"{name} {reading.namespaces.get(name)}" for name in NAMESPACES),
        str(len(reading.threads)),
        reading.root,
        str(reading.owner),
    ]
    texts = (reading.limits, reading.environ, reading.uid_map, reading.gid_map, reading.setgroups)
    mounts = reading.mountinfo.replace(b"//deleted ", b" ")
    digest = hashlib.sha256()
    for piece in ("\0".join(words).encode(), *texts, reading.oom_score_adj, mounts):
        digest.update(b"%d:" % len(piece) + piece)
    return digest.hexdigest()


def has_ended(pid: int) -> bool:
    """Tell whether ``pid`` is gone, or waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()[0] in {b"Z", b"X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


def parse_status(text: bytes) -> Status:
    """Return the fields of a ``status`` file as text, by name."""
    pairs = (line.partition(":\t") for line in text.decode("utf-8", "replace").split("\n"))
    return {name: value.strip() for name, _colon, value in pairs}


@lru_cache(maxsize=64)
def parse_limits(text: bytes) -> Mapping[str, tuple[str, str]]:
    """Return the soft and the hard limit, by the name that ``limits`` gives a resource."""
    lines = text.decode("ascii", "replace").splitlines()[1:]
    return {line[:25].strip(): (line[26:46].strip(), line[47:67].strip()) for line in lines}


@lru_cache(maxsize=4096)
def parse_id_map(text: bytes) -> tuple[tuple[int, int, int], ...]:
    """Return ``(first inside, first outside, count)`` of every range of a user namespace."""
    rows = (tuple(map(int, line.split())) for line in text.splitlines())
    return tuple((inside, outside, count) for inside, outside, count in rows)


def parse_cgroups(text: bytes) -> Mapping[str, str]:
    """Return the path of the process's group by controller; that of version 2 as ``unified``."""
    found: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        _number, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(",") if controllers else ["unified"], path)
    return found


def parse_mounts(text: bytes) -> list[Mount]:
    """Return the mounts of a ``mountinfo`` file."""
    mounts: list[Mount] = []
    for line in text.splitlines():
        number, parent, rest = line.split(b" ", 2)
        mounts.append(Mount(int(number), int(parent), *_parse_mount(rest)))
    return mounts


@lru_cache(maxsize=4096)
def _parse_mount(rest: bytes) -> tuple[str, str, str, tuple[str, ...], str, tuple[str, ...]]:
    """Parse what follows the numbers: the same for most mounts of all sandboxes of a template."""
    left, _dash, right = rest.partition(b" - ")
    device, root, point, flags, *propagation = left.split(b" ")
    kind, _source, options = right.split(b" ", 2)
    kept = [flag for flag in flags.split(b",") if flag in ORDINARY_FLAGS]
    return (
        device.decode(),
        _unescape(root),
        _unescape(point),
        tuple(sorted(flag.decode() for flag in (*kept, *propagation))),
        kind.decode(),
        tuple(options.decode("utf-8", "replace").split(",")),
    )


def _unescape(text: bytes) -> str:
    """Undo the octal escapes of ``mountinfo``."""
    if b"\\" in text:
        for character in (b" ", b"\t", b"\n", b"#", b"\\"):
            text = text.replace(b"\\%03o" % character[0], character)
    return os.fsdecode(text)


def _read(name: str, directory: int) -> bytes:
    """Read a file that the kernel writes in one piece."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.read(fd, READ_SIZE)
    finally:
        os.close(fd)


def _read_pages(name: str, directory: int) -> bytes:
    """Read a file that the kernel writes page by page."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        data = b""
        while piece := os.read(fd, READ_SIZE):
            data += piece
        return data
    finally:
        os.close(fd)


def _owner_of(name: str, directory: int) -> int:
    return os.stat(name, dir_fd=directory)[stat.ST_UID]


def _read_threads(pid: int, directory: int) -> tuple[bytes, ...]:
    threads = sorted(map(int, _list("task", directory)), key=lambda thread: (thread != pid, thread))
    return tuple(_read(f"task/{thread}/status", directory) for thread in threads)


def _read_namespaces(directory: int) -> Mapping[str, str]:
    links: dict[str, str] = {}
    for name in NAMESPACES:
        try:
            links[name] = os.readlink(f"ns/{name}", dir_fd=directory)
        except FileNotFoundError:
            continue
    return links


def _read_descriptors(directory: int) -> Mapping[int, str]:
    return {int(name): os.readlink(f"fd/{name}", dir_fd=directory) for name in _list("fd", directory)}


def _list(name: str, directory: int) -> list[str]:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def disk(pid: int, path: str) -> tuple[int | None, int | None]:
    """Return the bytes in use, and all bytes, of the file system that a process sees at ``path``; ``None`` where it ended.

    The way there is the kernel's (``/proc/pid/root``) and the template's, which the process cannot change.
    """
    try:
        status = os.statvfs(f"/proc/{pid}/root{path}")
    except OSError:
        return None, None
    return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_blocks * status.f_frsize
