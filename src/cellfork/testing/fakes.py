"""Fakes that run in-process: a runtime and a guest that speak the wire's messages, a clock that is set by hand.

::

    runtime = FakeRuntime()
    engine = Engine({"fake": runtime}, Settings(clock=FakeClock()))
    sandbox = await engine.create(SandboxSpec(isolation="fake"))
    guest = runtime.guests[0]  # what was sent: guest.sent; what to say: guest.say(...)

A :class:`FakeGuest` answers requests as :data:`OPERATIONS` says, unless its ``script`` says otherwise.  Code and commands
are lines of a small language: see :func:`echo` and :func:`run_command`.
"""

import asyncio
import heapq
import itertools
import json
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cellfork.model.errors import (
    CellforkError,
    Conflict,
    PathNotFound,
    PortClosed,
    ProtocolViolation,
    SandboxGone,
    StartupFailed,
    Unsupported,
)
from cellfork.model.events import KillReason
from cellfork.model.languages import KNOWN
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes.base import CloseHandler, FrameHandler, Network, RuntimeReport, Stock, Usage
from cellfork.runtimes.kept import Kept, KeptKernel, KeptProcess
from cellfork.wire.bundles import encode_bundle
from cellfork.wire.frames import CHUNK, Frame, encode
from cellfork.wire.messages import check_from_guest

Header = dict[str, Any]
Script = Callable[["FakeGuest", Header, bytes], Header | None]
KernelScript = Callable[["FakeKernel", str], None]


@dataclass
class FakeTimer:
    """A call that is due when the fake clock gets there."""

    callback: Callable[[], object] | None

    def cancel(self) -> None:
        """Do nothing when the time comes."""
        self.callback = None


