"""An answer that is torn: what the client sees of it, in the clear and over TLS, on both event loops."""

import asyncio
import contextlib
import shutil
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop
from uvicorn.server import ServerState

from cellfork.dialects.asgi import ASGIApp, Scope, send_body
from cellfork.server.certificates import Certificate, make_certificate
from cellfork.server.protocol import ABORT, patience_of, speaker
from cellfork.server.settings import Settings

GET = b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n"
START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
LARGE = 4 << 20
"""More than the kernel keeps of a connection, so that the rest waits in the server."""

Client = Callable[[socket.socket], Any]
Play = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def _signals_of_libuv() -> None:
    """Make the pipe that libuv opens with its first loop and keeps: it belongs to no test."""
    uvloop.new_event_loop().close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl")
    return make_certificate(["sandbox.localhost"], tmp_path_factory.mktemp("tls") / "new")


@pytest.fixture(params=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Play:
    """Serve an app on one of the loops, let a blocking client talk to it; return what that returned."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(app: ASGIApp, client: Client, tls: Certificate | None = None, **settings: Any) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            failures: list[Any] = []
            runner.get_loop().set_exception_handler(lambda _loop, context: failures.append(context))
            result = runner.run(_serve(app, client, tls, Settings(**settings)))
            assert failures == []
        return result

    return run


async def _serve(app: ASGIApp, client: Client, tls: Certificate | None, settings: Settings) -> Any:
    speaks = speaker(app, settings, ServerState(), patience=patience_of(settings))
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: speaks({}), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await asyncio.wait_for(asyncio.to_thread(_talk, client, port, tls), 20)


def _talk(client: Client, port: int, tls: Certificate | None) -> Any:
    with socket.create_connection(("127.0.0.1", port), timeout=15) as plain:
        if tls is None:
            return client(plain)
        context = ssl.create_default_context(cafile=str(tls.authority))
        with context.wrap_socket(
            plain, server_hostname="sandbox.localhost", suppress_ragged_eofs=False
        ) as connection:
            return client(connection)


@contextlib.contextmanager
def reset() -> Iterator[None]:
    """Pass where the connection ends without the orderly end of its protocol: reset, or TLS without a farewell."""
    with pytest.raises((ConnectionResetError, ssl.SSLEOFError)):
        yield


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = connection.recv(1 << 16)
        assert piece, data
        data += piece
    return data


def begun(then: Callable[[Scope], Awaitable[None]]) -> ASGIApp:
    """Return an app that begins its answer, then does something else."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"first\n", "more_body": True})
        await then(scope)

    return app


async def abort(scope: Scope) -> None:
    await asyncio.sleep(0.05)  # the client has read what there is
    scope["extensions"][ABORT]()


def test_a_torn_answer_ends_with_a_reset(play: Play):
    """What was written arrives; then the connection is reset, so that no client takes the answer for whole."""

    def client(connection: socket.socket) -> None:
        connection.sendall(GET % b"/")
        read_until(connection, b"6\r\nfirst\n\r\n")
        with pytest.raises(ConnectionResetError):
            connection.recv(100)

    play(begun(abort), client)


def test_a_torn_answer_over_tls_has_no_farewell(play: Play, certificate: Certificate):
    """TLS ends in the middle: a farewell would be the orderly end of an answer without a length."""

    def client(connection: socket.socket) -> None:
        connection.sendall(GET % b"/")
        read_until(connection, b"6\r\nfirst\n\r\n")
        with reset():
            connection.recv(100)

    play(begun(abort), client, certificate)


def test_a_complete_answer_is_not_torn(play: Play):
    """Once an answer is complete the connection is the next request's, which is answered as ever."""
    kept: list[Callable[[], None]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for late in kept:
            late()  # that of the answer before
        kept.append(scope["extensions"][ABORT])
        await send_body(send, 200, scope["path"].encode())
        kept[-1]()

    def client(connection: socket.socket) -> list[bytes]:
        answers = []
        for path in (b"/one", b"/two", b"/three"):
            connection.sendall(GET % path)
            answers.append(read_until(connection, path)[-len(path) :])
        return answers

    assert play(app, client) == [b"/one", b"/two", b"/three"]
    assert len(kept) == 3


def test_what_waits_to_be_written_is_written_first(play: Play):
    """A client that reads slowly gets everything that was written before the answer was torn, or knows that it has not."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        body = asyncio.ensure_future(
            send({"type": "http.response.body", "body": b"x" * LARGE, "more_body": True})
        )
        await asyncio.sleep(0.05)
        scope["extensions"][ABORT]()
        await body

    def client(connection: socket.socket) -> int:
        connection.sendall(GET % b"/")
        time.sleep(0.3)
        size = 0
        with pytest.raises(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                size += len(piece)
        return size

    assert play(app, client) > LARGE // 8


def test_a_torn_answer_waits_for_no_reader(play: Play):
    """A client that does not read holds a torn answer for as long as any other, and not for ever."""
    over: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        body = asyncio.ensure_future(
            send({"type": "http.response.body", "body": b"x" * 8 * LARGE, "more_body": True})
        )
        await asyncio.sleep(0.05)
        scope["extensions"][ABORT]()
        await body

    def client(connection: socket.socket) -> None:
        connection.sendall(GET % b"/")
        time.sleep(1.5)
        started = time.monotonic()
        size = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 20):
                size += len(piece)
        over.append(time.monotonic() - started)
        assert size < 8 * LARGE

    play(app, client, write_timeout=0.5)
    assert over[0] < 5


def test_the_client_has_gone_already(play: Play):
    """Tearing an answer whose connection is closed, or was torn before, does nothing."""
    done: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        scope["extensions"][ABORT]()
        await asyncio.sleep(0.05)
        scope["extensions"][ABORT]()
        done.append(True)

    def client(connection: socket.socket) -> None:
        connection.sendall(GET % b"/")
        read_until(connection, b"\r\n\r\n")
        connection.close()
        deadline = time.monotonic() + 5
        while not done:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    play(app, client)
