"""What the posture of a sandbox must be, computed from the request and the template.

Nothing is taken from what the zygote was told: a plan that lost a lock on its way is found by the comparison.
"""

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cellfork.guest import linux, oom
from cellfork.guest.maker import IDS_PER_SANDBOX, USER_ID
from cellfork.guest.sandbox import BOOT_ID, BOOT_ID_FILE, TERMINALS
from cellfork.model.specs import HOME, ROOT_HOME, SandboxSpec
from cellfork.runtimes import plan
from cellfork.runtimes.interpreter import Interpreter
from cellfork.runtimes.namespaces import layout, readings, volumes
from cellfork.runtimes.namespaces.posture import (
    INIT,
    KERNEL,
    MARKED,
    Expectation,
    Host,
    bounds_of,
    digest_of,
    mount_field,
    mount_line,
)

NO_CAPABILITIES = "0" * 16
NO_SIGNALS = "0" * 16
SECCOMP_FILTER = "2"
FILTERS = 2
"""The base, which the zygote loads, and the delta, which every sandbox loads."""

RESOURCES: Mapping[int, str] = {
    resource.RLIMIT_AS: "Max address space",
    resource.RLIMIT_CORE: "Max core file size",
    resource.RLIMIT_CPU: "Max cpu time",
    resource.RLIMIT_DATA: "Max data size",
    resource.RLIMIT_FSIZE: "Max file size",
    10: "Max file locks",
    resource.RLIMIT_MEMLOCK: "Max locked memory",
    resource.RLIMIT_MSGQUEUE: "Max msgqueue size",
    resource.RLIMIT_NICE: "Max nice priority",
    resource.RLIMIT_NOFILE: "Max open files",
    resource.RLIMIT_NPROC: "Max processes",
    resource.RLIMIT_RSS: "Max resident set",
    resource.RLIMIT_RTPRIO: "Max realtime priority",
    resource.RLIMIT_RTTIME: "Max realtime timeout",
    resource.RLIMIT_SIGPENDING: "Max pending signals",
    resource.RLIMIT_STACK: "Max stack size",
}
"""How ``limits`` names each resource."""

PRIVATE_FLAGS = ("nodev", "nosuid")
NEVER_RUN = ("nodev", "noexec", "nosuid")
ROOT_BOUNDS = "size=16m,nr_inodes=65536"
INIT_DESCRIPTORS = (
    "0 /dev/null", "1 /dev/null", "2 /dev/null", "3 socket",  # the host
    "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "anon_inode:[eventfd]",  # its loop; commands and files
    "socket", "socket",  # signals
    "socket", "pipe (stdout)", "pipe (stderr)",  # the first kernel
)  # fmt: skip
KERNEL_DESCRIPTORS = (
    "0 /dev/null", "1 pipe (stdout)", "2 pipe (stderr)", "socket", "pipe (stdout)", "pipe (stderr)",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """One mount that is expected; ``origin`` is a path of the host, or who made the file system, and its root."""

    point: str
    kind: str
    origin: str
    flags: tuple[str, ...]
    bounds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """What the sandboxes of one template see, whatever is asked for: what is mounted before and after their own places."""

    before: tuple[Place, ...]
    after: tuple[Place, ...]
    origins: Mapping[tuple[str, str], str]


def view_of(python: Interpreter, package: str, host: Host) -> View:
    """Return what sandboxes of the template around ``python`` see; ``package`` is the directory of cellfork's code.

    Takes milliseconds: it looks at the host's files.
    """
    origins: dict[tuple[str, str], str] = {}
    entries = layout.template_root(python, package)
    links = {entry[1]: entry[2] for entry in entries if entry[0] == "link"}
    before = (*_template(entries, links, host, origins), *_proc(host, origins))
    after = tuple(
        _bound(_resolve(point, links), point, layout.READ_ONLY, host, origins)
        for point, _kept in layout.covered_prefixes(python)
    )
    return View(before, after, origins)


def expect(
    spec: SandboxSpec, view: View, host: Host, groups: Iterable[str], *, door: bool = False
) -> Expectation:
    """Return what the posture of a sandbox for ``spec`` must be; ``groups`` are the trees in which it has a group.

    With a ``door`` (``guest/door.py``) its init listens on that, and keeps the socket of the way out, where there is one.
    """
    limits = plan.rlimits(spec)
    origins = dict(view.origins)
    posture: dict[str, Any] = {
        **{f"{INIT}: {name}": value for name, value in _process(host, groups).items()},
        **{f"{KERNEL}: {name}": value for name, value in _process(host, groups).items()},
        **_init(host),
        **_kernel(host),
        "init: descriptors": sorted((*INIT_DESCRIPTORS, *_at_the_door(spec, door=door))),
        **_fields((*view.before, *_own_places(spec, host), *view.after, *_volumes(spec, origins))),
    }
    for who in (INIT, KERNEL):
        posture |= {f"{who}: limit {name}": value for name, value in _limits(limits).items()}
    posture |= {f"{KERNEL}: limit {name}": ["its mark"] for name in MARKED}
    limited = frozenset(RESOURCES[number] for number, _soft, _hard in limits)
    return Expectation(posture, origins, limited, digest_of(posture), door)


def _process(host: Host, groups: Iterable[str]) -> dict[str, Any]:
    """What is the same for init and kernel."""
    user = str(USER_ID)
    return {
        "Uid": [user] * 4,
        "Gid": [user] * 4,
        "Groups": [],
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), NO_CAPABILITIES),
        **dict.fromkeys(("SigPnd", "ShdPnd", "SigBlk"), NO_SIGNALS),
        "SigIgn": _signals(13, 25),  # SIGPIPE and SIGXFSZ, as every Python has it
        "NoNewPrivs": "1",
        "Seccomp": SECCOMP_FILTER,
        "Seccomp_filters": str(host.filters + FILTERS),
        "Umask": "0022",
        "TracerPid": "0",
        "CoreDumping": "0",
        "Threads": "1",
        "environment": sorted({*plan.environment(""), "VIRTUAL_ENV"}),
        **_id_maps(host),
        "root": "/",
        "cwd": HOME,
        "control groups": sorted(groups),
    }


