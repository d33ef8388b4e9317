"""H: what hostile clients send, over real sockets; sandboxes are fake where nothing has to run in them."""

import asyncio
import gzip
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.model.limits import Limits, MiB
from cellfork.model.specs import Template
from cellfork.server.templates import Named
from tests.security.catalogue import row
from tests.server.conftest import KEY, OTHER_KEY, Live, Reply, Wire, body_of, connected, live

ORIGIN = "https://app.example.com"
SMALL = Named(
    Template(preload=(), limits=Limits(memory="256M", pids=40, disk="32M")), ("base",), has_limits=True
)
WRONG_KEYS = {
    "none": {},
    "empty": {"x_api_key": ""},
    "a piece": {"x_api_key": KEY[:-1]},
    "more": {"x_api_key": f"{KEY}0"},
    "another case": {"x_api_key": KEY.upper()},
    "a name": {"x_api_key": f"other:{OTHER_KEY}"},
    "many": {"x_api_key": f"{KEY},{KEY}"},
    "bearer": {"authorization": "Bearer garbage"},
    "basic": {"authorization": "Basic e2I6eA=="},
    "cookie": {"cookie": f"X-API-Key={KEY}; key={KEY}"},
    "bytes": {"x_api_key": "\xff\xfe"},
}


def resident() -> int:
    """Return the memory of this process, which is the server's, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Outside(NamedTuple):
    """A server, a connection to it, and a sandbox of the first key."""

    server: Live
    wire: Wire
    sandbox: dict[str, Any]

    async def plane(self, port: int, method: str, path: str, body: bytes = b"", /, **headers: str) -> Reply:
        named = {
            "e2b_sandbox_id": self.sandbox["sandboxID"],
            "e2b_sandbox_port": str(port),
            "x_access_token": self.sandbox["envdAccessToken"],
        }
        return await self.wire.ask(method, path, body, **{**named, **headers})


async def create(wire: Wire, key: str = KEY, /, **fields: Any) -> Reply:
    body = json.dumps({"templateID": "base", **fields}).encode()
    return await wire.ask("POST", "/v2/sandboxes", body, x_api_key=key, content_type="application/json")


async def outside(
    stack: AsyncExitStack, directory: Path, engine: Engine | None = None, **settings: Any
) -> Outside:
    server = await stack.enter_async_context(live(directory, engine, **settings))
    wire = await stack.enter_async_context(connected(server.port))
    made = await create(wire)
    assert made.status == 201, made.body
    return Outside(server, wire, made.json)


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[Outside]:
    async with AsyncExitStack() as stack:
        yield await outside(
            stack, tmp_path, cors_origins=(ORIGIN,), header_timeout=1.0, body_timeout=1.0, body_limit=2 * MiB
        )


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Outside]:
    engine = Engine(LazyRuntimes())
    async with AsyncExitStack() as stack:
        yield await outside(
            stack, tmp_path, engine, isolation="namespaces", templates=(SMALL,), write_timeout=2.0
        )


def operations(fake: Outside) -> list[tuple[str, str]]:
    """Return method and path of everything that the specifications of the server and of E2B's dialect list."""
    assert fake.server.app.parts is not None
    site = fake.server.app.parts.site
    specifications = [
        json.loads(site.routes[path].answer().body) for path in ("/openapi.json", "/openapi/e2b.json")
    ]
    return [
        (method.upper(), path)
        for told in specifications
        for path, item in told["paths"].items()
        for method, operation in item.items()
        if method in {"get", "post", "put", "patch", "delete"} and operation.get("security") != []
    ]


# -------------------------------------------------------------------------------------------------- H01 … H07


@row("H01", "408 or the connection ends; an answer that nobody reads is given up, and the code with it")
@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\nx: "])
async def test_h01_slow_headers(fake: Outside, sent: bytes):
    """Headers have a time; nothing that is sent meanwhile lengthens it."""
    async with connected(fake.server.port) as wire:
        started = time.monotonic()
        await wire.send(sent)
        assert await wire.rest() == b""
        assert time.monotonic() - started < 5


