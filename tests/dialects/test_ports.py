"""The reverse proxy to ports of a sandbox: what passes, what does not, and programs that mean harm."""

import asyncio
from typing import Any

import pytest

from cellfork.dialects import ports
from cellfork.dialects.ports import MAX_HEAD, PortProxy
from tests.dialects.conftest import Place, answering, length

CLOSED = "The sandbox is running but port is not open"


async def heard(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Return the request line and the fields of a request, their names in lower case."""
    line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    pairs = (field.split(": ", 1) for field in lines if field)
    return line, {name.lower(): value for name, value in pairs}


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


# ------------------------------------------------------------------------------------------ what passes


async def test_a_request_passes_as_it_was_sent(place: Place):
    """Method, path, query and fields arrive unchanged; what belongs to the connection, to the route or to the
    server's knowledge does not come from the client.
    """
    seen: dict[str, Any] = {}

    async def program(reader, writer):
        seen["line"], seen["fields"] = await heard(reader)
        writer.write(
            length(b"yes", "X-Own: 1", "Keep-Alive: timeout=5", "Connection: keep-alive, x-hop", "X-Hop: 1")
        )

    await place.run(program)
    reply = await place.ask(
        "DELETE",
        "/a%2Fb/../c?x=%20&x=1&y",
        x_custom="v",
        connection="keep-alive, x-secret",
        x_secret="s",
        te="trailers",
        x_forwarded_for="6.6.6.6",
        x_forwarded_host="evil",
        forwarded="for=6.6.6.6",
        e2b_traffic_access_token="t",
    )
    assert (reply.status, reply.body) == (200, b"yes")
    assert seen["line"] == "DELETE /a%2Fb/../c?x=%20&x=1&y HTTP/1.1"
    fields = seen["fields"]
    assert fields["host"] == "localhost"
    assert fields["x-custom"] == "v"
    assert fields["connection"] == "close"
    assert fields["x-forwarded-for"] == "127.0.0.1"
    assert (fields["x-forwarded-host"], fields["x-forwarded-proto"]) == ("localhost", "http")
    assert not {
        "x-secret",
        "te",
        "forwarded",
        "e2b-sandbox-id",
        "e2b-sandbox-port",
        "e2b-traffic-access-token",
    } & set(fields)
    assert reply.headers["x-own"] == "1"
    assert "keep-alive" not in reply.headers
    assert "x-hop" not in reply.headers


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "OPTIONS", "PROPFIND"])
async def test_every_method_passes(place: Place, method):
    """The program decides what a method means; an answer to HEAD has a length and no body."""

    async def program(reader, writer):
        line, _fields = await heard(reader)
        body = line.split()[0].encode()
        answer = length(body)
        writer.write(answer[: -len(body)] if method == "HEAD" else answer)

    await place.run(program)
    reply = await place.ask(method)
    assert reply.status == 200
    assert reply.headers["content-length"] == str(len(method))
    assert reply.body == (b"" if method == "HEAD" else method.encode())


async def test_a_masked_host_is_told(place: Place):
    """Where the creator asked for it, programs are told that host, with the port in it."""
    place.sandbox = await place.new_sandbox(mask_host="localhost:${PORT}")

    async def program(reader, writer):
        _line, fields = await heard(reader)
        writer.write(length(fields["host"].encode()))

    await place.run(program)
    assert (await place.ask()).body == b"localhost:8000"


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_passes_in_either_form(place: Place, chunked):
    """A body with a length keeps it, one in chunks stays in chunks; both are streamed."""

    async def program(reader, writer):
        _line, fields = await heard(reader)
        if chunked:
            assert "content-length" not in fields
            body = await read_chunks(reader)
        else:
            body = await reader.readexactly(int(fields["content-length"]))
        writer.write(length(str(len(body)).encode()))

    await place.run(program)
    if not chunked:
        assert (await place.ask("POST", "/", b"x" * 3_000_000)).body == b"3000000"
        return
    wire = await place.connect()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in place.address.items())
    await wire.send(
        f"POST / HTTP/1.1\r\nhost: localhost\r\n{fields}transfer-encoding: chunked\r\n\r\n".encode()
    )
    for _ in range(30):
        await wire.send(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
    await wire.send(b"0\r\n\r\n")
    assert (await wire.reply()).body == b"3000000"


async def test_a_piece_passes_at_once(place: Place):
    """What a program writes reaches the client before the answer is complete, and the other way round."""
    told = asyncio.Event()

    async def program(reader, writer):
        await heard(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await writer.drain()
        await told.wait()
        writer.write(b"3\r\ntwo\r\n0\r\nx-trailer: dropped\r\n\r\n")

    await place.run(program)
    wire = await place.connect()
    asking = asyncio.create_task(wire.ask("GET", "/", **place.address))
    reply = await asking
    assert reply.headers["transfer-encoding"] == "chunked"
    assert await asyncio.wait_for(wire.reader.readuntil(b"one\r\n"), 5)
    told.set()
    rest = await asyncio.wait_for(wire.reader.readuntil(b"0\r\n\r\n"), 5)
    assert b"two" in rest
    assert b"trailer" not in rest


async def test_a_slow_reader_slows_the_program(place: Place):
    """An answer that nobody reads does not pile up in the server."""
    written = 0

    async def program(reader, writer):
        nonlocal written
        await heard(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(2000):
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536

    await place.run(program)
    wire = await place.connect()
    await wire.ask("GET", "/", **place.address)
    await asyncio.sleep(0.5)
    assert written < 40_000_000
    wire.close()


async def test_a_client_that_expects_to_be_told_is_told_by_the_program(place: Place):
    """``100 Continue`` comes when the program says it, and not at all where it answers without the body."""

    async def program(reader, writer):
        line, fields = await heard(reader)
        assert fields["expect"] == "100-continue"
        if "refused" in line:
            writer.write(length(b"no", status="413 Content Too Large"))
            return
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(length(await reader.readexactly(4)))

    await place.run(program)
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in place.address.items())
    head = f"HTTP/1.1\r\nhost: localhost\r\n{fields}expect: 100-continue\r\ncontent-length: 4\r\n\r\n"
    wire = await place.connect()
    await wire.send(f"POST /taken {head}".encode())
    assert await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
    await wire.send(b"body")
    assert (await wire.reply()).body == b"body"
    wire = await place.connect()
    await wire.send(f"POST /refused {head}".encode())
    reply = await wire.reply()
    assert (reply.status, reply.body) == (413, b"no")


async def test_an_early_answer_ends_the_upload(place: Place):
    """A program may answer and close before it has read the body; the client gets the answer."""

    async def program(reader, writer):
        await heard(reader)
        writer.write(length(b"enough", status="403 Forbidden"))

    await place.run(program)
    wire = await place.connect()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in place.address.items())
    await wire.send(f"POST / HTTP/1.1\r\nhost: localhost\r\n{fields}content-length: 1000000\r\n\r\n".encode())
    await wire.send(b"x" * 1000)
    reply = await wire.reply()
    assert (reply.status, reply.body) == (403, b"enough")


async def test_a_client_that_leaves_closes_the_connection(place: Place):
    """A program learns at once that nobody waits for its answer any more."""
    left = asyncio.Event()

    async def program(reader, _writer):
        await heard(reader)
        assert await reader.read() == b""
        left.set()

    await place.run(program)
    wire = await place.connect()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in place.address.items())
    await wire.send(f"GET / HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n".encode())
    await asyncio.sleep(0.05)
    wire.close()
    await asyncio.wait_for(left.wait(), 5)


async def test_http_1_0_passes(place: Place):
    """An answer that ends with its connection is passed on in chunks."""
    await place.run(answering(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nold but gold"))
    wire = await place.connect()
    reply = await wire.ask("GET", "/", **place.address)
    assert reply.headers["transfer-encoding"] == "chunked"
    assert b"old but gold" in await asyncio.wait_for(wire.reader.readuntil(b"0\r\n\r\n"), 5)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_an_answer_without_a_body(place: Place, status):
    """Statuses that have no body are passed on without one."""
    await place.run(answering(f"HTTP/1.1 {status}\r\netag: x\r\n\r\n".encode()))
    reply = await place.ask()
    assert reply.status == int(status[:3])
    assert reply.headers["etag"] == "x"


# ---------------------------------------------------------------------------------- programs that mean harm

HOSTILE = {
    "nothing": b"",
    "noise": b"\x00\x01\x02 not HTTP at all\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "endless status line": b"HTTP/1.1 200 " + b"x" * (2 * MAX_HEAD),
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * MAX_HEAD,
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "no status": b"HTTP/1.1\r\n\r\n",
    "status 999": b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
    "upgrade that nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "interim answers without end": b"HTTP/1.1 102 Processing\r\n\r\n" * 50,
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "huge length": b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 400 + b"\r\n\r\n",
    "unknown coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked, zip\r\n\r\n",
    "a field with a control character": b"HTTP/1.1 200 OK\r\nx: a\x01b\r\ncontent-length: 0\r\n\r\n",
    "a field with a bare return": b"HTTP/1.1 200 OK\r\nx: a\rset-cookie: b\r\ncontent-length: 0\r\n\r\n",
    "a field without a name": b"HTTP/1.1 200 OK\r\n: b\r\ncontent-length: 0\r\n\r\n",
    "a name with a space": b"HTTP/1.1 200 OK\r\na b: c\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_is_no_answer_is_a_closed_port(place: Place, what):
    """Whatever a program says that is not HTTP, the client gets one answer in the dialect's own words, and no more."""
    await place.run(answering(HOSTILE[what]))
    wire = await place.connect()
    reply = await wire.ask("GET", "/", **place.address)
    assert (reply.status, reply.json["message"]) == (502, CLOSED)
    again = await wire.ask("GET", "/health")  # the connection holds nothing of the program's
    assert again.status == 200
    assert "failed" not in [event["event"] for event in place.server.log.events]


CUT = {
    "shorter than its length": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
    "chunks without an end": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nshort\r\n",
    "a chunk of no size": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n",
    "a huge chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nshort\r\n"
    + b"f" * 100
    + b"\r\n",
}


@pytest.mark.parametrize("what", CUT)
async def test_an_incomplete_answer_is_seen_to_be_incomplete(place: Place, what):
    """Where a program breaks off, so does the server: the client cannot take the piece for the whole."""
    await place.run(answering(CUT[what]))
    wire = await place.connect()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in place.address.items())
    await wire.send(f"GET / HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n".encode())
    everything = await wire.rest()
    assert b"short" in everything
    assert not everything.endswith(b"0\r\n\r\n")


