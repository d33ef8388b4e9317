"""The rows of ``cellfork bench --http``: what a client sees of a server on this machine, over E2B's wire.

Peers: ``jupyter_client`` with ipykernel, which has no HTTP at all, and Jupyter Kernel Gateway, which has.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from cellfork.cli.benchmarks.gateway import NAME as GATEWAY
from cellfork.cli.benchmarks.gateway import Gateway, gateway
from cellfork.cli.benchmarks.machine import descendants, private_memory
from cellfork.cli.benchmarks.peers import NAME as JUPYTER
from cellfork.cli.benchmarks.peers import first_output, jupyter, notebook
from cellfork.cli.benchmarks.rows import (
    FIRST,
    LINES,
    MIB,
    PAUSE,
    SLOW,
    Config,
    interleaved,
    milliseconds,
    start_jupyter,
)
from cellfork.cli.benchmarks.stats import Goal, Row, summarise
from cellfork.cli.benchmarks.wire import (
    Client,
    EnvdClient,
    OpenSandboxClient,
    Remote,
    Served,
    TogetherClient,
    client,
    connected,
    server,
)
from cellfork.model.errors import InternalError, Unsupported

E2B = "the same through E2B's dialect"
NEAR = Goal(factor=1 / 1.3)
"""Dialects of one server are within 1.3 times of each other."""
IDLE = 1000
"""Sandboxes that are idle at the same time."""
SECONDS = 5.0
"""How long throughput is counted."""


@asynccontextmanager
async def live() -> AsyncIterator[tuple[Served, Client, Remote]]:
    """A server, a client, and a sandbox that has run code."""
    async with server() as served, client(served) as one:
        sandbox = await one.create()
        await one.run(sandbox, "1 + 1")
        yield served, one, sandbox


async def execute(config: Config) -> Row:
    """``1 + 1`` on a connection that is there, against the same through Kernel Gateway."""
    async with live() as (_served, one, sandbox), _peer(config) as peer:

        async def ours() -> float:
            start = time.perf_counter()
            await one.run(sandbox, "1 + 1")
            return milliseconds(start)

        async def theirs() -> float:
            assert peer is not None  # noqa: S101 - only called where there is one
            start = time.perf_counter()
            await peer.run("1 + 1")
            return milliseconds(start)

        mine, other = await interleaved(ours, theirs if peer else None, config.samples * 5, warmup=20)
    return Row("http_execute", "1 + 1 over HTTP", "ms", mine, Goal(2, 3), other, GATEWAY)


async def code(config: Config) -> Row:
    """``1 + 1`` through OpenSandbox's execd, against E2B's dialect of the same server."""
    async with live() as (served, one, sandbox), connected(served) as connection:
        other = OpenSandboxClient(served, connection)
        await other.create()
        await other.run()
        mine, theirs = await interleaved(
            _timing(other.run), _timing(partial(one.run, sandbox, "1 + 1")), config.samples, warmup=20
        )
    return Row("http_code", "1 + 1 through OpenSandbox's `/code`", "ms", mine, NEAR, theirs, E2B)


async def echo(
    config: Config, name: str, title: str, kind: type[OpenSandboxClient] | type[TogetherClient]
) -> Row:
    """``echo`` through another dialect, against E2B's dialect of the same server."""
    async with live() as (served, _one, sandbox), connected(served) as first, connected(served) as second:
        mine, other = EnvdClient(sandbox, first), kind(served, second)
        await other.create()
        ours, theirs = await interleaved(_timing(other.echo), _timing(mine.echo), config.samples, warmup=10)
    return Row(name, title, "ms", ours, NEAR, theirs, E2B)


command = partial(
    echo, name="http_command", title="echo through OpenSandbox's `/command`", kind=OpenSandboxClient
)
exec_ = partial(
    echo, name="http_exec", title="echo through Together's execs (two requests)", kind=TogetherClient
)


async def sdk_execute(config: Config) -> Row:
    """``1 + 1`` through E2B's own package."""
    async with server() as served:
        sandbox = await asyncio.to_thread(_official, served)
        try:

            async def ours() -> float:
                return await asyncio.to_thread(_timed, partial(sandbox.run_code, "1 + 1"))

            mine, _ = await interleaved(ours, None, config.samples, warmup=10)
        finally:
            await asyncio.to_thread(sandbox.kill)
    return Row("http_sdk_execute", "1 + 1 through E2B's SDK", "ms", mine, Goal())


async def create(config: Config) -> Row:
    """A new sandbox's first result over HTTP, against a kernel that starts and imports the same."""
    async with server() as served, client(served) as one:

        async def ours() -> float:
            await asyncio.sleep(PAUSE)
            start = time.perf_counter()
            sandbox = await one.create()
            try:
                await one.run(sandbox, FIRST)
                return milliseconds(start)
            finally:
                await one.kill(sandbox)

        peer = start_jupyter if config.against_jupyter else None
        mine, theirs = await interleaved(ours, peer, config.few(100), warmup=3)
    return Row("http_create", "create → first result over HTTP", "ms", mine, Goal(), theirs, JUPYTER)


