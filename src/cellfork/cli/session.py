"""What ``cellfork run`` does: create a sandbox, copy files in, run cell after cell, save, report."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cellfork.cli.cells import Cell, split_cells
from cellfork.cli.exits import Exit, exit_of_execution
from cellfork.cli.keyboard import read_answer
from cellfork.cli.output import JsonPrinter, LivePrinter, LlmPrinter, Printer
from cellfork.cli.run import HostFile, RunRequest
from cellfork.cli.saving import save_artifacts, save_results
from cellfork.client import AsyncSandbox, Context
from cellfork.model.errors import InvalidRequest
from cellfork.model.events import InputRequest
from cellfork.model.execution import Execution, Status
from cellfork.model.limits import Limits
from cellfork.model.network import Denial
from cellfork.model.results import ExecutionError

UNPROTECTED = "cellfork: warning: --isolation none: the code runs unprotected, with your own rights"

_PRINTERS: dict[str, Callable[[RunRequest], Printer]] = {
    "live": lambda _request: LivePrinter(),
    "json": lambda _request: JsonPrinter(),
    "llm": lambda request: LlmPrinter(request.max_tokens, saving=request.save is not None),
}


def run(request: RunRequest) -> int:
    """Carry a request out; return the exit code.  Errors of cellfork's own are raised."""
    if request.isolation == "none":
        print(UNPROTECTED, file=sys.stderr)
    session = Session(request, _PRINTERS[request.form](request))
    try:
        return asyncio.run(session.main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return Exit.INTERRUPTED


class Session:
    """One sandbox and the cells that are run in it."""

    def __init__(self, request: RunRequest, printer: Printer) -> None:
        self._request = request
        self._printer = printer
        self._interrupt: Callable[[], Coroutine[Any, Any, object]] | None = None
        self._tasks: set[asyncio.Future[object]] = set()

    async def main(self) -> int:
        """Run everything and report; return the exit code."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs has a task
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt, task)
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            executions = await self._run_all(split_cells(self._request.source))
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGTERM)
        self._printer.done(executions)
        return exit_of_execution(executions[-1]) if executions else Exit.OK

    def _on_interrupt(self, task: asyncio.Task[Any]) -> None:
        """Ctrl-C: interrupt the code that runs; where none does, or at the second time, give up."""
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is None:
            task.cancel()
            return
        stopping = asyncio.ensure_future(interrupt())
        self._tasks.add(stopping)
        stopping.add_done_callback(self._tasks.discard)

    async def _run_all(self, cells: Sequence[Cell]) -> list[Execution]:
        """Run cells in order in one context until one fails."""
        request = self._request
        limits = Limits(**request.limits)
        executions: list[Execution] = []
        async with await AsyncSandbox.create(
            timeout=None,
            limits=limits,
            network=request.network,
            envs=request.envs,
            isolation=request.isolation,
        ) as sandbox:
            for file in request.files:
                await _copy(sandbox, file)
            context = await _context(sandbox, request.language)
            left = request.timeout
            for number, cell in enumerate(cells, 1):
                start = time.monotonic()
                execution = await self._run(sandbox, context, cell, left)
                left = max(0.001, left - (time.monotonic() - start))
                executions.append(execution)
                self._printer.cell_done(execution)
                await self._save(sandbox, execution, number)
                if execution.error is not None:
                    break
            if request.network.mode != "none":
                _tell_denials(await sandbox.network.denied())
        return executions

    async def _run(
        self, sandbox: AsyncSandbox, context: Context | None, cell: Cell, timeout: float
    ) -> Execution:
        printer = self._printer
        self._interrupt = partial(sandbox.interrupt, context)
        try:
            return await sandbox.run_code(
                cell.code,
                context=context,
                on_stdout=lambda message: printer.stdout(message.line),
                on_stderr=lambda message: printer.stderr(message.line),
                on_result=printer.result,
                on_input=self._answer if self._request.interactive else None,
                timeout=timeout,
            )
        except _NoAnswerError as error:
            return error.execution
        finally:
            self._interrupt = None

    async def _answer(self, request: InputRequest) -> str:
        """Ask whoever sits at the terminal.  Ctrl-C and Ctrl-D are no answer: the code is stopped."""
        self._printer.stdout(request.prompt)
        reading = asyncio.ensure_future(read_answer(password=request.password))
        interrupt, self._interrupt = self._interrupt, _cancelling(reading)
        try:
            return await reading
        except asyncio.CancelledError:
            if not reading.cancelled():
                raise  # it is us who are cancelled
            raise _NoAnswerError("interrupted", ExecutionError("KeyboardInterrupt", "")) from None
        except EOFError:
            raise _NoAnswerError("error", ExecutionError("EOFError", "end of input")) from None
        finally:
            self._interrupt = interrupt

    async def _save(self, sandbox: AsyncSandbox, execution: Execution, cell: int) -> None:
        """Write what a cell showed and what files it made; say so on stderr."""
        directory = self._request.save
        if directory is None:
            return
        for path in save_results(execution, directory, cell):
            _tell_saved(path, None)
        room = Limits(**self._request.limits).disk_bytes
        await save_artifacts(execution, sandbox.files, directory, cell, room=room, tell=_tell_saved)
        if execution.artifacts_truncated:
            print("cellfork: the code may have made more files than it was possible to list", file=sys.stderr)


class _NoAnswerError(Exception):
    """Whoever was asked did not answer; what the execution amounts to."""

    def __init__(self, status: Status, error: ExecutionError) -> None:
        super().__init__(error.name)
        self.execution = Execution(status=status, error=error)


def _cancelling(task: asyncio.Future[str]) -> Callable[[], Coroutine[Any, Any, object]]:
    async def cancel() -> None:
        task.cancel()

    return cancel


async def _context(sandbox: AsyncSandbox, language: str) -> Context | None:
    """Return the context to run in: the default one (``None``) for Python, a new one for any other language."""
    return None if language == "python" else await sandbox.create_code_context(language=language)


async def _copy(sandbox: AsyncSandbox, file: HostFile) -> None:
    """Copy a host file, or a directory with what is in it, into the sandbox; relative to its home."""
    if not file.source.is_dir():
        await sandbox.files.write(file.destination, _content(file.source))
        return
    for path in sorted(file.source.rglob("*")):
        if path.is_file():
            await sandbox.files.write(
                f"{file.destination}/{path.relative_to(file.source).as_posix()}", _content(path)
            )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"--file: cannot read {path}: {error.strerror}") from error


def _tell_saved(path: str, problem: str | None) -> None:
    print(f"saved {path}" if problem is None else f"cellfork: not saved: {path}: {problem}", file=sys.stderr)


def _tell_denials(denials: Sequence[Denial]) -> None:
    """Say on stderr what the network policy has refused, each reason once."""
    for reason in dict.fromkeys(denial.reason for denial in denials):
        print(f"cellfork: denied: {reason}", file=sys.stderr)
