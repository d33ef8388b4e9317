"""The host's handle on a zygote process: start it, ask it for forks, end it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cellfork.model.errors import (
    CellforkError,
    IsolationUnavailable,
    Missing,
    ProtocolViolation,
    StartupFailed,
)
from cellfork.runtimes.interpreter import Interpreter
from cellfork.runtimes.waiting import until
from cellfork.runtimes.zygote_messages import Message, close_all, is_child, read_message
from cellfork.wire.descriptors import receive_descriptors
from cellfork.wire.messages import VERSION

MAX_MESSAGE = 1 << 20
START_SECONDS = 60.0
ADOPT_SECONDS = 5.0
EXIT_SECONDS = 5.0
ZYGOTE_LOST = -1
"""The status of a sandbox whose zygote ended first."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a zygote.

    ``argv`` gets the descriptors of the control socket and of the owner's pidfd appended; ``plan`` is sent
    first where there is a boot stage, then ``settings``.  A zygote that is to be kept when its owner ends gets ``door``,
    a bound socket (``guest/door.py``), in place of the pidfd, and a ``patience`` in its settings.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    plan: Message | None
    settings: Message
    door: socket.socket | None = None


class Process(Protocol):
    """What a zygote must be able to do with its process; :class:`subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None:
        """Tell whether it has ended, and reap it."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and reap it."""
        ...


@dataclass(slots=True)
class Child:
    """A fork of the zygote: a sandbox, or a process that waits to become one.

    ``claimed`` says that it belongs to somebody: a zygote lives as long as one of those.
    """

    forked: asyncio.Future[tuple[int, int]]
    exited: asyncio.Future[int]
    on_exit: Callable[[int], None] | None = None
    claimed: bool = False


