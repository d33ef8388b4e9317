"""Sync and async callers, several event loops, forks of the embedding process: one engine serves or refuses them all."""

import asyncio
import os
import threading
import time

import pytest

from cellfork import AsyncSandbox, Sandbox

from .programs import finish, groups_of, program


def test_sync_and_async_in_one_process() -> None:
    """Both forms may be used side by side; each call belongs to the caller's own thread or loop."""

    async def use(n: int) -> str | None:
        async with await AsyncSandbox.create() as sandbox:
            return (await sandbox.run_code(f"{n} * 2")).text

    with Sandbox.create() as sandbox:
        sandbox.run_code("x = 5")
        assert asyncio.run(use(4)) == "8"
        assert sandbox.run_code("x").text == "5"
        assert asyncio.run(use(5)) == "10"


def test_one_event_loop_after_another() -> None:
    """An async sandbox outlives the loop in which it was made."""

    async def begin() -> AsyncSandbox:
        sandbox = await AsyncSandbox.create()
        await sandbox.run_code("x = 5")
        return sandbox

    async def go_on(sandbox: AsyncSandbox) -> str | None:
        return (await sandbox.run_code("x")).text

    sandbox = asyncio.run(begin())
    assert asyncio.run(go_on(sandbox)) == "5"
    with asyncio.Runner() as runner:
        assert runner.run(go_on(sandbox)) == "5"
    asyncio.run(sandbox.kill())


def test_loop_that_ends_during_an_execution() -> None:
    """Where the caller's loop ends, its code is stopped, and the sandbox can be used from another loop."""

    async def leave(sandbox: AsyncSandbox) -> None:
        task = asyncio.create_task(sandbox.run_code("import time; time.sleep(3600)"))
        await asyncio.sleep(0.2)
        assert not task.done()

    sandbox = asyncio.run(AsyncSandbox.create())
    asyncio.run(leave(sandbox))
    start = time.monotonic()
    execution = asyncio.run(sandbox.run_code("1 + 1"))
    assert execution.text == "2"
    assert time.monotonic() - start < 10
    asyncio.run(sandbox.kill())


def test_loops_in_several_threads() -> None:
    """One async sandbox may be used from loops in different threads at the same time."""
    sandbox = asyncio.run(AsyncSandbox.create())

    async def ask(n: int) -> list[str | None]:
        return [(await sandbox.run_code(f"{n} + {k}")).text for k in range(10)]

    answers: dict[int, list[str | None]] = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.__setitem__(n, asyncio.run(ask(n)))) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {n: [str(n + k) for k in range(10)] for n in range(4)}
    asyncio.run(sandbox.kill())


async def test_sync_form_inside_a_loop() -> None:
    """The sync form works inside a running loop (it blocks it, as any blocking call does)."""
    with Sandbox.create() as sandbox:
        assert sandbox.run_code("1 + 1").text == "2"


async def test_cancelled_call() -> None:
    """A call that is cancelled stops its code; the sandbox goes on."""
    async with await AsyncSandbox.create() as sandbox:
        task = asyncio.create_task(sandbox.run_code("import time; time.sleep(3600)"))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            assert (await sandbox.run_code("1 + 1")).text == "2"


FORKING = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside a thread
from cellfork import Sandbox
from cellfork.model.errors import Conflict
sandbox = Sandbox.create()
sandbox.run_code("x = 1")
pid = os.fork()
if not pid:
    {child}
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == {status}
assert sandbox.run_code("x").text == "1"
assert sandbox.kill()
with Sandbox.create() as another:
    print(another.run_code("1 + 1").text)
"""


@pytest.mark.parametrize(
    ("child", "status"),
    [
        ("os._exit(0)", 0),
        ("sys.exit(0)", 0),
        ("raise SystemExit(4)", 4),
        ("del sandbox; import gc; gc.collect(); sys.exit(0)", 0),
        ("os.execv(sys.executable, [sys.executable, '-c', ''])", 0),
        ("os.abort()", -6),
    ],
)
def test_fork_of_the_embedding_process(child: str, status: int) -> None:
    """A forked child that ends, in whatever way, leaves its parent's sandboxes alone."""
    with program(FORKING.format(child=child, status=status)) as owner:
        assert finish(owner) == "2\n"
        assert not groups_of(owner.pid)


def test_sandbox_of_the_parent_in_a_forked_child() -> None:
    """In a forked child the parent's sandboxes cannot be used; it may create its own, which end with it."""
    child = """
    try:
        sandbox.run_code("x = 2")
    except Conflict as error:
        assert "parent" in str(error)
    else:
        os._exit(1)
    try:
        sandbox.kill()
    except Conflict:
        pass
    mine = Sandbox.create()
    assert mine.run_code("3 + 4").text == "7"
    sys.exit(0)
    """
    with program(FORKING.format(child=child.strip(), status=0)) as owner:
        assert finish(owner) == "2\n"
        assert not groups_of(owner.pid)


def test_fork_while_code_runs() -> None:
    """A fork in the middle of the parent's executions disturbs none of them."""
    code = """
    import os, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    from cellfork import Sandbox
    with Sandbox.create() as sandbox:
        answers = []
        def work():
            for n in range(300): answers.append(sandbox.run_code(f"print({n}); {n}").text == str(n))
        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(20):
            pid = os.fork()
            if not pid: os._exit(0)
            os.waitpid(pid, 0)
        thread.join()
        print(len(answers), all(answers))
    """
    with program(code) as owner:
        assert finish(owner) == "300 True\n"


def test_descriptors_are_not_inherited() -> None:
    """Programs that the embedding process starts get none of its descriptors to sandboxes."""
    with Sandbox.create() as sandbox:
        sandbox.run_code("1")
        read, write = os.pipe()
        os.set_inheritable(write, True)
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"ls -l /proc/self/fd >&{write}"], dict(os.environ))
        os.waitpid(pid, 0)
        os.close(write)
        with os.fdopen(read) as listing:
            assert "socket:" not in listing.read()
