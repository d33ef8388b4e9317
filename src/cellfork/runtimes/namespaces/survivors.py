"""Sandboxes that have outlived their host: found again, looked at, taken over; everything else of that host is ended.

What is believed: the state directory, which only this user can enter; the kernel, which tells who listens on a socket and
what a pidfd stands for; a zygote.  What a sandbox's init says is believed of its own sandbox alone, after the look at it.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

from cellfork.model.errors import CellforkError, NotFound, PostureMismatch, StartupFailed
from cellfork.runtimes import plan
from cellfork.runtimes.adopted import AdoptedGuest, Stranger, peer_of
from cellfork.runtimes.base import Network
from cellfork.runtimes.interpreter import Interpreter
from cellfork.runtimes.kept import Kept
from cellfork.runtimes.namespaces import proofs, readings
from cellfork.runtimes.namespaces.cgroups import Cgroups, Group, remove_when_empty, start_time
from cellfork.runtimes.namespaces.ids import Slots
from cellfork.runtimes.namespaces.prefork import NAME, GroupMeter
from cellfork.runtimes.state import StateDirectory
from cellfork.runtimes.zygote import Child, Zygote

END_SECONDS = 5.0
"""How long the end of something that nobody adopted is waited for."""

Record = Mapping[str, Any]


class Survivors:
    """Takes over what a former server has left in ``state``."""

    def __init__(self, state: StateDirectory, cgroups: Cgroups, slots: Slots) -> None:
        self._state = state
        self._cgroups = cgroups
        self._slots = slots
        self._zygotes: dict[str, asyncio.Task[Zygote]] = {}
        self._adopted: set[str] = set()

    async def zygote(self, name: str) -> Zygote:
        """Return the zygote of this name, taken over with the first call.  Raises :class:`StartupFailed`."""
        if name not in self._zygotes:
            self._zygotes[name] = asyncio.create_task(self._adopt_zygote(name))
        try:
            return await asyncio.shield(self._zygotes[name])
        except (NotFound, OSError) as error:
            raise StartupFailed(f"its zygote is gone: {error}") from error

    async def sandbox(
        self, record: Record, network: Network | None, first: int
    ) -> tuple[AdoptedGuest, Kept, Zygote]:
        """Take a sandbox over, whose requests are numbered from ``first`` on; return what it has, and its zygote.

        Raises :class:`StartupFailed` where it is gone or does not answer, :class:`PostureMismatch` where it is not what it was
        when it was given out, :class:`ProtocolViolation`.  It is ended then.
        """
        name = str(record["fork"])
        zygote = await self.zygote(str(record["zygote"]))
        child = zygote.children.get(name)
        if child is None:
            raise StartupFailed("it has ended")
        self._adopted.add(name)
        group = self._cgroups.find(str(record["group"]))
        meter = GroupMeter(group, name, self._state)
        try:
            pid = await self._identify(child, record, group)
            stream = self._state.connect("forks", name)
        except (CellforkError, OSError) as error:
            await end_child(child, meter)
            raise StartupFailed(f"it cannot be reached: {error}") from error
        guest = AdoptedGuest(stream, child, meter, NAME)
        guest.claim()
        try:
            check_peer(stream, pid)
            look_again(pid, record)
            await self._take_over(guest, meter, pid, record, network, first)
        except BaseException:
            await guest.kill("owner", "it could not be adopted")
            raise
        return guest, guest.kept, zygote

    async def sweep(self) -> None:
        """End everything of the former server that was not taken over, and remove what it left behind."""
        for name in self._state.names("zygotes"):
            await self._sweep_zygote(name)
        for directory in self._cgroups.names():
            if directory.rpartition("-")[2] not in self._adopted:
                await _end_group(self._cgroups.find(directory))
        for name in self._state.names("forks"):
            if name not in self._adopted:
                self._state.forget("forks", name)

    # --------------------------------------------------------------------------------------- zygotes

    async def _adopt_zygote(self, name: str) -> Zygote:
        control = self._state.connect("zygotes", name)
        try:
            process = peer_of(control)
        except BaseException:
            control.close()
            raise
        zygote = await Zygote.adopt(control, process)
        zygote.name, zygote.on_over = name, partial(self._state.forget, "zygotes", name)
        note = self._state.read("zygotes", name)
        with contextlib.suppress(KeyError, TypeError):
            zygote.interpreter = Interpreter(
                **{**note["interpreter"], "site_packages": tuple(note["interpreter"]["site_packages"])}
            )
        if isinstance(note.get("slot"), int):
            self._slots.give(note["slot"], lambda: zygote.alive)
        zygote.fit = zygote.fit and zygote.interpreter is not None and note.get("code") == code_of_guest()
        return zygote

    async def _sweep_zygote(self, name: str) -> None:
        """End a zygote from which nothing was taken over, and the sandboxes of others that nobody wants."""
        try:
            zygote = await self.zygote(name)
        except CellforkError:
            await self._end_unresponsive(name)
            self._state.forget("zygotes", name)
            return
        for fork, child in [*zygote.children.items()]:
            if fork not in self._adopted:
                group = next((each for each in self._cgroups.names() if each.endswith(f"-{fork}")), "")
                await end_child(child, GroupMeter(self._cgroups.find(group), fork, self._state))
        if not zygote.in_use:
            await zygote.aclose()

    async def _end_unresponsive(self, name: str) -> None:
        """Kill a zygote that does not answer, and with it everything in its pid namespace."""
        with contextlib.suppress(CellforkError, OSError):
            with self._state.connect("zygotes", name) as control:
                process = peer_of(control)
            process.kill()
            await asyncio.to_thread(process.wait, END_SECONDS)

    # ------------------------------------------------------------------------------------- sandboxes

    async def _identify(self, child: Child, record: Record, group: Group) -> int:
        """Return the pid of a sandbox's init.  Raises :class:`StartupFailed` where it is not the one that was recorded."""
        pid, _pidfd = await child.forked
        if pid != record["pid"] or start_time(pid) != record["start"]:
            raise StartupFailed("it has ended, and another process has its number")
        if group.paths and pid not in group.processes():
            raise StartupFailed("it is not in its control group")
        return pid

    async def _take_over(
        self,
        guest: AdoptedGuest,
        meter: GroupMeter,
        pid: int,
        record: Record,
        network: Network | None,
        first: int,
    ) -> None:
        if network is not None:
            guest.expect_listener(network)
        if meter.freezer.held:  # paused, or being copied: init alone has to answer now
            await meter.freezer.freeze(pid)
        await guest.take_over(first)
        guest.info = {
            "pid": pid,
            "image": record.get("image", ""),
            "posture": record.get("posture", ""),
        }


