"""Forks made ahead: processes that wait to be told which sandbox to become.

Entering a control group waits for a grace period of the kernel, 8 to 12 ms at 250 Hz, unless another
process did so within the last 10 ms.  A fork that has done this, has its namespaces and has forked its first
kernel, can become any sandbox of its template: nothing that a request decides (limits, disk, environment) has
been decided, and nothing of anybody has run.
"""

import asyncio
import os
import secrets
import socket
from collections import deque
from dataclasses import dataclass, replace

from cellfork.guest.sandbox import WITH_DOOR, WITHOUT_DOOR
from cellfork.model.errors import CellforkError
from cellfork.runtimes.base import Usage
from cellfork.runtimes.freezing import Freezer
from cellfork.runtimes.guest import Meter, ProcessGuest
from cellfork.runtimes.namespaces import layout, readings
from cellfork.runtimes.namespaces.cgroups import Cgroups, Group, remove_when_empty
from cellfork.runtimes.state import StateDirectory
from cellfork.runtimes.zygote import Zygote

NAME = "namespaces"
REFILL_DELAY = 0.02
"""Seconds after which what was taken is replaced: whoever took it shall have the processor first."""


class GroupMeter(Meter):
    """Measures and kills through the sandbox's control groups."""

    def __init__(self, group: Group, name: str = "", state: StateDirectory | None = None) -> None:
        self._group = group
        self._name = name
        self._state = state
        self._freezer: Freezer | None = None

    def usage(self) -> Usage:
        """Measure now."""
        return self._group.usage()

    def measure(self, pid: int) -> Usage:
        """Measure everything; the disk is looked at through the eyes of init."""
        used, total = readings.disk(pid, layout.DISK)
        return replace(self._group.usage(), cache=self._group.cache(), disk=used, disk_total=total)

    def reset_peak(self) -> None:
        """Let the peak start again."""
        self._group.reset_peak()

    def kill(self) -> bool:
        """Kill every process at once, those that are held still as well."""
        killed = self._group.kill()
        if self._freezer is not None:
            self._freezer.let_die()
        return killed

    @property
    def freezer(self) -> Freezer:
        """What holds the processes still; looked for when it is needed first."""
        if self._freezer is None:
            self._freezer = self._group.freezer()
        return self._freezer

    async def release(self) -> None:
        """Remove the groups, and the name of its door."""
        if self._state is not None:
            self._state.forget("forks", self._name)
        await remove_when_empty(self._group)


@dataclass(frozen=True, slots=True)
class Fork:
    """A process that waits to become a sandbox, and its control group, which has no limits yet.

    ``door`` says that it has one, under ``name``: it is to outlive its host.
    """

    guest: ProcessGuest
    group: Group
    zygote: Zygote
    name: str
    door: bool = False


class Prefork:
    """Keeps ``size`` forks of one zygote ready."""

    def __init__(
        self, zygote: Zygote, cgroups: Cgroups, size: int, state: StateDirectory | None = None
    ) -> None:
        self.zygote = zygote
        self._cgroups = cgroups
        self._size = size
        self._state = state
        self._ready: deque[Fork] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._refill_soon()

    def take(self) -> Fork:
        """Return a fork that waits, or make one now.  Raises as making one does."""
        fork = self._first_alive() or make_fork(self.zygote, self._cgroups, self._state)
        self._refill_soon()
        return fork

    async def aclose(self) -> None:
        """End what was not taken."""
        self._size = 0
        if self._timer is not None:
            self._timer.cancel()
        ready, self._ready = self._ready, deque()
        await asyncio.gather(*(fork.guest.kill("owner") for fork in ready))

    def _first_alive(self) -> Fork | None:
        while self._ready:
            fork = self._ready.popleft()
            if fork.guest.alive:
                return fork
        return None

    def _refill_soon(self) -> None:
        if self._timer is None and self._size:
            self._timer = asyncio.get_running_loop().call_later(REFILL_DELAY, self._refill)

    def _refill(self) -> None:
        self._timer = None
        try:
            while len(self._ready) < self._size and self.zygote.alive:
                self._ready.append(make_fork(self.zygote, self._cgroups, self._state))
        except (CellforkError, OSError):
            return  # whoever asks for a sandbox next will be told


def make_fork(zygote: Zygote, cgroups: Cgroups, state: StateDirectory | None = None) -> Fork:
    """Ask for a fork, and make its control groups while the zygote is at it; with ``state`` it gets a door there."""
    name = secrets.token_hex(8)
    ours, theirs = socket.socketpair()
    with theirs:
        child = zygote.fork(name, [theirs.fileno()])
    group = None
    try:
        group = cgroups.create(name)
        _hand_over(group, ours, state.bind("forks", name) if state is not None else None)
    except BaseException:
        ours.close()
        child.forked.cancel()  # so that its pidfd, which is still to come, is closed
        if group is not None:
            group.remove()
        if state is not None:
            state.forget("forks", name)
        raise
    guest = ProcessGuest(ours, child, GroupMeter(group, name, state), NAME)
    return Fork(guest, group, zygote, name, door=state is not None)


def _hand_over(group: Group, connection: socket.socket, door: socket.socket | None) -> None:
    fds: list[int] = []
    try:
        fds += group.open_procs()
        if door is None:
            socket.send_fds(connection, [WITHOUT_DOOR], fds)
        else:
            socket.send_fds(connection, [WITH_DOOR], [door.fileno(), *fds])
    except BrokenPipeError:
        return  # the zygote refuses to fork; whoever waits for the fork is about to hear why
    finally:
        for fd in fds:
            os.close(fd)
        if door is not None:
            door.close()
