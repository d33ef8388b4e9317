"""Holding every process of a sandbox still: the kernel's freezer, in both versions.

Version 2 (``cgroup.freeze``) holds a group with all that is below it, in one step, and what is held can still be killed.
Version 1 (``freezer.state``) knows a group of its own, which a sandbox enters when it is held for the first time; what
is held there cannot even be killed before it is let go.

A sandbox's init can be left out, so that it does something with the files while nobody changes them.

Sources: Documentation/admin-guide/cgroup-v2.rst (Core Interface Files), cgroup-v1/freezer-subsystem.rst.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cellfork.model.errors import UnavailableError

HELD: Final = "held"
"""Name of the group, inside a sandbox's own, in which everything but init is held (version 2)."""
SECONDS = 5.0
"""How long a process may take to stand still: one that waits for a disk does so when it has what it waits for."""
FIRST_PAUSE, LONGEST_PAUSE = 0.0002, 0.02
MAX_ROUNDS = 1000


class UnifiedFreezer:
    """Version 2.  ``path`` is the sandbox's own group.  Implements :class:`cellfork.runtimes.freezing.Freezer`."""

    available = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = path / HELD

    @property
    def held(self) -> bool:
        """Whether anything is held at this moment."""
        return self._held.exists() or _read(self._path / "cgroup.freeze").startswith(b"1")

    async def freeze(self, but: int | None = None) -> None:
        """Hold everything; then, where one process is left out, all but that in a group of their own, and let that one go.

        All are held while they change groups, so none of them can have a child that is forgotten.
        """
        try:
            await self._hold(self._path)
            if but is None:
                self._bring_back()
            else:
                self._set_apart(but)
                _write(self._path / "cgroup.freeze", "0")
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._release()
            if isinstance(error, OSError):
                raise UnavailableError(f"the sandbox could not be held still: {error}") from error
            raise

    async def thaw(self) -> None:
        """Let everything go on, in the sandbox's own group again."""
        try:
            if self._held.exists():
                await self._hold(self._path)
            self._release()
        except FileNotFoundError:
            return  # the sandbox has ended
        except OSError as error:
            raise UnavailableError(f"the sandbox could not be let go: {error}") from error

    def let_die(self) -> None:
        """Do nothing: what is held here dies as anything else."""

    def _set_apart(self, but: int) -> None:
        with contextlib.suppress(FileExistsError):
            self._held.mkdir()
        _write(self._held / "cgroup.freeze", "1")
        _move(self._held, set(_members(self._path)) - {but})
        if set(_members(self._path)) - {but}:
            raise OSError(0, "a process did not change its group")

    def _bring_back(self) -> None:
        if self._held.exists():
            _move(self._path, _members(self._held))
            with contextlib.suppress(OSError):
                self._held.rmdir()

    def _release(self) -> None:
        self._bring_back()
        _write(self._path / "cgroup.freeze", "0")

    async def _hold(self, path: Path) -> None:
        _write(path / "cgroup.freeze", "1")
        await _until(lambda: b"frozen 1" in (path / "cgroup.events").read_bytes())


class OldFreezer:
    """Version 1.  ``path`` is a group in the freezer's tree that is made when it is needed; ``members`` tells the pids of the
    sandbox.  Implements :class:`cellfork.runtimes.freezing.Freezer`.
    """

    available = True

    def __init__(self, path: Path, members: Callable[[], list[int]]) -> None:
        self._path = path
        self._state = path / "freezer.state"
        self._all = members

    @property
    def held(self) -> bool:
        """Whether anything is held at this moment."""
        return _read(self._state).startswith(b"FR")

    async def freeze(self, but: int | None = None) -> None:
        """Move every process into the group, then hold that."""
        try:
            with contextlib.suppress(FileExistsError):
                self._path.mkdir()
            _write(self._state, "THAWED")
            await self._enter(but)
            _write(self._state, "FROZEN")
            await _until(lambda: self._state.read_bytes().startswith(b"FROZEN"))
        except BaseException as error:
            with contextlib.suppress(OSError):
                _write(self._state, "THAWED")
            if isinstance(error, OSError):
                raise UnavailableError(f"the sandbox could not be held still: {error}") from error
            raise

    async def thaw(self) -> None:
        """Let everything go on.  The processes stay in the group, which does nothing by itself."""
        with contextlib.suppress(FileNotFoundError):  # the sandbox has ended, or was never held
            _write(self._state, "THAWED")

    def let_die(self) -> None:
        """Kill what is held, then let go of it: it goes no further than to its end."""
        try:
            held = _members(self._path)
            if self._state.read_bytes().startswith(b"THAWED"):
                return
        except OSError:
            return
        for pid in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            _write(self._state, "THAWED")

    async def _enter(self, but: int | None) -> None:
        """Move all in; children of those that are in are born there, so that sooner or later nobody is left outside."""
        if but is not None and but in _members(self._path):
            _move(self._path.parent, [but])
        for _ in range(MAX_ROUNDS):
            outside = set(self._all()) - {but} - set(_members(self._path))
            if not outside:
                return
            _move(self._path, outside)
            await asyncio.sleep(0)
        raise UnavailableError(
            "the sandbox could not be held still: it makes processes faster than they can be caught"
        )


def thaw_abandoned(path: Path) -> None:
    """Let go of what an owner held who is gone: else it could not even end."""
    for name, word in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
        with contextlib.suppress(OSError):
            _write(path / name, word)


async def _until(stands: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + SECONDS, FIRST_PAUSE
    while not stands():
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the sandbox could not be held still within {SECONDS:g} s: a process waits for a device"
            )
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)


def _move(group: Path, pids: "set[int] | list[int]") -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            _write(group / "cgroup.procs", str(pid))


def _members(group: Path) -> list[int]:
    return [int(pid) for pid in (group / "cgroup.procs").read_bytes().split()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
