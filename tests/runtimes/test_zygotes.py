"""Which zygote serves whom, and for how long; the zygotes are made up, and so are their sandboxes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cellfork.model.errors import InvalidRequest, LimitExceeded, StartupFailed
from cellfork.model.specs import Template
from cellfork.runtimes import zygotes as module
from cellfork.runtimes.keeping import (
    FORKS_ENVIRONMENT,
    MINUTES_ENVIRONMENT,
    MOST_ENVIRONMENT,
    SPARES_ENVIRONMENT,
    Keeping,
)
from cellfork.runtimes.zygotes import Domain, Zygotes

TEMPLATE = Template("made up", preload=())
OTHER = Template("another", preload=("json",))


class MadeUp:
    """A zygote whose sandboxes are a number."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.alive = True
        self.fit = True
        self.forks = 0
        self.last_end = 0.0
        self.closed = False
        self.closed_at = 0.0
        self.sandboxes = 0
        self._ends = asyncio.Event()

    @property
    def in_use(self) -> bool:
        return self.sandboxes > 0

    def fork(self) -> None:
        self.forks += 1
        self.sandboxes += 1

    def end(self) -> None:
        self.sandboxes -= 1
        self.last_end = asyncio.get_running_loop().time()
        self._ends.set()

    async def wait_unused(self) -> None:
        while self.in_use:
            self._ends.clear()
            await self._ends.wait()

    async def aclose(self) -> None:
        self.alive, self.closed = False, True
        self.closed_at = asyncio.get_running_loop().time()


class Launcher:
    """Launches what is made up, when it is let; remembers what it did."""

    def __init__(self) -> None:
        self.launched: list[MadeUp] = []
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.prepared: list[MadeUp] = []
        self.retired: list[tuple[Domain, MadeUp]] = []

    async def __call__(self, template: Template) -> Any:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.launched.append(MadeUp(template))
        return self.launched[-1]

    async def on_prepared(self, zygote: Any) -> None:
        self.prepared.append(zygote)

    async def on_retired(self, domain: Domain, zygote: Any) -> None:
        self.retired.append((domain, zygote))


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
async def keep(launcher: Launcher) -> AsyncIterator[Callable[..., Zygotes]]:
    """Make ``Zygotes`` with these settings, closed at the end."""
    made: list[Zygotes] = []

    def make(**settings: Any) -> Zygotes:
        keeping = Keeping(**{"templates": (TEMPLATE,), **settings})
        made.append(
            Zygotes(launcher, keeping, on_prepared=launcher.on_prepared, on_retired=launcher.on_retired)
        )
        return made[-1]

    yield make
    for zygotes in made:
        await zygotes.aclose()
    assert all(zygote.closed for zygote in launcher.launched if zygote.alive)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def test_each_tenant_and_template_has_its_own(keep, launcher):
    """A domain is a tenant and a template; whoever belongs to it gets the same zygote, nobody else ever does."""
    zygotes = keep()
    domains = [("a", TEMPLATE), ("b", TEMPLATE), ("a", OTHER), ("", TEMPLATE)]
    first = [await zygotes.of(template, tenant) for tenant, template in domains]
    again = [await zygotes.of(template, tenant) for tenant, template in domains]
    assert len(set(map(id, first))) == len(domains)
    assert again == first
    assert [zygote.template for zygote in first] == [template for _, template in domains]


async def test_whoever_asks_while_one_starts_waits_for_it(keep, launcher):
    """Ten requests at once start one zygote; one that is given up does not take it from the others."""
    zygotes = keep()
    launcher.gate.clear()
    requests = [asyncio.create_task(zygotes.of(TEMPLATE, "a")) for _ in range(10)]
    await until(lambda: launcher.asked)
    requests[0].cancel()
    launcher.gate.set()
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == launcher.launched * 9


