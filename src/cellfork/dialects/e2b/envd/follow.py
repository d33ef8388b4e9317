"""What a stream tells of a process: what it writes from some moment on, that nothing happens, its end."""

import asyncio
from collections.abc import AsyncGenerator

from cellfork.dialects.e2b.envd import translate
from cellfork.dialects.e2b.envd.stubs.process_pb import ProcessEvent
from cellfork.engine.exec_log import ExecLog
from cellfork.engine.execs import Exec
from cellfork.engine.values import ExecOutput

KEEPALIVE_SECONDS = 90.0
MIN_KEEPALIVE, MAX_KEEPALIVE = 1.0, 3600.0


def keepalive_seconds(header: str | None) -> float:
    """Return how long a stream may say nothing, from ``Keepalive-Ping-Interval`` (whole seconds)."""
    if header is None or not (header.isascii() and header.isdecimal()) or len(header) > 9:
        return KEEPALIVE_SECONDS
    return min(max(float(header), MIN_KEEPALIVE), MAX_KEEPALIVE)


async def follow(exec_: Exec, after: int, interval: float) -> AsyncGenerator[ProcessEvent]:
    """Yield the start, the output that has a number above ``after``, and the end.

    Raises :class:`SandboxGone` where the end of the process is not known.
    """
    yield translate.started(exec_.pid or 0)
    while True:
        batch = await _next(exec_.log, after, interval)
        if batch is None:
            yield translate.keepalive()
            continue
        for item in batch:
            if item.data:
                yield translate.output(item)
        if exec_.log.closed and (not batch or batch[-1].sequence == exec_.log.last):
            break
        after = batch[-1].sequence
    yield translate.ended(exec_)


async def _next(log: ExecLog, after: int, interval: float) -> list[ExecOutput] | None:
    """Return what has come, nothing where nothing will; ``None`` where nothing came for ``interval`` seconds."""
    if found := log.since(after):
        return found
    try:
        async with asyncio.timeout(interval) as waiting:
            return await log.batch(after)
    except TimeoutError:
        if not waiting.expired():
            raise
        return None
