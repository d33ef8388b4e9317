"""input() asks the client, or raises at once."""

import time

import pytest

from tests.guest.python.harness import Session


@pytest.mark.parametrize(
    ("code", "prompt", "password"),
    [
        ("input('name? ')", "name? ", False),
        ("input()", "", False),
        ("import getpass\ngetpass.getpass()", "Password: ", True),
    ],
)
def test_a_question(session: Session, code: str, prompt: str, password: bool):
    """The question goes to the client after all that was written, the answer comes back as text."""
    session.send("print('before')\n" + code, stdin=True)
    session.wait_for_text("before\n")
    asked = session.next().header
    assert (asked["op"], asked["prompt"], asked["password"]) == ("input_request", prompt, password)
    session.answer("Zoë\n\x00")
    assert session.collect().ok().text == repr("Zoë\n\x00")


def test_nobody_answers(session: Session):
    """Without a client that answers, ``input`` and ``getpass`` raise at once what ipykernel raises."""
    error = session.run("input('?')").error
    assert error["name"] == "StdinNotImplementedError"
    assert error["value"] == "raw_input was called, but this frontend does not support input requests."
    assert session.run("import getpass; getpass.getpass()").error["name"] == "StdinNotImplementedError"


def test_an_interrupt_ends_the_waiting(session: Session):
    """A cell that waits for an answer can be interrupted; a late answer is dropped."""
    for _ in range(3):
        session.send("input()", stdin=True)
        assert session.next().header["op"] == "input_request"
        time.sleep(0.05)
        session.interrupt()
        assert session.collect().end["status"] == "interrupted"
        session.answer("late")
    session.send("input()", stdin=True)
    session.next()
    session.answer("in time")
    assert session.collect().text == "'in time'"


def test_stdin_is_empty(session: Session):
    """Reading standard input directly gives its end at once, in the kernel and in children."""
    assert session.run("import sys\nsys.stdin.read(), __import__('os').read(0, 10)").text == "('', b'')"
    assert session.run("!cat").ok().stdout == ""


def test_questions_of_threads(session: Session):
    """A thread may ask while the cell waits for it."""
    session.send(
        "import threading\na = []\nt = threading.Thread(target=lambda: a.append(input('t')))\nt.start(); t.join()\na",
        stdin=True,
    )
    assert session.next().header["prompt"] == "t"
    session.answer("x")
    assert session.collect().text == "['x']"


def test_the_debugger(session: Session):
    """``breakpoint()`` is usable through questions."""
    session.send("x = 5\nbreakpoint()\nprint('after')", stdin=True)
    frames = []
    for answer in ("p x * 2", "c"):
        while (frame := session.next()).header["op"] != "input_request":
            frames.append(frame)
        session.answer(answer)
    ran = session.collect()
    assert any(b"10" in frame.body for frame in frames + ran.frames)
    assert ran.end["status"] == "ok"
