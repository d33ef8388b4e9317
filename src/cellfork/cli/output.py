"""What ``cellfork run`` prints: live, as one JSON object, or as a model should see it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol, TextIO

from rich.console import Console

from cellfork.model.events import Accounting
from cellfork.model.execution import Execution
from cellfork.model.results import Logs, Result, json_safe
from cellfork.render.terminal import pictures_on, render_error, render_result
from cellfork.render.text import StreamCleaner, strip_escapes


class Printer(Protocol):
    """What the session tells about while it runs, and at its end."""

    def stdout(self, text: str) -> None:
        """Text came on stdout."""
        ...

    def stderr(self, text: str) -> None:
        """Text came on stderr."""
        ...

    def result(self, result: Result) -> None:
        """A result came."""
        ...

    def cell_done(self, execution: Execution) -> None:
        """A cell ended."""
        ...

    def done(self, executions: Sequence[Execution]) -> None:
        """All that will be run was run."""
        ...


class _Stream:
    """One of our own output streams: knows whether it is at the start of a line and what it may print."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.console = Console(file=file, highlight=False, markup=False, emoji=False)
        self._new_cleaner()
        self._at_line_start = True

    def _new_cleaner(self) -> None:
        self._cleaner = StreamCleaner(terminal=self.file.isatty())

    def write(self, text: str) -> None:
        self._put(self._cleaner.feed(text))

    def end_line(self) -> None:
        """Print what is held back, end colours, and go to a new line where something is on this one."""
        self._put(self._cleaner.close())
        self._new_cleaner()
        if not self._at_line_start:
            self._put("\n")

    def print(self, *renderables: Any) -> None:
        self.end_line()
        for renderable in renderables:
            self.console.print(renderable, soft_wrap=True)
        self.file.flush()

    def _put(self, text: str) -> None:
        if text:
            self.file.write(text)
            self.file.flush()
            visible = strip_escapes(text)
            self._at_line_start = visible.endswith("\n") if visible else self._at_line_start


class LivePrinter:
    """Prints everything when it comes: stdout and results to stdout, stderr and errors to stderr."""

    def __init__(self) -> None:
        self._out, self._err = _Stream(sys.stdout), _Stream(sys.stderr)
        self._shared = sys.stdout.isatty() and sys.stderr.isatty()

    def stdout(self, text: str) -> None:
        """Print text from stdout."""
        self._out.write(text)

    def stderr(self, text: str) -> None:
        """Print text from stderr."""
        self._err.write(text)

    def result(self, result: Result) -> None:
        """Print what of a result a terminal can show."""
        if self._shared:
            self._err.end_line()
        self._out.print(*render_result(result, pictures=pictures_on(self._out.console)))

    def cell_done(self, execution: Execution) -> None:
        """Print the error, if there is one."""
        self._out.end_line()
        self._err.end_line()
        if execution.error is not None:
            self._err.print(render_error(execution.error))

    def done(self, executions: Sequence[Execution]) -> None:
        """Print nothing: everything was printed when it came."""


class _QuietPrinter:
    """Prints nothing while the code runs."""

    def stdout(self, text: str) -> None:
        """Wait for the end."""

    def stderr(self, text: str) -> None:
        """Wait for the end."""

    def result(self, result: Result) -> None:
        """Wait for the end."""

    def cell_done(self, execution: Execution) -> None:
        """Wait for the end."""


class JsonPrinter(_QuietPrinter):
    """Prints one JSON object at the end, and nothing else."""

    def done(self, executions: Sequence[Execution]) -> None:
        """Print the object."""
        print(json.dumps(json_safe(as_dict(merged(executions))), default=str))


class LlmPrinter(_QuietPrinter):
    """Prints what a model should see, at the end."""

    def __init__(self, max_tokens: int, *, saving: bool) -> None:
        self._max_tokens = max_tokens
        self._saving = saving

    def done(self, executions: Sequence[Execution]) -> None:
        """Print the text; say on stderr how to get the images that it has no room for."""
        view = merged(executions).to_llm(max_tokens=self._max_tokens)
        print(view.text)
        if view.attachments and not self._saving:
            names = ", ".join(attachment.name for attachment in view.attachments)
            print(f"cellfork: not in the text: {names}; --save DIR writes them to files", file=sys.stderr)


def merged(executions: Sequence[Execution]) -> Execution:
    """Return one execution for several: all results and logs, the last error, count and status, summed costs."""
    if len(executions) == 1:
        return executions[0]
    whole = Execution(
        results=[result for execution in executions for result in execution.results],
        logs=Logs(
            [text for execution in executions for text in execution.logs.stdout],
            [text for execution in executions for text in execution.logs.stderr],
        ),
        accounting=_total([execution.accounting for execution in executions]),
        status="ok",
        artifacts=list(
            {made.path: made for execution in executions for made in execution.artifacts}.values()
        ),
        artifacts_truncated=any(execution.artifacts_truncated for execution in executions),
    )
    if executions:
        last = executions[-1]
        whole.error, whole.status, whole.terminal = last.error, last.status, last.terminal
        whole.execution_count, whole.isolation = last.execution_count, last.isolation
    return whole


def _total(parts: Sequence[Accounting]) -> Accounting:
    """Times and bytes add up, the peak is the highest; ``None`` only where no part is known.  All ran in one sandbox."""
    cpu = [part.cpu_time for part in parts if part.cpu_time is not None]
    peaks = [part.peak_memory for part in parts if part.peak_memory is not None]
    return Accounting(
        wall_time=sum(part.wall_time for part in parts),
        cpu_time=sum(cpu) if cpu else None,
        peak_memory=max(peaks) if peaks else None,
        output_bytes=sum(part.output_bytes for part in parts),
        truncated=any(part.truncated for part in parts),
        posture=next((part.posture for part in parts), None),
    )


def as_dict(execution: Execution) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    return {
        "results": [result.to_dict(finite=True) for result in execution.results],
        "logs": execution.logs.to_dict(),
        "error": execution.error.to_dict() if execution.error else None,
        "execution_count": execution.execution_count,
        "artifacts": [artifact.to_dict() for artifact in execution.artifacts],
        "artifacts_truncated": execution.artifacts_truncated,
        "accounting": asdict(execution.accounting),
        "isolation": execution.isolation,
    }