def check_peer(stream: socket.socket, pid: int) -> None:
    """See that it is a sandbox's init which listens at its door.  Raises :class:`StartupFailed`."""
    peer = peer_of(stream)
    peer.wait(0)  # only to let go of it
    if peer.pid != pid:
        raise StartupFailed("somebody else listens in its place")


def look_again(pid: int, record: Record) -> None:
    """See that a sandbox has every lock that it had when it was given out.  Raises :class:`PostureMismatch`."""
    try:
        found = readings.fingerprint(readings.read_process(pid, mounts=True, descriptors=False))
    except (OSError, ValueError) as error:
        raise StartupFailed(f"it has ended: {error}") from error
    if found != record["fingerprint"]:
        raise PostureMismatch(
            ("what was seen of its locks before anything ran in it is not what is there now",)
        )


async def end_child(child: Child, meter: GroupMeter) -> None:
    """Kill a sandbox of an adopted zygote, wait for its end and give back what it had."""
    _pid, pidfd = await child.forked
    meter.kill()
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(child.exited), END_SECONDS)
    os.close(pidfd)
    await meter.release()


async def _end_group(group: Group) -> None:
    """Kill what is in a control group that belongs to nobody, and remove it."""
    if not group.kill():
        for pid in group.processes():
            process = _member(pid, group)
            if process is not None:
                process.kill()
                process.wait(0)
    await remove_when_empty(group, END_SECONDS)


def _member(pid: int, group: Group) -> Stranger | None:
    """Return a process that is in the group still once its descriptor is there: so it is not another one."""
    try:
        process = Stranger(pid, os.pidfd_open(pid))
    except ProcessLookupError:
        return None
    if pid in group.processes():
        return process
    process.wait(0)
    return None


def record_of(
    zygote: Zygote, name: str, pid: int, group: Group, inspected: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what :meth:`Survivors.sandbox` needs of a sandbox, as JSON."""
    return {
        "zygote": zygote.name,
        "fork": name,
        "pid": pid,
        "start": start_time(pid),
        "group": group.name,
        **inspected,
    }


def note_of(zygote: Zygote, slot: int) -> dict[str, Any]:
    """Return what is written beside the door of a zygote: its pid, its interpreter, its ids, the code that it runs."""
    python = asdict(zygote.interpreter) if zygote.interpreter is not None else None
    return {"pid": zygote.pid, "interpreter": python, "slot": slot, "code": code_of_guest()}


@cache
def code_of_guest() -> str:
    """Return a digest of cellfork's own code that sandboxes are made of: another one must not fork from an old zygote."""
    return proofs.fingerprint(Path(plan.package_directory()))