def _id_maps(host: Host) -> dict[str, Any]:
    if host.first_id is None:
        row = [[USER_ID, "the host's user", 1]]
        return {"uid_map": row, "gid_map": row, "setgroups": "deny"}
    row = [[0, "own range", IDS_PER_SANDBOX]]
    return {"uid_map": row, "gid_map": row, "setgroups": "allow"}


def _init(host: Host) -> dict[str, Any]:
    own = dict.fromkeys(readings.NAMESPACES, "its own")
    score = min(oom.MOST, max(host.oom_score_adj, 0) + oom.ZYGOTE)
    # Where there is one id only, that of root in the zygote's namespace and of the user are the same outside.
    owner = str(USER_ID) if host.first_id is None else "the zygote's root"
    return {
        "init: NSpid": "1",
        "init: NSsid": "1",
        "init: SigCgt": _signals(2, 17),  # SIGINT, which is not for it, and SIGCHLD
        "init: oom_score_adj": score,
        "init: files of its own belong to": owner,
        "init: children": ["kernel"],
        **{f"init: namespace {name}": word for name, word in own.items()},
        "init: namespace time": "the host's" if "time" in host.namespaces else "unknown here",
        "init: namespace time_for_children": "its own" if "time" in host.namespaces else "unknown here",
    }


def _at_the_door(spec: SandboxSpec, *, door: bool) -> list[str]:
    if not door:
        return []
    return ["socket"] if spec.network.mode == "none" else ["socket", "socket"]


def _kernel(host: Host) -> dict[str, Any]:
    score = min(oom.MOST, max(host.oom_score_adj, 0) + oom.ZYGOTE + oom.KERNEL)
    return {
        "kernel: NSpid": "2",
        "kernel: NSsid": "2",
        "kernel: SigCgt": _signals(2, 23),  # SIGINT, and SIGURG, which ends a system call
        "kernel: oom_score_adj": score,
        "kernel: files of its own belong to": str(USER_ID),
        "kernel: descriptors": sorted(KERNEL_DESCRIPTORS),
        "kernel: children": [],
        **{
            f"kernel: namespace {name}": "unknown here" if _is_unknown(name, host) else "init's"
            for name in readings.NAMESPACES
        },
    }


def _is_unknown(name: str, host: Host) -> bool:
    return name.startswith("time") and name not in host.namespaces


def _signals(*numbers: int) -> str:
    return f"{sum(1 << (number - 1) for number in numbers):016x}"


def _limits(rlimits: Iterable[list[int]]) -> dict[str, list[str]]:
    decided = {RESOURCES[number]: [_amount(soft), _amount(hard)] for number, soft, hard in rlimits}
    return {name: decided.get(name, ["the zygote's"]) for name in RESOURCES.values()}


