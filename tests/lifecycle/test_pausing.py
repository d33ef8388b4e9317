"""Pauses, snapshots and forks of real sandboxes: what stands still, what is kept, what comes back, what hostile code can do."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings
from cellfork.model.errors import (
    CellforkError,
    CommandFailed,
    Conflict,
    LimitExceeded,
    NoSpace,
    SandboxPaused,
    Unsupported,
)
from cellfork.model.events import Killed
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecSpec, ExecuteRequest, SandboxSpec, Template
from cellfork.runtimes.namespaces.cgroups import FREEZER, Cgroups
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.runtimes.none import NoneRuntime

BARE = Template("bare", preload=())
SPEC = SandboxSpec(template=BARE, limits=Limits(memory="256M"))


def old_groups() -> Cgroups:
    """Return this machine's groups without those of version 2, as a host has them that knows version 1 alone."""
    found = {name: tree for name, tree in Cgroups.detect().hierarchies.items() if tree.version == 1}
    if not {FREEZER, "memory", "pids", "cpu"} <= set(found):
        pytest.skip("this machine has no groups of version 1")
    return Cgroups(found)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine({"namespaces": NamespacesRuntime(), "none": NoneRuntime()}, Settings())
    yield engine
    await engine.aclose()


async def run(sandbox: Sandbox, code: str) -> str:
    execution = await sandbox.run(None, ExecuteRequest(code, timeout=20))
    assert execution.error is None, execution.error
    return "".join(execution.logs.stdout)


async def shell(sandbox: Sandbox, line: str) -> str:
    return (await sandbox.commands.run(line, ExecSpec(()), 20)).stdout


COUNTING = """
import time
begin = time.monotonic()
for number in range(1_000_000_000):
    if time.monotonic() - begin > 1:
        break
"""


async def test_memory_is_kept(engine: Engine):
    """Variables, running code, threads, commands, pipes and open files go on after a pause, and used no time in it."""
    sandbox = await engine.create(SPEC)
    await run(sandbox, "import threading, time\nlog = []\nf = open('open', 'w')\nf.write('half ')")
    await run(
        sandbox,
        "threading.Thread(target=lambda: [log.append(i) or time.sleep(.01) for i in range(10**6)], daemon=True).start()",
    )
    command = await sandbox.commands.start(
        "while read line; do echo got $line; done", ExecSpec((), stdin=True), None
    )
    running = sandbox.start(
        None, ExecuteRequest("total = 0\nfor i in range(60):\n    time.sleep(.01)\n    total += i", timeout=3)
    )
    await asyncio.sleep(0.2)
    await sandbox.pause()
    used = sandbox.usage().cpu_time
    await asyncio.sleep(3.2)
    assert sandbox.usage().cpu_time == used
    assert not running.ended
    with pytest.raises(SandboxPaused):
        await sandbox.files.read("open")
    await sandbox.resume()
    execution = await running.wait()
    assert execution.error is None, execution.terminal
    assert execution.accounting.wall_time < 2
    before = int(await run(sandbox, "print(len(log))"))
    await asyncio.sleep(0.1)
    assert int(await run(sandbox, "print(len(log))")) > before
    assert (
        await run(sandbox, "f.write('whole'); f.close(); print(total, open('open').read())")
        == "1770 half whole\n"
    )
    await command.send_stdin(b"x\n", eof=True)
    await command.wait()
    assert command.log.text("stdout") == "got x\n"


@pytest.mark.parametrize("groups", ["this machine's", "version 1"])
async def test_a_paused_sandbox_can_be_killed(groups: str):
    """Killing it takes no longer than killing one that runs, and leaves nothing; so does the end of its engine."""
    cgroups = old_groups() if groups == "version 1" else None
    engine = Engine({"namespaces": NamespacesRuntime(cgroups)}, Settings())
    try:
        killed, left = await engine.create(SPEC), await engine.create(SPEC)
        for sandbox in (killed, left):
            await sandbox.commands.start("sleep 1000 & sleep 1000", ExecSpec(()), None)
            sandbox.start(None, ExecuteRequest("while True: pass"))
            await asyncio.sleep(0.1)
            await sandbox.pause()
        before = time.perf_counter()
        await killed.kill()
        assert time.perf_counter() - before < 3
    finally:
        before = time.perf_counter()
        await engine.aclose()
    assert time.perf_counter() - before < 4


