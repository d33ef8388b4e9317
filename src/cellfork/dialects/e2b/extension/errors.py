"""Errors of the engine as JSON and back: a client raises what the server raised, by a closed table of codes.

The body is the dialect's (``code`` is the status, ``message``) with ``error``, our code, and ``details``.  Answers of E2B's own
paths carry the code in the header ``Cellfork-Error``.
"""

from collections.abc import Mapping
from typing import Any

from cellfork.dialects.statuses import message_of, status_of
from cellfork.engine.values import CommandTimeout
from cellfork.model import errors
from cellfork.model.errors import CellforkError, CommandFailed, SandboxGone

HEADER = "cellfork-error"
"""The header that names the code of an error."""


def code_header(error: BaseException) -> list[tuple[bytes, bytes]]:
    """Return the header that names an error's code; none where it has none."""
    return [(HEADER.encode(), error.code.encode())] if isinstance(error, CellforkError) else []


def body_of(error: Exception) -> dict[str, Any]:
    """Return the body of the answer to a request that ended with an error."""
    code = error.code if isinstance(error, CellforkError) else "error"
    body = {"code": http_status_of(error), "message": message_of(error), "error": code}
    details = _details_of(error)
    return {**body, "details": details} if details else body


def http_status_of(error: Exception) -> int:
    """Return the status of an answer; a command that failed is an answer like any other."""
    return 422 if isinstance(error, CommandFailed) else status_of(error)


def error_of(status: int, body: Mapping[str, Any]) -> CellforkError:
    """Return the error that an answer stands for; one without a code that is known goes by the status."""
    message, details = str(body.get("message") or f"the server answered {status}"), body.get("details")
    details = details if isinstance(details, dict) else {}
    match body.get("error"):
        case "sandbox_gone":
            return SandboxGone(message, str(details.get("reason", "lost")))
        case "command_failed" if isinstance(details.get("exit_code"), int):
            return CommandFailed(
                details["exit_code"],
                str(details.get("stdout", "")),
                str(details.get("stderr", "")),
                details.get("error"),
            )
        case "timeout" if "stdout" in details:
            return CommandTimeout(message, str(details["stdout"]), str(details.get("stderr", "")))
        case str(code) if code in _BY_CODE:
            return _BY_CODE[code](message)
    return _by_status(status)(message)


def _details_of(error: Exception) -> dict[str, Any]:
    match error:
        case SandboxGone():
            return {"reason": error.reason}
        case CommandFailed():
            return {
                "exit_code": error.exit_code,
                "stdout": error.stdout,
                "stderr": error.stderr,
                "error": error.error,
            }
        case CommandTimeout():
            return {"stdout": error.stdout, "stderr": error.stderr}
    return {}


def _by_status(status: int) -> type[CellforkError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return errors.UsageError if 400 <= status < 500 else errors.UnavailableError


def _plain(kind: type[CellforkError]) -> bool:
    """Tell whether an error is made of a message alone."""
    return kind not in {CommandFailed, SandboxGone, errors.PostureMismatch}


def _all(kind: type[CellforkError]) -> list[type[CellforkError]]:
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in _all(child))]


_BY_CODE = {
    kind.code: kind for kind in _all(CellforkError) if _plain(kind) and kind.__module__ == errors.__name__
}
_BY_CODE[errors.PostureMismatch.code] = errors.IsolationUnavailable
_BY_STATUS: Mapping[int, type[CellforkError]] = {
    400: errors.InvalidRequest,
    401: errors.Unauthorized,
    403: errors.Unauthorized,
    404: errors.NotFound,
    408: errors.OperationTimeout,
    409: errors.Conflict,
    413: errors.LimitExceeded,
    422: errors.InvalidRequest,
    429: errors.LimitExceeded,
    504: errors.OperationTimeout,
}
