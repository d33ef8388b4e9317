"""Terminals: a shell that lives on while its clients come and go, and what it wrote last for those that come back."""

import asyncio
import contextlib
import signal
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from cellfork.dialects.opensandbox.execd import schema
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.environment import environment
from cellfork.dialects.opensandbox.execd.errors import CONTEXT_NOT_FOUND, RUNTIME_ERROR, Refused
from cellfork.dialects.opensandbox.execd.paths import directory
from cellfork.engine.execs import Exec
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.values import ExecOutput
from cellfork.model.errors import CellforkError, Conflict
from cellfork.model.ids import new_id
from cellfork.model.limits import MiB
from cellfork.model.specs import HOME, ExecSpec, PtySize

MOST: Final = 100
"""Terminals that a sandbox may have."""
KEPT: Final = 1 * MiB - 9
"""Bytes of output that are kept for a client that comes back: with its head it is a message that every client takes."""
SHELL: Final = ("/bin/bash", "--norc", "--noprofile")
SIGNALS: Final = {item.name: int(item) for item in signal.Signals}
Mode = Literal["pty", "pipe"]


class Tail:
    """The end of an endless stream: at most :data:`KEPT` bytes, and where in the stream they are."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._data = bytearray()
        self.end = 0
        """How many bytes the stream has had."""

    def add(self, data: bytes) -> None:
        """Take what follows."""
        self._data += data
        self.end += len(data)
        if len(self._data) > 2 * self._kept:
            del self._data[: -self._kept]

    def since(self, offset: int) -> tuple[int, bytes]:
        """Return what is kept from ``offset`` on, and where that begins."""
        first = self.end - min(len(self._data), self._kept)
        start = min(max(offset, first), self.end)
        return start, bytes(self._data[len(self._data) - (self.end - start) :])


@dataclass(frozen=True, slots=True)
class Replay:
    """What a client gets of the time before it came: the bytes from ``offset`` of the stream on, to piece ``sequence``."""

    offset: int
    data: bytes
    sequence: int


class Terminal:
    """One terminal.  Its shell is started by its first client, and again by one that comes after the shell's end."""

    def __init__(self, sandbox: Sandbox, cwd: str, command: str | None) -> None:
        self.id = new_id()
        self.tail = Tail()
        self.mode: Mode = "pty"
        self.exec: Exec | None = None
        self.sequence = 0
        """The number of the last piece of the shell's output that is in the tail."""
        self.evict: Callable[[], None] | None = None
        """Ends the connection of the client that has the terminal now."""
        self.closed = False
        self._sandbox = sandbox
        self._cwd = cwd
        self._argv = (*SHELL, "-c", command) if command else SHELL
        self._starting = asyncio.Lock()

    @property
    def running(self) -> bool:
        """Whether the shell runs."""
        return self.exec is not None and not self.exec.ended

    async def start(self, mode: Mode) -> Exec:
        """Have the shell running; return it.  Raises what starting a command raises."""
        async with self._starting:
            if self.closed:
                raise Conflict(f"the terminal {self.id} was removed")
            if self.exec is not None and not self.exec.ended:
                return self.exec
            if self.exec is not None:
                self.catch_up(self.exec)
            size = PtySize() if mode == "pty" else None
            envs = await environment(self._sandbox)
            spec = ExecSpec(self._argv, self._cwd, envs, stdin=True, pty=size)
            exec_ = await self._sandbox.execs.create(spec)
            if self.closed:  # meanwhile
                await exec_.end()
                raise Conflict(f"the terminal {self.id} was removed")
            self.exec, self.mode, self.sequence = exec_, mode, 0
            self._sandbox.in_background(self._keep(exec_))
            return exec_

    async def close(self) -> None:
        """End the shell, and the connection of whoever has the terminal."""
        self.closed = True
        if self.evict is not None:
            self.evict()
        if self.exec is not None:
            await self.exec.end()

    def replay(self, since: int) -> Replay:
        """Return what is kept of all that was written until now, from byte ``since`` on."""
        if self.exec is not None:
            self.catch_up(self.exec)
        offset, data = self.tail.since(since)
        return Replay(offset, data, self.sequence)

    def catch_up(self, exec_: Exec) -> None:
        """Have everything in the tail that the shell has written."""
        if exec_ is self.exec:
            for item in exec_.log.since(self.sequence):
                self._take(item)

    def _take(self, item: ExecOutput) -> None:
        self.sequence = item.sequence
        self.tail.add(item.data)

    async def _keep(self, exec_: Exec) -> None:
        """Keep the tail of what the shell writes, whether anybody listens or not."""
        with contextlib.suppress(CellforkError):
            while await exec_.log.batch(self.sequence):
                self.catch_up(exec_)
                if exec_ is not self.exec:
                    return


class Terminals:
    """The terminals of every sandbox, by id."""

    def __init__(self) -> None:
        self._tables: weakref.WeakKeyDictionary[Sandbox, dict[str, Terminal]] = weakref.WeakKeyDictionary()

    def routes(self) -> Routes:
        """Return what is served, but for the WebSocket."""
        return (
            Route("POST", "/pty", self.create),
            Route("GET", "/pty/{id}", self.status),
            Route("DELETE", "/pty/{id}", self.remove),
        )

    async def create(self, call: Call) -> None:
        """Make a terminal; its shell is started by its first client."""
        body = await call.body(schema.CreatePty)
        cwd = await directory(call.sandbox, body.cwd) if body.cwd else HOME
        table = self._tables.setdefault(call.sandbox, {})
        if len(table) >= MOST:
            raise Refused(429, RUNTIME_ERROR, f"a sandbox may have {MOST} terminals")
        terminal = Terminal(call.sandbox, cwd, body.command)
        table[terminal.id] = terminal
        await call.answer({"session_id": terminal.id}, 201)

    async def status(self, call: Call) -> None:
        """Tell whether the shell runs, and how much it has written."""
        terminal = self.get(call.sandbox, call.parts["id"])
        if terminal.exec is not None:
            terminal.catch_up(terminal.exec)
        offset = terminal.tail.end
        await call.answer({"session_id": terminal.id, "running": terminal.running, "output_offset": offset})

    async def remove(self, call: Call) -> None:
        """End a terminal with its shell."""
        terminal = self.get(call.sandbox, call.parts["id"])
        self._tables[call.sandbox].pop(terminal.id, None)
        await terminal.close()
        await call.answer()

    def get(self, sandbox: Sandbox, id: str) -> Terminal:
        """Return a terminal.  Raises :class:`Refused` where there is none with this id."""
        terminal = self._tables.get(sandbox, {}).get(id)
        if terminal is None:
            raise Refused(404, CONTEXT_NOT_FOUND, f"pty session {id[:80]} not found")
        return terminal
