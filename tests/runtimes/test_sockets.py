"""What the host accepts as a socket from a guest that it asked for one: that one, and nothing else."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellfork.model.errors import (
    CellforkError,
    LimitExceeded,
    NotFound,
    PortClosed,
    ProtocolViolation,
    SandboxGone,
)
from cellfork.runtimes.connection import Connection
from cellfork.runtimes.sockets import (
    MOST_WAITING,
    Handovers,
    connects_to,
    listens_on,
    namespace_of,
)
from cellfork.wire.frames import Frame, encode

HERE = namespace_of(os.getpid())


class Ends:
    """A host that asks for sockets, and a guest that answers as a test wants."""

    def __init__(self) -> None:
        ours, self.guest = socket.socketpair()
        self.handovers = Handovers()
        self.frames: list[Frame] = []
        self.ended: list[ProtocolViolation | None] = []
        self.connection = Connection(ours, self.on_frame, self.ended.append)

    def on_frame(self, frame: Frame) -> None:
        if self.handovers.is_reply(frame.header):
            self.handovers.on_reply(frame.header)
        else:
            self.frames.append(frame)

    def ask(self, check: Any) -> "tuple[int, asyncio.Future[socket.socket]]":
        self.connection.take_descriptors = self.handovers.take
        return self.handovers.expect(check)

    async def answer(self, number: int, *fds: int, **fields: Any) -> None:
        reply = encode({"op": "reply", "id": number, "ok": True, "result": {}, **fields})
        socket.send_fds(self.guest, [reply], fds)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    made.connection.close()
    made.handovers.fail_all(SandboxGone("over"))
    made.guest.close()


@pytest.fixture
def program() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


async def test_the_socket_that_was_asked_for_is_taken(ends, program):
    """A connection to the right port of the right network namespace is accepted, and does not block."""
    number, future = ends.ask(connects_to(port_of(program), HERE))
    with socket.create_connection(program.getsockname()) as theirs:
        await ends.answer(number, theirs.fileno())
    with await future as taken, program.accept()[0]:
        assert taken.getpeername() == program.getsockname()
        assert not taken.getblocking()


async def test_a_listener_that_was_asked_for_is_taken(ends, program):
    """The same for a listening socket."""
    number, future = ends.ask(listens_on("127.0.0.1", port_of(program), HERE))
    await ends.answer(number, program.fileno())
    with await future as taken:
        assert taken.getsockname() == program.getsockname()


def elsewhere(program: socket.socket) -> list[socket.socket]:
    """Return a connection to another port, and the listener there."""
    other = socket.create_server(("127.0.0.1", 0))
    return [socket.create_connection(other.getsockname()), other]


FALSE: dict[str, Any] = {
    "a connection to another port": elsewhere,
    "a listening socket": lambda program: [program.dup()],
    "a Unix socket": lambda program: list(socket.socketpair()),
    "a datagram socket": lambda program: [socket.socket(type=socket.SOCK_DGRAM)],
}


@pytest.mark.parametrize("what", FALSE)
async def test_another_socket_is_a_violation(ends, program, what):
    """A guest that hands over something else has broken the protocol, and what it handed over is closed."""
    number, future = ends.ask(connects_to(port_of(program), HERE))
    false = FALSE[what](program)
    await ends.answer(number, false[0].fileno())
    for each in false:
        each.close()
    with pytest.raises(ProtocolViolation):
        await future
    assert [type(end) for end in ends.ended] == [ProtocolViolation]


@pytest.mark.parametrize("false", ["connected", "bound", "other port", "other address"])
async def test_another_listener_is_a_violation(ends, program, false):
    """A listener has to listen, where it was asked to."""
    wanted = {"other port": ("127.0.0.1", 1), "other address": ("0.0.0.0", port_of(program))}
    host, port = wanted.get(false, program.getsockname())
    number, future = ends.ask(listens_on(host, port, HERE))
    with socket.socket() as bound, socket.create_connection(program.getsockname()) as connected:
        given = {"connected": connected, "bound": bound}.get(false, program)
        await ends.answer(number, given.fileno())
    with pytest.raises(ProtocolViolation):
        await future


async def test_a_socket_of_another_network_is_a_violation(ends, program):
    """Where the kernel tells it, the network namespace is looked at: a socket of the host's own is not accepted."""
    number, future = ends.ask(connects_to(port_of(program), (HERE[0], HERE[1] + 1)))
    with socket.create_connection(program.getsockname()) as theirs:
        await ends.answer(number, theirs.fileno())
    with pytest.raises(ProtocolViolation):
        await future


