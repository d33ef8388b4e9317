"""Init's handle on a Python kernel: starting it, merging its output with its frames, telling its end.

How text and frames keep their order is told in ``wire/PROTOCOL.md``, "Kernel ↔ init".
"""

import fcntl
import json
import os
import resource
import secrets
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from cellfork.guest import linux, oom
from cellfork.guest.artifacts import Ledger
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop, Timer
from cellfork.guest.marks import Mark, Sweep
from cellfork.guest.outputs import OutputPipe, Piece, TextFlow
from cellfork.guest.python import kernel as python_kernel
from cellfork.guest.python.streams import NONCE_SIZE
from cellfork.guest.python.transport import POKE
from cellfork.model.errors import ProtocolViolation
from cellfork.wire.frames import MAX_BODY, MAX_HEADER, PREFIX, Frame, decode_header, encode
from cellfork.wire.messages import check_from_guest

NAME = "cellfork-python"
FIRST_PRIVATE_FD = 200
"""Descriptors of the kernel itself are from here on, out of the way of the user's."""
READ_SIZE = 256 * 1024
MAX_TURNS = 64
AMID_LINE = 0.004
"""Seconds that the beginning of a line waits for its end: ``print`` writes text and newline one after the other."""
AGAIN = 0.005
"""Seconds after which an interrupt comes again that the kernel says it missed: it has to leave the place it says so at."""
POKES = (0.02, 0.2)
"""Seconds after an interrupt at which a wait is ended that began before the interrupt was heard of."""
WARM_UP = "warm-up"
"""The execution that a kernel runs before it belongs to anybody."""
MAX_PROBLEM = 4000
DRAIN_LIMIT = 4 * 1024 * 1024
"""Bytes of each pipe that are still looked at after the kernel's end."""
FROM_KERNEL = frozenset({"display", "update", "clear", "input_request", "done", "missed", "settled"})
OWN_WORDS = frozenset({"missed", "settled"})
"""What a kernel says to init alone."""

Header = dict[str, Any]
Settle = Callable[[socket.socket], None]
Body = Callable[[Any, socket.socket, bytes, tuple[int, int]], NoReturn]
"""What a kernel's process runs: it gets the image, its connection, the nonce and the private ends of its pipes."""
KernelFrame = tuple[int, bytes, bytes, Header]
"""Epoch, header as it came, body, header decoded."""


