"""First stage of a zygote: leaves the host's namespaces, builds the template's root, becomes the interpreter.

Runs in a small, isolated Python (``-I -S``) with an empty environment.  The host sends one message with the
plan; everything here is carried out in the order in which it stands there.  What remains is

* the zygote, pid 1 of its own pid namespace, in a user namespace where it has an unprivileged host id, with
  nothing of the host in sight but the read-only parts that the plan names;
* the maker (``maker.py``), a small sibling that prepares user and network namespaces ahead.

Sources: bubblewrap's two-step root (mount a tmpfs, pivot into it, build from the old root, detach that).
"""

import json
import os
import re
import resource
import signal
import socket
import sys
from typing import Any, NoReturn

from cellfork.guest import linux, maker, oom

OLD_ROOT = "/.old"
STAGING = ("/tmp", "/mnt", "/srv", "/opt", "/var")
NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWCGROUP
    | linux.CLONE_NEWPID
)

Plan = dict[str, Any]


def main(control_fd: int, owner_fd: int) -> NoReturn:
    """Read the plan from ``control_fd``, carry it out, exec the zygote; report a failure as a message."""
    control = socket.socket(fileno=control_fd)
    plan: Plan = json.loads(control.recv(1 << 20))
    step = Step()
    take_descriptors()
    try:
        boot(plan, control, owner_fd, step)
    except OSError as error:
        report_failure(control, step, error)
    os._exit(1)


def take_descriptors() -> None:
    """Let this process, and so the maker and the zygote, have as many descriptors as they may.

    The want of their owner is not to be every sandbox's end: namespaces that were prepared wait as messages, and those of a user
    may hold no more descriptors than the sender's limit says (unix(7), ``ETOOMANYREFS``).  Each sandbox gets a number of its own later.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def report_failure(control: socket.socket, step: "Step", error: OSError) -> None:
    """Tell the host which step failed and why."""
    failure = {"op": "failed", "step": step.name, "errno": error.errno, "message": str(error)}
    control.send(json.dumps(failure).encode())


class Step:
    """Names what is being done, so that a failure can say where."""

    def __init__(self) -> None:
        self.name = "start"

    def __call__(self, name: str) -> None:
        """Begin the step ``name``."""
        self.name = name


def boot(plan: Plan, control: socket.socket, owner_fd: int, step: Step) -> None:
    """Carry the plan out; returns only in the first process, whose task is then done.

    As root the tree is built first, with root's eyes, and only then exchanged for a user namespace: an
    ordinary host id could not reach an interpreter below ``/root``.  As an ordinary user it is the other
    way round, because only the user namespace allows to mount.
    """
    privileged = plan["ids"] is not None
    step("signals")
    forget_signals()
    step("out of memory")
    oom.volunteer(oom.ZYGOTE, least=0)
    step("namespaces")
    if privileged:
        linux.unshare(linux.CLONE_NEWNS)
        step("groups")
        os.setgroups([])
    else:
        _enter_as_user()
    step("root")
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    _stage_root()
    for entry in plan["root"]:
        step(f"root: {entry[0]} {entry[1]}")
        build(entry)
    os.mkdir("/proc", 0o555)
    if privileged:
        step("user namespace")
        _enter_as_root(plan["ids"])
    step("pid namespace")
    told_read, told_write = os.pipe()
    pid = linux.clone_sibling()
    if pid:
        control.send(json.dumps({"op": "booted", "pid": pid}).encode())
        os._exit(0)
    # Nothing is said, not even a failure, before the host knows whom it has to reap.
    os.close(told_write)
    os.read(told_read, 1)
    os.close(told_read)
    _become_zygote(plan, control, owner_fd, step)


def forget_signals() -> None:
    """Handle every signal in the ordinary way: who starts cellfork with ``nohup`` has some ignored or blocked."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            linux.reset_signal(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def build(entry: list[Any]) -> None:
    """Make one entry of the new root: ``[kind, path, …]``.

    ``dir path mode`` · ``bind path source flags`` · ``file path text mode`` · ``link path target`` ·
    ``tmpfs path options``.
    """
    match entry:
        case ["dir", str() as path, int() as mode]:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)
        case ["bind", str() as path, str() as source, int() as flags]:
            _prepare_mount_point(path, OLD_ROOT + source)
            linux.bind(OLD_ROOT + source, path, flags)
            _restrict_below(path, flags)
        case ["file", str() as path, str() as text, int() as mode]:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, mode)
        case ["link", str() as path, str() as target]:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)
        case ["tmpfs", str() as path, str() as options]:
            os.makedirs(path, exist_ok=True)
            linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
        case _:
            raise OSError(0, f"unknown entry {entry!r}")