@row("H01", "408")
async def test_h01_a_slow_body(fake: Outside):
    """A body that stops is not waited for."""
    await fake.wire.send(
        f"POST /v2/sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{{".encode()
    )
    assert (await fake.wire.reply()).status == 408


@row("H01", "the connection ends, the code is interrupted, memory stays bounded")
async def test_h01_a_slow_reader_of_a_stream(real: Outside):
    """Code that prints without end to a client that does not read ends, and the sandbox goes on; the server holds little of it."""
    before = resident()
    code = json.dumps({"code": "while True: print('x' * 1000)"})
    async with connected(real.server.port) as stalled:
        head = f"E2b-Sandbox-Id: {real.sandbox['sandboxID']}\r\nE2b-Sandbox-Port: 49999\r\nX-Access-Token: {real.sandbox['envdAccessToken']}"
        stalled.reader._transport.pause_reading()  # type: ignore[attr-defined]  # a client that does not read
        await stalled.send(
            f"POST /execute HTTP/1.1\r\nhost: localhost\r\n{head}\r\ncontent-length: {len(code)}\r\n\r\n{code}".encode()
        )
        await asyncio.sleep(4)
        assert resident() - before < 96 * MiB
        again = await real.plane(49999, "POST", "/execute", b'{"code": "6 * 7"}')
    assert again.status == 200


