"""Server-sent events as Together's agent sends them: one JSON object each, LF only, the sequence as the id."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import StreamingResponse

from cellfork.dialects.together.translate import Json

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, so that nobody between closes the connection."""
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

_encode = msgspec.json.Encoder().encode


def event(value: Json, id: int | None = None) -> bytes:
    """Return one event."""
    prefix = b"" if id is None else b"id: %d\n" % id
    return prefix + b"data: " + _encode(value) + b"\n\n"


def respond(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Answer with a stream of events; silence is filled with comments, and the end of ``events`` ends it."""
    return StreamingResponse(_with_heartbeat(events), media_type="text/event-stream", headers=HEADERS)


async def _with_heartbeat(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    iterator = events.__aiter__()
    coming = asyncio.ensure_future(_next(iterator))
    try:
        while True:
            done, _pending = await asyncio.wait({coming}, timeout=HEARTBEAT)
            if not done:
                yield b": keep-alive\n\n"
                continue
            piece = coming.result()
            if piece is None:
                return
            yield piece
            coming = asyncio.ensure_future(_next(iterator))
    finally:
        coming.cancel()
        await asyncio.wait({coming})


async def _next(iterator: AsyncIterator[bytes]) -> bytes | None:
    return await anext(iterator, None)