async def test_a_host_with_version_1_alone():
    """With the freezer of version 1 pauses and snapshots are what they are with that of version 2."""
    engine = Engine({"namespaces": NamespacesRuntime(old_groups())}, Settings())
    try:
        sandbox = await engine.create(SPEC)
        await run(sandbox, "x = 1")
        for _ in range(3):
            await sandbox.pause()
            await sandbox.resume()
        (fork,) = await engine.fork(sandbox.id)
        assert isinstance(fork, Sandbox)
        assert await run(sandbox, "print(x)") == "1\n"
        await sandbox.pause(memory=False)
        await sandbox.resume()
        assert await run(sandbox, "print('x' in globals())") == "False\n"
    finally:
        await engine.aclose()


async def test_files_alone(engine: Engine):
    """Without memory, home, /tmp and what pip installed come back; processes and variables do not."""
    sandbox = await engine.create(SPEC)
    await shell(
        sandbox,
        "echo h > ~/h; echo t > /tmp/t; echo 'X = 7' > $(python -c 'import site; print(site.getsitepackages()[0])')/mine.py",
    )
    await shell(sandbox, "rm /opt/venv/bin/pip3; ln -s ~/h ~/link; nohup sleep 1000 >/dev/null 2>&1 &")
    running = sandbox.start(None, ExecuteRequest("while True: pass"))
    await sandbox.pause(memory=False)
    assert isinstance((await running.wait()).terminal, Killed)
    assert sandbox.usage().pids == 0
    await sandbox.resume()
    assert (
        await shell(sandbox, "cat ~/link /tmp/t; ls /opt/venv/bin; pgrep -c sleep || true")
        == "h\nt\npip\npython\npython3\n0\n"
    )
    assert await run(sandbox, "import mine; print(mine.X)") == "7\n"
    assert (
        await shell(sandbox, "python -c 'import mine; print(mine.X)'; touch ~/new /tmp/new; stat -c %a /tmp")
        == "7\n1777\n"
    )


WRITERS = """
import os, time
a, b = (open(name, 'r+b', buffering=0) if os.path.exists(name) else open(name, 'w+b', buffering=0) for name in ('a', 'b'))
n = 0
while True:
    n += 1
    for f in (a, b):
        os.pwrite(f.fileno(), n.to_bytes(8, 'big') * 131072, 0)
"""


async def test_a_snapshot_is_one_moment(engine: Engine):
    """While files are copied nobody writes to them: two files that are written in turn never differ by more than one turn."""
    sandbox = await engine.create(SPEC)
    writer = await sandbox.commands.start(f'exec python3 -c "{WRITERS}"', ExecSpec(()), None)
    await asyncio.sleep(0.5)
    checked = 0
    for _ in range(4):
        snapshot = await engine.snapshot(sandbox.id)
        copy = await engine.create(SandboxSpec(limits=SPEC.limits, snapshot=snapshot.id))
        check = """
import os
def turns(name):
    data = open(name, 'rb').read()
    return [int.from_bytes(data[i:i + 8], 'big') for i in range(0, len(data), 8)]
a, b = turns('a'), turns('b')
first, last = min(a + b), max(a + b)
print(len(a), len(b), last - first <= 1, a == sorted(a, reverse=True), b == sorted(b, reverse=True))
"""
        assert await run(copy, check) == "131072 131072 True True True\n"
        await copy.kill()
        await engine.delete_snapshot(snapshot.id)
        checked += 1
    assert checked == 4
    assert writer.status == "RUNNING"


