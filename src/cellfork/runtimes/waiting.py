"""Waiting for what ends soon, without a thread: there may be no room for one, and at the end of a program there is none."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.05


async def until(true: Callable[[], bool], seconds: float) -> bool:
    """Ask again and again, with pauses that grow; return whether it was ``true`` within ``seconds``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = FIRST_PAUSE
    while not true():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)
    return True


async def finished(task: "asyncio.Task[Any]", seconds: float) -> bool:
    """Wait for a task that must not be left alone; return whether it is done within ``seconds``.

    Whoever is cancelled meanwhile is cancelled afterwards: it is for what is given back, which takes a bounded time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.done()
