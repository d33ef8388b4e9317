"""Processes and threads that user code starts and forgets."""

import time

import pytest

from cellfork import Sandbox

from .driver import assert_usable, failure, host_pids, stderr, stdout, within


def test_fork_that_returns_into_the_loop(sandbox: Sandbox) -> None:
    """A forked child that runs on to the end of the cell ends there; only the parent answers."""
    sandbox.run_code("x = 1")
    for _ in range(5):
        execution = sandbox.run_code(
            "import os\npid = os.fork()\nprint('hello')\n'parent' if pid else 'child'"
        )
        assert (execution.status, execution.text) == ("ok", "'parent'"), execution
        sandbox.run_code("os.waitpid(pid, 0)")
    assert sandbox.run_code("x").text == "1"
    assert len(execution.results) == 1


def test_fork_whose_child_outlives_the_cell(sandbox: Sandbox) -> None:
    """What a child says after its cell comes with the next one, as text, and never as that one's result."""
    code = "import os, time\nif not os.fork():\n    time.sleep(0.3)\n    print('late', flush=True)\n    display('lie')\n'mine'"
    execution = sandbox.run_code(code)
    assert (execution.text, stdout(execution)) == ("'mine'", "")
    time.sleep(0.6)
    execution = sandbox.run_code("'next'")
    assert (execution.text, stdout(execution)) == ("'next'", "late\n")
    assert len(execution.results) == 1


@pytest.mark.parametrize(
    "end",
    [
        "raise ValueError('child')",
        "import sys; sys.exit(3)",
        "os._exit(5)",
        "os.kill(os.getpid(), 9)",
        "exit()",
    ],
)
def test_forked_child_that_fails(sandbox: Sandbox, end: str) -> None:
    """However a forked child ends, it is not the kernel that ended."""
    code = f"import os\npid = os.fork()\nif not pid:\n    {end}\nos.waitpid(pid, 0)[0] == pid"
    execution = sandbox.run_code(code, timeout=20)
    assert (execution.status, execution.text) == ("ok", "True"), execution
    assert_usable(sandbox)


def test_fork_and_input(sandbox: Sandbox) -> None:
    """A forked child cannot ask the client, nor take what is meant for the parent."""
    code = """
import os
pid = os.fork()
if not pid:
    try: input('child? ')
    except Exception as error: os._exit(7)
    os._exit(0)
status = os.waitpid(pid, 0)[1]
input('parent? '), os.waitstatus_to_exitcode(status)
"""
    execution = sandbox.run_code(code, on_input=lambda request: f"to {request.prompt}", timeout=20)
    assert (execution.status, execution.text) == ("ok", "('to parent? ', 7)"), execution


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_multiprocessing(sandbox: Sandbox, method: str) -> None:
    """``multiprocessing`` works, output of its workers included; a function of a cell can be sent where it forks."""
    function = (
        "def work(n):\n    print(f'working on {n}\\n', end='', flush=True)\n    return n * n\n"
        if method == "fork"
        else ""
    )
    call = "work, range(8)" if method == "fork" else "pow, [(n, 2) for n in range(8)]"
    mapping = "map" if method == "fork" else "starmap"
    code = f"import multiprocessing as mp\n{function}with mp.get_context({method!r}).Pool(3) as pool: squares = pool.{mapping}({call})\nsquares"
    for _ in range(2):
        execution = sandbox.run_code(code, timeout=60)
        assert (execution.status, execution.text) == ("ok", "[0, 1, 4, 9, 16, 25, 36, 49]"), execution
        if function:
            assert sorted(stdout(execution).splitlines()) == [f"working on {n}" for n in range(8)]
    assert_usable(sandbox)


def test_multiprocessing_spawn(sandbox: Sandbox) -> None:
    """``spawn`` works for what can be imported; a function that only the cell knows fails, and does not hang for ever."""
    code = "import multiprocessing as mp, math\nwith mp.get_context('spawn').Pool(2) as pool: roots = pool.map(math.isqrt, [4, 9])\nroots"
    execution = sandbox.run_code(code, timeout=60)
    assert (execution.status, execution.text) == ("ok", "[2, 3]"), execution
    code = "def work(n): return n\nwith mp.get_context('spawn').Pool(2) as pool: pool.map(work, [1])"
    with within(20):
        execution = sandbox.run_code(code, timeout=4)
    assert execution.status in {"timed_out", "error"}, execution
    assert_usable(sandbox)


@pytest.mark.parametrize("executor", ["ThreadPoolExecutor", "ProcessPoolExecutor"])
def test_executors(sandbox: Sandbox, executor: str) -> None:
    """The executors of ``concurrent.futures`` work, more than once."""
    code = f"from concurrent.futures import {executor}\nwith {executor}(3) as pool: found = list(pool.map(abs, [-1, -2]))\nfound"
    for _ in range(2):
        assert sandbox.run_code(code, timeout=60).text == "[1, 2]"
    assert_usable(sandbox)


def test_thread_that_prints_later(sandbox: Sandbox) -> None:
    """What a thread prints after its cell is delivered with the next execution."""
    code = "import threading, time\ndef later():\n    time.sleep(0.2)\n    print('late')\nthreading.Thread(target=later).start()"
    execution = sandbox.run_code(code)
    assert (execution.status, stdout(execution)) == ("ok", "")
    time.sleep(0.5)
    execution = sandbox.run_code("print('now')")
    assert stdout(execution) == "late\nnow\n"


