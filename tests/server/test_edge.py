"""What holds for every request: host names, origins, ids, bounds, what is logged and counted, what an error tells."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cellfork.dialects.asgi import (
    Abort,
    ClientGone,
    allow_body,
    name_route,
    read_body,
    send_body,
    stream_body,
)
from cellfork.server.edge import Edge, bounds_of
from cellfork.server.hosts import hosts_of
from cellfork.server.logs import make_logger
from cellfork.server.metrics import Metrics
from cellfork.server.origins import Origins
from cellfork.server.settings import Settings
from tests.server.conftest import KEY, Live, Recorder, Speak, Wire

ORIGIN = "https://app.example.com"


class Stage:
    """An edge around one app, on a socket."""

    def __init__(self, speak: Speak) -> None:
        self._speak = speak
        self.log = Recorder()
        self.metrics = Metrics()
        self.kept = asyncio.Event()
        self.kept.set()

    async def settled(self) -> None:
        """Wait until what is to be recorded is."""
        await self.kept.wait()

    async def serve(self, app: Any, **fields: Any) -> Wire:
        settings = Settings(**fields)
        edge = Edge(
            app,
            hosts=hosts_of(settings),
            bounds=bounds_of(settings),
            metrics=self.metrics,
            settled=self.settled,
            logger=make_logger("debug", "json", self.log),  # type: ignore[arg-type]
            origins=Origins(settings.cors_origins),
        )
        wire: Wire = await self._speak(edge, **fields)
        return wire

    @property
    def page(self) -> str:
        return self.metrics.page().decode()


@pytest.fixture
async def stage(speak: Speak) -> AsyncIterator[Stage]:
    async with AsyncExitStack():
        yield Stage(speak)


async def hello(scope, receive, send):
    await send_body(send, 200, b"hello")


async def echo(scope, receive, send):
    await send_body(send, 200, await read_body(scope, receive, 1 << 30))


# ---------------------------------------------------------------------------------------------- host names

GOOD_HOSTS = [
    "localhost",
    "localhost:8080",
    "127.0.0.1",
    "127.9.9.9:1",
    "[::1]:80",
    "a.localhost",
    "LOCALHOST",
    "localhost.",
]
BAD_HOSTS = [
    "evil.example", "localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0", "",
    "localhost:port", "localhost@evil.example", "evil.example#localhost", "localhost,evil.example", "[::1", "2130706433",
]  # fmt: skip


@pytest.mark.parametrize("host", GOOD_HOSTS)
async def test_names_of_loopback_are_answered(stage: Stage, host: str):
    """A server on loopback answers to the names that only ever mean this machine."""
    assert (await (await stage.serve(hello)).ask("GET", "/", host=host)).status == 200


async def test_no_answer_begins_before_everything_is_kept(stage: Stage):
    """What a request changed is on disk when its client hears of it; the work itself waits for nothing."""
    stage.kept.clear()
    began = asyncio.Event()

    async def app(scope, receive, send):
        began.set()
        await hello(scope, receive, send)

    wire = await stage.serve(app)
    asking = asyncio.create_task(wire.ask("GET", "/"))
    await asyncio.wait_for(began.wait(), 5)
    await asyncio.sleep(0.05)
    assert not asking.done()
    stage.kept.set()
    assert (await asyncio.wait_for(asking, 5)).body == b"hello"


@pytest.mark.parametrize("host", BAD_HOSTS)
async def test_foreign_names_are_not_answered_on_loopback(stage: Stage, host: str):
    """A page that gives its own name our address (DNS rebinding) is not answered, and its request is not acted on."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)
        await send_body(send, 200)

    assert (await (await stage.serve(app)).ask("POST", "/", host=host)).status == 421
    assert not seen


@pytest.mark.parametrize(
    "lines", [b"", b"host: localhost\r\nhost: evil.example\r\n", b"host: localhost\r\nhost: localhost\r\n"]
)
async def test_there_is_exactly_one_host(stage: Stage, lines: bytes):
    """A request without a Host header, or with two, is meant for nobody."""
    wire = await stage.serve(hello)
    await wire.send(b"GET / HTTP/1.1\r\n" + lines + b"\r\n")
    assert (await wire.reply()).status == 421


