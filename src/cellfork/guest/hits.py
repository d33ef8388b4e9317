"""Runs into limits on purpose, from inside a sandbox: each function goes on until something says no, and tells what did.

The host calls these in sandboxes of its own when it tests itself (``runtimes/namespaces/selftest.py``).  What is taken
is given back, but for what a name says is held.  An answer is ``[what refused, how much was had until then]``; what
refused is the name of an error, or ``""`` where nothing did within twice the limit.
"""

import ctypes
import errno
import mmap
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Answer = list[Any]

KiB, MiB = 1 << 10, 1 << 20
NO_REFUSAL = ""
SPINNERS = 5
_PIECE = bytes(64 * KiB)
_held: list[Any] = []
_libc = ctypes.CDLL(None, use_errno=True)


def disk(place: str, limit: int) -> Answer:
    """Write files of half a MiB below ``place``; the amount is in bytes."""
    return _files(place, 2 * limit, 512 * KiB)


def inodes(place: str, limit: int) -> Answer:
    """Make empty files below ``place``; the amount is their number."""
    return _files(place, 2 * limit, 0)


def file_size(place: str, limit: int) -> Answer:
    """Make a file as large as the limit, then larger, without writing anything; the amount is in bytes."""
    with _new_file(place) as fd:
        os.ftruncate(fd, limit)
        return [_refusal(os.ftruncate, fd, limit + 1), os.fstat(fd).st_size]


def open_files(limit: int) -> Answer:
    """Open descriptors; the amount is the highest."""
    fds: list[int] = []

    def open_all() -> None:
        fds.extend(os.dup(0) for _ in range(2 * limit))

    try:
        return [_refusal(open_all), max(fds, default=0)]
    finally:
        _close(fds)


def terminals(limit: int) -> Answer:
    """Open pseudoterminals; the amount is their number."""
    fds: list[int] = []

    def open_all() -> None:
        flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
        fds.extend(os.open("/dev/pts/ptmx", flags) for _ in range(2 * limit))

    try:
        return [_refusal(open_all), len(fds)]
    finally:
        _close(fds)


def watches(limit: int) -> Answer:
    """Open inotify instances; the amount is their number."""
    fds: list[int] = []
    try:
        for _ in range(2 * limit):
            fd = _libc.inotify_init1(os.O_CLOEXEC)
            if fd < 0:
                return [errno.errorcode[ctypes.get_errno()], len(fds)]
            fds.append(fd)
        return [NO_REFUSAL, len(fds)]
    finally:
        _close(fds)


def signals(limit: int) -> Answer:
    """Let signals wait; the amount is their number."""
    number = signal.SIGRTMIN
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    sent = 0
    try:
        for _ in range(2 * limit):
            if _libc.sigqueue(os.getpid(), int(number), None):
                return [errno.errorcode[ctypes.get_errno()], sent]
            sent += 1
        return [NO_REFUSAL, sent]
    finally:
        while sent and signal.sigtimedwait({number}, 0) is not None:
            sent -= 1
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def locked_memory() -> Answer:
    """Lock one page into memory."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        failed = _libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE))
        return [errno.errorcode[ctypes.get_errno()] if failed else NO_REFUSAL, 0]


def message_queue() -> Answer:
    """Make a POSIX message queue."""
    library = _libc if hasattr(_libc, "mq_open") else ctypes.CDLL("librt.so.1", use_errno=True)
    queue = library.mq_open(b"/cellfork", os.O_CREAT | os.O_RDWR, 0o600, None)
    if queue < 0:
        return [errno.errorcode[ctypes.get_errno()], 0]
    os.close(queue)
    library.mq_unlink(b"/cellfork")
    return [NO_REFUSAL, 1]


def core_dump(place: str) -> Answer:
    """Let a child crash below ``place``; the amount is how many files that left, -1 where the kernel says it dumped."""
    before = set(os.listdir(place))
    pid = os.fork()
    if pid == 0:
        os.chdir(place)
        os.abort()
    _pid, status = os.waitpid(pid, 0)
    left = set(os.listdir(place)) - before
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    refusal = "RLIMIT_CORE" if soft <= 1 and hard <= 1 else NO_REFUSAL
    return [refusal, -1 if os.WCOREDUMP(status) else len(left)]


def processes(limit: int) -> Answer:
    """Fork children that wait; the amount is their number."""
    pids: list[int] = []
    try:
        for _ in range(2 * limit):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            pids.append(pid)
    except OSError as error:
        return [errno.errorcode[error.errno or 0], len(pids)]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [NO_REFUSAL, len(pids)]


def writable_places() -> list[str]:
    """Return the mount points at which a file can be made."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        points = {line.split()[1].replace("\\040", " ") for line in mounts}
    found: list[str] = []
    for point in sorted(points):
        with suppress(OSError), _new_file(point):
            found.append(point)
    return found


def hold_file(place: str, size: int) -> int:
    """Write a file of ``size`` bytes and leave it there; return its size."""
    with open(f"{place}/held", "xb", buffering=0) as file:
        return _write(file.fileno(), size)


def hold_memfd(size: int) -> int:
    """Write ``size`` bytes into a file that has no name, and keep it; return its size."""
    fd = os.memfd_create("held")
    _held.append(fd)
    return _write(fd, size)


def hold_pipes(number: int) -> int:
    """Fill pipes and keep them; return how many bytes they hold."""
    held = 0
    for _ in range(number):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        held += os.write(writer, _PIECE)
        _held.extend((reader, writer))
    return held


def hold_datagrams(number: int) -> int:
    """Let UDP datagrams wait in the buffers of sockets that nobody reads, and keep them; return their bytes."""
    held = 0
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setblocking(False)
    _held.append(sender)
    for _ in range(number):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        _held.append(receiver)
        with suppress(OSError):
            for _ in range(4):
                held += sender.sendto(bytes(32 * KiB), receiver.getsockname())
    return held


def memory(most: int) -> None:
    """Take memory, a MiB at a time, up to ``most`` bytes: whoever gets to the end was not stopped."""
    _held.extend(b"\1" * MiB for _ in range(most // MiB))


def spin() -> None:
    """Use a processor for ever, in this process and in children of other sessions; none takes a hint to stop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for _ in range(SPINNERS - 1):
        if os.fork() == 0:
            os.setsid()
            break
    while True:
        time.monotonic()


def _files(place: str, most: int, size: int) -> Answer:
    """Make files of ``size`` bytes (0: count them) until the amount passes ``most``."""
    directory = f"{place}/hits"
    made, amount = 0, 0
    try:
        os.mkdir(directory)
        while amount < most:
            fd = os.open(f"{directory}/{made}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            made += 1
            amount += 0 if size else 1
            try:
                amount += _write(fd, size)
            finally:
                os.close(fd)
    except OSError as error:
        return [errno.errorcode[error.errno or 0], amount]
    finally:
        for number in range(made):
            os.unlink(f"{directory}/{number}")
        with suppress(OSError):
            os.rmdir(directory)
    return [NO_REFUSAL, amount]


def _write(fd: int, size: int) -> int:
    """Write ``size`` bytes, in pieces that take no memory to speak of; return how many were written."""
    return sum(os.write(fd, _PIECE) for _ in range(size // len(_PIECE)))


@contextmanager
def _new_file(place: str) -> Iterator[int]:
    path = f"{place}/hit"
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
        os.unlink(path)


def _refusal(call: Callable[..., object], *arguments: object) -> str:
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return NO_REFUSAL


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
