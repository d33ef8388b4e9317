"""An interrupt ends the cell that runs, and nothing else."""

import time

import pytest

from tests.guest.python.harness import Ran, Session


def interrupted(session: Session, code: str) -> Ran:
    """Run code, interrupt it when it waits after its ``go``; its end comes soon."""
    session.send(code)
    session.wait_for_text("go\n")
    time.sleep(0.15)
    session.interrupt()
    started = time.monotonic()
    ran = session.collect()
    assert time.monotonic() - started < 5
    return ran


@pytest.mark.parametrize(
    "code",
    [
        "print('go')\nimport time\ntime.sleep(60)",
        "print('go')\nwhile True: pass",
        "print('go')\nimport time\ntry:\n    time.sleep(60)\nfinally:\n    print('cleaned')",
        "print('go')\n!sleep 60",
        "%%bash\necho go\nsleep 60",
        "print('go')\nimport subprocess\nsubprocess.run(['sleep', '60'])",
        "print('go')\nimport asyncio\nawait asyncio.sleep(60)",
        "print('go')\nimport asyncio, time\nasync def f():\n    time.sleep(60)\nawait f()",
        "print('go')\nimport importlib\nm = importlib.import_module('asy' + 'ncio')\nm.run(m.sleep(60))",
        "print('go')\nimport threading\nthreading.Event().wait(60)",
        "print('go')\nclass R:\n    def __repr__(self):\n        while True: pass\nR()",
        "class E(Exception):\n    def __str__(self):\n        print('go')\n        while True: pass\nraise E()",
        "print('go')\nx = !sleep 60",
        "import os\nprint('go')\nos.read(os.pipe()[0], 1)",
    ],
)
def test_interrupt(session: Session, code: str):
    """Whatever the code does, SIGINT ends it; what was written is kept and the kernel lives."""
    session.run("kept = 5")
    ran = interrupted(session, code)
    assert ran.end["op"] == "done" and ran.end["status"] == "interrupted", (ran.end, ran.error)
    assert ran.error["name"] == "KeyboardInterrupt"
    assert session.run("kept").text == "5"


def test_interrupts_while_idle_are_ignored(session: Session):
    """Interrupts between cells do nothing to the kernel or to the next cell."""
    session.run("1")
    for _ in range(20):
        session.interrupt()
    assert session.run("import time; time.sleep(0.1); 2").ok().text == "2"
    session.run("import os, signal")
    session.run("os.getpid()").ok()


def test_an_early_interrupt_is_not_lost(session: Session):
    """An interrupt right behind the code ends the code, even if the kernel has not begun it."""
    for i in range(30):
        session.send("import time\ntime.sleep(20)")
        if i % 2:
            time.sleep(0.0005 * i)
        session.interrupt()
        ran = session.collect()
        assert ran.end["status"] == "interrupted", i


@pytest.mark.parametrize("event", ["pre_execute", "pre_run_cell"])
def test_an_interrupt_before_the_code_begins_is_not_lost(session: Session, event: str):
    """What IPython calls before a cell is interrupted in its stead: the cell does not run, the kernel lives."""
    code = """
import os, signal
events = get_ipython().events
def hook(*info):
    events.unregister(EVENT, hook)
    os.kill(os.getpid(), signal.SIGINT)
events.register(EVENT, hook)
"""
    session.run(f"EVENT = {event!r}" + code).ok()
    ran = session.run("ran = True")
    assert (ran.end["status"], ran.error["name"]) == ("interrupted", "KeyboardInterrupt")
    assert session.run("'ran' in globals()").ok().text == "False"


def test_an_interrupt_amid_a_finalizer_is_not_lost(session: Session):
    """Nothing is raised out of ``__del__``: the interrupt comes again, and ends what the cell does next."""
    session.send(
        "import time\nclass Slow:\n    def __del__(self):\n        print('go')\n        time.sleep(30)\n"
        "slow = Slow()\ndel slow\nprint('after')\ntime.sleep(30)"
    )
    session.wait_for_text("go\n")
    session.interrupt()
    ran = session.collect()
    assert (ran.end["status"], ran.stderr) == ("interrupted", "")