def _amount(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


# ------------------------------------------------------------------------------------------------ mounts


def _fields(places: Iterable[Place]) -> dict[str, list[str]]:
    """Put the places on one another as the kernel does, and into words."""
    on: dict[tuple[int, str], int] = {}
    mounted: list[tuple[str, int]] = []
    words: dict[str, list[str]] = {}
    for number, place in enumerate(places):
        layer = 0
        if mounted:
            below = _topmost(place.point, on)
            on[below, place.point] = number
            point, under = mounted[below]
            layer = under + 1 if point == place.point else 0
        mounted.append((place.point, layer))
        line = mount_line(place.kind, place.origin, place.flags, place.bounds)
        words.setdefault(mount_field(place.point, layer), []).append(line)
    return {name: sorted(lines) for name, lines in words.items()}


def _topmost(point: str, on: Mapping[tuple[int, str], int]) -> int:
    """Return which mount a path leads to; ``on`` tells what is mounted on which, and where.  The first is the root."""
    mount, path = 0, ""
    for part in point.split("/"):
        path = f"{path.rstrip('/')}/{part}"
        while (mount, path) in on:
            mount = on[mount, path]
    return mount


def _template(
    entries: Iterable[layout.Entry],
    links: Mapping[str, str],
    host: Host,
    origins: dict[tuple[str, str], str],
) -> Iterator[Place]:
    """Yield the mounts of the template's root, in the order in which they are made."""
    yield Place("/", "tmpfs", "template(/):/", (*PRIVATE_FLAGS, "ro"), _bounds(ROOT_BOUNDS, host))
    for entry in entries:
        match entry:
            case ["bind", str() as point, str() as source, int() as restrictions]:
                yield _bound(_resolve(point, links), source, restrictions, host, origins)
                yield from _mounted_below(_resolve(point, links), source, restrictions, host, origins)
            case ["tmpfs", str() as point, str() as options]:
                # A sandbox makes the one around its home read-only for itself.
                access = "ro" if point == os.path.dirname(HOME) else "rw"
                flags = (*PRIVATE_FLAGS, access)
                yield Place(point, "tmpfs", f"template({point}):/", flags, _bounds(options, host))


def _proc(host: Host, origins: dict[tuple[str, str], str]) -> Iterator[Place]:
    """The template's, of which root needs two (see ``guest/boot.py``), below the sandbox's own."""
    layers = 1 if host.first_id is None else 2
    for _ in range(layers):
        yield Place("/proc", "proc", "template(/proc):/", (*NEVER_RUN, "rw"))
    yield Place("/proc", "proc", "own(/proc):/", (*NEVER_RUN, "rw"))
    restrictions = layout.proc_restrictions()
    for point in restrictions["proc_hidden_files"]:
        yield _bound(point, "/dev/null", layout.DEVICE, host, origins)
    for point in restrictions["proc_hidden_dirs"]:
        empty = f"template(/):{layout.EMPTY}"
        yield Place(point, "tmpfs", empty, (*PRIVATE_FLAGS, "ro"), _bounds(ROOT_BOUNDS, host))
    for point in restrictions["proc_read_only"]:
        yield Place(point, "proc", f"own(/proc):{point.removeprefix('/proc')}", (*NEVER_RUN, "ro"))


def _own_places(spec: SandboxSpec, host: Host) -> Iterator[Place]:
    """What ``guest/sandbox.py`` mounts last: one disk that is seen at four places, shared memory, terminals."""
    limits = spec.limits
    shared_inodes = plan.shared_memory_inodes(limits)
    disk = _bounds(f"size={plan.disk_size(limits)},nr_inodes={limits.inodes - shared_inodes}", host)
    flags = (*PRIVATE_FLAGS, "rw")
    first = min(layout.DISK, HOME, ROOT_HOME, "/tmp")
    yield Place(layout.DISK, "tmpfs", f"own({first}):/", flags, disk)
    yield Place(HOME, "tmpfs", f"own({first}):/home", flags, disk)
    yield Place(ROOT_HOME, "tmpfs", f"own({first}):/root", flags, disk)
    yield Place("/tmp", "tmpfs", f"own({first}):/tmp", flags, disk)
    yield Place(BOOT_ID, "tmpfs", f"own({first}):/{BOOT_ID_FILE}//deleted", (*NEVER_RUN, "ro"), disk)
    shared = _bounds(f"size={plan.shared_memory_size(limits)},nr_inodes={shared_inodes}", host)
    yield Place("/dev/shm", "tmpfs", "own(/dev/shm):/", (*NEVER_RUN, "rw"), shared)
    terminals = (f"max={TERMINALS}", "ptmxmode=666")
    yield Place("/dev/pts", "devpts", "own(/dev/pts):/", ("noexec", "nosuid", "rw"), terminals)


def _volumes(spec: SandboxSpec, origins: dict[tuple[str, str], str]) -> Iterator[Place]:
    """Yield the volumes, as the host's mounts are now: they may be on one that is newer than the zygote."""
    mounts = readings.parse_mounts(Path("/proc/self/mountinfo").read_bytes()) if spec.volumes else []
    for volume in spec.volumes:
        source = volumes.source_of(volume)
        device, root, kind = locate(source, mounts)
        path = origins.setdefault((device, root), source)
        around = _around(source, mounts)
        own = around.flags if around is not None else ()  # a mount keeps what its source had
        flags = sorted({*PRIVATE_FLAGS, *(flag for flag in own if flag in {"noexec", "nosymfollow"})})
        access = "ro" if volume.read_only or "ro" in own else "rw"
        yield Place(volumes.point_of(volume), kind, f"host:{path}", (*flags, access))


def _bound(point: str, source: str, flags: int, host: Host, origins: dict[tuple[str, str], str]) -> Place:
    device, root, kind = locate(source, host.mounts)
    path = origins.setdefault((device, root), os.path.realpath(source))
    return Place(point, kind, f"host:{path}", _flag_words(flags))


def _mounted_below(
    point: str, source: str, flags: int, host: Host, origins: dict[tuple[str, str], str]
) -> Iterator[Place]:
    """Yield what the host has mounted below the source of a bind: it comes along, restricted in the same way."""
    top = os.path.realpath(source)
    for mount in host.mounts:
        if mount.point != top and _is_at_or_below(mount.point, top):
            kept = linux.MS_NOEXEC if "noexec" in mount.flags else 0
            inside = point + mount.point.removeprefix(top)
            yield _bound(inside, mount.point, flags | kept, host, origins)


def locate(path: str, mounts: Iterable[readings.Mount]) -> tuple[str, str, str]:
    """Return device, root and kind of what a path of the host is, as ``mountinfo`` shows a bind of it."""
    path = os.path.realpath(path)
    mount = _around(path, mounts)
    if mount is None:
        return "nowhere", path, "unknown"
    rest = os.path.relpath(path, mount.point)
    root = mount.root if rest == "." else os.path.join(mount.root, rest)
    return mount.device, root, mount.kind


def _around(path: str, mounts: Iterable[readings.Mount]) -> readings.Mount | None:
    """Return the mount that a path without links in it leads to."""
    around = [mount for mount in mounts if _is_at_or_below(path, mount.point)]
    longest = max((len(mount.point) for mount in around), default=0)
    covering = [mount for mount in around if len(mount.point) == longest]
    return covering[-1] if covering else None  # the last one covers the others


def _is_at_or_below(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def _flag_words(flags: int) -> tuple[str, ...]:
    words = [
        word
        for flag, word in (
            (linux.MS_NODEV, "nodev"),
            (linux.MS_NOEXEC, "noexec"),
            (linux.MS_NOSUID, "nosuid"),
        )
        if flags & flag
    ]
    return (*words, "ro" if flags & linux.MS_RDONLY else "rw")


def _resolve(point: str, links: Mapping[str, str]) -> str:
    """Follow the template's symbolic links: a mount is listed where it is, not where it was asked for."""
    path = "/"
    for part in point.split("/"):
        path = os.path.normpath(f"{path}/{part}")
        target = links.get(path)
        if target is not None and path != point:
            path = _resolve(os.path.normpath(os.path.join(os.path.dirname(path), target)), links)
    return path


def _bounds(options: str, host: Host) -> tuple[str, ...]:
    """Return the bounds of a tmpfs as the kernel tells them: in pages, and nothing where it is what everybody gets."""
    default_pages = host.ram_pages // 2
    shown = []
    for option in options.split(","):
        name, _equals, value = option.partition("=")
        if name == "size":
            pages = -(-_bytes(value) // host.page_size)
            if pages != default_pages:
                shown.append(f"size={pages * host.page_size // 1024}k")
        elif name == "nr_inodes" and int(value) != default_pages:
            shown.append(option)
    return tuple(bounds_of(shown))


@lru_cache(maxsize=64)
def _bytes(text: str) -> int:
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
