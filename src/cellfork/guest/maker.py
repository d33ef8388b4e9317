"""Prepares the two namespaces that are slow to make: network (about 1 ms) and a mapped user namespace.

The zygote asks with one number, the index of a sandbox's id range, and gets two descriptors back.  Asking
ahead takes both off the way of a create.  The network namespace holds a loopback device and nothing else;
it belongs to the zygote's user namespace, so that nothing inside a sandbox may configure it.  The user
namespace has room for no other namespace below it.
"""

import os
import socket
import struct
from typing import NoReturn

from cellfork.guest import linux

NAME = "cellfork-maker"
IDS_PER_SANDBOX = 2048
USER_ID = 1000

WATCHERS, WATCHES = 16, 16_384
"""Inotify instances of a sandbox, one of which is init's, and what they may watch together."""
NAMESPACE_KINDS = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def serve(requests: socket.socket, *, single_id: bool) -> NoReturn:
    """Answer requests until the other end is closed."""
    linux.prctl(linux.PR_SET_PDEATHSIG, 9)
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # so that the children's /proc entries are ours to write
    linux.set_name(NAME)
    while message := _next(requests):
        index = int(message)
        user_fd, net_fd = make(index, single_id=single_id)
        socket.send_fds(requests, [message], [user_fd, net_fd])
        os.close(user_fd)
        os.close(net_fd)
    os._exit(0)


def _next(requests: socket.socket) -> bytes:
    """Return the next request, nothing where the zygote has ended."""
    try:
        return requests.recv(64)
    except ConnectionError:
        return b""


def make(index: int, *, single_id: bool) -> tuple[int, int]:
    """Return descriptors of a user namespace with its maps written and of a network namespace with loopback up."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hold_write)
        _hold_namespaces(ready_write, hold_read)
    os.close(ready_write)
    os.close(hold_read)
    try:
        if not os.read(ready_read, 1):
            raise OSError(0, "namespaces could not be made")
        _map_ids(pid, index, single_id=single_id)
        user_fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        net_fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(hold_write)
        os.close(ready_read)
        os.waitpid(pid, 0)
    return user_fd, net_fd


def _hold_namespaces(ready: int, hold: int) -> NoReturn:
    try:
        linux.unshare(linux.CLONE_NEWNET)
        _loopback_up()
        linux.unshare(linux.CLONE_NEWUSER)
        _forbid_namespaces()
        _bound_watches()
        os.write(ready, b"1")
        os.read(hold, 1)
    finally:
        os._exit(0)


def _loopback_up() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


def _bound_watches() -> None:
    """Leave others their inotify instances: the kernel counts them for the owner of all sandboxes together as well."""
    for name, most in (("max_inotify_instances", WATCHERS), ("max_inotify_watches", WATCHES)):
        _write(f"/proc/sys/user/{name}", str(most))


def _forbid_namespaces() -> None:
    """Let nobody in this user namespace make a namespace of any kind: the files are those of the reader's own.

    The kernel checks the number whatever rights a process has come to, so this holds where the system call
    filter should not.  A kind that this kernel does not have has no file.
    """
    for kind in NAMESPACE_KINDS:
        path = f"/proc/sys/user/max_{kind}_namespaces"
        if os.path.exists(path):
            _write(path, "0")


def _map_ids(pid: int, index: int, *, single_id: bool) -> None:
    if single_id:
        _write(f"/proc/{pid}/setgroups", "deny")
        mapping = f"{USER_ID} 0 1"
    else:
        mapping = f"0 {index * IDS_PER_SANDBOX} {IDS_PER_SANDBOX}"
    _write(f"/proc/{pid}/uid_map", mapping)
    _write(f"/proc/{pid}/gid_map", mapping)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
