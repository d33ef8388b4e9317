"""Sandboxes started ahead, each given out once."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from cellfork.model.errors import CellforkError
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes.guest import ProcessGuest

Start = Callable[[SandboxSpec], Awaitable[ProcessGuest]]

PAUSE_AFTER_FAILURE = 1.0
REFILL_DELAY = 0.02
"""Seconds after which what was given out is replaced: whoever got it shall have the processor first."""


class Pool:
    """Keeps ``size`` sandboxes of one kind ready, the kind that was asked for last.

    A sandbox fits a request with the same template, limits and network and without environment
    variables of its own: everything else is told to it later.
    """

    def __init__(self, size: int, start: Start) -> None:
        self._size = size
        self._start = start
        self._kind: SandboxSpec | None = None
        self._ready: deque[ProcessGuest] = deque()
        self._filling: asyncio.Task[None] | None = None

    async def take(self, spec: SandboxSpec) -> ProcessGuest | None:
        """Return a sandbox that fits ``spec``, if there is one, and see to the next."""
        if not self._size or spec.envs:
            return None
        kind = kind_of(spec)
        if kind != self._kind:
            await self._drop()
            self._kind = kind
        guest = self._first_alive()
        self._fill()
        return guest

    async def aclose(self) -> None:
        """Kill what was not given out."""
        self._size = 0
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        await self._drop()

    def _first_alive(self) -> ProcessGuest | None:
        while self._ready:
            guest = self._ready.popleft()
            if guest.alive:
                return guest
        return None

    def _fill(self) -> None:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._keep_full())

    async def _keep_full(self) -> None:
        await asyncio.sleep(REFILL_DELAY)
        while self._kind is not None and len(self._ready) < self._size:
            kind = self._kind
            try:
                guest = await self._start(kind)
            except CellforkError:
                await asyncio.sleep(PAUSE_AFTER_FAILURE)
                return
            if kind == self._kind and self._size:
                self._ready.append(guest)
            else:
                await guest.kill("owner")

    async def _drop(self) -> None:
        ready, self._ready = self._ready, deque()
        await asyncio.gather(*(guest.kill("owner") for guest in ready))


def kind_of(spec: SandboxSpec) -> SandboxSpec:
    """Return ``spec`` without what does not matter for a sandbox that is started ahead."""
    return SandboxSpec(
        template=spec.template, limits=spec.limits, network=spec.network, isolation=spec.isolation
    )
