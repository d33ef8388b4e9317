"""The Go kernel's life after the fork: hand cells to the driver, report how they ended.

The driver (``driver/``, built as ``cellfork-go`` into the template's environment) evaluates Go and keeps its state.
Cells, ends and displays travel here as JSON lines.
"""

import base64
import binascii
import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from cellfork.guest import driven
from cellfork.guest.driven import Ending
from cellfork.guest.python.failures import INTERRUPTED, Failure
from cellfork.guest.python.image import Image
from cellfork.guest.python.transport import Reporter
from cellfork.guest.wakeup import Wakeup

DRIVER = "cellfork-go"
REQUESTS_FD, ANSWERS_FD = 3, 4
READ_SIZE = 64 * 1024
LONGEST_ANSWER = 256 * 1024 * 1024
"""Bytes of one answer: a display, as base64.  A driver that says more is not ours."""


def driver() -> str | None:
    """Return the path of the driver, ``None`` where it is not installed."""
    return shutil.which(DRIVER)


def run(image: Image, connection: socket.socket, nonce: bytes, marker_fds: tuple[int, int]) -> NoReturn:
    """Serve executions from ``connection`` until init closes it or the driver ends; never returns.

    The arguments are those of :func:`cellfork.guest.python.kernel.run`.
    """
    driven.serve(Driver, image, connection, nonce, marker_fds)


class Driver:
    """The driver's process and the two pipes to it."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._pid = 0
        self._requests = self._answers = self._process = -1
        self._unread = bytearray()
        self._wakeup: Wakeup
        self._token = ""
        self._running = self._begun = self._interrupted = self._missed = False
        self._code = 0

    def start(self) -> None:
        """Start the driver, with the directory and the variables of this process."""
        self._wakeup = Wakeup()
        requests_end, self._requests = os.pipe2(os.O_CLOEXEC)
        self._answers, answers_end = os.pipe2(os.O_CLOEXEC)
        self._pid = _start(driver() or DRIVER, requests_end, answers_end)
        self._process = os.pidfd_open(self._pid)
        os.close(requests_end)
        os.close(answers_end)

    def waits_for(self, connection: socket.socket) -> bool:
        """Wait until init says something; return ``False`` where the driver ends before."""
        while True:
            poll = select.poll()
            poll.register(connection, select.POLLIN | select.POLLRDHUP)
            poll.register(self._answers, select.POLLIN)
            poll.register(self._process, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if connection.fileno() in ready:
                return True
            if self._answers in ready and self._read():
                self._take_displays()  # of goroutines that go on
            elif self._process in ready:
                self._reap()
                return False

    def run(self, code: bytes, envs: Mapping[str, str], connection: socket.socket) -> Ending | None:
        """Run a cell with ``envs`` set for its time; ``None`` where the driver ended.

        Ends this process where init is gone meanwhile.
        """
        self._token = secrets.token_hex(8)
        self._begun = self._interrupted = False
        self._running = True
        try:
            if self._missed:
                self._missed = False
                self._reporter.missed()
            self._send({"token": self._token, "code": code.decode("utf-8", "replace"), "envs": dict(envs)})
            while True:
                answer = self._next_answer(connection)
                if answer is None:
                    self._reap()
                    return None
                if answer.get("op") == "display":
                    self._display(answer)
                elif answer.get("token") != self._token:
                    continue
                elif answer.get("op") == "begun" and not self._begun:
                    self._begun = True
                    if self._interrupted:
                        self._interrupt()
                elif answer.get("op") == "done":
                    return Ending(_failure(answer))
        finally:
            self._running = False

    def on_interrupt(self, _number: int, _frame: Any) -> None:
        """Be the handler of SIGINT: pass it on, or keep it until the driver is at the cell that it is meant for."""
        if not self._running:
            self._missed = True
            return
        self._interrupted = True
        if self._begun:
            self._interrupt()

    def _interrupt(self) -> None:
        try:
            os.killpg(self._pid, signal.SIGINT)
        except ProcessLookupError:
            return  # its end is seen elsewhere

    def _send(self, request: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(request).encode("ascii") + b"\n")
        try:
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            return  # its end is seen at the other pipe

    def _next_answer(self, connection: socket.socket) -> dict[str, Any] | None:
        """Return what the driver says next, ``None`` where it has ended or talks nonsense."""
        poll = select.poll()
        for fd in (self._answers, self._process, self._wakeup.fileno()):
            poll.register(fd, select.POLLIN)
        poll.register(connection, select.POLLRDHUP)
        while (line := self._line()) is None:
            ready = {fd for fd, _ in poll.poll()}
            if connection.fileno() in ready:
                os._exit(1)  # init is gone, and nobody would ever read what this process does
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
            elif self._answers not in ready or not self._read():
                return None
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return answer if isinstance(answer, dict) else None

    def _read(self) -> bool:
        data = os.read(self._answers, READ_SIZE)
        self._unread += data
        return bool(data) and len(self._unread) <= LONGEST_ANSWER

    def _line(self) -> bytes | None:
        end = self._unread.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _take_displays(self) -> None:
        while (line := self._line()) is not None:
            try:
                answer = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(answer, dict) and answer.get("op") == "display":
                self._display(answer)

    def _display(self, answer: Mapping[str, Any]) -> None:
        data = answer.get("data")
        if not isinstance(data, dict):
            return
        bundle = {str(mime): _content(str(mime), value) for mime, value in data.items()}
        self._reporter.display(bundle, main=answer.get("main") is True)

    def leave(self) -> int:
        """Return the code that this process is to end with, the driver's; or end by the signal that ended the driver."""
        if self._code < 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-self._code})
            if -self._code not in {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(-self._code, signal.SIG_DFL)
            os.kill(os.getpid(), -self._code)
        return abs(self._code)

    def _reap(self) -> None:
        """Take note of the driver's end; one that has closed its pipes and lives is killed."""
        os.killpg(self._pid, signal.SIGKILL)
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _failure(answer: Mapping[str, Any]) -> Failure | None:
    status = answer.get("status")
    if status == "ok":
        return None
    if status == "interrupted":
        return INTERRUPTED
    name, value, traceback = (str(answer.get(key, "")) for key in ("name", "value", "traceback"))
    return Failure("error", name or "Error", value, traceback or value)


def _content(mime: str, value: object) -> Any:
    """Return what a display holds: text as text, the rest as bytes; ``None`` for what is not base64."""
    try:
        content = base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError):
        return None
    if mime == "application/json":
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            return None
    binary = mime.startswith(("image/", "audio/", "video/")) and not mime.endswith("+xml")
    return content if binary or mime == "application/pdf" else content.decode("utf-8", "replace")


def _start(program: str, requests: int, answers: int) -> int:
    """Start the driver with the two pipes at their numbers, the output pipes as they are, and nothing else."""
    return driven.fork(program, 2, partial(_become_driver, program, requests, answers))


def _become_driver(program: str, requests: int, answers: int) -> NoReturn:
    spare = fcntl.fcntl(answers, fcntl.F_DUPFD_CLOEXEC, ANSWERS_FD + 1)  # it may have the other's number
    if requests == REQUESTS_FD:
        os.set_inheritable(requests, True)
    os.dup2(requests, REQUESTS_FD)
    os.dup2(spare, ANSWERS_FD)
    os.environ["GOTRACEBACK"] = "none"  # a fatal error is told in a line, without the interpreter's own stack
    os.execv(program, (DRIVER,))  # noqa: S606 - the template's own driver
