"""What drives another program: an interrupt reaches it, whenever it comes."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cellfork.guest.driven import Ending
from cellfork.guest.go.kernel import DRIVER
from cellfork.guest.python.failures import INTERRUPTED

PROGRAMS = str(Path(sys.executable).parent)
LATE = """
import os, select, signal, socket, threading, time
from cellfork.guest.wakeup import Wakeup

class NoReporter:
    def missed(self): pass

def interrupt_when(true):
    # Has the signal come after this thread's last instruction before a wait: it does not end the wait.
    def interrupt():
        while not true():
            time.sleep(0.001)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

def ending_of(program, code):
    signal.signal(signal.SIGINT, program.on_interrupt)
    program.start()
    interrupt_when(lambda: program._begun)
    ours, theirs = socket.socketpair()
    return program.run(code, {}, theirs)
"""


def told_by(code: str) -> str:
    """Return what a process printed for which a signal comes too late to end the wait that it begins."""
    done = subprocess.run(
        [sys.executable, "-c", LATE + textwrap.dedent(code)],
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return done.stdout.strip()


def test_wakeup() -> None:
    """A signal between the last instruction and a wait for the wakeup ends that wait, and its handler has run then."""
    code = """
        came = []
        signal.signal(signal.SIGINT, lambda *_: came.append(1))
        wakeup, poll = Wakeup(), select.poll()
        poll.register(wakeup, select.POLLIN)
        interrupt_when(lambda: True)
        poll.poll()
        wakeup.clear()
        print(came, poll.poll(0))
    """
    assert told_by(code) == "[1] []"


def test_bash() -> None:
    """Such an interrupt ends a cell of bash."""
    code = "from cellfork.guest.bash.kernel import Shell; print(ending_of(Shell(lambda: None), b'sleep 60'))"
    assert told_by(code) == str(Ending(INTERRUPTED))


@pytest.mark.skipif(
    shutil.which(DRIVER, path=PROGRAMS) is None, reason="the driver of Go is not built: make go"
)
def test_go() -> None:
    """Such an interrupt ends a cell of Go."""
    code = """
        from cellfork.guest.go.kernel import Driver
        print(ending_of(Driver(NoReporter()), b'time.Sleep(60 * time.Second)'))
    """
    assert told_by(code) == str(Ending(INTERRUPTED))