@pytest.mark.parametrize(
    "settings, host, status",
    [
        ({"domain": "box.test:8080"}, "box.test", 200),
        ({"domain": "box.test:8080"}, "49999-iabc.box.test:8080", 200),
        ({"domain": "box.test"}, "evilbox.test", 421),
        ({"allowed_hosts": ("gateway",)}, "gateway:1", 200),
        ({"allowed_hosts": ("*.corp.test",)}, "a.b.corp.test", 200),
        ({"allowed_hosts": ("*.corp.test",)}, "corp.test", 421),
        ({"allowed_hosts": ("*",)}, "anything.test", 200),
        ({"host": "0.0.0.0"}, "anything.test", 200),
        ({"host": "0.0.0.0", "allowed_hosts": ("gateway",)}, "anything.test", 421),
        ({"host": "0.0.0.0", "allowed_hosts": ("gateway",)}, "gateway", 200),
    ],
)
async def test_further_names(stage: Stage, settings: dict[str, Any], host: str, status: int):
    """The domain's names and those of the settings are answered too; where the server is open to a network, any is."""
    assert (await (await stage.serve(hello, **settings)).ask("GET", "/", host=host)).status == status


async def test_what_is_remembered_of_names_is_bounded(stage: Stage):
    """Each request may bring another name: what is remembered does not grow without end."""
    hosts = hosts_of(Settings())
    for number in range(1000):
        assert hosts.answers({"headers": [(b"host", b"a%d.localhost" % number)]})
    assert len(hosts._known) <= 256


# -------------------------------------------------------------------------------------------------- origins


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "https://app.example.com.evil.example", "https://evilapp.example.com", "http://app.example.com",
     "https://app.example.com:444", "https://app.example.com/", "HTTPS://APP.EXAMPLE.COM", "https://APP.example.com", "*", ""],
)  # fmt: skip
async def test_foreign_origins_get_nothing(stage: Stage, origin: str):
    """A page of another origin can read no answer, and its preflight grants nothing."""
    wire = await stage.serve(hello, cors_origins=(ORIGIN,))
    plain = await wire.ask("GET", "/", origin=origin)
    preflight = await wire.ask("OPTIONS", "/", origin=origin, access_control_request_method="POST")
    for reply in (plain, preflight):
        assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_no_origin_is_allowed_unless_it_is_named(stage: Stage):
    """By default no page of any origin may call."""
    reply = await (await stage.serve(hello)).ask("GET", "/", origin=ORIGIN)
    assert "access-control-allow-origin" not in reply.headers


async def test_a_named_origin_may_call(stage: Stage):
    """A page of a named origin reads answers, without credentials of the browser."""
    wire = await stage.serve(hello, cors_origins=(ORIGIN, "http://localhost:3000"))
    plain = await wire.ask("GET", "/", origin=ORIGIN)
    assert plain.headers["access-control-allow-origin"] == ORIGIN
    assert plain.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in plain.headers
    preflight = await wire.ask(
        "OPTIONS", "/", origin=ORIGIN, access_control_request_method="POST", access_control_request_headers="x-api-key, e2b-sandbox-id"
    )  # fmt: skip
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-headers"] == "x-api-key, e2b-sandbox-id"


async def test_a_preflight_echoes_names_only(stage: Stage):
    """What a preflight asks for comes back only where it is a list of names."""
    wire = await stage.serve(hello, cors_origins=(ORIGIN,))
    for asked in ("a: b", "a;b", "a" * 3000, "é"):
        reply = await wire.ask(
            "OPTIONS", "/", origin=ORIGIN, access_control_request_method="POST", access_control_request_headers=asked
        )  # fmt: skip
        assert reply.status == 204
        assert "access-control-allow-headers" not in reply.headers


