"""Many sandboxes, one after the other and at once: afterwards everything is as it was."""

import asyncio
import gc
import os
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellfork import AsyncSandbox, Limits, Sandbox
from cellfork.client.transport import embedded
from cellfork.testing.leaks import (
    Snapshot,
    cgroups,
    descendants,
    find_leaks,
    mounts,
    open_fds,
    temporary_files,
)

from .programs import finish, groups_of, program

MANY, BATCH = 1000, 50


def inventory() -> Counter[str]:
    """How many of each kind there are.  The zygote keeps a few things ready: they are counted, too."""
    return Counter(
        processes=sum(1 for _ in descendants(os.getpid())),
        threads=threading.active_count(),
        fds=len(open_fds()),
        mounts=len(list(mounts())),
        all_mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
        cgroups=len(groups_of(os.getpid())) + len(list(cgroups())),
        files=len(list(temporary_files())),
    )


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_thousand_sandboxes() -> None:
    """A thousand sandboxes created, used and destroyed: nothing is left, nothing grew, and it takes no minute."""
    for _ in range(20):
        use_one()
    gc.collect()
    settle()
    before, snapshot, memory = inventory(), Snapshot.take(), resident()
    batches = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(MANY // BATCH):
            start = time.monotonic()
            list(pool.map(lambda _: use_one(), range(BATCH)))
            batches.append(time.monotonic() - start)
    settle()
    gc.collect()
    assert not find_leaks(snapshot, allow_host=False)
    after = inventory()
    assert after == before
    assert resident() - memory < 24 * 1024 * 1024
    took = statistics.median(batches) * MANY / BATCH  # the machine may have stood still in some of them
    assert took < 60, f"{took:.1f} s"


def test_fifty_at_once() -> None:
    """Fifty concurrent creates succeed, each sandbox is its own, and all can be killed at once."""
    with Sandbox.create() as first:
        first.run_code("1")
    settle()
    before = inventory()
    with ThreadPoolExecutor(50) as pool:
        sandboxes = list(pool.map(lambda _: Sandbox.create(), range(50)))
        assert len({sandbox.sandbox_id for sandbox in sandboxes}) == 50
        codes = [f"open('mine', 'w').write('{n}'); open('mine').read()" for n in range(50)]
        answers = list(
            pool.map(lambda pair: pair[0].run_code(pair[1]).text, zip(sandboxes, codes, strict=True))
        )
        assert answers == [f"'{n}'" for n in range(50)]
        assert all(pool.map(lambda sandbox: sandbox.kill(), sandboxes))
    settle()
    assert inventory() == before


async def test_fifty_at_once_async() -> None:
    """The same from one event loop."""

    async def live(n: int) -> str | None:
        async with await AsyncSandbox.create() as sandbox:
            return (await sandbox.run_code(f"{n} + 1")).text

    assert await asyncio.gather(*(live(n) for n in range(50))) == [str(n + 1) for n in range(50)]


async def test_creation_that_is_given_up() -> None:
    """Creates that are cancelled at any moment leave nothing behind."""
    async with await AsyncSandbox.create():
        pass
    for n in range(30):
        task = asyncio.create_task(AsyncSandbox.create())
        await asyncio.sleep(n * 0.0007)
        task.cancel()
        try:
            sandbox = await task
        except asyncio.CancelledError:
            continue
        await sandbox.kill()
    await asyncio.sleep(0.2)
    assert embedded().engine.list() == []


async def test_creation_that_is_given_up_too_late() -> None:
    """A sandbox that was there when its create was cancelled is ended: nobody has a handle on it."""
    async with await AsyncSandbox.create():
        pass
    task = asyncio.create_task(AsyncSandbox.create())
    await asyncio.sleep(0)
    time.sleep(0.5)  # the host's thread goes on meanwhile: the answer waits for this loop
    assert len(embedded().engine.list()) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.2)
    assert embedded().engine.list() == []