async def test_a_spare_is_given_once_and_replaced(keep, launcher):
    """A new tenant gets a zygote that waited; another takes its place; no two tenants get the same."""
    zygotes = keep(spares=2)
    zygotes.prepare()
    await until(lambda: len(launcher.launched) == 2)
    waiting = [*launcher.launched]
    launcher.gate.clear()  # nothing can be started now: what is given was there before
    given = [await zygotes.of(TEMPLATE, tenant) for tenant in "ab"]
    assert given == waiting == launcher.prepared
    launcher.gate.set()
    await until(lambda: len(launcher.launched) == 4)
    assert await zygotes.of(TEMPLATE, "c") not in waiting


async def test_a_spare_on_its_way_is_taken_as_well(keep, launcher, monkeypatch):
    """A request that comes while the spare starts waits for it, and does not start another besides."""
    monkeypatch.setattr(module, "REFILL_DELAY", 3600)
    zygotes = keep(spares=1)
    launcher.gate.clear()
    request = asyncio.create_task(zygotes.of(TEMPLATE, "a"))
    await until(lambda: launcher.asked)
    await asyncio.sleep(0.01)
    assert launcher.asked == 1
    launcher.gate.set()
    assert await request is launcher.launched[0]


async def test_spares_are_kept_of_the_named_templates_only(keep, launcher):
    """A template that a tenant thought of does not make the host keep zygotes of it."""
    zygotes = keep(spares=1)
    await zygotes.of(OTHER, "a")
    await until(lambda: len(launcher.launched) == 2)
    assert [zygote.template for zygote in launcher.launched].count(OTHER) == 1


async def test_a_spare_that_died_is_not_given(keep, launcher):
    """What ended while it waited is passed over."""
    zygotes = keep(spares=1)
    zygotes.prepare()
    await until(lambda: launcher.launched)
    launcher.launched[0].alive = False
    assert await zygotes.of(TEMPLATE, "a") is not launcher.launched[0]


async def test_a_spare_that_fails_is_tried_again(keep, launcher, monkeypatch):
    """A spare that does not start harms nobody: a request starts its own, and spares are tried again later."""
    monkeypatch.setattr(module, "PAUSE_AFTER_FAILURE", 0.05)
    zygotes = keep(spares=1)
    launcher.error = StartupFailed("not now")
    zygotes.prepare()
    await until(lambda: launcher.asked)
    await asyncio.sleep(0.01)
    launcher.error = None
    assert await zygotes.of(TEMPLATE, "a") is launcher.launched[0]
    await until(lambda: len(launcher.launched) == 2)


async def test_after_so_many_forks_a_successor_takes_over(keep, launcher):
    """Whoever asks never waits for it: the old zygote serves until the new one is ready, then nobody any more."""
    zygotes = keep(forks=3)
    old = await zygotes.of(TEMPLATE, "a")
    launcher.gate.clear()
    for _ in range(5):
        assert await asyncio.wait_for(zygotes.of(TEMPLATE, "a"), 1) is old
        old.fork()
    assert launcher.asked == 2
    launcher.gate.set()
    await until(lambda: launcher.retired)
    new = await zygotes.of(TEMPLATE, "a")
    assert new is not old
    assert launcher.prepared == [new]
    assert launcher.retired == [(Domain("a", TEMPLATE), old)]


async def test_the_old_one_lives_as_long_as_its_last_sandbox(keep, launcher):
    """Sandboxes live in the old zygote's pid namespace: rotation ends none of them."""
    zygotes = keep(forks=1)
    old = await zygotes.of(TEMPLATE, "a")
    old.fork()
    old.fork()
    await zygotes.of(TEMPLATE, "a")
    await until(lambda: launcher.retired)
    old.end()
    await asyncio.sleep(0.02)
    assert not old.closed
    old.end()
    await until(lambda: old.closed)
    assert not (await zygotes.of(TEMPLATE, "a")).closed


async def test_after_so_long_a_successor_takes_over(keep, launcher):
    """Age is counted from the first request; a zygote that nobody asks is not replaced."""
    zygotes = keep(age=0.05)
    old = await zygotes.of(TEMPLATE, "a")
    old.fork()
    await asyncio.sleep(0.1)
    assert launcher.asked == 1
    assert await zygotes.of(TEMPLATE, "a") is old
    await until(lambda: len(launcher.launched) == 2)
    await until(lambda: launcher.retired)
    assert await zygotes.of(TEMPLATE, "a") is not old


