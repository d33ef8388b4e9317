"""The rows of the benchmark.

Each alternates with its peer, sample by sample, so that both meet the same machine in the same mood.
Durations are milliseconds.  cellfork is used through its public API alone.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass

from cellfork.cli.benchmarks.machine import descendants, private_memory
from cellfork.cli.benchmarks.peers import IMPORTS, NAME, Jupyter, first_output, jupyter, notebook
from cellfork.cli.benchmarks.stats import Goal, Row, Summary, percentile, summarise
from cellfork.client import AsyncSandbox
from cellfork.client.transport import EmbeddedTransport, Transport
from cellfork.model.errors import CellforkError, InternalError
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime

Measure = Callable[[], Awaitable[float]]

FIRST = f"{IMPORTS}\n1 + 1"
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6])\nplt.show()"
SLOW = "import time\nprint('first')\ntime.sleep(0.3)"
"""Prints, and goes on for longer than ipykernel holds output back."""
LINES = "for number in range(100_000):\n    print(number)"

MIB = 1024 * 1024
PAUSE = 0.1
"""Seconds between two creates: what is made ahead is there again, as between the requests of one agent."""


@dataclass(frozen=True, slots=True)
class Config:
    """How much to measure."""

    samples: int = 200
    against_jupyter: bool = True
    sustained_seconds: float = 60.0

    def few(self, most: int) -> int:
        """Return the number of samples for something that takes seconds."""
        return max(1, min(self.samples, most))


async def run(sandbox: AsyncSandbox, code: str) -> None:
    """Run code in a sandbox's default context; raise :class:`InternalError` where it fails."""
    execution = await sandbox.run_code(code)
    if execution.error is not None:
        raise InternalError(f"a benchmark's own code failed: {execution.error}")


async def create_and_run(code: str = FIRST, transport: Transport | None = None) -> float:
    """Return the milliseconds from the request for a sandbox to the result of its first code."""
    start = time.perf_counter()
    sandbox = await AsyncSandbox.create(timeout=None, transport=transport)
    try:
        await run(sandbox, code)
        return milliseconds(start)
    finally:
        await sandbox.kill()


@contextmanager
def made_ahead(*, forks: int, sandboxes: int = 0) -> Iterator[Transport]:
    """An engine of its own that keeps so many forks, and so many whole sandboxes, ahead."""
    transport = EmbeddedTransport({"namespaces": NamespacesRuntime(prefork=forks, pool=sandboxes)})
    try:
        yield transport
    finally:
        transport.close()


def milliseconds(start: float) -> float:
    """Return the milliseconds since ``start``."""
    return (time.perf_counter() - start) * 1000


async def interleaved(
    ours: Measure, peer: Measure | None, samples: int, warmup: int = 1
) -> tuple[Summary, Summary | None]:
    """Take samples of both in turns, after some that do not count."""
    results: tuple[list[float], list[float]] = ([], [])
    for index in range(warmup + samples):
        for measure, found in zip((ours, peer), results, strict=True):
            if measure is not None:
                value = await measure()
                if index >= warmup:
                    found.append(value)
    return summarise(results[0]), summarise(results[1]) if peer else None


@asynccontextmanager
async def live(config: Config) -> AsyncIterator[tuple[AsyncSandbox, Jupyter | None]]:
    """A sandbox and a kernel, both used once already."""
    async with jupyter() if config.against_jupyter else nullcontext(None) as peer:
        sandbox = await AsyncSandbox.create(timeout=None)
        try:
            await run(sandbox, "1 + 1")
            if peer is not None:
                await peer.run("1 + 1")
            yield sandbox, peer
        finally:
            await sandbox.kill()


# ------------------------------------------------------------------------------------------------- rows


async def start_jupyter() -> float:
    """Return the milliseconds until a new kernel has answered the same first code."""
    start = time.perf_counter()
    async with jupyter() as kernel:
        await kernel.run(FIRST)
        return milliseconds(start)


async def create(config: Config) -> Row:
    """A new sandbox's first result as it comes by default, against a kernel that starts and imports the same."""
    what = "create → first result, science stack imported, no pool (one fork ahead: the default)"
    return await _create("create", what, config, made_ahead(forks=1), Goal(10, 50))


