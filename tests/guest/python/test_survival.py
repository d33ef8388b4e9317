"""What code does to its process: the kernel lives, or its death is told."""

import time

import pytest

from tests.guest.python.harness import Session

SURVIVED = [
    "import os; os.close(1)",
    "import os; os.close(0); os.close(1); os.close(2)",
    "import os; os.closerange(0, 100)",
    "import sys; sys.stdout = None",
    "import sys; sys.stdout = sys.stderr = None",
    "import sys; sys.stdout.close()",
    "import sys; del sys.stdout",
    "import sys\nclass Bad:\n    def write(self, x): raise OSError('no')\n    def flush(self): raise OSError('no')\nsys.stdout = Bad()",
    "import sys; sys.stdin = None",
    "import sys; sys.displayhook = None",
    "import sys; sys.excepthook = None",
    "import gc; gc.disable()",
    "import gc; gc.unfreeze(); gc.collect()",
    "import sys; sys.setrecursionlimit(10**6)",
    "import sys; sys.settrace(lambda *a: None)",
    "import sys; sys.setprofile(lambda *a: None)",
    "import sys; [sys.modules.pop(n) for n in list(sys.modules) if n.startswith(('json', 'numpy', 'asyncio'))]",
    "import os, signal; [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)]",
    "import signal; signal.alarm(0); signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})",
    "import os; os.environ.clear()",
    "import os, tempfile; d = tempfile.mkdtemp(dir='.'); os.chdir(d); os.rmdir('../' + os.path.basename(d))",
    "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "In.clear(); Out.clear()",
    "del In, Out, get_ipython, exit, quit",
    "%reset -f",
    "get_ipython().reset()",
    "globals().clear()",
    "import builtins; builtins.print = builtins.open = None",
    "import builtins; del builtins.input",
    "import threading; [threading.Thread(target=__import__('time').sleep, args=(0.2,)).start() for _ in range(50)]",
    "import logging; logging.disable(); logging.shutdown()",
    "import warnings; warnings.simplefilter('error')",
    "import locale; locale.setlocale(locale.LC_ALL, 'C')",
    "import faulthandler; faulthandler.enable()",
    "import atexit; atexit._clear()",
    "get_ipython().events.callbacks['post_execute'].clear()",
    "import sys; sys.argv.clear(); sys.path.clear()",
    "import os; os.nice(5)",
    "x = 1\n" * 20_000,
]


@pytest.mark.parametrize("code", SURVIVED)
def test_the_kernel_survives(session: Session, code: str):
    """After this, a cell still computes, displays, and tells its errors."""
    assert session.run(code).end["op"] == "done"
    for _ in range(2):
        ran = session.run("21 * 2")
        assert ran.text == "42" and ran.end["status"] == "ok", (ran.frames, ran.stderr)
        assert session.run("1/0").error["name"] == "ZeroDivisionError"


def test_output_after_closing_descriptors(session: Session):
    """After ``os.close(1)`` Python's text still arrives."""
    session.run("import os; os.close(1); os.close(2)")
    assert session.run("print('still')").stdout == "still\n"