async def test_what_is_no_socket_is_a_violation(ends, program):
    """A file in place of a socket, and nothing at all in place of one."""
    number, future = ends.ask(connects_to(port_of(program), HERE))
    with open(os.devnull, "rb") as file:
        await ends.answer(number, file.fileno())
    with pytest.raises(ProtocolViolation):
        await future


async def test_no_descriptor_is_a_violation(ends, program):
    """A success without a socket is none."""
    number, future = ends.ask(connects_to(port_of(program), HERE))
    await ends.answer(number)
    with pytest.raises(ProtocolViolation):
        await future


@pytest.mark.parametrize("together", [True, False])
async def test_a_surplus_is_a_violation(ends, program, together):
    """Descriptors that nobody asked for end the connection, however they come; none stays open."""
    number, _future = ends.ask(connects_to(port_of(program), HERE))
    before = len(os.listdir("/proc/self/fd"))
    fd = program.fileno()
    if together:
        await ends.answer(number, fd, fd)
    else:
        for _ in range(2):
            socket.send_fds(ends.guest, [b"\0"], [fd])
            for _ in range(3):
                await asyncio.sleep(0)
    assert [type(end) for end in ends.ended] == [ProtocolViolation]
    assert len(os.listdir("/proc/self/fd")) == before - 1  # the connection itself


async def test_nothing_is_taken_where_nothing_is_asked(ends, program):
    """Without a request a descriptor is dropped by the kernel; the frame that it came with counts."""
    before = len(os.listdir("/proc/self/fd"))
    message = encode({"op": "process.output", "process": 1, "stream": "stdout"})
    socket.send_fds(ends.guest, [message], [program.fileno()])
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(ends.frames) == 1
    assert len(os.listdir("/proc/self/fd")) == before
    assert ends.ended == []


async def test_a_refusal_is_told(ends, program):
    """Whoever asked gets the error that init answered with."""
    number, future = ends.ask(connects_to(port_of(program), HERE))
    await ends.answer(number, ok=False, code="port_closed", message="nobody")
    with pytest.raises(PortClosed, match="nobody"):
        await future
    assert ends.ended == []


async def test_a_refusal_that_hands_over_is_a_violation(ends, program):
    """A guest cannot refuse and hand over at once."""
    number, future = ends.ask(connects_to(port_of(program), HERE))
    await ends.answer(number, program.fileno(), ok=False, code="port_closed", message="")
    with pytest.raises(ProtocolViolation):
        await future


async def test_a_connection_that_was_reset_meanwhile_is_a_closed_port(ends, program):
    """A program that resets at once is nobody's violation."""
    number, future = ends.ask(connects_to(port_of(program), HERE))
    with socket.create_connection(program.getsockname()) as theirs:
        there, _ = program.accept()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        there.close()
        await asyncio.sleep(0.05)
        await ends.answer(number, theirs.fileno())
    with pytest.raises(PortClosed):
        await future
    assert ends.ended == []


async def test_a_socket_that_nobody_waits_for_any_more_is_closed(ends, program):
    """Whoever gives up leaves no descriptor behind, and the next request is answered rightly."""
    number, future = ends.ask(connects_to(port_of(program), HERE))
    second, wanted = ends.ask(connects_to(port_of(program), HERE))
    future.cancel()
    before = len(os.listdir("/proc/self/fd"))
    for each in (number, second):
        with socket.create_connection(program.getsockname()) as theirs:
            await ends.answer(each, theirs.fileno())
    (await wanted).close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not ends.handovers.waiting


async def test_requests_are_bounded(ends):
    """A guest that never answers is not asked without end."""
    for _ in range(MOST_WAITING):
        ends.ask(lambda _: True)
    with pytest.raises(LimitExceeded):
        ends.ask(lambda _: True)


async def test_the_end_fails_what_waits(ends):
    """With the sandbox every request ends."""
    _number, future = ends.ask(lambda _: True)
    ends.handovers.fail_all(SandboxGone("gone"))
    with pytest.raises(SandboxGone):
        await future


async def test_replies_of_others_are_left_alone(ends):
    """The engine's own requests count up, these count down: no number means two."""
    number, _future = ends.ask(lambda _: True)
    assert number < -1
    assert not ends.handovers.is_reply({"op": "reply", "id": 1, "ok": True})
    assert not ends.handovers.is_reply({"op": "chunk", "id": number})


def test_a_sandbox_that_has_ended_has_no_network():
    """Whoever asks for the network of a process that is gone learns that it is gone."""
    with pytest.raises(SandboxGone):
        namespace_of(2**22 + 1)


def test_the_error_is_known_to_the_wire():
    """A closed port is an error that a guest may answer with, and a kind of "not found"."""
    assert issubclass(PortClosed, NotFound)
    assert issubclass(PortClosed, CellforkError)