def _restrict_below(path: str, flags: int) -> None:
    """Restrict what the host has mounted below the source of a bind: the flags of a bind hold for itself alone.

    A mount that must not execute stays so: an ordinary user could not even ask for less.
    """
    with open(f"{OLD_ROOT}/proc/self/mountinfo", "rb") as file:
        lines = [line.split(b" ") for line in file]
    for line in lines:
        point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), line[4])
        if point.startswith(os.fsencode(path) + b"/"):
            kept = linux.MS_NOEXEC if b"noexec" in line[5].split(b",") else 0
            again = linux.MS_BIND | linux.MS_REMOUNT | flags | kept
            linux.mount("", os.fsdecode(point), flags=again)


def _enter_as_user() -> None:
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(NAMESPACES | linux.CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")


def _enter_as_root(ids: list[int]) -> None:
    """Exchange root's namespaces for new ones with a range of unprivileged host ids.

    A process that stays behind writes the maps.  The kernel lets a user namespace mount /proc only where
    one is in full view; the view is that of a pid namespace whose only process has ended.
    """
    _mount_empty_proc()
    myself = os.open(f"{OLD_ROOT}/proc/{os.getpid()}", os.O_PATH | os.O_DIRECTORY)
    _seal()
    entered_read, entered_write = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        os.close(entered_write)
        if os.read(
            entered_read, 1
        ):  # nothing comes where the namespaces were refused, or this stage was killed
            for name in ("uid_map", "gid_map"):
                _write(name, f"0 {ids[0]} {ids[1]}", dir_fd=myself)
        os._exit(0)
    linux.unshare(NAMESPACES | linux.CLONE_NEWUSER)
    os.write(entered_write, b"1")
    _wait_for(mapper, "the id maps were not written")
    for fd in (myself, entered_read, entered_write):
        os.close(fd)


def _mount_empty_proc() -> None:
    outer = os.fork()
    if outer == 0:
        linux.unshare(linux.CLONE_NEWPID)
        inner = os.fork()
        if inner == 0:
            _mount_proc()
            os._exit(0)
        _wait_for(inner, "/proc could not be mounted")
        os._exit(0)
    _wait_for(outer, "/proc could not be mounted")


def _mount_proc() -> None:
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


def _wait_for(pid: int, complaint: str) -> None:
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError(0, complaint)


def _seal() -> None:
    """Let the host's root go, and make the new one read-only."""
    linux.unmount(OLD_ROOT)
    os.rmdir(OLD_ROOT)
    flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("", "/", flags=flags)


def _stage_root() -> None:
    """Make an empty tmpfs the root; the host's root stays reachable at ``/.old`` until all is built."""
    staging = next(path for path in STAGING if os.path.isdir(path))
    linux.mount(
        "tmpfs", staging, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=16m,nr_inodes=65536"
    )
    os.mkdir(staging + OLD_ROOT, 0o700)
    linux.pivot_root(staging, staging + OLD_ROOT)
    os.chdir("/")


def _become_zygote(plan: Plan, control: socket.socket, owner_fd: int, step: Step) -> NoReturn:
    try:
        step("host name")
        linux.sethostname(plan["hostname"])  # before anything is imported that would remember the host's
        step("proc")
        _mount_proc()
        if plan["ids"] is None:
            step("seal")
            _seal()
        step("ids")
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        step("maker")
        maker_fd = _start_maker(single_id=plan["ids"] is None)
        step("exec")
        _exec(plan, control.fileno(), owner_fd, maker_fd)
    except OSError as error:
        report_failure(control, step, error)
    os._exit(1)


def _start_maker(*, single_id: bool) -> int:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        maker.serve(theirs, single_id=single_id)
    theirs.close()
    return ours.detach()


def _exec(plan: Plan, *fds: int) -> NoReturn:
    for fd in fds:
        os.set_inheritable(fd, True)
    os.umask(0o022)
    os.chdir("/")
    os.execve(plan["argv"][0], [*plan["argv"], *map(str, fds)], plan["env"])  # noqa: S606 - our own interpreter


def _prepare_mount_point(path: str, source: str) -> None:
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _write(path: str, text: str, dir_fd: int | None = None) -> None:
    fd = os.open(path, os.O_WRONLY, dir_fd=dir_fd)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