def test_what_else_cannot_be_raised_is_told(session: Session):
    """Other exceptions in finalizers, and those that nobody asked for, are written to stderr, as Python does it."""
    code = "class Bad:\n    def __del__(self):\n        raise {}\nbad = Bad()\ndel bad\n'on'"
    for name in ("ValueError", "KeyboardInterrupt"):
        assert session.run(code.format(name)).ok().text == "'on'"
    assert "ValueError" in session.run(code.format("ValueError")).stderr


LATE = """
import signal, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print('go')
"""
"""From here on SIGINT goes to the other thread.  This one hears of it between two instructions only, as it always does
where a signal comes after the last one before a system call."""


@pytest.mark.parametrize(
    "wait", ["time.sleep(30)", "threading.Event().wait(30)", "import os; os.read(os.pipe()[0], 1)"]
)
def test_an_interrupt_just_before_a_wait_is_not_lost(session: Session, wait: str):
    """A system call that began before the interpreter heard of the interrupt ends, once; nothing later does."""
    code = f"{LATE}try:\n    {wait}\nexcept KeyboardInterrupt:\n    began = time.monotonic()\n    time.sleep(0.4)"
    ran = interrupted(session, f"{code}\ntime.monotonic() - began >= 0.4")
    assert (ran.end["status"], ran.text) == ("ok", "True")


def test_whoever_handles_the_interrupt_does_so_once(session: Session):
    """A handler of the code's own is called once for each interrupt."""
    session.send(
        "import signal, time\ncame = []\nsignal.signal(signal.SIGINT, lambda *_: came.append(1))\nprint('go')\n"
        "while not came: pass\nbegan = time.monotonic()\nwhile time.monotonic() < began + 0.5: pass\ncame"
    )
    session.wait_for_text("go\n")
    session.interrupt()
    assert session.collect().text == "[1]"


def test_a_storm_of_interrupts(session: Session):
    """Interrupts at any moment, many in a row, never kill the kernel or break its frames."""
    for i in range(60):
        session.send(f"for i in range({i * 20}):\n    print(i); display(i)\n'end'")
        for _ in range(3):
            time.sleep(0.0007 * (i % 7))
            session.interrupt()
        ran = session.collect()
        assert ran.end["op"] == "done"
    assert session.run("1").text == "1"


def test_code_may_catch_it(session: Session):
    """Code that catches ``KeyboardInterrupt`` goes on, and can be interrupted again."""
    session.send(
        "import time\ntry:\n    print('go')\n    time.sleep(30)\nexcept KeyboardInterrupt:\n    print('caught')\ntime.sleep(30)"
    )
    session.wait_for_text("go\n")
    session.interrupt()
    session.wait_for_text("caught\n")
    time.sleep(0.05)
    session.interrupt()
    assert session.collect().end["status"] == "interrupted"


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "signal.SIG_IGN", "lambda *a: None"])
def test_the_handler_is_put_back(session: Session, handler: str):
    """Code that replaces the handler of SIGINT does so for its own cell only."""
    session.run(f"import signal, time\nsignal.signal(signal.SIGINT, {handler})").ok()
    session.interrupt()
    session.send("print('go')\ntime.sleep(30)")
    session.wait_for_text("go\n")
    session.interrupt()
    assert session.collect().end["status"] == "interrupted"


def test_children_are_interrupted_too(session: Session):
    """The signal goes to the whole process group: a child of the cell ends as well."""
    session.send("import subprocess\nc = subprocess.Popen(['sleep', '60'])\nprint('go')\nc.wait()")
    session.wait_for_text("go\n")
    session.interrupt()
    assert session.collect().end["status"] == "interrupted"
    # 0 where the signal came between the system call that reaped the child and Python's note of its status
    assert session.run("c.wait(5)").text in {"-2", "0"}


def test_interrupting_a_thread_join(session: Session):
    """A cell that waits for a thread can be interrupted; the thread goes on."""
    session.send(
        "import threading, time\nt = threading.Thread(target=time.sleep, args=(1,))\nt.start()\nprint('go')\nt.join()"
    )
    session.wait_for_text("go\n")
    session.interrupt()
    assert session.collect().end["status"] == "interrupted"
    assert session.run("t.join(); 'joined'").text == "'joined'"
