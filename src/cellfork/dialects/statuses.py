"""Errors of the engine → the status that HTTP has for them.  Dialects differ in bodies, and in the statuses they name themselves."""

import msgspec

from cellfork.dialects.asgi import ClientGone, TooLarge, TooSlow
from cellfork.model import errors

STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (errors.Unauthorized, 401),
    (errors.NotFound, 404),
    (errors.PathNotFound, 404),
    (errors.PathExists, 409),
    (errors.DirectoryNotEmpty, 409),
    (errors.PathNotPermitted, 403),
    (errors.NoSpace, 507),
    (errors.Conflict, 409),
    (errors.LimitExceeded, 429),
    (errors.Unsupported, 400),
    (errors.UsageError, 400),
    (msgspec.ValidationError, 400),
    (msgspec.DecodeError, 400),
    (errors.SandboxGone, 410),
    (errors.ProtocolViolation, 502),
    (errors.UnavailableError, 503),
    (errors.OperationTimeout, 504),
    (TooLarge, 413),
    (TooSlow, 408),
    (ClientGone, 499),
)
"""The first that an error is an instance of tells its status; anything else is 500."""
BUG = "an error of the server; please report it"


def status_of(error: Exception) -> int:
    """Return the status for an error; 500 for what is nobody's fault but ours."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def message_of(error: Exception) -> str:
    """Return what a client is told: nothing of our own insides where it is a bug."""
    return str(error) or type(error).__name__ if status_of(error) != 500 else BUG
