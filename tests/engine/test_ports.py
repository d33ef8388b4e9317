"""Ports as the engine gives them: streams that no guest can make block, and their end with the sandbox."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from cellfork.engine.ports import Stream, check_port
from cellfork.model.errors import Conflict, InvalidRequest, PortClosed, SandboxGone
from tests.engine.conftest import Stage


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The host's end of a connection, still blocking as a hostile guest can make it, and the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


async def test_a_stream_carries_bytes_both_ways(pair):
    """What is sent arrives, in order, and the end is nothing."""
    ours, theirs = pair
    stream = Stream(ours)
    await stream.send(b"ping")
    assert theirs.recv(10) == b"ping"
    theirs.sendall(b"pong")
    assert await stream.receive() == b"pong"
    theirs.close()
    assert await stream.receive() == b""
    stream.close()


async def test_a_socket_that_blocks_does_not_hold_the_host_up(pair):
    """A guest that takes the non-blocking flag away stops nobody: reading and writing wait in the loop, not in the kernel."""
    ours, theirs = pair
    stream = Stream(ours)
    assert ours.getblocking()
    reading = asyncio.create_task(stream.receive())
    sending = asyncio.create_task(stream.send(b"x" * 64_000_000))
    await asyncio.wait_for(asyncio.sleep(0.1), 2)
    assert not reading.done()
    assert not sending.done()
    theirs.sendall(b"y")
    assert await asyncio.wait_for(reading, 2) == b"y"
    stream.close()
    with pytest.raises(ConnectionAbortedError):
        await sending


async def test_sending_waits_for_the_reader(pair):
    """A slow reader slows the sender; nothing piles up here, and everything arrives."""
    ours, theirs = pair
    stream = Stream(ours)
    sending = asyncio.create_task(stream.send(b"z" * 8_000_000))
    taken = 0
    while taken < 8_000_000:
        taken += len(await asyncio.to_thread(theirs.recv, 1 << 20))
    await asyncio.wait_for(sending, 5)
    stream.close()


async def test_closing_wakes_who_waits(pair):
    """Closing a stream ends a read that would wait for ever; closing again does nothing."""
    ours, _theirs = pair
    stream = Stream(ours)
    reading = asyncio.create_task(stream.receive())
    await asyncio.sleep(0.01)
    stream.close()
    stream.close()
    with pytest.raises(ConnectionAbortedError):
        await reading
    with pytest.raises(ConnectionAbortedError):
        await stream.send(b"x")


async def test_a_cancelled_read_leaves_nothing_watched(pair):
    """After a read was given up, the next one gets what comes."""
    ours, theirs = pair
    stream = Stream(ours)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.receive(), 0.01)
    theirs.sendall(b"later")
    assert await asyncio.wait_for(stream.receive(), 2) == b"later"
    stream.close()


@pytest.mark.parametrize("port", [0, -1, 65536, True, "80", None])
def test_what_is_no_port(port):
    """A port is a whole number from 1 to 65535."""
    with pytest.raises(InvalidRequest):
        check_port(port)


async def test_a_sandbox_connects_to_its_programs(stage: Stage):
    """``connect`` reaches a program, and says so where there is none."""
    with socket.create_server(("127.0.0.1", 0)) as program:
        stage.guest.ports[8000] = program.getsockname()
        stream = await stage.sandbox.connect(8000)
        with program.accept()[0] as theirs:
            await stream.send(b"hi")
            assert theirs.recv(10) == b"hi"
        stream.close()
    with pytest.raises(PortClosed):
        await stage.sandbox.connect(8001)


async def test_a_sandbox_lets_the_host_listen(stage: Stage):
    """``listen`` gives a listener, but not where a program has the port."""
    listener = await stage.sandbox.listen(49999)
    with socket.create_connection(stage.guest.listening[49999]):
        (await listener.accept()).close()
    listener.close()
    stage.guest.ports[8000] = ("127.0.0.1", 1)
    with pytest.raises(Conflict):
        await stage.sandbox.listen(8000)


async def test_after_the_end_there_are_no_ports(stage: Stage):
    """A sandbox that has ended says so; whoever wanted to know of the end was told once."""
    told: list[str] = []
    stage.sandbox.on_end(lambda: told.append("ended"))
    await stage.sandbox.kill()
    stage.sandbox.on_end(lambda: told.append("too late"))
    assert told == ["ended", "too late"]
    with pytest.raises(SandboxGone):
        await stage.sandbox.connect(8000)
    with pytest.raises(SandboxGone):
        await stage.sandbox.listen(8000)
