"""Ports of a sandbox: a reverse proxy from the server to any program that listens inside.

The program is untrusted: its answers are parsed strictly, bounded, and written anew; nothing that it sends can become
more than one answer to one request.  Bytes flow in both directions at the pace of the slower end.

Raw upgrades other than WebSocket are not passed on (ASGI has no form for them), trailers are dropped.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import h11

from cellfork.dialects import websockets
from cellfork.dialects.asgi import Abort, Receive, Scope, Send, allow_body
from cellfork.dialects.heads import (
    FORWARDED,
    BadField,
    Field,
    canonical,
    end_to_end,
    forwarded,
    target_of,
    values_of,
)
from cellfork.engine.ports import Stream
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import InvalidRequest, LimitExceeded, UnavailableError

MAX_HEAD = 64 * 1024
"""Bytes of the head of an answer."""
MOST_INTERIM = 16
"""Interim answers (1xx) before the answer itself."""
MOST_CONNECTIONS = 256
"""To the ports of one sandbox at once."""
IDLE_SECONDS = 620.0
"""How long nothing may move in either direction."""
CONTINUE_SECONDS = 1.0
"""How long a client that expects ``100 Continue`` is kept waiting for the program to say so."""


class BadAnswer(UnavailableError):
    """A program inside did not answer with HTTP, or closed the connection before its answer."""

    code = "bad_answer"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request is to go, and what the program is told: ``host`` in place of the client's, nothing of ``hidden``."""

    sandbox: Sandbox
    port: int
    host: bytes | None = None
    hidden: frozenset[bytes] = frozenset()


class PortProxy:
    """Passes requests and WebSockets on to programs in sandboxes."""

    def __init__(self, most_connections: int = MOST_CONNECTIONS) -> None:
        """``most_connections`` bounds those to the ports of one sandbox."""
        self.most_connections = most_connections
        self._connections: Counter[str] = Counter()

    async def forward(self, scope: Scope, receive: Receive, send: Send, target: Target) -> None:
        """Pass one request on, and the answer back.

        Before anything was sent to the client: raises :class:`PortClosed`, :class:`BadAnswer`, :class:`LimitExceeded`
        (connections), :class:`InvalidRequest`, whatever :meth:`Sandbox.connect` and ``receive`` raise.
        Afterwards only :class:`Abort`.
        """
        with self._place(target.sandbox.id):
            head = head_of(scope, target)
            stream = await target.sandbox.connect(target.port)
            try:
                if scope["type"] == "websocket":
                    await websockets.relay(receive, send, stream, scope, head)
                else:
                    await _Exchange(stream, receive, send, target.sandbox).run(scope, head)
            except (OSError, websockets.NoHandshake) as error:
                raise BadAnswer(f"the program on port {target.port} did not answer: {error}") from error
            finally:
                stream.close()

    @contextlib.contextmanager
    def _place(self, sandbox: str) -> Iterator[None]:
        if self._connections[sandbox] >= self.most_connections:
            raise LimitExceeded(f"there are {self.most_connections} connections to ports of this sandbox")
        self._connections[sandbox] += 1
        try:
            yield
        finally:
            self._connections[sandbox] -= 1
            if not self._connections[sandbox]:
                del self._connections[sandbox]


def head_of(scope: Scope, target: Target) -> list[Field]:
    """Return the fields that a program is sent, its ``Host`` first.  Raises :class:`InvalidRequest`."""
    try:
        fields = end_to_end(scope["headers"])
    except BadField as error:
        raise InvalidRequest(str(error)) from error
    left_out = target.hidden | FORWARDED | {b"host"}
    host = values_of(fields, b"host")
    if len(host) > 1:
        raise InvalidRequest("there is more than one Host")
    told = target.host or (host[0] if host else b"localhost:%d" % target.port)
    return [(b"host", told), *(field for field in fields if field[0] not in left_out), *forwarded(scope)]


