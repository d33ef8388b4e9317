"""The posture check on made-up processes: what is computed, and that every deviation is found."""

import dataclasses
import resource
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cellfork.model.errors import IsolationUnavailable, PostureMismatch
from cellfork.model.limits import KiB, Limits, MiB
from cellfork.model.specs import HOME, SandboxSpec
from cellfork.runtimes import plan
from cellfork.runtimes.interpreter import Interpreter
from cellfork.runtimes.namespaces import expectations, layout, readings
from cellfork.runtimes.namespaces.expectations import RESOURCES, expect, locate
from cellfork.runtimes.namespaces.posture import Expectation, Host, describe, differences, digest_of
from cellfork.runtimes.namespaces.readings import Reading

FIRST_ID = 600_000_000
RANGE = FIRST_ID + 7 * 2048
USER = RANGE + 1000
GROUP = "cellfork-1.2.3-abc"
PYTHON = Interpreter("/usr/bin/python3", "/usr", "/usr", "3.11", ())
SPEC = SandboxSpec(limits=Limits(memory="256M", disk="32M", inodes=2000, open_files=256))
HOST_NAMESPACES = {name: f"{name.removesuffix('_for_children')}:[1]" for name in readings.NAMESPACES}
ZYGOTE_NAMESPACES = {
    name: HOST_NAMESPACES[name] if "time" in name else f"{name}:[2]" for name in HOST_NAMESPACES
}
OWN_NAMESPACES = {
    name: HOST_NAMESPACES[name] if "time" in name else f"{name.removesuffix('_for_children')}:[3]" for name in HOST_NAMESPACES
}  # fmt: skip

HOST_MOUNTS = b"""\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
24 27 0:6 / /dev rw,relatime shared:2 - devtmpfs devtmpfs rw,size=1000k
"""

MOUNTS = b"""\
138 137 0:39 / / ro,nosuid,nodev,relatime - tmpfs tmpfs rw,size=16384k,nr_inodes=65536,mode=755
139 138 0:40 / /tmp rw,nosuid,nodev,relatime - tmpfs tmpfs rw,size=65536k
140 138 0:41 / /home ro,nosuid,nodev,relatime - tmpfs tmpfs rw,size=16384k,mode=777
141 138 254:0 /usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw
142 138 254:0 /data/a\\040b /opt/data ro,nosuid,nodev,relatime - ext4 /dev/vda rw
160 138 0:6 /null /dev/null rw,nosuid,noexec,relatime - devtmpfs devtmpfs rw,size=1000k
169 138 0:42 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
170 169 0:44 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
172 170 0:53 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
173 172 0:6 /null /proc/keys rw,nosuid,noexec,relatime - devtmpfs devtmpfs rw,size=1000k
186 172 0:39 /run/cellfork/empty /proc/acpi ro,nosuid,nodev,relatime - tmpfs tmpfs rw,size=16384k,nr_inodes=65536,mode=755
191 172 0:53 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
45 138 0:45 / /run/sandbox rw,nosuid,nodev,relatime - tmpfs disk rw,size=32768k,nr_inodes=1500,mode=755
63 140 0:45 /home /home/user rw,nosuid,nodev,relatime - tmpfs disk rw,size=32768k,nr_inodes=1500,mode=755
68 138 0:45 /root /root rw,nosuid,nodev,relatime - tmpfs disk rw,size=32768k,nr_inodes=1500,mode=755
64 139 0:45 /tmp /tmp rw,nosuid,nodev,relatime - tmpfs disk rw,size=32768k,nr_inodes=1500,mode=755
67 191 0:45 /.boot-id//deleted /proc/sys/kernel/random/boot_id ro,nosuid,nodev,noexec,relatime - tmpfs disk rw,size=32768k,nr_inodes=1500,mode=755
65 138 0:46 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,size=65536k,nr_inodes=500
66 138 0:47 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw,mode=620,ptmxmode=666,max=64
"""

