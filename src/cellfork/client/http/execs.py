"""Commands in a sandbox of a server."""

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cellfork.dialects.e2b.extension.codec import read_output
from cellfork.engine.checks import check_seconds
from cellfork.engine.values import CommandResult, ExecOutput
from cellfork.model.errors import ProtocolViolation, SandboxGone
from cellfork.model.specs import ExecSpec, PtySize

if TYPE_CHECKING:
    from cellfork.client.http.sandbox import HttpSandbox

PIECE = 1024 * 1024
"""Bytes of input that one request carries."""


class HttpExec:
    """One command.  ``status``, ``pid`` and ``exit_code`` are what the server told last."""

    def __init__(self, sandbox: "HttpSandbox", fields: Mapping[str, Any]) -> None:
        self._sandbox = sandbox
        self.log = HttpLog(self)
        self.update(fields)

    def update(self, fields: Mapping[str, Any]) -> None:
        """Take what the server tells of the command.  Raises :class:`ProtocolViolation`."""
        try:
            size = fields["pty"]
            self.id: str = fields["id"]
            self.status: Any = fields["status"]
            self.pid: int | None = fields["pid"]
            self.exit_code: int | None = fields["exit_code"]
            self.spec = ExecSpec(
                tuple(fields["argv"]),
                fields["cwd"],
                dict(fields["envs"]),
                fields["user"],
                fields["stdin"],
                None if size is None else PtySize(size["rows"], size["cols"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolViolation(f"the server told of a command what cannot be: {error!r}") from None

    @property
    def ended(self) -> bool:
        """Whether it has ended, as far as it is known."""
        return self.status in {"EXITED", "STOPPED"}

    async def start(self) -> None:
        """Start the command; nothing happens where it runs."""
        self.update(await self._sandbox.do("execs.start", id=self.id))

    async def send_stdin(self, data: bytes, *, eof: bool = False) -> None:
        """Write to the command's input."""
        starts = range(0, max(len(data), 1), PIECE)
        for start in starts:
            piece = b64encode(data[start : start + PIECE]).decode("ascii")
            await self._sandbox.do("execs.stdin", id=self.id, data=piece, eof=eof and start == starts[-1])

    async def resize(self, size: PtySize) -> None:
        """Change the size of the command's terminal."""
        await self._sandbox.do("execs.resize", id=self.id, rows=size.rows, cols=size.cols)

    def kill(self) -> None:
        """End the command with SIGKILL.  Returns at once."""
        if not self.ended:
            self._sandbox.tell("execs.kill", id=self.id)

    async def end(self) -> bool:
        """Kill the command and wait for its end; ``False`` where it had ended."""
        if self.ended:
            return False
        told = await self._sandbox.do("execs.end", id=self.id)
        self.update(told["exec"])
        return told["killed"]  # type: ignore[no-any-return]

    async def result(self, *, forget: bool = False) -> CommandResult:
        """Wait for the command's end; return its result, or raise what it stands for."""
        while True:
            told = await self._sandbox.do("execs.result", id=self.id, forget=forget)
            self.update(told["exec"])
            if "result" in told:
                return CommandResult(**told["result"])

    async def output(self, after: int, *, wait: bool) -> list[ExecOutput]:
        """Return the output after a sequence number; with ``wait`` some, unless the command has ended."""
        while True:
            told = await self._sandbox.do("execs.output", id=self.id, after=after, wait=wait)
            items = [read_output(fields) for fields in told["items"]]
            self.update(told["exec"])
            if items or not wait or self.ended:
                return items


class HttpLog:
    """The output of a command, as :class:`cellfork.engine.exec_log.ExecLog` gives it."""

    def __init__(self, exec_: HttpExec) -> None:
        self._exec = exec_
        self._last = False

    async def batch(self, sequence: int) -> list[ExecOutput]:
        """Return the output after a number; wait for some.  Nothing means that the command has ended."""
        return await self._exec.output(sequence, wait=True)


class HttpExecs:
    """Creates and finds commands, as :class:`cellfork.engine.execs.Execs` does."""

    def __init__(self, sandbox: "HttpSandbox") -> None:
        self.sandbox = sandbox

    async def create(
        self, spec: ExecSpec, *, autostart: bool = True, timeout: float | None = None
    ) -> HttpExec:
        """Create a command and, with ``autostart``, start it."""
        return await self.begin(spec, timeout, argv=list(spec.argv), autostart=autostart)

    async def begin(self, spec: ExecSpec, timeout: float | None, **what: Any) -> HttpExec:
        """Create a command; where the wait is given up, it is killed as soon as it is there."""
        size = spec.pty
        fields = {
            "cwd": spec.cwd,
            "envs": dict(spec.envs),
            "user": spec.user,
            "stdin": spec.stdin,
            "pty": None if size is None else {"rows": size.rows, "cols": size.cols},
            "timeout": check_seconds(timeout),
            **what,
        }
        sandbox = self.sandbox
        creating = sandbox.wire.spawn(sandbox.do("execs.create", **fields))
        try:
            return HttpExec(sandbox, await asyncio.shield(creating))
        except asyncio.CancelledError:
            creating.add_done_callback(self._unwanted)
            raise

    async def list(self) -> "list[HttpExec]":
        """Return the execs, the oldest first."""
        return [HttpExec(self.sandbox, fields) for fields in (await self.sandbox.do("execs.list"))["execs"]]

    async def get(self, id: str) -> HttpExec:
        """Return an exec by its id."""
        return HttpExec(self.sandbox, await self.sandbox.do("execs.get", id=id))

    async def by_pid(self, pid: int) -> HttpExec:
        """Return the exec that runs, or ran last, as this process."""
        return HttpExec(self.sandbox, await self.sandbox.do("execs.find", pid=pid))

    async def delete(self, id: str) -> None:
        """Kill an exec, wait for its end, forget it."""
        await self.sandbox.do("execs.delete", id=id)

    async def run(self, spec: ExecSpec) -> tuple[int, str]:
        """Run a command to its end; return its exit code and its output.  Cancelling kills it.

        Raises ``RuntimeError`` where the command ended without an exit code.
        """
        exec_ = await self.create(spec)
        items: list[ExecOutput] = []
        try:
            while batch := await exec_.log.batch(items[-1].sequence if items else 0):
                items += batch
        except asyncio.CancelledError:
            exec_.kill()
            raise
        except SandboxGone:
            pass  # so the command has no exit code
        if exec_.exit_code is None:
            raise RuntimeError(
                f"exec({spec.argv[0]!r}) stream ended without an exit code — the process may have been killed "
                "externally or the sandbox shut down"
            )
        return exec_.exit_code, "".join(item.output for item in items)

    def forget(self, exec_: HttpExec) -> None:
        """Keep an exec that has ended no longer."""
        self.sandbox.tell("execs.forget", id=exec_.id)

    def _unwanted(self, creating: "asyncio.Task[Any]") -> None:
        if not creating.cancelled() and creating.exception() is None:
            HttpExec(self.sandbox, creating.result()).kill()


class HttpCommands:
    """Starts shells, as :class:`cellfork.engine.commands.Commands` does."""

    def __init__(self, execs: HttpExecs) -> None:
        self._execs = execs

    async def start(self, command: str, spec: ExecSpec, timeout: float | None) -> HttpExec:
        """Start a shell that runs ``command``."""
        return await self._execs.begin(spec, timeout, command=command)

    async def start_terminal(self, spec: ExecSpec, size: PtySize, timeout: float | None) -> HttpExec:
        """Start an interactive shell with a terminal."""
        return await self._execs.begin(spec, timeout, pty={"rows": size.rows, "cols": size.cols})

    async def run(self, command: str, spec: ExecSpec, timeout: float | None) -> CommandResult:
        """Run ``command`` to its end; nothing of it is kept.  Cancelling kills it."""
        exec_ = await self.start(command, spec, timeout)
        try:
            return await exec_.result(forget=True)
        except asyncio.CancelledError:
            exec_.kill()
            self._execs.forget(exec_)
            raise
