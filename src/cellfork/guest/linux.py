"""The Linux calls that Python does not offer, through ctypes.  Each raises ``OSError`` with its name.

Sources: the manual pages named by each function; Landlock: Documentation/userspace-api/landlock.rst.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000
SIGCHLD = 17

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_GET_SECCOMP = 21
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_GET_SECUREBITS = 27
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_SET_MEMORY_MERGE = 67
PR_CAP_AMBIENT_CLEAR_ALL = 4

_OPTIONS = {
    PR_SET_PDEATHSIG: "PR_SET_PDEATHSIG",
    PR_SET_DUMPABLE: "PR_SET_DUMPABLE",
    PR_SET_SECCOMP: "PR_SET_SECCOMP",
    PR_CAPBSET_DROP: "PR_CAPBSET_DROP",
    PR_SET_SECUREBITS: "PR_SET_SECUREBITS",
    PR_SET_NO_NEW_PRIVS: "PR_SET_NO_NEW_PRIVS",
    PR_CAP_AMBIENT: "PR_CAP_AMBIENT",
}

SECURE_ALL_LOCKED = 0xEF
"""NOROOT, NO_SETUID_FIXUP, KEEP_CAPS_LOCKED, NO_CAP_AMBIENT_RAISE with their locks."""
MADV_COLLAPSE = 25
SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_SYSCALLS = {
    "x86_64": {
        "pivot_root": 155,
        "capset": 126,
        "clone": 56,
        "setns": 308,
        "unshare": 272,
        "sched_setattr": 314,
        "rt_sigaction": 13,
    },
    "aarch64": {
        "pivot_root": 41,
        "capset": 91,
        "clone": 220,
        "setns": 268,
        "unshare": 97,
        "sched_setattr": 274,
        "rt_sigaction": 134,
    },
}
_SCHED_OTHER, _SCHED_RESET_ON_FORK = 0, 1
_SYSCALLS_OF_ALL = {"io_uring_setup": 425, "process_madvise": 440}
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_EMPTY_PATH, _OPEN_TREE_CLONE, _MOVE_MOUNT_FROM_FD = 0x1000, 1, 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_LOG_SAME_EXEC_OFF = 1
_CLOSE_RANGE = 436

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class _SeccompProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def reap() -> Iterator[tuple[int, int]]:
    """Yield pid and wait status of every child that has ended, and reap it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def supported_machine() -> bool:
    """Tell whether the system call numbers of this machine are known."""
    return platform.machine() in _SYSCALLS


def reset_signal(number: int) -> None:
    """Handle a signal in the ordinary way, also one that the C library keeps to itself: rt_sigaction(2).

    Those, 32 and 33, are ignored in whatever a program starts with posix_spawn(3) that has used them; make does so.
    """
    ordinary = bytes(32)
    _check(_syscall("rt_sigaction", number, ordinary, None, ctypes.c_size_t(8)), f"signal {number}")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones: unshare(2)."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace that ``fd`` stands for: setns(2)."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount: mount(2)."""
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    _check(result, f"mount {kind or source} on {target}")


def bind(source: str, target: str, flags: int = 0) -> None:
    """Bind ``source``, with what is mounted below it, on ``target``, restricted by ``flags``."""
    mount(source, target, flags=MS_BIND | MS_REC)
    if flags:
        mount("", target, flags=MS_BIND | MS_REMOUNT | flags)


def unmount(target: str) -> None:
    """Detach a mount: umount2(2)."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def detached_mount(directory: int, user_ns: int, *, read_only: bool) -> int:
    """Return a mount of the directory that ``directory`` is open on, which is in no tree yet: open_tree(2), mount_setattr(2).

    It is private, gives nobody devices or rights, and shows files as belonging to the ids that they have in ``user_ns``.
    Needs root, Linux 5.12, and a file system that can map ids.
    """
    flags = _AT_EMPTY_PATH | _OPEN_TREE_CLONE | os.O_CLOEXEC
    tree = _check(_libc.syscall(_OPEN_TREE, directory, b"", ctypes.c_uint(flags)), "open_tree")
    try:
        wanted = _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | _MOUNT_ATTR_IDMAP
        wanted |= _MOUNT_ATTR_RDONLY if read_only else 0
        attributes = struct.pack("=QQQQ", wanted, 0, MS_PRIVATE, user_ns)
        size = ctypes.c_size_t(len(attributes))
        _check(
            _libc.syscall(_MOUNT_SETATTR, tree, b"", ctypes.c_uint(_AT_EMPTY_PATH), attributes, size),
            "mount_setattr",
        )
    except BaseException:
        os.close(tree)
        raise
    return tree