async def create_cold(config: Config) -> Row:
    """The same with nothing at all made ahead: the fork and the cgroup's grace period are on the way."""
    what = "the same, nothing made ahead"
    return await _create("create_cold", what, config, made_ahead(forks=0), Goal())


async def create_pooled(config: Config) -> Row:
    """The same from a pool of sandboxes that wait, started and warm."""
    what = "the same from a warm pool"
    return await _create("pool", what, config, made_ahead(forks=1, sandboxes=4), Goal(2))


async def _create(
    name: str, what: str, config: Config, ahead: AbstractContextManager[Transport], goal: Goal
) -> Row:
    with ahead as transport:

        async def ours() -> float:
            await asyncio.sleep(PAUSE)
            return await create_and_run(transport=transport)

        peer = start_jupyter if config.against_jupyter and goal.factor else None
        mine, theirs = await interleaved(ours, peer, config.samples, warmup=3)
    return Row(name, what, "ms", mine, goal, theirs, f"{NAME}: start → ready + the same imports")


async def posture(config: Config) -> Row:
    """The host's look at a new sandbox: how long nothing else happens."""

    async def ours() -> float:
        await asyncio.sleep(PAUSE)
        sandbox = await AsyncSandbox.create(timeout=None)
        try:
            info = await sandbox.get_info()
            return float(info.features["posture_seconds"]) * 1000
        finally:
            await sandbox.kill()

    mine, _ = await interleaved(ours, None, config.samples, warmup=3)
    return Row("posture", "the host's look at a new sandbox, part of every create", "ms", mine, Goal(2))


async def execute(config: Config) -> Row:
    """``1 + 1`` in a context that is there already."""
    async with live(config) as (sandbox, kernel):

        async def ours() -> float:
            start = time.perf_counter()
            await sandbox.run_code("1 + 1")
            return milliseconds(start)

        async def peer() -> float:
            assert kernel is not None  # noqa: S101 - only called where there is one
            start = time.perf_counter()
            await kernel.run("1 + 1")
            return milliseconds(start)

        mine, theirs = await interleaved(ours, peer if kernel else None, config.samples * 5, warmup=20)
    return Row("execute", "1 + 1 in a live context", "ms", mine, Goal(0.7, 8), theirs, NAME)


async def first_line(config: Config) -> Row:
    """The first line of code that goes on running."""
    async with live(config) as (sandbox, kernel):

        async def ours() -> float:
            start = time.perf_counter()
            first: list[float] = []
            await sandbox.run_code(SLOW, on_stdout=lambda _message: first.append(milliseconds(start)))
            return first[0]

        async def peer() -> float:
            assert kernel is not None  # noqa: S101 - only called where there is one
            return await first_output(kernel, SLOW) * 1000

        mine, theirs = await interleaved(ours, peer if kernel else None, config.samples)
    return Row("first_line", "first line of a running cell", "ms", mine, Goal(3, 60), theirs, NAME)


async def memory(config: Config) -> Row:
    """Private memory of all processes of an idle sandbox whose default context was used once."""
    with made_ahead(forks=0) as transport:
        return await _memory(config, transport)


async def _memory(config: Config, transport: Transport) -> Row:
    await create_and_run(transport=transport)

    async def ours() -> float:
        before = descendants(os.getpid())
        sandbox = await AsyncSandbox.create(timeout=None, transport=transport)
        try:
            await run(sandbox, "1 + 1")
            await asyncio.sleep(0.5)
            return private_memory(descendants(os.getpid()) - before) / MIB
        finally:
            await sandbox.kill()

    async def peer() -> float:
        async with jupyter() as kernel:
            await kernel.run(FIRST)
            await asyncio.sleep(0.5)
            return kernel.memory() / MIB

    mine, theirs = await interleaved(ours, peer if config.against_jupyter else None, config.few(20))
    return Row(
        "memory",
        "idle sandbox, science stack warm: private memory",
        "MiB",
        mine,
        Goal(6, 15),
        theirs,
        "ipykernel with the same imports",
    )


async def figure(config: Config) -> Row:
    """The first matplotlib figure in a new sandbox, against one in a new kernel that imported matplotlib."""

    async def ours() -> float:
        sandbox = await AsyncSandbox.create(timeout=None)
        try:
            start = time.perf_counter()
            await run(sandbox, FIGURE)
            return milliseconds(start)
        finally:
            await sandbox.kill()

    async def peer() -> float:
        async with jupyter() as kernel:
            await kernel.run(IMPORTS)
            start = time.perf_counter()
            await kernel.run(FIGURE)
            return milliseconds(start)

    mine, theirs = await interleaved(ours, peer if config.against_jupyter else None, config.few(50))
    return Row(
        "figure",
        "first matplotlib figure in a fresh sandbox",
        "ms",
        mine,
        Goal(150),
        theirs,
        "a fresh ipykernel, matplotlib imported",
    )