async def test_a_successor_may_be_a_spare(keep, launcher):
    """Where spares wait, one of them takes over at once."""
    zygotes = keep(spares=1, forks=1)
    old = await zygotes.of(TEMPLATE, "a")
    await until(lambda: len(launcher.launched) == 2)
    spare = launcher.launched[1]
    old.fork()
    await zygotes.of(TEMPLATE, "a")
    await until(lambda: launcher.retired)
    assert await zygotes.of(TEMPLATE, "a") is spare


async def test_a_successor_that_does_not_start_is_tried_again(keep, launcher, monkeypatch):
    """Meanwhile the old zygote serves on."""
    monkeypatch.setattr(module, "PAUSE_AFTER_FAILURE", 0.02)
    zygotes = keep(forks=10)
    old = await zygotes.of(TEMPLATE, "a")
    old.forks = 10
    launcher.error = OSError("no descriptor left")
    assert await zygotes.of(TEMPLATE, "a") is old
    await until(lambda: launcher.asked == 2)
    launcher.error = None
    async with asyncio.timeout(5):
        while await zygotes.of(TEMPLATE, "a") is old:
            await asyncio.sleep(0.002)
    assert await zygotes.of(TEMPLATE, "a") is launcher.launched[1]


async def test_no_zygote_serves_twice_as_long_as_it_may(keep, launcher):
    """Where no successor starts, there is an end to it: the old zygote goes, and the request is told why."""
    zygotes = keep(forks=10)
    old = await zygotes.of(TEMPLATE, "a")
    old.fork()
    old.forks = 10
    launcher.error = StartupFailed("no memory")
    assert await zygotes.of(TEMPLATE, "a") is old
    await until(lambda: launcher.asked == 2)
    old.forks = 20
    with pytest.raises(StartupFailed, match="no memory"):
        await zygotes.of(TEMPLATE, "a")
    assert old.alive  # its sandbox has done nothing wrong
    launcher.error = None
    assert await zygotes.of(TEMPLATE, "a") is launcher.launched[1]


async def test_what_nobody_uses_is_closed(keep, launcher):
    """A zygote without a sandbox ends after a while, one with a sandbox does not; the next request starts another."""
    zygotes = keep(idle=0.1)
    idle, busy = await zygotes.of(TEMPLATE, "idle"), await zygotes.of(TEMPLATE, "busy")
    busy.fork()
    await until(lambda: idle.closed)
    await asyncio.sleep(0.15)
    assert not busy.closed
    assert launcher.retired == [(Domain("idle", TEMPLATE), idle)]
    busy.end()
    await until(lambda: busy.closed)
    assert busy.closed_at - busy.last_end >= 0.1
    assert (await zygotes.of(TEMPLATE, "idle")).alive


async def test_the_one_unused_for_longest_makes_room(keep, launcher):
    """At the cap a new domain takes the place of the one that is idle for longest."""
    zygotes = keep(most=3)
    first, second, third = [await zygotes.of(TEMPLATE, tenant) for tenant in "abc"]
    first.fork()
    await asyncio.sleep(0.01)
    await zygotes.of(TEMPLATE, "b")
    await zygotes.of(TEMPLATE, "d")
    await until(lambda: third.closed)
    assert not first.closed
    assert not second.closed


async def test_where_all_are_in_use_a_new_domain_is_refused(keep, launcher):
    """The refusal is typed and says what to do; who has a zygote keeps being served; room that is made can be used."""
    zygotes = keep(most=2)
    served = [await zygotes.of(TEMPLATE, tenant) for tenant in "ab"]
    for zygote in served:
        zygote.fork()
    with pytest.raises(LimitExceeded, match=MOST_ENVIRONMENT):
        await zygotes.of(TEMPLATE, "c")
    assert await zygotes.of(TEMPLATE, "a") is served[0]
    served[1].end()
    assert (await zygotes.of(TEMPLATE, "c")).alive
    await until(lambda: served[1].closed)