# ---------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    "told, kept",
    [
        ("abc-1.2_3:4", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("a b", False),
        ('a"b', False),
        ("<x>", False),
        ("", False),
        ("é", False),
    ],
)
async def test_request_ids(stage: Stage, told: str, kept: bool):
    """A request's id comes back, where it is harmless in a header and in a log; every answer has one."""
    reply = await (await stage.serve(hello)).ask("GET", "/", x_request_id=told)
    assert (reply.headers["x-request-id"] == told.lower()) is kept
    assert stage.log.events[-1]["request_id"].lower() == reply.headers["x-request-id"]


# ------------------------------------------------------------------------------------------------- bodies


async def test_a_body_over_the_limit_is_refused_before_it_is_read(stage: Stage):
    """A body that says that it is too long is refused unread."""
    wire = await stage.serve(echo, body_limit=1000)
    await wire.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1001\r\n\r\n")
    reply = await wire.reply()
    assert reply.status == 413
    assert reply.json["code"] == 413


async def test_chunks_without_end_are_refused(stage: Stage):
    """A body that does not say its length is read up to the bound, and not further."""
    wire = await stage.serve(echo, body_limit=100_000)
    await wire.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(200):
        await wire.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
    assert (await wire.reply()).status == 413  # and was not lost while more of the body came
    await wire.send(b"0\r\n\r\n")
    assert (await wire.ask("POST", "/", b"x")).status == 200


async def test_a_body_of_exactly_the_limit_is_taken(stage: Stage):
    """The bound itself is allowed."""
    wire = await stage.serve(echo, body_limit=1000)
    assert (await wire.ask("POST", "/", b"x" * 1000)).status == 200


async def test_a_route_may_allow_more(stage: Stage):
    """Routes that stream what they read may take longer bodies than the server's bound, up to one of their own."""

    async def app(scope, receive, send):
        allow_body(scope, 5000)
        size = 0
        async for piece in stream_body(receive):
            size += len(piece)
        await send_body(send, 200, str(size).encode())

    wire = await stage.serve(app, body_limit=1000)
    assert (await wire.ask("POST", "/", b"x" * 5000)).body == b"5000"
    assert (await wire.ask("POST", "/", b"x" * 5001)).status == 413


async def test_a_body_that_stops_is_not_waited_for(stage: Stage):
    """A client that stops in the middle of its body is answered 408."""
    wire = await stage.serve(echo, body_timeout=0.2)
    await wire.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nabc")
    reply = await wire.reply()
    assert reply.status == 408


async def test_a_route_may_wait_without_bound(stage: Stage):
    """Streams from clients may rest where their route says so."""

    async def app(scope, receive, send):
        allow_body(scope, None, idle=None)
        await send_body(send, 200, b"".join([piece async for piece in stream_body(receive)]))

    wire = await stage.serve(app, body_timeout=0.1)
    await wire.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\na")
    await asyncio.sleep(0.4)
    await wire.send(b"b")
    assert (await wire.reply()).body == b"ab"


async def test_a_client_that_leaves_in_the_middle(stage: Stage):
    """Where a client leaves before its body is complete, the app hears of it and nothing is reported as our failure."""
    left = asyncio.Event()

    async def app(scope, receive, send):
        try:
            await read_body(scope, receive, 1000)
        except ClientGone:
            left.set()
            raise

    wire = await stage.serve(app)
    await wire.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nabc")
    wire.close()
    await asyncio.wait_for(left.wait(), 5)
    await asyncio.sleep(0.05)
    assert "Traceback" not in stage.log.text
    assert stage.log.events[-1]["aborted"] is True


# ------------------------------------------------------------------------------------------------- failures


async def test_a_failure_of_ours_tells_an_id_alone(stage: Stage):
    """What went wrong is in the log, under the id that the client was told; the client is told nothing else."""

    async def app(scope, receive, send):
        raise RuntimeError("secret detail")

    reply = await (await stage.serve(app)).ask("GET", "/")
    assert reply.status == 500
    assert set(reply.json) == {"code", "message"}
    assert "secret" not in reply.body.decode()
    failed = next(event for event in stage.log.events if event["event"] == "failed")
    assert failed["request_id"] in reply.json["message"]
    assert "secret detail" in failed["exception"]