async def sdk_create(config: Config) -> Row:
    """A new sandbox's first result through E2B's own package."""
    async with server() as served:

        def once() -> None:
            sandbox = _official(served)
            try:
                sandbox.run_code(FIRST)
            finally:
                ended.append(sandbox)

        ended: list[Any] = []

        async def ours() -> float:
            await asyncio.sleep(PAUSE)
            taken = await asyncio.to_thread(_timed, once)
            await asyncio.to_thread(ended.pop().kill)
            return taken

        mine, _ = await interleaved(ours, None, config.few(100), warmup=3)
    return Row("http_sdk_create", "create → first result through E2B's SDK", "ms", mine, Goal())


async def first_line(config: Config) -> Row:
    """The first line of code that goes on running, over HTTP."""
    async with live() as (_served, one, sandbox), _kernel(config) as kernel:

        async def ours() -> float:
            start = time.perf_counter()
            first: list[float] = []

            def look(piece: bytes) -> None:
                if not first and b'"type":"stdout"' in piece:
                    first.append(milliseconds(start))

            await one.run(sandbox, SLOW, look)
            return first[0]

        async def theirs() -> float:
            return await first_output(kernel, SLOW) * 1000

        mine, other = await interleaved(ours, theirs if kernel else None, config.few(100))
    return Row(
        "http_first_line", "first line of a running cell over HTTP", "ms", mine, Goal(3), other, JUPYTER
    )


async def lines(config: Config) -> Row:
    """A hundred thousand short lines over HTTP, against nbclient."""
    async with (
        live() as (_served, one, sandbox),
        notebook() if config.against_jupyter else nullcontext(None) as cell,
    ):

        async def ours() -> float:
            start = time.perf_counter()
            if (await one.run(sandbox, LINES)).count(rb"\n") < 100_000:
                raise InternalError("not all lines arrived")
            return milliseconds(start)

        async def theirs() -> float:
            assert cell is not None  # noqa: S101 - only called where there is one
            start = time.perf_counter()
            await cell(LINES)
            return milliseconds(start)

        mine, other = await interleaved(ours, theirs if cell else None, config.few(10))
    title = "100,000 short lines of stdout over HTTP"
    return Row("http_lines", title, "ms", mine, Goal(), other, "ipykernel + nbclient")


async def throughput(config: Config, clients: int) -> Row:
    """Executions a second of so many clients, each with a sandbox of its own."""
    async with server() as served, contextlib.AsyncExitStack() as stack:
        pairs = []
        for _ in range(clients):
            one = await stack.enter_async_context(client(served))
            sandbox = await one.create()
            await one.run(sandbox, "1 + 1")
            pairs.append((one, sandbox))
        rates = [await _rate(pairs) for _ in range(config.few(6))]
    title = f"executions per second over HTTP, {clients} client{'s' if clients > 1 else ''}"
    return Row(f"http_rate_{clients}", title, "/s", summarise(rates), Goal(), more_is_better=True)


async def idle(config: Config) -> Row:
    """The private memory that a sandbox costs where a thousand are idle, the server's share included."""
    count = IDLE if config.samples >= 50 else 20
    async with server() as served, client(served) as one:
        await one.kill(await one.create())
        before = private_memory({served.pid} | descendants(served.pid))
        for _ in range(count):
            await one.create()
        await asyncio.sleep(1)
        each = (private_memory({served.pid} | descendants(served.pid)) - before) / count / MIB
    title = f"private memory of each of {count:,} idle sandboxes of a server, its own share included"
    return Row("http_idle", title, "MiB", summarise([each]), Goal())


async def _rate(pairs: list[tuple[Client, Remote]]) -> float:
    done = 0
    until = time.perf_counter() + SECONDS

    async def work(one: Client, sandbox: Remote) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await one.run(sandbox, "1 + 1")
            done += 1

    await asyncio.gather(*(work(one, sandbox) for one, sandbox in pairs))
    return done / SECONDS


def _official(served: Served) -> Any:
    """Return a sandbox made with E2B's package.  Raises :class:`Unsupported` where it is not installed."""
    try:
        from e2b_code_interpreter import Sandbox
    except ImportError as error:
        raise Unsupported(
            f"E2B's package is not installed ({error}): pip install e2b-code-interpreter"
        ) from error
    url = f"http://127.0.0.1:{served.port}"
    return Sandbox.create(api_url=url, sandbox_url=url, api_key=served.key)


def _timing(work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[float]]:
    async def timed() -> float:
        start = time.perf_counter()
        await work()
        return milliseconds(start)

    return timed


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return milliseconds(start)


@asynccontextmanager
async def _peer(config: Config) -> AsyncIterator[Gateway | None]:
    if not config.against_jupyter:
        yield None
        return
    async with gateway() as peer:
        await peer.run("1 + 1")
        yield peer


@asynccontextmanager
async def _kernel(config: Config) -> AsyncIterator[Any]:
    if not config.against_jupyter:
        yield None
        return
    async with jupyter() as kernel:
        await kernel.run("1 + 1")
        yield kernel


ROWS: dict[str, Callable[[Config], Awaitable[Row]]] = {
    "http_execute": execute,
    "http_code": code,
    "http_command": command,
    "http_exec": exec_,
    "http_sdk_execute": sdk_execute,
    "http_create": create,
    "http_sdk_create": sdk_create,
    "http_first_line": first_line,
    "http_lines": lines,
    "http_rate_1": partial(throughput, clients=1),
    "http_rate_8": partial(throughput, clients=8),
    "http_rate_32": partial(throughput, clients=32),
    "http_idle": idle,
}
"""Name → how to measure it."""
