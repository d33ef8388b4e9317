"""The posture of a sandbox: what the host sees of its locks, from outside, before the first byte of user code.

:func:`describe` turns what was read of init and of the first kernel into a flat table, field → value, in which
the numbers that are a sandbox's own (ids, inodes, devices) have become words such as ``own``.  So the tables of
equal sandboxes are equal, and each can be compared with the one that :mod:`.expectations` computes from
the request.  Whatever is not as it was computed is named; whatever this kernel does not report is ``None``, which
no table asks for.

Landlock is not visible in ``/proc``; neither is what a seccomp filter refuses, only how many there are.  The locks
verify those themselves.

Why and what it costs: docs/adr/0007-posture.md.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cellfork.guest.maker import IDS_PER_SANDBOX
from cellfork.guest.marks import MOST, Mark
from cellfork.runtimes.namespaces import readings
from cellfork.runtimes.namespaces.readings import Mount, Reading, Status

Posture = Mapping[str, Any]
"""Field → value; values are what JSON can carry."""

INIT, KERNEL = "init", "kernel"
PLAIN_FIELDS = (
    "Umask", "TracerPid", "CoreDumping", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff",
    "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters",
)  # fmt: skip
"""Fields of ``status`` that are compared as they are: unknown capabilities show in the hexadecimal digits."""
LIBRARY_SIGNALS = 1 << (32 - 1) | 1 << (33 - 1)
"""Signals that the C library catches for itself once a library has started a thread."""
BOUNDS = frozenset({"size", "nr_inodes", "max", "ptmxmode"})
"""Options of file systems that limit what they hold, and who may open a terminal."""
MARKED = ("Max file locks", "Max resident set")
"""The limits that are a kernel's mark."""
SHOWN = 400
"""Letters of a value that a message shows."""


@dataclass(frozen=True, slots=True)
class Host:
    """What sandboxes are to differ from, or to share: the host, its user, and the zygote.

    ``first_id`` is where the zygote's range of host ids begins, ``None`` where the host is an ordinary user.
    ``filters`` counts the seccomp filters under which this process itself runs.  ``ram_pages`` are the pages of
    memory of the machine: a file system that is given half of them does not say so.
    """

    uid: int
    gid: int
    groups: frozenset[int]
    first_id: int | None
    oom_score_adj: int
    filters: int
    ram_pages: int
    page_size: int
    namespaces: Mapping[str, str]
    zygote_namespaces: Mapping[str, str]
    zygote_limits: Mapping[str, tuple[str, str]]
    mounts: tuple[Mount, ...]
    zygote_devices: frozenset[str]
    devices: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", frozenset(mount.device for mount in self.mounts))


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the posture must be, its hash, and the names of what is bound from the host: (device, root) → path."""

    posture: Posture
    origins: Mapping[tuple[str, str], str]
    limited: frozenset[str]
    """The resources (as ``limits`` names them) that the request decides about; others are the zygote's."""
    digest: str
    door: bool = False
    """Whether the sandbox is to outlive its host."""