class FakeClock:
    """A clock that stands still until :meth:`advance`."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = itertools.count()

    def time_ns(self) -> int:
        """Unix time in nanoseconds."""
        return int(self._now * 1e9)

    def monotonic(self) -> float:
        """Seconds."""
        return self._now

    def later(self, seconds: float, callback: Callable[[], object]) -> FakeTimer:
        """Call ``callback`` when the clock was advanced by ``seconds``."""
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (self._now + seconds, next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Let time pass: call what is due, in order, and let the event loop settle after each call."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
            await settle()
        self._now = end
        await settle()


async def settle() -> None:
    """Let everything that can happen now happen."""
    for _ in range(10):
        await asyncio.sleep(0)


@dataclass
class FakeKernel:
    """What a script says on behalf of the kernel of one channel, about the execution that it was given."""

    guest: "FakeGuest"
    channel: int
    execution: str = ""
    count: int = 0
    header: Header = field(default_factory=dict)
    label: str = ""

    def say(self, op: str, body: bytes = b"", **fields: Any) -> None:
        """Send any message on this channel."""
        self.guest.say({"op": op, **fields}, body, self.channel)

    def stdout(self, data: bytes | str, dropped: int = 0) -> None:
        """Write to stdout."""
        self.say("stdout", _bytes(data), execution=self.execution, dropped=dropped)

    def stderr(self, data: bytes | str, dropped: int = 0) -> None:
        """Write to stderr."""
        self.say("stderr", _bytes(data), execution=self.execution, dropped=dropped)

    def display(self, data: dict[str, Any], *, main: bool = False, display_id: str | None = None) -> None:
        """Show a bundle."""
        parts, body = encode_bundle(data)
        fields: Header = {"parts": parts, "metadata": {}, "display_id": display_id, "main": main}
        self.say("display", body, execution=self.execution, **fields)

    def update(self, data: dict[str, Any], display_id: str) -> None:
        """Show something else in a display."""
        parts, body = encode_bundle(data)
        self.say("update", body, execution=self.execution, parts=parts, metadata={}, display_id=display_id)

    def artifacts(self, entries: object, *, truncated: bool = False) -> None:
        """Tell which files the execution made."""
        self.say("artifacts", json.dumps(entries).encode(), execution=self.execution, truncated=truncated)

    def done(self, status: str = "ok", name: str | None = None, value: str = "", traceback: str = "") -> None:
        """End the execution."""
        parts, body = encode_bundle({"value": value, "traceback": traceback}) if name else ([], b"")
        fields = {"status": status, "count": self.count, "next_count": self.count + 1, "name": name}
        self.say("done", body, execution=self.execution, parts=parts, **fields)

    def exit(self, code: int | None = 0, signal: int | None = None) -> None:
        """End the kernel."""
        self.guest.kernels.pop(self.channel, None)
        self.say("kernel_exit", code=code, signal=signal, execution=self.execution or None)


def echo(kernel: FakeKernel, code: str) -> None:
    """Run fake code: the default kernel script.

    ``print TEXT``, ``warn TEXT``, ``show TEXT``, ``raise NAME VALUE``, ``exit CODE``, ``input PROMPT`` (waits for the
    answer, prints it), ``hang`` (until interrupted), ``catch`` (the same, but ends well), ``deaf`` (until
    terminated), ``immortal``; anything else is the value.
    """
    for line in code.splitlines() or [""]:
        word, _, rest = line.partition(" ")
        if word == "print":
            kernel.stdout(rest + "\n")
        elif word == "warn":
            kernel.stderr(rest + "\n")
        elif word == "show":
            kernel.display({"text/plain": rest})
        elif word == "raise":
            name, _, value = rest.partition(" ")
            kernel.done("error", name, value, f"Traceback: {value}")
            return
        elif word == "exit":
            kernel.exit(int(rest))
            return
        elif word == "input":
            kernel.say("input_request", execution=kernel.execution, prompt=rest, password=False)
            return
        elif word in {"hang", "catch", "deaf", "immortal"}:
            kernel.guest.hanging[kernel.channel] = word
            return
        elif line:
            kernel.display({"text/plain": line}, main=True)
    kernel.done()


@dataclass
class FakeProcess:
    """What a script says on behalf of a command."""

    guest: "FakeGuest"
    number: int
    deaf: bool = False
    request: Header = field(default_factory=dict)

    def write(self, data: bytes | str, stream: str = "stdout") -> None:
        """Write to a stream."""
        self.guest.say({"op": "process.output", "process": self.number, "stream": stream}, _bytes(data))

    def exit(self, code: int = 0, signal: int | None = None) -> None:
        """End the command."""
        self.guest.processes.pop(self.number, None)
        self.guest.say({"op": "process.exit", "process": self.number, "code": code, "signal": signal})


def run_command(process: FakeProcess, command: str, stream: str) -> None:
    """Run a fake command: ``print TEXT``, ``warn TEXT``, ``exit CODE``, ``hang`` (until a signal), ``deaf`` (until SIGKILL),
    ``cat`` (until the end of its input), one after the other, separated by ``;``.
    """
    for line in command.split(";"):
        word, _, rest = line.strip().partition(" ")
        if word in {"print", "warn"}:
            process.write(rest + "\n", stream if word == "print" else "stderr")
        elif word == "exit":
            process.exit(int(rest))
            return
        elif word in {"hang", "deaf", "cat"}:
            process.deaf = word == "deaf"
            return
    process.exit()


class FakeGuest:
    """A guest in this process.  ``sent`` lists the frames it got, ``script`` overrides replies by ``op``."""

    def __init__(self, spec: SandboxSpec, run: KernelScript = echo) -> None:
        self.isolation = "fake"
        self.info: Mapping[str, Any] = {"pid": 1}
        self.network: Network | None = None
        self.spec = spec
        self.sent: list[Frame] = []
        self.script: dict[str, Script] = {}
        self.kernels: dict[int, FakeKernel] = {}
        self.hanging: dict[int, str] = {}
        self.processes: dict[int, FakeProcess] = {}
        self.files: dict[str, bytes] = {}
        self.uploads: dict[int, tuple[str, bytes]] = {}
        self.missing_programs: set[str] = set()
        self.run = run
        self.killed: list[KillReason] = []
        self.record: Mapping[str, Any] | None = None
        self.left = False
        self.ports: dict[int, tuple[str, int]] = {}
        """Where on this machine each port of the sandbox really is."""
        self.listening: dict[int, tuple[str, int]] = {}
        """Where on this machine each port really is on which the host listens inside."""
        self.frozen = ""
        self.archive = b""
        self.waiting: deque[Frame] = deque()
        self.measured = Usage(cpu_time=1.0, memory=1000, peak_memory=2000)
        self._on_frame: FrameHandler | None = None
        self._on_close: CloseHandler | None = None

    # ------------------------------------------------------------------------------ as the engine sees it

    def attach(self, on_frame: FrameHandler, on_close: CloseHandler) -> None:
        """Remember where to deliver."""
        self._on_frame, self._on_close = on_frame, on_close

    def send(self, header: Header, body: bytes = b"", channel: int = 0) -> None:
        """Take a frame; its effects come at the next turn of the loop."""
        if self.killed or self.left:
            raise SandboxGone("the fake guest is gone")
        encode(header, body[:1], channel)
        self.sent.append(Frame(channel, header, body))
        asyncio.get_running_loop().call_soon(self._receive, header, body, channel)

    async def drain(self) -> None:
        """Return at the next turn of the loop."""
        await asyncio.sleep(0)

    def usage(self) -> Usage:
        """Return ``measured``."""
        return self.measured

    def measure(self) -> Usage:
        """Return ``measured``."""
        return self.measured

    def reset_peak(self) -> None:
        """Do nothing."""

    async def connect(self, port: int) -> socket.socket:
        """Connect to what ``ports`` says."""
        if port not in self.ports:
            raise PortClosed(f"no program listens on port {port} inside the sandbox")
        connection = socket.socket()
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, self.ports[port])
        except OSError as error:
            connection.close()
            raise PortClosed(f"no program listens on port {port} inside the sandbox") from error
        return connection

    async def listen(self, port: int, host: str) -> socket.socket:
        """Listen somewhere on this machine; ``listening`` says where."""
        if port in self.ports:
            raise Conflict(f"port {port} is in use inside the sandbox")
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.listening[port] = listener.getsockname()
        return listener

    freezes = True
    keeps_files = True

    async def freeze(self, *, but_init: bool = False) -> None:
        """Take frames from now on without any effect, but for what init does where it is left out."""
        await asyncio.sleep(0)  # given up here, nothing is held
        self.frozen = "all but init" if but_init else "all"

    async def thaw(self) -> None:
        """Go on with what came meanwhile."""
        self.frozen = ""
        for frame in [*self.waiting]:
            self.waiting.popleft()
            self._receive(frame.header, frame.body, frame.channel)
        await asyncio.sleep(0)

    def leave(self) -> None:
        """Deliver nothing any more; :meth:`FakeRuntime.adopt` gives it to another engine."""
        self.left = True
        self._on_frame = self._on_close = None

    def report(self) -> Kept:
        """Return what another engine is told of this guest."""
        kept = Kept()
        for kernel in self.kernels.values():
            running = kernel.execution if kernel.channel in self.hanging else None
            kept.kernels.append(
                KeptKernel(kernel.channel, kernel.label, running, kernel.count + 1, over=False)
            )
        for process in self.processes.values():
            kept.processes.append(KeptProcess(process.number, 100 + process.number, process.request))
        kept.end(0, 0)
        return kept

    async def kill(self, reason: KillReason = "request", message: str = "") -> None:
        """End; tell it once."""
        if not self.killed:
            self.killed.append(reason)
            self.close(reason, message)
        await asyncio.sleep(0)

    # ------------------------------------------------------------------------------ for tests

    def say(self, header: Header, body: bytes = b"", channel: int = 0) -> None:
        """Deliver a frame to the engine, as a runtime does: what breaks the protocol ends the guest."""
        frame = Frame(channel, header, body)
        try:
            check_from_guest(frame)
        except ProtocolViolation as violation:
            self.close("protocol", str(violation))
        if self._on_frame is not None and self._on_close is not None:
            self._on_frame(frame)

    def close(self, reason: KillReason | None = None, message: str = "") -> None:
        """Deliver the end."""
        handler, self._on_close = self._on_close, None
        if handler is not None:
            handler(reason, message)

    def requests(self, op: str) -> list[Header]:
        """Return the headers of the frames of one kind that were sent."""
        return [frame.header for frame in self.sent if frame.header["op"] == op]

    # ------------------------------------------------------------------------------ behaviour

    def _receive(self, header: Header, body: bytes, channel: int) -> None:
        if self.killed:
            return
        if self.frozen == "all" or (channel and self.frozen):
            self.waiting.append(Frame(channel, header, body))
            return
        if channel:
            self._on_context_frame(header, body, channel)
            return
        operate = self.script.get(header["op"]) or OPERATIONS.get(header["op"], _succeed)
        try:
            result = operate(self, header, body)
        except CellforkError as error:
            reply = {
                "op": "reply",
                "id": header["id"],
                "ok": False,
                "code": error.code,
                "message": str(error),
            }
            self.say(reply)
            return
        if result is not None:
            self.say({"op": "reply", "id": header["id"], "ok": True, "result": result})

    def _on_context_frame(self, header: Header, body: bytes, channel: int) -> None:
        kernel = self.kernels.get(channel)
        if kernel is None:
            return
        if header["op"] == "execute":
            kernel.execution, kernel.header = header["execution"], header
            kernel.count += 1
            self.run(kernel, body.decode())
        elif header["op"] == "input":
            kernel.stdout(body)
            kernel.done()


def _succeed(guest: FakeGuest, header: Header, body: bytes) -> Header:
    return {}


def _start_context(guest: FakeGuest, header: Header, body: bytes) -> Header:
    if header["language"] not in KNOWN:
        raise Unsupported(f"no kernel for the language {header['language'][:80]!r} in this template")
    guest.kernels[header["context"]] = FakeKernel(guest, header["context"], label=header["label"])
    return {}


def _stop_context(guest: FakeGuest, header: Header, body: bytes) -> Header:
    guest.kernels.pop(header["context"], None)
    return {}


def _interrupt(guest: FakeGuest, header: Header, body: bytes) -> Header:
    kernel, hanging = guest.kernels[header["context"]], guest.hanging.get(header["context"])
    if hanging in {"hang", "catch"}:
        del guest.hanging[header["context"]]
        kernel.done() if hanging == "catch" else kernel.done(
            "interrupted", "KeyboardInterrupt", "", "Traceback"
        )
    return {}


def _terminate(guest: FakeGuest, header: Header, body: bytes) -> Header:
    if guest.hanging.pop(header["context"], None) != "immortal":
        guest.kernels[header["context"]].exit(None, header["signal"])
    return {}


def _start_process(guest: FakeGuest, header: Header, body: bytes) -> Header:
    if header["argv"][0] in guest.missing_programs:
        raise PathNotFound(f"{header['argv'][0]!r}: no such command")
    process = guest.processes[header["process"]] = FakeProcess(guest, header["process"], request=header)
    stream = "pty" if header["pty"] else "stdout"
    asyncio.get_running_loop().call_soon(run_command, process, header["argv"][-1], stream)
    return {"pid": 100 + header["process"]}


def _signal_process(guest: FakeGuest, header: Header, body: bytes) -> Header:
    process = guest.processes.get(header["process"])
    if process is None:
        raise Conflict("the process has ended")
    if not process.deaf or header["signal"] == 9:
        process.exit(128 + header["signal"], header["signal"])
    return {}


def _write_stdin(guest: FakeGuest, header: Header, body: bytes) -> Header:
    process = guest.processes[header["process"]]
    if body:
        process.write(body)
    if header["eof"]:
        process.exit()
    return {}


def _read_file(guest: FakeGuest, header: Header, body: bytes) -> Header:
    content = _content(guest, header["path"])[header["offset"] :]
    content = content[: header["length"]] if header["length"] >= 0 else content
    for start in range(0, len(content), CHUNK):
        guest.say({"op": "chunk", "id": header["id"]}, content[start : start + CHUNK])
    return {"size": len(content)}


def _open_file(guest: FakeGuest, header: Header, body: bytes) -> Header:
    handle = len(guest.uploads) + 1
    guest.uploads[handle] = header["path"], guest.files.get(header["path"], b"") if header["append"] else b""
    return {"handle": handle}


def _write_file(guest: FakeGuest, header: Header, body: bytes) -> Header:
    path, content = guest.uploads[header["handle"]]
    guest.uploads[header["handle"]] = path, content + body
    return {}


def _close_file(guest: FakeGuest, header: Header, body: bytes) -> Header:
    path, content = guest.uploads[header["handle"]]
    if not header["commit"]:
        return {}
    guest.files[path] = content
    return _entry(guest, path)


def _list_files(guest: FakeGuest, header: Header, body: bytes) -> Header:
    lines = "".join(json.dumps(_entry(guest, path)) + "\n" for path in sorted(guest.files))
    guest.say({"op": "chunk", "id": header["id"]}, lines.encode())
    return {"truncated": False}


def _stat_file(guest: FakeGuest, header: Header, body: bytes) -> Header:
    return _entry(guest, header["path"])


def _move_file(guest: FakeGuest, header: Header, body: bytes) -> Header:
    guest.files[header["destination"]] = _content(guest, header["source"])
    del guest.files[header["source"]]
    return _entry(guest, header["destination"])


def _remove_file(guest: FakeGuest, header: Header, body: bytes) -> Header:
    _content(guest, header["path"])
    del guest.files[header["path"]]
    return {}


def _read_archive(guest: FakeGuest, header: Header, body: bytes) -> Header:
    files = {path: content.decode("latin-1") for path, content in guest.files.items()}
    content = json.dumps(files).encode()[header["offset"] :][: header["length"]]
    for start in range(0, len(content), CHUNK):
        guest.say({"op": "chunk", "id": header["id"]}, content[start : start + CHUNK])
    return {"size": len(content), "end": len(content) < header["length"]}


def _write_archive(guest: FakeGuest, header: Header, body: bytes) -> Header:
    guest.archive = guest.archive[: header["offset"]] + body
    if header["end"]:
        files = json.loads(guest.archive)
        guest.files = {path: content.encode("latin-1") for path, content in files.items()}
    return {}


def _content(guest: FakeGuest, path: str) -> bytes:
    if path not in guest.files:
        raise PathNotFound(f"{path!r} does not exist")
    return guest.files[path]


def _entry(guest: FakeGuest, path: str) -> Header:
    size = len(_content(guest, path))
    named = {"name": path.rpartition("/")[2], "path": path, "type": "file", "size": size, "target": None}
    return {**named, "mode": 0o644, "owner": "user", "group": "user", "mtime": 10**18, "lossy": False}


OPERATIONS: dict[str, Script] = {
    "context.start": _start_context,
    "context.stop": _stop_context,
    "languages": lambda _guest, _header, _body: {"ready": sorted(KNOWN)},
    "interrupt": _interrupt,
    "terminate": _terminate,
    "process.start": _start_process,
    "process.signal": _signal_process,
    "process.stdin": _write_stdin,
    "file.read": _read_file,
    "file.open": _open_file,
    "file.write": _write_file,
    "file.close": _close_file,
    "file.list": _list_files,
    "file.stat": _stat_file,
    "file.move": _move_file,
    "file.remove": _remove_file,
    "archive.read": _read_archive,
    "archive.write": _write_archive,
    "file.mkdir": lambda guest, header, body: {"created": True},
}
"""What the default guest does; every other request succeeds with ``{}``."""


class FakeRuntime:
    """Starts fake guests.  ``guests`` lists them; ``on_start`` may raise, or change a new guest.

    With ``keep`` they outlive their engine: another one that uses the same runtime can adopt them.
    """

    name: ClassVar[str] = "fake"

    def __init__(
        self,
        run: KernelScript = echo,
        on_start: Callable[[FakeGuest], None] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.keep = keep
        self.adopted: list[FakeGuest] = []
        self.guests: list[FakeGuest] = []
        self.run = run
        self.on_start = on_start
        self.closed = False

    async def probe(self, *, fresh: bool = False) -> RuntimeReport:
        """Be available."""
        return RuntimeReport(self.name, available=True)

    async def start(self, spec: SandboxSpec) -> FakeGuest:
        """Return a new guest."""
        guest = FakeGuest(spec, self.run)
        if self.on_start is not None:
            self.on_start(guest)
        if self.keep:
            guest.record = {"number": len(self.guests)}
        self.guests.append(guest)
        return guest

    def stock(self, template: Template, tenant: str) -> Stock:
        """Nothing is started ahead."""
        return Stock()

    async def adopt(self, spec: SandboxSpec, record: Mapping[str, Any], first: int) -> tuple[FakeGuest, Kept]:
        """Give a guest to another engine, if it lives."""
        guest = self.guests[record["number"]]
        if guest.killed:
            raise StartupFailed("it has ended")
        guest.left = False
        self.adopted.append(guest)
        return guest, guest.report()

    async def sweep(self) -> None:
        """Kill every guest that was not adopted."""
        for guest in self.guests:
            if guest not in self.adopted:
                await guest.kill("owner")

    async def leave(self) -> None:
        """Let the guests go on."""
        self.closed = True

    async def aclose(self) -> None:
        """Kill every guest."""
        self.closed = True
        for guest in self.guests:
            await guest.kill("owner")


def _bytes(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data
