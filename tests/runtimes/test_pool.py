"""Sandboxes started ahead."""

import asyncio
from dataclasses import replace

import pytest

from cellfork.model.errors import InvalidRequest
from cellfork.model.limits import Limits
from cellfork.runtimes.namespaces.runtime import POOL_ENVIRONMENT, NamespacesRuntime
from tests.runtimes.conftest import SPEC, Client


@pytest.fixture
async def pooled():
    runtime = NamespacesRuntime(pool=2)
    yield runtime
    await runtime.aclose()


def waiting_in(runtime) -> list:
    return [guest for shelf in runtime._pool._shelves.values() for guest in shelf._ready]


async def filled(runtime) -> None:
    for _ in range(1000):
        if len(waiting_in(runtime)) == 2:
            return
        await asyncio.sleep(0.01)
    zygote = await runtime._zygotes.of(SPEC.template)
    pytest.fail(f"not filled: {runtime._pool._shelves}, {zygote._children}")


async def test_what_was_started_ahead_is_given_out_once(pooled):
    """A claimed sandbox is fresh (first number, empty names) and belongs to nobody else."""
    await pooled.start(SPEC)
    await filled(pooled)
    waiting = {guest.info["pid"] for guest in waiting_in(pooled)}
    guests = [await pooled.start(SPEC) for _ in range(2)]
    assert {guest.info["pid"] for guest in guests} == waiting
    client = Client(guests[0])
    await client.start_context()
    done = await client.run("dir()")
    assert done.header["count"] == 1
    assert b"warm" not in (await client.until("display")).body
    await filled(pooled)
    assert waiting.isdisjoint(guest.info["pid"] for guest in waiting_in(pooled))


async def test_a_request_of_another_kind_gets_its_own(pooled):
    """Other limits are never served from sandboxes that were started with different ones."""
    await pooled.start(SPEC)
    await filled(pooled)
    waiting = {guest.info["pid"] for guest in waiting_in(pooled)}
    guest = await pooled.start(replace(SPEC, limits=Limits(memory="128M")))
    assert guest.info["pid"] not in waiting


async def test_variables_of_somebody_are_never_waiting(pooled):
    """Sandboxes with cellfork's own variables are kept ahead with them; a request with others neither gets nor changes them."""
    own = replace(SPEC, envs={"CELLFORK_DISPLAY_SAVED_IMAGES": "1"})
    await pooled.start(own)
    await filled(pooled)
    waiting = {guest.info["pid"] for guest in waiting_in(pooled)}
    assert (await pooled.start(replace(own, envs={"SECRET": "1"}))).info["pid"] not in waiting
    assert (await pooled.start(own)).info["pid"] in waiting
    assert (await pooled.start(SPEC)).info["pid"] not in waiting


async def test_a_sandbox_that_died_while_waiting_is_not_given_out(pooled):
    """What ended in the pool is skipped."""
    await pooled.start(SPEC)
    await filled(pooled)
    dead = waiting_in(pooled)[0]
    await dead.kill()
    guest = await pooled.start(SPEC)
    assert guest is not dead
    client = Client(guest)
    await client.start_context()
    assert (await client.run("1 + 1")).header["status"] == "ok"


@pytest.mark.parametrize("text", ["-1", "many", "1000", ""])
def test_a_pool_size_that_is_no_number_is_refused(monkeypatch, text):
    """CELLFORK_POOL is a number from 0 to 100, anything else is an error and not a default."""
    monkeypatch.setenv(POOL_ENVIRONMENT, text)
    with pytest.raises(InvalidRequest, match=POOL_ENVIRONMENT):
        NamespacesRuntime()
