"""Rows for the languages beside Python: how soon one is ready, and what an execution takes.

The peer is the plain kernel of the language under ``jupyter_client``; Go has none that can be installed everywhere.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cellfork.cli.benchmarks.peers import TIMEOUT, Jupyter
from cellfork.cli.benchmarks.rows import PAUSE, Config, interleaved, milliseconds
from cellfork.cli.benchmarks.stats import Goal, Row, summarise
from cellfork.client import AsyncSandbox
from cellfork.client.transport import EmbeddedTransport, Transport
from cellfork.model.errors import InternalError, Unsupported
from cellfork.model.languages import remedy_of
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime

LIMITS = Limits(memory="1G", pids=256)
MOST_STARTS = 10
MOST_WARM = 5
KEPT_SECONDS = 60.0
"""How long a sandbox with a kernel ahead may take to be there."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A language: code whose end is told at once, the peer's command or kernelspec, and the goal of an execution."""

    language: str
    code: str
    argv: tuple[str, ...] = ()
    spec: str = ""
    tcp: bool = False
    goal: Goal = field(default_factory=Goal)


DENO = ("deno", "jupyter", "--kernel", "--conn", "{connection_file}")
SUBJECTS = (
    Subject(
        "bash", ":", (sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"), goal=Goal(factor=20)
    ),
    Subject("javascript", "1 + 1", DENO, tcp=True),
    Subject("r", "1 + 1", spec="ir"),
    Subject("java", "1 + 1", spec="java", tcp=True),
    Subject("go", "1 + 1"),
)


async def start(subject: Subject, config: Config) -> Row:
    """A new sandbox's first result in the language, nothing started ahead; beside it, with the kernel started ahead."""

    async def ours() -> float:
        await asyncio.sleep(PAUSE)
        return await _create_and_run(subject, Template("bench", limits=LIMITS), transport)

    with _engine() as transport:
        await _check_installed(subject, transport)
        peer = partial(_start_peer, subject) if config.against_jupyter and _has_peer(subject) else None
        mine, theirs = await interleaved(ours, peer, config.few(MOST_STARTS))
    warm = summarise([value async for value in _warm_starts(subject, config.few(MOST_WARM))])
    notes = {"started ahead, p50 ms": round(warm.p50, 1), "started ahead, n": warm.count}
    what = f"{subject.language}: create → first result, the kernel started with the context"
    return Row(
        f"{subject.language}_start", what, "ms", mine, Goal(), theirs, _peer_name(subject), notes=notes
    )


async def execute(subject: Subject, config: Config) -> Row:
    """The shortest execution in a context that has been used."""
    with _engine() as transport:
        await _check_installed(subject, transport)
        wanted = config.against_jupyter and _has_peer(subject)
        async with _peer(subject) if wanted else nullcontext(None) as kernel:
            sandbox = await AsyncSandbox.create(limits=LIMITS, timeout=None, transport=transport)
            try:
                mine, theirs = await _execute(subject, config, sandbox, kernel)
            finally:
                await sandbox.kill()
    what = f"{subject.language}: {subject.code} in a live context"
    goal = subject.goal if theirs else Goal()
    return Row(f"{subject.language}_execute", what, "ms", mine, goal, theirs, _peer_name(subject))


async def _execute(
    subject: Subject, config: Config, sandbox: AsyncSandbox, kernel: Jupyter | None
) -> tuple[Any, Any]:
    async def ours() -> float:
        start = time.perf_counter()
        await _run(sandbox, subject)
        return milliseconds(start)

    async def peer() -> float:
        assert kernel is not None  # noqa: S101 - only called where there is one
        start = time.perf_counter()
        await kernel.run(subject.code)
        return milliseconds(start)

    return await interleaved(ours, peer if kernel else None, config.samples, warmup=10)


async def _run(sandbox: AsyncSandbox, subject: Subject) -> None:
    execution = await sandbox.run_code(subject.code, language=subject.language)
    if execution.error is not None:
        raise InternalError(f"a benchmark's own code failed: {execution.error}")


async def _create_and_run(subject: Subject, template: Template, transport: Transport) -> float:
    start = time.perf_counter()
    sandbox = await AsyncSandbox.create(template, timeout=None, transport=transport)
    try:
        await _run(sandbox, subject)
        return milliseconds(start)
    finally:
        await sandbox.kill()


async def _warm_starts(subject: Subject, count: int) -> AsyncIterator[float]:
    """Yield the milliseconds of sandboxes that were kept with the kernel waiting; the first one is not."""
    runtime = NamespacesRuntime(prefork=1, pool=0)
    template = Template("bench", limits=LIMITS, languages=(subject.language,))
    with _engine(runtime) as transport:
        await _create_and_run(subject, template, transport)
        for _ in range(count):
            began = time.monotonic()
            while not runtime.stock(template, "").waiting:
                if time.monotonic() - began > KEPT_SECONDS:
                    raise InternalError(f"no sandbox with {subject.language} ahead came up")
                await asyncio.sleep(PAUSE)
            yield await _create_and_run(subject, template, transport)


@contextmanager
def _engine(runtime: NamespacesRuntime | None = None) -> Iterator[Transport]:
    transport = EmbeddedTransport({"namespaces": runtime or NamespacesRuntime(prefork=1, pool=0)})
    try:
        yield transport
    finally:
        transport.close()


async def _check_installed(subject: Subject, transport: Transport) -> None:
    """Raise :class:`Unsupported`, with the remedy, where the language has no kernel here."""
    sandbox = await AsyncSandbox.create(limits=LIMITS, transport=transport)
    try:
        ready = await sandbox.list_languages()
    finally:
        await sandbox.kill()
    if subject.language not in ready:
        raise Unsupported(
            f"{subject.language} is not installed; install it with: {remedy_of(subject.language)}"
        )


# ---------------------------------------------------------------------------------------------------- the peer


def _has_peer(subject: Subject) -> bool:
    if subject.language == "bash":
        return find_spec("bash_kernel") is not None
    return bool(subject.argv or subject.spec)


def _peer_name(subject: Subject) -> str:
    kernel = {"bash": "bash_kernel", "javascript": "deno jupyter", "r": "IRkernel", "java": "JJava"}
    return f"jupyter_client + {kernel.get(subject.language, '–')}"


async def _start_peer(subject: Subject) -> float:
    start = time.perf_counter()
    async with _peer(subject) as kernel:
        await kernel.run(subject.code)
        return milliseconds(start)


@asynccontextmanager
async def _peer(subject: Subject) -> AsyncIterator[Jupyter]:
    """Start the plain kernel over Unix sockets, or over TCP where it knows nothing else; shut it down at the end."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    with tempfile.TemporaryDirectory(prefix="cellfork-bench-") as directory:
        where = {} if subject.tcp else {"transport": "ipc", "ip": f"{directory}/kernel"}
        specs = KernelSpecManager()
        if subject.argv:
            _write_spec(subject, Path(directory) / "kernels")
            specs.kernel_dirs = [f"{directory}/kernels"]
        name = subject.spec or subject.language
        manager = AsyncKernelManager(kernel_name=name, kernel_spec_manager=specs, **where)
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        environment = {**os.environ, "PATH": path, "JUPYTER_RUNTIME_DIR": directory}
        await manager.start_kernel(env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=TIMEOUT)
            yield Jupyter(manager, client)
        finally:
            client.stop_channels()
            with contextlib.suppress(RuntimeError):
                await manager.shutdown_kernel(now=True)


def _write_spec(subject: Subject, directory: Path) -> None:
    place = directory / subject.language
    place.mkdir(parents=True)
    content = {"argv": subject.argv, "language": subject.language, "display_name": subject.language}
    (place / "kernel.json").write_text(json.dumps(content), encoding="utf-8")


ROWS: dict[str, Callable[[Config], Awaitable[Row]]] = {
    f"{subject.language}_{kind}": partial(measure, subject)
    for subject in SUBJECTS
    for kind, measure in (("start", start), ("execute", execute))
}
"""Name → how to measure it."""