STATUS = """\
Name:\tcellfork
Umask:\t0022
TracerPid:\t0
Uid:\t{user}\t{user}\t{user}\t{user}
Gid:\t{user}\t{user}\t{user}\t{user}
Groups:\t 
NSpid:\t2746\t14\t{number}
NSsid:\t2746\t14\t{number}
CoreDumping:\t0
Threads:\t1
SigPnd:\t0000000000000000
ShdPnd:\t0000000000000000
SigBlk:\t0000000000000000
SigIgn:\t0000000001001000
SigCgt:\t{caught}
CapInh:\t0000000000000000
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t0000000000000000
CapAmb:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
Seccomp_filters:\t2
"""  # noqa: W291 - the kernel writes it like this

ENVIRON = b"\0".join(name.encode() + b"=x" for name in (*plan.environment(""), "VIRTUAL_ENV")) + b"\0"


def limits_file(values: Mapping[str, tuple[str, str]]) -> bytes:
    """Return a ``limits`` file as the kernel writes it."""
    lines = [f"{'Limit':25} {'Soft Limit':20} {'Hard Limit':20} {'Units':10}"]
    lines += [f"{name:25} {soft:20} {hard:20} {'units':10}" for name, (soft, hard) in values.items()]
    return "\n".join(lines).encode() + b"\n"


ZYGOTE_LIMITS = dict.fromkeys(RESOURCES.values(), ("unlimited", "unlimited"))
LIMITS = ZYGOTE_LIMITS | {
    RESOURCES[number]: (str(soft), str(hard)) for number, soft, hard in plan.rlimits(SPEC)
}
MARK = {
    "Max file locks": (str((1 << 62) - 5),) * 2,
    "Max resident set": (str((1 << 62) - (1 << 40) + 5),) * 2,
}


def host(**changes: Any) -> Host:
    known: dict[str, Any] = {
        "uid": 0,
        "gid": 0,
        "groups": frozenset({0, 27}),
        "first_id": FIRST_ID,
        "oom_score_adj": 0,
        "filters": 0,
        "ram_pages": 1_000_000,
        "page_size": 4096,
        "namespaces": HOST_NAMESPACES,
        "zygote_namespaces": ZYGOTE_NAMESPACES,
        "zygote_limits": ZYGOTE_LIMITS,
        "mounts": tuple(readings.parse_mounts(HOST_MOUNTS)),
        "zygote_devices": frozenset({"0:39", "0:40", "0:41", "0:42", "0:44"}),
    }
    return Host(**{**known, **changes})


def status(number: int, caught: str, user: int = USER) -> bytes:
    return STATUS.format(user=user, number=number, caught=caught).encode()


def init(**changes: Any) -> Reading:
    """Return what init looks like when all is well."""
    links = {
        0: "/dev/null", 1: "/dev/null", 2: "/dev/null", 3: "socket:[10]", 4: "anon_inode:[eventfd]",
        5: "anon_inode:[eventpoll]", 6: "socket:[11]", 7: "anon_inode:[eventfd]", 8: "pipe:[20]", 9: "socket:[12]",
        10: "pipe:[21]", 11: "socket:[13]",
    }  # fmt: skip
    known: dict[str, Any] = {
        "pid": 100,
        "threads": (status(1, "0000000100010002"),),
        "children": (101,),
        "limits": limits_file(LIMITS),
        "environ": ENVIRON,
        "uid_map": f"         0 {RANGE}       2048\n".encode(),
        "gid_map": f"         0 {RANGE}       2048\n".encode(),
        "setgroups": b"allow\n",
        "oom_score_adj": b"100\n",
        "cgroup": f"9:name=systemd:/\n4:memory:/a/{GROUP}\n3:pids:/{GROUP}\n0::/{GROUP}\n".encode(),
        "namespaces": OWN_NAMESPACES,
        "descriptors": links,
        "root": "/",
        "cwd": HOME,
        "owner": FIRST_ID,
        "mountinfo": MOUNTS,
    }
    return Reading(**{**known, **changes})


def kernel(**changes: Any) -> Reading:
    """Return what the first kernel looks like when all is well."""
    links = {
        0: "/dev/null", 1: "pipe:[20]", 2: "pipe:[21]", 202: "socket:[14]", 203: "pipe:[20]", 204: "pipe:[21]",
    }  # fmt: skip
    known: dict[str, Any] = {
        "pid": 101,
        "threads": (status(2, "0000000000400002"),),
        "children": (),
        "limits": limits_file(LIMITS | MARK),
        "oom_score_adj": b"500\n",
        "descriptors": links,
        "owner": USER,
        "mountinfo": b"",
    }
    return dataclasses.replace(init(), **{**known, **changes})


