"""Trust domains with real zygotes: who is forked from which, and what happens when one is exchanged."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cellfork.model.limits import Limits
from cellfork.runtimes.keeping import Keeping
from cellfork.runtimes.namespaces.ids import Slots, host_ids
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from tests.runtimes.conftest import BARE, SPEC, Client


def of_tenant(name: str):
    return replace(SPEC, tenant=name)


@pytest.fixture
async def make():
    """Make runtimes with these settings, closed at the end."""
    made: list[NamespacesRuntime] = []

    def make(*, pool: int = 0, prefork: int = 0, **settings) -> NamespacesRuntime:
        keeping = Keeping(**{"templates": (BARE,), **settings})
        made.append(NamespacesRuntime(pool=pool, prefork=prefork, keeping=keeping))
        return made[-1]

    yield make
    for runtime in made:
        await runtime.aclose()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


def zygote_of(guest) -> str:
    """Return what tells zygotes apart on the host: the pid namespace in which a sandbox's own was made."""
    parent = Path(f"/proc/{guest.info['pid']}/status").read_text().split("PPid:")[1].split()[0]
    return os.readlink(f"/proc/{parent}/ns/pid")


async def works(guest) -> bool:
    client = Client(guest)
    await client.start_context()
    return (await client.run("1 + 1")).header["status"] == "ok"


async def test_tenants_are_forked_from_different_zygotes(make):
    """Two sandboxes of one tenant have one parent, those of two tenants have two; so has the embedder's own."""
    runtime = make()
    guests = [await runtime.start(of_tenant(name)) for name in ("a", "a", "b", "")]
    zygotes = [zygote_of(guest) for guest in guests]
    assert zygotes[0] == zygotes[1]
    assert len(set(zygotes)) == 3


async def test_what_waits_for_one_tenant_is_not_given_to_another(make):
    """Forks made ahead and pooled sandboxes go to the tenant whose zygote they were forked from."""
    runtime = make(pool=1, prefork=2)
    mine = await runtime.start(of_tenant("a"))
    await until(lambda: [shelf for shelf in runtime._pool._shelves.values() if shelf._ready])
    await until(lambda: [ahead for ahead in runtime._preforks.values() if len(ahead._ready) == 2])
    (shelf,) = runtime._pool._shelves.values()
    (ahead,) = runtime._preforks.values()
    waiting = {shelf._ready[0], *(fork.guest for fork in ahead._ready)}
    theirs = [await runtime.start(of_tenant("b")) for _ in range(3)]
    assert waiting.isdisjoint(theirs)
    assert {zygote_of(guest) for guest in theirs}.isdisjoint({zygote_of(mine)})
    assert await runtime.start(of_tenant("a")) in waiting


async def test_the_name_of_a_tenant_is_not_told_inside(make):
    """It is in no frame, in no variable, on no command line."""
    runtime = make()
    guest = await runtime.start(of_tenant("the-name-of-a-customer"))
    for pid in (guest.info["pid"], guest.info["pid"]):
        for name in ("environ", "cmdline", "cgroup", "mountinfo"):
            assert b"customer" not in Path(f"/proc/{pid}/{name}").read_bytes(), name


async def test_rotation_ends_no_sandbox(make):
    """The successor takes over, the sandbox of the old zygote works on, and with it the old zygote goes for good."""
    runtime = make(forks=1, prefork=1)
    old_guest = await runtime.start(SPEC)
    old = next(iter(runtime._zygotes._holdings.values())).zygote.result()
    await runtime.start(SPEC)
    await until(lambda: next(iter(runtime._zygotes._holdings.values())).zygote.result() is not old)
    new_guest = await runtime.start(SPEC)
    assert zygote_of(new_guest) != zygote_of(old_guest)
    assert await works(old_guest)
    assert await works(new_guest)
    for guest in [*runtime._guests]:
        if guest is not new_guest:
            await guest.kill()
    await until(lambda: not Path(f"/proc/{old.pid}").exists())
    assert old not in runtime._preforks
    assert await works(await runtime.start(SPEC))


