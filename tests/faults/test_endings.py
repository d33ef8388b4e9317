"""The kernel's process ends, whoever ended it: a typed answer at once, and a new kernel for the next run."""

import signal
import time

import pytest

from cellfork import Sandbox
from cellfork.model.specs import ExecuteRequest

from .driver import assert_usable, failure, within


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_os_exit(sandbox: Sandbox, code: int) -> None:
    """``os._exit`` ends the kernel: the execution is lost, with the exit code; the next one finds an empty namespace."""
    sandbox.run_code("x = 1")
    with within(5):
        execution = sandbox.run_code(f"print('before', flush=True)\nimport os; os._exit({code})")
    assert execution.status == "lost"
    assert execution.error is not None
    assert execution.error.value == f"the kernel exited with code {code}"
    assert execution.logs.stdout == ["before\n"]
    assert failure(sandbox.run_code("x")) == "NameError"
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGHUP, signal.SIGPWR]
)
def test_kernel_that_kills_itself(sandbox: Sandbox, number: signal.Signals) -> None:
    """A kernel that a signal ended is lost, with the signal's name; what it printed before is kept."""
    with within(5):
        execution = sandbox.run_code(f"print('before')\nimport os; os.kill(os.getpid(), {int(number)})")
    assert execution.status == "lost", execution
    assert execution.error is not None
    assert execution.error.value == f"the kernel was killed by {number.name}"
    assert execution.logs.stdout == ["before\n"]
    assert_usable(sandbox)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.abort()", "SIGABRT"),
        ("import faulthandler; faulthandler._sigfpe()", "SIGFPE"),
        ("import sys; sys.setrecursionlimit(10**9)\ndef f(x): return f([x].__len__() and x)\nf(1)", ""),
    ],
    ids=["segmentation", "abort", "division", "stack"],
)
def test_crash(sandbox: Sandbox, code: str, name: str) -> None:
    """A crash in C is lost with the signal's name, and leaves no core file."""
    with within(60):
        execution = sandbox.run_code(code, timeout=30)
    assert execution.status in {"lost", "killed", "error"} if not name else execution.status == "lost", (
        execution
    )
    assert execution.error is not None
    assert name in execution.error.value
    assert_usable(sandbox)
    assert sandbox.run_code("import os; [n for n in os.listdir() if 'core' in n]").text == "[]"


@pytest.mark.parametrize("code", ["exit()", "quit()", "exit", "get_ipython().ask_exit()"])
def test_exit_of_the_shell(sandbox: Sandbox, code: str) -> None:
    """``exit`` ends the cell well and the kernel after it; the very next run gets a new one, and is never lost."""
    for _ in range(3):
        sandbox.run_code("x = 1")
        assert sandbox.run_code(code).status == "ok"
        assert failure(sandbox.run_code("x")) == "NameError"
    assert_usable(sandbox)


def test_exit_with_queued_executions(sandbox: Sandbox) -> None:
    """Executions that wait when the shell is left run in the new kernel."""
    start = sandbox._remote.start
    requests = [ExecuteRequest(code) for code in ("exit()", "1 + 1", "exit()", "2 + 2")]
    running = sandbox._bridge.call(lambda: [start(None, request) for request in requests])
    ended = [sandbox._bridge.call(each.wait) for each in running]
    assert [(execution.status, execution.text) for execution in ended] == [
        ("ok", None),
        ("ok", "2"),
        ("ok", None),
        ("ok", "4"),
    ]


def test_exit_runs_exit_handlers(sandbox: Sandbox) -> None:
    """A kernel that is left runs its exit handlers before the next one begins."""
    sandbox.run_code("import atexit; atexit.register(lambda: open('left', 'w').write('yes'))")
    sandbox.run_code("exit()")
    assert sandbox.run_code("open('left').read()").text == "'yes'"


def test_exit_handler_that_hangs(sandbox: Sandbox) -> None:
    """An exit handler that never returns is ended after a while; the next run gets a new kernel all the same."""
    sandbox.run_code("import atexit, time; atexit.register(time.sleep, 3600)")
    sandbox.run_code("exit()")
    with within(15):
        assert_usable(sandbox)


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "raise SystemExit('bye')", "raise SystemExit"])
def test_sys_exit(sandbox: Sandbox, code: str) -> None:
    """``sys.exit`` is an error of the cell, as in a notebook; the kernel and its state stay."""
    sandbox.run_code("x = 1")
    assert failure(sandbox.run_code(code)) == "SystemExit"
    assert sandbox.run_code("x").text == "1"


def test_sys_exit_in_a_task(sandbox: Sandbox) -> None:
    """``sys.exit`` in a task that goes on between cells does not end the kernel."""
    code = (
        "import asyncio, sys\n"
        "async def leave():\n    await asyncio.sleep(0.05)\n    sys.exit(3)\n"
        "x, task = 1, asyncio.create_task(leave())\nawait asyncio.sleep(0)"
    )
    assert sandbox.run_code(code).status == "ok"
    sandbox.run_code("import time; time.sleep(0.1)")
    assert sandbox.run_code("await asyncio.sleep(0.1); x").text in {"1", None}
    assert_usable(sandbox)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD]
)
def test_signals_to_init(sandbox: Sandbox, number: signal.Signals) -> None:
    """No signal from inside ends or stops init."""
    execution = sandbox.run_code(f"import os; os.kill(1, {int(number)})")
    assert execution.status == "ok", execution
    assert_usable(sandbox)


def test_kill_everything(sandbox: Sandbox, neighbour: Sandbox) -> None:
    """``kill(-1, SIGKILL)`` reaches the sandbox's own processes only, and not its init."""
    other = sandbox.create_code_context()
    sandbox.run_code("x = 1", context=other)
    with within(10):
        execution = sandbox.run_code("import os, time; os.kill(-1, 9); time.sleep(0.5)", timeout=5)
    assert execution.status == "ok", execution  # it does not reach the process that asks
    assert failure(sandbox.run_code("x", context=other)) == "NameError"
    assert_usable(sandbox)
    assert_usable(sandbox, other.id)
    assert_usable(neighbour)


def test_kernel_that_dies_between_cells(sandbox: Sandbox) -> None:
    """A kernel that dies while nothing runs is replaced before the next run; its end is nobody's error."""
    sandbox.run_code("import threading, os\nthreading.Timer(0.1, os._exit, (1,)).start()")
    time.sleep(0.5)
    assert_usable(sandbox)


def test_endings_in_a_row(sandbox: Sandbox) -> None:
    """A kernel can be lost again and again; neither the context nor the sandbox wears out."""
    for _ in range(30):
        assert sandbox.run_code("import os; os._exit(1)").status == "lost"
    assert_usable(sandbox)


def test_other_contexts_go_on(sandbox: Sandbox) -> None:
    """The end of one context's kernel leaves the others alone, with their state."""
    other = sandbox.create_code_context()
    sandbox.run_code("x = 'kept'", context=other)
    assert sandbox.run_code("import os; os._exit(1)").status == "lost"
    assert sandbox.run_code("x", context=other).text == "'kept'"