@pytest.fixture(autouse=True)
def small_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template with one mount of each kind."""
    entries = [
        ["dir", "/opt", 0o755],
        ["tmpfs", "/tmp", "mode=1777,size=64m"],
        ["tmpfs", "/home", "mode=777,size=16m"],
        ["link", "/var/lib/data", "../../opt/data"],
        ["bind", "/usr", "/usr", layout.READ_ONLY],
        ["bind", "/opt/data", "/data/a b", layout.READ_ONLY],
        ["bind", "/dev/null", "/dev/null", layout.DEVICE],
    ]
    restrictions = {
        "proc_hidden_files": ["/proc/keys"],
        "proc_hidden_dirs": ["/proc/acpi"],
        "proc_read_only": ["/proc/sys"],
    }
    monkeypatch.setattr(layout, "template_root", lambda _python, _package: entries)
    monkeypatch.setattr(layout, "proc_restrictions", lambda: restrictions)
    monkeypatch.setattr(layout, "covered_prefixes", lambda _python: [])


def expected(spec: SandboxSpec = SPEC, host_: Host | None = None) -> Expectation:
    around = host_ or host()
    view = expectations.view_of(PYTHON, "/package", around)
    return expect(spec, view, around, ["memory", "pids", "unified"])


def wrong(one: Reading, other: Reading, host_: Host | None = None) -> list[str]:
    expectation = expected(host_=host_)
    found = describe(one, other, host_ or host(), expectation, GROUP)
    return differences(expectation.posture, found)


def test_a_sandbox_as_it_should_be():
    """What is read of a sandbox without a fault is, word for word, what was computed from its request."""
    expectation = expected()
    found = describe(init(), kernel(), host(), expectation, GROUP)
    assert differences(expectation.posture, found) == []
    assert found == expectation.posture


Change = Callable[[Reading], Reading]


def in_status(old: str, new: str) -> Change:
    """Change the text of the first thread."""

    def change(reading: Reading) -> Reading:
        text = reading.threads[0].decode()
        assert old in text
        return dataclasses.replace(reading, threads=(text.replace(old, new, 1).encode(),))

    return change


def field(name: str, value: str) -> Change:
    """Change one field of the first thread; ``None`` as a word leaves it out."""

    def change(reading: Reading) -> Reading:
        lines = reading.threads[0].decode().splitlines()
        assert sum(line.startswith(f"{name}:") for line in lines) == 1
        kept = [f"{name}:\t{value}" if line.startswith(f"{name}:") else line for line in lines]
        return dataclasses.replace(reading, threads=("\n".join(kept).encode(),))

    return change


def without(name: str) -> Change:
    def change(reading: Reading) -> Reading:
        lines = reading.threads[0].decode().splitlines()
        kept = [line for line in lines if not line.startswith(f"{name}:")]
        assert len(kept) == len(lines) - 1
        return dataclasses.replace(reading, threads=("\n".join(kept).encode(),))

    return change


def limit(name: str, soft: str, hard: str) -> Change:
    def change(reading: Reading) -> Reading:
        values = {**readings.parse_limits(reading.limits), name: (soft, hard)}
        return dataclasses.replace(reading, limits=limits_file(values))

    return change


def namespace(name: str, link: str | None) -> Change:
    def change(reading: Reading) -> Reading:
        links = {**reading.namespaces, name: link or ""}
        if link is None:
            del links[name]
        return dataclasses.replace(reading, namespaces=links)

    return change


def descriptor(number: int, link: str | None) -> Change:
    def change(reading: Reading) -> Reading:
        links = {**reading.descriptors, number: link or ""}
        if link is None:
            del links[number]
        return dataclasses.replace(reading, descriptors=links)

    return change


def to(**changes: Any) -> Change:
    return lambda reading: dataclasses.replace(reading, **changes)


def second_thread(change: Change) -> Change:
    """Add a thread that differs from the first."""

    def add(reading: Reading) -> Reading:
        return dataclasses.replace(reading, threads=(*reading.threads, *change(reading).threads))

    return add


OF_BOTH: Mapping[str, tuple[Change, str]] = {
    "root": (field("Uid", f"{RANGE}\t{RANGE}\t{RANGE}\t{RANGE}"), "Uid: expected 1000, 1000, 1000, 1000, found 0, 0, 0, 0"),
    "host's root": (field("Uid", "0\t0\t0\t0"), "Uid: expected 1000, 1000, 1000, 1000, found 0 outside"),
    "saved id": (field("Uid", f"{USER}\t{USER}\t{RANGE}\t{USER}"), "Uid: expected 1000, found 0"),
    "group id": (field("Gid", f"{USER}\t{USER}\t{USER}\t{RANGE + 5}"), "Gid: expected 1000, found 5"),
    "groups": (field("Groups", "27 "), "Groups: expected nothing, found 27"),
    "inheritable": (field("CapInh", "0000000000000001"), "CapInh: expected 0000000000000000, found 0000000000000001"),
    "permitted": (field("CapPrm", "0000000000000400"), "CapPrm: expected"),
    "effective": (field("CapEff", "0000000000200000"), "CapEff: expected"),
    "bounding": (field("CapBnd", "000001ffffffffff"), "CapBnd: expected"),
    "ambient": (field("CapAmb", "0000000000000400"), "CapAmb: expected"),
    "unknown capability": (field("CapBnd", "8000000000000000"), "CapBnd: expected 0000000000000000, found 8000000000000000"),
    "no filter": (field("Seccomp", "0"), "Seccomp: expected 2, found 0"),
    "strict mode": (field("Seccomp", "1"), "Seccomp: expected 2, found 1"),
    "one filter": (field("Seccomp_filters", "1"), "Seccomp_filters: expected 2, found 1"),
    "three filters": (field("Seccomp_filters", "3"), "Seccomp_filters: expected 2, found 3"),
    "filters not told": (without("Seccomp_filters"), "Seccomp_filters: expected 2, this kernel does not report it"),
    "capabilities not told": (without("CapAmb"), "CapAmb: expected 0000000000000000, this kernel does not report it"),
    "ids not told": (without("Uid"), "Uid: expected 1000, 1000, 1000, 1000, this kernel does not report it"),
    "groups not told": (without("Groups"), "Groups: expected nothing, this kernel does not report it"),
    "signals not told": (without("SigCgt"), "this kernel does not report it"),
    "privileges": (field("NoNewPrivs", "0"), "NoNewPrivs: expected 1, found 0"),
    "umask": (field("Umask", "0000"), "Umask: expected 0022, found 0000"),
    "tracer": (field("TracerPid", "77"), "TracerPid: expected 0, found 77"),
    "blocked signals": (field("SigBlk", "0000000000000002"), "SigBlk: expected"),
    "ignored signals": (field("SigIgn", "0000000001001001"), "SigIgn: expected 0000000001001000, found 0000000001001001"),
    "caught signals": (field("SigCgt", "0000000000014002"), "SigCgt: expected"),
    "signals that wait": (field("ShdPnd", "0000000000000200"), "ShdPnd: expected"),
    "threads": (field("Threads", "4"), "Threads: expected 1, found 4"),
    "core dump": (field("CoreDumping", "1"), "CoreDumping: expected 0, found 1"),
    "thread with rights": (second_thread(field("CapEff", "0000000000000001")), "thread 2: CapEff: expected nothing, found 0000000000000001"),
    "thread without filter": (second_thread(field("Seccomp", "0")), "thread 2: Seccomp: expected nothing, found 0"),
    "thread of another user": (second_thread(field("Uid", "0\t0\t0\t0")), "thread 2: Uid"),
    "pid": (field("NSpid", "2746\t14\t9"), "NSpid: expected"),
    "session": (field("NSsid", "2746\t14\t0"), "NSsid: expected"),
    "open files": (limit("Max open files", "1024", "1024"), "limit Max open files: expected 256, 256, found 1024, 1024"),
    "hard limit": (limit("Max locked memory", "0", "unlimited"), "limit Max locked memory: expected 0, found unlimited"),
    "message queues": (limit("Max msgqueue size", "819200", "819200"), "limit Max msgqueue size"),
    "limit of the zygote": (limit("Max address space", "1000", "1000"), "limit Max address space: expected the zygote's, found 1000, 1000"),
    "unknown limit": (limit("Max dreams", "1", "1"), "limit Max dreams: expected nothing, found 1, 1"),
    "environment": (to(environ=ENVIRON + b"AWS_SECRET_ACCESS_KEY=x\0"), "environment: expected nothing, found AWS_SECRET_ACCESS_KEY"),
    "lost variable": (to(environ=ENVIRON.replace(b"PATH=x\0", b"")), "environment: expected PATH, found nothing"),
    "whole host mapped": (to(uid_map=b"0 0 4294967295\n"), "uid_map: expected"),
    "range of the zygote": (to(uid_map=f"0 {FIRST_ID} 2048\n".encode()), "uid_map: expected"),
    "range askew": (to(gid_map=f"0 {RANGE + 1} 2048\n".encode()), "gid_map: expected"),
    "two ranges": (to(gid_map=f"0 {RANGE} 2048\n2048 {RANGE + 2048} 1\n".encode()), "gid_map: expected nothing, found [2048, 'own range', 1]"),
    "setgroups": (to(setgroups=b"deny\n"), "setgroups: expected allow, found deny"),
    "out of memory": (to(oom_score_adj=b"-1000\n"), "oom_score_adj: expected"),
    "chroot": (to(root="/tmp"), "root: expected /, found /tmp"),
    "directory": (to(cwd="/"), "cwd: expected /home/user, found /"),
    "owner of files": (to(owner=0), "files of its own belong to: expected"),
    "no control group": (to(cgroup=b"4:memory:/a\n3:pids:/\n0::/\n"), "control groups: expected memory, pids, unified, found nothing"),
    "one group missing": (to(cgroup=f"4:memory:/\n3:pids:/{GROUP}\n0::/{GROUP}\n".encode()), "control groups: expected memory, found nothing"),
    "below the group": (to(cgroup=f"4:memory:/{GROUP}/x\n3:pids:/{GROUP}\n0::/{GROUP}\n".encode()), "control groups: expected memory, found nothing"),
    "one more socket": (descriptor(12, "socket:[99]"), "descriptors: expected nothing, found socket"),
    "a file": (descriptor(30, "/etc/shadow"), "descriptors: expected nothing, found /etc/shadow"),
    "a directory": (descriptor(30, "/"), "descriptors: expected nothing, found /"),
    "a namespace": (descriptor(4000, "user:[3]"), "descriptors: expected nothing, found user:[3]"),
    "another's pipe": (descriptor(8, "pipe:[77]"), "found pipe"),
    "input": (descriptor(0, "/dev/pts/0"), "descriptors: expected 0 /dev/null, found 0 /dev/pts/0"),
    "no input": (descriptor(0, None), "descriptors: expected 0 /dev/null, found nothing"),
    **{f"host's {name}": (namespace(name, HOST_NAMESPACES[name]), f"namespace {name}: expected") for name in readings.NAMESPACES if "time" not in name},
    **{f"zygote's {name}": (namespace(name, ZYGOTE_NAMESPACES[name]), f"namespace {name}: expected") for name in ("user", "net", "mnt")},
    "no user namespace": (namespace("user", None), "namespace user: expected"),
    "own time": (namespace("time", "time:[9]"), "namespace time: expected"),
}  # fmt: skip
"""What may be wrong with either process, and what the error says of it."""


@pytest.mark.parametrize("what", OF_BOTH)
@pytest.mark.parametrize("who", ["init", "kernel"])
def test_what_differs_in_a_process_is_named(what: str, who: str):
    """Whatever is not as it was computed is found, in init as in the kernel, and told with both values."""
    change, message = OF_BOTH[what]
    changed = (change(init()), kernel()) if who == "init" else (init(), change(kernel()))
    found = wrong(*changed)
    assert any(line.startswith(f"{who}: ") and message in line for line in found), found


OTHERS: Mapping[str, tuple[Reading, Reading, str]] = {
    "one more child": (init(children=(101, 102)), kernel(), "init: children: expected nothing, found 102"),
    "child of the kernel": (init(), kernel(children=(103,)), "kernel: children: expected nothing, found 103"),
    "kernel elsewhere": (
        init(),
        namespace("net", "net:[44]")(kernel()),
        "kernel: namespace net: expected init's, found its own",
    ),
    "init can be read by its user": (init(owner=USER), kernel(), "init: files of its own belong to"),
    "no mark": (init(), kernel(limits=limits_file(LIMITS)), "kernel: limit Max file locks"),
    "a mark of another kind": (
        init(),
        kernel(limits=limits_file(LIMITS | dict.fromkeys(MARK, ("5", "5")))),
        "kernel: limit Max resident set",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_differs_in_one_of_them_is_named(what: str):
    """What only init or only the kernel must be is compared as well."""
    one, other, message = OTHERS[what]
    found = wrong(one, other)
    assert any(message in line for line in found), found


def mounts(old: str, new: str) -> bytes:
    text = MOUNTS.decode()
    assert text.count(old) == 1, text.count(old)
    return text.replace(old, new).encode()


def more(line: str) -> bytes:
    return MOUNTS + line.encode() + b"\n"


def line_of(point: str) -> str:
    (line,) = [line for line in MOUNTS.decode().splitlines(keepends=True) if line.split()[4] == point]
    return line


MOUNT_FAULTS: Mapping[str, tuple[bytes, str]] = {
    "one more": (more("200 138 0:60 / /mnt rw,nosuid,nodev - tmpfs tmpfs rw"), "mount /mnt: expected nothing, found tmpfs own(/mnt):/ nodev nosuid rw"),
    "the host's root": (more("200 138 254:0 / /mnt ro,nosuid,nodev - ext4 /dev/vda rw"), "mount /mnt: expected nothing, found ext4 host device 254:0:/"),
    "the host's cgroups": (more("200 138 0:31 / /sys/fs/cgroup rw - cgroup2 none rw"), "mount /sys/fs/cgroup: expected nothing"),
    "one less": (mounts(line_of("/proc/keys"), ""), "mount /proc/keys: expected devtmpfs host:/dev/null"),
    "writable": (mounts("/usr /usr ro,", "/usr /usr rw,"), "mount /usr: expected ext4 host:/usr nodev nosuid ro, found ext4 host:/usr nodev nosuid rw"),
    "root writable": (mounts("0:39 / / ro,", "0:39 / / rw,"), "mount /: expected"),
    "set-uid programs": (mounts("/usr /usr ro,nosuid,", "/usr /usr ro,"), "mount /usr: expected"),
    "devices": (mounts("/home /home/user rw,nosuid,nodev,", "/home /home/user rw,nosuid,"), "mount /home/user: expected"),
    "programs in proc": (mounts("/sys /proc/sys ro,nosuid,nodev,noexec,", "/sys /proc/sys ro,nosuid,nodev,"), "mount /proc/sys: expected"),
    "sysctl writable": (mounts("/sys /proc/sys ro,", "/sys /proc/sys rw,"), "mount /proc/sys: expected"),
    "another directory": (mounts("254:0 /usr /usr", "254:0 /etc /usr"), "mount /usr: expected ext4 host:/usr nodev nosuid ro, found ext4 host device 254:0:/etc"),
    "another device": (mounts("254:0 /usr /usr", "254:16 /usr /usr"), "mount /usr: expected"),
    "another kind": (mounts("- tmpfs shm", "- ramfs shm"), "mount /dev/shm: expected tmpfs"),
    "larger": (mounts("- tmpfs shm rw,size=65536k", "- tmpfs shm rw,size=65540k"), "size=65536k, found"),
    "no bound": (mounts("- tmpfs shm rw,size=65536k,nr_inodes=500", "- tmpfs shm rw"), "mount /dev/shm: expected"),
    "more files": (mounts("nr_inodes=500", "nr_inodes=501"), "mount /dev/shm: expected"),
    "more terminals": (mounts("max=64", "max=1024"), "mount /dev/pts: expected"),
    "a disk of several": (mounts("0:45 /tmp /tmp", "0:40 / /tmp"), "found tmpfs template(/tmp):/"),
    "its own second disk": (mounts("0:45 /tmp /tmp", "0:48 / /tmp"), "mount /tmp, layer 1: expected"),
    "the template's on top": (mounts("64 139 0:45", "64 138 0:45"), "mount /tmp, layer 1: expected"),
    "no proc of its own": (mounts("172 170 0:53 / /proc", "172 170 0:44 / /proc"), "mount /proc, layer 2: expected proc own(/proc):/"),
    "mounts come in": (mounts("/usr /usr ro,nosuid,nodev,relatime", "/usr /usr ro,nosuid,nodev,relatime master:3"), "found ext4 host:/usr master:3"),
    "mounts go out": (mounts("0:45 / /run/sandbox rw,nosuid,nodev,relatime", "0:45 / /run/sandbox rw,nosuid,nodev,relatime shared:9"), "shared:9"),
    "names with spaces": (mounts("/data/a\\040b", "/data/a\\040c"), "mount /opt/data: expected ext4 host:/data/a b"),
}  # fmt: skip


@pytest.mark.parametrize("what", MOUNT_FAULTS)
def test_what_differs_in_the_mounts_is_named(what: str):
    """Each mount is compared: whether it is there, what it shows, how it may be used, how much it holds, what it covers."""
    text, message = MOUNT_FAULTS[what]
    found = wrong(init(mountinfo=text), kernel())
    assert any(message in line for line in found), found


def test_what_is_a_sandboxs_own_does_not_matter():
    """Ids, pids, devices, inodes and numbers of mounts differ between sandboxes; their postures do not."""
    expectation = expected()
    other = RANGE + 99 * 2048
    renamed = MOUNTS.replace(b"0:45", b"0:145").replace(b"0:53", b"0:90").replace(b"172", b"9172")
    changes = {
        "uid_map": f"0 {other} 2048".encode(),
        "gid_map": f"0 {other} 2048".encode(),
        "namespaces": {
            name: link if "time" in name else link.replace("3", "7") for name, link in OWN_NAMESPACES.items()
        },
    }
    one = init(
        threads=(status(1, "0000000000010002", other + 1000),),
        children=(901,),
        mountinfo=renamed,
        **changes,
    )
    links = {0: "/dev/null", 1: "pipe:[20]", 2: "pipe:[21]", 5: "socket:[1]", 6: "pipe:[20]", 7: "pipe:[21]"}
    two = kernel(
        pid=901,
        threads=(status(2, "0000000100400002", other + 1000),),
        owner=other + 1000,
        descriptors=links,
        **changes,
    )
    found = describe(one, two, host(), expectation, GROUP)
    assert digest_of(found) == expectation.digest


def test_the_hash_tells_requests_apart():
    """Equal limits give equal hashes, whatever else is asked for; other limits give another."""
    one = expected().digest
    assert len(one) == 64
    assert expected(dataclasses.replace(SPEC, envs={"TOKEN": "x"}, metadata={"a": "b"})).digest == one
    for name, value in (("disk", 16 * MiB), ("inodes", 999), ("open_files", 99)):
        limits = dataclasses.replace(SPEC.limits, **{name: value})
        assert expected(dataclasses.replace(SPEC, limits=limits)).digest != one, name


def test_an_ordinary_user_has_one_id():
    """Without root there is a map of one id, no way to leave groups, and no second /proc below the zygote's."""
    user = host(uid=501, gid=502, groups=frozenset({502, 27}), first_id=None)
    text = status(1, "0000000000010002", 501).replace(b"Groups:\t ", b"Groups:\t27 502 ")
    gids = text.replace(b"Gid:\t501\t501\t501\t501", b"Gid:\t502\t502\t502\t502")
    changes = {"uid_map": b"1000 501 1\n", "gid_map": b"1000 502 1\n", "setgroups": b"deny\n", "owner": 501}
    layers = MOUNTS.replace(line_with("169 138"), b"").replace(b"170 169", b"170 138")
    one = init(threads=(gids,), mountinfo=layers, **changes)
    second = gids.replace(b"NSpid:\t2746\t14\t1", b"NSpid:\t2746\t14\t2")
    second = second.replace(b"NSsid:\t2746\t14\t1", b"NSsid:\t2746\t14\t2").replace(b"010002", b"400002")
    two = kernel(threads=(second,), **changes)
    assert wrong(one, two, user) == []
    assert wrong(dataclasses.replace(one, uid_map=b"0 501 1\n"), two, user)
    assert wrong(dataclasses.replace(one, threads=(gids.replace(b"27 502", b"27 502 4"),)), two, user)


