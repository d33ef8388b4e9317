"""``sandbox.commands`` and ``sandbox.pty``: shell commands and terminals, in E2B's shapes."""

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Literal, overload

from cellfork.client.bridges import AsyncBridge, AsyncHandler, AsyncIterating, AsyncWork
from cellfork.client.uploads import as_bytes
from cellfork.client.values import ProcessInfo
from cellfork.engine.values import CommandResult, ExecOutput
from cellfork.model.specs import ExecSpec, PtySize

if TYPE_CHECKING:
    from cellfork.engine.execs import Exec
    from cellfork.engine.sandbox import Sandbox as Remote

DEFAULT_TIMEOUT = 60.0
HOME = "~"

OutputHandler = AsyncHandler[str] | None
DataHandler = AsyncHandler[bytes] | None


class AsyncCommandHandle(AsyncIterating):
    """A command that runs (E2B: ``CommandHandle``).

    Iterating yields ``(stdout, stderr, pty)``, of which one is set: text, text, bytes.  It begins with what was
    kept of the output so far.  Callbacks that were given at the start are called by a task of the
    async client, and within :meth:`wait` in the sync one.
    """

    def __init__(
        self,
        sandbox: "Remote",
        bridge: AsyncBridge,
        exec_: "Exec",
        on_stdout: OutputHandler = None,
        on_stderr: OutputHandler = None,
        on_pty: DataHandler = None,
    ) -> None:
        self._remote = sandbox
        self._bridge = bridge
        self._exec = exec_
        self._work: AsyncWork | None = None
        if on_stdout or on_stderr or on_pty:
            self._work = bridge.spawn(lambda: self._deliver(on_stdout, on_stderr, on_pty))

    @property
    def pid(self) -> int:
        """The process id inside the sandbox."""
        return self._exec.pid or 0

    @property
    def exit_code(self) -> int | None:
        """The exit code, ``None`` while the command runs."""
        return self._exec.exit_code

    async def events(self) -> AsyncIterator[tuple[str | None, str | None, bytes | None]]:
        """Iterate over the output, to the end of the command."""
        sequence = 0
        while True:
            batch: list[ExecOutput] = await self._bridge.call(self._exec.log.batch, sequence)
            if not batch:
                return
            sequence = batch[-1].sequence
            for item in batch:
                if item.data:
                    yield _triple(item)

    async def wait(
        self, on_pty: DataHandler = None, on_stdout: OutputHandler = None, on_stderr: OutputHandler = None
    ) -> CommandResult:
        """Wait for the end of the command and return its result.

        Raises :class:`CommandFailed` for an exit code other than 0, :class:`OperationTimeout` where its time ran out (with
        ``stdout`` and ``stderr``), :class:`SandboxGone`, and what a callback raised.
        """
        if self._work is not None:
            await self._work.join()
        if on_stdout or on_stderr or on_pty:
            await self._deliver(on_stdout, on_stderr, on_pty)
        return await self._bridge.call(self._bridge.calls.result_of, self._remote, self._exec)  # type: ignore[no-any-return]

    async def kill(self) -> bool:
        """End the command with SIGKILL; ``False`` where it had ended before."""
        return await self._bridge.call(self._exec.end)  # type: ignore[no-any-return]

    async def send_stdin(self, data: str | bytes) -> None:
        """Write to the command's input; it was started with ``stdin=True``, or with a terminal."""
        await self._bridge.call(
            self._bridge.calls.send_stdin, self._remote, self.pid, as_bytes(data), eof=False
        )

    async def close_stdin(self) -> None:
        """Close the command's input: it reads the end of the file."""
        await self._bridge.call(self._bridge.calls.send_stdin, self._remote, self.pid, b"", eof=True)

    async def disconnect(self) -> None:
        """Call no callback any more; the command runs on."""
        if self._work is not None:
            self._work.cancel()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} pid={self.pid} {self._exec.status}>"

    async def _deliver(self, on_stdout: OutputHandler, on_stderr: OutputHandler, on_pty: DataHandler) -> None:
        async for stdout, stderr, pty in self.events():
            if stdout is not None and on_stdout is not None:
                await self._bridge.invoke(on_stdout, stdout)
            elif stderr is not None and on_stderr is not None:
                await self._bridge.invoke(on_stderr, stderr)
            elif pty is not None and on_pty is not None:
                await self._bridge.invoke(on_pty, pty)


