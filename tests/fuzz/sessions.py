"""Targets: a whole engine over a guest that says anything, beside one that says what it should.

The model: sandbox A is hostile on every channel but one, on which an honest kernel works; sandbox B is honest.  Whatever
A says, B's execution and, while A lives, the honest one in A come out as if nothing else had been said.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from cellfork.engine.engine import Engine
from cellfork.engine.executions import RunningExecution
from cellfork.engine.recorder import RESULTS_FACTOR
from cellfork.engine.replay import EventLog
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings
from cellfork.model import events
from cellfork.model.errors import CellforkError, ProtocolViolation
from cellfork.model.execution import fold
from cellfork.model.limits import Limits
from cellfork.model.specs import ContextSpec, ExecSpec, ExecuteRequest, SandboxSpec
from cellfork.runtimes.connection import Connection
from cellfork.testing.fakes import FakeClock, FakeGuest, FakeKernel, FakeRuntime, settle
from cellfork.wire.frames import CHUNK, Frame
from cellfork.wire.messages import FROM_CONTEXT, FROM_INIT, REPLY
from tests.fuzz.choices import Choices

Call = Callable[[str], Coroutine[Any, Any, Any]]

LIMITS = Limits(output=64, result=256, results=5)
HONEST, HOSTILE = 1, 2
"""Channels: contexts get theirs in the order of their first executions."""
MOST_EVENTS = 4000

TEXTS = (
    "",
    "x",
    "d1",
    "d2",
    "ok",
    "error",
    "interrupted",
    "stdout",
    "stderr",
    "pty",
    "create",
    "not_found",
    "\x1b[2J\r\n",
    "é" * 40,
)
NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, -1, 255, 2**31, 2**63 - 1, -(2**63), 2**63, 10**30)
VALUES: tuple[Any, ...] = (None, True, False, 1.5, [], {}, [[]], {"a": {"b": [1, None]}}, "text", 7)
PARTS: tuple[Any, ...] = (
    [],
    [["text/plain", "s", 2]],
    [["text/plain", "s", 0]],
    [["application/json", "j", 2]],
    [["image/png", "b", 4], ["x/\r\n", "s", 0]],
    [["value", "s", 1], ["traceback", "s", 1]],
    [["value", "j", 2]],
    [["value", "b", 1]],
    [["a/b", "s", 300]],
    [["a/b", "s", -1]],
    [["a/b", "q", 1]],
    [[]],
    [1],
)
BODIES = (
    b"",
    b"x",
    b"[]",
    b"{}",
    b"text",
    bytes(300),
    b"\xff\xfe",
    "é€😀".encode(),
    b'{"name": 5}\n',
    b"[" * 300,
)
RESULTS: tuple[Any, ...] = (
    {},
    {"pid": 5},
    {"pid": "five"},
    {"handle": 1},
    {"handle": "one"},
    {"size": 4, "truncated": True},
    {"created": 1},
    {
        "name": "n",
        "path": "/n",
        "type": "file",
        "size": 1,
        "mode": 420,
        "owner": "u",
        "group": "g",
        "mtime": 10**18,
        "target": None,
    },
    {
        "name": "n",
        "path": "/n",
        "type": "file",
        "size": 1,
        "mode": 420,
        "owner": "u",
        "group": "g",
        "mtime": 10**300,
        "target": None,
    },
    {"name": "n", "path": "/n", "type": "device"},
)


class SilentGuest(FakeGuest):
    """Answers nothing by itself: every answer is the fuzzer's."""

    def _receive(self, header: dict[str, Any], body: bytes, channel: int) -> None:
        return


