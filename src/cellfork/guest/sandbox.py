"""From a fork of the zygote to a locked sandbox: the steps, in the order in which they must be taken.

Order: cgroups · namespaces · descriptors · *wait for the request* · mounts · locks (``locks.py``).  The first
failure ends the process: nothing is skipped.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

from cellfork.guest import linux
from cellfork.guest.maker import IDS_PER_SANDBOX, USER_ID
from cellfork.model.specs import ROOT_HOME
from cellfork.wire.descriptors import receive_descriptors
from cellfork.wire.frames import PREFIX, decode_header

Plan = dict[str, Any]

MAX_CGROUPS = 16
MAX_VOLUMES = 16
WITHOUT_DOOR, WITH_DOOR = b"g", b"d"
"""The first message of the host: control groups alone, or a door before them."""
BOOT_ID, BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id", ".boot-id"
"""Where programs look for the id, and what the file is called before it is there."""
TERMINALS = 64
"""Pseudoterminals that may be open in a sandbox; the host has 4,096 for everybody."""

_NO_DEVICES = linux.MS_NOSUID | linux.MS_NODEV


def enter_cgroups(connection_fd: int) -> int | None:
    """Move this process into its cgroups through descriptors that the host opened.

    They come as the first message of the connection: the host makes the groups while the zygote forks.  Where the
    sandbox is to be kept when the host ends, the first of them is its door (``door.py``), which is returned.
    Raises ``OSError`` where the host gave up.
    """
    connection = socket.socket(fileno=connection_fd)
    message, fds = receive_descriptors(connection, 1, MAX_CGROUPS)
    connection.detach()
    if not message:
        raise OSError(0, "the host gave no control groups")
    door = fds.pop(0) if message == WITH_DOOR else None
    for fd in fds:
        os.write(fd, b"0")
        os.close(fd)
    return door


def enter_namespaces(plan: Plan, net_ns: int) -> None:
    """Enter namespaces of its own: all but the user namespace, whose rights would not suffice for the mounts."""
    linux.setns(net_ns, linux.CLONE_NEWNET)
    os.close(net_ns)
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP)
    linux.sethostname(plan["hostname"])
    _mount_proc(plan)


def read_request(connection_fd: int, descriptors: list[int] | None = None) -> Plan | None:
    """Wait for the host to say which sandbox this is to become; ``None`` where it is not needed any more.

    Reads one frame and not a byte more; what comes behind the header is ``body``.  ``descriptors`` gets those that
    come with its first byte.
    """
    if descriptors is None:
        prefix = _read_exactly(connection_fd, PREFIX.size)
    else:
        prefix = _receive(connection_fd, PREFIX.size, descriptors)
    if not prefix:
        return None
    size, body, _channel = PREFIX.unpack(prefix)
    request = decode_header(_read_exactly(connection_fd, size))
    return request | {"body": _read_exactly(connection_fd, body)} if body else request


def furnish(plan: Plan, index: int, volumes: Sequence[int] = ()) -> None:
    """Put the sandbox's own places over the template's root, then ``volumes``: descriptors of mounts, in the plan's order."""
    owner = owner_of(plan, index)
    _mount_own_places(plan, owner)
    for volume, path in zip(volumes, plan.get("volumes", ()), strict=True):
        _make_directories(path, owner)
        linux.attach_mount(volume, path)
        os.close(volume)


def owner_of(plan: Plan, index: int) -> int:
    """Return the id of the sandbox's user as the zygote's user namespace counts."""
    return 0 if plan["single_id"] else index * IDS_PER_SANDBOX + USER_ID


def reset_process() -> None:
    """Forget what the zygote's loop had set up: signal handling, session, umask."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.umask(0o022)


def _read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _receive(connection_fd: int, size: int, descriptors: list[int]) -> bytes:
    """Read exactly so many bytes, and take the descriptors that come with the first."""
    connection = socket.socket(fileno=connection_fd)
    try:
        data, fds = receive_descriptors(connection, size, MAX_VOLUMES)
    finally:
        connection.detach()
    descriptors += fds
    return data + _read_exactly(connection_fd, size - len(data)) if 0 < len(data) < size else data


def _make_directories(path: str, owner: int) -> None:
    """Make what is missing on the way to a directory, all of it on the sandbox's own disk."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        os.mkdir(each, 0o755)
        os.chown(each, owner, owner)