class _Exchange:
    """One request and its answer over one connection."""

    def __init__(self, stream: Stream, receive: Receive, send: Send, sandbox: Sandbox) -> None:
        self._stream = stream
        self._sandbox = sandbox
        self._receive = receive
        self._send = send
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._go_ahead = asyncio.Event()
        self._started = False
        self._failure: Exception | None = None
        self._client_left = False

    async def run(self, scope: Scope, head: list[Field]) -> None:
        """Pass on the request; raise before the answer has begun, or :class:`Abort` where it cannot be completed."""
        allow_body(scope, None, None)  # the program inside decides what it takes
        request = _request(scope, head)
        if not values_of(head, b"expect"):
            self._go_ahead.set()
        try:
            async with asyncio.timeout(IDLE_SECONDS) as self._idle:
                await self._stream.send(self._http.send(request) or b"")
                uploading = asyncio.create_task(self._upload())
                try:
                    await self._download()
                finally:
                    uploading.cancel()
                    await asyncio.gather(uploading, return_exceptions=True)
        except (OSError, h11.RemoteProtocolError, BadAnswer, TimeoutError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._client_left:
            return
        if self._started:
            raise Abort(str(error)) from error
        if self._failure is not None:
            raise self._failure
        if isinstance(error, TimeoutError):
            raise BadAnswer(f"nothing moved for {IDLE_SECONDS:g} s") from error
        raise BadAnswer(f"the program did not answer with HTTP: {str(error)[:200]}") from error

    def _moved(self) -> None:
        if not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)

    # ------------------------------------------------------------------------------------ to the program

    async def _upload(self) -> None:
        """Send the body, then wait for the client to leave; where it does, nobody needs the answer any more."""
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._go_ahead.wait(), CONTINUE_SECONDS)
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._client_left = True
                    break
                await self._pass_on(message.get("body", b""), more=message.get("more_body", False))
        except h11.LocalProtocolError:
            self._failure = InvalidRequest("the body does not have the length that was announced")
        except Exception as error:  # noqa: BLE001 - told where the answer is waited for
            self._failure = error
        self._stream.close()

    async def _pass_on(self, body: bytes, *, more: bool) -> None:
        if self._http.our_state is not h11.SEND_BODY:
            return  # the program takes no more: it has answered already
        data = self._http.send(h11.Data(body)) or b"" if body else b""
        if not more:
            data += self._http.send(h11.EndOfMessage()) or b""
        try:
            await self._stream.send(data)
        except ConnectionError:
            self._http.send_failed()  # what it has to say is still to be read
        self._moved()

    # ---------------------------------------------------------------------------------- from the program

    async def _download(self) -> None:
        answer = await self._answer()
        fields = _fields_of(answer)
        await self._send({"type": "http.response.start", "status": answer.status_code, "headers": fields})
        self._started = True
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                self._check_whole(answer)
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            else:
                raise BadAnswer("the connection was closed")

    def _check_whole(self, answer: h11.Response) -> None:
        """An answer that ends with its connection looks whole as well where its sandbox was killed."""
        told = any(name in {b"content-length", b"transfer-encoding"} for name, _value in answer.headers)
        if not told and self._sandbox.state == "ended":
            raise BadAnswer("the sandbox has ended")

    async def _answer(self) -> h11.Response:
        for _ in range(MOST_INTERIM):
            event = await self._next()
            self._go_ahead.set()
            if isinstance(event, h11.Response):
                if not 200 <= event.status_code <= 599:
                    raise BadAnswer(f"status {event.status_code}")
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise BadAnswer("the connection was closed")
        raise BadAnswer("too many interim answers")

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive())
            self._moved()
        return event


def _request(scope: Scope, head: list[Field]) -> h11.Request:
    fields = [*head, (b"connection", b"close")]
    if values_of(scope["headers"], b"transfer-encoding"):
        fields = [field for field in fields if field[0] != b"content-length"]
        fields.append((b"transfer-encoding", b"chunked"))
    try:
        named = [(canonical(name), value) for name, value in fields]
        return h11.Request(method=scope["method"], target=target_of(scope), headers=named)
    except h11.LocalProtocolError as error:
        raise InvalidRequest(f"this request cannot be passed on: {error}") from error


def _fields_of(answer: h11.Response) -> list[Field]:
    """Return the fields of an answer for the client; its length is left out where chunks told it."""
    raw = list(answer.headers)
    try:
        fields = end_to_end(raw)
    except BadField as error:
        raise BadAnswer(str(error)) from error
    left_out = {b"date"}  # the server tells the time itself
    if values_of(raw, b"transfer-encoding"):
        left_out.add(b"content-length")
    return [field for field in fields if field[0] not in left_out]