def line_with(start: str) -> bytes:
    (line,) = [line for line in MOUNTS.splitlines(keepends=True) if line.startswith(start.encode())]
    return line


def test_filters_of_the_owner_count():
    """Where cellfork itself runs below a filter, as in a container, each sandbox has one more."""
    below = host(filters=1)
    assert any("Seccomp_filters: expected 3, found 2" in line for line in wrong(init(), kernel(), below))


@pytest.mark.parametrize(
    ("own", "of_init", "of_kernel"), [(-900, 100, 500), (0, 100, 500), (950, 1000, 1000)]
)
def test_whom_memory_takes_first_is_computed(own: int, of_init: int, of_kernel: int):
    """The scores count from what the owner has, never below nothing, never above the most there is."""
    posture = expected(host_=host(oom_score_adj=own)).posture
    assert (posture["init: oom_score_adj"], posture["kernel: oom_score_adj"]) == (of_init, of_kernel)


def test_a_bound_that_is_the_kernels_own_is_not_told():
    """A tmpfs of half the memory does not say so: that it has no bound of its own is then what is expected."""
    pages = 32 * MiB // (4 * KiB)
    posture = expected(host_=host(ram_pages=2 * pages)).posture
    assert posture["mount /run/sandbox"] == ["tmpfs own(/home/user):/ nodev nosuid rw nr_inodes=1500"]


