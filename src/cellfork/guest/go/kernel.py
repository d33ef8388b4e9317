"""The Go kernel's life after the fork: hand cells to the driver, report how they ended.

The driver (``driver/``, built as ``cellfork-go`` into the template's environment) evaluates Go and keeps its state.
What code prints goes straight into the pipes that init reads; cells, ends and displays travel here as JSON lines.

It has a process group of its own, so that an interrupt reaches it only when it is at a cell.
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
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from cellfork.guest import linux
from cellfork.guest.python.content import NOTHING, Content, encode_error
from cellfork.guest.python.failures import INTERRUPTED, Failure
from cellfork.guest.python.image import Image
from cellfork.guest.python.transport import Inbox, Reporter
from cellfork.wire.frames import Frame, encode

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
    code = 1
    try:
        code = Kernel(image, connection, nonce, marker_fds).serve()
    finally:
        os._exit(code)


class Kernel:
    """One context's interpreter of Go."""

    def __init__(
        self, image: Image, connection: socket.socket, nonce: bytes, marker_fds: tuple[int, int]
    ) -> None:
        image.outlet.connect(marker_fds, nonce)
        image.reporter.connect(connection, lambda _stream: None)
        sys.stdout, sys.stderr = image.stdout, image.stderr
        self._reporter: Reporter = image.reporter
        self._inbox = Inbox(connection)
        self._count = 0
        self._driver = Driver(image.reporter)
        signal.signal(signal.SIGINT, self._driver.on_interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def serve(self) -> int:
        """Run what init sends; return the exit code of the process, which is the driver's where that ends by itself."""
        self._driver.start()
        self._inbox.connection.sendall(encode({"op": "settled"}))
        while (frame := self._next()) is not None:
            if frame.header["op"] == "execute" and not self._execute(frame):
                break
        return self._driver.leave()

    def _next(self) -> Frame | None:
        """Return the next frame; ``None`` when init is gone, or the driver."""
        frame = self._inbox.take()
        if frame is None and self._driver.waits_for(self._inbox.connection):
            frame = self._inbox.next()
        return frame

    def _execute(self, frame: Frame) -> bool:
        """Run a cell and report it; ``False`` where the driver has ended with it: init tells that."""
        header = frame.header
        self._reporter.begin(header["execution"], int(header.get("result", 0)) or self._reporter.result_limit)
        ending = self._driver.run(
            frame.body.decode("utf-8", "replace"), header.get("envs") or {}, self._inbox.connection
        )
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
                "next_count": self._count + 1,
                "name": None if failure is None else failure.name[:1024],
            },
            content,
        )
        return True


class Ending(NamedTuple):
    """How a cell ended whose driver lives."""

    failure: Failure | None


class Driver:
    """The driver's process and the two pipes to it."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._pid = 0
        self._requests = self._answers = self._process = -1
        self._unread = bytearray()
        self._token = ""
        self._running = self._begun = self._interrupted = self._missed = False
        self._code = 0

    def start(self) -> None:
        """Start the driver, with the directory and the variables of this process."""
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

    def run(self, code: str, envs: Mapping[str, str], connection: socket.socket) -> Ending | None:
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
            self._send({"token": self._token, "code": code, "envs": dict(envs)})
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
        for fd in (self._answers, self._process):
            poll.register(fd, select.POLLIN)
        poll.register(connection, select.POLLRDHUP)
        while (line := self._line()) is None:
            ready = {fd for fd, _ in poll.poll()}
            if connection.fileno() in ready:
                os._exit(1)  # init is gone, and nobody would ever read what this process does
            if self._answers not in ready or not self._read():
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
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    parent = os.getpid()
    try:
        pid = os.fork()
        if not pid:
            _become_driver(parent, program, requests, answers)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def _become_driver(parent: int, program: str, requests: int, answers: int) -> NoReturn:
    try:
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.setpgid(0, 0)
            spare = fcntl.fcntl(
                answers, fcntl.F_DUPFD_CLOEXEC, ANSWERS_FD + 1
            )  # it may have the other's number
            if requests == REQUESTS_FD:
                os.set_inheritable(requests, True)
            os.dup2(requests, REQUESTS_FD)
            os.dup2(spare, ANSWERS_FD)
            os.environ["GOTRACEBACK"] = (
                "none"  # a fatal error is told in a line, without the interpreter's own stack
            )
            os.execv(program, (DRIVER,))  # noqa: S606 - the template's own driver
    except OSError as error:
        os.write(2, f"{program}: {error.strerror}\n".encode())
    finally:
        os._exit(127)
