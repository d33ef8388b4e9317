"""Waiting without a thread, and without leaving alone what is given back."""

import asyncio
import itertools

import pytest

from cellfork.runtimes.waiting import finished, until


async def test_until_it_is_true() -> None:
    """It is asked until it says yes, and not again."""
    answers = iter([False, False, True])
    assert await until(lambda: next(answers), 5)
    assert not [*answers]


async def test_until_it_is_too_late() -> None:
    """What never becomes true is asked a bounded number of times, at least once."""
    asked = itertools.count()
    assert not await until(lambda: next(asked) < 0, 0.1)
    assert 1 <= next(asked) < 60


async def test_a_task_that_is_done_in_time() -> None:
    """Its end is waited for, and an error stays with it."""

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise ValueError

    task = asyncio.create_task(fail())
    assert await finished(task, 5)
    assert isinstance(task.exception(), ValueError)


async def test_a_task_that_takes_too_long() -> None:
    """It goes on."""
    task = asyncio.create_task(asyncio.sleep(60))
    assert not await finished(task, 0.02)
    assert not task.done()
    task.cancel()


async def test_who_is_cancelled_waits_all_the_same() -> None:
    """However often: the task is done when the cancellation takes effect."""
    task = asyncio.create_task(asyncio.sleep(0.1))
    waiter = asyncio.create_task(finished(task, 5))
    for _ in range(3):
        await asyncio.sleep(0.01)
        waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert task.done()
    assert not task.cancelled()
