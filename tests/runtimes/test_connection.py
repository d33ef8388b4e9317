"""The host's end of the connection: what a guest must not say ends it, and nothing is delivered after that."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from cellfork.guest.sandbox import read_request
from cellfork.model.errors import ProtocolViolation
from cellfork.runtimes.connection import Connection
from cellfork.wire.frames import Frame, encode


@dataclass
class Ends:
    """Both ends, and what the host's one was given."""

    guest: socket.socket
    frames: list[Frame] = field(default_factory=list)
    ended: list[ProtocolViolation | None] = field(default_factory=list)

    async def say(self, *messages: bytes) -> None:
        """Let the guest say something, and the host hear it."""
        self.guest.sendall(b"".join(messages))
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ours, theirs = socket.socketpair()
    both = Ends(theirs)
    connection = Connection(ours, both.frames.append, both.ended.append)
    yield both
    connection.close()
    theirs.close()


GOOD = encode({"op": "process.output", "process": 1, "stream": "stdout"}, b"text")


async def test_what_keeps_the_rules_is_delivered(ends: Ends) -> None:
    """Frames arrive in their order, whole."""
    await ends.say(GOOD, GOOD)
    assert [frame.body for frame in ends.frames] == [b"text", b"text"]
    assert ends.ended == []


@pytest.mark.parametrize(
    "message",
    [
        encode({"op": "whatever"}),
        encode({"op": "process.output", "process": "1", "stream": "stdout"}),
        encode({"op": "process.output", "process": 1, "stream": "elsewhere"}),
        encode({"op": "done", "execution": "x", "status": "ok"}, channel=1),
        encode({"op": "reply", "id": 1, "ok": True}),
        encode({"op": "stdout", "execution": "x", "dropped": 1 << 70}, channel=1),
        b"\xff" * 12,
    ],
)
async def test_what_breaks_the_rules_ends_the_connection(ends: Ends, message: bytes) -> None:
    """A message that is unknown, of the wrong shape or too large is a violation: told once, and the last thing that is heard."""
    await ends.say(GOOD, message, GOOD)
    assert len(ends.frames) == 1
    assert [type(end) for end in ends.ended] == [ProtocolViolation]


async def test_the_end_of_the_guest(ends: Ends) -> None:
    """A guest that is gone has broken no rule."""
    await ends.say(GOOD)
    ends.guest.close()
    await asyncio.sleep(0.01)
    assert ends.ended == [None]


async def test_descriptors_come_with_the_first_byte(ends: Ends) -> None:
    """What is sent with descriptors is one frame like any other, also where the guest reads it piece by piece; what follows stays behind it."""
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    sending = Connection(ours, lambda _frame: None, ends.ended.append)
    try:
        sending.send_with([reading], {"op": "become", "volumes": ["/a"]}, b"body")
        sending.send({"op": "ping", "id": 1})
        found: list[int] = []
        request = await asyncio.to_thread(read_request, theirs.fileno(), found)
        assert request == {"op": "become", "volumes": ["/a"], "body": b"body"}
        assert len(found) == 1
        os.write(writing, b"x")
        assert os.read(found[0], 1) == b"x"
        assert not os.get_inheritable(found[0])
        assert await asyncio.to_thread(read_request, theirs.fileno()) == {"op": "ping", "id": 1}
    finally:
        sending.close()
        theirs.close()
        for fd in (reading, writing, *found):
            os.close(fd)