@row("H02", "413, and nothing is buffered")
async def test_h02_bodies_over_the_limit(fake: Outside):
    """A body that says that it is too long, or that does not end, is refused at the bound."""
    head = f"POST /v2/sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ncontent-type: application/json\r\n".encode()
    before = resident()
    async with connected(fake.server.port) as wire:
        await wire.send(head + b"content-length: 1099511627776\r\n\r\n")
        assert (await wire.reply()).status == 413
    async with connected(fake.server.port) as wire:
        await wire.send(head + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(100):
            await wire.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert (await wire.reply()).status == 413
    assert resident() - before < 32 * MiB


@row("H02", "refused where the disk of the sandbox is full; the server holds none of it")
async def test_h02_a_compressed_bomb(real: Outside):
    """What is small on the wire and huge inside fills the sandbox's disk at most."""
    bomb = gzip.compress(b"\0" * (256 * MiB), 1)
    before = resident()
    reply = await real.plane(
        49983,
        "POST",
        "/files?path=/home/user/bomb",
        bomb,
        content_type="application/octet-stream",
        content_encoding="gzip",
    )
    assert 400 <= reply.status < 600
    assert reply.status != 500
    assert resident() - before < 64 * MiB
    assert (await real.plane(49999, "POST", "/execute", b'{"code": "1"}')).status == 200


@row("H03", "400 or 413, in bounded time and memory")
async def test_h03_a_million_parts(real: Outside):
    """A form of very many parts is refused before the last."""
    part = b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n\r\n'
    body = part * 300_000 + b"--b--\r\n"
    before, started = resident(), time.monotonic()
    reply = await real.plane(49983, "POST", "/files", body, content_type="multipart/form-data; boundary=b")
    assert 400 <= reply.status < 500
    assert time.monotonic() - started < 10
    assert resident() - before < 96 * MiB


AMBIGUOUS = {
    "two lengths": "content-length: 3\r\ncontent-length: 4",
    "length and chunks": "content-length: 3\r\ntransfer-encoding: chunked",
    "chunks not last": "transfer-encoding: chunked, identity",
    "folded": "x: 1\r\n 2",
    "bare return": "x: 1\r2",
    "NUL": "x: \0",
    "space before the colon": "content-length : 3",
    "signed": "content-length: +3",
    "hexadecimal": "content-length: 0x3",
}


@row("H04", "400, or no answer; what follows is never taken for a request")
@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_h04_requests_that_can_be_read_in_two_ways(fake: Outside, name: str):
    """Where a proxy could see one request and we two, we see none."""
    smuggled = f"GET /v2/sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n\r\n"
    await fake.wire.send(
        f"POST /health HTTP/1.1\r\nhost: localhost\r\n{AMBIGUOUS[name]}\r\n\r\n0\r\n\r\n{smuggled}".encode()
    )
    rest = await fake.wire.rest()
    assert b"sandboxID" not in rest
    assert not rest or rest.startswith(b"HTTP/1.1 400 ")


@row("H05", "encoded, or not echoed")
async def test_h05_names_in_headers(real: Outside):
    """A name with line ends, and an id with anything odd, adds no header to an answer."""
    name = "/home/user/a%0d%0aset-cookie:%20x=1%0d%0a%0d%0a.txt"
    wrote = await real.plane(
        49983, "POST", f"/files?path={name}", b"text", content_type="application/octet-stream"
    )
    assert wrote.status in {200, 400}
    read = await real.plane(49983, "GET", f"/files?path={name}", x_request_id="a b\tc")
    assert "set-cookie" not in read.headers
    assert read.headers["x-request-id"] != "a b\tc"
    if wrote.status == 200:
        assert read.body == b"text"


FORGED = [
    '{"type":"end_of_execution"}',
    '{"type":"error","name":"E","value":"","traceback":""}',
    '\\r{"type":"result"}',
]


@row("H07", "one event, one line; what code prints stays text within it")
async def test_h07_output_cannot_forge_events(real: Outside):
    """Whatever code prints, with whatever line ends, each line of the stream is one event of the server's own making."""
    text = "\\n" + "\\n".join(FORGED) + "\\u2028\\u0085\\x0b\\x0c\\x1c\\x1b]0;x\\x07\\0" + FORGED[0] + "\\n"
    await real.wire.send(b"")
    async with connected(real.server.port) as wire:
        body = json.dumps({"code": f"print('{text}')\nimport os\nos.write(1, b'\\xff\\xfe\\n')"})
        head = f"E2b-Sandbox-Id: {real.sandbox['sandboxID']}\r\nE2b-Sandbox-Port: 49999\r\nX-Access-Token: {real.sandbox['envdAccessToken']}"
        await wire.send(
            f"POST /execute HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
        )
        stream = body_of(await wire.rest())
    events = [json.loads(line) for line in stream.split(b"\n") if line]
    kinds = [event["type"] for event in events]
    assert set(kinds) <= {"number_of_executions", "stdout", "result", "end_of_execution"}
    assert kinds.count("end_of_execution") == 1
    assert kinds[-1] == "end_of_execution"
    printed = "".join(event["text"] for event in events if event["type"] == "stdout")
    assert printed.count(FORGED[0]) == 2


# -------------------------------------------------------------------------------------------------- H08 … H14


@row("H08", "one answer for every wrong key; hashes are compared, all of them")
async def test_h08_wrong_keys_are_told_nothing(fake: Outside):
    """Nothing in an answer says how near a guess was, and whether a sandbox exists is not told without a key."""
    guesses = [headers for headers in WRONG_KEYS.values() if headers.get("x_api_key")]
    replies = [await fake.wire.ask("GET", "/v2/sandboxes", **headers) for headers in guesses]
    assert len({(reply.status, reply.body) for reply in replies}) == 1
    assert replies[0].status == 401
    there = await fake.wire.ask("GET", f"/sandboxes/{fake.sandbox['sandboxID']}", x_api_key="wrong")
    absent = await fake.wire.ask("GET", "/sandboxes/i0000" + "z" * 26, x_api_key="wrong")
    assert (there.status, there.body) == (absent.status, absent.body)


@row("H09", "absent from every line")
async def test_h09_keys_and_tokens_are_not_logged(real: Outside):
    """The log at its finest level has no key, no token, no signature, no path and no code, whatever goes wrong."""
    token = real.sandbox["envdAccessToken"]
    await real.plane(49999, "POST", "/execute", b'{"code": "canary = 1"}')
    await real.plane(49983, "GET", "/files?path=/canary&signature=v1_canary")
    await real.plane(49983, "POST", "/process.Process/canary", b"{")
    await real.plane(12345, "GET", "/canary?token=canary")
    await real.wire.ask("GET", f"/canary/{KEY}?api_key={KEY}", authorization=f"Bearer {KEY}", x_api_key=KEY)
    text = real.server.log.text
    assert '"request"' in text
    for secret in (KEY, token, "canary"):
        assert secret not in text


@row("H10", "401 on every route that is not declared public")
@pytest.mark.parametrize("name", WRONG_KEYS)
async def test_h10_every_route_asks_for_a_key(fake: Outside, name: str):
    """Every operation of the specifications is refused without a key that is known, before anything is done."""
    found = operations(fake)
    assert len(found) > 50
    for method, path in found:
        real_path = path.replace("{sandboxID}", fake.sandbox["sandboxID"]).replace("{", "").replace("}", "")
        for prefix in ("", "/e2b") if path != "/metrics" else ("",):
            body = b"{}" if method in {"POST", "PUT", "PATCH"} else b""
            reply = await fake.wire.ask(
                method, prefix + real_path, body, content_type="application/json", **WRONG_KEYS[name]
            )
            assert reply.status == 401, (method, prefix + real_path, reply)
    assert len((await fake.wire.ask("GET", "/v2/sandboxes", x_api_key=KEY)).json) == 1


@row("H10", "404: a tenant's sandboxes are nobody else's")
async def test_h10_another_tenants_key(fake: Outside):
    """A key that is known, of somebody else, finds nothing: not by id, not in lists."""
    id = fake.sandbox["sandboxID"]
    assert (await fake.wire.ask("GET", "/v2/sandboxes", x_api_key=OTHER_KEY)).json == []
    for method, path in operations(fake):
        if "{sandboxID}" in path:
            body = b'{"timeout": 1}' if method in {"POST", "PUT", "PATCH"} else b""
            reply = await fake.wire.ask(
                method,
                path.replace("{sandboxID}", id),
                body,
                content_type="application/json",
                x_api_key=OTHER_KEY,
            )
            assert 400 <= reply.status < 500, (method, path, reply)
            assert reply.status != 409, (method, path, reply)  # would tell that it exists
    assert (await fake.wire.ask("GET", f"/sandboxes/{id}", x_api_key=KEY)).json["state"] == "running"


@row("H10", "401 without the sandbox's token")
@pytest.mark.parametrize("token", ["", "wrong", KEY])
async def test_h10_planes_of_a_sandbox_ask_for_its_token(real: Outside, token: str):
    """A key opens no plane, and neither does a wrong token: only the sandbox's own.

    Contexts can be listed and ended by whoever knows the sandbox's id (134 random bits): E2B's clients send no token there.
    """
    for port, method, path in (
        (49999, "POST", "/execute"),
        (49983, "GET", "/files?path=/etc/passwd"),
        (49983, "POST", "/files?path=/x"),
        (49983, "GET", "/envs"),
        (49983, "GET", "/metrics"),
        (49983, "POST", "/process.Process/List"),
        (49983, "POST", "/filesystem.Filesystem/ListDir"),
    ):
        reply = await real.plane(
            port, method, path, b"{}", content_type="application/json", x_access_token=token, x_api_key=KEY
        )
        assert reply.status in {401, 403}, (port, path, reply)


@row("H11", "no Access-Control-Allow-Origin, unless the origin is exactly one of those named")
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        f"{ORIGIN}.evil.example",
        "https://evilapp.example.com",
        "http://app.example.com",
        f"{ORIGIN}:444",
    ],
)
async def test_h11_foreign_origins(fake: Outside, origin: str):
    """A page of an origin that was not named reads nothing, and is granted nothing in advance."""
    for method, extra in (("GET", {}), ("OPTIONS", {"access_control_request_method": "POST"})):
        reply = await fake.wire.ask(method, "/v2/sandboxes", x_api_key=KEY, origin=origin, **extra)
        assert "access-control-allow-origin" not in reply.headers
    named = await fake.wire.ask("GET", "/v2/sandboxes", x_api_key=KEY, origin=ORIGIN)
    assert named.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in named.headers