@pytest.mark.parametrize("error", [RuntimeError("late"), Abort()])
async def test_a_failure_in_the_middle_ends_the_connection(stage: Stage, error: Exception):
    """An answer that has begun cannot become an error: the connection ends without the final chunk."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise error

    wire = await stage.serve(app)
    await wire.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    rest = await wire.rest()
    assert rest.endswith(b"4\r\npart\r\n")
    assert ("Traceback" in stage.log.text) is not isinstance(error, Abort)
    assert stage.log.events[-1]["aborted"] is True


# ------------------------------------------------------------------------------------------ logs and metrics


async def test_nothing_that_a_client_sends_is_logged(stage: Stage):
    """No body, query, path, header or key is in the log; the route, the status and the id are."""

    async def app(scope, receive, send):
        name_route(scope, "e2b", "/sandboxes/{id}")
        await read_body(scope, receive, 1000)
        await send_body(send, 404, b"canary-answer")

    wire = await stage.serve(app)
    await wire.ask(
        "POST", "/sandboxes/canary-path?signature=canary-query", b"canary-body", x_api_key="canary-key", authorization="Bearer canary-key"
    )  # fmt: skip
    assert "canary" not in stage.log.text
    event = stage.log.events[-1]
    assert (event["method"], event["route"], event["status"]) == ("POST", "/sandboxes/{id}", 404)
    assert event["ms"] >= 0


async def test_one_request_is_one_line(stage: Stage):
    """Whatever a client sends, its request is one line of JSON."""
    wire = await stage.serve(hello)
    await wire.ask("GET", "/%0a%7b%22event%22:1%7d", user_agent='x\\n{"event": "forged"}')
    assert len(stage.log.lines) == 1
    json.loads(stage.log.lines[0])


async def test_metrics_count_by_route(stage: Stage):
    """Requests are counted by dialect, method, route and status, and their time is measured."""

    async def app(scope, receive, send):
        name_route(scope, "e2b", "/execute")
        await send_body(send, 200)

    wire = await stage.serve(app)
    for _ in range(3):
        await wire.ask("POST", "/whatever")
    await asyncio.sleep(0.01)
    assert (
        'cellfork_requests_total{dialect="e2b",method="POST",route="/execute",status="200"} 3.0' in stage.page
    )
    assert 'cellfork_request_seconds_count{dialect="e2b",route="/execute"} 3.0' in stage.page
    assert "cellfork_requests_active 0.0" in stage.page


async def test_paths_do_not_become_labels(stage: Stage):
    """Requests for paths without a route are counted together: clients cannot make labels."""
    wire = await stage.serve(hello)
    for number in range(50):
        await wire.ask("PROPFIND" if number % 2 else "GET", f"/{number}")
    lines = [line for line in stage.page.splitlines() if line.startswith("cellfork_requests_total")]
    assert len(lines) == 2
    assert not any("PROPFIND" in line for line in lines)


async def test_routes_without_end_are_counted_together():
    """Even a dialect that names routes by mistake after what clients send cannot fill the memory."""
    metrics = Metrics()
    for number in range(2000):
        metrics.answered("e2b", "GET", f"/{number}", 200, 0.1, aborted=False)
    assert len(metrics.page()) < 1_500_000


UPGRADE = {
    "connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13", "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==",
}  # fmt: skip


async def test_websockets_are_logged_and_counted_as_one_request(stage: Stage):
    """A WebSocket is one line with its status and its time, and counted under its route; a foreign name gets none."""

    async def app(scope, receive, send):
        assert scope["type"] == "websocket"
        name_route(scope, "e2b", "port")
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})

    wire = await stage.serve(app)
    assert (await wire.ask("GET", "/canary", **UPGRADE)).status == 101
    await wire.send(b"\x88\x82\0\0\0\0\x03\xe8")  # close, 1000
    await wire.rest()
    event = stage.log.events[-1]
    assert (event["method"], event["route"], event["status"]) == ("WEBSOCKET", "port", 101)
    assert 'method="WEBSOCKET",route="port",status="101"} 1.0' in stage.page
    foreign = await stage.serve(app)
    assert (await foreign.ask("GET", "/", host="evil.example", **UPGRADE)).status == 403


# ------------------------------------------------------------------------------------------- the whole server


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz"])
async def test_public_routes(wire: Wire, path: str):
    """Whoever watches the server needs no key."""
    reply = await wire.ask("GET", path)
    assert reply.status == 200
    assert (await wire.ask("HEAD", path)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_the_servers_own_routes_are_only_read(wire: Wire, method: str):
    """What is only read answers other methods with 405."""
    reply = await wire.ask(method, "/health")
    assert reply.status == 405
    assert reply.headers["allow"] == "get, head"


async def test_metrics_ask_for_a_key(wire: Wire):
    """What the server counts is told to those with a key, in either header."""
    assert (await wire.ask("GET", "/metrics")).status == 401
    assert (await wire.ask("GET", "/metrics", x_api_key="wrong")).status == 401
    assert (await wire.ask("GET", "/metrics", authorization=f"Basic {KEY}")).status == 401
    for headers in ({"x_api_key": KEY}, {"authorization": f"Bearer {KEY}"}):
        reply = await wire.ask("GET", "/metrics", **headers)
        assert b"cellfork_sandboxes{" in reply.body


async def test_a_dialect_answers_under_its_prefix(wire: Wire):
    """Paths of a dialect are there with its prefix too, and only with the whole of it."""
    bare = await wire.ask("GET", "/v2/sandboxes", x_api_key=KEY)
    prefixed = await wire.ask("GET", "/e2b/v2/sandboxes", x_api_key=KEY)
    assert (bare.status, bare.body) == (prefixed.status, prefixed.body) == (200, b"[]")
    assert (await wire.ask("GET", "/e2bv2/sandboxes", x_api_key=KEY)).status == 404
    assert (await wire.ask("GET", "/e2b/e2b/v2/sandboxes", x_api_key=KEY)).status == 404


@pytest.mark.parametrize(
    "path", ["//v2/sandboxes", "/./v2/sandboxes", "/health/../v2/sandboxes", "/v2//sandboxes", "/v2/sandboxes/", "/V2/sandboxes",
             "/v2%2fsandboxes", "/docs/../v2/sandboxes", "/health;/v2/sandboxes", "/v2/sandboxes%00", "/\u017f"],
)  # fmt: skip
async def test_paths_have_one_meaning(wire: Wire, path: str):
    """No other spelling of a path gets past the key, and none is taken for a public route."""
    reply = await wire.ask("GET", path.encode("utf-8").decode("latin-1") if path.isascii() else "/%C5%BF")
    assert reply.status in {400, 401, 404}
    assert b"sandboxID" not in reply.body


async def test_a_sandboxs_paths_are_not_the_servers(wire: Wire):
    """A request that names a sandbox is that sandbox's, whatever its path."""
    for path in ("/health", "/metrics", "/docs", "/openapi.json"):
        reply = await wire.ask("GET", path, e2b_sandbox_id="i0000" + "a" * 26, e2b_sandbox_port="49983")
        assert reply.status == 502
        assert reply.json["message"] == "The sandbox was not found"


async def test_the_documentation_needs_nothing_from_elsewhere(wire: Wire):
    """The page and its script load nothing from another host, and are allowed to load nothing."""
    for path in ("/docs", "/docs.js"):
        reply = await wire.ask("GET", path)
        assert reply.status == 200
        assert b"http://" not in reply.body
        assert b"https://" not in reply.body
        assert reply.headers["content-security-policy"].startswith("default-src 'none'")


async def test_the_servers_specification_lists_its_routes(server: Live, wire: Wire):
    """Every route of the server is in its specification, and every path there is a route."""
    assert server.app.parts is not None
    told = (await wire.ask("GET", "/openapi.json")).json
    routes = server.app.parts.site.routes
    assert set(told["paths"]) == set(routes)
    for path, route in routes.items():
        assert (told["paths"][path]["get"].get("security") == []) is route.public
        assert (await wire.ask("GET", path, x_api_key=KEY)).status == 200
