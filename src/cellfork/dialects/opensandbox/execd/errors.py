"""Errors of the engine as execd tells them: ``{code, message}``, both always there."""

from typing import Final

import msgspec

from cellfork.dialects.statuses import message_of, status_of
from cellfork.model import errors

INVALID_BODY: Final = "INVALID_REQUEST_BODY"
MISSING_QUERY: Final = "MISSING_QUERY"
RUNTIME_ERROR: Final = "RUNTIME_ERROR"
CONTEXT_NOT_FOUND: Final = "CONTEXT_NOT_FOUND"
FILE_NOT_FOUND: Final = "FILE_NOT_FOUND"
INVALID_FILE: Final = "INVALID_FILE"
INVALID_CONTENT: Final = "INVALID_FILE_CONTENT"
INVALID_METADATA: Final = "INVALID_FILE_METADATA"
NOT_SUPPORTED: Final = "NOT_SUPPORTED"
UNKNOWN: Final = "UNKNOWN"
UNAUTHORIZED: Final = "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN"

CODES: tuple[tuple[type[Exception], str], ...] = (
    (errors.PathNotFound, FILE_NOT_FOUND),
    (errors.FileError, INVALID_FILE),
    (errors.Unsupported, NOT_SUPPORTED),
    (errors.InvalidRequest, INVALID_BODY),
    (msgspec.MsgspecError, INVALID_BODY),
)
"""The first that an error is an instance of tells its code; anything else is a runtime error."""


class Refused(Exception):
    """A request that is refused in words of this wire."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def read(error: Exception) -> tuple[int, dict[str, str]]:
    """Return the status and the body of an error."""
    if isinstance(error, Refused):
        return error.status, {"code": error.code, "message": str(error)}
    code = next((code for kind, code in CODES if isinstance(error, kind)), RUNTIME_ERROR)
    return status_of(error), {"code": code, "message": message_of(error)}


def invalid(message: str) -> Refused:
    """Return the refusal of a body or a query that cannot be."""
    return Refused(400, INVALID_BODY, f"invalid request, {message}")


def unsupported(message: str) -> Refused:
    """Return the refusal of what cannot be had here, whoever asks."""
    return Refused(400, NOT_SUPPORTED, message)


def no_context(id: str) -> Refused:
    """Return the refusal of an unknown context."""
    return Refused(404, CONTEXT_NOT_FOUND, f"context {id[:80]} not found")


def no_command(id: str) -> Refused:
    """Return the refusal of an unknown command."""
    return Refused(404, INVALID_BODY, f"command not found: {id[:80]}")
