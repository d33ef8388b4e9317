"""The host takes one listening socket from a guest that was asked for one, before its locks, and nothing else ever."""

import asyncio
import os
import socket

import pytest

from cellfork.model.network import NetworkPolicy
from cellfork.runtimes.egress import listener as listeners
from cellfork.runtimes.egress.gate import Gate
from cellfork.runtimes.egress.proxy import Proxy
from cellfork.wire.frames import encode
from tests.runtimes.conftest import guest_without_processes

LISTENING = encode({"op": "listening"})
LOCKED = encode({"op": "locked"})


@pytest.fixture
async def start(monkeypatch):
    """Return a function that makes a guest, with a way out or not, and the other end of its connection."""
    free = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(listeners, "ADDRESS", free.getsockname())
    made = []

    def make(*, expected: bool):
        guest, theirs = guest_without_processes()
        if expected:
            guest.expect_listener(Gate(Proxy(), NetworkPolicy.of("public")))
        made.append((guest, theirs))
        return guest, theirs

    yield make, free
    for guest, theirs in made:
        await guest.kill()
        theirs.close()
    free.close()


async def settled(guest):
    """Wait until the guest has its locks, or its end."""
    for _ in range(100):
        if guest._locked.done():
            return
        await asyncio.sleep(0.01)


async def test_the_listener_arrives_before_the_locks(start):
    """Then, and only when it was expected, the start goes on; the socket is opened when the sandbox is given out."""
    make, free = start
    guest, theirs = make(expected=True)
    socket.send_fds(theirs, [LISTENING], [free.fileno()])
    theirs.sendall(LOCKED)
    await settled(guest)
    assert guest.alive
    assert guest._locked.exception() is None
    assert guest._listener.getsockname() == free.getsockname()


@pytest.mark.parametrize(
    ("expected", "steps"),
    [
        (True, [(LOCKED, 0)]),
        (True, [(LISTENING, 0)]),
        (True, [(LISTENING, 2)]),
        (True, [(LISTENING, 5)]),
        (True, [(LISTENING, 1), (LISTENING, 1)]),
        (True, [(LISTENING, 1), (LOCKED, 1)]),
        (True, [(LISTENING, 1), (LOCKED, 0), (LISTENING, 1)]),
        (False, [(LISTENING, 1)]),
        (False, [(LISTENING, 0)]),
        (False, [(LOCKED, 0), (LISTENING, 1)]),
    ],
)
async def test_anything_else_is_a_violation(start, expected, steps):
    """None, two, many, a second one, one later, one that nobody asked for: the sandbox ends, no descriptor is kept."""
    make, free = start
    before = len(os.listdir("/proc/self/fd"))
    guest, theirs = make(expected=expected)
    for data, count in steps:
        if count:
            socket.send_fds(theirs, [data], [free.fileno()] * count)
        else:
            theirs.sendall(data)
        await asyncio.sleep(0.01)
    for _ in range(100):
        if not guest.alive:
            break
        await asyncio.sleep(0.01)
    assert guest._closed is not None
    assert guest._closed[0] == "protocol"
    await guest.kill()
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_descriptors_that_come_later_are_dropped(start):
    """After the locks nothing is received but bytes."""
    make, free = start
    guest, theirs = make(expected=True)
    socket.send_fds(theirs, [LISTENING], [free.fileno()])
    theirs.sendall(LOCKED)
    await settled(guest)
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(theirs, [encode({"op": "ready", "version": 1, "pid": 1})], [free.fileno()])
    for _ in range(100):
        if guest._ready.done():
            break
        await asyncio.sleep(0.01)
    assert guest._ready.exception() is None
    assert len(os.listdir("/proc/self/fd")) == before