async def sustained(config: Config) -> Row:
    """Create, run, destroy, again and again, as many at once as there are processors."""
    await create_and_run()
    ends: list[float] = []
    failures = 0
    begin = time.perf_counter()
    until = begin + config.sustained_seconds

    async def worker() -> None:
        nonlocal failures
        while time.perf_counter() < until:
            try:
                await create_and_run()
            except CellforkError:
                failures += 1
            else:
                ends.append(time.perf_counter() - begin)

    async with asyncio.TaskGroup() as group:
        for _ in range(len(os.sched_getaffinity(0))):
            group.create_task(worker())
    rates = per_second(ends, config.sustained_seconds)
    slice_ = max(1, len(rates) // 6)
    first, last = sum(rates[:slice_]) / slice_, sum(rates[-slice_:]) / slice_
    broken = (f"not flat: {first:.0f}/s first, {last:.0f}/s last",) if last < 0.9 * first else ()
    notes = {"seconds": config.sustained_seconds, "first_per_second": first, "last_per_second": last}
    return Row(
        "sustained",
        "create + exec + destroy, sustained",
        "/s",
        summarise(rates),
        Goal(100, at_least=True),
        more_is_better=True,
        failures=failures,
        notes=notes,
        broken=broken,
    )


def per_second(ends: Sequence[float], seconds: float) -> list[float]:
    """Return how many of ``ends`` (seconds since the beginning) lie in each whole second."""
    whole = max(1, int(seconds))
    counts = [0.0] * whole
    for end in ends:
        if end < whole:
            counts[int(end)] += 1
    return counts


async def burst(config: Config) -> Row:
    """A hundred sandboxes at once: the slowest of them against one at a time."""
    alone = [await create_and_run() for _ in range(config.few(20))]
    sequential = percentile(alone, 0.5)
    outcomes = await asyncio.gather(*(create_and_run() for _ in range(100)), return_exceptions=True)
    taken = [outcome for outcome in outcomes if isinstance(outcome, float)]
    ours = summarise(taken)
    broken = (
        ()
        if ours.p99 <= 5 * sequential
        else (f"p99 {ours.p99:.0f} ms is {ours.p99 / sequential:.3g}× one at a time",)
    )
    return Row(
        "burst",
        "burst of 100 creates → first result",
        "ms",
        ours,
        Goal(),
        failures=len(outcomes) - len(taken),
        notes={"sequential_p50": sequential, "goal": "p99 ≤ 5× sequential p50, all succeed"},
        broken=broken,
    )


async def lines(config: Config) -> Row:
    """A hundred thousand short lines, to their end, against nbclient."""
    async with notebook() if config.against_jupyter else nullcontext(None) as cell:
        sandbox = await AsyncSandbox.create(timeout=None)

        async def ours() -> float:
            start = time.perf_counter()
            execution = await sandbox.run_code(LINES)
            taken = milliseconds(start)
            if "".join(execution.logs.stdout).count("\n") != 100_000:
                raise InternalError("not all lines arrived")
            return taken

        async def peer() -> float:
            assert cell is not None  # noqa: S101 - only called where there is one
            start = time.perf_counter()
            await cell(LINES)
            return milliseconds(start)

        try:
            mine, theirs = await interleaved(ours, peer if cell else None, config.few(10))
        finally:
            await sandbox.kill()
    return Row(
        "lines", "100,000 short lines of stdout", "ms", mine, Goal(factor=10), theirs, "ipykernel + nbclient"
    )


ROWS: dict[str, Callable[[Config], Awaitable[Row]]] = {
    "create": create,
    "create_cold": create_cold,
    "pool": create_pooled,
    "posture": posture,
    "execute": execute,
    "first_line": first_line,
    "memory": memory,
    "figure": figure,
    "sustained": sustained,
    "burst": burst,
    "lines": lines,
}
"""Name → how to measure it, in the order of the table in SPECIFICATION.md."""