def attach_mount(tree: int, target: str) -> None:
    """Put a detached mount on a directory: move_mount(2)."""
    here = -100  # AT_FDCWD
    result = _libc.syscall(_MOVE_MOUNT, tree, b"", here, target.encode(), ctypes.c_uint(_MOVE_MOUNT_FROM_FD))
    _check(result, f"move_mount on {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make ``new_root`` the root and put the old one at ``put_old``: pivot_root(2)."""
    _check(_syscall("pivot_root", new_root.encode(), put_old.encode()), "pivot_root")


def clone_sibling() -> int:
    """Fork a child whose parent is *our* parent (CLONE_PARENT): 0 in the child, its pid here.

    Python's at-fork hooks do not run: only for a small process that execs soon.
    """
    clone = ctypes.PyDLL(None, use_errno=True).syscall
    clone.restype = ctypes.c_long
    number = _SYSCALLS[platform.machine()]["clone"]
    zero = ctypes.c_long(0)
    return _check(
        int(clone(ctypes.c_long(number), ctypes.c_long(CLONE_PARENT | SIGCHLD), zero, zero, zero, zero)),
        "clone",
    )


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    """Operate on a process or thread: prctl(2)."""
    arguments = (ctypes.c_ulong(value) for value in (first, second, 0, 0))
    return _check(_libc.prctl(option, *arguments), f"prctl {_OPTIONS.get(option, option)}")


def set_name(name: str) -> None:
    """Name this thread, in at most fifteen letters: prctl(2), PR_SET_NAME."""
    _check(_libc.prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0), "PR_SET_NAME")


def close_from(fd: int) -> None:
    """Close every descriptor from ``fd`` on: close_range(2)."""
    _check(_libc.syscall(_CLOSE_RANGE, ctypes.c_uint(fd), ctypes.c_uint(0xFFFFFFFF), 0), "close_range")


def sethostname(name: str) -> None:
    """Set the host name of the UTS namespace: sethostname(2)."""
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def drop_bounding_set() -> None:
    """Empty the capability bounding set, whatever this kernel has in it: capabilities(7)."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break


def clear_capability_sets() -> None:
    """Empty the effective, permitted and inheritable sets: capset(2)."""
    header = struct.pack("II", _CAPABILITY_VERSION_3, 0)
    _check(_syscall("capset", header, bytes(24)), "capset")


def load_seccomp(program: bytes) -> None:
    """Add a compiled filter to this thread: seccomp(2).  Needs ``no_new_privs``."""
    loaded = _SeccompProgram(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(loaded))


def landlock_abi() -> int:
    """Return the Landlock ABI level, 0 where there is none."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def landlock_create(handled: int) -> int:
    """Return a descriptor of a new ruleset that handles these accesses to files."""
    attributes = struct.pack("Q", handled)
    result = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    return _check(result, "landlock_create_ruleset")


def landlock_allow_below(ruleset: int, path: str, access: int) -> None:
    """Allow ``access`` on everything below ``path``."""
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", access, parent)
        _check(_libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), "landlock_add_rule")
    finally:
        os.close(parent)


def landlock_restrict(ruleset: int, *, quiet: bool) -> None:
    """Apply a ruleset to this thread, for good; ``quiet`` keeps what it refuses out of the host's log (ABI 7)."""
    flags = _LANDLOCK_LOG_SAME_EXEC_OFF if quiet else 0
    _check(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, flags), "landlock_restrict_self")


def stop_page_merging() -> None:
    """Keep the pages of this process and its forks apart from equal ones of others, whatever was inherited: prctl(2).

    A kernel before 6.4, or one that cannot merge pages at all, has nothing to turn off.
    """
    try:
        prctl(PR_SET_MEMORY_MERGE, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def collapse(address: int, size: int) -> bool:
    """Ask for huge pages under a part of this process's memory (MADV_COLLAPSE, Linux 6.1): madvise(2)."""
    return bool(_libc.madvise(address, size, MADV_COLLAPSE) == 0)


def run_in_short_turns(nanoseconds: int) -> None:
    """Ask for the processor often and for little at a time (Linux 6.12; before, nothing changes): sched_setattr(2).

    Whoever asks for less comes to its turn sooner.  Children have the usual turns.  The niceness that the owner was
    started with stays, and so does any other way of scheduling.
    """
    if os.sched_getscheduler(0) != _SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQ", 48, _SCHED_OTHER, _SCHED_RESET_ON_FORK, nice, 0, nanoseconds, 0, 0)
    _check(_syscall("sched_setattr", 0, attributes, 0), "sched_setattr")


def answer(name: str, *arguments: int) -> int:
    """Make one of a few system calls, for its error number alone; 0 where it succeeded: syscall(2)."""
    number = _SYSCALLS_OF_ALL.get(name) or _SYSCALLS[platform.machine()][name]
    result = int(_libc.syscall(number, *map(ctypes.c_long, arguments)))
    return ctypes.get_errno() if result < 0 else 0


def _syscall(name: str, *arguments: object) -> int:
    return int(_libc.syscall(_SYSCALLS[platform.machine()][name], *arguments))


def _check(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
