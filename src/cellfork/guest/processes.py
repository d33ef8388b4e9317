"""Execs: commands beside the kernels, with pipes or with a terminal.

A command is started with ``posix_spawn``: no copy of init's memory, no Python code between fork and exec,
signals at their defaults, a session of its own.  Init reaps; :meth:`Processes.exited` is told.
"""

import errno
import fcntl
import os
import signal
import struct
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cellfork.guest import oom
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop, Timer
from cellfork.guest.paths import display, encode, error_of, os_errors, resolve
from cellfork.guest.services import Handler, Result, flag, number, refuse, reply
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PathNotFound,
    PathNotPermitted,
    Unsupported,
)
from cellfork.model.specs import HOME, ROOT_HOME

PIECE = 64 * 1024
"""Bytes read from a stream at once; each piece is sent as it is."""
MAX_PIPE = 1024 * 1024
"""What a pipe of an unprivileged user can hold at most (``fs.pipe-max-size``)."""
MAX_QUEUED = 8 * 1024 * 1024
"""Bytes of stdin that wait for one command, beyond what the request at the head brought."""
GRACE = 0.5
"""Seconds for which output is still forwarded after the exit, when somebody else keeps a stream open."""
MAX_TOLD, UNHEARD = 64, 5.0
"""How many ends are remembered, and for how many seconds before the end of a host it may not have heard of one."""
PAUSE = 0.05
"""Seconds between looks at a terminal that nobody has open."""
OWN_USER = frozenset({"", "user", "1000"})
ROOT = frozenset({"root", "0"})
"""Runs as the sandbox's one user as well, without any right more: what programs go by is root's home and name."""
VOLUNTEER_PAUSE, VOLUNTEER_TRIES = 0.01, 100
TERMINAL = "xterm-256color"
MAX_SIZE = 2**16 - 1
SIGNALS = frozenset(signal.valid_signals())
RESET = SIGNALS - {signal.SIGKILL, signal.SIGSTOP}


class Processes:
    """Starts commands, carries their streams, tells their end.

    ``base_env`` is the environment of every command, over which the request's own is laid; relative working
    directories start at its ``HOME``.  Init's descriptors 0–2 must be open.
    """

    def __init__(self, loop: Loop, link: HostLink, *, base_env: Mapping[str, str]) -> None:
        self._loop = loop
        self._link = link
        self._base_env = dict(base_env)
        self._home = os.fsencode(base_env.get("HOME", "/"))
        self._processes: dict[int, _Process] = {}
        self._by_pid: dict[int, _Process] = {}
        self._told: deque[tuple[float, Result]] = deque(maxlen=MAX_TOLD)
        self._highest = -1

    @property
    def busy(self) -> bool:
        """Whether any command runs."""
        return bool(self._by_pid)

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by the names of their operations."""
        return {
            "process.start": self._start,
            "process.stdin": self._stdin,
            "process.signal": self._signal,
            "process.resize": self._resize,
        }

    def exited(self, pid: int, status: int) -> bool:
        """Take note that ``pid`` was reaped with a wait status; return whether it was a command of ours."""
        process = self._by_pid.pop(pid, None)
        if process is None:
            return False
        process.exited(status)
        return True

    @property
    def pids(self) -> set[int]:
        """The pids of the commands that were not reaped yet."""
        return set(self._by_pid)

    @property
    def highest(self) -> int:
        """The highest number that a command was given, −1 where there was none."""
        return self._highest

    def report(self) -> list[Result]:
        """Return what another host has to know: the commands that are there, as they were asked for, with number and pid.

        Those come first whose end was told so lately that the host before may not have heard of it; they have a ``code``.
        """
        since = time.monotonic() - UNHEARD
        ended = [told for at, told in self._told if at >= since]
        return ended + [process.describe() for process in self._processes.values()]

    def stop_all(self) -> None:
        """Kill every command that was not reaped yet, with its process group."""
        for process in self._by_pid.values():
            process.signal(signal.SIGKILL)

    def _start(self, header: dict[str, Any], body: bytes) -> Result:
        process_number = number(header, "process")
        if process_number in self._processes:
            raise Conflict(f"process {process_number} exists already")
        command = _Command.of(header, self._base_env, self._home)
        pid, streams = command.start()
        request = {name: value for name, value in header.items() if name not in {"op", "id"}}
        process = _Process(process_number, pid, streams, self._loop, self._link, self._ended, request)
        self._processes[process_number] = self._by_pid[pid] = process
        self._highest = max(self._highest, process_number)
        self._volunteer(pid)
        return {"pid": pid}

    def _volunteer(self, pid: int, tries: int = VOLUNTEER_TRIES) -> None:
        """Let a command be ended before kernels and init when memory runs out.

        For a moment after its start it is init's memory that it is judged by, which nobody may touch; so try again.
        """
        if pid not in self._by_pid:
            return
        try:
            oom.volunteer_family(oom.COMMAND, pid)
        except PermissionError:
            if tries:
                self._loop.later(VOLUNTEER_PAUSE, partial(self._volunteer, pid, tries - 1))
        except OSError:
            return  # it has ended

    def _stdin(self, header: dict[str, Any], body: bytes) -> None:
        self._process(header).feed(header["id"], body, eof=flag(header, "eof"))

    def _signal(self, header: dict[str, Any], body: bytes) -> Result:
        chosen = number(header, "signal", 1, signal.NSIG - 1)
        if chosen not in SIGNALS:
            raise InvalidRequest(f"there is no signal {chosen}")
        self._process(header).signal(chosen)
        return {}

    def _resize(self, header: dict[str, Any], body: bytes) -> Result:
        size = (number(header, "rows", 1, MAX_SIZE), number(header, "cols", 1, MAX_SIZE))
        self._process(header).resize(*size)
        return {}

    def _process(self, header: dict[str, Any]) -> "_Process":
        process_number = number(header, "process")
        process = self._processes.get(process_number)
        if process is not None:
            return process
        if process_number <= self._highest:
            raise Conflict(f"process {process_number} has ended")
        raise NotFound(f"there is no process {process_number}")

    def _ended(self, process: "_Process", end: Result) -> None:
        del self._processes[process.number]
        self._told.append((time.monotonic(), {**process.describe(), "envs": {}, **end}))


@dataclass(slots=True)
class _Streams:
    """Our ends of a command's streams: descriptor → name for output, and where its input goes."""

    outputs: dict[int, str]
    input: int | None = None
    terminal: int | None = None