def digest_of(posture: Posture) -> str:
    """Return the SHA-256 of a posture's canonical JSON, in hexadecimal digits."""
    text = json.dumps(posture, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def differences(expected: Posture, found: Posture) -> list[str]:
    """Return what differs, one line each: field, what was expected, what was found."""
    fields = sorted({*expected, *found})
    return [
        line
        for name in fields
        if expected.get(name) != found.get(name)
        for line in _difference(name, expected.get(name, []), found.get(name, []))
    ]


def describe(init: Reading, kernel: Reading, host: Host, expectation: Expectation, group: str) -> Posture:
    """Return the posture that two readings amount to; ``group`` is the name of the sandbox's control group."""
    pipes = {kernel.descriptors.get(1, ""): "pipe (stdout)", kernel.descriptors.get(2, ""): "pipe (stderr)"}
    posture: dict[str, Any] = {}
    for who, reading, parent in ((INIT, init, None), (KERNEL, kernel, init)):
        own = _Words(who, reading, host, expectation, group)
        posture |= own.of_threads()
        posture |= own.of_process(parent, pipes)
    posture["init: children"] = ["kernel" if pid == kernel.pid else str(pid) for pid in init.children]
    posture["kernel: children"] = [str(pid) for pid in kernel.children]
    return posture | _mounts(readings.parse_mounts(init.mountinfo), host, expectation.origins)


class _Words:
    """Puts one reading into words."""

    def __init__(self, who: str, reading: Reading, host: Host, expectation: Expectation, group: str) -> None:
        self._who = who
        self._reading = reading
        self._host = host
        self._limited = expectation.limited
        self._group = group
        self._uids = readings.parse_id_map(reading.uid_map)
        self._gids = readings.parse_id_map(reading.gid_map)

    def of_threads(self) -> dict[str, Any]:
        """Return the fields of the first thread, and of every other those in which it differs."""
        first, *others = (self._of_thread(readings.parse_status(text)) for text in self._reading.threads)
        words = {f"{self._who}: {name}": value for name, value in first.items()}
        for number, other in enumerate(others, 2):
            for name, value in other.items():
                if value != first[name]:
                    words[f"{self._who}: thread {number}: {name}"] = value
        return words

    def of_process(self, parent: Reading | None, pipes: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields that all threads share."""
        reading, host = self._reading, self._host
        words: dict[str, Any] = {
            "environment": sorted(
                entry.partition(b"=")[0].decode("utf-8", "replace")
                for entry in reading.environ.split(b"\0")
                if entry
            ),
            "uid_map": self._map(self._uids, host.uid),
            "gid_map": self._map(self._gids, host.gid),
            "setgroups": reading.setgroups.strip().decode("ascii", "replace"),
            "oom_score_adj": int(reading.oom_score_adj),
            "root": reading.root,
            "cwd": reading.cwd,
            "files of its own belong to": _inside(reading.owner, self._uids, self._zygote_root()),
            "control groups": sorted(
                name
                for name, path in readings.parse_cgroups(reading.cgroup).items()
                if self._group and path.rpartition("/")[2] == self._group
            ),
            "descriptors": _descriptors(reading.descriptors, pipes),
            **{f"namespace {name}": self._namespace(name, parent) for name in readings.NAMESPACES},
            **{f"limit {name}": value for name, value in self._limits().items()},
        }
        return {f"{self._who}: {name}": value for name, value in words.items()}

    def _of_thread(self, status: Status) -> dict[str, Any]:
        words: dict[str, Any] = {name: status.get(name) for name in PLAIN_FIELDS}
        words["Uid"] = _ids(status.get("Uid"), self._uids)
        words["Gid"] = _ids(status.get("Gid"), self._gids)
        words["Groups"] = self._groups(status.get("Groups"))
        words["SigCgt"] = _without_library_signals(status.get("SigCgt"))
        words["NSpid"] = _last(status.get("NSpid"))
        words["NSsid"] = _last(status.get("NSsid"))
        return words

    def _groups(self, text: str | None) -> list[str] | None:
        """Groups beside the own one.  An ordinary user cannot give up those that it has."""
        if text is None:
            return None
        kept = self._host.groups if self._host.first_id is None else frozenset()
        return [str(group) for group in map(int, text.split()) if group not in kept]

    def _zygote_root(self) -> int:
        return self._host.uid if self._host.first_id is None else self._host.first_id

    def _map(self, rows: Iterable[tuple[int, int, int]], own: int) -> list[list[Any]]:
        return [[inside, self._range(outside, own), count] for inside, outside, count in rows]

    def _range(self, outside: int, own: int) -> str:
        first = self._host.first_id
        if first is None:
            return "the host's user" if outside == own else str(outside)
        index, rest = divmod(outside - first, IDS_PER_SANDBOX)
        return "own range" if index >= 1 and rest == 0 else str(outside)

    def _namespace(self, name: str, parent: Reading | None) -> str | None:
        own = self._reading.namespaces
        link = own.get(name)
        if link is None:
            return "unknown here" if name not in self._host.namespaces else None
        if parent is not None and link == parent.namespaces.get(name):
            return "init's"
        if name.endswith("_for_children") and link == own.get(name.removesuffix("_for_children")):
            return "its own"
        if link == self._host.namespaces.get(name):
            return "the host's"
        return "the zygote's" if link == self._host.zygote_namespaces.get(name) else "its own"

    def _limits(self) -> dict[str, list[str]]:
        """A limit that the request does not decide about is what the zygote has, whatever that is."""
        zygote, own = self._host.zygote_limits, readings.parse_limits(self._reading.limits)
        words = {
            name: ["the zygote's"] if name not in self._limited and values == zygote.get(name) else [*values]
            for name, values in own.items()
        }
        if self._who == KERNEL and _is_marked(own, zygote):
            words |= {name: ["its mark"] for name in MARKED}
        return words


def _is_marked(own: Mapping[str, tuple[str, str]], zygote: Mapping[str, tuple[str, str]]) -> bool:
    """Tell whether two limits are a mark (``guest/marks.py``) and nothing else."""
    if any(own.get(name, ("", "?"))[0] != own.get(name, ("", ""))[1] for name in MARKED):
        return False
    locks, resident = (_amount(own[name]) for name in MARKED)
    return Mark(locks, resident).is_from(*(_amount(zygote[name]) for name in MARKED))


def _amount(values: tuple[str, str]) -> int:
    return MOST if values[1] == "unlimited" else int(values[1])


def _ids(text: str | None, rows: Iterable[tuple[int, int, int]]) -> list[str] | None:
    """Return real, effective, saved and file system id as they are inside."""
    return None if text is None else [_inside(int(number), rows, None) for number in text.split()]


def _inside(outside: int, rows: Iterable[tuple[int, int, int]], zygote_root: int | None) -> str:
    for first_inside, first_outside, count in rows:
        if 0 <= outside - first_outside < count:
            return str(first_inside + outside - first_outside)
    return "the zygote's root" if outside == zygote_root else f"{outside} outside"


def _last(text: str | None) -> str | None:
    """Return the last of the numbers that a process has in nested namespaces: its own."""
    return text.split()[-1] if text else None


def _without_library_signals(text: str | None) -> str | None:
    return None if text is None else f"{int(text, 16) & ~LIBRARY_SIGNALS:016x}"


def _descriptors(links: Mapping[int, str], pipes: Mapping[str, str]) -> list[str]:
    """Return what each descriptor is; those up to 3, whose numbers are fixed, with their number."""
    words = []
    for number, link in links.items():
        word = pipes.get(link) or (link.partition(":")[0] if link.startswith(readings.NUMBERED) else link)
        words.append(f"{number} {word}" if number <= 3 else word)
    return sorted(words)


def _mounts(mounts: list[Mount], host: Host, origins: Mapping[tuple[str, str], str]) -> dict[str, list[str]]:
    """Return a field for each place: kind, where it comes from, flags and bounds of what is mounted there."""
    by_number = {mount.number: mount for mount in mounts}
    first: dict[str, str] = {}
    for mount in mounts:
        first[mount.device] = min(first.get(mount.device, mount.point), mount.point)
    words: dict[str, list[str]] = {}
    for mount in mounts:
        origin = _origin(mount, host, origins, first[mount.device])
        is_host = mount.device in host.devices or (mount.device, mount.root) in origins
        bounds = () if is_host else bounds_of(mount.options)
        line = mount_line(mount.kind, origin, mount.flags, bounds)
        words.setdefault(mount_field(mount.point, _layer(mount, by_number)), []).append(line)
    return {name: sorted(lines) for name, lines in words.items()}


def mount_line(kind: str, origin: str, flags: Iterable[str], bounds: Iterable[str]) -> str:
    """Return the words for one mount."""
    return " ".join((kind, origin, *flags, *bounds))


def mount_field(point: str, layer: int) -> str:
    """Return the field of a mount.  ``layer`` counts the mounts at the same place that it lies on.

    Two have the same field where one was covered from above before the other came.
    """
    return f"mount {point}" + (f", layer {layer}" if layer else "")


def bounds_of(options: Iterable[str]) -> list[str]:
    """Return those options that limit what a file system holds."""
    return sorted(option for option in options if option.partition("=")[0] in BOUNDS)


def _layer(mount: Mount, by_number: Mapping[int, Mount]) -> int:
    layer = 0
    while (below := by_number.get(mount.parent)) is not None and below.point == mount.point:
        if below.number == mount.number:
            break
        layer, mount = layer + 1, below
    return layer


def _origin(mount: Mount, host: Host, origins: Mapping[tuple[str, str], str], first: str) -> str:
    known = origins.get((mount.device, mount.root))
    if known is not None:
        return f"host:{known}"
    if mount.device in host.devices:
        return f"host device {mount.device}:{mount.root}"
    owner = "template" if mount.device in host.zygote_devices else "own"
    return f"{owner}({first}):{mount.root}"


def _difference(name: str, expected: Any, found: Any) -> Iterator[str]:
    if isinstance(expected, list) and isinstance(found, list):
        missing, extra = _without(expected, found), _without(found, expected)
        if missing or extra:
            yield f"{name}: expected {_shown(missing)}, found {_shown(extra)}"
            return
    if found is None:
        yield f"{name}: expected {_shown(expected)}, this kernel does not report it"
    else:
        yield f"{name}: expected {_shown(expected)}, found {_shown(found)}"


def _without(values: list[Any], others: list[Any]) -> list[Any]:
    rest = [*others]
    left = []
    for value in values:
        if value in rest:
            rest.remove(value)
        else:
            left.append(value)
    return left


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "nothing"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
