"""Marks: which processes came from which kernel, wherever they went since.

A process can leave its group, its session and its parent, close its descriptors and forget its environment.
What it cannot do is raise a hard resource limit.  So a kernel lowers two that Linux accepts, hands down to
every child, and otherwise ignores: those on file locks and on resident memory.  One mark has less of the
first where another has less of the second, so that no process can turn its own into that of somebody else:
whatever it lowers, both of its limits stay at or below the ones that it was born with.

That makes the end of a kernel complete without a control group or a namespace of its own.

Sources: getrlimit(2); ``do_prlimit`` and ``copy_signal`` of the kernel.
"""

import os
import resource
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from cellfork.guest.loop import Loop
from cellfork.model.errors import StartupFailed

RLIMIT_LOCKS = 10
"""File locks: without effect since Linux 2.4.25."""
RLIMIT_RSS = resource.RLIMIT_RSS
"""Resident memory: without effect since Linux 2.4.30."""
MOST = 1 << 62
"""Stands for "unlimited"; as a number of bytes it is as good."""
SPREAD = 1 << 40

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
"""Seconds between two looks for what carries a mark."""
PATIENCE = 5.0
"""Seconds after which init gives up and ends the sandbox, itself included."""
LEAST_LOOKS = 50
"""Looks that are taken however long they last: init may have waited for the processor."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A pair of hard limits that tells a kernel and its descendants from everybody else."""

    locks: int
    resident: int

    @classmethod
    def fresh(cls) -> "Mark":
        """Return a mark that nobody has.  Raises :class:`StartupFailed` where this process has too little to give."""
        most_locks, most_resident = (min(limit, MOST) for limit in _limits_of(0))
        number = 1 + secrets.randbelow(SPREAD - 1)
        mark = cls(most_locks - number, most_resident - SPREAD + number)
        if min(mark.locks, mark.resident) <= 0:
            raise StartupFailed("the limits on file locks and resident memory are too low to mark processes")
        return mark

    def is_from(self, locks: int, resident: int) -> bool:
        """Tell whether a process with these hard limits may have made this mark: whoever lowers more makes none."""
        number = min(locks, MOST) - self.locks
        return 0 < number < SPREAD and self.resident == min(resident, MOST) - SPREAD + number

    def put_on(self) -> None:
        """Mark this process, and what it will fork, for good.  Raises ``OSError`` or ``ValueError``."""
        resource.setrlimit(RLIMIT_LOCKS, (self.locks, self.locks))
        resource.setrlimit(RLIMIT_RSS, (self.resident, self.resident))

    def is_on(self, pid: int) -> bool:
        """Tell whether ``pid`` carries this mark.  Raises ``OSError`` where it is gone, or somebody else's.

        A process that has lowered its limits further may carry several; among processes that are not all
        the sandbox's it then carries none.
        """
        locks, resident = _limits_of(pid)
        if os.getpid() != 1:
            return (locks, resident) == (self.locks, self.resident)
        return locks <= self.locks and resident <= self.resident

    def strike(self, pid: int) -> bool:
        """Kill ``pid`` if it carries this mark; return whether it did, or ended meanwhile.

        The descriptor is there before the look: should the number be given to another process, nobody is hit.
        """
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            found = self.is_on(pid)
            if found:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return os.getpid() == 1  # in a sandbox all are ours: one that is not must not pass for gone
        finally:
            os.close(fd)
        return found


class Sweep:
    """Kills whatever carries a mark until nothing does, then calls ``done``.

    Where that does not come to an end the loop is stopped, and with it the sandbox.
    """

    def __init__(self, loop: Loop, mark: Mark, done: Callable[[], None]) -> None:
        self._loop = loop
        self._mark = mark
        self._done = done
        self._pause = FIRST_PAUSE
        self._looks = 0
        self._deadline = time.monotonic() + PATIENCE

    def look(self) -> None:
        """Kill what is there; come back until there is nothing."""
        if self._is_clean():
            self._done()
            return
        self._looks += 1
        if self._looks > LEAST_LOOKS and time.monotonic() > self._deadline:
            self._loop.stop()
            return
        self._loop.later(self._pause, self.look)
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE)

    def _is_clean(self) -> bool:
        """Look twice: a child that gets a number below those already looked at is seen by the second look.

        It would take a turn of all numbers between the two to hide again.
        """
        return not strike_all(self._mark) and not strike_all(self._mark)


def strike_all(mark: Mark) -> bool:
    """Kill every process that carries ``mark``; return whether there was one, zombies included."""
    own = os.getpid()
    found = False
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != own:
            found = mark.strike(int(name)) or found
    return found


def _limits_of(pid: int) -> tuple[int, int]:
    """Return the hard limits of a process (0: this one) on file locks and on resident memory."""
    return _finite(resource.prlimit(pid, RLIMIT_LOCKS)[1]), _finite(resource.prlimit(pid, RLIMIT_RSS)[1])


def _finite(limit: int) -> int:
    return 1 << 64 if limit == resource.RLIM_INFINITY else limit
