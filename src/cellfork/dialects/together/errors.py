"""Errors of the engine as Together's clients expect them: the management API and the agent have one shape each."""

import http

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from cellfork.dialects.asgi import TooLarge, TooSlow
from cellfork.dialects.statuses import message_of, status_of
from cellfork.model.errors import CellforkError

MANAGEMENT_CODES = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
}
"""Names of errors of the management API; any other status has the name that HTTP gives it."""


class Refused(Exception):
    """A request that is refused with a status, before the engine is asked."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


HANDLED: tuple[type[Exception], ...] = (
    Refused,
    HTTPException,
    CellforkError,
    msgspec.MsgspecError,
    TooLarge,
    TooSlow,
)
"""What a handler may raise; anything else is a bug, which the server answers and logs."""


def of_management(status: int, message: str) -> JSONResponse:
    """Return an error as the management API tells it: ``{code, message, errors}``."""
    code = MANAGEMENT_CODES.get(status) or http.HTTPStatus(status).phrase.lower().replace(" ", "_")
    return JSONResponse({"code": code, "message": message, "errors": []}, status)


def of_agent(status: int, message: str) -> JSONResponse:
    """Return an error as the agent tells it: ``{code, message}``, the code being the status."""
    return JSONResponse({"code": status, "message": message}, status)


def read(error: Exception) -> tuple[int, str]:
    """Return the status and the message of anything that a handler raises."""
    match error:
        case Refused():
            return error.status, str(error)
        case HTTPException():
            return error.status_code, str(error.detail)
    return status_of(error), message_of(error)


async def answer_management(_request: Request, error: Exception) -> JSONResponse:
    """Handle an error of the management API."""
    return of_management(*read(error))


async def answer_agent(_request: Request, error: Exception) -> JSONResponse:
    """Handle an error of the agent."""
    return of_agent(*read(error))