def test_a_kernel_without_time_namespaces():
    """They are not needed: where the host has none, none is expected."""
    old = {name: link for name, link in HOST_NAMESPACES.items() if "time" not in name}
    own = {name: link for name, link in OWN_NAMESPACES.items() if "time" not in name}
    assert wrong(init(namespaces=own), kernel(namespaces=own), host(namespaces=old)) == []


def test_all_limits_are_known_by_name():
    """Every resource that this Python and this kernel know has the name that ``limits`` gives it."""
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    assert numbers - {resource.RLIMIT_OFILE} <= RESOURCES.keys()
    with open("/proc/self/limits", "rb") as file:
        assert readings.parse_limits(file.read()).keys() == {*RESOURCES.values()}


def test_where_a_path_of_the_host_lies():
    """A bind shows the device and the directory of the innermost mount, of those at one place the last."""
    table = readings.parse_mounts(
        HOST_MOUNTS
        + b"30 27 8:1 /sub /data rw - xfs /dev/sda rw\n"
        + b"31 30 8:2 / /data rw - xfs /dev/sdb rw\n"
        + b"32 27 8:3 / /data-not rw - xfs /dev/sdc rw\n"
    )
    assert locate("/usr", table) == ("254:0", "/usr", "ext4")
    assert locate("/data/x", table) == ("8:2", "/x", "xfs")
    assert locate("/data", table[:-2]) == ("8:1", "/sub", "xfs")
    assert locate("/", table) == ("254:0", "/", "ext4")
    assert locate("/usr", ()) == ("nowhere", "/usr", "unknown")


def test_a_mount_below_a_link_is_where_the_link_leads():
    """``mountinfo`` knows no symbolic links: neither does what is expected."""
    links = {"/var/tmp": "/tmp", "/bin": "usr/bin", "/a/b": "../c"}
    assert expectations._resolve("/var/tmp/env", links) == "/tmp/env"
    assert expectations._resolve("/bin/sh", links) == "/usr/bin/sh"
    assert expectations._resolve("/a/b/d", links) == "/c/d"
    assert expectations._resolve("/usr", links) == "/usr"


def test_the_error_names_every_difference():
    """It is a lack of isolation, carries all differences, and tells the first of them."""
    error = PostureMismatch(tuple(f"init: field {number}" for number in range(6)))
    assert isinstance(error, IsolationUnavailable)
    assert len(error.differences) == 6
    assert "init: field 3; and 2 more" in str(error)
    (missing,) = error.missing
    assert missing.feature == "posture"
