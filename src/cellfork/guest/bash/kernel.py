"""The bash kernel's life after the fork: hand cells to a shell, report how they ended.

One interactive shell without a terminal gets every cell as data, through an anonymous file: nothing is ever pasted into
a command line.  Only the end of a cell passes through here.

An interactive shell is what survives an interrupt: bash drops the line that it is at and takes the next one, so it
must not be interrupted amid reading a line.
"""

import os
import re
import resource
import secrets
import select
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from cellfork.guest import driven
from cellfork.guest.bash import script
from cellfork.guest.bash.script import Numbers
from cellfork.guest.python.failures import INTERRUPTED, Failure
from cellfork.guest.python.image import Image
from cellfork.guest.wakeup import Wakeup

SHELL = "/bin/bash"
POSIX = "POSIXLY_CORRECT"
LONGEST_ANSWER = 4096
LEAVING = 1.0
"""Seconds that a shell has to end which has closed its pipes."""
LOOKS, PAUSE = 20, 0.05
"""How often, and after how many seconds each, it is seen whether an interrupt has reached everybody."""
LOST = "the code took away what the end of a cell is told with (builtin, printf, a descriptor); its shell was ended"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANSWER = re.compile(rb"([0-9a-f]+) (begun|end|lost|readonly) ([0-9]{1,4}|[A-Za-z_][A-Za-z0-9_]*)")


def run(image: Image, connection: socket.socket, nonce: bytes, marker_fds: tuple[int, int]) -> NoReturn:
    """Serve executions from ``connection`` until init closes it or the shell ends; never returns.

    The arguments are those of :func:`cellfork.guest.python.kernel.run`.
    """
    driven.serve(lambda reporter: Shell(reporter.missed), image, connection, nonce, marker_fds)


class Ending(NamedTuple):
    """How a cell ended: the status of its last command, and whether it was interrupted or ended its shell.

    ``refused`` says why it was not run at all, or why its end is not known.
    """

    status: int
    interrupted: bool = False
    shell_lives: bool = True
    refused: str | None = None


def failure_of(ending: Ending) -> Failure | None:
    """Return what is told of a cell: a status other than 0 is an error, named ``ExitCode``."""
    if ending.refused is not None:
        return Failure("error", "ShellError", ending.refused, f"ShellError: {ending.refused}")
    if ending.status == 0:
        return None
    if ending.interrupted and ending.status == 128 + signal.SIGINT:
        return INTERRUPTED
    text = f"exit code {ending.status}"
    if ending.status > 128:
        text += _signal_of(ending.status)
    return Failure("error", "ExitCode", str(ending.status), text)


def _signal_of(status: int) -> str:
    try:
        return f" ({signal.Signals(status - 128).name})"
    except ValueError:
        return ""


