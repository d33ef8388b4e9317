"""Kernels that are started ahead: given out whole, once, to whom they fit; nothing is left of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from cellfork import AsyncSandbox, Limits
from cellfork.client.transport import EmbeddedTransport
from cellfork.guest.ahead import Ahead
from cellfork.model.errors import InvalidRequest, Unsupported
from cellfork.model.specs import Template
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime

SLOW = Template("slow", preload=(), languages=("sh", "jupyter:python3"), limits=Limits(memory="1G", pids=256))

KEPT = replace(SLOW, languages=("bash", "jupyter:python3"))
"""The same as the engine names it."""


@pytest.fixture
async def runtime() -> NamespacesRuntime:
    return NamespacesRuntime(prefork=0, pool=0)


@pytest.fixture
async def transport(runtime: NamespacesRuntime) -> AsyncIterator[EmbeddedTransport]:
    transport = EmbeddedTransport({"namespaces": runtime})
    yield transport
    transport.close()


async def kept(runtime: NamespacesRuntime) -> None:
    """Wait until a sandbox is kept."""
    for _ in range(400):
        if runtime.stock(KEPT, "").waiting:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("nothing was started ahead")


STARTED = """
import os
with open("/proc/self/stat") as stat:
    print(int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK"))
"""
"""Prints when the kernel was started, in seconds since the machine was."""


async def out(sandbox: AsyncSandbox, code: str, language: str) -> str:
    execution = await sandbox.run_code(code, language=language)
    assert execution.error is None, execution.error
    return "".join(execution.logs.stdout)


async def test_one_is_kept_and_given_out(transport, runtime) -> None:
    """The second sandbox of such a template has its kernels waiting: code in a slow language does not wait for a start."""
    first = await AsyncSandbox.create(SLOW, transport=transport)
    assert await out(first, "print(6 * 7)", "jupyter:python3") == "42\n"
    await kept(runtime)
    second = await AsyncSandbox.create(SLOW, transport=transport)
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert float(await out(second, STARTED, "jupyter:python3")) < began
    assert await out(second, "pwd; echo $SHELL", "bash") == "/home/user\n/bin/bash\n"
    assert "posture" in second._remote.guest.info


async def test_a_kernel_serves_one_context(transport) -> None:
    """Two contexts of a language have kernels of their own: the second is started when it is asked for."""
    sandbox = await AsyncSandbox.create(SLOW, transport=transport)
    contexts = [await sandbox.create_code_context(language="bash") for _ in range(2)]
    await sandbox.run_code("x=5", context=contexts[0])
    seen = await sandbox.run_code("echo [$x]", context=contexts[1])
    assert seen.logs.stdout == ["[]\n"]


async def test_another_place_or_other_variables_mean_another_kernel(transport) -> None:
    """What a kernel was started with cannot be changed: a context that wants anything else gets a new one."""
    sandbox = await AsyncSandbox.create(SLOW, transport=transport, envs={"WHOSE": "mine"})
    elsewhere = await sandbox.create_code_context(language="bash", cwd="/tmp")
    own = await sandbox.create_code_context(language="bash", envs={"A": "1"})
    assert (await sandbox.run_code("pwd", context=elsewhere)).logs.stdout == ["/tmp\n"]
    assert (await sandbox.run_code("echo $A $WHOSE", context=own)).logs.stdout == ["1 mine\n"]
    assert await out(sandbox, "echo [$A] $WHOSE", "bash") == "[] mine\n"


async def test_one_that_died_is_replaced(transport) -> None:
    """A kernel that was killed while it waited is none: whoever asks gets a new one."""
    sandbox = await AsyncSandbox.create(SLOW, transport=transport)
    await sandbox.commands.run("sleep 0.3; kill -9 $(pgrep -x bash | grep -vx $$); sleep 0.5")
    assert await out(sandbox, "echo new", "bash") == "new\n"


async def test_a_language_that_is_not_there(transport) -> None:
    """A template cannot promise a language that it does not have: no sandbox comes of it."""
    with pytest.raises(Unsupported, match="no kernel for the language 'cobol'"):
        await AsyncSandbox.create(Template("none", preload=(), languages=("cobol",)), transport=transport)
    with pytest.raises(InvalidRequest):
        await AsyncSandbox.create(Template("none", preload=(), languages="java"), transport=transport)  # type: ignore[arg-type]


class Waiting:
    """A kernel as far as :class:`Ahead` looks at it."""

    def __init__(self, pid: int) -> None:
        self.pid, self.alive, self.settled, self.stopped = pid, True, False, False
        self.problem: str | None = None
        self.on_settled: Callable[[], None] | None = None

    def stop(self) -> None:
        self.stopped = True

    def exited(self, _status: int) -> None:
        self.alive = False


def test_readiness_is_told_once_for_all() -> None:
    """All is ready when each kernel waits for code or never will; one that could not start is not given out."""
    fine, broken, dead = kernels = [Waiting(pid) for pid in (1, 2, 3)]
    told: list[bool] = []
    ahead = Ahead()
    ahead.add(dict(zip("abc", kernels, strict=True)), lambda: told.append(True))  # type: ignore[arg-type]
    assert fine.on_settled is not None
    assert broken.on_settled is not None
    fine.on_settled()
    broken.problem = "no room"
    broken.on_settled()
    assert not told
    assert ahead.exited(3, 9)
    assert told == [True]
    assert not ahead.exited(3, 9)
    assert not dead.alive
    assert ahead.take("a") is fine  # type: ignore[comparison-overlap]
    assert ahead.take("a") is None
    assert ahead.take("b") is None
    assert broken.stopped
    assert told == [True]


async def test_without_isolation() -> None:
    """The runtime without isolation starts them with the sandbox, and ends them with it."""
    async with await AsyncSandbox.create(SLOW, isolation="none") as sandbox:
        assert await out(sandbox, "echo here", "bash") == "here\n"