async def test_what_is_asked_while_a_sandbox_is_copied(engine: Engine):
    """Calls that come while the files are copied wait and are done; code that runs goes on, and its time does not count."""
    sandbox = await engine.create(SPEC)
    await shell(sandbox, "head -c 40M /dev/urandom > big")
    running = sandbox.start(None, ExecuteRequest("import time\nfor i in range(50): time.sleep(.01)"))
    await asyncio.sleep(0.1)
    copying = asyncio.ensure_future(engine.snapshot(sandbox.id))
    await asyncio.sleep(0.01)
    with pytest.raises(Conflict):
        await sandbox.pause()
    assert not copying.done()
    await sandbox.files.write("later", b"x")
    snapshot = await copying
    assert (await running.wait()).error is None
    copy = await engine.create(SandboxSpec(limits=SPEC.limits, snapshot=snapshot.id))
    assert await shell(copy, "ls") == "big\n"
    assert await shell(sandbox, "ls") == "big\nlater\n"
    sums = [await shell(one, "md5sum big") for one in (sandbox, copy)]
    assert sums[0] == sums[1]


async def test_files_that_do_not_fit(engine: Engine):
    """A sandbox that is too small for a snapshot is not started; the error says that there is no room."""
    sandbox = await engine.create(SPEC)
    await shell(sandbox, "head -c 100M /dev/zero > big")
    snapshot = await engine.snapshot(sandbox.id)
    for limits in (Limits(memory="256M", disk="20M"), Limits(memory="64M")):
        with pytest.raises((NoSpace, LimitExceeded)):
            await engine.create(SandboxSpec(limits=limits, snapshot=snapshot.id))
    assert engine.list() == [sandbox]


async def test_holes_stay_holes(engine: Engine):
    """Files of a gigabyte that hold nothing make a small archive: a snapshot costs what a sandbox has, not what it claims."""
    sandbox = await engine.create(SPEC)
    await shell(sandbox, "for i in $(seq 500); do truncate -s 1G f$i; done")
    before = time.perf_counter()
    snapshot = await engine.snapshot(sandbox.id)
    assert time.perf_counter() - before < 5
    assert snapshot.size < 1 << 20
    copy = await engine.create(SandboxSpec(limits=SPEC.limits, snapshot=snapshot.id))
    assert await shell(copy, "ls | wc -l; stat -c '%s %b' f500") == "500\n1073741824 0\n"