class Session:
    """One engine with both sandboxes, and everything that was begun in it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.runtime = FakeRuntime()
        self.engine = Engine({"fake": self.runtime}, Settings(clock=self.clock, queue=4, kept_executions=4))
        self.told: dict[str, list[events.Event]] = {}
        self.executions: list[RunningExecution] = []
        self.tasks: list[asyncio.Task[Any]] = []

    async def open(self) -> None:
        """Start both sandboxes, an honest execution in each, and one that the hostile guest may speak for."""
        self.guests = {name: await self._guest() for name in "AB"}
        (self.a, self.guest), (self.b, guest_b) = self.guests["A"], self.guests["B"]
        self.kernels = [
            self._honest(self.guest, self._start(self.a, "honest")),
            self._honest(guest_b, self._start(self.b, "honest")),
        ]
        for sandbox, guest in self.guests.values():
            assert sandbox.contexts.default().running
            guest.say({"op": "reply", "id": 1, "ok": True, "result": {}})
        self.hostile = await self._context()
        self._start(self.a, "hostile", self.hostile)
        for kernel in self.kernels:
            kernel.stdout("one\n")

    async def _guest(self) -> tuple[Sandbox, FakeGuest]:
        made: list[FakeGuest] = []
        spec = SandboxSpec(isolation="fake", limits=LIMITS, timeout=None)

        class Runtime(FakeRuntime):
            async def start(self, spec: SandboxSpec) -> FakeGuest:
                made.append(SilentGuest(spec))
                return made[0]

        self.engine._runtimes = {"fake": Runtime()}
        return await self.engine.create(spec), made[0]

    async def _context(self) -> str:
        """Make a second context in A: its kernel is asked for with its first execution."""
        return self.a.contexts._add(ContextSpec()).id

    @staticmethod
    def _honest(guest: FakeGuest, execution: RunningExecution) -> FakeKernel:
        return FakeKernel(guest, HONEST, execution.id, count=1)

    def _start(
        self, sandbox: Sandbox, code: str, context: str | None = None, **fields: Any
    ) -> RunningExecution:
        told: list[events.Event] = []
        running = sandbox.start(context, ExecuteRequest(code, **fields), on_event=told.append)
        self.told[running.id] = told
        self.executions.append(running)
        return running

    # ------------------------------------------------------------------------------ what happens

    async def step(self, choices: Choices) -> None:
        """Let the guest say something, or the caller do something."""
        kind = choices.byte() % 32
        if kind < 24:
            self._say(choices)
        elif kind == 24:
            await settle()
        else:
            self._do(kind, choices)

    def _say(self, choices: Choices) -> None:
        channel = choices.pick((HOSTILE, HOSTILE, HOSTILE, 0, 0, 3, 4, 99))
        table = FROM_CONTEXT if channel else FROM_INIT
        op = choices.pick([*table, *table, "unknown", *FROM_INIT, *FROM_CONTEXT])
        header: dict[str, Any] = {"op": op}
        fields = dict(table.get(op, {}))
        if op == "reply":
            header["ok"] = not choices.chance(3)
            fields = {"id": (int,), **REPLY[header["ok"]]}
        for name, types in fields.items():
            header[name] = self._field(name, types, choices)
        self.guest.say(header, choices.pick(BODIES), channel)

    def _field(self, name: str, types: tuple[type, ...], choices: Choices) -> Any:
        if choices.chance(64):
            return choices.pick(VALUES)
        if name == "execution":
            return choices.pick([running.id for running in self.executions[-8:]] + ["x"])
        if name == "parts":
            return choices.pick(PARTS)
        if name == "result":
            return choices.pick(RESULTS)
        kind = choices.pick(types)
        if kind is int:
            return choices.pick(NUMBERS)
        if kind is bool:
            return choices.chance(2)
        if kind is str:
            return choices.pick(TEXTS)
        return None if kind is type(None) else {}

    def _do(self, kind: int, choices: Choices) -> None:
        try:
            self._act(kind, choices)
        except CellforkError:
            return

    def _act(self, kind: int, choices: Choices) -> None:
        sandbox = self.a
        match kind:
            case 25:
                self._start(
                    sandbox,
                    "more",
                    self.hostile,
                    allow_input=choices.chance(2),
                    timeout=choices.pick((None, 1.0)),
                )
            case 26:
                self._task(self.clock.advance(choices.pick((0.1, 1.0, 3.0, 40.0))))
            case 27:
                target = sandbox.contexts.get(self.hostile)
                if choices.chance(4):
                    self._task(target.restart())
                else:
                    target.interrupt()
            case 28:
                running = self.executions[-1]
                running.provide_input("answer")
            case 29:
                exec_ = sandbox.execs.create(ExecSpec(("cat",)), timeout=1.0)
                self._task(exec_)
            case 30:
                files = sandbox.files
                write: Call = partial(files.write, data=b"content")
                calls: tuple[Call, ...] = (
                    files.read,
                    files.list,
                    files.stat,
                    files.make_dir,
                    files.remove,
                    write,
                )
                self._task(choices.pick(calls)("/x"))
            case _:
                self._task(sandbox.watches.start("/x"))

    def _task(self, work: Any) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    # ------------------------------------------------------------------------------ what must hold

    async def close(self) -> None:
        """End what is honest, close everything, check."""
        for kernel in self.kernels:
            kernel.stdout("two\n")
            kernel.done()
        alive = self.a.state == "running"
        await settle()
        self._check_honest(alive=alive)
        await self.engine.aclose()
        await self.clock.advance(100.0)
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert not isinstance(outcome, BaseException) or isinstance(outcome, CellforkError), outcome
        for running in self.executions:
            check_execution(running, self.told[running.id])

    def _check_honest(self, *, alive: bool) -> None:
        honest_in_a, honest_in_b = self.executions[:2]
        check_untouched(honest_in_b)
        if alive:
            check_untouched(honest_in_a)
        else:
            assert honest_in_a.ended


def check_untouched(running: RunningExecution) -> None:
    execution = running.execution
    assert execution.status == "ok", execution
    assert "".join(execution.logs.stdout) == "one\ntwo\n"
    assert (execution.results, execution.logs.stderr, execution.execution_count) == ([], [], 1)


def check_execution(running: RunningExecution, told: list[events.Event]) -> None:
    """Exactly one terminal event, the last; numbers without a gap; the fold is the execution; bounds hold."""
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    terminals = [event for event in told if isinstance(event, events.Terminal)]
    assert len(terminals) == 1
    assert told[-1] is terminals[0]
    assert all(isinstance(event, events.Started) == (at == 0) for at, event in enumerate(told[:-1]))
    again = fold(told)
    execution = running.execution
    assert (again.results, again.logs, again.error, again.status) == (
        execution.results,
        execution.logs,
        execution.error,
        execution.status,
    )
    check_bounds(running)
    execution.to_json().encode()


def check_bounds(running: RunningExecution) -> None:
    execution = running.execution
    for pieces in (execution.logs.stdout, execution.logs.stderr):
        assert sum(map(len, pieces)) <= LIMITS.output_bytes + CHUNK + 4096
    assert len(execution.results) <= LIMITS.results + 1
    log: EventLog = running._recorder.log
    assert (
        running.kept_bytes <= RESULTS_FACTOR * (LIMITS.result_bytes + CHUNK) + 2 * LIMITS.output_bytes + CHUNK
    )
    assert sum(isinstance(event, events.Clear) for event in log.since(0)) <= 2
    assert log.closed


# ------------------------------------------------------------------------------------------- the targets


def run(data: bytes) -> None:
    """Play one session; see :class:`Session`."""
    play(_session(Choices(data)))


async def _session(choices: Choices) -> None:
    session = Session()
    await session.open()
    while choices:
        await session.step(choices)
    await session.close()


def connection(data: bytes) -> None:
    """Bytes on a connection become frames that passed the check, then exactly one end; nothing comes after it."""
    play(_connection(data))


async def _connection(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    frames: list[Frame] = []
    ends: list[ProtocolViolation | None] = []

    def on_frame(frame: Frame) -> None:
        assert not ends
        frames.append(frame)

    reader = Connection(ours, on_frame, ends.append)
    with theirs:
        cut = data[0] % (len(data) + 1) if data else 0
        theirs.sendall(data[:cut])
        await asyncio.sleep(0)
        theirs.sendall(data[cut:])
    for _ in range(5):
        await asyncio.sleep(0)
    reader.close()
    assert len(ends) == 1


class _Loop:
    """One event loop for all inputs; what escapes into it is remembered."""

    loop: asyncio.AbstractEventLoop | None = None
    escaped: list[BaseException]


def play(work: Any) -> None:
    """Run one input in the event loop; raise what escaped into the loop's own handler."""
    loop = _Loop.loop
    if loop is None or loop.is_closed():
        loop = _Loop.loop = asyncio.new_event_loop()
        loop.set_exception_handler(_remember)
    _Loop.escaped = []
    loop.run_until_complete(work)
    if _Loop.escaped:
        raise _Loop.escaped[0]


def close_loop() -> None:
    """Give the loop back."""
    loop, _Loop.loop = _Loop.loop, None
    if loop is not None:
        loop.close()


def _remember(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _Loop.escaped.append(context.get("exception") or AssertionError(context["message"]))