@row("H12", "421")
@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0"]
)
async def test_h12_foreign_names(fake: Outside, host: str):
    """On loopback, a name that a page could have pointed at us is not answered, with a key or without."""
    for path in ("/health", "/v2/sandboxes", "/docs"):
        assert (await fake.wire.ask("GET", path, host=host, x_api_key=KEY)).status == 421


@row("H13", "400: a body that is no JSON by its type is not read")
@pytest.mark.parametrize(
    "type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_h13_forms_create_nothing(tmp_path: Path, type: str):
    """What a page can send without asking first does nothing, even where the server asks for no key."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(live(tmp_path, api_key=(), anonymous=True))
        wire = await stack.enter_async_context(connected(server.port))
        headers = {"content_type": type} if type else {}
        reply = await wire.ask(
            "POST", "/v2/sandboxes", b'{"templateID": "base"}', origin="https://evil.example", **headers
        )
        assert 400 <= reply.status < 500
        assert (await wire.ask("GET", "/v2/sandboxes")).json == []


@row("H14", "refused before the handshake")
@pytest.mark.parametrize("headers", [{}, {"origin": "https://evil.example"}, {"host": "evil.example"}])
async def test_h14_websockets_of_foreign_pages(fake: Outside, headers: dict[str, str]):
    """No WebSocket leads to the API, from wherever it comes."""
    upgrade = {
        "connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13", "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }  # fmt: skip
    reply = await fake.wire.ask("GET", "/v2/sandboxes", **{**upgrade, **headers})
    assert 400 <= reply.status < 500


# -------------------------------------------------------------------------------------------------- H15 … H20


@row("H15", "no answer leads elsewhere")
@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "/\\evil.example",
        "/docs/",
        "/v2/sandboxes/",
        "//evil.example/%2e%2e",
        "/health?next=//evil.example",
    ],
)
async def test_h15_nothing_redirects(fake: Outside, path: str):
    """No path makes the server send a browser somewhere."""
    reply = await fake.wire.ask("GET", path, x_api_key=KEY)
    assert not 300 <= reply.status < 400
    assert "location" not in reply.headers


@row(
    "H16",
    "what the server decides cannot be sent: unknown fields do nothing, known ones stay within their bounds",
)
async def test_h16_clients_do_not_choose_what_isolates(fake: Outside):
    """Isolation, limits, tenant, interpreter and notes are the server's; a client that sends them gets what everybody gets."""
    forged = {
        "isolation": "none", "limits": {"memory": None, "pids": None}, "tenant": "other", "interpreter": "/bin/sh", "uid": 0,
        "notes": {"e2b": {}}, "envdAccessToken": "chosen", "sandboxID": "chosen", "memoryMB": 10**6, "cpuCount": 64, "snapshot": "x",
    }  # fmt: skip
    made = await create(fake.wire, KEY, **forged)
    assert made.status in {201, 400}
    assert fake.server.app.parts is not None
    engine = fake.server.app.parts.services.engine
    for sandbox in engine.list():
        assert sandbox.spec.isolation == "fake"
        assert sandbox.spec.tenant == ""
        assert sandbox.spec.limits == Limits()
        assert sandbox.spec.template.interpreter is None
    if made.status == 201:
        assert made.json["sandboxID"] != "chosen"
        assert made.json["envdAccessToken"] != "chosen"
    assert (await create(fake.wire, KEY, timeout=10**9)).status in {400, 201}
    assert all(
        sandbox.deadline is None or sandbox.deadline < time.time() + 25 * 3600 for sandbox in engine.list()
    )


@row("H17", "the same answer once, an error for another body")
async def test_h17_idempotency_keys(fake: Outside):
    """The same request under one key is carried out once, also where it comes at the same time; another one is refused."""
    body = json.dumps({"templateID": "base"}).encode()
    headers = {"x_api_key": KEY, "content_type": "application/json", "idempotency_key": "once"}

    async def send() -> Reply:
        async with connected(fake.server.port) as wire:
            return await wire.ask("POST", "/v2/sandboxes", body, **headers)

    replies = await asyncio.gather(*(send() for _ in range(8)))
    assert {reply.status for reply in replies} == {201}
    assert len({reply.json["sandboxID"] for reply in replies}) == 1
    other = await fake.wire.ask("POST", "/v2/sandboxes", b'{"templateID": "base", "timeout": 5}', **headers)
    assert other.status in {409, 422}
    stranger = await fake.wire.ask("POST", "/v2/sandboxes", body, **{**headers, "x_api_key": OTHER_KEY})
    assert stranger.json["sandboxID"] != replies[0].json["sandboxID"]


@row("H18", "by the book, or 4xx; in bounded time")
async def test_h18_odd_methods_and_ranges(real: Outside):
    """Very many ranges, odd conditions and methods cost little and break nothing."""
    path = "/files?path=/home/user/file"
    await real.plane(49983, "POST", path, b"x" * 1000, content_type="application/octet-stream")
    ranges = ",".join(f"{number}-{number}" for number in range(6000))
    started = time.monotonic()
    for value in (
        f"bytes={ranges}",
        "bytes=5-1",
        "bytes=-0",
        "bytes=9999-",
        "bytes=a-b",
        "lines=1-2",
        f"bytes={'9' * 1000}-",
    ):
        reply = await real.plane(49983, "GET", path, range=value)
        assert reply.status in {200, 206, 400, 416}, value
        assert len(reply.body) <= 1000
    for method in ("TRACE", "PROPFIND", "LOCK", "PURGE"):
        for target in ("/health", "/v2/sandboxes", path):
            assert 400 <= (await real.wire.ask(method, target, x_api_key=KEY)).status < 500
    assert time.monotonic() - started < 10


@row("H19", "401 or 404: no spelling of a path gets past the key")
@pytest.mark.parametrize(
    "path",
    ["//v2/sandboxes", "/./v2/sandboxes", "/health/../v2/sandboxes", "/v2//sandboxes", "/v2/sandboxes/", "/V2/sandboxes",
     "/v2%2fsandboxes", "/docs/..%2fv2/sandboxes", "/health;/v2/sandboxes", "/v2/sandboxes%00", "/v2/sandboxes%20", "/%76%32/sandboxes",
     "/e2b//v2/sandboxes", "/health?/v2/sandboxes", "/health#/v2/sandboxes", "*", "http://localhost/v2/sandboxes"],
)  # fmt: skip
async def test_h19_other_spellings(fake: Outside, path: str):
    """Whoever writes a path in another way, without a key, gets nothing that needs one."""
    reply = await fake.wire.ask("GET", path)
    assert fake.sandbox["sandboxID"].encode() not in reply.body
    assert reply.status in {200, 400, 401, 404}
    if reply.status == 200:
        assert set(reply.json) == {"status", "version"}


@row("H20", "an error has a code and a message, and nothing of the machine")
async def test_h20_errors_tell_nothing_of_the_machine(fake: Outside):
    """No error names a file, a line, a module, a version or an address of ours."""
    bodies = [
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b'{"templateID": {}}',
        b'{"templateID": "' + b"x" * 10_000 + b'"}',
        b"1" * 5000,
        b"[" * 5000,
    ]
    replies = [
        await fake.wire.ask("POST", "/v2/sandboxes", body, x_api_key=KEY, content_type="application/json")
        for body in bodies
    ]
    replies += [
        await fake.wire.ask("GET", path, x_api_key=KEY)
        for path in ("/nothing", "/sandboxes/%ff", "/templates/..", "/files")
    ]
    for reply in replies:
        assert 400 <= reply.status < 500, reply
        assert reply.json["code"] == reply.status
        for word in (
            b"Traceback",
            b".py",
            b"/home/",
            b"/usr/",
            b"site-packages",
            b"0x",
            b"uvicorn",
            b"Python/",
        ):
            assert word not in reply.body
        assert "server" not in reply.headers


@row(
    "A22",
    "429, and the places of those that ended are free again; connections over the bound are answered 503",
)
async def test_a22_a_flood_of_creates(tmp_path: Path):
    """A client that creates without end has as many sandboxes as its key may have, and takes no place from another key."""
    async with AsyncExitStack() as stack:
        settings: dict[str, Any] = {"max_sandboxes": 12, "max_sandboxes_per_key": 8, "max_connections": 40}
        server = await stack.enter_async_context(live(tmp_path, **settings))
        wires = [await stack.enter_async_context(connected(server.port)) for _ in range(30)]
        replies = await asyncio.gather(*(create(wire) for wire in wires))
        assert sorted({reply.status for reply in replies}) == [201, 429]
        assert [reply.status for reply in replies].count(201) == 8
        others = [(await create(wires[0], OTHER_KEY)).status for _ in range(6)]
        assert others == [201] * 4 + [429] * 2
        made = next(reply.json["sandboxID"] for reply in replies if reply.status == 201)
        assert (await wires[0].ask("DELETE", f"/sandboxes/{made}", x_api_key=KEY)).status == 204
        assert (await create(wires[1])).status == 201
        surplus = [await stack.enter_async_context(connected(server.port)) for _ in range(20)]
        assert (await surplus[-1].ask("GET", "/health")).status == 503


RPCS = [
    *(f"/process.Process/{name}" for name in ("List", "Start", "Connect", "Update", "SendInput", "StreamInput", "SendSignal", "CloseStdin")),
    *(f"/filesystem.Filesystem/{name}" for name in ("Stat", "MakeDir", "Move", "ListDir", "Remove", "WatchDir", "CreateWatcher", "GetWatcherEvents", "RemoveWatcher")),
]  # fmt: skip
GARBAGE = [
    b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"{}" * 100, b'{"path": 5}', b'{"path": "\\u0000"}', b'{"path": "' + b"a/" * 5000 + b'"}',
    b'{"process": {"cmd": "\\u0000", "args": [1]}}', b'{"process": {"pid": -1}}', b'{"process": {"pid": 99999999999999999999}}', b"[" * 20_000,
    b'{"code": 5}', b'{"code": "1", "context_id": {}}', b'{"code": "1", "language": "\\u0000"}', b'{"code": "1", "env_vars": {"A=B": "1"}}',
    b'{"cwd": 5}', b'{"cwd": "\\u0000"}', b'{"a":' * 5000, b"\x00\x00\x00\x00\x02{}", b"\x00\xff\xff\xff\xff", b"\x02\x00\x00\x00\x00", b"\x01\x00\x00\x00\x01{",
]  # fmt: skip


@row("H20", "4xx of the plane's own, never an internal error")
@pytest.mark.parametrize(
    "type",
    [
        "application/json",
        "application/connect+json",
        "application/proto",
        "application/connect+proto",
        "text/plain",
    ],
)
async def test_h20_garbage_to_the_planes(real: Outside, type: str):
    """Whatever is sent to the planes of a sandbox, the server does not fail, and tells nothing of itself."""
    calls = [(49983, path) for path in RPCS] + [
        (49999, "/execute"),
        (49999, "/contexts"),
        (49999, "/contexts/x/restart"),
        (49983, "/init"),
    ]
    for port, path in calls:
        for body in GARBAGE:
            async with connected(real.server.port) as wire:
                outside = Outside(real.server, wire, real.sandbox)
                try:
                    reply = await outside.plane(
                        port, "POST", path, body, content_type=type, connect_timeout_ms="200"
                    )
                except asyncio.IncompleteReadError:
                    continue  # a stream that was cut off
                assert reply.status != 500, (path, body[:40], reply.body)
                assert b"Traceback" not in reply.body
    assert "Traceback" not in real.server.log.text