class Zygote:
    """One zygote process.  All methods belong to the event loop in which it was launched."""

    def __init__(self, control: socket.socket, process: Process) -> None:
        self._control = control
        self._process = process
        self._pid = process.pid
        self._loop = asyncio.get_running_loop()
        self._children: dict[str, Child] = {}
        self._ready: asyncio.Future[Message] = self._loop.create_future()
        self._reaping: asyncio.Task[None] | None = None
        self._ends = asyncio.Event()
        self.forks = 0
        self.fit = True
        """Whether it may fork: it must have one thread, and says so itself where it has more."""
        self.last_end = 0.0
        """When the last sandbox ended that belonged to somebody, by the loop's clock."""
        self.interpreter: Interpreter | None = None
        """The Python that it runs, where that was asked."""
        self.report: Message = {}
        """What it said when it was ready: the version of Python, a digest of what it has imported."""
        self.name = ""
        """What its door is called, where it has one."""
        self.on_over: Callable[[], None] | None = None
        """Called once, when it is killed or was found dead."""
        self._inherited: int | None = None
        """How many sandboxes one that was another's has still to tell of."""
        self._loop.add_reader(control.fileno(), self._read)

    @classmethod
    async def launch(cls, launch: Launch) -> "Zygote":
        """Start a zygote and wait until it has imported its modules.

        Raises :class:`IsolationUnavailable` where a step of the isolation failed, :class:`StartupFailed`
        where the interpreter did.
        """
        control, process = _spawn(launch)
        zygote = cls(control, process)
        for message in (launch.plan, launch.settings):
            if message is not None:
                control.send(json.dumps(message).encode())
        try:
            await asyncio.wait_for(asyncio.shield(zygote._ready), START_SECONDS)
            if zygote.pid != process.pid:
                await until(lambda: process.poll() is not None, EXIT_SECONDS)  # the boot stage is done
        except BaseException:
            await zygote.aclose()
            raise
        return zygote

    @classmethod
    async def adopt(cls, control: socket.socket, process: Process) -> "Zygote":
        """Take a zygote whose host has ended; return when it has told which sandboxes there are.

        Raises :class:`StartupFailed` where it does not, :class:`ProtocolViolation` where it is of another version; it is
        killed then, and everything with it.
        """
        zygote = cls(control, process)
        zygote._inherited = 0
        try:
            await asyncio.wait_for(asyncio.shield(zygote._ready), ADOPT_SECONDS)
        except TimeoutError as error:
            await zygote.aclose()
            raise StartupFailed(f"the zygote did not answer within {ADOPT_SECONDS:g} s") from error
        except BaseException:
            await zygote.aclose()
            raise
        return zygote

    @property
    def children(self) -> Mapping[str, Child]:
        """What was forked from it and has not ended, by name."""
        return self._children

    def leave(self) -> None:
        """Let it go on without this process; it waits for another one.  Only for one that has a door."""
        if self.alive:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._control.fileno() >= 0

    @property
    def pid(self) -> int:
        """Its process id on the host."""
        return self._pid

    @property
    def in_use(self) -> bool:
        """Whether a sandbox of it belongs to somebody."""
        return any(child.claimed for child in self._children.values())

    async def wait_unused(self) -> None:
        """Wait until no sandbox of it belongs to anybody."""
        while self.in_use:
            self._ends.clear()
            await self._ends.wait()

    def fork(self, name: str, fds: Sequence[int]) -> Child:
        """Ask for a fork that waits to be told what to become; the answer comes through the child's futures.

        Raises :class:`StartupFailed` where the zygote is gone or does not keep up.
        """
        child = Child(self._loop.create_future(), self._loop.create_future())
        try:
            socket.send_fds(self._control, [json.dumps({"op": "fork", "sandbox": name}).encode()], fds)
        except OSError as error:
            raise StartupFailed(f"the zygote does not take requests: {error}") from error
        self._children[name] = child
        self.forks += 1
        return child

    async def aclose(self) -> None:
        """Kill the zygote, and with it every sandbox in its pid namespace; wait until it is gone."""
        if self.alive:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
        await asyncio.shield(self._end())
        self._fail(StartupFailed("the zygote was ended"))

    def _end(self) -> "asyncio.Task[None]":
        """Kill and reap it.  Once: when it is reaped, its pid may be another's."""
        if self._reaping is None:
            self._process.kill()
            if self._pid != self._process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)
            self._reaping = self._loop.create_task(self._reap())
            if self.on_over is not None:
                self.on_over()
        return self._reaping

    async def _reap(self) -> None:
        """Wait for the boot stage and the zygote: both are children of this process."""
        if await until(lambda: self._process.poll() is not None, EXIT_SECONDS):
            self._process.wait(0)
        if self._pid != self._process.pid:
            await until(lambda: _has_ended(self._pid), EXIT_SECONDS)

    def _read(self) -> None:
        try:
            data, fds = receive_descriptors(self._control, MAX_MESSAGE, 1)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionError:
            return  # it ended with something unread; what it said last is still to be read, then the end
        if not data:
            self._let_go(StartupFailed("the zygote ended unexpectedly"))
            return
        try:
            self._handle(read_message(data), fds)
        except ProtocolViolation as violation:
            close_all(fds)
            self._let_go(violation)

    def _let_go(self, error: CellforkError) -> None:
        """End the zygote; whoever waits for something of it gets ``error``."""
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._end()
        self._fail(error)

    def _handle(self, message: Message, fds: Sequence[int]) -> None:
        """Take a message.  Raises :class:`ProtocolViolation` for one that does not belong here."""
        op = message["op"]
        if fds and op != "forked":
            raise ProtocolViolation(f"a descriptor came with the zygote's {op!r}")
        match op:
            case "booted":
                self._booted(message["pid"])
            case "ready":
                self._process.poll()  # reap the boot stage, which ended long ago
                if self._ready.done():
                    raise ProtocolViolation("the zygote is ready for the second time")
                self.report = message
                self._ready.set_result(message)
            case "adopted":
                self._adopted(message)
            case "failed":
                self._fail(_failure(message))
            case "forked":
                self._forked(message, fds)
            case "refused":
                child = self._children.pop(message["sandbox"], None)
                if child is None:
                    raise ProtocolViolation("the zygote refuses what nobody asked for")
                self.fit = self.fit and message["fit"]
                _fail(child.forked, StartupFailed(message["message"]))
                self._ends.set()
            case "exited":
                self._exited(message)

    def _booted(self, pid: int) -> None:
        """Take the pid of the zygote proper, once: it will be killed one day, so it has to be a child of ours."""
        if self._ready.done() or self._pid != self._process.pid or not is_child(pid):
            raise ProtocolViolation("the zygote names a process that is not its own")
        self._pid = pid

    def _adopted(self, message: Message) -> None:
        """Take what a zygote that was another's says of itself, once; its sandboxes follow."""
        if self._inherited is None or self._ready.done() or self.report:
            raise ProtocolViolation("the zygote speaks as if it had been another's")
        if message["version"] != VERSION or message["forks"] < 0:
            raise ProtocolViolation(f"the zygote is of another version ({message['version']})")
        self.report, self.fit, self._inherited = message, message["fit"], message["forks"]
        self._tell_inherited()

    def _tell_inherited(self) -> None:
        if not self._inherited and not self._ready.done():
            self._ready.set_result(self.report)

    def _inherit(self, name: str) -> Child | None:
        """Return the handle on a sandbox that was there before; ``None`` where no other is to come."""
        if not self._inherited or name in self._children:
            return None
        self._inherited -= 1
        child = Child(self._loop.create_future(), self._loop.create_future())
        self._children[name] = child
        return child

    def _forked(self, message: Message, fds: Sequence[int]) -> None:
        child = self._inherit(message["sandbox"]) or self._children.get(message["sandbox"])
        if child is None:
            raise ProtocolViolation("the zygote forked what nobody asked for")
        try:
            result = _host_pid(fds[0]), fds[0]
        except (IndexError, OSError):
            _fail(child.forked, StartupFailed("this process has no descriptor left for a sandbox"))
        if child.forked.done():
            close_all(fds)
        else:
            child.forked.set_result(result)
        if self._inherited is not None:
            self._tell_inherited()

    def _exited(self, message: Message) -> None:
        child = self._children.pop(message["sandbox"], None)
        if child is None:
            return
        _fail(child.forked, StartupFailed("the zygote lost the fork"))
        if not child.exited.done():
            child.exited.set_result(message["status"])
        if child.on_exit:
            child.on_exit(message["status"])
        if child.claimed:
            self.last_end = self._loop.time()
            self._ends.set()

    def _fail(self, error: Exception) -> None:
        _fail(self._ready, error)
        children, self._children = self._children, {}
        for child in children.values():
            _fail(child.forked, error)
            if not child.exited.done():
                child.exited.set_result(ZYGOTE_LOST)
            if child.on_exit:
                child.on_exit(ZYGOTE_LOST)
        self._ends.set()