HOSTILE = {
    "a link in place of the home": "rm -rf /run/sandbox/home/* ; mv /run/sandbox/home /run/sandbox/h2; ln -s / /run/sandbox/home",
    "no home": "rm -rf /run/sandbox/home",
    "a link in place of the environment": "rm -rf /run/sandbox/venv; ln -s /etc /run/sandbox/venv",
    "a pipe in place of the environment": "rm -rf /run/sandbox/venv; mkfifo /run/sandbox/venv",
    "deep": "python3 -c \"import os\nfor _ in range(700): os.mkdir('d'); os.chdir('d')\"",
    "wide": "python3 -c \"for i in range(20000): open(f'/tmp/{i}', 'w')\"",
    "nothing may be read": "mkdir -p x/y; echo s > x/y/s; chmod 0 x/y/s x/y x",
    "names": "python3 -c \"open(b'\\\\xff\\\\n\\x01..', 'w'); open('-rf', 'w')\"",
    "links in circles": "ln -s a b; ln -s b a; ln -s . self; mkdir q; ln -s ../.. q/up",
    "the same file a thousand times": "echo x > one; for i in $(seq 1000); do ln one l$i; done",
    "the disk full": "head -c 1G /dev/zero > fill; true",
    "no process left": "for i in $(seq 200); do sleep 1000 & done; true",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_files(engine: Engine, name: str):
    """Whatever code has made of its places: a pause without memory is done or refused, the sandbox lives, its files come back."""
    sandbox = await engine.create(SPEC)
    exec_ = await sandbox.execs.create(ExecSpec(("/bin/bash", "-c", HOSTILE[name]), cwd="/home/user"))
    await exec_.wait()
    listing = "cd /run/sandbox; find . -user user -printf '%P %M %s %l %T@ %n\\n' 2>/dev/null | grep -v '^ ' | sort -T /dev/shm; true"
    seen = (
        await sandbox.execs.run(ExecSpec(("/bin/sh", "-c", listing), cwd="/"))
        if name != "no process left"
        else None
    )
    async with asyncio.timeout(30):
        await sandbox.pause(memory=False)
        await sandbox.resume()
        again = await sandbox.execs.run(ExecSpec(("/bin/sh", "-c", listing), cwd="/"))
        assert await run(sandbox, "print(1 + 1)") == "2\n"
    if seen is not None and name not in {"no home", "a link in place of the home"}:
        assert again == seen


async def test_pauses_under_fire(engine: Engine):
    """A sandbox that forks and writes as fast as it can is paused, copied and resumed like any other."""
    sandbox = await engine.create(SandboxSpec(template=BARE, limits=Limits(memory="256M", pids=64)))
    bomb = "while :; do (for i in 1 2 3 4; do echo x > /tmp/$RANDOM & done; wait) 2>/dev/null; done"
    await sandbox.execs.create(ExecSpec(("/bin/bash", "-c", bomb), cwd="/"))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(60):
        for _ in range(5):
            await sandbox.pause()
            used = sandbox.usage()
            await asyncio.sleep(0.1)
            after = sandbox.usage()
            assert used.cpu_time is not None
            assert after.cpu_time is not None
            assert after.cpu_time - used.cpu_time < 0.005  # what was ending already, ends
            assert (after.pids or 0) <= (used.pids or 0)
            await sandbox.resume()
            try:
                snapshot = await engine.snapshot(sandbox.id)
            except LimitExceeded:
                continue
            await engine.delete_snapshot(snapshot.id)
    assert sandbox.state == "running"


async def test_without_isolation(engine: Engine):
    """Without isolation nothing could be held, and home and /tmp are this machine's: pauses and copies are refused."""
    sandbox = await engine.create(SandboxSpec(template=BARE, isolation="none"))
    for attempt in (
        sandbox.pause(),
        sandbox.pause(memory=False),
        engine.snapshot(sandbox.id),
        engine.fork(sandbox.id),
    ):
        with pytest.raises(Unsupported):
            await attempt
    assert await run(sandbox, "print(1)") == "1\n"
    for memory in (True, False):
        spec = SandboxSpec(template=BARE, isolation="none", on_deadline="pause", pause_memory=memory)
        with pytest.raises(Unsupported):
            await engine.create(spec)


async def test_samples_of_a_real_sandbox(engine: Engine):
    """Everything is measured from outside: processor, memory with its files, disk."""
    sandbox = await engine.create(SPEC)
    await shell(sandbox, "head -c 30M /dev/zero > f")
    sandbox.history.take(sandbox)
    sample = sandbox.samples()[-1]
    assert sample.cpu_percent is not None
    assert sample.memory_used is not None
    assert sample.memory_used > 30 << 20
    assert sample.memory_total == 256 << 20
    assert sample.memory_cache is not None
    assert sample.memory_cache >= 30 << 20
    assert sample.disk_used is not None
    assert sample.disk_total is not None
    assert 30 << 20 <= sample.disk_used < sample.disk_total <= 256 << 20
    await sandbox.kill()
    with pytest.raises(CellforkError):
        await sandbox.languages()
    assert sandbox.samples()[-1] == sample


async def test_boot_ids(engine: Engine):
    """A sandbox has a boot id of its own, which a pause with memory keeps, and which new processes do not have."""

    async def boot_id(sandbox: Sandbox) -> str:
        return (await sandbox.files.read("/proc/sys/kernel/random/boot_id")).decode()

    sandbox = await engine.create(SPEC)
    first = await boot_id(sandbox)
    assert str(uuid.UUID(first.strip())) + "\n" == first
    await sandbox.pause()
    await sandbox.resume()
    assert await boot_id(sandbox) == first
    (fork,) = await engine.fork(sandbox.id)
    assert isinstance(fork, Sandbox)
    await sandbox.pause(memory=False)
    await sandbox.resume()
    seen = {
        first,
        await boot_id(fork),
        await boot_id(sandbox),
        Path("/proc/sys/kernel/random/boot_id").read_text(),
    }
    assert len(seen) == 4
    change = "echo x > /proc/sys/kernel/random/boot_id || chmod u+w /proc/sys/kernel/random/boot_id || rm /proc/sys/kernel/random/boot_id"
    with pytest.raises(CommandFailed):
        await shell(sandbox, change)
