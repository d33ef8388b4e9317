"""Errors of the engine as OpenSandbox's clients expect them: ``{code, message}``, both always there.

The codes are those of upstream's server with Docker, which is what a single machine is to its clients.
"""

from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from cellfork.dialects.asgi import TooLarge, TooSlow
from cellfork.dialects.statuses import message_of, status_of
from cellfork.model import errors

NO_KEY: Final = "MISSING_API_KEY"
WRONG_KEY: Final = "INVALID_API_KEY"
NOT_FOUND: Final = "DOCKER::SANDBOX_NOT_FOUND"
NOT_RUNNING: Final = "DOCKER::SANDBOX_NOT_RUNNING"
NOT_PAUSED: Final = "DOCKER::SANDBOX_NOT_PAUSED"
NOT_STARTED: Final = "DOCKER::SANDBOX_START_FAILED"
INVALID_ENTRYPOINT: Final = "DOCKER::INVALID_ENTRYPOINT"
INVALID_EXPIRATION: Final = "DOCKER::INVALID_EXPIRATION"
INVALID_PORT: Final = "DOCKER::INVALID_PORT"
INVALID: Final = "SANDBOX::INVALID_PARAMETER"
INVALID_LABEL: Final = "SANDBOX::INVALID_METADATA_LABEL"
UNSUPPORTED: Final = "SANDBOX::API_NOT_SUPPORTED"
UNAUTHORIZED: Final = "SANDBOX::UNAUTHORIZED"
LIMIT: Final = "SANDBOX::LIMIT_EXCEEDED"
UNKNOWN: Final = "SANDBOX::UNKNOWN_ERROR"
NO_SNAPSHOT: Final = "SNAPSHOT::NOT_FOUND"
SOURCE_STATE: Final = "SNAPSHOT::INVALID_SOURCE_STATE"
NO_POOLS: Final = "KUBERNETES::POOL_NOT_SUPPORTED"
NO_POOL: Final = "KUBERNETES::POOL_NOT_FOUND"
NO_DIAGNOSTICS: Final = "DIAGNOSTICS_NOT_IMPLEMENTED"

CODES: tuple[tuple[type[Exception], str], ...] = (
    (errors.NotFound, NOT_FOUND),
    (errors.SandboxGone, NOT_FOUND),
    (errors.SandboxPaused, NOT_RUNNING),
    (errors.Conflict, "SANDBOX::INVALID_STATE"),
    (errors.LimitExceeded, LIMIT),
    (errors.UsageError, INVALID),
    (errors.UnavailableError, NOT_STARTED),
    (msgspec.MsgspecError, INVALID),
    (TooLarge, INVALID),
    (TooSlow, INVALID),
)
"""The first that an error is an instance of tells its code; anything else is unknown."""
OF_STATUS = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
"""Codes where no route was found."""


class Refused(Exception):
    """A request that is refused in words of this wire."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


HANDLED: tuple[type[Exception], ...] = (
    Refused,
    HTTPException,
    errors.CellforkError,
    msgspec.MsgspecError,
    TooLarge,
    TooSlow,
)
"""What a handler may raise; anything else is a bug, which the server answers and logs."""


def invalid(message: str) -> Refused:
    """Return the refusal of a request that is malformed, or asks for what is not here."""
    return Refused(400, INVALID, message)


def not_found(id: str) -> Refused:
    """Return the refusal of an unknown sandbox."""
    return Refused(404, NOT_FOUND, f"Sandbox {id[:80]} not found.")


def read(error: Exception) -> tuple[int, dict[str, str]]:
    """Return the status and the body of an error."""
    match error:
        case Refused():
            return error.status, {"code": error.code, "message": str(error)}
        case HTTPException():
            code = OF_STATUS.get(error.status_code, UNKNOWN)
            return error.status_code, {"code": code, "message": str(error.detail)}
        case errors.SandboxGone():
            return 404, {"code": NOT_FOUND, "message": message_of(error)}
    code = next((code for kind, code in CODES if isinstance(error, kind)), UNKNOWN)
    return status_of(error), {"code": code, "message": message_of(error)}


async def answer(_request: Request, error: Exception) -> JSONResponse:
    """Handle an error of the lifecycle API."""
    status, body = read(error)
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse(body, status, headers)
