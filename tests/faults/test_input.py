"""``input()``: answered, refused or given up, but never hanging."""

import threading
import time

import pytest

from cellfork import Sandbox
from cellfork.model.errors import InvalidRequest

from .driver import assert_usable, failure, stdout, within


@pytest.mark.parametrize("call", ["input()", "input('name? ')", "__import__('getpass').getpass()"])
def test_input_that_nobody_answers(sandbox: Sandbox, call: str) -> None:
    """Without a callback ``input()`` raises at once."""
    with within(5):
        execution = sandbox.run_code(call)
    assert failure(execution) == "StdinNotImplementedError"
    assert_usable(sandbox)


def test_reading_stdin(sandbox: Sandbox) -> None:
    """Standard input itself is empty: reading it ends at once, for code and for its children."""
    with within(10):
        execution = sandbox.run_code(
            "import os, subprocess, sys\nprint(os.read(0, 1), subprocess.run(['cat']).returncode)", timeout=5
        )
    assert stdout(execution) == "b'' 0\n", execution
    with within(10):
        execution = sandbox.run_code("print(repr(sys.stdin.read()))", timeout=5)
    assert execution.status in {"ok", "error"}, execution
    assert_usable(sandbox)


def test_input_with_odd_answers(sandbox: Sandbox) -> None:
    """Answers arrive as they are, whatever is in them."""
    answers = ["", "two\nlines", "ünï 🎉", "\x03\x04\0", "x" * 1_000_000]
    rest = iter(answers)
    execution = sandbox.run_code(
        f"got = [input() for _ in range({len(answers)})]\nlen(got[-1])",
        on_input=lambda _: next(rest),
        timeout=20,
    )
    assert (execution.status, execution.text) == ("ok", "1000000"), execution
    assert sandbox.run_code("got[:-1]").results[0].json == answers[:-1]


@pytest.mark.parametrize("answer", ["\ud800", 5, None, b"bytes"])
def test_input_with_an_answer_that_is_no_text(sandbox: Sandbox, answer: object) -> None:
    """An answer that is no text is refused on the caller's side, and the code that waits is stopped."""
    with within(15), pytest.raises(InvalidRequest):
        sandbox.run_code("input()", on_input=lambda _: answer, timeout=10)
    assert_usable(sandbox)


def test_callback_that_raises(sandbox: Sandbox) -> None:
    """An exception of the callback reaches the caller, and the code that waits is stopped."""
    with within(15), pytest.raises(ZeroDivisionError):
        sandbox.run_code("input()", on_input=lambda _: 1 / 0, timeout=10)
    assert_usable(sandbox)


def test_input_that_is_interrupted(sandbox: Sandbox) -> None:
    """A run that waits for input can be interrupted; afterwards ``input()`` works as before."""
    asked = threading.Event()
    go_on = threading.Event()

    def slow(_: object) -> str:
        asked.set()
        go_on.wait(20)
        return "late"

    ended = []
    thread = threading.Thread(
        target=lambda: ended.append(sandbox.run_code("input('? ')", on_input=slow, timeout=20))
    )
    thread.start()
    assert asked.wait(10)
    with within(10):
        assert sandbox.interrupt()
    go_on.set()
    thread.join(10)
    assert [execution.status for execution in ended] == ["interrupted"]
    execution = sandbox.run_code("input('again? ')", on_input=lambda _: "yes", timeout=10)
    assert (execution.status, execution.text) == ("ok", "'yes'"), execution
    assert_usable(sandbox)


def test_input_that_times_out(sandbox: Sandbox) -> None:
    """Waiting for input counts as the run's time; a late answer reaches nobody."""

    def late(_: object) -> str:
        time.sleep(1)
        return "late"

    with within(15):
        execution = sandbox.run_code("input('? ')", on_input=late, timeout=0.3)
    assert execution.status == "timed_out", execution
    execution = sandbox.run_code("input('again? ')", on_input=lambda _: "yes", timeout=10)
    assert execution.text == "'yes'"


def test_input_when_the_sandbox_is_killed(sandbox: Sandbox) -> None:
    """A run that waits for input ends with its sandbox."""

    def kill(_: object) -> str:
        sandbox.kill()
        return "too late"

    with within(15):
        execution = sandbox.run_code("input('? ')", on_input=kill, timeout=20)
    assert execution.status == "killed", execution


def test_input_from_a_thread(sandbox: Sandbox) -> None:
    """A thread of the cell may ask as well."""
    code = "import threading\ngot = []\nt = threading.Thread(target=lambda: got.append(input('t? '))); t.start(); t.join()\ngot"
    execution = sandbox.run_code(code, on_input=lambda request: request.prompt + "!", timeout=10)
    assert execution.text == "['t? !']", execution


def test_many_questions(sandbox: Sandbox) -> None:
    """A thousand questions in one run are asked and answered in order."""
    execution = sandbox.run_code(
        "all(input(str(n)) == str(n) for n in range(1000))",
        on_input=lambda request: request.prompt,
        timeout=60,
    )
    assert execution.text == "True", execution