async def test_many_rotations_leave_nothing_behind(make):
    """After six rotations under load no old zygote, control group or descriptor is left."""
    runtime = make(forks=3, prefork=1)
    await (await runtime.start(SPEC)).kill()
    before = len(os.listdir("/proc/self/fd"))
    rounds = 0
    seen: set[str] = set()
    while len(seen) < 6 and rounds < 2000:
        rounds += 1
        guest = await runtime.start(SPEC)
        seen.add(zygote_of(guest))
        await guest.kill()
    assert len(seen) >= 6
    await until(lambda: not runtime._zygotes._tasks)
    assert sum(zygote.alive for zygote in runtime._zygotes._launched) == 1
    assert len(runtime._preforks) == 1
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 8)


async def test_an_idle_tenant_keeps_no_process(make):
    """A tenant without a sandbox keeps neither zygote, nor forks made ahead, nor pooled sandboxes."""
    runtime = make(pool=1, prefork=1, idle=0.4)
    await (
        await runtime.start(of_tenant("a"))
    ).kill()  # the limits have been tested by now, which takes longer
    guest = await runtime.start(of_tenant("a"))
    await until(lambda: [shelf for shelf in runtime._pool._shelves.values() if shelf._ready])
    (holding,) = runtime._zygotes._holdings.values()
    zygote = holding.zygote.result()
    await guest.kill()
    await until(lambda: not zygote.alive)
    assert not runtime._zygotes._holdings
    assert not runtime._preforks
    assert not runtime._pool._shelves
    assert await works(await runtime.start(of_tenant("a")))


async def test_a_spare_serves_a_new_tenant_at_once(make):
    """With a spare, a new tenant's first sandbox comes from a zygote that was there before."""
    runtime = make(spares=1, prefork=1)
    runtime.prepare()
    await until(lambda: any(zygote.alive for zygote in runtime._zygotes._launched))
    (spare,) = runtime._zygotes._launched
    await runtime.start(of_tenant("new"))
    assert next(iter(runtime._zygotes._holdings.values())).zygote.result() is spare
    await until(lambda: len(runtime._zygotes._launched) == 2)


async def test_the_image_is_told(make):
    """Every sandbox carries the digest of what its zygote had imported; tenants of one template have the same."""
    runtime = make()
    guests = [await runtime.start(of_tenant(name)) for name in "ab"]
    images = {guest.info["image"] for guest in guests}
    assert len(images) == 1
    assert len(images.pop()) == 64


async def test_creates_of_other_tenants_do_not_wait_for_a_start(make):
    """While one tenant's zygote is being started, another tenant's sandbox starts as ever."""
    runtime = make()
    await runtime.start(of_tenant("a"))
    gate, launch = asyncio.Event(), runtime._zygotes._launch

    async def launch_late(template):
        await gate.wait()
        return await launch(template)

    runtime._zygotes._launch = launch_late
    slow = asyncio.create_task(runtime.start(of_tenant("b")))
    await asyncio.sleep(0.01)
    assert await works(await runtime.start(of_tenant("a")))
    assert not slow.done()
    gate.set()
    assert await works(await slow)


async def test_limits_of_a_tenant_are_its_own(make):
    """A pooled sandbox fits by its limits as well as by its tenant."""
    runtime = make(pool=1)
    await runtime.start(of_tenant("a"))
    await until(lambda: [shelf for shelf in runtime._pool._shelves.values() if shelf._ready])
    (shelf,) = runtime._pool._shelves.values()
    waiting = shelf._ready[0]
    guest = await runtime.start(replace(of_tenant("a"), limits=Limits(memory="128M", pids=64)))
    assert guest is not waiting


def test_no_two_living_zygotes_have_the_same_host_ids(monkeypatch):
    """A range of host ids is another zygote's again only when the first one has died."""
    monkeypatch.setattr("cellfork.runtimes.namespaces.ids.ID_SLOTS", 5)
    slots = Slots()
    living = {slots.take(): True for _ in range(5)}
    assert sorted(living) == [0, 1, 2, 3, 4]
    assert len({tuple(host_ids(slot)) for slot in living}) == 5
    for slot in range(5):
        slots.give(slot, partial(living.__getitem__, slot))
    living[3] = False
    assert slots.take() == 3
