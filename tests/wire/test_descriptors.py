"""Descriptors that come over a Unix socket: closed on exec, and no more of them than asked for."""

import os
import socket
from collections.abc import Iterator

import pytest

from cellfork.wire.descriptors import receive_descriptors

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_closed_on_exec(pair: Pair) -> None:
    """A program that is started later does not have them."""
    socket.send_fds(pair[0], [b"take"], [0, 1])
    data, fds = receive_descriptors(pair[1], 100, 4)
    assert data == b"take"
    assert [os.get_inheritable(fd) for fd in fds] == [False, False]
    for fd in fds:
        os.close(fd)


def test_none(pair: Pair) -> None:
    """Bytes may come without any, and the end does."""
    pair[0].send(b"bytes")
    assert receive_descriptors(pair[1], 3, 4) == (b"byt", [])
    assert receive_descriptors(pair[1], 100, 4) == (b"es", [])
    pair[0].close()
    assert receive_descriptors(pair[1], 100, 4) == (b"", [])


def test_too_many(pair: Pair) -> None:
    """Those beyond what was asked for are never open here, whatever is sent."""
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(pair[0], [b"x"], [0] * 200)
    data, fds = receive_descriptors(pair[1], 100, 1)
    assert data == b"x"
    assert len(os.listdir("/proc/self/fd")) - before == len(fds) <= 2  # the room is rounded up to whole words
    for fd in fds:
        os.close(fd)
