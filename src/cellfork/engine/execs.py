"""Execs: commands outside any kernel, with pipes or a terminal.  The semantics are Together's.

``CREATED`` → ``RUNNING`` → ``EXITED`` (by itself) or ``STOPPED`` (by us, or with the sandbox).
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, Protocol

from cellfork.engine.checks import check_envs, check_seconds, check_text
from cellfork.engine.clock import Timer
from cellfork.engine.exec_log import ExecLog
from cellfork.engine.requests import Requests, look_at
from cellfork.engine.retention import Retained
from cellfork.engine.settings import Settings
from cellfork.engine.values import ExecOutput, Stream
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    SandboxGone,
)
from cellfork.model.ids import new_id
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecSpec, PtySize
from cellfork.wire.frames import CHUNK

Status = Literal["CREATED", "RUNNING", "EXITED", "STOPPED"]
MAX_ARGUMENTS = 4096
MAX_ARGUMENT = 128 * 1024
"""What Linux takes as one argument."""
MAX_LIVE = 10_000


class Host(Protocol):
    """What execs need of their sandbox."""

    settings: Settings
    requests: Requests

    @property
    def limits(self) -> Limits:
        """The sandbox's limits."""
        ...

    def check_running(self) -> None:
        """Raise :class:`SandboxGone` after the end."""
        ...

    def gone(self) -> SandboxGone:
        """Return the error that tells why the sandbox is gone."""
        ...


