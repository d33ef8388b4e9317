"""The life of a bridge after the fork: start a Jupyter kernel, give it cells, pass on what it says.

One thread, one poll.  The kernel runs in a process group of its own: an interrupt reaches this process, which passes it
on in the way that the kernel wants, when the cell has begun.  The kernel dies with this process, and this process ends
as the kernel did.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from cellfork.guest import linux
from cellfork.guest.jupyter import variables
from cellfork.guest.jupyter.adjustments import EXPLICIT, adjusted
from cellfork.guest.jupyter.execution import Execution
from cellfork.guest.jupyter.places import Places
from cellfork.guest.jupyter.process import KernelProcess, end_alike
from cellfork.guest.jupyter.specs import KernelSpec
from cellfork.guest.python.content import NOTHING, Content, encode_error
from cellfork.guest.python.failures import Failure
from cellfork.guest.python.image import Image
from cellfork.guest.python.streams import STDERR, STDOUT
from cellfork.guest.python.transport import Inbox, Reporter
from cellfork.guest.wakeup import Wakeup
from cellfork.wire.frames import Frame, encode

if TYPE_CHECKING:
    from cellfork.guest.jupyter.connection import Connection, Message

READY_SECONDS = 27.0
"""How long a kernel may take to answer: a little less than the host waits, so that what it printed can be told."""
ASK_AGAIN = 0.05
DRAIN_SECONDS, DRAIN_PAUSE_MS = 0.5, 8
STREAMS = {"stdout": STDOUT, "stderr": STDERR}
QUESTION_LIMIT = 65536
BARRIER = "cellfork"
FLUSH_SECONDS = 20.0
INTERNAL = ("shell", "iopub", "stdin", "control")
NAME = "cellfork-bridge"
MISSING = "the bridge to Jupyter kernels needs jupyter_client and pyzmq: pip install 'cellfork[languages]'"


def run(
    spec: KernelSpec,
    memory: int | None,
    image: Image,
    connection: socket.socket,
    nonce: bytes,
    marker_fds: tuple[int, int],
) -> NoReturn:
    """Serve executions with the kernel of ``spec`` until init closes the connection or the kernel ends.

    ``memory`` is what the sandbox has, in bytes.  The other arguments are those of
    :func:`cellfork.guest.python.kernel.run`.  Says ``settled`` when the kernel waits for code, or what went wrong.
    """
    code = 1
    try:
        linux.set_name(NAME)
        spec = adjusted(spec, memory, os.environ)
        code = Bridge(spec, image, connection, nonce, marker_fds).serve()
    except Exception:  # noqa: BLE001 - the kernel's boundary: what goes wrong here must be seen by somebody
        traceback.print_exc()
    finally:
        os._exit(code)


class KernelEnded(Exception):
    """The kernel's process is gone."""


class NotReady(Exception):
    """The kernel could not be started; the text is for the user."""


