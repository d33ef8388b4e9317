"""Init's event loop: every callback finds what it was called for."""

import os
from collections.abc import Iterator

import pytest

from cellfork.guest.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_a_call_can_do_the_work_of_another(loop: Loop) -> None:
    """Who reads what another one would be called for: the other is not called."""
    pipes = [os.pipe() for _ in range(2)]
    called = []

    def read_all(own: int) -> None:
        called.append(own)
        for reader, _ in pipes:
            os.read(reader, 1)

    for reader, writer in pipes:
        loop.watch(reader, lambda own=reader: read_all(own))  # type: ignore[misc]
        os.write(writer, b"x")
    for _ in range(4):
        loop.run_once(0)
    assert len(called) == 1
    for fd in [fd for pipe in pipes for fd in pipe]:
        os.close(fd)


def test_a_number_that_is_used_again(loop: Loop) -> None:
    """Who opens a file under the number of one that was ready and was closed: nothing is said of the new one."""
    first, second = os.pipe(), os.pipe()
    called = []

    def replace(own: int, other: int) -> None:
        called.append("replaced")
        loop.unwatch(own)
        loop.unwatch(other)
        os.dup2(silent[0], other)
        loop.watch(other, lambda: called.append("silent"))

    silent = os.pipe()
    for own, other in ((first, second), (second, first)):
        loop.watch(own[0], lambda own=own, other=other: replace(own[0], other[0]))  # type: ignore[misc]
        os.write(own[1], b"x")
    for _ in range(4):
        loop.run_once(0)
    assert called == ["replaced"]
    for fd in (*first, *second, *silent):
        os.close(fd)


def test_everybody_has_a_turn(loop: Loop) -> None:
    """Descriptors that are always ready do not keep each other waiting."""
    pipes = [os.pipe() for _ in range(5)]
    called = []
    for reader, writer in pipes:
        os.write(writer, b"x")
        loop.watch(reader, lambda own=reader: called.append(own))  # type: ignore[misc]
    for _ in range(50):
        loop.run_once(0)
    assert [called.count(reader) for reader, _ in pipes] == [10] * 5
    for fd in [fd for pipe in pipes for fd in pipe]:
        os.close(fd)


def test_a_reader_that_becomes_nobodys_writer(loop: Loop) -> None:
    """Where the call for reading gives the descriptor up, that for writing is not made."""
    fd = os.eventfd(1, os.EFD_NONBLOCK)
    called = []

    def read() -> None:
        called.append("read")
        loop.unwatch_writable(fd)

    loop.watch(fd, read)
    loop.watch_writable(fd, lambda: called.append("written"))
    loop.run_once(0)
    assert called == ["read"]
    os.close(fd)
