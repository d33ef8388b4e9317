"""Our errors on the code plane: their statuses, and the texts that upstream's clients show.

A status is the caller's fault (4xx) wherever it is: upstream answers 500 to an unknown language and to a directory that does
not exist.  Its clients raise the same exception for both.
"""

from collections.abc import Mapping

from cellfork.model.errors import (
    CellforkError,
    Conflict,
    FileError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OperationTimeout,
    PathNotFound,
    ProtocolViolation,
    SandboxGone,
    StartupFailed,
    UnavailableError,
    Unsupported,
    UsageError,
)

GONE = "The sandbox was not found"
UNAUTHORIZED = "unauthorized access, please provide a valid access token or method signing if supported"  # upstream's words
ONLY_ONE = "Only one of context_id or language can be provided"

STATUS: Mapping[type[CellforkError], int] = {
    UsageError: 400,
    InvalidRequest: 400,
    Unsupported: 400,
    NotFound: 404,
    Conflict: 409,
    LimitExceeded: 413,
    FileError: 400,
    PathNotFound: 400,
    UnavailableError: 503,
    StartupFailed: 500,
    SandboxGone: 502,
    ProtocolViolation: 502,
    OperationTimeout: 504,
    InternalError: 500,
    CellforkError: 500,
}
"""The status of an error: that of the nearest of its classes."""


def status_of(error: CellforkError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def no_context(id: str) -> str:
    """Return what upstream says where there is no such context."""
    return f"Context {id[:80]} not found"


def not_created(error: CellforkError) -> str:
    """Return what upstream says where a context cannot be made."""
    if isinstance(error, InvalidRequest | FileError):
        return f"Failed to set working directory: {error}"
    return f"Failed to create context: {error}"
