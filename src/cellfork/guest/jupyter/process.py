"""A Jupyter kernel's process: starting it, what it writes past its protocol, its end."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cellfork.guest import linux

READ_SIZE = 65536
LAST_WORDS = 8192
"""Bytes of what a kernel writes while it starts that are kept, to be told where it does not get ready."""
MOST_READS = 64


class KernelProcess:
    """A kernel that runs in a process group of its own, and dies with this process.

    What it writes to its standard output and error goes nowhere until :meth:`listen`: it is the kernel's, not the code's.
    ``pipes`` (descriptor → 0 or 1 for the stream) and ``death`` are to be polled; ``words`` are the last that it wrote
    before anybody listened.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start ``command``.  Raises ``OSError`` where there is no such program, or no room for it."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            process_group=0,
            preexec_fn=partial(_die_with, os.getpid()),  # noqa: PLW1509 - this process has one thread
        )
        streams = (self._process.stdout, self._process.stderr)
        self.pipes = {stream.fileno(): number for number, stream in enumerate(streams) if stream is not None}
        for fd in self.pipes:
            os.set_blocking(fd, False)
        self.death = os.pidfd_open(self._process.pid)
        self.words = b""
        self._listener: Callable[[int, bytes], None] | None = None

    def listen(self, listener: Callable[[int, bytes], None]) -> None:
        """Hand what is written from now on to ``listener`` (0 or 1 for the stream, the bytes)."""
        self.read()
        self._listener = listener

    def read(self) -> bool:
        """Take what is there; return whether there was anything.  Pipes at their end are forgotten."""
        found = False
        for fd, stream in list(self.pipes.items()):
            for _ in range(MOST_READS):
                data = _read(fd)
                if data is None:
                    break
                if not data:
                    del self.pipes[fd]
                    break
                found = True
                self._take(stream, data)
        return found

    def interrupt(self) -> None:
        """Send SIGINT to its group."""
        self._signal(signal.SIGINT)

    def end(self) -> None:
        """Kill it, if it lives, and reap it."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    @property
    def status(self) -> int:
        """Its exit code, or the negative number of the signal that ended it.  Call when it has ended."""
        return self._process.wait()

    def _take(self, stream: int, data: bytes) -> None:
        if self._listener is None:
            self.words = (self.words + data)[-LAST_WORDS:]
        else:
            self._listener(stream, data)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                os.kill(self._process.pid, number)  # it is not in its group yet


def end_alike(status: int) -> int:
    """End this process as the kernel did, so that init tells the right end: by the same signal, or return the code."""
    if status < 0:
        if -status not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status if status >= 0 else 128 - status


def _read(fd: int) -> bytes | None:
    """Return what is in a pipe, nothing at its end, ``None`` where nothing is there."""
    try:
        return os.read(fd, READ_SIZE)
    except BlockingIOError:
        return None


def _die_with(parent: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
