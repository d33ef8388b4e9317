"""The thread that everything embedded lives in: interrupts, forks, the end of the program."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from cellfork import CellforkError, Conflict, Execution, Sandbox
from cellfork.client import transport
from cellfork.client.bridges import Bridge
from cellfork.client.host import Host
from cellfork.model.errors import UnavailableError
from cellfork.model.events import Killed, Lost
from tests.client.conftest import Place


@pytest.fixture
def sandbox(embedded: Place) -> Sandbox:
    return embedded.create()


def test_keyboard_interrupt_stops_the_code_and_is_raised(place: Place):
    """Ctrl-C while waiting interrupts the code, with and without callbacks; the context stays usable."""
    sandbox = place.create()
    for callback in (None, print):
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while True:  # the signal may come just before the wait
                sandbox.run_code("hang", on_stdout=callback)
        timer.join()
        assert sandbox.run_code("2").text == "2"


def test_keyboard_interrupt_gives_a_command_up(place: Place):
    """Ctrl-C while waiting for a command kills it."""
    sandbox = place.create()
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.commands.run("hang")
    timer.join()
    deadline = time.monotonic() + 2
    while place.guest.processes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert place.guest.processes == {}


def test_closed_host_refuses(embedded: Place, sandbox: Sandbox):
    """After the end a call is an error, not a wait for ever."""
    embedded.transport.close()
    embedded.transport.close()
    assert embedded.runtime.closed
    with pytest.raises(Conflict):
        sandbox.run_code("1")


def test_nobody_waits_for_ever_for_a_client_that_was_closed(place: Place):
    """Whoever waits when a client is closed is told: code that runs, code behind it, commands, what begins just then."""
    sandbox = place.create()
    context = sandbox.create_code_context()
    told: list[object] = []

    def wait_for(call: Callable[..., object], *args: object, **kwargs: object) -> None:
        try:
            told.append(call(*args, **kwargs))
        except CellforkError as error:
            told.append(error)

    def ask_again() -> None:
        while True:
            sandbox.files.exists("x")

    calls: list[Callable[[], None]] = [
        *[lambda: wait_for(sandbox.run_code, "hang", context=context) for _ in range(4)],
        *[lambda: wait_for(sandbox.run_code, "hang", on_stdout=print) for _ in range(3)],
        *[lambda: wait_for(sandbox.commands.run, "hang") for _ in range(2)],
        lambda: wait_for(sandbox.commands.run("hang", background=True).wait),
        *[lambda: wait_for(ask_again) for _ in range(2)],
    ]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    place.transport.close()
    for thread in threads:
        thread.join(10)
    assert [thread for thread in threads if thread.is_alive()] == []
    executions = [each.terminal for each in told if isinstance(each, Execution)]
    assert all(isinstance(end, Killed | Lost) for end in executions), executions
    assert len([each for each in told if isinstance(each, Execution | CellforkError)]) == len(calls)


@pytest.mark.anyio
async def test_no_task_waits_for_ever_for_a_client_that_was_closed(place: Place):
    """The same for tasks of a loop; one that is cancelled meanwhile is cancelled, and nothing else."""
    sandbox = await place.create_async()
    waiting = [asyncio.create_task(sandbox.run_code("hang")) for _ in range(4)]
    cancelled = asyncio.create_task(sandbox.run_code("hang"))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(asyncio.to_thread(place.transport.close))
    await asyncio.sleep(0)
    cancelled.cancel()
    _, pending = await asyncio.wait([*waiting, cancelled, closing], timeout=10)
    assert not pending
    assert cancelled.cancelled()
    for task in waiting:
        assert isinstance(task.exception() or task.result().terminal, CellforkError | Killed | Lost)


def test_a_call_that_is_cut_off_is_told_why(embedded: Place):
    """What does not end with the rest is ended, with an error that says so; what its caller gave up is not."""
    host = embedded.transport.host
    bridge = Bridge(host)
    outcome: list[BaseException] = []

    async def stubborn() -> None:
        await asyncio.Event().wait()

    def call() -> None:
        try:
            bridge.call(stubborn)
        except CellforkError as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not host._loop:
        time.sleep(0.01)
    embedded.transport.close()
    thread.join(10)
    assert [type(error) for error in outcome] == [UnavailableError]
    assert "closed" in str(outcome[0])
    bridge.tell(lambda: outcome.clear())  # nobody is there any more
    assert outcome


def test_host_starts_with_the_first_call():
    """Nothing runs in a host that nobody uses, and it can be closed all the same."""
    host = Host()
    assert threading.active_count() == len(threading.enumerate())
    before = threading.active_count()
    host.close()
    assert threading.active_count() == before


def test_embedded_transport_is_shared_and_made_anew_in_a_child():
    """All sandboxes of a process share one engine; a forked child has none of its parent's."""
    program = """
import os, sys
from cellfork.client import transport
first = transport.embedded()
assert transport.embedded() is first
first.host.soon(lambda: None)
child = os.fork()
if child == 0:
    try:
        assert transport.embedded() is not first
        try:
            first.host.soon(lambda: None)
        except Exception as error:
            assert "parent" in str(error), error
        else:
            os._exit(2)
    except BaseException as error:
        print(error)
        os._exit(3)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_program_ends_with_a_sandbox_alive():
    """A program that forgets its sandboxes ends at once and in silence."""
    program = """
from cellfork.client import transport
from cellfork import Sandbox
from cellfork.testing.fakes import FakeRuntime
shared = transport.embedded()
shared._runtimes = {"fake": FakeRuntime()}
sandbox = Sandbox.create(isolation="fake")
print(sandbox.run_code("7").text)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_remote_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A URL is never ignored."""
    monkeypatch.delenv(transport.URL_VARIABLE, raising=False)
    assert transport.choose() is transport.embedded()


def test_importing_the_sandbox_is_quick():
    """Importing the client loads neither asyncio nor the engine."""
    program = "import sys; from cellfork import Sandbox, AsyncSandbox; print('asyncio' in sys.modules)"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout == "False\n"
