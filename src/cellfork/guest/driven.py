"""Kernels whose interpreter is another program: the life after the fork that all of them share.

This process was forked from the Python image.  It starts the program, hands it every cell as data, and reports how each
ended; what the program and its children write goes straight into the pipes that init reads.  The program has a process
group of its own, so that an interrupt reaches it only when it is at a cell.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol

from cellfork.guest import linux
from cellfork.guest.python.content import NOTHING, Content, encode_error
from cellfork.guest.python.failures import Failure
from cellfork.guest.python.image import Image
from cellfork.guest.python.transport import Inbox, Reporter
from cellfork.wire.frames import Frame, encode

LONGEST_NAME = 1024
"""Characters of an error's name that are told."""


class Ending(NamedTuple):
    """How a cell ended: what is told of it (``None``: all is well), and whether the program lives on."""

    failure: Failure | None
    lives: bool = True


class Program(Protocol):
    """A program that runs cells."""

    def start(self) -> None:
        """Start it, with the directory and the variables of this process."""
        ...

    def waits_for(self, connection: socket.socket) -> bool:
        """Wait until init says something; return ``False`` where the program ends before."""
        ...

    def run(self, code: bytes, envs: Mapping[str, str], connection: socket.socket) -> Ending | None:
        """Run a cell with ``envs`` set for its time; ``None``: the program ended, which init tells.

        Ends this process where init is gone meanwhile.
        """
        ...

    def on_interrupt(self, _number: int, _frame: Any) -> None:
        """Be the handler of SIGINT: pass it on, or keep it until the program is at the cell that it is meant for."""
        ...

    def leave(self) -> int:
        """Return the code that this process is to end with."""
        ...


def serve(
    start: Callable[[Reporter], Program],
    image: Image,
    connection: socket.socket,
    nonce: bytes,
    marker_fds: tuple[int, int],
) -> NoReturn:
    """Run the cells that come from ``connection`` in ``start(reporter)`` until init or the program ends; never returns.

    The other arguments are those of :func:`cellfork.guest.python.kernel.run`.
    """
    code = 1
    try:
        image.outlet.connect(marker_fds, nonce)
        image.reporter.connect(connection, lambda _stream: None)
        sys.stdout, sys.stderr = image.stdout, image.stderr
        code = _Kernel(start(image.reporter), image.reporter, Inbox(connection)).serve()
    finally:
        os._exit(code)


class _Kernel:
    """One context's interpreter."""

    def __init__(self, program: Program, reporter: Reporter, inbox: Inbox) -> None:
        self._program = program
        self._reporter = reporter
        self._inbox = inbox
        self._count = 0
        signal.signal(signal.SIGINT, program.on_interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def serve(self) -> int:
        """Run what init sends; return the exit code of the process, which is the program's where that ends by itself."""
        self._program.start()
        self._inbox.connection.sendall(encode({"op": "settled"}))
        while (frame := self._next()) is not None:
            if frame.header["op"] == "execute" and not self._execute(frame):
                break
        return self._program.leave()

    def _next(self) -> Frame | None:
        """Return the next frame; ``None`` when init is gone, or the program."""
        frame = self._inbox.take()
        if frame is None and self._program.waits_for(self._inbox.connection):
            frame = self._inbox.next()
        return frame

    def _execute(self, frame: Frame) -> bool:
        """Run a cell and report it; ``False`` where the program has ended with it."""
        header = frame.header
        self._reporter.begin(header["execution"], int(header.get("result", 0)) or self._reporter.result_limit)
        ending = self._program.run(frame.body, header.get("envs") or {}, self._inbox.connection)
        if ending is None:
            return False
        if not header.get("silent"):
            self._count += 1
        failure = ending.failure
        content: Content = NOTHING if failure is None else encode_error(failure.value, failure.traceback)
        self._reporter.done(
            {
                "status": "ok" if failure is None else failure.status,
                "count": self._count,
                "next_count": self._count + 1 if ending.lives else None,
                "name": None if failure is None else failure.name[:LONGEST_NAME],
            },
            content,
        )
        return ending.lives


def fork(name: str, errors: int, become: Callable[[], NoReturn]) -> int:
    """Fork a process that calls ``become`` to become the program ``name``; return its pid.

    It begins with signals as a program expects them, in a process group of its own, and ends with this process.  That
    ``become`` failed is written to descriptor ``errors``.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    parent = os.getpid()
    try:
        pid = os.fork()
        if not pid:
            _be_child(parent, name, errors, become)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def _be_child(parent: int, name: str, errors: int, become: Callable[[], NoReturn]) -> NoReturn:
    try:
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.setpgid(0, 0)
            become()
    except OSError as error:
        os.write(errors, f"{name}: {error.strerror}\n".encode())
    finally:
        os._exit(127)