async def test_two_answers_are_one(place: Place):
    """What follows an answer is not another one: a program cannot answer the client's next request."""
    await place.run(answering(length(b"first") + length(b"forged", status="200 OK")))
    wire = await place.connect()
    assert (await wire.ask("GET", "/", **place.address)).body == b"first"
    assert b"forged" not in (await wire.ask("GET", "/health")).body


async def test_chunks_tell_the_length(place: Place):
    """Where an answer tells two lengths, the chunks count, and the other one is not passed on."""
    answer = (
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n"
    )
    await place.run(answering(answer))
    wire = await place.connect()
    reply = await wire.ask("GET", "/", **place.address)
    assert "content-length" not in reply.headers
    assert b"whole" in await asyncio.wait_for(wire.reader.readuntil(b"0\r\n\r\n"), 5)


async def test_a_program_that_says_nothing_is_given_up(place: Place, monkeypatch):
    """Nobody waits for ever: where nothing moves the port counts as closed."""
    monkeypatch.setattr(ports, "IDLE_SECONDS", 0.3)

    async def program(reader, _writer):
        await reader.read()

    await place.run(program)
    reply = await asyncio.wait_for(place.ask(), 5)
    assert (reply.status, reply.json["message"]) == (502, CLOSED)


async def test_connections_are_bounded(place: Place, monkeypatch):
    """One sandbox's ports hold a bounded number of connections; one more is refused, and others are free."""
    dialect = place.server.app.parts.dialects[0]  # type: ignore[union-attr]
    monkeypatch.setattr(dialect, "_proxy", PortProxy(most_connections=2))
    release = asyncio.Event()

    async def program(reader, writer):
        await heard(reader)
        await release.wait()
        writer.write(length(b"late"))

    await place.run(program)
    waiting = [asyncio.create_task(place.ask()) for _ in range(2)]
    await asyncio.sleep(0.1)
    reply = await place.ask()
    assert (reply.status, reply.json["connectionLimit"]) == (429, 2)
    release.set()
    assert [reply.body for reply in await asyncio.gather(*waiting)] == [b"late", b"late"]
    assert (await place.ask()).status == 200


async def test_the_end_of_the_sandbox_ends_the_answer(place: Place):
    """Where the program ends in the middle of an answer, because its sandbox was killed, the answer is cut, not completed."""

    async def program(reader, writer):
        await heard(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()

    await place.run(program)
    wire = await place.connect()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in place.address.items())
    await wire.send(f"GET / HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n".encode())
    everything = await wire.rest()
    assert everything.endswith(b"one\r\n")


async def test_an_answer_without_a_length_is_cut_with_its_sandbox(place: Place):
    """An answer that ends with its connection is not taken for a whole one where the connection ended with the sandbox."""

    async def program(reader, writer):
        await heard(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\none")
        await writer.drain()
        await asyncio.sleep(0.1)
        await place.sandbox.kill()

    await place.run(program)
    wire = await place.connect()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in place.address.items())
    await wire.send(f"GET / HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n".encode())
    everything = await wire.rest()
    assert everything.endswith(b"one\r\n")