class Exec:
    """One command.  All methods belong to the engine's event loop.

    ``exit_code`` is a number once it has ended by itself or by a signal (128 + n for signal n), ``signal`` the number of
    that signal.  ``timed_out`` tells that its own ``timeout`` ended it, at once with SIGKILL where that is ``deadly``.
    """

    def __init__(
        self,
        host: Host,
        number: int,
        spec: ExecSpec,
        timeout: float | None,
        on_end: "Callable[[Exec], None]",
        *,
        deadly: bool = False,
    ) -> None:
        self.id = new_id()
        self.spec = spec
        self.number = number
        self.status: Status = "CREATED"
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.timed_out = False
        self.deadly = deadly
        self.log = ExecLog(host.limits.output_bytes)
        self._host = host
        self.timeout = timeout
        self._on_end = on_end
        self._timer: Timer | None = None
        self._listeners: list[Callable[[Exec], object]] = []
        self._starting: asyncio.Future[dict[str, Any]] | None = None
        self._stopping = False
        self._error: CellforkError | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.status in {"EXITED", "STOPPED"}

    @property
    def kept_bytes(self) -> int:
        """Roughly the memory that its output takes."""
        return self.log.size

    async def start(self) -> None:
        """Start the command; nothing happens where it runs.

        Raises :class:`Conflict` where it has ended, :class:`PathNotFound` and other file errors for program and
        directory, :class:`Unsupported` for the user, :class:`LimitExceeded`.
        """
        self._host.check_running()
        if self.ended:
            raise Conflict(f"the exec {self.id} has ended")
        if self._starting is None:
            self._starting = self._send_start()
            self._starting.add_done_callback(look_at)  # whoever waited may have been cancelled
        try:
            reply = await asyncio.shield(self._starting)
        except CellforkError as error:
            self._error = error
            self._end(None, "STOPPED")
            raise
        self._started(reply)

    def gone(self) -> CellforkError:
        """Return the error for a command that ended without an exit code."""
        return self._error or self._host.gone()

    async def wait(self) -> None:
        """Return when the command has ended, or its sandbox."""
        await self.log.wait_closed()

    def stream_output(self, after: int = 0) -> AsyncIterator[ExecOutput]:
        """Iterate over the output after number ``after``: what was kept, then what comes, then the exit."""
        return self.log.follow(after)

    async def send_stdin(self, data: bytes, *, eof: bool = False) -> None:
        """Write to the command's input; return when it has been taken over.

        Raises :class:`Conflict` where the input is closed, :class:`LimitExceeded` where the command does not read.
        """
        self._check_started()
        for start in range(0, len(data), CHUNK):
            await self._request("process.stdin", data[start : start + CHUNK], eof=False)
        if eof:
            await self._request("process.stdin", eof=True)

    async def resize(self, size: PtySize) -> None:
        """Change the size of the command's terminal; :class:`Conflict` where it has none."""
        self._check_started()
        await self._request("process.resize", rows=size.rows, cols=size.cols)

    async def send_signal(self, number: int) -> None:
        """Send a signal to the command's process group; :class:`Conflict` where it has ended."""
        self._check_started()
        await self._request("process.signal", signal=int(number))

    def stop(self) -> None:
        """End the command: SIGTERM, and after the engine's grace SIGKILL.  Returns at once."""
        if self._stopping or self.ended:
            return
        self._stopping = True
        self._tell(signal.SIGTERM)
        self._timer = self._host.settings.clock.later(self._host.settings.grace, self.kill)

    def kill(self) -> None:
        """End the command with SIGKILL.  Returns at once."""
        self._stopping = True
        if self.status == "CREATED" and self._starting is None:
            self._end(None, "STOPPED")
        elif not self.ended:
            self._tell(signal.SIGKILL)

    def when_ended(self, listener: "Callable[[Exec], object]") -> None:
        """Call ``listener`` when the command ends, at once where it has; it must not raise."""
        if self.ended:
            listener(self)
        else:
            self._listeners.append(listener)

    async def end(self) -> bool:
        """Kill the command and wait for its end, at most the engine's grace; ``False`` where it had ended."""
        if self.ended:
            return False
        self.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._host.settings.grace):
                await self.wait()
        return True

    # --------------------------------------------------------------------------------- for the table

    def restore(self, pid: int) -> None:
        """Run as this process, since before this one; ``timeout`` is what is left of it."""
        self.pid = pid
        self.status = "RUNNING"
        self._starting = asyncio.get_running_loop().create_future()
        self._starting.set_result({"pid": pid})
        if self.timeout is not None:
            self._timer = self._host.settings.clock.later(max(0.0, self.timeout), self._on_timeout)

    def on_output(self, stream: Stream, data: bytes) -> None:
        """Take a piece of output."""
        if not self.ended:
            self.log.add(stream, data, self._host.settings.clock.time_ns())

    def on_exit(self, code: int, number: int | None) -> None:
        """Take the exit code and the signal."""
        self.signal = number
        self._end(code, "STOPPED" if self._stopping else "EXITED")

    def on_sandbox_end(self) -> None:
        """End without an exit code: nobody knows it."""
        self._end(None, "STOPPED")

    # -------------------------------------------------------------------------------------- details

    def _send_start(self) -> asyncio.Future[dict[str, Any]]:
        spec, pty = self.spec, self.spec.pty
        now = self._host.settings.clock.time_ns() / 1e9
        deadline = None if self.timeout is None else now + self.timeout
        return self._host.requests.send(
            "process.start",
            process=self.number,
            argv=list(spec.argv),
            cwd=spec.cwd,
            envs=dict(spec.envs),
            user=spec.user,
            stdin=spec.stdin,
            pty=[pty.rows, pty.cols] if pty is not None else None,
            label=json.dumps({"id": self.id, "tag": spec.tag, "deadline": deadline, "deadly": self.deadly}),
        )

    def _started(self, reply: dict[str, Any]) -> None:
        if self.pid is not None:
            return
        pid = reply.get("pid")
        self.pid = pid if isinstance(pid, int) else 0
        if self.ended:  # the exit came in the same breath
            return
        self.status = "RUNNING"
        if self._stopping:
            self._tell(signal.SIGKILL)
        elif self.timeout is not None:
            self._timer = self._host.settings.clock.later(self.timeout, self._on_timeout)

    def _on_timeout(self) -> None:
        self.timed_out = True
        if self.deadly:
            self.kill()
        else:
            self.stop()

    def _end(self, code: int | None, status: Status) -> None:
        if self.ended:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.status = status
        self.exit_code = code
        self._on_end(self)
        self.log.end(self._host.settings.clock.time_ns(), code)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)

    def _check_started(self) -> None:
        self._host.check_running()
        if self.status != "RUNNING":
            raise Conflict(f"the exec {self.id} is {self.status}, not RUNNING")

    def _tell(self, number: int) -> None:
        self._host.requests.tell("process.signal", process=self.number, signal=int(number))

    async def _request(self, op: str, body: bytes = b"", **fields: Any) -> None:
        await self._host.requests.send(op, body, process=self.number, **fields)


