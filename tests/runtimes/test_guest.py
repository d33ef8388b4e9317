"""A guest that ends while init is handing something over."""

import asyncio
import os
import socket

import pytest

from cellfork.model.errors import SandboxGone
from cellfork.model.network import NetworkPolicy
from cellfork.runtimes.egress.gate import Gate
from cellfork.runtimes.egress.proxy import Proxy
from cellfork.wire.frames import encode
from tests.runtimes.conftest import guest_without_processes


class Handed:
    """A pipe whose writing end only the guest has."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()

    async def is_closed(self) -> bool:
        """Tell whether nobody has the writing end any more; for the last time."""
        for _ in range(20):
            await asyncio.sleep(0)
        os.set_blocking(self._reading, False)
        try:
            return os.read(self._reading, 1) == b""
        except BlockingIOError:
            return False
        finally:
            os.close(self._reading)


class Ends:
    """A guest without processes, and init's end of its connection."""

    def __init__(self) -> None:
        self.guest, self.init = guest_without_processes()
        self.guest.info = {"pid": os.getpid()}

    def hand_over(self, message: bytes) -> "Handed":
        """Send a message with a descriptor, as init does."""
        handed = Handed()
        socket.send_fds(self.init, [message], [handed.writing])
        os.close(handed.writing)
        return handed

    async def asked(self, port: int) -> "tuple[int, asyncio.Task[socket.socket]]":
        """Ask for a listening socket; return the number of the request, and what waits for it."""
        asking = asyncio.create_task(self.guest.listen(port, "127.0.0.1"))
        while not self.guest._handovers.waiting:
            await asyncio.sleep(0)
        (number,) = self.guest._handovers._waiting
        return number, asking


@pytest.fixture
async def ends():
    made = Ends()
    yield made
    await made.guest.kill()
    made.init.close()


@pytest.fixture
def program():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


async def test_a_socket_that_comes_in_the_moment_of_the_end_is_closed(ends, program):
    """Nothing is received after a guest's end was told: a socket that nobody asks for would stay open, with its network."""
    number, asking = await ends.asked(program.getsockname()[1])
    # Its first step comes before what the next look at the sockets finds.
    killing = asyncio.create_task(ends.guest.kill())
    handed = ends.hand_over(encode({"op": "reply", "id": number, "ok": True, "result": {}}))
    await killing
    with pytest.raises(SandboxGone):
        await asking
    assert await handed.is_closed()


async def test_a_way_out_that_comes_in_the_moment_of_the_end_is_closed(ends):
    """The same for the listening socket that init hands over before its locks."""
    ends.guest.expect_listener(Gate(Proxy(), NetworkPolicy.of("public")))
    killing = asyncio.create_task(ends.guest.kill())
    handed = ends.hand_over(encode({"op": "listening"})[:4])
    await killing
    assert await handed.is_closed()


async def test_a_socket_that_comes_in_the_moment_of_leaving_is_closed(ends, program):
    """Who leaves a guest to itself takes nothing along, and whoever waited is told at once."""
    number, asking = await ends.asked(program.getsockname()[1])
    handed = ends.hand_over(encode({"op": "reply", "id": number, "ok": True, "result": {}})[:4])
    for _ in range(3):
        await asyncio.sleep(0)
    ends.guest.leave()
    with pytest.raises(SandboxGone):
        await asyncio.wait_for(asking, 5)
    assert await handed.is_closed()