@pytest.mark.parametrize(
    ("code", "code_or_signal"),
    [
        ("import os; os._exit(7)", (7, None)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", (None, 9)),
        ("import ctypes; ctypes.string_at(0)", (None, 11)),
        ("import os; os.abort()", (None, 6)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", (None, 15)),
        ("import os; os.closerange(3, 5000)", None),
    ],
)
def test_the_death_of_the_kernel_is_told(session: Session, code: str, code_or_signal: tuple | None):
    """When the process ends amid a cell, what it wrote arrives, then ``kernel_exit`` with how it ended."""
    ran = session.run("print('last words')\n" + code)
    assert ran.stdout == "last words\n"
    assert ran.end["op"] == "kernel_exit"
    if code_or_signal is not None:
        assert (ran.end["code"], ran.end["signal"]) == code_or_signal


def test_death_between_cells(session: Session):
    """A kernel that dies while idle is told without an execution."""
    session.run("import threading, os; threading.Timer(0.1, os._exit, [4]).start()").ok()
    assert session.next().header == {"op": "kernel_exit", "code": 4, "signal": None, "execution": None}


def test_forked_children_stay_out_of_the_way(session: Session):
    """A child that code forks may return from its cell, raise, write and exit: the kernel's protocol is untouched."""
    assert (
        session.run(
            "import os\npid = os.fork()\nprint('child' if pid == 0 else 'parent')\npid and os.waitpid(pid, 0)[1]"
        )
        .ok()
        .text
        == "0"
    )
    ran = session.run("pid = os.fork()\nif pid == 0:\n    display('child'); 1/0\nos.waitpid(pid, 0)[1]")
    assert ran.ok().text == "0"
    ran = session.run(
        "pid = os.fork()\nif pid == 0:\n    os.write(1, b'from the child\\n'); os._exit(3)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    ).ok()
    assert ran.order == [("stdout", "from the child\n"), ("display", "3")]
    assert session.run("5").text == "5"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(session: Session, method: str):
    """Pools of every kind work; functions of the cell with ``fork``, those of modules with the others."""
    session.run("import math, multiprocessing, os\ndef square(x):\n    print('work'); return x * x")
    function = "square" if method == "fork" else "math.sqrt"
    ran = session.run(
        f"with multiprocessing.get_context({method!r}).Pool(2) as pool:\n    r = pool.map({function}, [4, 9])\nr"
    ).ok()
    assert ran.text == ("[16, 81]" if method == "fork" else "[2.0, 3.0]")
    session.run("if os.path.exists('x'): pass").ok()


def test_process_pools_and_threads(session: Session):
    """``concurrent.futures`` works with threads and processes."""
    code = "from concurrent.futures import *\nwith ThreadPoolExecutor(4) as p: print(list(p.map(abs, [-1, -2])))\nwith ProcessPoolExecutor(2) as p: print(list(p.map(abs, [-3])))"
    assert session.run(code).ok().stdout == "[1, 2]\n[3]\n"


def test_a_deep_crash_of_recursion(session: Session):
    """Recursion without bound either raises or kills the process; either is told."""
    ran = session.run(
        "import sys\nsys.setrecursionlimit(10**7)\nclass A:\n    def __getattr__(self, n): return getattr(self, n + 'x')\nA().a"
    )
    assert ran.end["op"] in {"done", "kernel_exit"}


def test_garbage_on_the_kernels_socket(session: Session):
    """Code that writes to the kernel's own socket kills its kernel, and nobody else."""
    code = "import os, stat\nfor n in os.listdir('/proc/self/fd'):\n    if os.path.exists(f'/proc/self/fd/{n}') and stat.S_ISSOCK(os.stat(int(n)).st_mode): os.write(int(n), b'garbage' * 100)\nimport time; time.sleep(20)"
    started = time.monotonic()
    ran = session.run(code)
    assert ran.end["op"] == "kernel_exit" and ran.end["signal"] == 9
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("op", ["stdout", "kernel_exit", "reply", "ready", "nonsense"])
def test_forged_frames(session: Session, op: str):
    """Code cannot speak for init: a frame that a kernel does not send ends it."""
    code = f"""
import json, os, stat, struct, time
text = json.dumps({{"op": {op!r}, "execution": "e1", "dropped": 0, "code": 0, "signal": None, "id": 1, "ok": True}}).encode()
for n in os.listdir('/proc/self/fd'):
    if os.path.exists(f'/proc/self/fd/{{n}}') and stat.S_ISSOCK(os.stat(int(n)).st_mode):
        os.write(int(n), struct.pack('>III', len(text), 0, 0) + text)
time.sleep(20)
"""
    ran = session.run(code)
    assert [f.header["op"] for f in ran.frames] == ["kernel_exit"] and ran.end["signal"] == 9


def test_alarms_between_cells(session: Session):
    """A signal handler of the user's that raises while no cell runs is told with the next, and the kernel lives."""
    session.run(
        "import signal\ndef late(*a): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, late)\nsignal.setitimer(signal.ITIMER_REAL, 0.1)"
    ).ok()
    time.sleep(0.4)
    ran = session.run("'alive'").ok()
    assert ran.text == "'alive'" and "TimeoutError: late" in ran.stderr


def test_terminate_with_a_handler(session: Session):
    """A handler of SIGTERM that exits ends an idle kernel, its exit handlers run."""
    session.run("import signal, sys\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(0))").ok()
    session.terminate(15)
    assert session.next().header["code"] == 0


def test_memory_errors(session: Session):
    """Code that asks for more memory than there is gets ``MemoryError``, and goes on."""
    assert (
        session.run(
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\nx = bytearray(1 << 40)"
        ).error["name"]
        == "MemoryError"
    )
    assert session.run("1").text == "1"
