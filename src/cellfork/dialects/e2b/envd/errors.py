"""Errors of the engine → codes of Connect and bodies of plain HTTP, in upstream's words where it has some.

A sandbox that has ended is no error among others: no answer may look complete (see :mod:`.guards`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from connectrpc.code import Code
from connectrpc.errors import ConnectError

from cellfork.dialects.asgi import TooLarge, TooSlow
from cellfork.dialects.statuses import message_of, status_of
from cellfork.model import errors

Request = TypeVar("Request")
Response = TypeVar("Response")

UNAUTHORIZED = "unauthorized access, please provide a valid access token or method signing if supported"
INTERNAL_ROUTE = (
    "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL"
)
SANDBOX_NOT_FOUND = "The sandbox was not found"

GONE = (errors.SandboxGone, errors.SandboxPaused, errors.ProtocolViolation)
"""What comes of a request whose sandbox ends, or is paused, meanwhile.  Where it has ended, nothing of that is sent."""

CODES: tuple[tuple[type[Exception], Code], ...] = (
    *((kind, Code.UNAVAILABLE) for kind in GONE),
    (errors.NotFound, Code.NOT_FOUND),
    (errors.PathNotFound, Code.NOT_FOUND),
    (errors.PathExists, Code.ALREADY_EXISTS),
    (errors.PathNotPermitted, Code.PERMISSION_DENIED),
    (errors.NoSpace, Code.RESOURCE_EXHAUSTED),
    (errors.LimitExceeded, Code.RESOURCE_EXHAUSTED),
    (errors.Conflict, Code.FAILED_PRECONDITION),
    (errors.DirectoryNotEmpty, Code.FAILED_PRECONDITION),
    (errors.Unsupported, Code.UNIMPLEMENTED),
    (errors.UsageError, Code.INVALID_ARGUMENT),
    (errors.UnavailableError, Code.UNAVAILABLE),
    (errors.OperationTimeout, Code.DEADLINE_EXCEEDED),
    (TooLarge, Code.RESOURCE_EXHAUSTED),
    (TooSlow, Code.DEADLINE_EXCEEDED),
)
"""The first that an error is an instance of tells its code; anything else is internal."""


class Refusal(Exception):
    """An answer other than success to a request that is no RPC."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def connect_error(error: Exception) -> ConnectError:
    """Return what a client of the RPCs is told."""
    code = next((code for kind, code in CODES if isinstance(error, kind)), Code.INTERNAL)
    return ConnectError(code, message_of(error))


def refusal_of(error: Exception) -> Refusal:
    """Return what any other client is told."""
    if isinstance(error, Refusal):
        return error
    return Refusal(status_of(error), message_of(error))


class Errors:
    """An interceptor: errors of the engine leave every RPC as Connect's."""

    async def intercept_unary(
        self, call_next: Callable[[Request, Any], Awaitable[Response]], request: Request, ctx: Any
    ) -> Response:
        """Make an RPC without streams."""
        try:
            return await call_next(request, ctx)
        except errors.CellforkError as error:
            raise connect_error(error) from error

    async def intercept_client_stream(
        self,
        call_next: Callable[[AsyncIterator[Request], Any], Awaitable[Response]],
        request: AsyncIterator[Request],
        ctx: Any,
    ) -> Response:
        """Make an RPC whose client sends many messages."""
        return await self.intercept_unary(call_next, request, ctx)

    async def intercept_server_stream(
        self, call_next: Callable[[Request, Any], AsyncIterator[Response]], request: Request, ctx: Any
    ) -> AsyncIterator[Response]:
        """Make an RPC whose answer is a stream."""
        try:
            async with aclosing(call_next(request, ctx)) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    yield answer
        except errors.CellforkError as error:
            raise connect_error(error) from error
