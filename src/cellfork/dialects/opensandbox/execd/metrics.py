"""What a sandbox uses now, in execd's numbers."""

import asyncio
import contextlib
import os
import weakref
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from cellfork.dialects.asgi import Abort, Send, disconnected
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.frames import STREAM_HEADERS
from cellfork.engine.sandbox import Sandbox
from cellfork.model.limits import MiB

INTERVAL: Final = 1.0
"""Seconds between two lines of ``/metrics/watch``."""
SHORTEST: Final = 0.2
"""Seconds over which the use of processors is measured at least."""


@dataclass(slots=True)
class _Reading:
    """What was read last: processor time, when, and the percentage that came of it."""

    cpu_time: float
    at: float
    percent: float


class Metrics:
    """Measures sandboxes.  The use of processors is that since the question before, or since the sandbox began."""

    def __init__(self) -> None:
        self._readings: weakref.WeakKeyDictionary[Sandbox, _Reading] = weakref.WeakKeyDictionary()

    def routes(self) -> Routes:
        """Return what is served."""
        return (Route("GET", "/metrics", self.once), Route("GET", "/metrics/watch", self.watch))

    async def once(self, call: Call) -> None:
        """Tell what a sandbox uses."""
        await call.answer(self.measure(call.sandbox))

    async def watch(self, call: Call) -> None:
        """Tell it every second, a line each, until the client leaves.  Raises :class:`Abort` where the sandbox ends."""
        value = self.measure(call.sandbox)
        await call.send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        gone = asyncio.ensure_future(_gone(call))
        try:
            while not gone.done():
                await _line(call.send, value)
                await asyncio.wait({gone}, timeout=INTERVAL)
                if call.sandbox.state == "ended":
                    raise Abort
                if call.sandbox.state == "running":
                    value = self.measure(call.sandbox)
        finally:
            gone.cancel()

    def measure(self, sandbox: Sandbox) -> dict[str, Any]:
        """Return what a sandbox uses; what the host cannot tell is 0."""
        usage = sandbox.guest.measure()
        cores = sandbox.limits.cpu or float(os.cpu_count() or 1)
        total = sandbox.limits.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "cpu_count": cores,
            "cpu_used_pct": self._percent(sandbox, usage.cpu_time or 0.0, cores),
            "mem_total_mib": total / MiB,
            "mem_used_mib": min(usage.memory or 0, total) / MiB,
            "timestamp": sandbox.settings.clock.time_ns() // 1_000_000,
        }

    def _percent(self, sandbox: Sandbox, cpu_time: float, cores: float) -> float:
        now = sandbox.settings.clock.monotonic()
        last = self._readings.get(sandbox)
        if last is None:
            age = max(SHORTEST, sandbox.settings.clock.time_ns() / 1e9 - sandbox.started_at)
            last = _Reading(0.0, now - age, 0.0)
        if now - last.at < SHORTEST:
            return last.percent
        used = 100 * (cpu_time - last.cpu_time) / (now - last.at) / cores
        percent = round(max(0.0, min(used, 100.0)), 2)
        self._readings[sandbox] = _Reading(cpu_time, now, percent)
        return percent


async def _line(send: Send, value: dict[str, Any]) -> None:
    await send({"type": "http.response.body", "body": msgspec.json.encode(value) + b"\n", "more_body": True})


async def _gone(call: Call) -> None:
    with contextlib.suppress(Exception):
        await disconnected(call.receive)
