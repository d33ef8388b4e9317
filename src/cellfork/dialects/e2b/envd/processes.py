"""The service ``process.Process``: processes of one sandbox, started, followed, fed and ended."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from protobuf import Oneof

from cellfork.dialects.e2b.envd import translate
from cellfork.dialects.e2b.envd.access import DEFAULT_USER, USERS, basic_user, resolve
from cellfork.dialects.e2b.envd.follow import follow, keepalive_seconds
from cellfork.dialects.e2b.envd.stubs import process_pb as pb
from cellfork.dialects.e2b.envd.stubs.process_connect import Process
from cellfork.engine.execs import Exec
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError, Conflict, FileError, InvalidRequest, PathNotFound
from cellfork.model.specs import ExecSpec, PtySize

Context = RequestContext[Any, Any]

KEPT_SECONDS = 30.0
"""How long the end of a process is told to whoever connects late."""
MAX_KEPT = 10_000
LATE = 0.1
"""Seconds after the deadline of a start at which its process is killed: the client hears of the deadline first."""
KILL_SECONDS = 1.0
"""How long the answer to a kill waits for its effect."""
SIGNALS = {pb.Signal.SIGTERM: 15, pb.Signal.SIGKILL: 9}
MAX_SIDE = 2**16 - 1


def user_of(ctx: Context) -> str:
    """Return the user that a call names, else the default one.  Raises ``unauthenticated`` for anybody else."""
    user = basic_user(ctx.request_headers.get("authorization"))
    if user is None:
        return DEFAULT_USER
    if user not in USERS:
        raise ConnectError(Code.UNAUTHENTICATED, f"invalid username: '{user[:80]}'")
    return user


class Processes(Process):
    """Implements the service for one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._ended: dict[str, _Ended] = {}
        for exec_ in sandbox.execs.list():  # of a server before this one
            exec_.when_ended(self._remember)

    async def list(self, request: pb.ListRequest, ctx: Context, /) -> pb.ListResponse:
        """Return the processes that run."""
        self._sandbox.check_running()
        return pb.ListResponse(processes=[translate.info_of(exec_) for exec_ in self._running()])

    async def start(self, request: pb.StartRequest, ctx: Context, /) -> AsyncGenerator[pb.StartResponse]:
        """Start a process and tell what it does.  It outlives the stream, and is killed at the call's deadline."""
        spec = _spec_of(request, user_of(ctx))
        # Who goes away while it starts does not end it: from here on it is the sandbox's.
        starting = asyncio.create_task(self._create(spec, ctx.timeout_ms))
        starting.add_done_callback(_look_at)
        exec_ = await asyncio.shield(starting)
        interval = keepalive_seconds(ctx.request_headers.get("keepalive-ping-interval"))
        async with aclosing(follow(exec_, 0, interval)) as events:
            async for event in events:
                yield pb.StartResponse(event=event)

    async def connect(
        self, request: pb.ConnectRequest, ctx: Context, /
    ) -> AsyncGenerator[pb.ConnectResponse]:
        """Tell what a process does from now on; of one that ended a moment ago, how."""
        try:
            exec_ = self._find(request.process)
        except ConnectError:
            end = self._find_ended(request.process)
            if end is None:
                raise
            yield pb.ConnectResponse(event=translate.started(end.pid))
            yield pb.ConnectResponse(event=end.event)
            return
        interval = keepalive_seconds(ctx.request_headers.get("keepalive-ping-interval"))
        async with aclosing(follow(exec_, exec_.log.last, interval)) as events:
            async for event in events:
                yield pb.ConnectResponse(event=event)

    async def update(self, request: pb.UpdateRequest, ctx: Context, /) -> pb.UpdateResponse:
        """Change the size of a terminal."""
        exec_ = self._find(request.process)
        if request.pty is not None:
            if exec_.spec.pty is None:
                raise ConnectError(
                    Code.FAILED_PRECONDITION, "error resizing tty: tty not assigned to process"
                )
            await exec_.resize(_size_of(request.pty))
        return pb.UpdateResponse()

    async def send_input(self, request: pb.SendInputRequest, ctx: Context, /) -> pb.SendInputResponse:
        """Write to the input of a process; return when it has been taken over."""
        await _write(self._find(request.process), request.input)
        return pb.SendInputResponse()

    async def stream_input(
        self, request: AsyncIterator[pb.StreamInputRequest], ctx: Context, /
    ) -> pb.StreamInputResponse:
        """Write many pieces, in their order, to the process that the first message names."""
        exec_: Exec | None = None
        async for message in request:
            match message.event:
                case Oneof(value=pb.StreamInputRequest.StartEvent() as start):
                    exec_ = self._find(start.process)
                case Oneof(value=pb.StreamInputRequest.DataEvent() as data):
                    if exec_ is None:
                        raise InvalidRequest("the first message names the process")
                    await _write(exec_, data.input)
                case Oneof(value=pb.StreamInputRequest.KeepAlive()):
                    pass
                case _:
                    raise ConnectError(Code.UNIMPLEMENTED, "invalid event type")
        return pb.StreamInputResponse()

    async def send_signal(self, request: pb.SendSignalRequest, ctx: Context, /) -> pb.SendSignalResponse:
        """Send SIGTERM or SIGKILL to a process and those that it started; of the latter nothing is left then."""
        exec_ = self._find(request.process)
        number = SIGNALS.get(request.signal)
        if number is None:
            raise ConnectError(Code.UNIMPLEMENTED, f"invalid signal: {request.signal}")
        try:
            await exec_.send_signal(number)
        except Conflict as error:
            raise _Choice.of(request.process).not_found() from error
        if request.signal is pb.Signal.SIGKILL:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(exec_.wait(), KILL_SECONDS)
        return pb.SendSignalResponse()

    async def close_stdin(self, request: pb.CloseStdinRequest, ctx: Context, /) -> pb.CloseStdinResponse:
        """End the input of a process; nothing happens where it has none."""
        exec_ = self._find(request.process)
        if exec_.spec.pty is not None:
            raise ConnectError(
                Code.FAILED_PRECONDITION,
                "error closing stdin: cannot close stdin for PTY process — send Ctrl+D (0x04) instead",
            )
        if exec_.spec.stdin:
            with contextlib.suppress(Conflict):  # closed already
                await exec_.send_stdin(b"", eof=True)
        return pb.CloseStdinResponse()

    # -------------------------------------------------------------------------------------- details

    async def _create(self, spec: ExecSpec, timeout_ms: float | None) -> Exec:
        timeout = None if timeout_ms is None else max(timeout_ms, 0.0) / 1000 + LATE
        try:
            exec_ = await self._sandbox.execs.create(spec, timeout=timeout, deadly=True)
        except FileError as error:
            raise await self._start_error(error, spec) from error
        exec_.when_ended(self._retire)
        return exec_

    async def _start_error(self, error: FileError, spec: ExecSpec) -> Exception:
        """Return what a client is told of a program or a directory that is not there: they are told apart."""
        if isinstance(error, PathNotFound):
            try:
                await self._sandbox.files.stat(spec.cwd)
            except FileError:
                return ConnectError(Code.INVALID_ARGUMENT, f"cwd '{spec.cwd}' does not exist")
            except CellforkError as other:
                return other
        command = " ".join(spec.argv)[:1000]
        return ConnectError(Code.INVALID_ARGUMENT, f"error starting process '{command}': {error}")

    def _retire(self, exec_: Exec) -> None:
        """Keep how a process ended for a while; its output is kept by those who follow it, as long as they do."""
        self._sandbox.execs.forget(exec_)
        self._remember(exec_)

    def _remember(self, exec_: Exec) -> None:
        if exec_.exit_code is None:
            return
        while len(self._ended) >= MAX_KEPT:
            del self._ended[next(iter(self._ended))]
        ended = _Ended(exec_.pid or 0, exec_.spec.tag, translate.ended(exec_))
        self._ended[exec_.id] = ended
        self._sandbox.settings.clock.later(KEPT_SECONDS, lambda: self._ended.pop(exec_.id, None))

    def _running(self) -> Sequence[Exec]:
        return [exec_ for exec_ in self._sandbox.execs.list() if exec_.status == "RUNNING"]

    def _find(self, selector: pb.ProcessSelector | None) -> Exec:
        """Return the process that a call names.  Raises ``not_found`` where none runs."""
        self._sandbox.check_running()
        chosen = _Choice.of(selector)
        for exec_ in reversed(self._running()):
            if chosen.fits(exec_.pid, exec_.spec.tag):
                return exec_
        raise chosen.not_found()

    def _find_ended(self, selector: pb.ProcessSelector | None) -> "_Ended | None":
        """Return how a process ended that a call names; ``None`` where that is not known any more."""
        chosen = _Choice.of(selector)
        for ended in reversed(self._ended.values()):
            if chosen.fits(ended.pid, ended.tag):
                return ended
        return None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A process that has ended, and what is told of that."""

    pid: int
    tag: str | None
    event: pb.ProcessEvent


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which process a call is about."""

    pid: int | None
    tag: str | None

    @classmethod
    def of(cls, selector: pb.ProcessSelector | None) -> "_Choice":
        """Read a selector.  Raises ``unimplemented`` where it names nothing."""
        match selector.selector if selector is not None else None:
            case Oneof(field="pid", value=int(pid)):
                return cls(pid, None)
            case Oneof(field="tag", value=str(tag)):
                return cls(None, tag)
        raise ConnectError(Code.UNIMPLEMENTED, "invalid input type: a process is selected by its pid or tag")

    def fits(self, pid: int | None, tag: str | None) -> bool:
        """Tell whether this is the one."""
        return self.pid == pid if self.pid is not None else self.tag == tag

    def not_found(self) -> ConnectError:
        """Return the error for a process that does not run."""
        what = f"pid {self.pid}" if self.pid is not None else f"tag {(self.tag or '')[:80]}"
        return ConnectError(Code.NOT_FOUND, f"process with {what} not found")