class Shell:
    """A bash process, the files that cells are handed over in, and the pipe that it answers on.

    ``on_missed`` is called when a cell begins after an interrupt that came while none was there.
    """

    def __init__(self, on_missed: Callable[[], None]) -> None:
        self._on_missed = on_missed
        self._missed = False
        self._pid = 0
        self._numbers = Numbers.below(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._cell = self._values = self._answers = self._lines = self._process = -1
        self._unread = b""
        self._wakeup: Wakeup
        self._token = ""
        self._last = self._asked = self._looks = 0
        self._running = self._begun = self._interrupted = False
        self._exit_code = 0

    def start(self) -> None:
        """Start the shell, with the directory and the variables of this process."""
        self._wakeup = Wakeup()
        self._cell = os.memfd_create("cell", os.MFD_CLOEXEC)
        self._values = os.memfd_create("values", os.MFD_CLOEXEC)
        self._answers, answers_end = os.pipe2(os.O_CLOEXEC)
        lines_end, self._lines = os.pipe2(os.O_CLOEXEC)
        numbers = self._numbers
        start = os.memfd_create("start", os.MFD_CLOEXEC)
        _fill(start, script.prepare(numbers, posix=os.environ.get(POSIX)))
        files = {numbers.start: start, numbers.cell: self._cell, numbers.values: self._values}
        self._pid = _start({**files, numbers.answers: answers_end, 0: lines_end}, numbers)
        self._process = os.pidfd_open(self._pid)
        for fd in (start, answers_end, lines_end):
            os.close(fd)

    def waits_for(self, connection: socket.socket) -> bool:
        """Wait until init says something; return ``False`` where the shell ends before."""
        poll = select.poll()
        poll.register(connection, select.POLLIN | select.POLLRDHUP)
        poll.register(self._process, select.POLLIN)
        ready = {fd for fd, _ in poll.poll()}
        if connection.fileno() in ready or self._process not in ready:
            return True
        self._exit_code = self._reap()
        return False

    def run(self, code: bytes, envs: Mapping[str, str], connection: socket.socket) -> driven.Ending:
        """Run a cell with ``envs`` exported for its time; ends this process where init is gone meanwhile."""
        ending = self._run(code, envs, connection)
        return driven.Ending(failure_of(ending), ending.shell_lives)

    def leave(self) -> int:
        """Return what the shell ended with."""
        return self._exit_code

    def on_interrupt(self, _number: int, _frame: Any) -> None:
        """Be the handler of SIGINT: pass it on, or keep it until the shell is at the cell that it is meant for."""
        if not self._running:
            self._missed = True
            return
        self._interrupted = True
        if self._begun:
            self._interrupt()

    def _run(self, code: bytes, envs: Mapping[str, str], connection: socket.socket) -> Ending:
        for name in envs:
            if not _NAME.fullmatch(name):
                return Ending(1, refused=f"bash cannot have a variable with the name {name[:200]!r}")
        self._begin(code.replace(b"\0", b""), envs)
        ending = self._wait(connection)
        self._last = ending.status
        return ending

    def _interrupt(self) -> None:
        """Interrupt what runs; the shell drops its line, perhaps the one that tells the end, so ask again."""
        try:
            os.killpg(self._pid, signal.SIGINT)
        except ProcessLookupError:
            return  # its end is seen elsewhere
        self._asked += 1
        self._looks = LOOKS
        self._tell(script.end(self._token, self._asked, self._numbers))

    def _begin(self, code: bytes, envs: Mapping[str, str]) -> None:
        self._token = secrets.token_hex(6)
        self._begun = self._interrupted = False
        self._asked = self._looks = 0
        _fill(self._cell, code)
        if envs:
            fields = [text for pair in envs.items() for text in pair]
            _fill(self._values, b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in fields))
        self._running = True
        if self._missed:
            self._missed = False
            self._on_missed()
        self._tell(script.run(self._token, self._numbers, self._last, values=bool(envs)))

    def _wait(self, connection: socket.socket) -> Ending:
        """Follow the answers until the cell has ended.  What does not name it is a forgery, or late."""
        refused = None
        try:
            while True:
                answer = self._next_answer(connection)
                if answer is None:
                    return Ending(self._reap(), self._interrupted, shell_lives=False)
                found = _ANSWER.search(answer)
                if found is None or found[1].decode() != self._token:
                    continue
                kind, word = found[2], found[3].decode()
                if kind == b"readonly":
                    refused = f"the variable {word} is readonly, so that the execution cannot have its own"
                elif kind == b"end" and word.isdecimal():
                    return Ending(self._status(int(word) % 256), self._interrupted, refused=refused)
                elif kind == b"begun" and not self._begun:
                    self._begun = True
                    if self._interrupted:
                        self._interrupt()
                elif kind == b"lost" and word == str(self._asked):
                    os.kill(self._pid, signal.SIGKILL)
                    self._reap()
                    return Ending(1, shell_lives=False, refused=LOST)
        finally:
            self._running = False

    def _tell(self, line: bytes) -> None:
        try:
            os.write(self._lines, line)
        except BrokenPipeError:
            return  # its end is seen at the other pipe

    def _next_answer(self, connection: socket.socket) -> bytes | None:
        """Return what the shell says next, ``None`` where it has ended (a child of it may hold its pipe open)."""
        poll = select.poll()
        for fd in (self._answers, self._process, self._wakeup.fileno()):
            poll.register(fd, select.POLLIN)
        poll.register(connection, select.POLLRDHUP)
        while b"\n" not in self._unread:
            ready = {fd for fd, _ in poll.poll(PAUSE * 1000 if self._looks else None)}
            if connection.fileno() in ready:
                os._exit(1)  # init is gone, and nobody would ever read what this process does
            if not ready:
                self._look_again()
                continue
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
                continue  # where that was an interrupt, it no longer waits without a bound
            data = os.read(self._answers, LONGEST_ANSWER) if self._answers in ready else b""
            if not data:
                return None
            self._unread = self._unread[-LONGEST_ANSWER:] + data
        answer, _, self._unread = self._unread.partition(b"\n")
        return answer

    def _status(self, told: int) -> int:
        """Return the status of the cell: bash says 1 where a second interrupt followed the first."""
        return 128 + signal.SIGINT if told == 1 and self._asked > 1 else told

    def _look_again(self) -> None:
        """Interrupt again where somebody should have died of it: between fork and exec, bash's children lose signals."""
        self._looks -= 1
        if self._looks and any(dies_of_interrupt(pid) for pid in group(self._pid) if pid != self._pid):
            looks = self._looks
            self._interrupt()
            self._looks = looks

    def _reap(self) -> int:
        """Return the status of the shell, which is killed if it has closed its pipes and lives."""
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        if not poll.poll(LEAVING * 1000):
            os.kill(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return code if code >= 0 else 128 - code


def group(leader: int) -> list[int]:
    """Return the processes of a process group."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if os.getpgid(int(name)) == leader:
                    found.append(int(name))
            except ProcessLookupError:
                continue
    return found


def dies_of_interrupt(pid: int) -> bool:
    """Tell whether SIGINT ends a process: it lives, and neither catches nor ignores nor blocks it."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return False
    masks = (int(status.get(name, "0"), 16) for name in ("SigBlk", "SigIgn", "SigCgt"))
    return status.get("State", "Z")[0] not in "ZX" and not any(
        mask >> signal.SIGINT - 1 & 1 for mask in masks
    )


def _fill(file: int, content: bytes) -> None:
    """Let ``file`` hold ``content`` and nothing else, to be read from its beginning."""
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    data = memoryview(content)
    while data:
        data = data[os.write(file, data) :]
    os.lseek(file, 0, os.SEEK_SET)


def _start(descriptors: Mapping[int, int], numbers: Numbers) -> int:
    """Start a shell with ``descriptors`` (its number → ours), the pipes as they are, and nothing else."""
    return driven.fork(SHELL, numbers.errors, partial(_become_shell, descriptors, numbers))


def _become_shell(descriptors: Mapping[int, int], numbers: Numbers) -> NoReturn:
    _arrange(descriptors, numbers)
    os.environ.pop(POSIX, None)
    options = ("--rcfile", f"/proc/self/fd/{numbers.start}", "--noprofile", "--noediting", "-i")
    os.execv(SHELL, (SHELL, *options))  # noqa: S606 - the template's own shell


def _arrange(descriptors: Mapping[int, int], numbers: Numbers) -> None:
    """Put the shell's descriptors in place; its own words (prompts, newlines at interrupts) go nowhere."""
    os.dup2(1, numbers.output)
    os.dup2(2, numbers.errors)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (numbers.input, 1, 2):
        os.dup2(null, number)
    os.close(null)
    for number, fd in descriptors.items():
        os.dup2(fd, number)
