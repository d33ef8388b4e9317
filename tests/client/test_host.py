"""The thread that everything embedded lives in: interrupts, forks, the end of the program."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cellfork import Conflict, Sandbox
from cellfork.client import transport
from cellfork.client.host import Host
from tests.client.conftest import Embedded


def test_keyboard_interrupt_stops_the_code_and_is_raised(sandbox: Sandbox):
    """Ctrl-C while waiting interrupts the code, with and without callbacks; the context stays usable."""
    for callback in (None, print):
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while True:  # the signal may come just before the wait
                sandbox.run_code("hang", on_stdout=callback)
        timer.join()
        assert sandbox.run_code("2").text == "2"


def test_keyboard_interrupt_gives_a_command_up(sandbox: Sandbox, embedded: Embedded):
    """Ctrl-C while waiting for a command kills it."""
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.commands.run("hang")
    timer.join()
    deadline = time.monotonic() + 2
    while embedded.guest.processes and time.monotonic() < deadline:
        time.sleep(0.01)
    assert embedded.guest.processes == {}


def test_closed_host_refuses(embedded: Embedded, sandbox: Sandbox):
    """After the end a call is an error, not a wait for ever."""
    embedded.transport.close()
    embedded.transport.close()
    assert embedded.runtime.closed
    with pytest.raises(Conflict):
        sandbox.run_code("1")


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