def _spec_of(request: pb.StartRequest, user: str) -> ExecSpec:
    config = request.process
    if config is None or not config.cmd:
        raise InvalidRequest("a process has a command")
    return ExecSpec(
        argv=(config.cmd, *config.args),
        cwd=resolve(config.cwd or "~", user),
        envs=dict(config.envs),
        user=user,
        stdin=request.pty is not None or request.stdin or not request.has_field("stdin"),
        pty=None if request.pty is None else _size_of(request.pty),
        tag=request.tag if request.has_field("tag") else None,
    )


def _size_of(pty: pb.PTY) -> PtySize:
    """Return the size of a terminal; a side that is not told is as usual."""
    rows, cols = (pty.size.rows, pty.size.cols) if pty.size is not None else (0, 0)
    if max(rows, cols) > MAX_SIDE:
        raise InvalidRequest(f"a terminal has at most {MAX_SIDE} rows and columns")
    usual = PtySize()
    return PtySize(rows or usual.rows, cols or usual.cols)


async def _write(exec_: Exec, given: pb.ProcessInput | None) -> None:
    match given.input if given is not None else None:
        case Oneof(field="stdin", value=bytes(data)):
            where, wrong = "stdin", exec_.spec.pty is not None
            reason = "tty assigned to process — input should be written to the pty, not the stdin"
        case Oneof(field="pty", value=bytes(data)):
            where, wrong = "tty", exec_.spec.pty is None
            reason = "tty not assigned to process — input should be written to the stdin, not the tty"
        case _:
            raise ConnectError(Code.UNIMPLEMENTED, "invalid input type: input is for stdin or pty")
    if wrong or not exec_.spec.stdin:
        reason = reason if wrong else "stdin not enabled or closed"
        raise ConnectError(Code.FAILED_PRECONDITION, f"error writing to {where}: {reason}")
    try:
        await exec_.send_stdin(data)
    except Conflict as error:
        raise ConnectError(
            Code.FAILED_PRECONDITION, f"error writing to {where}: stdin not enabled or closed"
        ) from error


def _look_at(task: "asyncio.Task[Exec]") -> None:
    """Take note of how a start ended that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
