"""WebSockets on a socket, with the bounds that HTTP has: nothing grows because a client does not read, or cuts too small.

uvicorn's protocol bounds a message and asks whether its client lives.  What it leaves without a bound is bounded here: answers
to pings that nobody reads, a connection whose client reads nothing at all, and the pieces of one message.
"""

import asyncio

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

MOST_PIECES = 4096
"""Frames of one message: an honest client sends pieces of kilobytes."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One connection.  ``patience`` is how long, in seconds, what was sent may wait for its reader."""

    patience = 120.0
    _unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Take nothing more from a client that does not read, and start its clock."""
        super().pause_writing()
        self._hold()
        self._unread = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that clock: it reads again."""
        super().resume_writing()
        self._stop_clock()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def handle_cont(self, event: Frame) -> None:
        """Take one more piece of a message, if there are not too many: empty ones cost memory as well."""
        if len(self.frames) < MOST_PIECES:
            super().handle_cont(event)
            return
        self.frames = []
        self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many pieces")
        self.handle_parser_exception()

    async def receive(self) -> object:  # type: ignore[override]  # uvicorn's type is a union of dicts
        """Return the next message; what waits for its reader keeps further ones from being read."""
        message = await super().receive()
        if not self.writable.is_set():
            self._hold()
        return message

    def _hold(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _stop_clock(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def bounded_websocket(patience: float) -> type[BoundedWebSocket]:
    """Return the protocol of a server that waits ``patience`` seconds for a client to read."""
    return type("BoundedWebSocket", (BoundedWebSocket,), {"patience": patience})