def _spawn(launch: Launch) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    try:
        owner = os.pidfd_open(os.getpid()) if launch.door is None else os.dup(launch.door.fileno())
    except OSError as error:
        raise _lacking("pidfd", f"pidfd_open: {error}") from error
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError:
        os.close(owner)
        raise
    try:
        process = subprocess.Popen(
            [*launch.argv, str(theirs.fileno()), str(owner)],
            env=dict(launch.env),
            pass_fds=(theirs.fileno(), owner),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(owner)
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE)
    return ours, process


def _host_pid(pidfd: int) -> int:
    """Return the pid behind ``pidfd`` as this process sees it (the zygote knows it by another number)."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as info:
        for line in info:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    raise ProtocolViolation("the descriptor that came from the zygote is no pidfd")


def _failure(message: Message) -> Exception:
    text = f"{message['step']}: {message['message']}"
    if message["errno"] is None:
        return StartupFailed(f"the zygote did not start: {text}")
    return _lacking(message["step"], message["message"])


def _lacking(step: str, why: str) -> IsolationUnavailable:
    missing = Missing(step, why, "run 'cellfork doctor' to see what this host allows")
    return IsolationUnavailable(f"the isolation could not be built ({step}: {why})", (missing,))


def _has_ended(pid: int) -> bool:
    """Tell whether a child has ended, and reap it."""
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # mark as looked at: not everybody waits
