"""Exit codes, and which of them an outcome stands for."""

from enum import IntEnum

from cellfork.model import errors
from cellfork.model.events import Killed
from cellfork.model.execution import Execution


class Exit(IntEnum):
    """How ``cellfork`` ends."""

    OK = 0
    RAISED = 1
    """The code raised, was killed, or took its kernel down."""
    USAGE = 2
    """The command line or a value in it is wrong."""
    UNAVAILABLE = 5
    """The isolation that was asked for, or the server, is not available here."""
    INTERNAL = 70
    """A bug in cellfork."""
    TIMEOUT = 124
    INTERRUPTED = 130


HELP = (
    "Exit codes: 0 ok, 1 the code raised, 2 wrong usage, 5 isolation or server unavailable, "
    "124 timeout, 130 interrupted."
)


def exit_of_execution(execution: Execution) -> Exit:
    """Return the exit code for an execution that came to an end."""
    if execution.status == "timed_out":
        return Exit.TIMEOUT
    if execution.status == "interrupted":
        return Exit.INTERRUPTED
    if isinstance(execution.terminal, Killed) and execution.terminal.reason == "deadline":
        return Exit.TIMEOUT
    return Exit.OK if execution.error is None else Exit.RAISED


def exit_of_error(error: errors.CellforkError) -> Exit:
    """Return the exit code for an error of cellfork's own."""
    match error:
        case errors.UsageError():
            return Exit.USAGE
        case errors.UnavailableError():
            return Exit.UNAVAILABLE
        case errors.OperationTimeout():
            return Exit.TIMEOUT
        case errors.CommandFailed():
            return Exit.RAISED
        case _:
            return Exit.INTERNAL
