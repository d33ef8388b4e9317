"""The zygotes of a runtime: each serves one trust domain, for a while, and nobody else ever.

Forks of one zygote share its memory layout and hash secret, so they may belong to one owner only.  A *domain*
is a tenant and a template.  Its zygote is started with its first request, or taken from the spares, which wait
for nobody in particular and are given once.  After so many forks, or so long, a successor is prepared in the
background and takes over; the old one gives no more forks, and is closed when its last sandbox has ended.  One
that nobody has used for a while is closed as well.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

from cellfork.model.errors import CellforkError, LimitExceeded, StartupFailed
from cellfork.model.specs import Template
from cellfork.runtimes.keeping import MOST_ENVIRONMENT, Keeping
from cellfork.runtimes.zygote import Zygote

Launch = Callable[[Template], Awaitable[Zygote]]

REFILL_DELAY = 0.05
"""Seconds after which a spare that was given is replaced: whoever got it shall have the processor first."""
PAUSE_AFTER_FAILURE = 5.0
"""Seconds until a successor or a spare that did not start is tried again."""
SHORTEST_LOOK = 0.02
LOOKS = 10
"""How often, within the time that an idle zygote is kept, is looked for such."""
STARTS = 3
"""How many zygotes in a row may end before anything was forked from them."""


class Domain(NamedTuple):
    """Who shares a zygote: one tenant's sandboxes of one template."""

    tenant: str
    template: Template


Retired = Callable[[Domain, Zygote], Awaitable[None]]
Prepared = Callable[[Zygote], Awaitable[None]]


async def nothing(*_args: object) -> None:
    """Do nothing: what a runtime does that keeps nothing else of a zygote."""


@dataclass(slots=True, eq=False)
class Holding:
    """The zygote that serves a domain now, or is being started for it.  Times are the event loop's."""

    zygote: "asyncio.Future[Zygote]"
    since: float
    used: float
    failures: int = 0
    successor: "asyncio.Task[None] | None" = field(default=None, repr=False)

    @property
    def serving(self) -> Zygote | None:
        """The zygote, once it has started."""
        done = self.zygote.done() and not self.zygote.cancelled() and self.zygote.exception() is None
        return self.zygote.result() if done else None

    @property
    def is_over(self) -> bool:
        """Whether it did not start, has died or must not fork any more."""
        serving = self.serving
        return self.zygote.done() and (serving is None or not (serving.alive and serving.fit))


