"""The system call filters, compiled to BPF as data.

Two filters.  The *base* is loaded once, in the zygote, and every fork inherits it: an allow-list, everything
unknown answers ENOSYS, everything dangerous EPERM, foreign system call tables kill.  The *delta* is loaded
in every sandbox after its set-up, and takes away what only the set-up needed: a filter of a few dozen
instructions costs 0.07 ms, the base would cost a millisecond.

A refusal is the error that a caller understands: one that a kernel without the feature would give, where there
is one, so that programs fall back as they were written to.

Source: seccomp(2); the refused calls are those of Docker's, Flatpak's and isolate's lists.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from cellfork.runtimes.namespaces import syscalls

ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
TABLES: Mapping[str, Mapping[str, int]] = {"x86_64": syscalls.X86_64, "aarch64": syscalls.AARCH64}

SETUP_ONLY = ("mount", "move_mount", "umount2", "unshare", "setns", "pivot_root", "sethostname")
"""Needed between fork and lock, refused afterwards."""

REFUSED = (
    "acct", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init", "fanotify_mark",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl", "kcmp",
    "kexec_file_load", "kexec_load", "lookup_dcookie", "mbind", "migrate_pages", "mlock", "mlock2", "mlockall", "mount_setattr",
    "move_pages", "munlock", "munlockall", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open",
    "personality", "pidfd_getfd", "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev",
    "ptrace", "quotactl", "quotactl_fd", "reboot", "set_mempolicy", "set_mempolicy_home_node", "setdomainname",
    "settimeofday", "swapoff", "swapon", "syslog", "uselib", "userfaultfd", "vhangup",
)  # fmt: skip
"""Answer EPERM: known and never needed by code that runs in a sandbox, or, as mlock, without effect at its limits."""

ABSENT = (
    "_sysctl", "add_key", "cachestat", "clone3", "get_mempolicy", "get_robust_list", "get_thread_area", "io_cancel", "io_destroy", "io_getevents",
    "io_pgetevents", "io_setup", "io_submit", "io_uring_enter", "io_uring_register", "io_uring_setup", "keyctl",
    "memfd_secret", "mincore", "modify_ldt", "mq_getsetattr", "mq_notify", "mq_timedreceive", "mq_timedsend",
    "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "remap_file_pages", "request_key", "sysfs", "ustat", "vserver",
)  # fmt: skip
"""Answer ENOSYS like every unknown call: callers fall back (glibc from clone3 to clone), or have no business here."""

UNFIT = ("splice", "tee", "vmsplice")
"""Answer EINVAL, as for files that cannot do it, and callers copy instead.  Pages that are shared between files, pipes
and processes without a copy were the way in of several breaks (CVE-2020-29374, CVE-2022-0847, CVE-2026-31431)."""

VAIN = ("sync", "syncfs")
"""Answer success and do nothing: a sandbox's files are memory, and the host's disks are not a sandbox's to flush."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEW*: user, mount, pid, ipc, uts, network, cgroup; clone(2) cannot make a time namespace."""
TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD = 0x5412, 0x541C, 0x541D, 0x5423
"""Type into a terminal, paste into a console, take a console's output, load the module of a line discipline."""
SOCK_STREAM, SOCK_DGRAM, SOCKET_TYPE_MASK = 1, 2, 0xF
TCP, UDP = 6, 17
F_SETLEASE, F_NOTIFY = 1024, 1026
"""Both act on files that sandboxes and the host share."""
MADV_MERGEABLE = 12
"""Asks for pages to be shared with whoever has the same: the time of a write then tells what others have."""
MFD_HUGETLB, MAP_HUGETLB, SHM_HUGETLB = 0x4, 0x40000, 0o4000
"""Huge pages that an administrator set aside are outside the memory limit."""
RWF_HIPRI = 0x1
"""The other flags of a read tell whether a page is in the cache (RWF_NOWAIT) or push it out (RWF_DONTCACHE)."""
SECCOMP_NEW_LISTENER = 0x8
RLIMIT_CORE = 4
PRCTL_ALLOWED = (
    1, 2, 3, 4, 7, 8, 15, 16, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 36, 37, 38, 39, 40, 41, 42, 47, 50, 51, 52, 53, 54,
    55, 56, 60, 61, 63, 64, 65, 66, 0x41555856, 0x53564D41, 0x59616D61,
)  # fmt: skip
"""Of a process about itself: death signal, dumpable, name, seccomp, capabilities, TSC, timer slack, subreaper,
no_new_privs, huge pages, speculation, the vector and pointer features of aarch64, and names of memory areas.  Not:
page merging, core scheduling, changing the memory map, syscall user dispatch, what comes with a future kernel."""
ARCH_PRCTL_ALLOWED = (0x1001, 0x1002, 0x1003, 0x1004, 0x1021, 0x1022, 0x1023)
"""The FS and GS registers of threads, and leave to use AMX."""

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_OR_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_JUMP, _AND = 0x05, 0x54
FARTHEST_JUMP = 255
"""Instructions that a comparison can jump over."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

Instruction = tuple[int, int, int, int]
Code = list[Instruction]
_ALLOWED: Instruction = (_RETURN, 0, 0, ALLOW)


def base_filter(machine: str | None = None) -> bytes:
    """Return the compiled base filter for ``machine`` (default: this one)."""
    machine = machine or platform.machine()
    actions = {number: _code_of(name) for name, number in TABLES[machine].items()}
    code: Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GREATER_OR_EQUAL, 0, 1, X32_BIT),
        _refuse(errno.ENOSYS),
        *_search(_ranges(actions, [_refuse(errno.ENOSYS)])),
    ]
    return _pack(code)


def delta_filter(machine: str | None = None) -> bytes:
    """Return the compiled filter that ends the set-up."""
    numbers = TABLES[machine or platform.machine()]
    actions = {numbers[name]: code for name, code in _AFTER_SET_UP.items()}
    return _pack([(_LOAD, 0, 0, _NUMBER), *_search(_ranges(actions, [_ALLOWED]))])


def allowed(machine: str | None = None) -> frozenset[str]:
    """Return the names of the calls that reach the kernel from a locked sandbox (some only with certain arguments)."""
    names = frozenset(TABLES[machine or platform.machine()])
    return names - {*REFUSED, *ABSENT, *UNFIT, *VAIN, *SETUP_ONLY}


def _code_of(name: str) -> Code:
    if name in REFUSED:
        return [_refuse(errno.EPERM)]
    if name in ABSENT:
        return [_refuse(errno.ENOSYS)]
    if name in UNFIT:
        return [_refuse(errno.EINVAL)]
    if name in VAIN:
        return [_refuse(0)]
    return _WITH_ARGUMENTS.get(name, [_ALLOWED])


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, ERRNO | number)


def _argument(index: int) -> Instruction:
    """Load the low 32 bits of an argument: the kernel looks at no more of these either."""
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * index)


def _upper_half(index: int) -> Instruction:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * index + 4)


def _socket() -> Code:
    """Unix sockets of every type, TCP and UDP, and the routing half of netlink, from which getifaddrs(3) reads.

    Types and protocols are an allow-list because the kernel loads a module for each that it does not know yet.
    """
    internet = [
        _argument(1),
        (_AND, 0, 0, SOCKET_TYPE_MASK),
        *_one_of(
            (SOCK_STREAM, SOCK_DGRAM),
            [_argument(2), *_one_of((0, TCP, UDP), [_ALLOWED], [_refuse(errno.EPROTONOSUPPORT)])],
            [_refuse(errno.EPERM)],
        ),
    ]
    netlink = [_argument(2), *_one_of((0,), [_ALLOWED], [_refuse(errno.EAFNOSUPPORT)])]
    no_unix = _one_of((AF_NETLINK,), netlink, [_refuse(errno.EAFNOSUPPORT)])
    return [_argument(0), *_one_of((AF_UNIX,), [_ALLOWED], _one_of((AF_INET, AF_INET6), internet, no_unix))]


def _core_limit(resource: int, new: int | None = None) -> Code:
    """Let a call that sets the limit of core dumps succeed and change nothing (see ``plan.rlimits``).

    Programs that turn core dumps off, such as gpg and ssh-agent, end where they cannot; off they are already.
    """
    vain = [_refuse(0)]
    if new is not None:
        low, high = _argument(new), _upper_half(new)
        vain = [low, *_one_of((0,), [high, *_one_of((0,), [_ALLOWED], vain)], vain)]
    return [_argument(resource), *_one_of((RLIMIT_CORE,), vain, [_ALLOWED])]


def _argument_is_none_of(index: int, values: Sequence[int], otherwise: int) -> Code:
    return [_argument(index), *_one_of(values, [_refuse(otherwise)], [_ALLOWED])]


def _argument_is_one_of(index: int, values: Sequence[int], otherwise: int) -> Code:
    return [_argument(index), *_one_of(values, [_ALLOWED], [_refuse(otherwise)])]


def _argument_without(index: int, bits: int, otherwise: int) -> Code:
    return [_argument(index), (_JUMP_ANY_BIT, 1, 0, bits), _ALLOWED, _refuse(otherwise)]


def _one_of(values: Sequence[int], then: Code, otherwise: Code) -> Code:
    """Return code that goes on with ``then`` where the accumulator has one of ``values``; both ends return."""
    tests = [
        (_JUMP_EQUAL, len(values) - 1 - position + len(otherwise), 0, value)
        for position, value in enumerate(values)
    ]
    return [*tests, *otherwise, *then]


_WITH_ARGUMENTS: Mapping[str, Code] = {
    "arch_prctl": _argument_is_one_of(0, ARCH_PRCTL_ALLOWED, errno.EPERM),
    "clone": _argument_without(0, NAMESPACE_FLAGS, errno.EPERM),
    "fcntl": _argument_is_none_of(1, (F_SETLEASE, F_NOTIFY), errno.EPERM),
    "ioctl": _argument_is_none_of(1, (TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD), errno.EPERM),
    "madvise": _argument_is_none_of(2, (MADV_MERGEABLE,), errno.EINVAL),
    "memfd_create": _argument_without(1, MFD_HUGETLB, errno.EINVAL),
    "mmap": _argument_without(3, MAP_HUGETLB, errno.ENOMEM),
    "prctl": _argument_is_one_of(0, PRCTL_ALLOWED, errno.EINVAL),
    "preadv2": _argument_without(5, 0xFFFFFFFF ^ RWF_HIPRI, errno.EOPNOTSUPP),
    "seccomp": _argument_without(1, SECCOMP_NEW_LISTENER, errno.EPERM),
    "shmget": _argument_without(2, SHM_HUGETLB, errno.EPERM),
    "socket": _socket(),
    "socketpair": _argument_is_one_of(0, (AF_UNIX,), errno.EAFNOSUPPORT),
}
"""Calls whose arguments decide."""
_AFTER_SET_UP: Mapping[str, Code] = {
    **{name: [_refuse(errno.EPERM)] for name in SETUP_ONLY},
    "setrlimit": _core_limit(0),
    "prlimit64": _core_limit(1, new=2),
}
"""What the delta decides."""


def _ranges(actions: Mapping[int, Code], otherwise: Code) -> list[tuple[int, Code]]:
    """Return ``(first number, code)`` for each run of numbers with the same code, from 0 to the end."""
    last = max(actions)
    every: Iterable[tuple[int, Code]] = (
        (number, actions.get(number, otherwise)) for number in range(last + 2)
    )
    return [(next(run)[0], code) for code, run in groupby(every, key=lambda pair: pair[1])]


def _search(ranges: list[tuple[int, Code]]) -> Code:
    """Return a binary search over ``ranges``."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    left, right = _search(ranges[:middle]), _search(ranges[middle:])
    bound = ranges[middle][0]
    if len(left) <= FARTHEST_JUMP:
        return [(_JUMP_GREATER_OR_EQUAL, len(left), 0, bound), *left, *right]
    return [(_JUMP_GREATER_OR_EQUAL, 0, 1, bound), (_JUMP, 0, 0, len(left)), *left, *right]


def _pack(code: Code) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
