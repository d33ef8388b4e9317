"""Many callers at once, and sandboxes that end while they are used."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cellfork import Sandbox
from cellfork.model import events
from cellfork.model.errors import LimitExceeded, NotFound, SandboxGone
from cellfork.model.specs import ExecuteRequest

from .driver import assert_usable, within

BUSY = "import time\nprint('on')\ntime.sleep(3600)"


def test_a_thousand_queued_executions(sandbox: Sandbox) -> None:
    """Executions of one context run in the order of asking, all of them; one too many is refused."""
    sandbox.run_code("order = []; import os, time")
    remote = sandbox._remote

    def submit() -> list:
        first = [remote.start(None, ExecuteRequest("while not os.path.exists('go'): time.sleep(0.01)"))]
        return first + [remote.start(None, ExecuteRequest(f"order.append({n})")) for n in range(1000)]

    with within(60):
        running = sandbox._bridge.call(submit)
        with pytest.raises(LimitExceeded, match="wait"):
            sandbox._bridge.call(remote.start, None, ExecuteRequest("order.append('too many')"))
        sandbox.files.write("go", "")
        last = sandbox._bridge.call(running[-1].wait)
    assert last.status == "ok"
    assert all(each.execution.status == "ok" for each in running)
    assert sandbox.run_code("order == list(range(1000))").text == "True"
    counts = [each.execution.execution_count for each in running]
    assert counts == list(range(counts[0], counts[0] + 1001))


def test_callers_in_many_threads(sandbox: Sandbox) -> None:
    """Any number of threads may use one sandbox: each gets the answer to its own question."""
    sandbox.run_code("total = 0")

    def ask(n: int) -> str | None:
        return sandbox.run_code(f"total += 1; {n}").text

    with within(60), ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(400))) == [str(n) for n in range(400)]
    assert sandbox.run_code("total").text == "400"


def test_contexts_in_many_threads(sandbox: Sandbox) -> None:
    """Contexts are made, used and removed side by side without meeting each other."""

    def live(n: int) -> bool:
        context = sandbox.create_code_context()
        sandbox.run_code(f"x = {n}", context=context)
        same = sandbox.run_code("x", context=context).text == str(n)
        sandbox.remove_code_context(context)
        return same

    with within(60), ThreadPoolExecutor(8) as pool:
        assert all(pool.map(live, range(40)))
    assert_usable(sandbox)


def test_callbacks_from_many_threads(sandbox: Sandbox) -> None:
    """Callbacks are called in the caller's own thread."""

    def ask(n: int) -> bool:
        seen: list[tuple[str, int]] = []
        sandbox.run_code(
            f"print({n})", on_stdout=lambda message: seen.append((message.line, threading.get_ident()))
        )
        return seen == [(f"{n}\n", threading.get_ident())]

    with within(60), ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(100)))


def test_callback_that_raises(sandbox: Sandbox) -> None:
    """An exception of a callback stops the code and reaches the caller; the context goes on."""

    def refuse(_: object) -> None:
        raise ZeroDivisionError("mine")

    with within(15), pytest.raises(ZeroDivisionError, match="mine"):
        sandbox.run_code("import time\nwhile True:\n    print('x'); time.sleep(0.01)", on_stdout=refuse)
    with within(15):
        assert_usable(sandbox)


def test_callback_that_uses_the_sandbox(sandbox: Sandbox) -> None:
    """A callback may run code in another context, and may interrupt its own."""
    other = sandbox.create_code_context()
    seen = []

    def use(_: object) -> None:
        seen.append(sandbox.run_code("1 + 1", context=other).text)
        sandbox.interrupt()

    with within(15):
        execution = sandbox.run_code(BUSY, on_stdout=use)
    assert (execution.status, seen) == ("interrupted", ["2"]), execution


def test_iteration_that_is_left(sandbox: Sandbox) -> None:
    """Leaving the iteration over the events stops the code."""
    for event in sandbox.stream_code("import time\nwhile True:\n    print('x'); time.sleep(0.01)"):
        if isinstance(event, events.Stdout):
            break
    with within(15):
        assert_usable(sandbox)


