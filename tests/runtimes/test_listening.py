"""Accepting from a socket of which a hostile guest has a copy: the event loop never waits for it."""

import asyncio
import fcntl
import os
import socket
import threading
import time

import pytest

from cellfork.model.errors import ProtocolViolation
from cellfork.runtimes import listening as module
from cellfork.runtimes.listening import Listener


def listening() -> Listener:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return Listener(listener)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "accept"]


async def test_a_listener_accepts_and_closes():
    """Connections come one after the other; closing refuses the next, and wakes whoever waits."""
    listener = listening()
    address = listener._socket.getsockname()
    for _ in range(2):
        with socket.create_connection(address):
            accepted = await asyncio.wait_for(listener.accept(), 2)
            assert not accepted.getblocking()
            accepted.close()
    waiting = asyncio.create_task(listener.accept())
    await asyncio.sleep(0.01)
    listener.close()
    listener.close()
    with pytest.raises(ConnectionAbortedError):
        await waiting
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


class Trap:
    """A listening socket whose connection somebody else takes first: ``accept`` waits in the kernel."""

    def __init__(self) -> None:
        self._ready, self._wake = socket.socketpair()
        self._wake.send(b"x")
        self._shut = threading.Event()

    def fileno(self) -> int:
        return self._ready.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        self._shut.wait(20)
        raise OSError(22, "shut down")

    def shutdown(self, _how: int) -> None:
        self._shut.set()

    def close(self) -> None:
        self._ready.close()
        self._wake.close()


async def test_a_guest_that_makes_accept_wait_is_found_out(monkeypatch):
    """A thread waits in its place, for a moment; then the guest has broken the protocol, and the thread is let go."""
    monkeypatch.setattr(module, "ACCEPT_SECONDS", 0.1)
    trap = Trap()
    listener = Listener(trap)  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolation):
        await asyncio.wait_for(listener.accept(), 2)
    assert trap._shut.is_set()
    await asyncio.sleep(0.1)
    assert trap.fileno() == -1


async def test_a_copy_that_blocks_and_takes_the_connection(monkeypatch: pytest.MonkeyPatch):
    """With a real socket: its copy takes the flag away and the connection first, and the loop goes on meanwhile."""
    monkeypatch.setattr(module, "ACCEPT_SECONDS", 0.3)
    listener = listening()
    copy = listener._socket.dup()

    class Stolen:
        """The host's end, whose guest is faster: between the look and ``accept``."""

        def __getattr__(self, name: str) -> object:
            return getattr(copy, name)

        def accept(self) -> tuple[socket.socket, object]:
            flags = fcntl.fcntl(copy, fcntl.F_GETFL)
            fcntl.fcntl(copy, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
            copy.accept()[0].close()
            return copy.accept()

    original, listener._socket = listener._socket, Stolen()  # type: ignore[assignment]
    with original, socket.create_connection(copy.getsockname()):
        accepting = asyncio.create_task(listener.accept())
        started = time.monotonic()
        turns = 0
        while not accepting.done():
            await asyncio.sleep(0.005)
            turns += 1
        assert turns > 3  # a loop that waits itself takes none
        assert 0.2 < time.monotonic() - started < 5
        with pytest.raises(ProtocolViolation):
            await accepting
    await no_thread_is_left()
    assert copy.fileno() == -1


async def test_a_copy_that_listens_anew(monkeypatch: pytest.MonkeyPatch):
    """A thread that was woken and sees the socket listen again is woken again."""
    monkeypatch.setattr(module, "ACCEPT_SECONDS", 0.1)

    class Stubborn(Trap):
        shuts = 0

        def shutdown(self, how: int) -> None:
            self.shuts += 1
            if self.shuts > 2:
                super().shutdown(how)

    trap = Stubborn()
    listener = Listener(trap)  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolation):
        await asyncio.wait_for(listener.accept(), 2)
    await no_thread_is_left()
    assert trap.shuts == 3


async def test_an_error_is_no_end():
    """Where the host has no descriptor left, whoever accepts is told, and can ask again."""
    listener = listening()
    failing = OSError(24, "too many open files")

    class Failing:
        def __getattr__(self, name: str) -> object:
            return getattr(original, name)

        def accept(self) -> tuple[socket.socket, object]:
            raise failing

    original, listener._socket = listener._socket, Failing()  # type: ignore[assignment]
    with socket.create_connection(original.getsockname()):
        with pytest.raises(OSError, match="too many open files"):
            await listener.accept()
        listener._socket = original
        (await listener.accept()).close()
    listener.close()


async def test_giving_up_closes():
    """A task that is cancelled while it waits leaves nothing: no thread, no socket, no watch."""
    listener = listening()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(listener.accept(), 0.01)
    trap = Trap()
    waiting = Listener(trap)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting.accept(), 0.05)
    await no_thread_is_left()
    assert trap.fileno() == -1
    listener.close()


async def no_thread_is_left() -> None:
    deadline = time.monotonic() + 5
    while threads():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)  # what it handed back is dealt with