class Zygotes:
    """Starts zygotes with ``launch``; whoever asks while one starts waits for the same one.

    ``on_prepared`` is called with a successor or a spare before anybody gets it, ``on_retired`` when a zygote
    gives no more forks: what was forked from it and belongs to nobody has to be ended then.
    """

    def __init__(
        self,
        launch: Launch,
        keeping: Keeping | None = None,
        *,
        on_prepared: Prepared = nothing,
        on_retired: Retired = nothing,
    ) -> None:
        self._launch = launch
        self._keeping = keeping or Keeping()
        self._on_prepared = on_prepared
        self._on_retired = on_retired
        self._holdings: dict[Domain, Holding] = {}
        self._retired: set[Zygote] = set()
        self._launched: WeakSet[Zygote] = WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        self._spares = Spares(self._prepare, self._keeping.spares)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def of(self, template: Template, tenant: str = "") -> Zygote:
        """Return the zygote that serves ``tenant`` with ``template``; fork from it before anything is awaited.

        Raises what starting it raises, and :class:`LimitExceeded` where no other may be started.
        """
        if self._closed:
            raise StartupFailed("the runtime was closed")
        domain = Domain(tenant, template)
        self.prepare()
        for _ in range(STARTS):
            holding = self._holding_of(domain)
            try:
                zygote = await asyncio.shield(holding.zygote)
            except asyncio.CancelledError:
                if not holding.zygote.cancelled():
                    raise  # it is this request that was given up
                raise StartupFailed("the runtime was closed") from None
            if self._holdings.get(domain) is holding and not holding.is_over:
                holding.used = _now()
                self._rotate_where_due(domain, holding, zygote)
                return zygote
        raise StartupFailed("the zygote ended as soon as it had started")

    def adopt(self, domain: Domain, zygote: Zygote) -> None:
        """Take a zygote with sandboxes that has outlived another process.

        It serves its domain again if that has no other one and it is fit to; otherwise it is seen out.
        """
        self._launched.add(zygote)
        holding = self._holdings.get(domain)
        if zygote in self._retired or (holding is not None and holding.serving is zygote):
            return
        if zygote.fit and (holding is None or holding.is_over):
            serving: asyncio.Future[Zygote] = asyncio.get_running_loop().create_future()
            serving.set_result(zygote)
            self._holdings[domain] = Holding(serving, since=_now(), used=_now())
            self._look_later()
        else:
            self._spawn(self._see_out(domain, zygote))

    def make_room(self, wanted: Domain, rivals: Callable[[Domain], bool], most: int) -> bool:
        """See that ``wanted`` can have a zygote while at most ``most`` of ``rivals`` have one; tell whether it can.

        Of those that nobody uses the one is let go that was not used for longest.
        """
        if wanted in self._holdings:
            return True
        others = [domain for domain in self._holdings if rivals(domain)]
        if len(others) < most:
            return True
        idle = [domain for domain in others if self._is_unused(self._holdings[domain])]
        if not idle:
            return False
        self._let_go(min(idle, key=lambda domain: _last_use(self._holdings[domain])))
        return True

    def prepare(self) -> None:
        """See that the spares are there, or on their way."""
        if not self._closed:
            for template in self._keeping.templates:
                self._spares.keep(template)

    @property
    def living(self) -> int:
        """How many zygotes serve somebody, are being started for somebody, or are seen out."""
        return sum(not holding.is_over for holding in self._holdings.values()) + len(self._retired)

    async def leave(self) -> None:
        """Let zygotes with sandboxes that belong to somebody go on without this process; end the others."""
        await self._stop()
        for zygote in self._launched:
            if zygote.in_use:
                zygote.leave()
        await asyncio.gather(*(zygote.aclose() for zygote in self._launched if not zygote.in_use))

    async def aclose(self) -> None:
        """End every zygote, and with it what was forked from it."""
        await self._stop()
        await asyncio.gather(*(launched.aclose() for launched in self._launched))

    async def _stop(self) -> None:
        """Start no other one, and see none out any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        holdings, self._holdings = self._holdings, {}
        starting = [holding.zygote for holding in holdings.values()]
        for zygote in starting:
            zygote.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*starting, *self._tasks, self._spares.aclose(), return_exceptions=True)
        self._retired.clear()

    # ------------------------------------------------------------------------------------ starting

    def _holding_of(self, domain: Domain) -> Holding:
        holding = self._holdings.get(domain)
        if holding is not None and not holding.is_over and not self._is_overdue(holding):
            return holding
        if holding is not None:
            self._let_go(domain)
        self._make_room()
        spare = self._spares.take(domain.template)
        zygote = spare or asyncio.create_task(self._launch_in_turn(domain.template))
        self._holdings[domain] = Holding(zygote, since=_now(), used=_now())
        self._look_later()
        return self._holdings[domain]

    def _make_room(self) -> None:
        """Let the zygote go that nobody has used for longest, where there are as many as may be."""
        if self.living < self._keeping.most:
            return
        idle = [domain for domain, holding in self._holdings.items() if self._is_unused(holding)]
        if not idle:
            raise LimitExceeded(
                f"{self.living} zygotes live, each with sandboxes of another tenant or template, and at most "
                f"{self._keeping.most} may; end some sandboxes, or raise {MOST_ENVIRONMENT}"
            )
        self._let_go(min(idle, key=lambda domain: _last_use(self._holdings[domain])))

    async def _launch_in_turn(self, template: Template) -> Zygote:
        """Launch a zygote, of which only so many import their modules at a time."""
        async with self._turns:
            zygote = await self._launch(template)
        self._launched.add(zygote)
        return zygote

    async def _prepare(self, template: Template) -> Zygote:
        """Launch a zygote that nobody waits for, and what goes with it."""
        zygote = await self._launch_in_turn(template)
        try:
            await self._on_prepared(zygote)
        except BaseException:
            await zygote.aclose()
            raise
        return zygote

    # ------------------------------------------------------------------------------------ rotation

    def _rotate_where_due(self, domain: Domain, holding: Holding, zygote: Zygote) -> None:
        if holding.successor is None and self._is_due(holding, zygote) and not self._closed:
            holding.successor = self._spawn(self._replace(domain, holding, zygote))

    def _is_due(self, holding: Holding, zygote: Zygote, times: int = 1) -> bool:
        too_old = _now() - holding.since >= times * self._keeping.age
        return too_old or zygote.forks >= times * self._keeping.forks

    def _is_overdue(self, holding: Holding) -> bool:
        """Tell whether no successor could be started for so long that the old zygote must not serve any more."""
        zygote = holding.serving
        return zygote is not None and holding.failures > 0 and self._is_due(holding, zygote, times=2)

    async def _replace(self, domain: Domain, holding: Holding, zygote: Zygote) -> None:
        """Prepare a successor, let it take over, see the old zygote out."""
        try:
            successor = await (self._spares.take(domain.template) or self._prepare(domain.template))
        except (CellforkError, OSError):
            holding.failures += 1
            await asyncio.sleep(PAUSE_AFTER_FAILURE)
            holding.successor = None
            return
        if self._closed or self._holdings.get(domain) is not holding:
            await self._see_out(domain, successor)
            return
        started: asyncio.Future[Zygote] = asyncio.get_running_loop().create_future()
        started.set_result(successor)
        self._holdings[domain] = Holding(started, since=_now(), used=holding.used)
        await self._see_out(domain, zygote)

    def _let_go(self, domain: Domain) -> None:
        """Give no more forks from the zygote of ``domain``; end it with its last sandbox."""
        zygote = self._holdings.pop(domain).serving
        if zygote is not None:
            self._retired.add(zygote)
            self._spawn(self._see_out(domain, zygote))

    async def _see_out(self, domain: Domain, zygote: Zygote) -> None:
        self._retired.add(zygote)
        await self._on_retired(domain, zygote)
        await zygote.wait_unused()
        await zygote.aclose()
        self._retired.discard(zygote)

    # ------------------------------------------------------------------------------------ idleness

    def _is_unused(self, holding: Holding) -> bool:
        zygote = holding.serving
        return zygote is not None and not zygote.in_use

    def _look_later(self) -> None:
        if self._timer is None and not self._closed and self._holdings:
            pause = max(self._keeping.idle / LOOKS, SHORTEST_LOOK)
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _look(self) -> None:
        """Let go what nobody has used for long."""
        self._timer = None
        for domain, holding in [*self._holdings.items()]:
            long_ago = _now() - _last_use(holding) >= self._keeping.idle
            if holding.is_over or (long_ago and self._is_unused(holding)):
                self._let_go(domain)
        self._look_later()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Spares:
    """Zygotes that are started ahead with ``prepare``, ``size`` of each template, and belong to nobody."""

    def __init__(self, prepare: Launch, size: int) -> None:
        self._prepare = prepare
        self._size = size
        self._waiting: dict[Template, deque[asyncio.Task[Zygote]]] = {}
        self._timers: dict[Template, asyncio.TimerHandle] = {}

    @property
    def count(self) -> int:
        """How many there are, those that are being started included."""
        return sum(map(len, self._waiting.values()))

    def keep(self, template: Template) -> None:
        """Keep spares of ``template`` from now on."""
        if self._size and template not in self._waiting:
            self._waiting[template] = deque()
            self._fill(template)

    def take(self, template: Template) -> "asyncio.Task[Zygote] | None":
        """Return a spare, which may be on its way still, and see to the next; ``None`` where there is none."""
        waiting = self._waiting.get(template)
        while waiting:
            spare = waiting.popleft()
            self._fill_later(template, REFILL_DELAY)
            if not _has_ended(spare):
                return spare
        return None

    async def aclose(self) -> None:
        """Start no more; the zygotes themselves are their owner's to end."""
        self._size = 0
        for timer in self._timers.values():
            timer.cancel()
        waiting, self._waiting = self._waiting, {}
        spares = [spare for several in waiting.values() for spare in several]
        for spare in spares:
            spare.cancel()
        await asyncio.gather(*spares, return_exceptions=True)

    def _fill(self, template: Template) -> None:
        self._timers.pop(template, None)
        waiting = self._waiting[template]
        while len(waiting) < self._size:
            waiting.append(asyncio.create_task(self._start(template)))
            waiting[-1].add_done_callback(_look_at)

    def _fill_later(self, template: Template, pause: float) -> None:
        if template not in self._timers and self._size:
            loop = asyncio.get_running_loop()
            self._timers[template] = loop.call_later(pause, self._fill, template)

    async def _start(self, template: Template) -> Zygote:
        try:
            return await self._prepare(template)
        except (CellforkError, OSError):
            self._forget_failures(template)
            raise

    def _forget_failures(self, template: Template) -> None:
        """Drop the spare that is failing now, and try again after a while."""
        waiting = self._waiting.get(template, deque())
        current = asyncio.current_task()
        if current in waiting:
            waiting.remove(current)  # type: ignore[arg-type]
        self._fill_later(template, PAUSE_AFTER_FAILURE)


def _look_at(spare: "asyncio.Task[Zygote]") -> None:
    """Look at the outcome of what perhaps nobody waits for."""
    if not spare.cancelled():
        spare.exception()


def _has_ended(spare: "asyncio.Task[Zygote]") -> bool:
    failed = spare.done() and (spare.cancelled() or spare.exception() is not None)
    return failed or (spare.done() and not spare.result().alive)


def _last_use(holding: Holding) -> float:
    zygote = holding.serving
    return max(holding.used, zygote.last_end if zygote is not None else 0.0)


def _now() -> float:
    return asyncio.get_running_loop().time()
