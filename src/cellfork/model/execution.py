"""An execution as a fold over its events."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cellfork.model import events
from cellfork.model.artifacts import Artifact
from cellfork.model.results import ExecutionError, Logs, Result, json_safe

Status = Literal["running", "ok", "error", "interrupted", "timed_out", "killed", "lost"]


@dataclass(slots=True)
class Execution:
    """One run of code: results, logs, error, and what it cost.

    ``status`` is ``running`` until the terminal event, then ``ok``, ``error``, ``interrupted``,
    ``timed_out``, ``killed`` or ``lost``.  For every status but ``running`` and ``ok`` there is an ``error``.
    ``artifacts`` are the files that the code made or changed below ``/home/user`` and its context's working
    directory, as the sandbox tells them; ``artifacts_truncated`` says that there may be more.
    """

    results: list[Result] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    error: ExecutionError | None = None
    execution_count: int | None = None
    status: Status = "running"
    accounting: events.Accounting = field(default_factory=events.Accounting)
    isolation: str = ""
    id: str = ""
    terminal: events.Terminal | None = None
    artifacts: list[Artifact] = field(default_factory=list)
    artifacts_truncated: bool = False
    _clear_pending: bool = False

    @property
    def text(self) -> str | None:
        """Text of the main result, ``None`` where the last statement had no value."""
        return next((result.text for result in self.results if result.is_main_result), None)

    def apply(self, event: events.Event) -> None:
        """Fold one event in.  Events after the terminal one are ignored."""
        if self.terminal is not None:
            return
        match event:
            case events.Started():
                self.execution_count = event.execution_count
            case events.Stdout():
                self._clear_if_pending()
                self.logs.stdout.append(event.text)
            case events.Stderr():
                self._clear_if_pending()
                self.logs.stderr.append(event.text)
            case events.Display():
                self._clear_if_pending()
                self.results.append(result_of(event))
            case events.Update():
                self._update(event)
            case events.Clear():
                self._clear_pending = event.wait
                if not event.wait:
                    self._clear()
            case events.Terminal():
                self._finish(event)

    def _update(self, event: events.Update) -> None:
        for index, result in enumerate(self.results):
            if result.display_id == event.display_id:
                self.results[index] = Result.from_bundle(
                    event.data,
                    is_main_result=result.is_main_result,
                    metadata=event.metadata,
                    display_id=event.display_id,
                )

    def _clear_if_pending(self) -> None:
        if self._clear_pending:
            self._clear_pending = False
            self._clear()

    def _clear(self) -> None:
        self.results.clear()
        self.logs.stdout.clear()
        self.logs.stderr.clear()

    def _finish(self, event: events.Terminal) -> None:
        self.terminal = event
        self.accounting = event.accounting
        self.artifacts = list(event.artifacts)
        self.artifacts_truncated = event.artifacts_truncated
        if event.execution_count is not None:
            self.execution_count = event.execution_count
        self.status, self.error = outcome_of(event)

    def to_dict(self, *, finite: bool = False) -> dict[str, Any]:
        """Return plain values: results, logs, error, execution_count, status, artifacts, accounting, isolation.

        ``finite`` is that of :meth:`Result.to_dict <cellfork.model.results.Result.to_dict>`.
        """
        return {
            "results": [result.to_dict(finite=finite) for result in self.results],
            "logs": self.logs.to_dict(),
            "error": self.error.to_dict() if self.error else None,
            "execution_count": self.execution_count,
            "status": self.status,
            "artifacts": [artifact.to_dict() for artifact in self.artifacts],
            "artifacts_truncated": self.artifacts_truncated,
            "accounting": asdict(self.accounting),
            "isolation": self.isolation,
        }

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON text; NaN and infinities become ``null``, and ``non_finite`` tells of them."""
        return json.dumps(json_safe(self.to_dict(finite=True)))

    def to_llm(self, **options: Any) -> Any:
        """Return this execution as text (and images) for a model: see :func:`cellfork.render.llm.to_llm`."""
        from cellfork.render.llm import to_llm

        return to_llm(self, **options)

    def __str__(self) -> str:
        return f"Execution(status={self.status}, text={self.text!r}, results={len(self.results)}, error={self.error})"


def fold(stream: Iterable[events.Event]) -> Execution:
    """Return the execution that a stream of events amounts to."""
    execution = Execution()
    for event in stream:
        execution.apply(event)
    return execution


def outcome_of(event: events.Terminal) -> tuple[Status, ExecutionError | None]:
    """Return the status and the error that a terminal event stands for."""
    match event:
        case events.Finished():
            return "ok", None
        case events.Failed(error=error):
            return "error", error
        case events.Interrupted(error=error):
            return "interrupted", error
        case events.TimedOut(timeout=timeout, step=step):
            value = f"the execution did not end within {timeout:g} s and was stopped ({step})"
            return "timed_out", ExecutionError("ExecutionTimeout", value)
        case events.Killed(reason=reason, message=message):
            return "killed", ExecutionError("ExecutionKilled", f"{reason}: {message}" if message else reason)
        case events.Lost(message=message):
            return "lost", ExecutionError("KernelLost", message)
    raise TypeError(f"not a terminal event: {event!r}")


def result_of(event: events.Display) -> Result:
    """Return the result that a display call made."""
    return Result.from_bundle(
        event.data,
        is_main_result=event.is_main_result,
        metadata=event.metadata,
        display_id=event.display_id,
    )