async def test_one_that_is_seen_out_counts(keep, launcher):
    """Memory is what is bounded: a zygote that only its last sandbox keeps takes as much as any other."""
    zygotes = keep(most=2, forks=1)
    old = await zygotes.of(TEMPLATE, "a")
    old.fork()
    await zygotes.of(TEMPLATE, "a")
    await until(lambda: launcher.retired)
    (await zygotes.of(TEMPLATE, "a")).fork()
    assert zygotes.living == 2
    with pytest.raises(LimitExceeded):
        await zygotes.of(TEMPLATE, "b")


async def test_one_that_may_not_fork_any_more_is_replaced(keep, launcher):
    """A zygote that has got a second thread serves nobody; its sandboxes live on."""
    zygotes = keep()
    old = await zygotes.of(TEMPLATE, "a")
    old.fork()
    old.fit = False
    assert await zygotes.of(TEMPLATE, "a") is not old
    assert not old.closed
    old.end()
    await until(lambda: old.closed)


async def test_one_that_died_is_replaced_and_let_go(keep, launcher):
    """What belonged to it is given back when its death is seen."""
    zygotes = keep()
    dead = await zygotes.of(TEMPLATE, "a")
    dead.alive = False
    assert (await zygotes.of(TEMPLATE, "a")).alive
    await until(lambda: launcher.retired)
    assert zygotes.living == 1


async def test_one_that_does_not_start_is_asked_for_again(keep, launcher):
    """A failure is told to whoever waited, and not remembered."""
    zygotes = keep()
    launcher.error = StartupFailed("no")
    with pytest.raises(StartupFailed, match="no"):
        await zygotes.of(TEMPLATE, "a")
    launcher.error = None
    assert (await zygotes.of(TEMPLATE, "a")).alive


async def test_closing_ends_all_of_them(keep, launcher):
    """Serving, spare, seen out or on its way: nothing is left, and nothing starts afterwards."""
    zygotes = keep(spares=1, forks=1)
    old = await zygotes.of(TEMPLATE, "a")
    await until(lambda: len(launcher.launched) == 2)
    old.fork()
    await zygotes.of(TEMPLATE, "a")
    await until(lambda: launcher.retired)
    launcher.gate.clear()
    starting = asyncio.create_task(zygotes.of(OTHER, "b"))
    asked = launcher.asked
    await until(lambda: launcher.asked > asked)
    await zygotes.aclose()
    launcher.gate.set()
    assert all(zygote.closed for zygote in launcher.launched)
    with pytest.raises(StartupFailed, match="closed"):
        await starting
    with pytest.raises(StartupFailed, match="closed"):
        await zygotes.of(TEMPLATE, "c")


def test_what_the_environment_says(monkeypatch):
    """The defaults are those of the class; each variable sets its number."""
    for name in (SPARES_ENVIRONMENT, FORKS_ENVIRONMENT, MINUTES_ENVIRONMENT, MOST_ENVIRONMENT):
        monkeypatch.delenv(name, raising=False)
    assert Keeping.from_environment() == Keeping()
    monkeypatch.setenv(SPARES_ENVIRONMENT, "3")
    monkeypatch.setenv(FORKS_ENVIRONMENT, "500")
    monkeypatch.setenv(MINUTES_ENVIRONMENT, "5")
    monkeypatch.setenv(MOST_ENVIRONMENT, "7")
    assert Keeping.from_environment() == Keeping(spares=3, forks=500, age=300, idle=300, most=7)


@pytest.mark.parametrize(
    "variable", [SPARES_ENVIRONMENT, FORKS_ENVIRONMENT, MINUTES_ENVIRONMENT, MOST_ENVIRONMENT]
)
@pytest.mark.parametrize("text", ["-1", "many", "", "9999999999", "1.5"])
def test_what_is_no_number_is_refused(monkeypatch, variable, text):
    """A variable that holds anything but a number within its bounds is an error, never a default."""
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidRequest, match=variable):
        Keeping.from_environment()
