"""Requests to init: each gets one reply, or the reason why it gets none."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cellfork.model.errors import CellforkError, LimitExceeded, ProtocolViolation, from_code

Header = dict[str, Any]
Send = Callable[[Header, bytes], None]
ChunkHandler = Callable[[bytes], None]
ErrorFactory = Callable[[], CellforkError]


class Requests:
    """The requests that wait for their reply, by id.  Use in one event loop only."""

    def __init__(self, send: Send, last: int = 0) -> None:
        """``last`` is the number of the last request that was sent by somebody else."""
        self._send = send
        self._last = last
        self._waiting: dict[int, tuple[asyncio.Future[Header], ChunkHandler | None]] = {}
        self._over: ErrorFactory | None = None
        self._refused: ErrorFactory | None = None

    def refuse(self, error: ErrorFactory | None) -> None:
        """Refuse requests from now on, but for those whose outcome does not matter; ``None``: take them again."""
        self._refused = error

    def send(
        self, op: str, body: bytes = b"", *, on_chunk: ChunkHandler | None = None, **fields: Any
    ) -> asyncio.Future[Header]:
        """Send a request; return the future of its result.

        The future fails with what init answered, or with :class:`SandboxGone` when the sandbox ends.
        """
        if self._refused is not None and self._over is None:
            future: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
            future.set_exception(self._refused())
            return future
        return self._request(op, body, on_chunk, fields)

    def send_in_pause(
        self, op: str, body: bytes = b"", *, on_chunk: ChunkHandler | None = None, **fields: Any
    ) -> asyncio.Future[Header]:
        """Send a request, whether others are refused or not."""
        return self._request(op, body, on_chunk, fields)

    def _request(
        self, op: str, body: bytes, on_chunk: ChunkHandler | None, fields: Mapping[str, Any]
    ) -> asyncio.Future[Header]:
        future: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            future.set_exception(self._over())
            return future
        self._last += 1
        self._waiting[self._last] = future, on_chunk
        try:
            self._send({"op": op, "id": self._last, **fields}, body)
        except CellforkError as error:
            self._forget(self._last, error)
        except ValueError:
            self._forget(self._last, LimitExceeded(f"a request ({op}) is too large"))
        return future

    def tell(self, op: str, **fields: Any) -> None:
        """Send a request whose outcome does not matter."""
        self._request(op, b"", None, fields).add_done_callback(look_at)

    def on_reply(self, header: Mapping[str, Any]) -> None:
        """Hand a reply to whoever waits for it.

        Raises :class:`ProtocolViolation` where nobody does, and for an unknown code.
        """
        waiting = self._waiting.pop(header["id"], None)
        if waiting is None:
            raise ProtocolViolation(f"a reply to no request: {header['id']}")
        future = waiting[0]
        if header["ok"]:
            if not future.done():
                future.set_result(header["result"])
            return
        error = from_code(header["code"], header["message"])
        _fail(future, error)
        if isinstance(error, ProtocolViolation):
            raise error

    def on_chunk(self, number: int, body: bytes) -> None:
        """Hand a piece of a file to whoever waits for it; :class:`ProtocolViolation` where nobody does."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting[1] is None:
            raise ProtocolViolation(f"a chunk for no request: {number}")
        waiting[1](body)

    def fail_all(self, error: ErrorFactory) -> None:
        """Fail every request, those to come as well."""
        self._over = error
        for number in list(self._waiting):
            self._forget(number, error())

    def _forget(self, number: int, error: CellforkError) -> None:
        _fail(self._waiting.pop(number)[0], error)


def _fail(future: asyncio.Future[Header], error: CellforkError) -> None:
    if not future.done():
        future.set_exception(error)


def look_at(future: asyncio.Future[Header]) -> None:
    """Look at how a request ended, for a caller that may not: its failure is then no error that nobody saw."""
    if not future.cancelled():
        future.exception()
