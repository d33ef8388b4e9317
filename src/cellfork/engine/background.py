"""Work that nobody awaits at the moment, but that somebody waits for in the end."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Tasks of one owner, kept until they are done.  They must not raise."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        """Wait for every task."""
        while self._tasks:
            await asyncio.wait(self._tasks)
