"""From a fork of the zygote to a locked sandbox: the steps, in the order in which they must be taken.

Order: cgroups · namespaces · descriptors · *wait for the request* · mounts · limits · ids · capabilities ·
no_new_privs · Landlock · seccomp.  The first failure ends the process: nothing is skipped.
"""

import os
import resource
import signal
import socket
from typing import Any

from cellfork.guest import linux
from cellfork.guest.maker import IDS_PER_SANDBOX, USER_ID
from cellfork.wire.frames import PREFIX, decode_header

Plan = dict[str, Any]

MAX_CGROUPS = 16

_NO_DEVICES = linux.MS_NOSUID | linux.MS_NODEV
_FS_READ = 0b1101
_FS_WRITE_FILE = 1 << 1
_FS_TRUNCATE, _FS_IOCTL = 1 << 14, 1 << 15
_FS_MAKE_DEVICES = 1 << 6 | 1 << 11
_FS_KNOWN_BITS = {0: 0, 1: 13, 2: 14, 3: 15, 4: 15, 5: 16}


def enter_cgroups(connection_fd: int) -> None:
    """Move this process into its cgroups through descriptors that the host opened.

    They come as the first message of the connection: the host makes the groups while the zygote forks.
    Raises ``OSError`` where the host gave up.
    """
    connection = socket.socket(fileno=connection_fd)
    message, fds, _flags, _address = socket.recv_fds(connection, 1, MAX_CGROUPS)
    connection.detach()
    if not message:
        raise OSError(0, "the host gave no control groups")
    for fd in fds:
        os.write(fd, b"0")
        os.close(fd)


def enter_namespaces(plan: Plan, net_ns: int) -> None:
    """Enter namespaces of its own: all but the user namespace, whose rights would not suffice for the mounts."""
    linux.setns(net_ns, linux.CLONE_NEWNET)
    os.close(net_ns)
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP)
    linux.sethostname(plan["hostname"])
    _mount_proc(plan)


def read_request(connection_fd: int) -> Plan | None:
    """Wait for the host to say which sandbox this is to become; ``None`` where it is not needed any more.

    Reads one frame and not a byte more.
    """
    prefix = _read_exactly(connection_fd, PREFIX.size)
    if not prefix:
        return None
    size, _body, _channel = PREFIX.unpack(prefix)
    return decode_header(_read_exactly(connection_fd, size))


def furnish(plan: Plan, index: int) -> None:
    """Put the sandbox's own places over the template's root."""
    _mount_own_places(plan, owner_of(plan, index))


def owner_of(plan: Plan, index: int) -> int:
    """Return the id of the sandbox's user as the zygote's user namespace counts."""
    return 0 if plan["single_id"] else index * IDS_PER_SANDBOX + USER_ID


def lock(plan: Plan, user_ns: int) -> None:
    """Take limits, give up ids and capabilities, then close the kernel's doors: Landlock and seccomp.

    Every process that is forked before the request does this for itself; all others inherit it.
    """
    for number, soft, hard in plan["rlimits"]:
        resource.setrlimit(number, (soft, hard))
    linux.setns(user_ns, linux.CLONE_NEWUSER)
    os.close(user_ns)
    linux.drop_capabilities()
    if not plan["single_id"]:
        os.setgroups([])
    os.setresgid(USER_ID, USER_ID, USER_ID)
    os.setresuid(USER_ID, USER_ID, USER_ID)
    linux.clear_capability_sets()
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if plan["landlock"]:
        restrict_files(plan["landlock"], plan["writable"])
    linux.load_seccomp(bytes.fromhex(plan["seccomp_delta"]))


def reset_process() -> None:
    """Forget what the zygote's loop had set up: signal handling, session, umask."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.umask(0o022)


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
    linux.landlock_restrict(ruleset)
    os.close(ruleset)


def _read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def fill_home(entries: list[list[str]]) -> None:
    """Make the environment that pip writes to, as the sandbox's user; each entry is ``[kind, path, content]``."""
    for kind, path, content in entries:
        if kind == "dir":
            os.mkdir(path)
        elif kind == "link":
            os.symlink(content, path)
        else:
            mode = 0o755 if kind == "script" else 0o644
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            os.write(fd, content.encode())
            os.close(fd)


def _mount_own_places(plan: Plan, owner: int) -> None:
    """One tmpfs, bounded in bytes and inodes, holds home, /tmp and the environment that pip writes to."""
    disk = plan["disk_path"]
    bounds = f"size={plan['disk']},nr_inodes={plan['inodes']}"
    linux.mount("disk", disk, "tmpfs", _NO_DEVICES, f"mode=755,uid={owner},gid={owner},{bounds}")
    for name, place, mode in (("home", plan["home_path"], 0o755), ("tmp", "/tmp", 0o1777)):
        path = f"{disk}/{name}"
        os.mkdir(path)
        os.chmod(path, mode)
        os.chown(path, owner, owner)
        linux.mount(path, place, flags=linux.MS_BIND)
    linux.mount("shm", "/dev/shm", "tmpfs", _NO_DEVICES, f"mode=1777,size={plan['shm']}")
    terminals = linux.MS_NOSUID | linux.MS_NOEXEC
    linux.mount("devpts", "/dev/pts", "devpts", terminals, "newinstance,ptmxmode=0666,mode=620")
    for path, kept in plan["covered"]:
        os.makedirs(path)
        linux.bind(kept, path, linux.MS_RDONLY | _NO_DEVICES)


def _mount_proc(plan: Plan) -> None:
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    for path in plan["proc_hidden_files"]:
        linux.mount("/dev/null", path, flags=linux.MS_BIND)
    for path in plan["proc_hidden_dirs"]:
        linux.mount("tmpfs", path, "tmpfs", _NO_DEVICES | linux.MS_RDONLY, "size=4k,nr_inodes=1,mode=555")
    for path in plan["proc_read_only"]:
        linux.bind(path, path, linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