class AsyncCommands:
    """Shell commands in a sandbox (E2B: ``sandbox.commands``).

    A command is run by ``/bin/bash -c``, or by ``/bin/sh -c`` where there is no bash.  E2B's is a login shell; this is
    not: profile files would replace ``PATH``.
    """

    def __init__(self, sandbox: "Remote", bridge: AsyncBridge) -> None:
        self._remote = sandbox
        self._bridge = bridge

    @overload
    async def run(
        self,
        cmd: str,
        background: Literal[False] = False,
        envs: Mapping[str, str] | None = None,
        user: str = "user",
        cwd: str | None = None,
        on_stdout: OutputHandler = None,
        on_stderr: OutputHandler = None,
        stdin: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: str,
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        user: str = "user",
        cwd: str | None = None,
        on_stdout: OutputHandler = None,
        on_stderr: OutputHandler = None,
        stdin: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> AsyncCommandHandle: ...

    async def run(
        self,
        cmd: str,
        background: bool = False,
        envs: Mapping[str, str] | None = None,
        user: str = "user",
        cwd: str | None = None,
        on_stdout: OutputHandler = None,
        on_stderr: OutputHandler = None,
        stdin: bool = False,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> CommandResult | AsyncCommandHandle:
        """Run a command; wait for its result or, with ``background``, return a handle at once.

        ``timeout`` is in seconds, in the background too (``None`` or 0: no bound): then the command gets
        SIGTERM, 2 s later SIGKILL.  ``stdin`` keeps its input open for ``send_stdin``.  Callbacks get text as it comes.
        Of more output than ``limits.output`` the head and the tail are kept.

        Raises :class:`CommandFailed` for an exit code other than 0 (with ``exit_code``, ``stdout``, ``stderr``),
        :class:`OperationTimeout` (with ``stdout`` and ``stderr``), :class:`PathNotFound` where ``cwd`` does not exist,
        :class:`Unsupported` for a ``user`` that is not available.
        """
        spec = ExecSpec((), cwd or HOME, dict(envs or {}), user, stdin=stdin)
        if not (background or on_stdout or on_stderr):
            run = self._remote.commands.run
            return await self._bridge.call(run, cmd, spec, timeout)  # type: ignore[no-any-return]
        start = self._remote.commands.start
        exec_ = await self._bridge.call(start, cmd, spec, timeout, undo=self._bridge.calls.kill_exec)
        if background:
            return AsyncCommandHandle(self._remote, self._bridge, exec_, on_stdout, on_stderr)
        try:
            handle = AsyncCommandHandle(self._remote, self._bridge, exec_)
            return await handle.wait(None, on_stdout, on_stderr)
        finally:
            self._bridge.tell(exec_.kill)
            self._bridge.tell(lambda: self._remote.execs.forget(exec_))

    async def list(self) -> list[ProcessInfo]:
        """Return the commands that run (E2B: ``list``)."""
        return await self._bridge.call(self._bridge.calls.processes_of, self._remote)  # type: ignore[no-any-return]

    async def kill(self, pid: int) -> bool:
        """End a command with SIGKILL; ``False`` where none runs as ``pid`` (E2B: ``kill``)."""
        return await self._bridge.call(self._bridge.calls.end_process, self._remote, pid)  # type: ignore[no-any-return]

    async def connect(
        self, pid: int, on_stdout: OutputHandler = None, on_stderr: OutputHandler = None
    ) -> AsyncCommandHandle:
        """Return a handle on a command that runs; what was kept of its output comes first (E2B: ``connect``).

        Raises :class:`NotFound`.
        """
        exec_ = await self._bridge.call(self._remote.execs.by_pid, pid)
        return AsyncCommandHandle(self._remote, self._bridge, exec_, on_stdout, on_stderr)

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Write to the input of a command that was started with ``stdin=True`` (E2B: ``send_stdin``).

        Raises :class:`NotFound`, :class:`Conflict` where the input is not open.
        """
        await self._bridge.call(self._bridge.calls.send_stdin, self._remote, pid, as_bytes(data), eof=False)

    async def close_stdin(self, pid: int) -> None:
        """Close a command's input: it reads the end of the file (E2B: ``close_stdin``)."""
        await self._bridge.call(self._bridge.calls.send_stdin, self._remote, pid, b"", eof=True)


class AsyncPty:
    """Terminals in a sandbox, each with a shell (E2B: ``sandbox.pty``)."""

    def __init__(self, sandbox: "Remote", bridge: AsyncBridge) -> None:
        self._remote = sandbox
        self._bridge = bridge

    async def create(
        self,
        size: PtySize | None = None,
        on_data: DataHandler = None,
        user: str = "user",
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> AsyncCommandHandle:
        """Start an interactive shell in a terminal.  ``on_data`` gets bytes as they come; see the handle.

        ``timeout`` ends it, in seconds (``None`` or 0: no bound).
        """
        spec = ExecSpec((), cwd or HOME, dict(envs or {}), user)
        start = self._remote.commands.start_terminal
        exec_ = await self._bridge.call(
            start, spec, size or PtySize(), timeout, undo=self._bridge.calls.kill_exec
        )
        return AsyncCommandHandle(self._remote, self._bridge, exec_, None, None, on_data)

    async def connect(self, pid: int, on_data: DataHandler = None) -> AsyncCommandHandle:
        """Return a handle on a terminal's shell; what was kept of its output comes first."""
        exec_ = await self._bridge.call(self._remote.execs.by_pid, pid)
        return AsyncCommandHandle(self._remote, self._bridge, exec_, None, None, on_data)

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Type into a terminal."""
        await self._bridge.call(self._bridge.calls.send_stdin, self._remote, pid, as_bytes(data), eof=False)

    async def resize(self, pid: int, size: PtySize) -> None:
        """Change a terminal's size."""
        exec_ = await self._bridge.call(self._remote.execs.by_pid, pid)
        await self._bridge.call(exec_.resize, size)

    async def kill(self, pid: int) -> bool:
        """End a terminal's shell with SIGKILL; ``False`` where none runs as ``pid``."""
        return await self._bridge.call(self._bridge.calls.end_process, self._remote, pid)  # type: ignore[no-any-return]


def _triple(item: ExecOutput) -> tuple[str | None, str | None, bytes | None]:
    if item.type == "pty":
        return None, None, item.data
    return (item.output, None, None) if item.type == "stdout" else (None, item.output, None)
