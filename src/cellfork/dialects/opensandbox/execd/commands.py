"""Commands: in the foreground with a stream of lines, in the background with a log to ask for."""

import asyncio
import contextlib
import weakref
from dataclasses import dataclass

from cellfork.dialects import asgi
from cellfork.dialects.opensandbox.execd import errors, frames, schema
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.environment import environment
from cellfork.dialects.opensandbox.execd.following import exec_code, follow, how_it_ended
from cellfork.dialects.opensandbox.execd.looking import moment
from cellfork.dialects.opensandbox.execd.paths import directory
from cellfork.engine.execs import Exec
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.values import ExecOutput
from cellfork.model.errors import NotFound, PathNotFound
from cellfork.model.ids import new_id
from cellfork.model.specs import HOME, ExecSpec

CURSOR_HEADER = b"execd-commands-tail-cursor"
USERS = frozenset({None, 0, 1000})
"""Ids of users and groups that may be named."""
GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL where a command is interrupted."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a client said of a command, and when (Unix time in nanoseconds)."""

    content: str
    background: bool
    started_at: int


class Commands:
    """The commands of every sandbox, as execd shows them."""

    def __init__(self) -> None:
        self._told: weakref.WeakKeyDictionary[Exec, Told] = weakref.WeakKeyDictionary()

    def routes(self) -> Routes:
        """Return what is served, but for stopping, which is common to commands and code."""
        return (
            Route("POST", "/command", self.start),
            Route("GET", "/command/status/{id}", self.tell_status),
            Route("GET", "/command/{id}/logs", self.tell_logs),
        )

    async def start(self, call: Call) -> None:
        """Start a command and answer with its events."""
        await self.run(call, await call.body(schema.RunCommand))

    async def tell_status(self, call: Call) -> None:
        """Tell how a command is."""
        await call.answer(self.status(call.sandbox, call.parts["id"]))

    async def tell_logs(self, call: Call) -> None:
        """Tell what a background command has written, from byte ``cursor`` on."""
        cursor = call.number("cursor", 0, 0)
        content, after = self.logs(call.sandbox, call.parts["id"], cursor)
        headers = [(CURSOR_HEADER, b"%d" % after)]
        await asgi.send_body(call.send, 200, content, b"text/plain; charset=utf-8", headers)

    async def run(self, call: Call, body: schema.RunCommand) -> None:
        """Start a command and answer with its events.

        A client that goes away leaves its command running.  Raises before anything is sent where the request is wrong.
        """
        exec_, refusal = await self._start(call.sandbox, body)
        if exec_ is None:
            await _tell(call, frames.init(new_id()) + refusal)
        elif body.background:
            await _tell(call, frames.init(exec_.id) + frames.complete(0))
        else:
            await follow(call.sandbox, exec_, call.receive, call.send)

    def status(self, sandbox: Sandbox, id: str) -> dict[str, object]:
        """Return how a command is.  Raises :class:`Refused`."""
        exec_ = self._find(sandbox, id)
        told = self._told[exec_]
        ended = _end_of(exec_)
        status: dict[str, object] = {
            "id": exec_.id,
            "content": told.content,
            "running": not exec_.ended,
            "started_at": moment(told.started_at),
        }
        if exec_.ended:
            code = exec_code(exec_)
            status["exit_code"] = code
            status["finished_at"] = moment(ended.timestamp if ended is not None else told.started_at)
            if code:
                status["error"] = how_it_ended(exec_)
        return status

    def logs(self, sandbox: Sandbox, id: str, cursor: int) -> tuple[bytes, int]:
        """Return what a background command has written after byte ``cursor``, and the next cursor."""
        exec_ = self._find(sandbox, id)
        if not self._told[exec_].background:
            raise errors.Refused(400, errors.INVALID_BODY, f"command {id[:80]} is not running in background")
        content, written = exec_.log.bytes_from(cursor)
        return content, max(cursor, written)

    async def interrupt(self, sandbox: Sandbox, id: str) -> bool:
        """End a command that runs, with SIGTERM and then SIGKILL; ``False`` where there is none with this id."""
        try:
            exec_ = sandbox.execs.get(id)
        except NotFound:
            return False
        if exec_.ended:
            raise errors.Refused(409, errors.RUNTIME_ERROR, f"command {id[:80]} is not running")
        exec_.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE + 1):
                await exec_.wait()
        return True

    async def _start(self, sandbox: Sandbox, body: schema.RunCommand) -> tuple[Exec | None, bytes]:
        """Return the command; or ``None`` and the error that is told where the program could not be started."""
        spec, content = await _spec_of(sandbox, body)
        timeout = None if body.timeout is None else body.timeout / 1000
        try:
            if spec.argv:
                exec_ = await sandbox.execs.create(spec, timeout=timeout)
            else:
                exec_ = await sandbox.commands.start(content, spec, timeout)
        except PathNotFound as error:
            return None, frames.error(frames.COMMAND_FAILED, "127", [str(error)])
        self._told[exec_] = Told(content, body.background, sandbox.settings.clock.time_ns())
        return exec_, b""

    def _find(self, sandbox: Sandbox, id: str) -> Exec:
        try:
            exec_ = sandbox.execs.get(id)
        except NotFound:
            raise errors.no_command(id) from None
        self._told.setdefault(
            exec_, Told(exec_.spec.argv[-1], background=True, started_at=int(sandbox.started_at * 1e9))
        )
        return exec_


async def _spec_of(sandbox: Sandbox, body: schema.RunCommand) -> tuple[ExecSpec, str]:
    """Return the command to start (no arguments: shell text), and what it is called.  Raises :class:`Refused`."""
    content = _content(body)
    user = _user(body)
    envs = await environment(sandbox, body.envs)
    cwd = HOME if not body.cwd else await directory(sandbox, body.cwd, envs)
    return ExecSpec(tuple(body.argv or ()), cwd, envs, user), content


def _content(body: schema.RunCommand) -> str:
    if (body.command is None) == (body.argv is None):
        raise errors.invalid("give either command or argv")
    if body.argv is not None:
        if not (body.argv and body.argv[0]):
            raise errors.invalid("argv has no program")
        return " ".join(body.argv)
    if not (body.command or "").strip():
        raise errors.invalid("command is empty")
    return body.command or ""


def _user(body: schema.RunCommand) -> str:
    """Return as whom a command runs.  There is one user; root is another name of it, and anybody else cannot be had."""
    if body.uid is None and body.gid is not None:
        raise errors.invalid("gid needs uid")
    if body.uid not in USERS or body.gid not in USERS:
        raise errors.unsupported(
            "everything in this sandbox runs as user 1000, or as user 0 with the same rights; leave uid and gid out"
        )
    return str(body.uid or 0) if body.uid is not None else "user"


async def _tell(call: Call, content: bytes) -> None:
    headers = frames.STREAM_HEADERS
    await call.send({"type": "http.response.start", "status": 200, "headers": headers})
    await call.send({"type": "http.response.body", "body": content})


def _end_of(exec_: Exec) -> ExecOutput | None:
    return next((item for item in reversed(exec_.log.since(0)) if item.exit_code is not None), None)