class Execs:
    """Creates and finds the execs of one sandbox.  All methods belong to the engine's event loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._last = 0
        self._live: dict[int, Exec] = {}
        self._all: Retained[Exec] = Retained(host.settings.kept_execs, host.settings.kept_bytes)

    async def create(
        self, spec: ExecSpec, *, autostart: bool = True, timeout: float | None = None, deadly: bool = False
    ) -> Exec:
        """Create a command and, with ``autostart``, start it.

        ``timeout`` (seconds) ends it, SIGTERM first; where it is ``deadly``, with SIGKILL at once.

        Raises :class:`InvalidRequest` for malformed text, and what :meth:`Exec.start` raises.
        """
        self._host.check_running()
        if len(self._live) >= MAX_LIVE:
            raise LimitExceeded(f"{MAX_LIVE:,} execs are there already")
        self._last += 1
        checked = self._checked(spec)
        exec_ = Exec(self._host, self._last, checked, check_seconds(timeout), self.ended, deadly=deadly)
        self._live[exec_.number] = exec_
        self._all.add(exec_.id, exec_)
        if autostart:
            try:
                await exec_.start()
            except BaseException:
                exec_.kill()
                self.forget(exec_)
                raise
        return exec_

    def list(self) -> list[Exec]:
        """Return the execs, the oldest first: live ones, and those that ended recently."""
        return list(self._all)

    def get(self, id: str) -> Exec:
        """Return an exec; :class:`NotFound` where there is none with this id."""
        exec_ = self._all.get(id)
        if exec_ is None:
            raise NotFound(f"no exec {str(id)[:80]!r}")
        return exec_

    def by_pid(self, pid: int) -> Exec:
        """Return the exec that runs, or ran last, as this process; :class:`NotFound` where none does."""
        found = [exec_ for exec_ in self._all if exec_.pid == pid]
        if not found:
            raise NotFound(f"no command with pid {pid}")
        return found[-1]

    async def delete(self, id: str) -> None:
        """Kill an exec, wait for its end, forget it; :class:`NotFound` where there is none with this id."""
        exec_ = self.get(id)
        await exec_.end()
        self._all.forget(id)

    async def run(self, spec: ExecSpec) -> tuple[int, str]:
        """Run a command to its end; return its exit code and its output, both streams in the order of arrival.

        Cancelling kills the command.  Raises ``RuntimeError`` where the command ended without an exit code, as Together does.
        """
        exec_ = await self.create(spec)
        try:
            await exec_.wait()
        except asyncio.CancelledError:
            exec_.kill()
            raise
        if exec_.exit_code is None:
            raise RuntimeError(
                f"exec({spec.argv[0]!r}) stream ended without an exit code — the process may have been killed "
                "externally or the sandbox shut down"
            )
        return exec_.exit_code, exec_.log.text("stdout", "stderr", "pty")

    def number_from(self, last: int) -> None:
        """Give new commands numbers above ``last``."""
        self._last = last

    def restore(self, exec_: Exec, id: str, pid: int) -> None:
        """Have a command again that ran before this process."""
        exec_.id = id
        self._live[exec_.number] = exec_
        self._all.add(id, exec_)
        exec_.restore(pid)

    def forget(self, exec_: Exec) -> None:
        """Keep an exec that has ended no longer."""
        self._all.forget(exec_.id)

    # ---------------------------------------------------------------------------------- for the host

    def on_output(self, header: dict[str, Any], body: bytes) -> None:
        """Hand output to its exec."""
        exec_ = self._live.get(header["process"])
        if exec_ is not None:
            exec_.on_output(header["stream"], body)

    def on_exit(self, header: dict[str, Any]) -> None:
        """Hand the exit to its exec."""
        exec_ = self._live.get(header["process"])
        if exec_ is not None:
            exec_.on_exit(header["code"], header["signal"])

    def on_sandbox_end(self) -> None:
        """End every exec: the sandbox is gone."""
        for exec_ in list(self._live.values()):
            exec_.on_sandbox_end()

    # -------------------------------------------------------------------------------------- details

    def ended(self, exec_: Exec) -> None:
        """Take note that a command has ended."""
        self._live.pop(exec_.number, None)
        if self._all.get(exec_.id) is not None:
            self._all.ended(exec_)

    def _checked(self, spec: ExecSpec) -> ExecSpec:
        argv = tuple(spec.argv)
        if not argv or not argv[0] or len(argv) > MAX_ARGUMENTS:
            raise InvalidRequest(f"a command has a name and at most {MAX_ARGUMENTS:,} arguments")
        for argument in argv:
            check_text(argument, "an argument", MAX_ARGUMENT)
        check_text(spec.cwd, "the working directory")
        check_text(spec.user, "the user")
        check_envs(spec.envs, self._host.settings.envs)
        return spec
