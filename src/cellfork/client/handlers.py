"""The callbacks of ``run_code``: which event calls which, and with what."""

from collections.abc import Callable
from typing import Any

from cellfork.model import events
from cellfork.model.execution import outcome_of, result_of
from cellfork.model.results import OutputMessage

Callback = Callable[[Any], Any]


class Handlers:
    """Callbacks by what they are told; each may be missing.

    ``for_event`` returns the callback that an event calls and its argument, or ``None``.
    """

    __slots__ = ("on_error", "on_input", "on_result", "on_stderr", "on_stdout")

    def __init__(
        self,
        on_stdout: Callback | None,
        on_stderr: Callback | None,
        on_result: Callback | None,
        on_error: Callback | None,
        on_input: Callback | None,
    ) -> None:
        self.on_stdout = on_stdout
        self.on_stderr = on_stderr
        self.on_result = on_result
        self.on_error = on_error
        self.on_input = on_input

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__slots__)

    def for_event(self, event: events.Event) -> tuple[Callback, Any] | None:
        """Return the callback for an event and what to call it with."""
        match event:
            case events.Stdout() if self.on_stdout is not None:
                return self.on_stdout, OutputMessage(event.text, event.timestamp)
            case events.Stderr() if self.on_stderr is not None:
                return self.on_stderr, OutputMessage(event.text, event.timestamp, error=True)
            case events.Display() if self.on_result is not None:
                return self.on_result, result_of(event)
            case events.Terminal() if self.on_error is not None:
                error = outcome_of(event)[1]
                return (self.on_error, error) if error is not None else None
        return None