def test_thread_that_prints_for_ever(sandbox: Sandbox) -> None:
    """A thread that never stops printing is bounded between cells and within them, and cells still end."""
    code = "import threading\ndef babble():\n    while not stop.is_set(): print('x' * 1000)\nstop = threading.Event()\nthreading.Thread(target=babble).start()"
    sandbox.run_code(code)
    time.sleep(0.5)
    for n in range(5):
        with within(20):
            execution = sandbox.run_code(f"{n}", timeout=15)
        assert (execution.status, execution.text) == ("ok", str(n)), execution
        assert len(stdout(execution)) <= 17 * 1024 * 1024
    sandbox.run_code("stop.set()")
    assert_usable(sandbox)


def test_thread_that_fails(sandbox: Sandbox) -> None:
    """A thread that dies of an exception says so on stderr; the cell is not concerned."""
    code = "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()\n'fine'"
    execution = sandbox.run_code(code)
    assert (execution.status, execution.text) == ("ok", "'fine'")
    assert "ZeroDivisionError" in stderr(execution)
    assert_usable(sandbox)


DAEMON = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        os.closerange(0, 1000)
        os.chdir('/')
        time.sleep(3600)
    os._exit(0)
os.wait()
"""


def test_daemon(sandbox: Sandbox) -> None:
    """A process that detached itself twice lives on between cells, ends with its kernel, and at last with the sandbox."""
    count = "len([p for p in __import__('os').listdir('/proc') if p.isdigit()])"
    assert sandbox.run_code(DAEMON).status == "ok"
    assert int(sandbox.run_code(count).text or 0) >= 3
    sandbox.run_code("os._exit(0)")
    assert int(sandbox.run_code(count).text or 0) == 2
    assert sandbox.run_code(DAEMON).status == "ok"
    before = host_pids()
    sandbox.kill()
    deadline = time.monotonic() + 5
    while len(before - host_pids()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_children_of_a_lost_kernel(sandbox: Sandbox) -> None:
    """Children in the kernel's own process group end with it; the next kernel is not disturbed by their output."""
    execution = sandbox.run_code(
        "import os, subprocess\nsubprocess.Popen('sleep 0.3; yes', shell=True)\nos._exit(1)"
    )
    assert execution.status == "lost"
    time.sleep(0.5)
    execution = sandbox.run_code("print('clean')")
    assert stdout(execution) == "clean\n"


def test_zombies(sandbox: Sandbox) -> None:
    """Children that nobody waits for do not pile up: orphans are reaped, and more than the limit can be started."""
    code = """
import os, subprocess
for _ in range(300):
    pid = os.fork()
    if not pid:
        if not os.fork(): os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
states = subprocess.run(['ps', '-eo', 'stat'], capture_output=True, text=True).stdout
states.count('Z') < 5
"""
    execution = sandbox.run_code(code, timeout=60)
    assert (execution.status, execution.text) == ("ok", "True"), execution


def test_background_process_that_keeps_the_pipe(sandbox: Sandbox) -> None:
    """A child that holds the output pipe open keeps no cell from ending; its text comes when it comes."""
    with within(5):
        execution = sandbox.run_code(
            "import subprocess\nchild = subprocess.Popen('sleep 0.3; echo late; sleep 3600', shell=True)\n1"
        )
    assert execution.text == "1"
    time.sleep(0.6)
    assert stdout(sandbox.run_code("child.kill()")) == "late\n"
    assert_usable(sandbox)


def test_kernel_stopped_between_cells(sandbox: Sandbox) -> None:
    """A kernel that was stopped while nothing ran does not answer; the timeout finds out and replaces it."""
    sandbox.run_code(
        "import os, threading, signal\nthreading.Timer(0.1, os.kill, (os.getpid(), signal.SIGSTOP)).start()"
    )
    time.sleep(0.3)
    with within(15):
        execution = sandbox.run_code("1", timeout=1)
    assert execution.status == "timed_out", execution
    assert_usable(sandbox)


def test_cwd_that_is_removed(sandbox: Sandbox) -> None:
    """A context whose directory disappeared goes on, and says so only where the code asks for it."""
    sandbox.run_code("import os, shutil; os.mkdir('/tmp/gone'); open('/tmp/gone/f', 'w').close()")
    context = sandbox.create_code_context(cwd="/tmp/gone")
    assert sandbox.run_code("x = 1; import os; os.getcwd()", context=context).text == "'/tmp/gone'"
    sandbox.run_code("shutil.rmtree('/tmp/gone')")
    assert failure(sandbox.run_code("os.getcwd()", context=context)) == "FileNotFoundError"
    execution = sandbox.run_code("print(x)\n1 / 0", context=context)
    assert (failure(execution), stdout(execution)) == ("ZeroDivisionError", "1\n")
    assert sandbox.run_code("!echo shell", context=context).status in {"ok", "error"}
    # a new kernel cannot start there: that is said, and the sandbox goes on
    with within(10):
        assert sandbox.run_code("os._exit(1)", context=context).status == "lost"
        execution = sandbox.run_code("1", context=context)
    assert execution.status == "lost", execution
    assert execution.error is not None
    assert "/tmp/gone" in execution.error.value
    sandbox.run_code("os.mkdir('/tmp/gone')")
    assert_usable(sandbox, context.id)
    assert_usable(sandbox)


def test_home_that_is_removed(sandbox: Sandbox) -> None:
    """Even without its home directory a sandbox runs code in the contexts that it has."""
    sandbox.run_code("import shutil, os; shutil.rmtree('/home/user', ignore_errors=True)")
    assert_usable(sandbox)
    sandbox.run_code("os.makedirs('/home/user', exist_ok=True)")
    sandbox.run_code("os._exit(1)")
    assert_usable(sandbox)
