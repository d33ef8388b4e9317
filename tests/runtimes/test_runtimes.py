"""What every runtime does, isolating or not."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cellfork.model.errors import SandboxGone, StartupFailed
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes import guest as guests
from cellfork.runtimes.base import RuntimeReport
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from tests.runtimes.conftest import SPEC, Client


def pids() -> list[int]:
    """Return the processes of this machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


async def test_a_sandbox_starts_runs_and_ends(runtime):
    """start() gives a guest that answers; kill() ends it and tells so exactly once."""
    guest = await runtime.start(SPEC)
    client = Client(guest)
    await client.start_context()
    done = await client.run("x = 20\nx + 1")
    assert (done.header["status"], done.header["count"]) == ("ok", 1)
    assert (await client.until("display", main=True)).body == b"21"
    await guest.kill()
    await guest.kill()
    assert await client.closed == ("request", "")


async def test_a_kill_whose_caller_is_cancelled(runtime):
    """Everything is given back before the cancellation takes effect: nobody else would wait for it."""
    guest = await runtime.start(SPEC)
    pid = guest.info["pid"]
    killing = asyncio.create_task(guest.kill())
    await asyncio.sleep(0)
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing
    assert not Path(f"/proc/{pid}").exists()
    assert guest._ending.done()


async def test_a_runtime_ends_after_what_it_gave_out(runtime, monkeypatch):
    """A sandbox that ended by itself has been given back when its runtime has been closed."""
    guest = await runtime.start(SPEC)
    client = Client(guest)
    release, released = guest._meter.release, []

    async def release_slowly():
        await asyncio.sleep(0.3)
        await release()
        released.append(guest)

    monkeypatch.setattr(guest._meter, "release", release_slowly)
    os.kill(guest.info["pid"], signal.SIGKILL)
    async with asyncio.timeout(5):
        await client.closed
        await guest._child.exited
    await runtime.aclose()
    assert released == [guest]


async def test_after_the_end_nothing_can_be_sent(runtime):
    """send() raises SandboxGone once the sandbox has ended."""
    guest = await runtime.start(SPEC)
    Client(guest)
    await guest.kill()
    with pytest.raises(SandboxGone):
        guest.send({"op": "ping", "id": 1})
    with pytest.raises(SandboxGone):
        await guest.drain()


async def test_a_guest_that_ends_by_itself_is_noticed(runtime):
    """When init dies without having been killed, the end is told without a reason, and everything is given back."""
    guest = await runtime.start(SPEC)
    client = Client(guest)
    os.kill(guest.info["pid"], signal.SIGKILL)
    async with asyncio.timeout(5):
        reason, message = await client.closed
    assert reason is None
    assert message
    await guest.kill()


async def test_a_guest_that_breaks_the_protocol_is_killed(runtime):
    """Bytes that are no frame end the sandbox with the reason protocol."""
    guest = await runtime.start(SPEC)
    client = Client(guest)
    guest._connection._decoder._buffer += b"\xff" * 12
    guest.send({"op": "ping", "id": 1})
    async with asyncio.timeout(5):
        reason, _message = await client.closed
    assert reason == "protocol"
    await guest.kill()


async def test_a_second_context_starts_where_and_with_what_it_was_told(runtime, tmp_path):
    """Working directory and variables of a context reach the kernel, whether it was forked ahead or not."""
    guest = await runtime.start(SPEC)
    client = Client(guest)
    for channel in (1, 2):
        await client.start_context(channel, cwd="/tmp", A=f"it's {channel}")
        await client.run(
            "import os; print(os.getcwd(), os.environ['A'], os.environ['PWD'])", f"e{channel}", channel
        )
        text = (await client.until("stdout", execution=f"e{channel}")).body.decode()
        assert text == f"/tmp it's {channel} /tmp\n"


async def test_sandboxes_of_one_zygote_are_independent(runtime):
    """The death of one leaves another working."""
    first, second = [await runtime.start(SPEC) for _ in range(2)]
    client = Client(second)
    await first.kill()
    await client.start_context()
    assert (await client.run("1 + 1")).header["status"] == "ok"