def test_sandboxes_that_fail_to_start() -> None:
    """A create that is refused leaves nothing behind, and the next one works."""
    for _ in range(5):
        with pytest.raises(Exception, match="pids"):
            Sandbox.create(limits=Limits(pids=1))
    with Sandbox.create(limits=Limits(pids=8, memory="64M")) as sandbox:
        assert sandbox.run_code("1 + 1").status in {"ok", "killed", "lost"}


def use_one() -> None:
    with Sandbox.create() as sandbox:
        assert sandbox.run_code("1+1").text == "2"


def settle() -> None:
    """Let the zygote's helpers make what they keep ready."""
    last = inventory()
    for _ in range(40):
        time.sleep(0.1)
        last, previous = inventory(), last
        if last == previous:
            return


def test_no_descriptors_left() -> None:
    """Where the embedding process runs out of descriptors, creates fail with a typed error and leave nothing.

    The sandboxes that live go on, and when some of them are killed there is room for new ones.
    """
    code = """
    import os, resource
    from cellfork import Sandbox
    from cellfork.model.errors import UnavailableError
    from tests.lifecycle.programs import groups_of, wait_until

    def look():
        return len(os.listdir("/proc/self/fd")), len(groups_of(os.getpid()))

    def use(sandbox):
        return sandbox.run_code("1 + 1").text == "2"

    for _ in range(3):
        with Sandbox.create() as sandbox: assert use(sandbox)
    fds, groups = look()
    for limit in range(fds + 20, fds + 40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, 20_000))
        living, refused = [], 0
        while refused < 3:
            try: living.append(Sandbox.create())
            except UnavailableError: refused += 1
        assert all(use(sandbox) for sandbox in living)
        for sandbox in living: sandbox.kill()
        with Sandbox.create() as sandbox: assert use(sandbox)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 20_000))
    with Sandbox.create() as sandbox: assert use(sandbox)
    wait_until(lambda: look()[0] <= fds + 12 and look()[1] <= groups + 5, 5)
    print("fine")
    """
    with program(code) as owner:
        assert finish(owner, 60) == "fine\n"


@pytest.mark.parametrize("ahead", [("1", "0"), ("3", "0"), ("0", "3"), ("2", "2")], ids="-".join)
def test_many_with_some_started_ahead(ahead: tuple[str, str]) -> None:
    """What is kept started ahead stays as much as it was, however many are taken, and goes with the program."""
    code = """
    import os, random
    from concurrent.futures import ThreadPoolExecutor
    from cellfork import Limits, Sandbox
    from tests.lifecycle.programs import groups_of, processes_of, wait_until

    def look():
        return len(os.listdir("/proc/self/fd")), len(groups_of(os.getpid())), len(processes_of(os.getpid()))

    FILES = "import glob, os; [p for p in glob.glob('/home/user/*') + glob.glob('/tmp/*') if os.path.isfile(p)]"

    def use(n):
        limits = Limits(memory=random.choice(["256M", "512M"])) if n % 5 == 0 else None
        envs = {"N": str(n)} if n % 3 == 0 else None
        with Sandbox.create(limits=limits, envs=envs) as sandbox:
            assert sandbox.run_code(f"{n} + 1").text == str(n + 1)
            if envs: assert sandbox.run_code("import os; os.environ['N']").text == repr(str(n))
            assert sandbox.run_code(FILES).text == "[]"
            sandbox.run_code("open('/tmp/x', 'w').close(); open('/home/user/x', 'w').close()")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(use, range(20)))
    last = []
    wait_until(lambda: last.append(look()) or last[-8:] == [look()] * 8, 10)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(use, range(60)))
    wait_until(lambda: all(now <= before for now, before in zip(look(), last[-1])), 10)
    print("fine")
    """
    with program(code, CELLFORK_PREFORK=ahead[0], CELLFORK_POOL=ahead[1]) as owner:
        assert finish(owner, 60) == "fine\n"
        assert not groups_of(owner.pid)
