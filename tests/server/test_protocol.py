"""HTTP on the wire: what a client may send, how long it may take, what ends an answer."""

import asyncio
import time

import pytest

from cellfork.dialects.asgi import read_body, send_body
from cellfork.server.protocol import HEADER_BYTES, HEADERS
from tests.server.conftest import Live, Speak, Wire

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"

MALFORMED = {
    "two lengths": b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "a length and chunks": b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks not last": b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a folded header": GET + b"x: 1\r\n 2\r\n\r\n",
    "a bare carriage return": GET + b"x: 1\r2\r\n\r\n",
    "NUL in a header": GET + b"x: \0\r\n\r\n",
    "a space before the colon": GET + b"x : 1\r\n\r\n",
    "no name": GET + b": 1\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    "a huge length": b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + b"9" * 40 + b"\r\n\r\n",
    "a bad chunk size": b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "no version": b"GET /health\r\n\r\n",
    "a strange version": b"GET /health HTTP/9.9\r\n\r\n",
    "a strange method": b"BREW / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "no ASCII in the target": b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_no_http_is_refused(server: Live, wire: Wire, name: str):
    """A request that two parsers could read in two ways is refused, or not answered; what follows it never is."""
    await wire.send(MALFORMED[name] + GET + b"\r\n")
    rest = await wire.rest()
    assert rest.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 421 ")) or rest == b""
    assert rest.count(b"HTTP/1.1 ") <= 1
    assert b"Traceback" not in rest


@pytest.mark.parametrize("bare", [b"\n", b"\r\n"])
async def test_line_ends_do_not_smuggle(wire: Wire, bare: bytes):
    """A bare line feed ends a header or is refused, and never hides a second request."""
    await wire.send(b"GET /health HTTP/1.1\r\nhost: localhost" + bare + b"connection: close\r\n\r\n")
    rest = await wire.rest()
    assert rest.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 "))
    assert rest.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "head",
    [
        b"x: " + b"a" * (HEADER_BYTES + 1),
        b"\r\n".join(b"x%d: 1" % number for number in range(HEADERS + 1)),
        b"\r\n".join(b"x%d: %s" % (number, b"a" * 1000) for number in range(100)),
    ],
)
async def test_endless_headers(wire: Wire, head: bytes):
    """Headers are bounded, each, together and in number."""
    await wire.send(GET + head + b"\r\n\r\n")
    assert (await wire.rest()).startswith(b"HTTP/1.1 431 ")


async def test_a_long_target_is_refused(wire: Wire):
    """A request line counts as the headers do."""
    await wire.send(b"GET /" + b"a" * (HEADER_BYTES + 1) + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert (await wire.rest()).startswith(b"HTTP/1.1 431 ")


async def health(scope, receive, send):
    await send_body(send, 200, b"ok")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET, GET + b"x: 1", b"\r\n"])
async def test_slow_headers(speak: Speak, sent: bytes):
    """A client that does not finish its headers is not waited for, however little it sends how often."""
    wire = await speak(health, header_timeout=0.3)
    started = time.monotonic()
    await wire.send(sent)

    async def drip() -> None:
        while sent.endswith(b"1"):
            await asyncio.sleep(0.05)
            await wire.send(b"1")

    dripping = asyncio.create_task(drip())
    assert await wire.rest() == b""
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    assert 0.2 < time.monotonic() - started < 5


async def test_a_slow_second_request(speak: Speak):
    """The time for headers holds for every request of a connection; a connection that rests is kept."""
    wire = await speak(health, header_timeout=0.3)
    assert (await wire.ask("GET", "/")).status == 200
    await asyncio.sleep(0.6)
    assert (await wire.ask("GET", "/")).status == 200
    await wire.send(b"GET / HT")
    assert await wire.rest() == b""


async def test_a_resting_connection_ends(speak: Speak):
    """A connection without a request is kept for as long as the settings say."""
    wire = await speak(health, keep_alive=1.0)
    assert (await wire.ask("GET", "/")).status == 200
    started = time.monotonic()
    assert await wire.rest() == b""
    assert time.monotonic() - started < 5


async def test_a_reader_that_stalls(speak: Speak):
    """An answer that its client does not read ends after the time for that, and with it whatever makes it."""
    ended = asyncio.Event()

    async def app(scope, receive, send):
        await receive()
        watch = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not watch.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        ended.set()

    wire = await speak(app, write_timeout=0.3)
    wire.reader._transport.pause_reading()  # a client that does not read
    await wire.send(GET + b"\r\n")
    await asyncio.wait_for(ended.wait(), 10)


async def test_a_body_that_goes_on_after_its_answer(speak: Speak):
    """A body without end does not keep a connection that has its answer."""
    wire = await speak(health, body_after_answer=0.3)
    await wire.send(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
    assert (await wire.reply()).status == 200
    started = time.monotonic()

    async def drip() -> None:
        while True:
            await asyncio.sleep(0.05)
            await wire.send(b"1\r\na\r\n")

    dripping = asyncio.create_task(drip())
    assert await wire.rest() == b""
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    assert time.monotonic() - started < 5


async def test_pipelined_requests_are_answered_in_order(speak: Speak):
    """Requests that are sent at once are answered one after the other."""

    async def echo(scope, receive, send):
        await asyncio.sleep(0.05 if scope["path"] == "/1" else 0)
        await send_body(send, 200, scope["path"].encode())

    wire = await speak(echo)
    await wire.send(b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in (1, 2, 3)))
    assert [(await wire.reply()).body for _ in range(3)] == [b"/1", b"/2", b"/3"]


async def test_bodies_come_whole_however_they_are_sent(speak: Speak):
    """Chunked bodies and bodies with a length, in any pieces, are the same body."""

    async def echo(scope, receive, send):
        await send_body(send, 200, await read_body(scope, receive, 1 << 20))

    wire = await speak(echo)
    body = bytes(range(256)) * 1000
    assert (await wire.ask("POST", "/", body)).body == body
    await wire.send(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    for start in range(0, len(body), 1000):
        piece = body[start : start + 1000]
        await wire.send(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece))
    await wire.send(b"0\r\n\r\n")
    assert (await wire.reply()).body == body


async def test_an_aborted_answer_has_no_end(server: Live, speak: Speak):
    """An answer that is aborted keeps what was written, and ends with a reset: no client takes it for whole."""
    read = asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
        await read.wait()
        scope["extensions"]["cellfork.abort"]()

    wire = await speak(app)
    await wire.send(GET + b"\r\n")
    await wire.reader.readuntil(b"6\r\nfirst\n\r\n")
    read.set()
    with pytest.raises(ConnectionResetError):
        await wire.reader.read(-1)


async def test_expect_continue_is_answered_when_the_body_is_wanted(speak: Speak):
    """``100 Continue`` is sent when the app reads, and not at all where it refuses."""

    async def app(scope, receive, send):
        if scope["path"] == "/no":
            await send_body(send, 413)
            return
        await send_body(send, 200, await read_body(scope, receive, 100))

    wire = await speak(app)
    await wire.send(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await wire.send(b"ab")
    assert (await wire.reply()).body == b"ab"
    await wire.send(b"POST /no HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    assert (await wire.reply()).status == 413
