"""One request and its answer, as the edge of the server sees them: bounds, headers that every answer has, what is told afterwards."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from time import perf_counter

from cellfork.dialects.asgi import (
    Message,
    Receive,
    Scope,
    Send,
    TooLarge,
    TooSlow,
    header,
    send_json,
    state,
)

Settled = Callable[[], Awaitable[None]]
"""Waits until everything that was to be recorded is."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Exchange:
    """Wraps ``receive`` and ``send`` of one HTTP request.

    ``headers`` are added to the answer, where the app has set none of the same name.  Bodies are bounded by
    ``limit`` (bytes) and ``idle`` (seconds of silence), or by what a route allowed (:func:`allow_body`).  No answer
    begins before ``settled``: what it tells of outlives the server.
    """

    __slots__ = (
        "_body_ended", "_idle", "_limit", "_receive", "_received", "_scope", "_send", "_settled", "_started_at",
        "complete", "headers", "request_id", "status",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limit: int, idle: float, settled: Settled
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limit, self._idle, self._settled = limit, idle, settled
        self._received = 0
        self._body_ended = False
        self._started_at = perf_counter()
        self.status = 0
        self.complete = False
        self.request_id = request_id(scope)
        self.headers = [(b"x-request-id", self.request_id.encode("ascii"))]
        state(scope)["request_id"] = self.request_id

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return perf_counter() - self._started_at

    async def receive(self) -> Message:
        """Return the next message from the client.  Raises :class:`TooLarge`, :class:`TooSlow`."""
        if self._body_ended:
            return await self._receive()  # what follows a body is its client's leaving
        kept = self._scope["state"]
        limit, idle = kept.get("body_limit", self._limit), kept.get("body_idle", self._idle)
        if not self._received:
            self._check_length(limit)
        try:
            async with asyncio.timeout(idle):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(f"nothing came for {idle:g} seconds") from None
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._body_ended = True
        self._received += len(message.get("body", b""))
        if limit is not None and self._received > limit:
            raise TooLarge(f"the body is larger than {limit} bytes")
        return message

    async def send(self, message: Message) -> None:
        """Pass one message of the answer on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = list(message.get("headers", ()))
            names = {name.lower() for name, _ in own}
            message = {**message, "headers": own + [line for line in self.headers if line[0] not in names]}
            await self._settled()
        elif not message.get("more_body", False):
            self.complete = True
        await self._send(message)

    async def refuse(self, status: int, message: str) -> bool:
        """Answer with an error of the server's own; return whether that was possible.

        What is left of a body is read and dropped for a while (:mod:`cellfork.server.protocol`): where a
        connection is closed while its client still sends, the answer is lost with it.
        """
        if self.status:
            return False
        await send_json(self.send, status, {"code": status, "message": message})
        return True

    def _check_length(self, limit: int | None) -> None:
        told = header(self._scope, b"content-length")
        if limit is not None and told is not None and told.isdecimal() and int(told[:20]) > limit:
            raise TooLarge(f"the body is larger than {limit} bytes")


def request_id(scope: Scope) -> str:
    """Return the id that the client gave to its request, where it is harmless, otherwise a new one."""
    told = header(scope, b"x-request-id")
    return told if told is not None and _REQUEST_ID.fullmatch(told) else secrets.token_hex(8)
