"""Commands as E2B has them: a line for a shell, a result or a handle, a timeout that keeps what was written."""

import asyncio
import signal
from collections.abc import Mapping
from typing import Final

from cellfork.engine.execs import Exec, Execs
from cellfork.engine.values import CommandResult, CommandTimeout
from cellfork.model.errors import CommandFailed, PathNotFound
from cellfork.model.specs import ExecSpec, PtySize

SHELLS: Final[tuple[str, ...]] = ("/bin/bash", "/bin/sh")
"""The first that is there runs the commands.

E2B starts a login shell (``-l``).  This one does not: profile files would reset ``PATH``, which leads to the template's
interpreter, and cost milliseconds in every command.
"""
TERMINAL_ENVS: Final[Mapping[str, str]] = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


class Commands:
    """Starts shells in one sandbox.  All methods belong to the engine's event loop."""

    def __init__(self, execs: Execs) -> None:
        self._execs = execs
        self._shells = SHELLS

    async def start(self, command: str, spec: ExecSpec, timeout: float | None) -> Exec:
        """Start a shell that runs ``command``; everything else is as ``spec`` says.  ``timeout`` ends it."""
        return await self._start(("-c", command), spec, timeout)

    async def start_terminal(self, spec: ExecSpec, size: PtySize, timeout: float | None) -> Exec:
        """Start an interactive shell with a terminal."""
        envs = {**TERMINAL_ENVS, **spec.envs}
        interactive = ExecSpec(argv=(), cwd=spec.cwd, envs=envs, user=spec.user, stdin=True, pty=size)
        return await self._start(("-i",), interactive, timeout)

    async def run(self, command: str, spec: ExecSpec, timeout: float | None) -> CommandResult:
        """Run ``command`` to its end; nothing of it is kept.  Cancelling kills it.

        Raises :class:`CommandFailed` for an exit code other than 0, :class:`CommandTimeout`,
        :class:`SandboxGone`.
        """
        exec_ = await self.start(command, spec, timeout)
        try:
            await exec_.wait()
        except asyncio.CancelledError:
            exec_.kill()
            raise
        finally:
            self._execs.forget(exec_)
        return result_of(exec_)

    async def _start(self, arguments: tuple[str, ...], spec: ExecSpec, timeout: float | None) -> Exec:
        while True:
            shell, *others = self._shells
            argv = (shell, *arguments)
            known = ExecSpec(argv, spec.cwd, spec.envs, spec.user, spec.stdin, spec.pty)
            try:
                return await self._execs.create(known, timeout=timeout)
            except PathNotFound as error:
                if not others or shell not in str(error):
                    raise
                self._shells = tuple(others)


def result_of(exec_: Exec) -> CommandResult:
    """Return the result of a command that has ended.

    Raises :class:`CommandFailed` for an exit code other than 0, :class:`CommandTimeout`, :class:`SandboxGone` where
    the sandbox ended first.
    """
    stdout, stderr = exec_.log.text("stdout", "pty"), exec_.log.text("stderr")
    if exec_.timed_out:
        seconds = exec_.timeout or 0
        raise CommandTimeout(f"the command did not end within {seconds:g} s and was stopped", stdout, stderr)
    if exec_.exit_code is None:
        raise exec_.gone()
    error = error_of(exec_)
    if exec_.exit_code:
        raise CommandFailed(exec_.exit_code, stdout, stderr, error)
    return CommandResult(stdout, stderr, exec_.exit_code, error)


def error_of(exec_: Exec) -> str | None:
    """Return what signal ended a command, or ``None`` where it ended by itself."""
    if exec_.signal is None:
        return None
    try:
        return f"killed by {signal.Signals(exec_.signal).name}"
    except ValueError:
        return f"killed by signal {exec_.signal}"
