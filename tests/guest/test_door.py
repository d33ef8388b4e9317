"""The door of a sandbox and the link to its host: one host after the other, and nothing of one reaches the next."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from cellfork.guest.door import Door
from cellfork.guest.link import HostLink
from cellfork.wire.frames import Decoder, encode


@pytest.fixture
def address(tmp_path) -> str:
    return str(tmp_path / "door")


@pytest.fixture
def door(address: str) -> Iterator[Door]:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(address)
    door = Door(bound.detach(), 0.3)
    yield door
    door._socket.close()


def knock(address: str, data: bytes = b"") -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    connection.sendall(data)
    return connection


def test_a_host_comes(address: str, door: Door):
    """Its first frame is returned with the connection, and not a byte more is read."""
    with knock(address, encode({"op": "adopt", "first": 5}) + encode({"op": "next"})) as host:
        found = door.wait({})
        assert found is not None
        connection, request = found
        assert request == {"op": "adopt", "first": 5}
        assert connection.recv(1000) == encode({"op": "next"})
        connection.sendall(b"back")
        assert host.recv(4) == b"back"
        connection.close()


def test_nobody_comes(door: Door):
    """After its patience there is an answer, not before."""
    start = time.monotonic()
    assert door.wait({}) is None
    assert 0.3 <= time.monotonic() - start < 3


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", encode({"op": "adopt"})[:-3], b"\xff" * 12, b"\0\0\0\2\0\0\0\0\0\0\0\0[]"]
)
def test_a_host_that_is_killed_as_it_comes(address: str, door: Door, data: bytes):
    """Whoever says nothing, half of it, or nonsense, is let go, and the next one is waited for anew."""
    knock(address, data).close()
    with knock(address, encode({"op": "adopt"})):
        found = door.wait({})
        assert found is not None
        found[0].close()


def test_meanwhile(address: str, door: Door):
    """What becomes readable meanwhile is seen to, however often, and does not shorten the patience."""
    read, write = os.pipe()
    seen: list[bytes] = []
    with knock(address) as silent:

        def end() -> None:
            os.write(write, b"x")
            silent.close()

        timer = threading.Timer(0.1, end)
        os.write(write, b"y")
        timer.start()
        assert door.wait({read: lambda: seen.append(os.read(read, 1))}) is None
    timer.join()
    assert seen == [b"y", b"x"]
    os.close(read)
    os.close(write)


def test_frames_for_a_host_that_has_ended():
    """They are dropped, without an error, until there is another one; it gets whole frames only."""
    ours, theirs = socket.socketpair()
    link = HostLink(ours)
    theirs.close()
    for _ in range(3):
        link.send({"op": "process.exit", "process": 1, "code": 0, "signal": None})
        link.forward(b'{"op":"stdout"}', b"text", 1)
    ours.close()
    ours, theirs = socket.socketpair()
    link.attach(ours, 100)
    link.send({"op": "chunk", "id": 100}, b"data")
    ours.close()
    with theirs:
        assert [frame.header for frame in Decoder().feed(theirs.recv(1000))] == [{"op": "chunk", "id": 100}]


def test_late_answers():
    """Answers to requests of an earlier host are dropped: its numbers lie below; all else passes."""
    ours, theirs = socket.socketpair()
    link = HostLink(ours)
    link.send({"op": "reply", "id": 1})
    link.send({"op": "reply", "id": -1})
    link.attach(ours, 1000)
    for number in (-1, 0, 1, 999, 1000, 5000, -2, -77):
        link.send({"op": "reply", "id": number})
    link.send({"op": "process.output", "process": 5})
    link.send({"op": "stdout", "id": 5}, channel=3)
    ours.close()
    with theirs:
        found = [frame.header.get("id", frame.header["op"]) for frame in Decoder().feed(theirs.recv(10_000))]
    assert found == [1, -1, 1000, 5000, -2, -77, "process.output", 5]
