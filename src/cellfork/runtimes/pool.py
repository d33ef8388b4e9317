"""Sandboxes started ahead, each given out once, to the tenant whom it was started for."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from cellfork.model.errors import CellforkError
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes.base import Stock
from cellfork.runtimes.guest import ProcessGuest
from cellfork.runtimes.zygotes import Domain

Start = Callable[[SandboxSpec], Awaitable[ProcessGuest]]

OWN = "CELLFORK_"
"""How variables begin that choose between kinds of sandboxes; any other is somebody's data."""
PAUSE_AFTER_FAILURE = 1.0
REFILL_DELAY = 0.02
"""Seconds after which what was given out is replaced: whoever got it shall have the processor first."""


class Pool:
    """Keeps ``size`` sandboxes ready for every domain, of the kind that it asked for last.

    A sandbox fits a request of the same tenant with the same template, limits and network, and without
    environment variables but cellfork's own: everything else is told to it later.  Of a template with languages that are
    started ahead at least one is kept: its kernels are what takes long.
    """

    def __init__(self, size: int, start: Start) -> None:
        self._size = size
        self._closed = False
        self._start = start
        self._shelves: dict[Domain, Shelf] = {}

    async def take(self, spec: SandboxSpec) -> ProcessGuest | None:
        """Return a sandbox that fits ``spec``, if there is one, and see to the next."""
        size = self._size_of(spec.template)
        if not size or self._closed or spec.volumes or not all(name.startswith(OWN) for name in spec.envs):
            return None
        domain = Domain(spec.tenant, spec.template)
        kind = kind_of(spec)
        shelf = self._shelves.get(domain)
        if shelf is None or shelf.kind != kind:
            await self.drop(domain)
            shelf = self._shelves.setdefault(domain, Shelf(kind, size, self._start))
        return shelf.take() if shelf.kind == kind else None

    def stock(self, domain: Domain) -> Stock:
        """Tell how many are to wait for ``domain``, and how many do."""
        shelf = self._shelves.get(domain)
        return Stock(self._size_of(domain.template), 0 if shelf is None else shelf.count)

    async def drop(self, domain: Domain) -> None:
        """Kill what waits for ``domain``, and start nothing for it until it asks again."""
        shelf = self._shelves.pop(domain, None)
        if shelf is not None:
            await shelf.aclose()

    async def aclose(self) -> None:
        """Kill what was not given out."""
        self._closed = True
        await asyncio.gather(*(self.drop(domain) for domain in [*self._shelves]))

    def _size_of(self, template: Template) -> int:
        return self._size or (1 if template.languages else 0)


class Shelf:
    """The sandboxes of one kind that wait."""

    def __init__(self, kind: SandboxSpec, size: int, start: Start) -> None:
        self.kind = kind
        self._size = size
        self._start = start
        self._ready: deque[ProcessGuest] = deque()
        self._filling: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._ready)

    def take(self) -> ProcessGuest | None:
        """Return one that lives, if there is one, and see to the next."""
        guest = self._first_alive()
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._keep_full())
        return guest

    async def aclose(self) -> None:
        """Kill them all and start no more."""
        self._size = 0
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        ready, self._ready = self._ready, deque()
        await asyncio.gather(*(guest.kill("owner") for guest in ready))

    def _first_alive(self) -> ProcessGuest | None:
        while self._ready:
            guest = self._ready.popleft()
            if guest.alive:
                return guest
        return None

    async def _keep_full(self) -> None:
        await asyncio.sleep(REFILL_DELAY)
        while len(self._ready) < self._size:
            try:
                self._ready.append(await self._start(self.kind))
            except CellforkError:
                await asyncio.sleep(PAUSE_AFTER_FAILURE)
                return


def kind_of(spec: SandboxSpec) -> SandboxSpec:
    """Return ``spec`` without what does not matter for a sandbox that is started ahead."""
    return SandboxSpec(
        template=spec.template,
        limits=spec.limits,
        network=spec.network,
        envs=spec.envs,
        isolation=spec.isolation,
        tenant=spec.tenant,
    )
