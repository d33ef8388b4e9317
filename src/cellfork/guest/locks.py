"""The locks of a sandbox: what is taken from a process before it runs anybody's code.

The order of :data:`LOCKS` is the documentation: each one needs a right that a later one takes away.  Each is
verified as soon as it is taken, by reading it back from the kernel or by trying what it forbids.  The first
that cannot be taken or does not hold ends the process: nothing is skipped.

Sources: capabilities(7), prctl(2), user_namespaces(7), landlock(7), seccomp(2).
"""

import errno
import os
import resource
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cellfork.guest import linux
from cellfork.guest.maker import USER_ID
from cellfork.model.errors import StartupFailed

Plan = dict[str, Any]

NO_CAPABILITIES = b"".join(
    b"%s:\t%016x\n" % (name, 0) for name in (b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb")
)
"""The five sets as /proc/self/status shows them when there is nothing in any, not even a bit newer than this code."""

_FS_READ = 0b1101
_FS_WRITE_FILE = 1 << 1
_FS_TRUNCATE, _FS_IOCTL = 1 << 14, 1 << 15
_FS_MAKE_DEVICES = 1 << 6 | 1 << 11
_FS_KNOWN_BITS = {0: 0, 1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_LANDLOCK_CAN_BE_QUIET = 7
_NULL_DEVICE = os.makedev(1, 3)


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock: how it is taken, and how it is seen to hold."""

    name: str
    take: Callable[[Plan], None]
    holds: Callable[[Plan], bool]


def lock(plan: Plan, user_ns: int) -> None:
    """Take every lock on this process, in order, and see that each holds; ``user_ns`` is entered and closed.

    Every process that is forked before the request does this for itself; all others inherit it.
    Raises :class:`StartupFailed` with the name of the first lock that fails.
    """
    plan = {**plan, "user_ns": user_ns}
    for one in LOCKS:
        try:
            one.take(plan)
            held = one.holds(plan)
        except (OSError, ValueError) as error:  # Python's word for a limit that may not be raised
            raise StartupFailed(f"the lock {one.name!r} could not be taken: {error}") from error
        if not held:
            raise StartupFailed(f"the lock {one.name!r} was taken and does not hold")


def restrict_files(abi: int, writable: list[str]) -> None:
    """Allow reading and executing everywhere, writing only below ``writable``, ``/dev`` and ``/proc``.

    Signals and abstract sockets are not scoped: the pid and network namespaces bound them already, and the
    first kernel, which takes its locks itself, must stay within reach of init and of commands.
    """
    handled = (1 << _FS_KNOWN_BITS.get(abi, 16)) - 1
    ruleset = linux.landlock_create(handled)
    linux.landlock_allow_below(ruleset, "/", _FS_READ & handled)
    for path in writable:
        linux.landlock_allow_below(ruleset, path, handled & ~_FS_MAKE_DEVICES)
    special = (_FS_READ | _FS_WRITE_FILE | _FS_TRUNCATE | _FS_IOCTL) & handled
    for path in ("/dev", "/proc"):
        linux.landlock_allow_below(ruleset, path, special)
    linux.landlock_restrict(ruleset, quiet=abi >= _LANDLOCK_CAN_BE_QUIET)
    os.close(ruleset)


def _take_limits(plan: Plan) -> None:
    for number, soft, hard in plan["rlimits"]:
        resource.setrlimit(number, (soft, hard))


def _limits_hold(plan: Plan) -> bool:
    return all(resource.getrlimit(number) == (soft, hard) for number, soft, hard in plan["rlimits"])


def _enter_user_namespace(plan: Plan) -> None:
    linux.setns(plan["user_ns"], linux.CLONE_NEWUSER)
    os.close(plan["user_ns"])


def _no_user_namespace_below(_plan: Plan) -> bool:
    """The file tells the bound of the reader's own user namespace; the maker set it, with those of all other kinds."""
    return _read("/proc/sys/user/max_user_namespaces") == b"0\n"


def _lock_securebits(_plan: Plan) -> None:
    linux.prctl(linux.PR_SET_SECUREBITS, linux.SECURE_ALL_LOCKED)


def _securebits_hold(_plan: Plan) -> bool:
    return linux.prctl(linux.PR_GET_SECUREBITS) == linux.SECURE_ALL_LOCKED


def _take_ids(plan: Plan) -> None:
    if not plan["single_id"]:  # an ordinary user may not leave groups
        os.setgroups([])
    os.setresgid(USER_ID, USER_ID, USER_ID)
    os.setresuid(USER_ID, USER_ID, USER_ID)


def _ids_hold(plan: Plan) -> bool:
    only = (USER_ID, USER_ID, USER_ID)
    return os.getresuid() == only == os.getresgid() and (plan["single_id"] or os.getgroups() == [])


def _drop_capabilities(_plan: Plan) -> None:
    linux.drop_bounding_set()
    linux.prctl(linux.PR_CAP_AMBIENT, linux.PR_CAP_AMBIENT_CLEAR_ALL)
    linux.clear_capability_sets()


def _capabilities_are_gone(_plan: Plan) -> bool:
    return NO_CAPABILITIES in _read("/proc/self/status")


def _refuse_dumps(_plan: Plan) -> None:
    linux.prctl(linux.PR_SET_DUMPABLE, 0)


def _dumps_are_refused(_plan: Plan) -> bool:
    return linux.prctl(linux.PR_GET_DUMPABLE) == 0


def _renounce_privileges(_plan: Plan) -> None:
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def _privileges_are_renounced(_plan: Plan) -> bool:
    return linux.prctl(linux.PR_GET_NO_NEW_PRIVS) == 1


def _restrict_files(plan: Plan) -> None:
    if plan["landlock"]:
        restrict_files(plan["landlock"], plan["writable"])


def _files_are_restricted(plan: Plan) -> bool:
    """Try to make a device: Landlock answers EACCES before the kernel comes to miss a capability (EPERM)."""
    if not plan["landlock"]:
        return True
    try:
        os.mknod(f"{plan['disk_path']}/.device", stat.S_IFCHR, _NULL_DEVICE)
    except OSError as error:
        return error.errno == errno.EACCES
    return False


def _filter_calls(plan: Plan) -> None:
    linux.load_seccomp(bytes.fromhex(plan["seccomp_delta"]))


def _calls_are_filtered(_plan: Plan) -> bool:
    """Try calls of both filters that would get another answer from the kernel: EBADF, success, EFAULT, EBADF."""
    return (
        linux.prctl(linux.PR_GET_SECCOMP) == linux.SECCOMP_MODE_FILTER
        and linux.answer("setns", -1, 0) == errno.EPERM
        and linux.answer("unshare", 0) == errno.EPERM
        and linux.answer("io_uring_setup", 1, 0) == errno.ENOSYS
        and linux.answer("process_madvise", -1, 0, 0, 0, 0) == errno.EPERM
    )


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 8192)
    finally:
        os.close(fd)


LOCKS = (
    Lock("resource limits", _take_limits, _limits_hold),
    Lock("user namespace", _enter_user_namespace, _no_user_namespace_below),
    Lock("securebits", _lock_securebits, _securebits_hold),
    Lock("ids", _take_ids, _ids_hold),
    Lock("capabilities", _drop_capabilities, _capabilities_are_gone),
    Lock("no dumps", _refuse_dumps, _dumps_are_refused),
    Lock("no new privileges", _renounce_privileges, _privileges_are_renounced),
    Lock("landlock", _restrict_files, _files_are_restricted),
    Lock("seccomp", _filter_calls, _calls_are_filtered),
)
