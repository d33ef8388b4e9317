"""HTTP/1.1 on a socket, with bounds on what a client may make the server wait for or hold.

uvicorn's protocol over httptools parses; what it leaves without a bound is bounded here: the size of a
request's headers and the time they take, a body that goes on after its answer, and an answer that nobody reads.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from cellfork.dialects.asgi import ASGIApp
from cellfork.server.settings import Settings
from cellfork.server.websockets import bounded_websocket

ABORT = "cellfork.abort"
"""Extension of a request's scope: closes the connection without completing the answer."""

RESET = struct.pack("ii", 1, 0)
"""For ``SO_LINGER``: closing resets the connection."""
HEADER_BYTES = 64 * 1024
HEADERS = 200
_FULL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_OVERHEAD = 32
"""Bytes that each header costs beside its text, so that many empty ones count too."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long, in seconds, a client may take for what."""

    headers: float = 10.0
    """To send a request's headers, from its first byte (or from connecting)."""
    body_after_answer: float = 10.0
    """To finish a body that was answered already."""
    answer: float = 120.0
    """To take what waits in the buffer of its connection."""


class TooManyHeaders(Exception):
    """The head of a request is larger than any honest one."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection.  ``patience`` is set by :func:`speaker`, which makes a class for a server's settings."""

    patience = Patience()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = True
        self._head_bytes = 0
        self._head_lines = 0
        self._too_large = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------------------ connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for a first request, for as long as its headers may take."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop every clock."""
        for timer in (self._head_timer, self._answer_timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; the first byte of a head starts its clock."""
        if self.parser is None or self.transport.is_closing():
            return  # what comes after a refusal is not read
        if self._in_head and self._head_timer is None:
            self._await_head()
        super().data_received(data)

    # ------------------------------------------------------------------------------------------ head

    def on_url(self, url: bytes) -> None:
        """Count a piece of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count one header."""
        self._head_lines += 1
        self._count(len(name) + len(value) + _OVERHEAD)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the head's clock and start the request."""
        self._in_head = False
        self._head_bytes = self._head_lines = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()
        self.scope["extensions"] = {ABORT: partial(self._abort, self.cycle)}  # type: ignore[dict-item]  # ours

    def on_message_complete(self) -> None:
        """Expect the next head."""
        super().on_message_complete()
        self._in_head = True
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def handle_websocket_upgrade(self) -> None:
        """Let a WebSocket begin, where there is room for another connection."""
        most = self.limit_concurrency
        if most is not None and len(self.connections) > most:
            self.transport.write(_FULL)
            self.transport.close()
            return
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and what is too much of it; nothing further of this connection is read."""
        if self.transport.is_closing():
            return
        status, text = (b"431 Request Header Fields Too Large", b"the headers are too large")
        if not self._too_large:
            status, text = b"400 Bad Request", b"this is not a valid HTTP request"
        if self.cycle is None or self.cycle.response_complete:
            body = b'{"code":%s,"message":"%s"}' % (status[:3], text)
            self.transport.write(
                b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
                % (status, len(body), body)
            )
        self.transport.close()  # in the middle of another answer, a second one would be taken for a part of it

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEADER_BYTES or self._head_lines > HEADERS:
            self._too_large = True
            raise TooManyHeaders

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.patience.headers, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head and not self._answers():
            self.transport.close()

    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # ---------------------------------------------------------------------------------------- answer

    def on_response_complete(self) -> None:
        """Bound the rest of a body that nobody waits for any more."""
        super().on_response_complete()
        if self._in_head or self.transport.is_closing() or self.pipeline:
            return
        # The answer came before the body had: what is left of it is read and dropped, for a while.
        self._rest_timer = self.loop.call_later(self.patience.body_after_answer, self.transport.close)

    def pause_writing(self) -> None:
        """Start the clock of an answer that waits for its reader."""
        super().pause_writing()
        self._answer_timer = self.loop.call_later(self.patience.answer, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that clock: it is read again."""
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _abort(self, cycle: RequestResponseCycle) -> None:
        """Send what was written, then reset the connection, without the final chunk: the client sees an incomplete answer.

        A reset and not an orderly end: some clients (E2B's Python SDK 2.45) ask only after a reset whether the sandbox
        is alive, and take the other for a server that does not keep to HTTP.  Where the answer is complete, the
        connection is the next request's, and stays.
        """
        if cycle.response_complete:
            return
        cycle.disconnected = True
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:  # the client may have closed it meanwhile
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if self.scope["scheme"] == "https" and not self.transport.get_write_buffer_size():
            self.transport.abort()  # TLS would say goodbye first, and that is an orderly end
            return
        self.transport.close()
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self.patience.answer, self.transport.abort)


Speaks = Callable[[dict[str, Any]], BoundedProtocol]
"""Makes a protocol for one connection, given what every scope of it carries as ``state``."""


def speaker(
    app: ASGIApp,
    settings: Settings,
    shared: ServerState,
    *,
    websockets: bool = True,
    patience: Patience | None = None,
) -> Speaks:
    """Return what speaks HTTP for ``app``, with the bounds of a server's settings.

    ``shared`` knows the connections and tasks of all that speak for one server.
    """
    config = uvicorn_config(app, settings, websockets=websockets)
    config.load()
    kind = type("BoundedProtocol", (BoundedProtocol,), {"patience": patience or patience_of(settings)})
    return lambda state: kind(config, shared, state)


def patience_of(settings: Settings) -> Patience:
    """Return how long clients may take, as a server's settings say."""
    return Patience(settings.header_timeout, answer=settings.write_timeout)


def uvicorn_config(app: ASGIApp, settings: Settings, *, websockets: bool = True) -> Config:
    """Return uvicorn's configuration: nothing is logged twice, nothing is told about the server."""
    return Config(
        app,
        http=BoundedProtocol,
        ws=bounded_websocket(settings.write_timeout) if websockets else "none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=max(1, int(settings.keep_alive)),
        timeout_graceful_shutdown=settings.drain,  # type: ignore[arg-type]  # handed to asyncio.wait_for
    )
