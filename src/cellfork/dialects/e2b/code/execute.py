"""``/execute``: code in, lines of JSON out, as they come.

A stream ends with ``end_of_execution`` or not at all: where the sandbox is gone, the connection is closed without the final
chunk, and the client sees that it is incomplete.  A client that goes away stops its code.
"""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Protocol

from cellfork.dialects.asgi import Abort, Headers, Receive, Send, send_body
from cellfork.dialects.e2b.code import translate
from cellfork.dialects.e2b.extension.codec import event_line
from cellfork.dialects.streaming import Follower
from cellfork.engine.contexts import Context
from cellfork.engine.executions import RunningExecution
from cellfork.engine.sandbox import Sandbox
from cellfork.model import events
from cellfork.model.specs import ExecuteRequest

KEEPALIVE_SECONDS = 5.0
"""After so much silence a line is sent that says nothing: a client that is gone is noticed by it."""
FIRST_SECONDS = 0.05
"""How long code that is silent may run before the response begins, and its client is watched."""
PIECE = 256 * 1024
"""Bytes of lines that are written at once."""
NDJSON: Final = b"application/x-ndjson"
STREAM_HEADERS: Headers = (
    (b"content-type", NDJSON),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class Lines(Protocol):
    """Writes the events of one execution as lines."""

    def first(self, running: RunningExecution) -> bytes:
        """Return what precedes the first event."""

    def of(self, event: events.Event) -> bytes:
        """Return the lines of an event that is not the last one."""

    def last(self, event: events.Terminal) -> bytes | None:
        """Return the lines of the last event; ``None``: the stream has to be torn."""


class UpstreamLines:
    """Lines as upstream's clients read them.  They cannot be told that the sandbox is gone."""

    def __init__(self, sandbox: Sandbox, context: Context) -> None:
        self._sandbox = sandbox
        self._context = context
        self.of = translate.Lines(context.language).of

    def first(self, running: RunningExecution) -> bytes:
        """Return nothing."""
        return b""

    def last(self, event: events.Terminal) -> bytes | None:
        """Return the error, where there is one, and the end; ``None`` where the execution ended because its sandbox did."""
        by_itself = isinstance(event, events.Finished | events.Failed)
        if not by_itself and self._sandbox.state != "running":
            return None
        return translate.last_lines(event, removed=self._context not in self._sandbox.contexts.list())


class EventLines:
    """Every event as it is, after a line with the execution's id: what our own client reads."""

    of = staticmethod(event_line)

    def first(self, running: RunningExecution) -> bytes:
        """Return the line that tells the id."""
        return b'{"type":"execution","id":"%s"}\n' % running.id.encode()

    def last(self, event: events.Terminal) -> bytes | None:
        """Return the line of the terminal event, which tells everything that there is to tell."""
        return event_line(event)


async def stream(
    sandbox: Sandbox, context: Context, request: ExecuteRequest, lines: Lines, receive: Receive, send: Send
) -> None:
    """Run code and answer with its lines.

    Raises what the engine refuses, before anything is sent, and :class:`Abort` where the sandbox ended under the code.
    """
    follower = Follower()
    running = sandbox.start(context, request, on_event=follower.put)
    try:
        await _Response(running, follower, lines, send).run(receive)
    finally:
        follower.close()
        running.interrupt()  # the client is gone; nothing where the code has ended


class _Response:
    """One response, from its first line to its end."""

    def __init__(self, running: RunningExecution, follower: Follower, lines: Lines, send: Send) -> None:
        self._running = running
        self._follower = follower
        self._lines = lines
        self._send = send
        self._torn = False

    async def run(self, receive: Receive) -> None:
        follower = self._follower
        if self._running.state != "queued":
            await follower.wait(FIRST_SECONDS)
        batch = follower.take(self._running.since)
        pieces = self._pieces(batch, self._lines.first(self._running))
        first = next(pieces, b"")
        second = next(pieces, None)
        if _is_last(batch) and second is None and not self._torn:  # as it nearly always is
            await send_body(self._send, 200, first, NDJSON)
            return
        await self._send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        follower.watch(receive)
        await self._follow(chain((first,) if second is None else (first, second), pieces), _is_last(batch))

    async def _follow(self, pieces: Iterable[bytes], is_last: bool) -> None:
        follower, clock = self._follower, asyncio.get_running_loop()
        silent_until = clock.time() + KEEPALIVE_SECONDS
        while not follower.gone:
            for piece in pieces:
                await self._write(piece)
                silent_until = clock.time() + KEEPALIVE_SECONDS
            if self._torn:
                raise Abort
            if is_last:
                await self._write(b"", more=False)
                return
            await follower.wait(silent_until - clock.time())
            batch = follower.take(self._running.since)
            pieces, is_last = self._pieces(batch), _is_last(batch)
            if clock.time() >= silent_until:
                await self._write(translate.KEEPALIVE)
                silent_until = clock.time() + KEEPALIVE_SECONDS

    async def _write(self, lines: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": lines, "more_body": more})

    def _pieces(self, batch: list[events.Event], before: bytes = b"") -> Iterator[bytes]:
        """Yield the lines of a batch, several in one piece where they are short."""
        lines, size = [before], len(before)
        for event in batch:
            line = self._encode(event)
            lines.append(line)
            size += len(line)
            if size >= PIECE:
                yield b"".join(lines)
                lines, size = [], 0
        if size:
            yield b"".join(lines)

    def _encode(self, event: events.Event) -> bytes:
        if not isinstance(event, events.Terminal):
            return self._lines.of(event)
        last = self._lines.last(event)
        self._torn = last is None
        return last or b""


def _is_last(batch: list[events.Event]) -> bool:
    return bool(batch) and isinstance(batch[-1], events.Terminal)
