"""The system call filters, compiled to BPF as data.

Two filters.  The *base* is loaded once, in the zygote, and every fork inherits it: an allow-list, everything
unknown answers ENOSYS, everything dangerous EPERM, foreign system call tables kill.  The *delta* is loaded
in every sandbox after its set-up, and takes away the few calls that the set-up needed: a filter of ten
instructions costs 0.07 ms, the base would cost a millisecond.

Source: seccomp(2); the refused calls are those of Docker's, Flatpak's and isolate's lists.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Mapping
from itertools import groupby

from cellfork.runtimes.namespaces import syscalls

ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
TABLES: Mapping[str, Mapping[str, int]] = {"x86_64": syscalls.X86_64, "aarch64": syscalls.AARCH64}

SETUP_ONLY = ("mount", "umount2", "unshare", "setns", "pivot_root", "sethostname")
"""Needed between fork and lock, refused afterwards."""

REFUSED = (
    "acct", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init", "fanotify_mark",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl", "kcmp",
    "kexec_file_load", "kexec_load", "lookup_dcookie", "mbind", "migrate_pages", "mount_setattr", "move_mount",
    "move_pages", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open",
    "personality", "pidfd_getfd", "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev",
    "ptrace", "quotactl", "quotactl_fd", "reboot", "set_mempolicy", "set_mempolicy_home_node", "setdomainname",
    "settimeofday", "swapoff", "swapon", "syslog", "uselib", "userfaultfd", "vhangup",
)  # fmt: skip
"""Answer EPERM: known and never needed by code that runs in a sandbox."""

ABSENT = (
    "_sysctl", "add_key", "cachestat", "clone3", "get_mempolicy", "io_cancel", "io_destroy", "io_getevents",
    "io_pgetevents", "io_setup", "io_submit", "io_uring_enter", "io_uring_register", "io_uring_setup", "keyctl",
    "memfd_secret", "modify_ldt", "remap_file_pages", "request_key", "sysfs", "ustat", "vserver",
)  # fmt: skip
"""Answer ENOSYS like every unknown call: callers fall back (glibc from clone3 to clone), or have no business here."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEW*: user, mount, pid, ipc, uts, network, cgroup; clone(2) cannot make a time namespace."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_OR_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

Instruction = tuple[int, int, int, int]
Code = list[Instruction]


def base_filter(machine: str | None = None) -> bytes:
    """Return the compiled base filter for ``machine`` (default: this one)."""
    machine = machine or platform.machine()
    numbers = TABLES[machine]
    actions = {number: _code_of(name) for name, number in numbers.items()}
    code: Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GREATER_OR_EQUAL, 0, 1, X32_BIT),
        _refuse(errno.ENOSYS),
        *_search(_ranges(actions)),
    ]
    return _pack(code)


def delta_filter(machine: str | None = None) -> bytes:
    """Return the compiled filter that ends the set-up."""
    numbers = [TABLES[machine or platform.machine()][name] for name in SETUP_ONLY]
    tests: Code = [
        (_JUMP_EQUAL, len(numbers) - position, 0, number) for position, number in enumerate(numbers)
    ]
    return _pack([(_LOAD, 0, 0, _NUMBER), *tests, (_RETURN, 0, 0, ALLOW), _refuse(errno.EPERM)])


def allowed(machine: str | None = None) -> frozenset[str]:
    """Return the names of the calls that a locked sandbox may make (some only with certain arguments)."""
    names = frozenset(TABLES[machine or platform.machine()])
    return names - {*REFUSED, *ABSENT, *SETUP_ONLY}


def _code_of(name: str) -> Code:
    if name in REFUSED:
        return [_refuse(errno.EPERM)]
    if name in ABSENT:
        return [_refuse(errno.ENOSYS)]
    return _WITH_ARGUMENTS.get(name, [(_RETURN, 0, 0, ALLOW)])


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, ERRNO | number)


def _argument(index: int) -> Instruction:
    """Load the low 32 bits of an argument: the kernel looks at no more of these either."""
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * index)


_WITH_ARGUMENTS: Mapping[str, Code] = {
    "socket": [
        _argument(0),
        (_JUMP_EQUAL, 5, 0, AF_UNIX),
        (_JUMP_EQUAL, 4, 0, AF_INET),
        (_JUMP_EQUAL, 3, 0, AF_INET6),
        (_JUMP_EQUAL, 0, 3, AF_NETLINK),
        _argument(2),
        (_JUMP_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, ALLOW),
        _refuse(errno.EAFNOSUPPORT),
    ],
    "socketpair": [
        _argument(0),
        (_JUMP_EQUAL, 0, 1, AF_UNIX),
        (_RETURN, 0, 0, ALLOW),
        _refuse(errno.EAFNOSUPPORT),
    ],
    "clone": [
        _argument(0),
        (_JUMP_ANY_BIT, 1, 0, NAMESPACE_FLAGS),
        (_RETURN, 0, 0, ALLOW),
        _refuse(errno.EPERM),
    ],
    "ioctl": [
        _argument(1),
        (_JUMP_EQUAL, 2, 0, TIOCSTI),
        (_JUMP_EQUAL, 1, 0, TIOCLINUX),
        (_RETURN, 0, 0, ALLOW),
        _refuse(errno.EPERM),
    ],
}
"""Calls whose arguments decide."""


def _ranges(actions: Mapping[int, Code]) -> list[tuple[int, Code]]:
    """Return ``(first number, code)`` for each run of numbers with the same code, from 0 to the end."""
    absent: Code = [_refuse(errno.ENOSYS)]
    last = max(actions)
    every: Iterable[tuple[int, Code]] = ((number, actions.get(number, absent)) for number in range(last + 2))
    return [(next(run)[0], code) for code, run in groupby(every, key=lambda pair: pair[1])]


def _search(ranges: list[tuple[int, Code]]) -> Code:
    """Return a binary search over ``ranges``."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    left, right = _search(ranges[:middle]), _search(ranges[middle:])
    if len(left) > 255:
        raise ValueError("the filter has become too large for one jump")
    return [(_JUMP_GREATER_OR_EQUAL, len(left), 0, ranges[middle][0]), *left, *right]


def _pack(code: Code) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