async def test_the_death_of_the_zygote_is_survived(runtime):
    """When a zygote dies, the next start makes a new one."""
    guest = await runtime.start(SPEC)
    client = Client(guest)
    zygote = await runtime._zygotes.of(SPEC.template)
    os.kill(zygote.pid, signal.SIGKILL)
    if runtime.name == "namespaces":  # everything below it dies with it
        async with asyncio.timeout(5):
            await client.closed
    async with asyncio.timeout(5):
        while zygote.alive:
            await asyncio.sleep(0.01)
    another = await runtime.start(SPEC)
    assert another.info["pid"] != guest.info["pid"]


async def test_an_interpreter_that_does_not_exist_is_a_typed_error(runtime):
    """A template whose interpreter cannot be run is refused with the reason."""
    with pytest.raises(StartupFailed, match="does not answer"):
        await runtime.start(SandboxSpec(template=Template("absent", interpreter="/no/such/python")))


async def test_a_preload_that_cannot_be_imported_is_skipped(runtime):
    """An absent module does not keep the template from starting."""
    guest = await runtime.start(SandboxSpec(template=Template("odd", preload=("no_such_module_anywhere",))))
    client = Client(guest)
    await client.start_context()
    assert (await client.run("1 + 1")).header["status"] == "ok"


async def test_concurrent_starts_share_one_zygote(runtime):
    """Ten starts at once start one zygote and ten sandboxes."""
    guests = await asyncio.gather(*(runtime.start(SPEC) for _ in range(10)))
    assert len({guest.info["pid"] for guest in guests}) == 10
    assert (await runtime._zygotes.of(SPEC.template)).forks == 10


async def test_the_runtime_tells_what_it_can_do(runtime):
    """probe() reports under the runtime's name."""
    report = await runtime.probe()
    assert isinstance(report, RuntimeReport)
    assert report.name == runtime.name
    assert report.available, report.missing


async def test_closing_kills_everything(runtime):
    """aclose() ends zygotes and sandboxes; no process is left when it returns."""
    guest = await runtime.start(SPEC)
    zygote = await runtime._zygotes.of(SPEC.template)
    pids = [guest.info["pid"], zygote.pid]
    await runtime.aclose()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


async def test_what_was_not_ended_in_time_ends_with_the_zygote(monkeypatch):
    """A sandbox that the kernel does not let go in time has been given back all the same when its runtime has been closed."""
    runtime = NamespacesRuntime(pool=0, prefork=0)
    guest = await runtime.start(SPEC)
    release = guest._meter.release

    async def release_slowly():
        await asyncio.sleep(0.3)
        await release()

    monkeypatch.setattr(guests, "LEAVE_SECONDS", 2.0)
    monkeypatch.setattr(guest._meter, "kill", lambda: True)
    monkeypatch.setattr(guest._meter, "release", release_slowly)
    os.kill(guest.info["pid"], signal.SIGSTOP)  # it cannot hear that it is to end either
    await runtime.aclose()
    assert guest.info["pid"] not in pids()
    assert guest._ending is not None and guest._ending.done()


@pytest.mark.parametrize("start", [["nice", "-n", "5"], ["chrt", "--batch", "0"], ["chrt", "--idle", "0"]])
def test_a_program_that_stands_back(start):
    """A program that was started with nice(1) or chrt(1) has sandboxes like any other."""
    if shutil.which(start[0]) is None:
        pytest.skip(f"{start[0]} is not installed")
    code = "from cellfork import Sandbox\nwith Sandbox.create() as sandbox: print(sandbox.run_code('6 * 7').text)"
    done = subprocess.run([*start, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "42\n", done.stderr


def test_a_program_that_was_started_with_signals_ignored():
    """What a parent ignores is handled in the ordinary way inside, also what only the C library can: make starts programs so."""
    code = """
import ctypes, platform
ignored = (1).to_bytes(8, "little") + bytes(24)
number = {"x86_64": 13, "aarch64": 134}[platform.machine()]
for signal in (1, 3, 32, 33, 40):
    assert ctypes.CDLL(None).syscall(number, signal, ignored, None, ctypes.c_size_t(8)) == 0
from cellfork import Sandbox
with Sandbox.create() as sandbox:
    print(sandbox.run_code("next(line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn'))").text)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert int(done.stdout.strip("'\n"), 16) == 1 << 12 | 1 << 24, (
        done.stderr
    )  # SIGPIPE and SIGXFSZ, as in every Python