@dataclass(frozen=True, slots=True)
class _Command:
    """A checked request to start a command."""

    argv: list[bytes]
    cwd: bytes
    env: dict[bytes, bytes]
    stdin: bool
    size: tuple[int, int] | None

    @classmethod
    def of(cls, header: dict[str, Any], base_env: Mapping[str, str], home: bytes) -> "_Command":
        """Check the fields of ``process.start``."""
        user = header.get("user", "")
        if user not in OWN_USER | ROOT:
            raise Unsupported(
                "everything runs as 'user', or as 'root' with the same rights; leave the user out"
            )
        size = _terminal_size(header.get("pty"))
        env = {os.fsencode(name): os.fsencode(value) for name, value in base_env.items()}
        if user in ROOT:
            home = env[b"HOME"] = os.fsencode(ROOT_HOME) if home == os.fsencode(HOME) else home
            env |= {b"USER": b"root", b"LOGNAME": b"root"}
        if size is not None:
            env[b"TERM"] = TERMINAL.encode("ascii")
        return cls(
            argv=_arguments(header.get("argv")),
            cwd=resolve(header.get("cwd") or "~", home),
            env=env | _environment(header.get("envs", {})),
            stdin=flag(header, "stdin"),
            size=size,
        )

    def start(self) -> tuple[int, _Streams]:
        """Start the command; return its pid and our ends of its streams.

        Raises :class:`PathNotFound`, :class:`NotADirectory` or :class:`PathNotPermitted` for the working
        directory and the program, :class:`LimitExceeded` where a limit is in the way.
        """
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                actions, streams = self._terminal(ours, theirs) if self.size else self._pipes(ours, theirs)
            except OSError as error:
                raise error_of(error, b"the command's streams") from error
            pid = self._spawn(actions)
            ours.pop_all()
        for fd in (*streams.outputs, *([] if streams.input is None else [streams.input])):
            os.set_blocking(fd, False)
        return pid, streams

    def _pipes(self, ours: ExitStack, theirs: ExitStack) -> tuple[list[tuple[Any, ...]], _Streams]:
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
        streams = _Streams(outputs={})
        if self.stdin:
            end, streams.input = os.pipe()
            theirs.callback(os.close, end)
            ours.callback(os.close, streams.input)
            actions = [(os.POSIX_SPAWN_DUP2, end, 0)]
        for fd, name in ((1, "stdout"), (2, "stderr")):
            output, end = os.pipe()
            theirs.callback(os.close, end)
            ours.callback(os.close, output)
            streams.outputs[output] = name
            actions.append((os.POSIX_SPAWN_DUP2, end, fd))
        return actions, streams

    def _terminal(self, ours: ExitStack, theirs: ExitStack) -> tuple[list[tuple[Any, ...]], _Streams]:
        master, slave = os.openpty()
        ours.callback(os.close, master)
        theirs.callback(os.close, slave)
        _set_size(master, *(self.size or (24, 80)))
        # The leader of a new session gets the first terminal that it opens as its controlling terminal.
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]
        return actions, _Streams(outputs={master: "pty"}, input=master, terminal=master)

    def _spawn(self, actions: list[tuple[Any, ...]]) -> int:
        with _inside(self.cwd):
            program = _find(self.argv[0], self.env.get(b"PATH", os.defpath.encode("ascii")))
            try:
                return os.posix_spawn(
                    program,
                    self.argv,
                    self.env,
                    file_actions=[*actions, *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable())],
                    setsid=True,
                    setsigmask=(),
                    setsigdef=RESET,
                )
            except OSError as error:
                raise _spawn_error(error, program) from error