class Kernel:
    """A Python kernel, from its fork to its ``kernel_exit``.

    It is started without a context and belongs to a channel once it is claimed.  Everything that descends
    from it carries its ``mark`` and ends with it, before the end is told.  One that was forked ahead is ``settled`` once
    it has its locks and waits for code, which ``on_settled`` is told once, after the warm-up if there is one.
    """

    def __init__(
        self,
        loop: Loop,
        link: HostLink,
        pid: int,
        connection: socket.socket,
        pipes: tuple[int, int],
        nonce: bytes,
        mark: Mark,
    ) -> None:
        self.pid = pid
        self.mark = mark
        self.channel: int | None = None
        self.settled = False
        self.problem: str | None = None
        """What kept it from getting ready, in its own words."""
        self.on_settled: Callable[[], None] | None = None
        self.label = ""
        """What the host calls its context."""
        self.next_count: int | None = 1
        """The number that the next execution will have; ``None``: it is leaving."""
        self.ledger: Ledger | None = None
        """Where it stands what executions make; without one nothing is told of that."""
        self._mark_of_made: int | None = None
        self._loop = loop
        self._link = link
        self._connection = connection
        self._connection.setblocking(False)
        self._execution: str | None = None
        self._interrupted: str | None = None
        self._inbox = bytearray()
        self._frames: deque[KernelFrame] = deque()
        self._queue: deque[memoryview] = deque()
        self._flows = (TextFlow("stdout"), TextFlow("stderr"))
        self._pipes = tuple(OutputPipe(loop, fd, nonce, self._pump) for fd in pipes)
        self._hold: Timer | None = None
        self._after_warm_up: list[tuple[Header, bytes]] = []
        self._reaped = False
        self._stopped = False
        self._closed = False
        self._lost = False
        loop.watch(connection.fileno(), self._pump)

    @property
    def alive(self) -> bool:
        """``False`` from the moment on at which its end is known, or decided."""
        return not (self._reaped or self._closed)

    def report(self) -> Header:
        """Return what another host has to know: channel, label, what runs, the number of what comes next, if it has ended."""
        running = None if self._execution == WARM_UP else self._execution
        return {
            "channel": self.channel,
            "label": self.label,
            "execution": running,
            "next_count": self.next_count,
            "over": self._stopped,
        }

    @classmethod
    def start(
        cls,
        loop: Loop,
        link: HostLink,
        image: Any,
        *,
        cwd: str,
        envs: Mapping[str, str],
        settle: Settle | None = None,
        body: Body = python_kernel.run,
    ) -> "Kernel":
        """Fork a kernel from ``image`` (what ``guest.python.kernel.prepare`` returned) into ``cwd`` with ``envs`` added.

        ``body`` is what the fork runs: the interpreter, or what drives another language's.
        One that is forked before init has its locks calls ``settle`` with its connection first, to wait for
        :meth:`settle`.  Raises ``OSError`` where the fork fails, :class:`StartupFailed` where it cannot be marked.
        """
        mark = Mark.fresh()
        nonce = secrets.token_bytes(NONCE_SIZE)
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        for fd in (out_read, err_read):
            os.set_blocking(fd, False)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            pid = os.fork() or _be_kernel(
                body, image, theirs, (out_write, err_write), nonce, mark, cwd, envs, settle
            )
        except OSError:
            for end in (ours, theirs):
                end.close()
            for fd in (out_read, err_read):
                os.close(fd)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(out_write)
            os.close(err_write)
        theirs.close()
        return cls(loop, link, pid, ours, (out_read, err_read), nonce, mark)

    def settle(self, plan: Header, user_ns: int | None) -> None:
        """Tell a kernel that was forked ahead what it is to become, and hand it the user namespace to enter."""
        if user_ns is None:
            self._connection.send(b"s")
        else:
            socket.send_fds(self._connection, [b"s"], [user_ns])
        told: Header = {
            name: plan[name] for name in ("envs", "home_path", "rlimits", "writable") if name in plan
        }
        self._send(encode({"op": "settle", **told}))

    def claim(self, channel: int, *, cwd: str | None = None, envs: Mapping[str, str] | None = None) -> None:
        """Give the kernel to the context on ``channel``, which starts in ``cwd`` with ``envs`` added."""
        self.channel = channel
        if cwd is not None or envs:
            self._send(encode({"op": "configure", "cwd": cwd, "envs": dict(envs or {})}))

    def warm_up(self) -> None:
        """Run a line and forget it, so that the memory that a first execution touches is this kernel's own already."""
        self._execution = WARM_UP
        self._send(encode({"op": "warm_up", "execution": WARM_UP, "envs": {}, "stdin": False}, b"1 + 1"))

    def receive(self, header: Header, body: bytes) -> None:
        """Take a frame of the host for this kernel: ``execute`` or ``input``; anything else is dropped."""
        if not self.alive:
            return
        op = header["op"]
        if self._execution == WARM_UP:
            self._after_warm_up.append((header, body))
            return
        if op == "execute" and self._execution is None:
            self._begin(header)
        elif op != "input" or header.get("execution") != self._execution:
            return
        self._send(encode(header, body))

    def interrupt(self) -> None:
        """Send SIGINT to the kernel's process group, if it runs code."""
        if self.alive and self._execution is not None:
            self._interrupted = self._execution
            self._send_interrupt()

    def _send_interrupt(self) -> None:
        self._signal(signal.SIGINT)
        for seconds in POKES:
            self._loop.later(seconds, partial(self._poke, self._execution))

    def _interrupt_again(self, execution: object) -> None:
        """Send the interrupt once more that ``execution`` missed, if that was interrupted and still runs."""
        if self.alive and self._interrupted is not None and self._interrupted == execution == self._execution:
            self._send_interrupt()

    def _poke(self, execution: str | None) -> None:
        """End a wait of the interpreter that began before it heard of the interrupt; to one that has heard it is nothing.

        Python runs a handler between two of its instructions; of a signal that comes after the last one before a
        system call it hears when that ends, unless another signal ends it.
        """
        if self.alive and self._execution == execution:
            os.kill(self.pid, POKE)

    def terminate(self, number: int) -> None:
        """Send a signal to the kernel and its process group; its end follows as :meth:`exited`."""
        if self.alive:
            self._signal(number)

    def stop(self) -> None:
        """Kill it with all that descends from it, without a word to the host."""
        if not self._stopped:
            self._stopped = True
            self._forget_made()
            self._signal(signal.SIGKILL)
            self._close()
            Sweep(self._loop, self.mark, lambda: None).look()

    def exited(self, status: int) -> None:
        """Take note that the process was reaped with a wait status.

        When nothing is left that descends from it, what it has written is passed on and ``kernel_exit`` said.
        """
        self._reaped = True
        if not self._stopped:
            Sweep(self._loop, self.mark, partial(self._swept, status)).look()

    def _swept(self, status: int) -> None:
        if self._stopped:  # the host has forgotten it meanwhile
            return
        execution = self._drain()
        code = os.waitstatus_to_exitcode(status)
        if self.channel is not None:
            self._link.send(
                {
                    "op": "kernel_exit",
                    "code": code if code >= 0 else None,
                    "signal": -code if code < 0 else None,
                    "execution": execution,
                },
                channel=self.channel,
            )
        self._stopped = True
        self._close()

    # ------------------------------------------------------------------ to the kernel

    def _begin(self, header: Header) -> None:
        self._pump()
        execution = str(header.get("execution"))
        self._execution = execution
        if self.ledger is not None:
            self._mark_of_made = self.ledger.begin()
        limit = header.get("output")
        for flow in self._flows:
            self._forward(flow.begin(execution, limit if isinstance(limit, int) else None))
        for pipe in self._pipes:
            pipe.resume()

    def _send(self, data: bytes) -> None:
        self._queue.append(memoryview(data))
        if len(self._queue) == 1:
            self._write()

    def _write(self) -> None:
        fd = self._connection.fileno()
        while self._queue:
            try:
                sent = self._connection.send(self._queue[0])
            except BlockingIOError:
                self._loop.watch_writable(fd, self._write)
                return
            except OSError:
                self._queue.clear()
                break
            rest = self._queue[0][sent:]
            if rest:
                self._queue[0] = rest
            else:
                self._queue.popleft()
        self._loop.unwatch_writable(fd)

    def _signal(self, number: int) -> None:
        """Send a signal to the kernel and its group; the number is another's once the kernel was reaped."""
        if self._reaped:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has not come to setsid yet
            os.kill(self.pid, number)

    # ------------------------------------------------------------------ from the kernel

    def _pump(self) -> None:
        """Pass on what the kernel has written, in order.

        The pipes are read first: whatever frame precedes the text in them is in the socket by then.
        """
        if self._closed:
            return
        for _ in range(MAX_TURNS):
            for pipe in self._pipes:
                pipe.read()
            self._read_frames()
            if not self._frames:
                self._pass_rest()
                return
            while self._frames:
                self._pass_frame(self._frames.popleft())
        self._loop.later(0, self._pump)

    def _pass_frame(self, frame: KernelFrame) -> None:
        epoch, text, body, header = frame
        if header["op"] == "settled":
            self._note_settled(header.get("problem"))
            return
        for pipe in self._pipes:
            pipe.read_to(epoch)
        self._pass_text(epoch)
        op = header["op"]
        if op == "missed":
            self._loop.later(AGAIN, partial(self._interrupt_again, header.get("execution")))
            return
        if self._execution is None or header.get("execution") != self._execution:
            return
        if op == "done":
            if header["execution"] != WARM_UP:
                self.next_count = header["next_count"]
            self._end_text()
            self._tell_made(header["execution"])
        if header["execution"] == WARM_UP:
            self._end_warm_up(op)
        elif self.channel is not None:
            self._link.forward(text, body, self.channel)

    def _note_settled(self, problem: object) -> None:
        if isinstance(problem, str):
            self.problem = problem[:MAX_PROBLEM]
        self.settled = True
        if self._execution != WARM_UP:
            self._tell_settled()

    def _tell_settled(self) -> None:
        told, self.on_settled = self.on_settled, None
        if told is not None and self.settled:
            told()

    def _end_warm_up(self, op: str) -> None:
        """When the line is done, take what came meanwhile."""
        if op == "done":
            self._tell_settled()
            waiting, self._after_warm_up = self._after_warm_up, []
            for header, body in waiting:
                self.receive(header, body)

    def _forget_made(self) -> None:
        """Nobody will ask what the execution that runs has made."""
        mark, self._mark_of_made = self._mark_of_made, None
        if mark is not None and self.ledger is not None:
            self.ledger.forget(mark)

    def _end_text(self) -> None:
        """Tell what was dropped; text from now on is kept for the next execution."""
        for flow in self._flows:
            self._forward(flow.end())
        self._execution = self._interrupted = None

    def _tell_made(self, execution: str) -> None:
        """Tell which files the execution that ends now has made or changed, where there are any."""
        mark, self._mark_of_made = self._mark_of_made, None
        if mark is None or self.ledger is None or self.channel is None:
            return
        made = self.ledger.made_since(mark)
        if made.artifacts or made.truncated:
            header = {"op": "artifacts", "execution": execution, "truncated": made.truncated}
            self._link.send(header, json.dumps(made.artifacts).encode("ascii"), self.channel)

    def _pass_text(self, epoch: int | None) -> None:
        """Pass on text that precedes marker ``epoch``, or all there is, by epochs, stdout before stderr."""
        segments: list[tuple[int, int, bytes]] = []
        for index, pipe in enumerate(self._pipes):
            segments += [(segment.epoch, index, segment.text) for segment in pipe.take(epoch)]
        if len(segments) > 1:
            segments.sort(key=_order_of)
        for _, index, text in segments:
            self._forward(self._flows[index].add(text))

    def _pass_rest(self) -> None:
        """Pass on the rest, unless it is a line's beginning whose end is probably being written."""
        if all(pipe.is_empty for pipe in self._pipes):
            return
        if any(pipe.ends_amid_line for pipe in self._pipes):
            if self._hold is None:
                self._hold = self._loop.later(AMID_LINE, self._pass_held)
            return
        self._pass_held()

    def _pass_held(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        self._pass_text(None)
        for pipe in self._pipes:
            pipe.pause()

    def _forward(self, pieces: list[Piece]) -> None:
        if self.channel is not None:
            for header, text in pieces:
                self._link.forward(header, text, self.channel)

    def _read_frames(self) -> None:
        try:
            while True:
                data = self._connection.recv(READ_SIZE)
                if not data:
                    self._lose()
                    return
                self._inbox += data
                self._cut_frames()
                if len(data) < READ_SIZE:
                    return
        except BlockingIOError:
            return
        except (OSError, ProtocolViolation):
            self._lose()

    def _cut_frames(self) -> None:
        """Cut complete frames off.  Raises :class:`ProtocolViolation` for anything a kernel does not say."""
        inbox = self._inbox
        position = 0
        while len(inbox) - position >= PREFIX.size:
            header_size, body_size, epoch = PREFIX.unpack_from(inbox, position)
            if header_size > MAX_HEADER or body_size > MAX_BODY:
                raise ProtocolViolation(f"frame of {header_size} + {body_size} bytes")
            start = position + PREFIX.size
            body_start = start + header_size
            end = body_start + body_size
            if len(inbox) < end:
                break
            text = bytes(inbox[start:body_start])
            self._frames.append((epoch, text, bytes(inbox[body_start:end]), _checked(text)))
            position = end
        del inbox[:position]

    # ------------------------------------------------------------------ its end

    def _lose(self) -> None:
        """The kernel closed its connection or broke the protocol: make sure that it ends."""
        if self._lost:
            return
        self._lost = True
        self._loop.unwatch(self._connection.fileno())
        self._signal(signal.SIGKILL)

    def _drain(self) -> str | None:
        """Pass on what the kernel left behind; return the execution that its end cut short.

        Others may write on into its pipes, so there is an end to it.
        """
        self._lost = True
        self._pump()
        for pipe in self._pipes:
            pipe.read(DRAIN_LIMIT)
        self._pass_text(None)
        execution = self._execution
        if execution is not None:
            self._end_text()
            self._tell_made(execution)
        return execution

    def _close(self) -> None:
        self._closed = True
        if self._hold is not None:
            self._hold.cancel()
        fd = self._connection.fileno()
        self._loop.unwatch(fd)
        self._loop.unwatch_writable(fd)
        self._connection.close()
        self._queue.clear()
        for pipe in self._pipes:
            pipe.close()


def _order_of(segment: tuple[int, int, bytes]) -> tuple[int, int]:
    return segment[:2]


def _checked(text: bytes) -> Header:
    """Decode a header and check that a kernel may say this.  Raises :class:`ProtocolViolation`."""
    header = decode_header(text)
    if header["op"] not in FROM_KERNEL:
        raise ProtocolViolation(f"a kernel does not say {header['op'][:40]!r}")
    if header["op"] not in OWN_WORDS:
        check_from_guest(Frame(1, header))
    return header


def _be_kernel(
    body: Body,
    image: Any,
    connection: socket.socket,
    pipes: tuple[int, int],
    nonce: bytes,
    mark: Mark,
    cwd: str,
    envs: Mapping[str, str],
    settle: Settle | None,
) -> NoReturn:
    """Be the forked child: keep three descriptors besides 0 to 2, leave init's signals and session, run."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        mark.put_on()
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # unlike init: /proc/self must be the code's own
        private = _arrange_descriptors(connection.detach(), pipes)
        oom.volunteer(oom.KERNEL)
        os.environ.update(envs)
        os.chdir(cwd)
        os.environ["PWD"] = cwd
        linux.set_name(NAME)
        connection = socket.socket(fileno=private[0])
        if settle is not None:
            python_kernel.reseed(image)  # while nobody waits for it
            settle(connection)
            body = partial(python_kernel.run, announced=True)
        body(image, connection, nonce, (private[1], private[2]))
    finally:
        os._exit(70)


def _arrange_descriptors(connection: int, pipes: tuple[int, int]) -> tuple[int, int, int]:
    """Put /dev/null and the pipes on 0 to 2, and the private three out of the way; close everything else."""
    base = min(FIRST_PRIVATE_FD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 16)
    out, err = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, base) for fd in pipes)
    connection = fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, base)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    for target, source in enumerate((null, out, err)):
        os.dup2(source, target)
    os.closerange(3, base)
    private = (connection, _own_description(out, base), _own_description(err, base))
    os.closerange(3, base)
    low = base
    for fd in sorted(private):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 20)
    return private


def _own_description(fd: int, base: int) -> int:
    """Open the pipe behind ``fd`` anew, so that a child that makes its end non-blocking does not make ours so."""
    try:
        opened = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return fd
    return fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, base)