class Bridge:
    """One context's kernel and the way to it."""

    def __init__(
        self,
        spec: KernelSpec,
        image: Image,
        connection: socket.socket,
        nonce: bytes,
        marker_fds: tuple[int, int],
    ) -> None:
        image.outlet.connect(marker_fds, nonce)
        image.reporter.connect(connection, lambda _stream: None)
        sys.stdout, sys.stderr = image.stdout, image.stderr
        self._outlet = image.outlet
        self._reporter: Reporter = image.reporter
        self._inbox = Inbox(connection)
        self._spec = spec
        self._process: KernelProcess
        self._kernel: Connection
        self._count = 0
        self._execution: Execution | None = None
        self._quiet: deque[str] = deque(maxlen=8)
        self._value: Message | None = None
        self._wakeup = Wakeup()
        self._signalled = False
        self._sent = self._arrived = 0
        self._died = 0.0
        self._written = False
        self._amid_noise = False
        signal.signal(signal.SIGINT, self._on_interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def serve(self) -> int:
        """Run what init sends; return the exit code of the process."""
        directory = tempfile.mkdtemp(prefix=".kernel-", dir=_private_place())
        try:
            return self._serve_in(directory)
        except NotReady as problem:
            self._inbox.connection.sendall(encode({"op": "settled", "problem": str(problem)}))
            return 1
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _serve_in(self, directory: str) -> int:
        self._start(directory)
        try:
            self._await_ready()
            self._process.listen(self._on_text if not self._spec.repeats_output else _drop)
            self._inbox.connection.sendall(encode({"op": "settled"}))
            return self._serve()
        except KernelEnded:
            shutil.rmtree(directory, ignore_errors=True)
            return end_alike(self._process.status)
        finally:
            self._process.end()

    # ------------------------------------------------------------------ the kernel's start

    def _start(self, directory: str) -> None:
        """Start the kernel, and get ready to speak with it while it does so.  Raises :class:`NotReady`."""
        file = os.path.join(directory, "connection.json")
        places = Places.fresh(directory, self._spec.transport)
        places.write(file)
        try:
            self._process = KernelProcess(self._spec.command(file), {**os.environ, **self._spec.env})
        except OSError as error:
            raise NotReady(f"{self._spec.argv[0]}: {error.strerror}") from error
        try:
            from cellfork.guest.jupyter.connection import Connection  # 0.1 s, and nobody else needs it
        except ImportError as error:
            self._process.end()
            raise NotReady(MISSING) from error
        self._kernel = Connection(places)

    def _await_ready(self) -> None:
        """Ask until the kernel answers on both ways, then prepare it.  Raises :class:`NotReady`."""
        deadline = time.monotonic() + READY_SECONDS
        try:
            self._ask_until_answered(deadline)
            if self._spec.setup:
                self._run(self._spec.setup, Execution(quiet=True))
        except KernelEnded:
            self._process.read()
            status = self._process.status
            end = f"code {status}" if status >= 0 else f"signal {-status}"
            raise NotReady(self._complaint(f"its process ended with {end}")) from None

    def _ask_until_answered(self, deadline: float) -> None:
        answered = {"shell": False, "iopub": False}
        self._kernel.send("shell", "kernel_info_request", {})
        while time.monotonic() < deadline:
            self._process.read()
            for channel in self._poll(ASK_AGAIN):
                for message in self._kernel.receive(channel):
                    if message["header"]["msg_type"] in {"kernel_info_reply", "status"}:
                        answered[channel] = True
            if answered["shell"] and answered["iopub"]:
                return
            if answered["shell"]:  # the subscription came too late
                self._kernel.send("shell", "kernel_info_request", {})
        raise NotReady(self._complaint(f"it did not answer within {READY_SECONDS:g} s"))

    def _complaint(self, what: str) -> str:
        words = self._process.words.decode("utf-8", "replace").strip()
        return f"the kernel {self._spec.name!r} did not get ready: {what}" + (f"\n{words}" if words else "")

    # ------------------------------------------------------------------ the poll

    def _poll(self, seconds: float | None = None) -> list[str]:
        """Wait; take what came of init, the pipes and the signals; return the channels that have something.

        Raises :class:`KernelEnded` when everything that a dead kernel said has been taken.
        """
        import zmq

        poller = zmq.Poller()
        sockets, inbox, process = self._kernel.sockets, self._inbox.connection.fileno(), self._process
        for channel in INTERNAL:
            poller.register(sockets[channel], zmq.POLLIN)
        for fd in (process.death, inbox, self._wakeup.fileno(), *process.pipes):
            poller.register(fd, zmq.POLLIN)
        ready = dict(poller.poll(None if seconds is None else max(0, int(seconds * 1000 + 0.5))))
        found = [channel for channel in INTERNAL if sockets[channel] in ready]
        self._written = any(fd in ready for fd in process.pipes)
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        if inbox in ready and not self._inbox.read():
            self._leave()
        return found or (self._last_messages() if process.death in ready else [])

    def _last_messages(self) -> list[str]:
        """Return where a kernel that is dead has left messages.  Raises :class:`KernelEnded` when there are none.

        Children of the kernel may hold its sockets and pipes, so there is an end to it.
        """
        import zmq

        self._died = self._died or time.monotonic()
        read, sockets = self._process.read(), self._kernel.sockets
        if time.monotonic() < self._died + DRAIN_SECONDS:
            found = [name for name in INTERNAL if sockets[name].poll(DRAIN_PAUSE_MS, zmq.POLLIN)]
            if found or read:
                return found
        raise KernelEnded

    def _turn(self, most: float | None = None) -> None:
        """Wait for something to happen, for ``most`` seconds, and deal with it."""
        execution = self._execution
        seconds = most if execution is None else execution.wait()
        if seconds == 0.0 and execution is not None:
            self._press(execution)
            return
        for channel in self._poll(seconds):
            self._pass_on(channel)
        if self._written:  # after the messages: a child takes longer to start than a message to arrive
            self._process.read()
        if execution is not None and not execution.quiet and self._signalled:
            self._signalled = False
            execution.interrupted = True

    def _leave(self) -> NoReturn:
        """End: init is gone, or has dropped this kernel, and nobody would ever read what this process does."""
        self._process.end()
        os._exit(0)

    # ------------------------------------------------------------------ executions

    def _serve(self) -> int:
        while True:
            frame = self._inbox.take()
            if frame is None:
                self._turn()
            elif frame.header["op"] == "execute" and self._execute(frame):
                return 0

    def _execute(self, frame: Frame) -> bool:
        """Run a cell and report its end; return whether it asked the kernel to leave."""
        header = frame.header
        self._reporter.begin(header["execution"], int(header.get("result", 0)) or self._reporter.result_limit)
        if self._signalled:
            self._signalled = False
            self._reporter.missed()
        envs = header.get("envs") or {}
        execution = Execution(stdin=bool(header.get("stdin")))
        failure = self._set_variables(envs)
        if failure is None:
            execution = self._run(
                frame.body.decode("utf-8", "replace"), execution, silent=bool(header.get("silent"))
            )
            failure = self._renamed(execution.failure())
            self._flush()
            self._show_value(main=failure is None)
        if envs and variables.are_known(self._spec.language):
            self._run(variables.restore_all(self._spec.language), Execution(quiet=True))
        self._report(execution, failure)
        return execution.leaves

    def _renamed(self, failure: Failure | None) -> Failure | None:
        if failure is None or failure.status != "error" or self._spec.rename is None:
            return failure
        name, value = self._spec.rename(failure.name, failure.value)
        return failure._replace(name=name, value=value)

    def _report(self, execution: Execution, failure: Failure | None) -> None:
        own = None if self._spec.counts_everything else execution.count
        self._count = own or self._count + 1
        content: Content = NOTHING if failure is None else encode_error(failure.value, failure.traceback)
        self._reporter.done(
            {
                "status": "ok" if failure is None else failure.status,
                "count": self._count,
                "next_count": None if execution.leaves else self._count + 1,
                "name": None if failure is None else failure.name[:1024],
            },
            content,
        )

    def _set_variables(self, envs: Mapping[str, str]) -> Failure | None:
        """Set variables for one execution; return why that cannot be, ``None`` where it could."""
        if not envs:
            return None
        language = self._spec.language
        if not variables.are_known(language):
            text = f"the kernel {self._spec.name!r} has no way to set variables for one run; give them to the context"
            return Failure("error", "Unsupported", text, text)
        return self._run(variables.set_all(language, envs), Execution(quiet=True)).failure()

    def _run(self, code: str, execution: Execution, *, silent: bool = False) -> Execution:
        """Run code, pass on what it produces; return ``execution``, which tells how it ended."""
        content = {
            "code": code,
            "silent": execution.quiet,
            "store_history": not (execution.quiet or silent),
            "user_expressions": {},
            "allow_stdin": execution.stdin,
            "stop_on_error": False,
        }
        self._execution = execution
        execution.id = self._kernel.send("shell", "execute_request", content)
        if (
            execution.quiet and not self._spec.barrier
        ):  # where there is one, late words of a cell look like ours
            self._quiet.append(execution.id)
        try:
            while not execution.is_over:
                self._turn()
                self._answer(execution)
            self._process.read()
        finally:
            self._execution = None
        return execution

    def _flush(self) -> None:
        """Wait until all that the cell has said is here."""
        if not self._spec.barrier:
            return
        self._sent += 1
        asked = self._run(self._spec.barrier.replace("%d", str(self._sent)), Execution(quiet=True))
        if asked.failure() is not None:
            return
        deadline = time.monotonic() + FLUSH_SECONDS
        while self._arrived < self._sent and time.monotonic() < deadline:
            self._turn(FLUSH_SECONDS)

    def _pass_on(self, channel: str) -> None:
        for message in self._kernel.receive(channel):
            handler = _HANDLERS.get((channel, message["header"]["msg_type"]))
            if handler is not None and not (handler in _SEEN and self._is_quiet(message)):
                handler(self, message)

    def _is_quiet(self, message: "Message") -> bool:
        return message["parent_header"].get("msg_id") in self._quiet

    def _belongs(self, message: "Message") -> "Execution | None":
        """Return the execution that a message is of, ``None`` for those of others."""
        execution = self._execution
        if execution is None or message["parent_header"].get("msg_id") != execution.id:
            return None
        return execution

    # ------------------------------------------------------------------ what it says

    def _on_text(self, stream: int, data: bytes) -> None:
        """Take what the kernel, or a child of it, wrote past the protocol."""
        if stream == STDERR and self._spec.noise:
            data = self._without_noise(data)
        if data:
            self._show_value()
            self._outlet.write(stream, data)

    def _without_noise(self, data: bytes) -> bytes:
        """Take out lines of the kernel's own; they may come in pieces."""
        kept = []
        for line in data.splitlines(keepends=True):
            self._amid_noise = self._amid_noise or line.startswith(self._spec.noise)
            if not self._amid_noise:
                kept.append(line)
            if line.endswith(b"\n"):
                self._amid_noise = False
        return b"".join(kept)

    def _on_stream(self, message: "Message") -> None:
        name, text = str(message["content"].get("name")), message["content"].get("text")
        stream = STREAMS.get(name)
        if self._spec.barrier and name == BARRIER and str(text).isdecimal():
            self._arrived = min(int(str(text)[:9]), self._sent)
        if stream is not None and isinstance(text, str) and text:
            self._show_value()
            self._outlet.write(stream, text.encode("utf-8", "backslashreplace"))

    def _on_display(self, message: "Message") -> None:
        self._show_value()
        explicit = _a_dict(message["content"].get("metadata")).pop(EXPLICIT, None)
        if self._spec.values_are_displays and self._belongs(message) is not None and not explicit:
            self._value = message  # the last one is the cell's: which that is, the next one tells, or the end
        else:
            self._show(message, main=message["header"]["msg_type"] == "execute_result")

    def _show_value(self, *, main: bool = False) -> None:
        """Send the value that waits, if one does."""
        message, self._value = self._value, None
        if message is not None:
            self._show(message, main=main)

    def _show(self, message: "Message", *, main: bool) -> None:
        content = message["content"]
        update = message["header"]["msg_type"] == "update_display_data"
        display_id = _text_or_none(_a_dict(content.get("transient")).get("display_id"))
        if update and display_id is None:
            return  # of what?
        self._reporter.display(
            _a_dict(content.get("data")),
            _a_dict(content.get("metadata")),
            display_id=display_id,
            update=update,
            main=main,
        )

    def _on_clear(self, message: "Message") -> None:
        self._show_value()
        self._reporter.clear(bool(message["content"].get("wait")))

    def _on_error(self, message: "Message") -> None:
        execution = self._belongs(message)
        if execution is not None:
            execution.error = message["content"]

    def _on_status(self, message: "Message") -> None:
        execution = self._belongs(message)
        if execution is not None:
            execution.begin()
            execution.idle = message["content"].get("execution_state") == "idle"

    def _on_reply(self, message: "Message") -> None:
        execution = self._belongs(message)
        if execution is not None:
            execution.reply = message["content"]

    # ------------------------------------------------------------------ questions and interrupts

    def _on_question(self, message: "Message") -> None:
        execution, content = self._execution, message["content"]
        self._show_value()
        if execution is not None and execution.stdin:
            prompt = str(content.get("prompt", ""))[:QUESTION_LIMIT]
            self._reporter.ask(prompt, bool(content.get("password")))
        elif execution is not None:
            execution.refused = True  # nobody will answer, and the kernel would wait for ever

    def _answer(self, execution: Execution) -> None:
        """Pass answers of the client on; frames for later stay where they are."""
        for frame in self._inbox.take_all("input"):
            if frame.header.get("execution") == self._reporter.execution and not execution.quiet:
                value = frame.body.decode("utf-8", "replace")
                self._kernel.send("stdin", "input_reply", {"value": value})

    def _on_interrupt(self, _number: int, _frame: Any) -> None:
        """Be the handler of SIGINT, after which the poll wakes, which knows whether there is anything to interrupt."""
        self._signalled = True

    def _press(self, execution: Execution) -> None:
        """Interrupt the kernel; end one that cannot be interrupted in what it does."""
        patience = self._spec.patience
        if patience is not None and execution.is_deaf(patience):
            self._process.end()
            raise KernelEnded
        execution.press()
        if self._spec.message_interrupts:
            self._kernel.send("control", "interrupt_request", {})
        else:
            self._process.interrupt()


_HANDLERS: Mapping[tuple[str, str], Callable[[Bridge, "Message"], None]] = {
    ("iopub", "stream"): Bridge._on_stream,
    ("iopub", "display_data"): Bridge._on_display,
    ("iopub", "execute_result"): Bridge._on_display,
    ("iopub", "update_display_data"): Bridge._on_display,
    ("iopub", "clear_output"): Bridge._on_clear,
    ("iopub", "error"): Bridge._on_error,
    ("iopub", "status"): Bridge._on_status,
    ("shell", "execute_reply"): Bridge._on_reply,
    ("stdin", "input_request"): Bridge._on_question,
}
_SEEN = {Bridge._on_stream, Bridge._on_display, Bridge._on_clear}
"""What a user would see."""


def _drop(_stream: int, _data: bytes) -> None:
    """Do nothing."""


def _private_place() -> str:
    """Return where the kernel's directory is made: in the sandbox's own /tmp, or in its home where /tmp is everybody's."""
    return "/tmp" if os.getppid() == 1 else os.path.expanduser("~")


def _a_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)[:1024]