@dataclass(slots=True)
class _Input:
    """A request to write to stdin, as far as it is not done."""

    request: int
    rest: memoryview
    eof: bool


@dataclass(slots=True, eq=False)
class _Process:
    """A command from its start until ``process.exit`` was sent.

    The exit is sent when the command was reaped and its streams are at their end.  Where a child that it
    left behind keeps them open, they are forwarded for :data:`GRACE` seconds more, then emptied and closed.
    """

    number: int
    pid: int
    streams: _Streams
    loop: Loop
    link: HostLink
    ended: "Callable[[_Process, Result], None]"
    request: dict[str, Any]
    """What it was started with."""
    status: int | None = None
    deadline: Timer | None = None
    queue: deque[_Input] = field(default_factory=deque)
    queued: int = 0

    def __post_init__(self) -> None:
        for fd in self.streams.outputs:
            self.loop.watch(fd, partial(self._readable, fd))

    def describe(self) -> Result:
        """Return what it was started with, and its pid."""
        return {**self.request, "pid": self.pid}

    def exited(self, status: int) -> None:
        """The command was reaped.  What it wrote is in the pipes still."""
        self.status = status
        self._close_input()
        self._empty_outputs()
        if self.streams.outputs:
            self.deadline = self.loop.later(GRACE, self._give_up)
        else:
            self._finish()

    def signal(self, chosen: int) -> None:
        """Send a signal to the command's process group; :class:`Conflict` where it was reaped."""
        if self.status is not None:
            raise Conflict(f"process {self.number} has ended")
        try:
            os.killpg(self.pid, chosen)
        except ProcessLookupError:  # not reaped, so the pid is its own still
            os.kill(self.pid, chosen)

    def resize(self, rows: int, cols: int) -> None:
        """Set the terminal's size; the kernel sends SIGWINCH."""
        if self.streams.terminal is None:
            raise Conflict(f"process {self.number} has no terminal" + self._state())
        _set_size(self.streams.terminal, rows, cols)

    def feed(self, request: int, body: bytes, *, eof: bool) -> None:
        """Write to stdin, then answer ``request``; with ``eof`` close it behind the bytes."""
        fd = self.streams.input
        if fd is None:
            raise Conflict(f"the stdin of process {self.number} is closed" + self._state())
        if self.queue and self.queued + len(body) > MAX_QUEUED:
            raise LimitExceeded(f"process {self.number} does not read its stdin: {self.queued} bytes wait")
        if eof and fd == self.streams.terminal:
            body += _end_of_file(fd)
        self.queue.append(_Input(request, memoryview(body), eof))
        self.queued += len(body)
        self.loop.watch_writable(fd, self._write)

    def _state(self) -> str:
        return ", it has ended" if self.status is not None else ""

    def _readable(self, fd: int) -> None:
        self._read(fd)

    def _read(self, fd: int) -> bool:
        """Forward one piece; return whether there may be more at once."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nobody has the terminal open
            if self.status is None:
                self._pause(fd)
                return False
            data = b""
        if data:
            name = self.streams.outputs[fd]
            self.link.send({"op": "process.output", "process": self.number, "stream": name}, data)
            return True
        self._close_output(fd)
        return False

    def _pause(self, fd: int) -> None:
        """Look at a terminal again later.

        A living command can still open it, and closing our end would send it SIGHUP: it may be one that has
        closed its streams and is about to end well.
        """
        self.loop.unwatch(fd)
        self.loop.later(PAUSE, partial(self._resume, fd))

    def _resume(self, fd: int) -> None:
        if fd in self.streams.outputs:
            self.loop.watch(fd, partial(self._readable, fd))

    def _empty_outputs(self) -> None:
        """Forward what the streams hold now.  Whoever writes on and on is not followed."""
        for fd in list(self.streams.outputs):
            for _ in range(MAX_PIPE // PIECE + 1):
                if not self._read(fd):
                    break

    def _write(self) -> None:
        fd = self.streams.input
        if fd is None:
            return
        first = self.queue[0]
        try:
            written = os.write(fd, first.rest[:PIECE])
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            self._close_input()
            return
        first.rest = first.rest[written:]
        self.queued -= written
        if not first.rest:
            self._written(fd)

    def _written(self, fd: int) -> None:
        done = self.queue.popleft()
        if not self.queue:
            self.loop.unwatch_writable(fd)
        reply(self.link, done.request, {})
        if done.eof and fd != self.streams.terminal:
            self._close_input()

    def _close_input(self) -> None:
        """Close stdin and refuse what waits for it."""
        fd, self.streams.input = self.streams.input, None
        if fd is not None:
            self.loop.unwatch_writable(fd)
            if fd not in self.streams.outputs:
                os.close(fd)
        waiting, self.queue, self.queued = self.queue, deque(), 0
        for item in waiting:
            refuse(
                self.link, item.request, Conflict(f"process {self.number} closed its stdin" + self._state())
            )

    def _close_output(self, fd: int) -> None:
        if fd == self.streams.terminal:
            self.streams.terminal = None
            self._close_input()
        self.loop.unwatch(fd)
        del self.streams.outputs[fd]
        os.close(fd)
        if self.deadline is not None and not self.streams.outputs:
            self._finish()

    def _give_up(self) -> None:
        self.deadline = None
        self._empty_outputs()
        for fd in list(self.streams.outputs):
            self._close_output(fd)
        self._finish()

    def _finish(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        code = os.waitstatus_to_exitcode(self.status or 0)
        signaled = -code if code < 0 else None
        end = {"code": code if signaled is None else 128 + signaled, "signal": signaled}
        self.link.send({"op": "process.exit", "process": self.number, **end})
        self.ended(self, end)


def _arguments(argv: object) -> list[bytes]:
    if not isinstance(argv, list) or not argv or not argv[0]:
        raise InvalidRequest("argv is a list of text, beginning with a command")
    return [encode(argument) for argument in argv]


def _environment(envs: object) -> dict[bytes, bytes]:
    if not isinstance(envs, dict):
        raise InvalidRequest("envs is an object of text")
    if any(not name or "=" in name for name in envs):
        raise InvalidRequest("the name of an environment variable is not empty and has no '='")
    return {encode(name): encode(value) for name, value in envs.items()}


def _terminal_size(pty: object) -> tuple[int, int] | None:
    if pty is None:
        return None
    if not isinstance(pty, list) or len(pty) != 2:
        raise InvalidRequest("pty is null or [rows, cols]")
    size = {"rows": pty[0], "cols": pty[1]}
    return number(size, "rows", 1, MAX_SIZE), number(size, "cols", 1, MAX_SIZE)


def _set_size(terminal: int, rows: int, cols: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def _end_of_file(terminal: int) -> bytes:
    """Return the character that ends the input of a terminal."""
    character = termios.tcgetattr(terminal)[6][termios.VEOF]
    return character if isinstance(character, bytes) else b"\x04"


@contextmanager
def _inside(cwd: bytes) -> Iterator[None]:
    """Have ``cwd`` as working directory for a while: ``posix_spawn`` cannot set the child's.

    Init has one thread and uses absolute paths only, so nobody else sees it.
    """
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os_errors(cwd):
            os.chdir(cwd)
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def _find(command: bytes, search: bytes) -> bytes:
    """Return the program that ``command`` names, as ``execvp`` would find it."""
    if b"/" in command:
        return command
    found = [os.path.join(directory or b".", command) for directory in search.split(b":")]
    programs = [path for path in found if os.path.isfile(path)]
    if not programs:
        raise PathNotFound(f"'{display(command)}': no such command in PATH ({display(search)})")
    runnable = next((path for path in programs if os.access(path, os.X_OK)), None)
    if runnable is None:
        raise PathNotPermitted(f"'{display(programs[0])}' is not executable")
    return runnable


def _inheritable() -> list[int]:
    """Return descriptors, other than 0–2, that would be passed on: Python's own are not, a library's may be."""
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _is_inheritable(fd)]


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the descriptor with which the directory was read
        return False


def _spawn_error(error: OSError, program: bytes) -> CellforkError:
    name = display(program)
    match error.errno:
        case errno.ENOENT if os.path.isfile(program):
            return PathNotFound(f"'{name}': the interpreter in its first line does not exist")
        case errno.ENOEXEC:
            return PathNotPermitted(f"'{name}' is not a program that can run here")
        case errno.E2BIG:
            return LimitExceeded(f"'{name}': arguments and environment are too long")
        case errno.EAGAIN:
            return LimitExceeded(f"'{name}': the sandbox's limit of processes is reached")
    return error_of(error, program)
