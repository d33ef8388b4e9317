"""What init's services share: jobs in turns, answers, fields of requests."""

import os
from collections.abc import Iterator

import pytest

from cellfork.guest.services import Turns, Work, answering, flag, number, refuse
from cellfork.model.errors import Conflict, InternalError, InvalidRequest, SandboxGone
from tests.guest.driver import Driver


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


@pytest.fixture
def turns(driver: Driver) -> Iterator[Turns]:
    made = Turns(driver.loop)
    yield made
    made.close()


def counting(log: list[str], name: str, steps: int) -> Work[None]:
    for step in range(steps):
        log.append(f"{name}{step}")
        yield


def test_jobs_take_turns(driver, turns):
    """What is always ready, the jobs, has every second turn of the loop where something else is ready as well."""
    log: list[str] = []
    end, other = os.pipe()
    driver.loop.watch(end, lambda: log.append(f"read {os.read(end, 1)!r}"))
    turns.start(counting(log, "a", 3))
    turns.start(counting(log, "b", 2))
    driver.turn()
    assert log == ["a0", "b0"]
    os.write(other, b"x")
    driver.turn()
    driver.turn()
    assert sorted(log[2:]) == ["a1", "b1", "read b'x'"]
    driver.turn()
    driver.turn()
    assert log[5:] == ["a2"]
    turns.start(counting(log, "c", 1))
    driver.turn()
    assert log[6:] == ["c0"]
    driver.loop.unwatch(end)
    os.close(end)
    os.close(other)


def test_idle_turns_cost_nothing(driver, turns):
    """Without a job the loop sleeps."""
    turns.start(counting([], "a", 1))
    driver.turn()
    driver.turn()
    assert turns._always_readable not in driver.loop._readers


def test_close_ends_jobs(driver):
    """Closing ends each job where it is, so that it can clean up."""
    turns = Turns(driver.loop)
    log: list[str] = []

    def job() -> Work[None]:
        try:
            yield
            log.append("went on")
        finally:
            log.append("cleaned up")

    turns.start(job())
    driver.turn()
    turns.close()
    assert log == ["cleaned up"]


@pytest.mark.parametrize(
    "error, code, message",
    [
        (Conflict("why"), "conflict", "why"),
        (SandboxGone("why"), "internal", "why"),
        (ZeroDivisionError("why"), InternalError.code, "ZeroDivisionError: why"),
    ],
)
def test_every_job_is_answered(driver, turns, error, code, message):
    """Whatever a job raises becomes an answer, a bug too; only a guest's own errors keep their code."""

    def job() -> Work[dict[str, object]]:
        yield
        raise error

    turns.start(answering(driver.link, 7, job()))
    driver.wait(lambda: driver.answer(7))
    header = driver.answer(7).header
    assert (header["ok"], header["code"], header["message"]) == (False, code, message)


def test_refuse_with_an_error_of_the_host(driver):
    """An error that a guest may not answer with is an internal one."""
    refuse(driver.link, 1, SandboxGone("x"))
    assert driver.answer(1).header["code"] == "internal"


@pytest.mark.parametrize("value", [None, True, False, 1.0, "1", -1, 11, [], {}])
def test_number_refused(value):
    """Only whole numbers in range are taken; truth values are none."""
    with pytest.raises(InvalidRequest, match="from 0 to 10"):
        number({"n": value}, "n", 0, 10)
    assert [number({"n": n}, "n", 0, 10) for n in (0, 10)] == [0, 10]


def test_flag():
    """A flag is a truth value; absent it is false."""
    assert (flag({}, "f"), flag({"f": True}, "f"), flag({"f": False}, "f")) == (False, True, False)
    for value in (0, 1, None, "true"):
        with pytest.raises(InvalidRequest):
            flag({"f": value}, "f")