def fill_home(entries: list[list[str]]) -> None:
    """Make the environment that pip writes to, as the sandbox's user; each entry is ``[kind, path, content]``."""
    for kind, path, content in entries:
        if kind == "dir":
            with contextlib.suppress(FileExistsError):  # a volume is there
                os.mkdir(path)
        elif kind == "link":
            os.symlink(content, path)
        else:
            mode = 0o755 if kind == "script" else 0o644
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            os.write(fd, content.encode())
            os.close(fd)


def places_of(plan: Plan) -> Plan:
    """Return what an archive of the sandbox is made of (see ``archives.py``): its disk, but for what each one gets anew."""
    disk = plan.get("disk_path")
    if disk is None:
        return {"place": None}
    entries = [
        *plan.get("home", []),
        *([["file", plan["certificates"], ""]] if plan.get("certificates") else []),
    ]
    own = [(kind, os.path.basename(path)) for kind, path, _ in entries if os.path.dirname(path) == disk]
    volumes = {os.path.basename(path) for path in plan.get("volumes", ()) if os.path.dirname(path) == disk}
    return {
        "place": disk,
        "kept": frozenset(volumes.union(name for kind, name in own if kind == "file")),
        "first": frozenset(name for kind, name in own if kind == "dir" and name not in volumes),
    }


def _mount_own_places(plan: Plan, owner: int) -> None:
    """One tmpfs, bounded in bytes and inodes, holds the homes, /tmp and the environment that pip writes to."""
    disk = plan["disk_path"]
    # The template's tmpfs around the homes is one for all sandboxes, and has no bounds of theirs.
    _make_read_only(os.path.dirname(plan["home_path"]))
    bounds = f"size={plan['disk']},nr_inodes={plan['inodes']}"
    linux.mount("disk", disk, "tmpfs", _NO_DEVICES, f"mode=755,uid={owner},gid={owner},{bounds}")
    for name, place, mode in (
        ("home", plan["home_path"], 0o755),
        ("root", ROOT_HOME, 0o755),
        ("tmp", "/tmp", 0o1777),
    ):
        path = f"{disk}/{name}"
        os.mkdir(path)
        os.chmod(path, mode)
        os.chown(path, owner, owner)
        linux.mount(path, place, flags=linux.MS_BIND)
    _mount_boot_id(disk)
    bounds = f"size={plan['shm']},nr_inodes={plan['shm_inodes']}"
    linux.mount("shm", "/dev/shm", "tmpfs", _NO_DEVICES | linux.MS_NOEXEC, f"mode=1777,{bounds}")
    terminals = linux.MS_NOSUID | linux.MS_NOEXEC
    linux.mount(
        "devpts", "/dev/pts", "devpts", terminals, f"newinstance,ptmxmode=0666,mode=620,max={TERMINALS}"
    )
    for path, kept in plan["covered"]:
        os.makedirs(path)
        linux.bind(kept, path, linux.MS_RDONLY | _NO_DEVICES)


def _mount_boot_id(disk: str) -> None:
    """Give the sandbox a boot id of its own: the machine's would tell which sandboxes share it, and outlives them.

    The file has no name any more when it is in its place: nobody inside could change it.
    """
    digits = os.urandom(16).hex()
    groups = (digits[:8], digits[8:12], f"4{digits[13:16]}", f"8{digits[17:20]}", digits[20:])
    path = f"{disk}/{BOOT_ID_FILE}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    os.write(fd, ("-".join(groups) + "\n").encode())
    os.close(fd)
    linux.bind(path, BOOT_ID, linux.MS_RDONLY | _NO_DEVICES | linux.MS_NOEXEC)
    os.unlink(path)


def _make_read_only(path: str) -> None:
    linux.mount("", path, flags=linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | _NO_DEVICES)


def _mount_proc(plan: Plan) -> None:
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    for path in plan["proc_hidden_files"]:
        linux.mount("/dev/null", path, flags=linux.MS_BIND)
    for path in plan["proc_hidden_dirs"]:
        linux.mount(
            plan["empty_path"], path, flags=linux.MS_BIND
        )  # read-only, as the root that it is a part of
    for path in plan["proc_read_only"]:
        linux.bind(path, path, linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
