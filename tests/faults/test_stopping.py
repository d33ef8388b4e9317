"""Code that does not want to stop: interrupt, terminate, kill, each step in bounded time, and the event says which."""

import os
import signal
import threading
import time

import pytest

from cellfork import Sandbox
from cellfork.model.errors import SandboxGone
from cellfork.model.events import TimedOut

from .driver import assert_usable, stdout, stopped_by, within

GRACE = 2.0
"""``Settings.grace``: between one step and the next."""

PLAIN = {
    "sleep": "import time; time.sleep(3600)",
    "loop": "n = 0\nwhile True: n += 1",
    "join": "import threading, time\nt = threading.Thread(target=time.sleep, args=(3600,), daemon=True); t.start(); t.join()",
    "lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "child": "import subprocess; subprocess.run(['sleep', '3600'])",
    "shell": "!sleep 3600",
    "bash": "%%bash\nsleep 3600",
    "await": "import asyncio; await asyncio.sleep(3600)",
    "read": "import os; r, w = os.pipe(); os.read(r, 1)",
    "accept": "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); s.accept()",
    "select": "import select; select.select([], [], [])",
    "compile": "import re; re.match('(a*)*b', 'a' * 40)",
    "pow": "x = 7 ** (10 ** 8)",
}
STUBBORN = {
    "catches": "import time\nwhile True:\n    try:\n        while True: time.sleep(0.1)\n    except KeyboardInterrupt: print('caught')",
    "catches everything": "import time\nwhile True:\n    try:\n        while True: time.sleep(0.1)\n    except BaseException: pass",
    "ignores": "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(3600)",
    "blocks": "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(3600)",
    "own handler": "import signal, time; signal.signal(signal.SIGINT, lambda *_: print('no')); time.sleep(3600)",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "one call in C": "import itertools; sum(itertools.repeat(1))",
    "finally": "import time\ntry: time.sleep(3600)\nfinally: time.sleep(3600)",
    "new group": "import os, time, signal; signal.signal(2, signal.SIG_IGN); os.fork() or os.setpgid(0, 0)\ntime.sleep(3600)",
}


@pytest.mark.parametrize("name", PLAIN)
def test_timeout_interrupts(sandbox: Sandbox, name: str) -> None:
    """A timeout first interrupts; ordinary code ends with that, and the namespace stays."""
    sandbox.run_code("kept = 'yes'")
    with within(10):
        execution = sandbox.run_code(PLAIN[name], timeout=0.5)
    assert execution.status == "timed_out", execution
    assert isinstance(execution.terminal, TimedOut)
    if execution.terminal.step == "interrupt":
        assert sandbox.run_code("kept", timeout=20).text == "'yes'"
    else:
        assert name in {"pow", "compile"}  # one bytecode each: some versions of Python look for signals in it
    assert_usable(sandbox)


@pytest.mark.parametrize("name", STUBBORN)
def test_timeout_terminates(sandbox: Sandbox, neighbour: Sandbox, name: str) -> None:
    """Code that does not react to the interrupt loses its kernel ``grace`` later; what it printed is kept."""
    with within(0.5 + GRACE + 10):
        execution = sandbox.run_code("print('before')\n" + STUBBORN[name], timeout=0.5)
    assert execution.status == "timed_out", execution
    assert isinstance(execution.terminal, TimedOut)
    assert execution.terminal.step == "terminate"
    assert execution.terminal.timeout == 0.5
    assert 0.5 + GRACE <= execution.accounting.wall_time < 0.5 + GRACE + 8
    assert stdout(execution).startswith("before\n")
    assert_usable(sandbox)


@pytest.mark.parametrize(
    ("code", "step"), [(PLAIN["sleep"], "interrupt"), (STUBBORN["catches"], "terminate")]
)
def test_interrupt_of_a_caller(sandbox: Sandbox, code: str, step: str) -> None:
    """An interrupt goes through the same steps; asking again meanwhile changes nothing."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(sandbox.run_code("print('on')\n" + code)))
    thread.start()
    while not any(stdout(each.execution) for each in _running(sandbox)):
        time.sleep(0.01)
    with within(GRACE + 8):
        for _ in range(3):
            asking = threading.Thread(target=sandbox.interrupt)
            asking.start()
        assert sandbox.interrupt() or ended
        thread.join()
        asking.join()
    (execution,) = ended
    assert execution.status == "interrupted", execution
    assert stopped_by(execution) == step
    assert not sandbox.interrupt()
    assert_usable(sandbox)


def test_init_that_hangs(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """Where not even init reacts any more, the last step kills the sandbox; whoever comes later hears why."""
    pid = sandbox._remote.guest.info["pid"]
    sandbox.run_code("1")
    threading.Timer(0.2, os.kill, (pid, signal.SIGSTOP)).start()
    with within(1 + 2 * GRACE + 10):
        execution = sandbox.run_code("import time; time.sleep(3600)", timeout=1)
    assert execution.status == "timed_out", execution
    assert isinstance(execution.terminal, TimedOut)
    assert execution.terminal.step == "kill"
    with pytest.raises(SandboxGone) as caught:
        sandbox.run_code("1")
    assert caught.value.reason == "limit"


def test_interrupt_storm(sandbox: Sandbox) -> None:
    """Interrupts at random moments hit at most the run they are meant for; the kernel survives them all."""
    stop = threading.Event()

    def storm() -> None:
        while not stop.is_set():
            sandbox.interrupt()
            time.sleep(0.003)

    sandbox.run_code("import time; kept = 'yes'")
    thread = threading.Thread(target=storm)
    thread.start()
    try:
        for _ in range(100):
            execution = sandbox.run_code("time.sleep(0.002)\nprint('x')\ndisplay(1)\n'end'", timeout=20)
            assert execution.status in {"ok", "interrupted", "error"}, execution
    finally:
        stop.set()
        thread.join()
    assert sandbox.run_code("kept").text == "'yes'"


def test_timeouts_in_a_row(sandbox: Sandbox) -> None:
    """A context that timed out twenty times is as good as new, and still knows its variables."""
    sandbox.run_code("import time; kept = 'yes'")
    for _ in range(20):
        execution = sandbox.run_code("time.sleep(10)", timeout=0.02)
        assert execution.status == "timed_out", execution
    assert sandbox.run_code("kept").text == "'yes'"


def test_timeout_at_the_very_end(sandbox: Sandbox) -> None:
    """Where the timeout meets the end of the code there is exactly one terminal event, of either kind."""
    for n in range(60):
        events = list(sandbox.stream_code("import time; time.sleep(0.02)", timeout=0.02 + (n - 30) * 1e-4))
        terminal = [event for event in events if hasattr(event, "accounting")]
        assert [type(event).__name__ for event in terminal] in (["Finished"], ["TimedOut"])
        assert events[-1] is terminal[0]
    assert_usable(sandbox)


def test_children_of_a_stopped_run(sandbox: Sandbox) -> None:
    """The interrupt reaches the run's child processes as well."""
    sandbox.run_code("import subprocess; subprocess.run(['sleep', '3600'])", timeout=0.3)
    sandbox.run_code("!sleep 3600", timeout=0.3)
    count = (
        "import subprocess; subprocess.run(['pgrep', '-c', 'sleep'], capture_output=True, text=True).stdout"
    )
    assert sandbox.run_code(count).text in {"'0\\n'", "''"}


def _running(sandbox: Sandbox) -> list:
    contexts = sandbox._bridge.call(sandbox._remote.contexts.list)
    return [context.running for context in contexts if context.running is not None]
