"""WebSockets to programs in a sandbox: messages pass in both directions, ends are told, and bounds hold."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cellfork.dialects import websockets as module
from tests.dialects.conftest import PORT, Place, answering, length

Handler = Callable[[ServerConnection], Awaitable[None]]


async def run(place: Place, handler: Handler, **options: object) -> None:
    """Let a WebSocket server be the program on port 8000."""
    serving = await serve(handler, "127.0.0.1", 0, **options)  # type: ignore[arg-type]
    place.stack.callback(serving.close)
    place.guest.ports[PORT] = next(iter(serving.sockets)).getsockname()


def client(place: Place, path: str = "/", **options: object) -> connect:
    headers = {name.replace("_", "-"): value for name, value in place.address.items()}
    url = f"ws://127.0.0.1:{place.server.port}{path}"
    return connect(url, additional_headers=headers, **options)  # type: ignore[arg-type]


async def echo(program: ServerConnection) -> None:
    async for message in program:
        await program.send(message)


async def test_messages_pass_both_ways(place: Place):
    """Text stays text and bytes stay bytes, whatever their size, in order."""
    await run(place, echo)
    async with client(place) as socket:
        messages: list[str | bytes] = ["hello", b"\x00\xff", "", "ä" * 100_000, b"x" * 1_000_000]
        for message in messages:
            await socket.send(message)
            assert await asyncio.wait_for(socket.recv(), 5) == message


async def test_fragments_and_pings_pass(place: Place):
    """A message in pieces arrives whole; each side's pings are answered."""
    await run(place, echo)
    async with client(place) as socket:
        await socket.send(["one ", "two ", "three"])
        assert await asyncio.wait_for(socket.recv(), 5) == "one two three"
        await asyncio.wait_for(await socket.ping(), 5)

    async def pings(program: ServerConnection) -> None:
        await asyncio.wait_for(await program.ping(), 5)
        await program.send(["a", "b"])

    await run(place, pings)
    async with client(place) as socket:
        assert await asyncio.wait_for(socket.recv(), 5) == "ab"


async def test_the_handshake_passes(place: Place):
    """Path, query, fields and subprotocols reach the program; its choice and its fields reach the client."""
    seen: list[object] = []

    async def handler(program: ServerConnection) -> None:
        assert program.request is not None
        seen.extend(
            [program.request.path, program.request.headers["x-custom"], program.request.headers["host"]]
        )
        seen.append("e2b-sandbox-id" in program.request.headers)
        await program.wait_closed()

    def cookie(_connection, _request, response) -> None:
        response.headers["Set-Cookie"] = "a=b"

    await run(place, handler, subprotocols=["second"], process_response=cookie)
    headers = {name.replace("_", "-"): value for name, value in place.address.items()} | {"x-custom": "v"}
    url = f"ws://127.0.0.1:{place.server.port}/a%20b?c=d"
    async with connect(url, additional_headers=headers, subprotocols=["first", "second"]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "second"
        assert socket.response is not None
        assert socket.response.headers["set-cookie"] == "a=b"
    await asyncio.sleep(0.05)
    assert seen == ["/a%20b?c=d", "v", f"127.0.0.1:{place.server.port}", False]


async def test_the_programs_farewell_is_told(place: Place):
    """Code and reason with which a program ends reach the client."""

    async def handler(program: ServerConnection) -> None:
        await program.close(4001, "enough")

    await run(place, handler)
    async with client(place) as socket:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 5)
        assert (socket.close_code, socket.close_reason) == (4001, "enough")


async def test_the_clients_farewell_is_told(place: Place):
    """Code and reason with which a client ends reach the program; one that just vanishes is told as well."""
    ends: asyncio.Queue[tuple[int | None, str | None]] = asyncio.Queue()

    async def handler(program: ServerConnection) -> None:
        await program.wait_closed()
        await ends.put((program.close_code, program.close_reason))

    await run(place, handler)
    async with client(place) as socket:
        await socket.close(4002, "bye")
    assert await asyncio.wait_for(ends.get(), 5) == (4002, "bye")
    async with client(place) as socket:
        socket.transport.abort()
    code, _reason = await asyncio.wait_for(ends.get(), 10)
    assert code in {1001, 1005, 1006}


