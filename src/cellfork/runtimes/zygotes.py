"""The zygotes of a runtime: one for each template, started on first use, replaced when it has died."""

import asyncio
from collections.abc import Awaitable, Callable

from cellfork.model.specs import Template
from cellfork.runtimes.zygote import Zygote

Launch = Callable[[Template], Awaitable[Zygote]]


class Zygotes:
    """Starts zygotes with ``launch``; whoever asks while one starts waits for the same one."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._started: dict[Template, asyncio.Task[Zygote]] = {}

    async def of(self, template: Template) -> Zygote:
        """Return the living zygote of ``template``.  Raises what starting it raises."""
        task = self._started.get(template)
        if task is None or _is_over(task):
            task = asyncio.create_task(self._start(template))
            self._started[template] = task
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """End every zygote, and with it what was forked from it."""
        started, self._started = self._started, {}
        for task in started.values():
            task.cancel()
            for zygote in await asyncio.gather(task, return_exceptions=True):
                if isinstance(zygote, Zygote):
                    await zygote.aclose()

    async def _start(self, template: Template) -> Zygote:
        return await self._launch(template)


def _is_over(task: "asyncio.Task[Zygote]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or not task.result().alive)
