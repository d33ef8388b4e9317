"""The Python kernel's life after the fork: take code, run it, send what it produces.

One thread, no event loop of its own: it blocks on its socket until init sends a frame.
"""

import atexit
import errno
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from cellfork.guest.python import entropy
from cellfork.guest.python.cells import Cells
from cellfork.guest.python.content import NOTHING, Content, encode_error
from cellfork.guest.python.failures import INTERRUPTED, Failure, describe
from cellfork.guest.python.image import Image, make_pristine, prepare
from cellfork.guest.python.questions import Questions
from cellfork.guest.python.saved import display_saved_images
from cellfork.guest.python.streams import flush_replaced
from cellfork.guest.python.transport import Inbox, be_pokeable
from cellfork.wire.frames import Frame, encode

__all__ = ["Image", "prepare", "reseed", "run"]


def reseed(image: Image) -> None:
    """Draw other random numbers than every other fork of the process that prepared ``image``."""
    entropy.reseed(image.sources)


def run(
    image: Image,
    connection: socket.socket,
    nonce: bytes,
    marker_fds: tuple[int, int],
    *,
    announced: bool = False,
) -> NoReturn:
    """Serve executions from ``connection`` until init closes it or the code leaves; never returns.

    To be called in a fork of the process that prepared ``image``, with descriptors 0, 1 and 2 in place.
    ``marker_fds`` are private descriptors of the pipes behind 1 and 2; ``nonce`` goes into every marker.
    One that is ``announced`` was forked ahead and has called :func:`reseed`; it says ``settled`` when all that is
    left to do is to wait for code.
    """
    code = 1
    try:
        if not announced:
            reseed(image)
        kernel = Kernel(image, connection, nonce, marker_fds)
        display_saved_images()
        if announced:
            connection.sendall(encode({"op": "settled"}))
        code = kernel.serve()
    finally:
        os._exit(code)


class Outcome(NamedTuple):
    """How an execution ended."""

    failure: Failure | None
    number: int | None


class Kernel:
    """One context's interpreter."""

    def __init__(
        self, image: Image, connection: socket.socket, nonce: bytes, marker_fds: tuple[int, int]
    ) -> None:
        image.interrupts.install()
        be_pokeable()
        image.outlet.connect(marker_fds, nonce)
        image.reporter.connect(connection, image.fflush)
        sys.stdout, sys.stderr = image.stdout, image.stderr
        image.shell.history_manager.dir_hist[:] = [Path.cwd()]
        self._shell = image.shell
        self._image = image
        self._interrupts = image.interrupts
        self._reporter = image.reporter
        self._inbox = Inbox(connection)
        self._cells = Cells(image.shell, connection)
        self._questions = Questions(image.reporter, self._inbox, image.interrupts)
        self._questions.install()
        self._tell_unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def serve(self) -> int:
        """Run what init sends, whatever signal handlers of the user's raise; return the exit code of the process."""
        while True:
            try:
                return self._serve()
            except SystemExit:
                return self._leave()
            except BaseException as error:  # noqa: BLE001 - the kernel's boundary
                gone = isinstance(error, OSError) and error.errno in {
                    errno.EBADF,
                    errno.ENOTSOCK,
                    errno.ECONNRESET,
                }
                if gone or self._reporter.execution is not None:
                    return 1  # without its socket, or amid telling an end, all that is left is to end
                traceback.print_exc()

    def _serve(self) -> int:
        while True:
            frame = self._next()
            if frame is None:
                return 0
            if frame.header["op"] == "configure":
                self._configure(frame.header["cwd"], frame.header["envs"])
            elif frame.header["op"] == "warm_up":
                self._execute(frame)
                make_pristine(self._shell)
            elif frame.header["op"] == "execute":
                self._execute(frame)
                if not self._image.outlet.owner:
                    return 0  # a process that the user's code forked, and that came back from its cell
                if self._shell.exit_now:
                    return self._leave()

    def _on_unraisable(self, unraisable: Any) -> None:
        """Ask for an interrupt once more that came amid a finalizer or a callback, out of which nothing is raised."""
        if self._interrupts.running and unraisable.exc_type is KeyboardInterrupt:
            self._reporter.missed()
        else:
            self._tell_unraisable(unraisable)

    @staticmethod
    def _configure(cwd: str | None, envs: Mapping[str, str]) -> None:
        """Become the kernel of a context that starts in ``cwd``, which init has looked at, with ``envs`` added."""
        os.environ.update(envs)
        if cwd is not None:
            os.chdir(cwd)
            os.environ["PWD"] = cwd

    def _next(self) -> Frame | None:
        frame = self._inbox.take()
        if frame is None:
            self._cells.wait()
            frame = self._inbox.next()
        return frame

    def _execute(self, frame: Frame) -> None:
        header = frame.header
        self._reporter.begin(header["execution"], int(header.get("result", 0)) or self._reporter.result_limit)
        self._questions.allowed = bool(header.get("stdin"))
        outcome = self._run(frame.body.decode("utf-8", "replace"), header)
        self._interrupts.install()
        failure = outcome.failure
        content: Content = NOTHING if failure is None else encode_error(failure.value, failure.traceback)
        self._reporter.done(
            {
                "status": "ok" if failure is None else failure.status,
                "count": outcome.number,
                "next_count": None if self._shell.exit_now else self._shell.execution_count,
                "name": None if failure is None else failure.name[:1024],
            },
            content,
        )

    def _run(self, code: str, header: Mapping[str, Any]) -> Outcome:
        """Run a cell with signals and environment in place.  Nothing that the code raises escapes."""
        interrupts = self._interrupts
        try:
            try:
                interrupts.fired = False
                interrupts.running = True
                if interrupts.missed:
                    interrupts.missed = False
                    self._reporter.missed()
                return self._run_cell(code, header)
            finally:
                interrupts.running = False
        except KeyboardInterrupt:
            return Outcome(INTERRUPTED, None)
        except BaseException as error:  # noqa: BLE001 - the kernel's boundary: it answers whatever happens
            text = f"{type(error).__name__}: the cell's end could not be told"
            return Outcome(Failure("error", type(error).__name__, text, text), None)

    def _run_cell(self, code: str, header: Mapping[str, Any]) -> Outcome:
        shell = self._shell
        shell.begin_cell()
        self._repair()
        restore = _set_environment(header.get("envs") or {})
        try:
            silent = bool(header.get("silent"))
            number = shell.execution_count
            result = self._cells.run(code, silent=silent)
            self._repair()
            fired = self._interrupts.fired
            failure = INTERRUPTED if shell.spoiled else describe(result, shell.shown, fired=fired)
            flush_replaced(self._image.stdout, self._image.stderr)
            counted = not silent and shell.execution_count != number
            return Outcome(failure, number if counted else None)
        finally:
            shell.displayhook._is_active = False
            _restore_environment(restore)

    def _repair(self) -> None:
        """Put back what no cell can do without, where one took it away."""
        for name in ("stdout", "stderr"):
            if not hasattr(sys, name):
                setattr(sys, name, getattr(self._image, name))
        if "_oh" not in self._shell.user_ns or "__builtins__" not in self._shell.user_ns:
            self._shell.init_user_ns()

    def _leave(self) -> int:
        """Run the exit handlers, as a kernel that is told to exit does."""
        atexit._run_exitfuncs()
        flush_replaced(self._image.stdout, self._image.stderr)
        self._image.fflush(None)
        return 0


def _set_environment(envs: Mapping[str, str]) -> dict[str, str | None]:
    before = {name: os.environ.get(name) for name in envs}
    os.environ.update(envs)
    return before


def _restore_environment(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