async def test_a_refusal_is_passed_on(place: Place):
    """A program that answers a handshake with something else is heard: status, fields, body."""
    await place.run(answering(length(b"members only", "X-Why: x", status="403 Forbidden")))
    with pytest.raises(InvalidStatus) as caught:
        await client(place).__aenter__()
    answer = caught.value.response
    assert (answer.status_code, answer.body) == (403, b"members only")
    assert answer.headers["x-why"] == "x"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: AAAA\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    ],
)
async def test_what_is_no_handshake_is_a_closed_port(place: Place, answer):
    """A program that does not speak WebSocket rightly is a closed port."""
    await place.run(answering(answer))
    with pytest.raises(InvalidStatus) as caught:
        await asyncio.wait_for(client(place).__aenter__(), 10)
    assert caught.value.response.status_code == 502


async def test_a_closed_port_refuses_the_handshake(place: Place):
    """Without a program the handshake is answered with 502 and the reason."""
    with pytest.raises(InvalidStatus) as caught:
        await client(place).__aenter__()
    assert caught.value.response.status_code == 502
    assert b"port is not open" in caught.value.response.body


def handshaken(rest: bytes) -> Handler:
    """Return a program that shakes hands rightly and then writes ``rest`` past its library."""

    async def handler(program: ServerConnection) -> None:
        program.transport.write(rest)
        await asyncio.sleep(0.2)
        program.transport.abort()

    return handler


HOSTILE = {
    "a masked frame": b"\x81\x85\x00\x00\x00\x00hello",
    "a reserved bit": b"\xf1\x01x",
    "an unknown opcode": b"\x83\x01x",
    "a huge frame": b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",
    "a continuation of nothing": b"\x80\x01x",
    "text that is none": b"\x81\x02\xff\xff",
    "a long ping": b"\x89\x7e\x01\x00" + b"x" * 256,
    "an odd farewell": b"\x88\x01x",
    "a break": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_broken_frames_end_the_connection(place: Place, what):
    """Whatever a program sends that is no message ends the connection with a code, and nothing of it is passed on."""
    await run(place, handshaken(HOSTILE[what]))
    async with client(place) as socket:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 10)
        assert socket.close_code == module.BAD_GATEWAY
    assert "failed" not in [event["event"] for event in place.server.log.events]


async def test_messages_are_bounded(place: Place, monkeypatch):
    """A message, also one in many pieces, is no larger than the bound."""
    monkeypatch.setattr(module, "MAX_MESSAGE", 1000)

    async def handler(program: ServerConnection) -> None:
        await program.send(["x" * 600, "x" * 600])
        await program.wait_closed()

    await run(place, handler)
    async with client(place) as socket:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 5)


async def test_a_slow_client_slows_the_program(place: Place):
    """Messages that nobody reads do not pile up in the server."""
    sent, piece = 0, os.urandom(100_000)  # nothing that could be made smaller on its way

    async def handler(program: ServerConnection) -> None:
        nonlocal sent
        for _ in range(1000):
            await program.send(piece)
            sent += 1

    await run(place, handler)
    async with client(place, max_queue=1) as socket:
        await asyncio.sleep(0.5)
        assert sent < 500
        socket.transport.abort()


async def test_planes_serve_no_websocket(place: Place):
    """The ports that the server itself answers refuse a WebSocket, and so does the control plane."""
    url = f"ws://127.0.0.1:{place.server.port}/"
    for port in (49983, 49999, None):
        address = {} if port is None else place.to(port)
        headers = {name.replace("_", "-"): value for name, value in address.items()}
        with pytest.raises(InvalidStatus) as caught:
            await connect(url, additional_headers=headers).__aenter__()
        assert caught.value.response.status_code in {403, 404}
