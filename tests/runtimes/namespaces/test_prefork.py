"""Forks made ahead."""

import asyncio
from pathlib import Path

import pytest

from cellfork.model.errors import StartupFailed
from cellfork.model.limits import Limits
from cellfork.runtimes.namespaces.cgroups import Cgroups
from cellfork.runtimes.namespaces.prefork import make_fork
from cellfork.runtimes.namespaces.runtime import PREFORK_ENVIRONMENT, NamespacesRuntime
from cellfork.runtimes.variables import number_of
from cellfork.runtimes.zygote import Child
from tests.runtimes.conftest import SPEC, Client


@pytest.fixture
async def ahead():
    runtime = NamespacesRuntime(pool=0, prefork=1)
    yield runtime
    await runtime.aclose()


async def waiting(runtime):
    """Return the fork that waits, once there is one."""
    async with asyncio.timeout(10):
        while not any(prefork._ready for prefork in runtime._preforks.values()):
            await asyncio.sleep(0.005)
    (prefork,) = runtime._preforks.values()
    return prefork._ready[0]


async def test_a_fork_made_ahead_becomes_the_next_sandbox(ahead):
    """The sandbox has the limits of its request: they are set when it is taken, not when it is made."""
    await ahead.start(SPEC)
    fork = await waiting(ahead)
    spec = SPEC.__class__(template=SPEC.template, limits=Limits(memory="96M", disk="7M"), envs={"A": "b"})
    guest = await ahead.start(spec)
    assert guest is fork.guest
    client = Client(guest)
    await client.start_context()
    await client.run(
        "import os; [os.environ['A'], os.statvfs('/home/user').f_blocks * os.statvfs('/').f_bsize]"
    )
    text = (await client.until("display")).body.decode()
    assert text.startswith(repr(["b", 7 * 1024 * 1024]))
    assert guest.usage().memory < 96 * 1024 * 1024


async def test_a_fork_that_died_is_not_taken(ahead):
    """A process that ended while it waited is skipped, and everything of it given back."""
    await ahead.start(SPEC)
    fork = await waiting(ahead)
    await fork.guest.kill()
    guest = await ahead.start(SPEC)
    assert guest is not fork.guest
    assert fork.group.processes() == []
    assert not any(path.exists() for path in fork.group.directories)


async def test_what_waits_is_an_init_and_a_kernel_that_run_nothing(ahead):
    """A fork made ahead is two processes, both asleep until they are told what to become."""
    await ahead.start(SPEC)
    fork = await waiting(ahead)
    async with asyncio.timeout(5):
        while len(pids := fork.group.processes()) != 2:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    assert {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids} == {"S"}


async def test_a_fork_that_is_refused_at_once(ahead):
    """A zygote that has refused before the control groups could be handed over is asked why; nothing of the fork stays."""

    class Refusing:
        def fork(self, _name: str, _fds: list[int]) -> Child:
            loop = asyncio.get_running_loop()
            child = Child(loop.create_future(), loop.create_future())
            loop.call_later(0.05, child.forked.set_exception, StartupFailed("no room for another process"))
            return child

    cgroups = Cgroups.detect()
    fork = make_fork(Refusing(), cgroups)  # type: ignore[arg-type]
    with pytest.raises(StartupFailed, match="no room"):
        await ahead._become(fork, cgroups, SPEC)
    assert not any(path.exists() for path in fork.group.directories)


async def test_closing_ends_what_waits(ahead):
    """aclose() leaves no fork and no group."""
    await ahead.start(SPEC)
    fork = await waiting(ahead)
    await ahead.aclose()
    assert not any(path.exists() for path in fork.group.directories)


def test_the_number_comes_from_the_environment(monkeypatch):
    """CELLFORK_PREFORK says how many; the default is one."""
    monkeypatch.delenv(PREFORK_ENVIRONMENT, raising=False)
    assert number_of(PREFORK_ENVIRONMENT, 1) == 1
    monkeypatch.setenv(PREFORK_ENVIRONMENT, "4")
    assert NamespacesRuntime()._prefork_size == 4
