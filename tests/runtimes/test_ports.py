"""Ports of real sandboxes: descriptors come from init, bytes do not pass it, and nothing is left behind."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import Conflict, InvalidRequest, PortClosed, Unsupported
from cellfork.model.specs import ExecuteRequest, SandboxSpec
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.runtimes.none import NoneRuntime
from tests.runtimes.conftest import SPEC

SERVER = """
import socket, threading
def serve(family, address):
    listener = socket.create_server(address, family=family)
    def run():
        while True:
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)
    threading.Thread(target=run, daemon=True).start()
serve(socket.AF_INET, ('127.0.0.1', 8001))
serve(socket.AF_INET6, ('::1', 8002))
"""


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine({"namespaces": NamespacesRuntime(pool=0), "none": NoneRuntime()})
    yield made
    await made.aclose()


@pytest.fixture
async def sandbox(engine: Engine) -> Sandbox:
    return await engine.create(SPEC)


async def run(sandbox: Sandbox, code: str) -> str:
    execution = await sandbox.run(None, ExecuteRequest(code))
    assert execution.error is None, execution.error
    return "".join(execution.logs.stdout)


async def test_programs_inside_are_reached(sandbox: Sandbox):
    """A sandbox without any network has a loopback of its own, and the host reaches what listens there, on either address."""
    await run(sandbox, SERVER)
    for port in (8001, 8002):
        stream = await sandbox.connect(port)
        await stream.send(b"hello")
        assert await stream.receive() == b"hello"
        stream.close()
    with pytest.raises(PortClosed):
        await sandbox.connect(8003)


async def test_many_at_once(sandbox: Sandbox):
    """A hundred connections are made side by side, and each leads to the program."""
    await run(sandbox, "import socket; listener = socket.create_server(('127.0.0.1', 8001), backlog=200)")
    streams = await asyncio.gather(*(sandbox.connect(8001) for _ in range(100)))
    assert len({stream._socket.fileno() for stream in streams}) == 100
    for stream in streams:
        stream.close()


async def test_programs_inside_reach_the_host_where_it_listens(sandbox: Sandbox):
    """A listener that the host asked for is found inside under every name of the loopback, and again after it was closed."""
    for _ in range(2):
        listener = await sandbox.listen(49999)

        async def answer(listener=listener) -> None:
            for _ in range(2):
                with await listener.accept() as connection:
                    await asyncio.get_running_loop().sock_sendall(connection, b"host")

        answering = asyncio.create_task(answer())
        names = "[socket.create_connection((name, 49999)).recv(9) for name in ('0.0.0.0', 'localhost')]"
        assert await run(sandbox, f"import socket; print({names})") == "[b'host', b'host']\n"
        await answering
        with pytest.raises(Conflict):
            await sandbox.listen(49999)
        listener.close()
    assert "refused" in await run(
        sandbox, "try: socket.create_connection(('127.0.0.1', 49999))\nexcept OSError as error: print(error)"
    )


async def test_a_program_keeps_its_port(sandbox: Sandbox):
    """Code that has a port first keeps it; low ports are nobody's."""
    await run(sandbox, SERVER)
    with pytest.raises(Conflict):
        await sandbox.listen(8001)
    with pytest.raises(InvalidRequest):
        await sandbox.listen(80)


async def test_a_listener_is_the_sandboxes_own_affair(engine: Engine, sandbox: Sandbox):
    """What listens in one sandbox is found neither on this machine nor in another sandbox."""
    listener = await sandbox.listen(49999)
    other = await engine.create(SPEC)
    code = "import socket\ntry: socket.create_connection(('127.0.0.1', 49999))\nexcept OSError as error: print(error)"
    assert "refused" in await run(other, code)
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()]
    assert not any(address.endswith(f":{49999:04X}") for address in listening)
    listener.close()


async def test_the_end_of_a_sandbox_ends_its_connections(sandbox: Sandbox):
    """A stream to a program of a sandbox that is killed comes to its end at once."""
    await run(sandbox, SERVER)
    stream = await sandbox.connect(8001)
    reading = asyncio.create_task(stream.receive())
    await asyncio.sleep(0.01)
    await sandbox.kill()
    done, _ = await asyncio.wait({reading}, timeout=5)
    assert done
    assert isinstance(reading.exception(), ConnectionError) or reading.result() == b""
    stream.close()


async def test_without_isolation_there_are_no_ports(engine: Engine):
    """Where a sandbox shares this machine's network, its ports are not reached through the engine."""
    sandbox = await engine.create(SandboxSpec(template=SPEC.template, isolation="none"))
    for asked in (sandbox.connect(8001), sandbox.listen(8001)):
        with pytest.raises(Unsupported):
            await asked


async def test_init_has_nothing_open_afterwards(sandbox: Sandbox):
    """After connections and listeners were made, init holds the descriptors that it held before."""
    await run(sandbox, SERVER)
    pid = sandbox.guest.info["pid"]

    def held() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    before = held()
    streams = [await sandbox.connect(8001) for _ in range(5)]
    listener = await sandbox.listen(49999)
    try:
        async with asyncio.timeout(5):  # what init reads in a moment of its own is closed in the same moment
            while held() > before:
                await asyncio.sleep(0.01)
    finally:
        for stream in streams:
            stream.close()
        listener.close()
