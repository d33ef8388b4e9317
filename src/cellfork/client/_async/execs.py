"""``sandbox.execs``: commands with Together's semantics."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cellfork.client import remote
from cellfork.client.bridges import AsyncBridge
from cellfork.client.uploads import as_bytes
from cellfork.client.values import ExecInfo, ExecResult
from cellfork.engine.values import ExecOutput
from cellfork.model.specs import ExecSpec, PtySize

if TYPE_CHECKING:
    from cellfork.engine.sandbox import Sandbox as Remote


class AsyncExecs:
    """Commands outside any kernel: no shell, explicit life (Together: ``sandbox.execs``).

    An exec is found by its id until it is deleted (or many others have ended since).  Of more output than
    ``limits.output`` the head and the tail are kept.
    """

    def __init__(self, sandbox: "Remote", bridge: AsyncBridge) -> None:
        self._remote = sandbox
        self._bridge = bridge

    async def create(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        autostart: bool = True,
        pty: bool | PtySize = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str = "user",
    ) -> ExecInfo:
        """Create a command and, with ``autostart``, start it.  Its input stays open.

        Raises :class:`PathNotFound` for the program and ``cwd``, :class:`InvalidRequest`, :class:`Unsupported` for
        ``user``.
        """
        spec = _spec(command, args, pty=pty, cwd=cwd, env=env, user=user)
        return remote.exec_info(await self._bridge.call(self._remote.execs.create, spec, autostart=autostart))

    async def start(self, id: str) -> ExecInfo:
        """Start a command that was created; nothing happens where it runs; :class:`Conflict` where it has ended."""
        exec_ = await self._bridge.call(self._remote.execs.get, id)
        await self._bridge.call(exec_.start)
        return remote.exec_info(exec_)

    async def list(self) -> list[ExecInfo]:
        """Return the execs, the oldest first."""
        return [remote.exec_info(exec_) for exec_ in await self._bridge.call(self._remote.execs.list)]

    async def get(self, id: str) -> ExecInfo:
        """Return one exec; :class:`NotFound`."""
        return remote.exec_info(await self._bridge.call(self._remote.execs.get, id))

    async def delete(self, id: str) -> None:
        """Kill a command and forget it; :class:`NotFound`."""
        await self._bridge.call(self._remote.execs.delete, id)

    async def get_output(self, id: str) -> ExecResult:
        """Return what a command has written so far; ``exit_code`` is ``None`` while it runs."""
        exec_ = await self._bridge.call(self._remote.execs.get, id)
        return await self._bridge.call(self._bridge.calls.exec_output, exec_)  # type: ignore[no-any-return]

    async def stream_output(self, id: str, after: int = 0) -> AsyncIterator[ExecOutput]:
        """Iterate over the output after sequence number ``after``: what was kept, then what comes.

        The last one has an ``exit_code``, unless the command ended without.
        """
        exec_ = await self._bridge.call(self._remote.execs.get, id)
        while True:
            batch: list[ExecOutput] = await self._bridge.call(exec_.log.batch, after)
            if not batch:
                return
            after = batch[-1].sequence
            for item in batch:
                yield item

    async def send_stdin(self, id: str, data: str | bytes) -> None:
        """Write to a command's input; :class:`Conflict` where it does not run."""
        exec_ = await self._bridge.call(self._remote.execs.get, id)
        await self._bridge.call(exec_.send_stdin, as_bytes(data))

    async def resize(self, id: str, size: PtySize) -> None:
        """Change the size of a command's terminal; :class:`Conflict` where it has none."""
        exec_ = await self._bridge.call(self._remote.execs.get, id)
        await self._bridge.call(exec_.resize, size)

    async def exec(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        pty: bool | PtySize = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str = "user",
    ) -> ExecResult:
        """Run a command to its end: ``exit_code`` is a number, ``output`` holds both streams in the order of arrival.

        An exit code other than 0 is an answer, not an error.  Raises ``RuntimeError`` where the command ended without an
        exit code (the sandbox was killed), and what :meth:`create` raises.
        """
        spec = _spec(command, args, pty=pty, cwd=cwd, env=env, user=user)
        return ExecResult(*await self._bridge.call(self._remote.execs.run, spec))


def _spec(
    command: str,
    args: Sequence[str],
    *,
    pty: bool | PtySize,
    cwd: str | None,
    env: Mapping[str, str] | None,
    user: str,
) -> ExecSpec:
    size = pty if isinstance(pty, PtySize) else PtySize() if pty else None
    return ExecSpec((command, *args), cwd or "~", dict(env or {}), user, stdin=True, pty=size)