@pytest.mark.parametrize(
    "code",
    [BUSY, "while True: print('x' * 1000)", "import os, signal; print('on'); os.kill(os.getpid(), 19)"],
)
def test_deadline_during_an_execution(code: str) -> None:
    """At its deadline a sandbox ends: what runs and what waits ends as killed with that reason, later calls say it."""
    with Sandbox.create(timeout=1) as sandbox, ThreadPoolExecutor(2) as pool:
        with within(15):
            running = pool.submit(sandbox.run_code, code)
            time.sleep(0.3)
            waiting = pool.submit(sandbox.run_code, "1")
            for each in (running.result(), waiting.result()):
                assert each.status == "killed", each
                assert each.error is not None
                assert each.error.value.startswith("deadline:")
        assert "".join(running.result().logs.stdout)
        with within(2), pytest.raises(SandboxGone) as caught:
            sandbox.run_code("1")
        assert caught.value.reason == "deadline"
        assert not sandbox.is_running()
        assert sandbox.kill() is False


def test_deadline_that_is_moved() -> None:
    """A deadline can be moved while the sandbox lives, in both directions."""
    with Sandbox.create(timeout=1) as sandbox:
        sandbox.set_timeout(30)
        time.sleep(1.2)
        assert_usable(sandbox)
        sandbox.set_timeout(0.1)
        time.sleep(0.5)
        with pytest.raises(SandboxGone):
            sandbox.set_timeout(30)


@pytest.mark.parametrize("code", [BUSY, "while True: print('x' * 1000)", "input()"])
def test_kill_during_an_execution(sandbox: Sandbox, code: str) -> None:
    """A kill ends what runs and what waits, as killed on request, and wakes everybody who waits for it."""

    def late(_: events.InputRequest) -> str:
        time.sleep(1)
        return "late"

    with ThreadPoolExecutor(3) as pool:
        stream = pool.submit(lambda: list(sandbox.stream_code(code, on_input=late)))
        time.sleep(0.3)
        waiting = pool.submit(sandbox.run_code, "1")
        context = sandbox.create_code_context()
        elsewhere = pool.submit(sandbox.run_code, BUSY, None, context)
        time.sleep(0.2)
        with within(10):
            assert sandbox.kill() is True
            assert sandbox.kill() is False
            for each in (waiting.result(), elsewhere.result()):
                assert each.status == "killed", each
            seen = stream.result()
            assert isinstance(seen[-1], events.Killed)
            assert sum(isinstance(event, events.Terminal) for event in seen) == 1


def test_kill_from_many_threads(sandbox: Sandbox) -> None:
    """However many ask for the end, it comes once, and each returns when nothing is left."""
    with within(15), ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sandbox.kill(), range(16)))
    assert not sandbox.is_running()


def test_everything_after_the_end(sandbox: Sandbox) -> None:
    """After the end every call says quickly that the sandbox is gone, and why; killing again is no error."""
    context = sandbox.create_code_context()
    sandbox.kill()
    calls = [
        lambda: sandbox.run_code("1"),
        lambda: sandbox.run_code("1", context=context),
        lambda: list(sandbox.stream_code("1")),
        sandbox.create_code_context,
        lambda: sandbox.restart_code_context(context),
        lambda: sandbox.set_timeout(5),
        lambda: sandbox._bridge.call(sandbox._remote.files.read, "x"),
    ]
    with within(5):
        for call in calls:
            with pytest.raises(SandboxGone) as caught:
                call()
            assert caught.value.reason == "request"
        assert sandbox.kill() is False
        assert sandbox.get_info().state == "ended"


def test_remove_and_restart_during_an_execution(sandbox: Sandbox) -> None:
    """What runs and what waits in a context that is restarted or removed ends as killed on request."""
    context = sandbox.create_code_context()
    for call in (sandbox.restart_code_context, sandbox.remove_code_context):
        with within(15), ThreadPoolExecutor(2) as pool:
            running = [pool.submit(sandbox.run_code, BUSY, None, context) for _ in range(2)]
            time.sleep(0.3)
            call(context)
            for each in running:
                assert each.result().status == "killed"
    with pytest.raises(NotFound):
        sandbox.run_code("1", context=context)
    assert_usable(sandbox)


def test_two_languages_at_once(sandbox: Sandbox) -> None:
    """A context and a language together are refused: a context has one."""
    context = sandbox.create_code_context()
    with pytest.raises(Exception, match="not both"):
        sandbox.run_code("1", language="python", context=context)
