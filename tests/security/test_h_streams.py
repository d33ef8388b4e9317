"""H, G and E at streams, WebSockets and ports of real sandboxes: what code inside and clients outside send to break out of them."""

import asyncio
import json
import os
import re
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.model.limits import Limits, MiB
from cellfork.model.specs import Template
from cellfork.server.templates import Named
from cellfork.server.websockets import MOST_PIECES
from tests.security.catalogue import row
from tests.security.places import Made, Place, place
from tests.server.conftest import KEY, Reply, Wire, body_of

SMALL = Named(
    Template(preload=(), limits=Limits(memory="256M", pids=60, disk="32M")), ("base",), has_limits=True
)
TEXT, BINARY, CLOSE, PING, CONTINUED = 1, 2, 8, 9, 0
UPGRADE = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
PYTHON = {"language": "python"}
HOSTILE = (
    'a\ndata: {"type":"stdout","output":"forged"}\n\nid: 999\nevent: end\nretry: 1\n\r\r\ndata: x\r\r: comment\r\n\r\n'
    '{"type":"execution_complete"}\n\n{"type":"error","error":{"ename":"E"}}\n\n\u2028\u2029\u0085\x0b\x0c\x1c\x1e\x00\x1b]0;t\x07\ufeffdata:y\n\n'
)
"""What would be lines, events and frames of ours, if output were anything but a value in them."""


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Place]:
    engine = Engine(LazyRuntimes())
    settings: dict[str, Any] = {"isolation": "namespaces", "templates": (SMALL,), "write_timeout": 2.0}
    async with place(tmp_path, engine, **settings) as found:
        yield found


def resident() -> int:
    """Return the memory of this process, which is the server's, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def ask(real: Place, made: Made, method: str, path: str, body: Any = b"", /, **headers: str) -> Reply:
    """Ask a sandbox something, with what it wants to be shown."""
    base, shown = door(made)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    wire = await real.again()
    return await wire.ask(
        method, base + path, content, **{"content_type": "application/json", **shown, **headers}
    )


async def stream(real: Place, made: Made, path: str, body: Any = None) -> bytes:
    """Return the whole of a streamed answer."""
    base, shown = door(made)
    content = b"" if body is None else json.dumps(body).encode()
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in shown.items())
    method = "GET" if body is None else "POST"
    wire = await real.again()
    await wire.send(
        f"{method} {base}{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"{head}content-length: {len(content)}\r\n\r\n".encode()
        + content
    )
    return body_of(await wire.rest())


def door(made: Made) -> tuple[str, dict[str, str]]:
    """Return where a sandbox is reached, and with which headers."""
    if made.dialect == "together":
        return f"/together/agents/{made.id}/api/v1", {"authorization": f"Bearer {made.secrets['admin']}"}
    return f"/sandboxes/{made.id}/proxy/44772", {"opensandbox_secure_access": made.secrets["sandbox"]}


def events_of(data: bytes) -> Iterator[dict[str, str]]:
    """Yield the events of a stream as browsers read it (WHATWG HTML §9.2.6): CR, LF and both together end lines."""
    event: dict[str, str] = {}
    for line in re.split("\r\n|\n|\r", data.decode()):
        name, _, value = line.partition(":")
        if not line:
            if event:
                yield event
            event = {}
        elif name:
            value = value.removeprefix(" ")
            event[name] = f"{event[name]}\n{value}" if name == "data" and name in event else value


# ------------------------------------------------------------------------------------------------ streams


@row(
    "H06",
    "one event in, one event out: output is a value in an event, and never an event, a field or a comment",
)
async def test_h06_output_cannot_forge_server_sent_events(real: Place):
    """A command writes what would be events; a reader by the book sees events of the server's own making, with this text in them."""
    made = await real.create("together")
    body = {
        "command": "printf",
        "args": ["%b", HOSTILE.replace("\x00", "\\0000").replace("\n", "\\n").replace("\r", "\\r")],
    }
    exec_ = (await ask(real, made, "POST", "/execs", body)).json["id"]
    events = [*events_of(await stream(real, made, f"/stream/execs/{exec_}/io"))]
    assert {name for event in events for name in event} == {"id", "data"}
    told = [json.loads(event["data"]) for event in events]
    assert all(set(one) <= {"type", "output", "sequence", "timestamp", "exitCode"} for one in told)
    assert "".join(one["output"] for one in told) == HOSTILE
    assert [event["id"] for event in events] == [str(one["sequence"]) for one in told]
    assert [one["exitCode"] for one in told if "exitCode" in one] == [0]


@row("H06", "names of files are values as well, whatever is in them")
async def test_h06_names_cannot_forge_server_sent_events(real: Place):
    """A watcher tells of files whose names are events: each is one event with that name."""
    made = await real.create("together")
    base, shown = door(made)
    wire = await real.again()
    await wire.send(
        f"GET {base}/stream/directories/watcher/home/user HTTP/1.1\r\nhost: localhost\r\nauthorization: {shown['authorization']}\r\n\r\n".encode()
    )
    await asyncio.wait_for(wire.reader.readuntil(b"connected"), 10)
    name = 'x\n\ndata: {"type":"REMOVE"}\r\r\u2028.txt'
    wrote = await ask(real, made, "POST", "/execs", {"command": "touch", "args": [f"/home/user/{name}"]})
    assert wrote.status == 201, wrote
    seen = (await asyncio.wait_for(wire.reader.readuntil(b"ADD"), 10)).split(b"data: ", 1)[-1]
    assert b'data: {\\"type\\":\\"REMOVE\\"}' in seen
    assert seen.count(b"\n\ndata: ") == 0


@row("H06", "the same for frames between empty lines: one frame for each thing that is told")
@pytest.mark.parametrize("path", ["/code", "/command"])
async def test_h06_output_cannot_forge_frames(real: Place, path: str):
    """Code and commands write what would be frames; every frame is one JSON object of ours, and there is one end."""
    made = await real.create("opensandbox")
    text = HOSTILE.replace("\x00", "")
    code = {"context": PYTHON, "code": f"print({text!r}, end='')"}
    command = {"command": f"python3 -c {json.dumps('import sys; sys.stdout.write(' + ascii(text) + ')')!s}"}
    if path == "/command":
        await ask(
            real,
            made,
            "POST",
            "/code",
            {"context": PYTHON, "code": f"open('f.txt', 'w', newline='').write({text!r})"},
        )
        command = {"command": "cat /home/user/f.txt"}
    data = await stream(real, made, path, code if path == "/code" else command)
    frames = [json.loads(frame) for frame in data.split(b"\n\n") if frame]
    kinds = [frame["type"] for frame in frames]
    assert set(kinds) <= {"init", "ping", "stdout", "execution_complete", "execution_count"}, kinds
    assert kinds.count("execution_complete") == 1
    assert kinds[-1] == "execution_complete"
    printed = "".join(frame["text"] for frame in frames if frame["type"] == "stdout")
    assert printed.replace("\n", "") == re.sub("[\r\n]", "", text) if path == "/command" else printed == text
    assert not re.search(rb"[\r\x0b\x0c\x1c-\x1e\x85]", data.replace("\u0085".encode(), b""))


# --------------------------------------------------------------------------------------------- WebSockets


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """Return a frame of a client, masked with zeros."""
    size = len(payload)
    length = (
        bytes([0x80 | size])
        if size < 126
        else b"\xfe" + struct.pack(">H", size)
        if size < 65536
        else b"\xff" + struct.pack(">Q", size)
    )
    return bytes([opcode | (0x80 if fin else 0)]) + length + bytes(4) + payload


async def socket(real: Place, made: Made) -> Wire:
    """Open a WebSocket to a shell of a sandbox."""
    if made.dialect == "together":
        body = {"command": "cat", "args": [], "autostart": True}
        exec_ = (await ask(real, made, "POST", "/execs", body)).json["id"]
        path, shown = (
            f"/together/agents/{made.id}/ws/v1/execs/{exec_}",
            f"authorization: Bearer {made.secrets['admin']}\r\n",
        )
    else:
        session = (await ask(real, made, "POST", "/pty", {})).json["session_id"]
        path = f"/sandboxes/{made.id}/proxy/44772/pty/{session}/ws"
        shown = f"opensandbox-secure-access: {made.secrets['sandbox']}\r\n"
    wire = await real.again()
    await wire.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{UPGRADE}{shown}\r\n".encode())
    head = await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n"), 10)
    assert b" 101 " in head, head
    return wire


async def close_code(wire: Wire) -> int | None:
    """Return the code with which the server closes a connection; ``None`` where it just ends."""
    data = await wire.rest()
    while len(data) >= 2:
        size, start = data[1] & 0x7F, 2
        if size == 126:
            size, start = struct.unpack(">H", data[2:4])[0], 4
        elif size == 127:
            size, start = struct.unpack(">Q", data[2:10])[0], 10
        if data[0] & 15 == CLOSE:
            return int.from_bytes(data[start : start + 2], "big")
        data = data[start + size :]
    return None


async def lives(real: Place, made: Made) -> bool:
    reply = await ask(real, made, "GET", "/execs" if made.dialect == "together" else "/ping")
    return reply.status == 200


ABUSES = {
    "too long": (frame(TEXT, b"a" * (17 * MiB)), {1009}),
    "too long in pieces": (
        frame(TEXT, b"a" * MiB, fin=False) + frame(CONTINUED, b"a" * MiB, fin=False) * 16,
        {1009},
    ),
    "too many pieces": (
        frame(TEXT, b"", fin=False) + frame(CONTINUED, b"", fin=False) * (MOST_PIECES + 10),
        {1009},
    ),
    "a length of its own": (b"\x82\xff" + struct.pack(">Q", 2**62) + bytes(4), {1009}),
    "no UTF-8": (frame(TEXT, b"\xff\xfe"), {1007}),
    "reserved bits": (b"\xf1\x80" + bytes(4), {1002}),
    "an unknown opcode": (frame(5, b"x"), {1002}),
    "without a mask": (b"\x81\x01x", {1002}),
    "a continuation of nothing": (frame(CONTINUED, b"x"), {1002}),
    "a long ping": (frame(PING, b"a" * 200), {1002}),
    "a ping in pieces": (frame(PING, b"a", fin=False), {1002}),
}


@row("H07", "a typed close: 1002, 1007 or 1009; the shell and its sandbox go on")
@pytest.mark.parametrize("dialect", ["together", "opensandbox"])
async def test_h07_frames_that_break_the_rules(real: Place, dialect: str):
    """Whatever is no message, or too much of one, ends its own connection with the code for it, in bounded memory."""
    made = await real.create(dialect)
    for name, (data, codes) in ABUSES.items():
        wire = await socket(real, made)
        before = resident()
        try:
            await asyncio.wait_for(wire.send(data), 10)
        except (ConnectionError, TimeoutError):
            pass  # closed before everything was sent
        assert await close_code(wire) in codes, name
        assert resident() - before < 64 * MiB, name
        wire.close()
    assert await lives(real, made)
    assert "Traceback" not in "".join(line for line in real.server.log.lines if "UTF-8" not in line)


@row(
    "H07",
    "what nobody reads is not piled up: nothing more is taken from its sender, who is let go after a while",
)
@pytest.mark.parametrize("dialect", ["together", "opensandbox"])
async def test_h07_a_flood_of_pings(real: Place, dialect: str):
    """A client that sends pings without end and reads no answer is held at the bound of its connection, then closed."""
    made = await real.create(dialect)
    wire = await socket(real, made)
    wire.reader._transport.pause_reading()  # type: ignore[attr-defined]  # a client that does not read
    before, flood, sent = resident(), frame(PING, b"a" * 125) * 500, 0
    started = time.monotonic()
    try:
        while sent < 256 * MiB and time.monotonic() - started < 20:
            await asyncio.wait_for(wire.send(flood), 10)
            sent += len(flood)
    except (ConnectionError, TimeoutError):
        pass
    assert sent < 128 * MiB
    assert resident() - before < 48 * MiB
    assert time.monotonic() - started < 15  # write_timeout is 2 s here
    assert await lives(real, made)


@row("H07", "a slow reader of a terminal costs the same as a slow reader of an answer, and is let go")
@pytest.mark.parametrize("dialect", ["together", "opensandbox"])
async def test_h07_a_terminal_that_nobody_reads(real: Place, dialect: str):
    """A shell that writes without end to a client that does not read fills bounded buffers; its sandbox goes on."""
    made = await real.create(dialect)
    if dialect == "together":
        body = {"command": "yes", "args": ["x" * 1000]}
        exec_ = (await ask(real, made, "POST", "/execs", body)).json["id"]
        path, shown = (
            f"/together/agents/{made.id}/ws/v1/execs/{exec_}",
            f"authorization: Bearer {made.secrets['admin']}\r\n",
        )
    else:
        session = (await ask(real, made, "POST", "/pty", {"command": f"yes {'x' * 1000}"})).json["session_id"]
        path = f"/sandboxes/{made.id}/proxy/44772/pty/{session}/ws"
        shown = f"opensandbox-secure-access: {made.secrets['sandbox']}\r\n"
    before = resident()
    wire = await real.again()
    wire.reader._transport.pause_reading()  # type: ignore[attr-defined]  # a client that does not read
    await wire.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{UPGRADE}{shown}\r\n".encode())
    await asyncio.sleep(4)
    assert resident() - before < 128 * MiB
    assert await lives(real, made)


@row("A22", "503: WebSockets count among the connections")
async def test_a22_websockets_have_no_bound_of_their_own(tmp_path: Path):
    """A client that opens WebSockets without end gets no more of them than connections."""
    engine = Engine(LazyRuntimes())
    settings: dict[str, Any] = {"isolation": "namespaces", "templates": (SMALL,), "max_connections": 12}
    async with place(tmp_path, engine, **settings) as real:
        made = await real.create("together")
        exec_ = (await ask(real, made, "POST", "/execs", {"command": "cat", "args": []})).json["id"]
        path = f"/together/agents/{made.id}/ws/v1/execs/{exec_}"
        statuses = []
        for _ in range(30):
            wire = await real.again()
            shown = f"authorization: Bearer {made.secrets['admin']}\r\n"
            await wire.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{UPGRADE}{shown}\r\n".encode())
            statuses.append(int((await asyncio.wait_for(wire.reader.readline(), 10)).split()[1]))
        assert set(statuses) == {101, 503}
        assert statuses.count(101) <= 12


# ---------------------------------------------------------------------------------- markup, names, ports

PAGE = "<!doctype html><script>fetch('/v1/sandboxes')</script>"
SERVE = (
    "import http.server, threading\nopen('index.html', 'w').write({page!r})\n"
    "class Handler(http.server.SimpleHTTPRequestHandler):\n"
    "    def end_headers(self):\n"
    "        for line in ('Content-Security-Policy: none', 'Access-Control-Allow-Origin: *', 'Set-Cookie: a=b', 'Clear-Site-Data: \"*\"'):\n"
    "            self.send_header(*line.split(': '))\n"
    "        super().end_headers()\n"
    "server = http.server.ThreadingHTTPServer(('', 8000), Handler)\nthreading.Thread(target=server.serve_forever, daemon=True).start()"
)


@row(
    "G11",
    "a page that code wrote is no part of the server's origin: it is confined, whatever it says of itself",
)
async def test_g11_pages_of_a_sandbox_are_confined(real: Place):
    """A page of a program, at an address of this server's own origin, has an origin of nobody; so has a file that is a page."""
    box, e2b = await real.create("opensandbox"), await real.create("e2b")
    await stream(real, box, "/code", {"context": PYTHON, "code": SERVE.format(page=PAGE)})
    page = await real.wire.ask(
        "GET", f"/sandboxes/{box.id}/proxy/8000/", opensandbox_secure_access=box.secrets["sandbox"]
    )
    assert (page.status, page.body) == (200, PAGE.encode())
    raw = await real.again()
    await raw.send(
        f"GET /sandboxes/{box.id}/proxy/8000/ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nopensandbox-secure-access: {box.secrets['sandbox']}\r\n\r\n".encode()
    )
    head = (await raw.rest()).partition(b"\r\n\r\n")[0].lower()
    policies = re.findall(rb"content-security-policy: (.*)\r", head)
    assert any(policy.startswith(b"sandbox") and b"allow-same-origin" not in policy for policy in policies)
    named = {"e2b_sandbox_id": e2b.id, "e2b_sandbox_port": "49983", "x_access_token": e2b.secrets["sandbox"]}
    for name in ("page.html", "image.svg", "text.xml", "no-extension"):
        path = f"/files?path=/home/user/{name}"
        wrote = await real.wire.ask(
            "POST", path, PAGE.encode(), content_type="application/octet-stream", **named
        )
        assert wrote.status == 200, wrote
        read = await real.wire.ask("GET", path, **named)
        assert read.headers["content-security-policy"] == "sandbox", name


@row("G12", "nosniff on every file; what is executable markup is confined or saved, not shown")
async def test_g12_types_are_not_guessed(real: Place):
    """A page that is called an image stays what its name says to every browser, and a download is a download."""
    box, e2b = await real.create("opensandbox"), await real.create("e2b")
    named = {"e2b_sandbox_id": e2b.id, "e2b_sandbox_port": "49983", "x_access_token": e2b.secrets["sandbox"]}
    path = "/files?path=/home/user/image.png"
    await real.wire.ask("POST", path, PAGE.encode(), content_type="application/octet-stream", **named)
    read = await real.wire.ask("GET", path, **named)
    assert (read.headers["content-type"], read.headers["x-content-type-options"]) == ("image/png", "nosniff")
    await stream(real, box, "/code", {"context": PYTHON, "code": f"open('page.html', 'w').write({PAGE!r})"})
    got = await ask(real, box, "GET", "/files/download?path=/home/user/page.html")
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"].startswith("attachment;")
    assert got.headers["x-content-type-options"] == "nosniff"


@row("C15", "one line in a header, encoded, or 400; the file is the one that was named")
@pytest.mark.parametrize(
    "name",
    [
        "a\r\nset-cookie: x=1\r\n\r\n.txt",
        'q";filename=x.html',
        "-rf",
        "\u202egpj.exe",
        "%00",
        "ü\u2028\x1b[2J",
        "a" * 240,
        "..",
    ],
)
async def test_c15_names_in_downloads(real: Place, name: str):
    """Whatever a file is called, its name is a value in the headers of its download, and adds none."""
    box = await real.create("opensandbox")
    path = f"/home/user/{name}"
    await stream(
        real,
        box,
        "/code",
        {"context": PYTHON, "code": f"open({path!r}, 'w').write('text')" if name != ".." else "1"},
    )
    got = await ask(real, box, "GET", f"/files/download?path={quote(path)}")
    assert "set-cookie" not in got.headers
    if got.status == 200:
        assert got.body == b"text"
        assert re.fullmatch(
            r'attachment; filename="[^"\\\r\n]*"(; filename\*=utf-8\'\'[a-z0-9%._~-]*)?',
            got.headers["content-disposition"],
        )
    else:
        assert name == ".."
        assert 400 <= got.status < 500


@row(
    "E02", "a port is one of the sandbox's own network, however its number and the path behind it are written"
)
async def test_e02_ports_lead_nowhere_else(real: Place):
    """Through the ports of a sandbox neither the server, nor the host's loopback, nor a neighbour, nor metadata is reached."""
    box, neighbour = await real.create("opensandbox"), await real.create("opensandbox")
    await stream(real, neighbour, "/code", {"context": PYTHON, "code": SERVE.format(page="neighbour")})
    port = real.server.port
    for target in (
        f"/{port}/health", f"/{port}/v1/sandboxes", "/8000/", f"/8000/http://127.0.0.1:{port}/health", f"/8000@127.0.0.1:{port}/health",
        f"/127.0.0.1:{port}/health", "/169.254.169.254:80/latest/meta-data/", "/8000.evil.example/", f"/44772/proxy/{port}/health",
        f"/44772/proxy/8000/../../../{neighbour.id}/proxy/8000/", f"/8000/..%2f..%2f{neighbour.id}%2fproxy%2f8000/", f"/44772/proxy/127.0.0.1:{port}/health",
    ):  # fmt: skip
        shown = {
            "opensandbox_secure_access": box.secrets["sandbox"],
            "host": "localhost",
            "x_forwarded_host": "127.0.0.1",
        }
        reply = await (await real.again()).ask("GET", f"/sandboxes/{box.id}/proxy{target}", **shown)
        assert 400 <= reply.status < 600, (target, reply)
        assert reply.status != 500, (target, reply)
        assert b"neighbour" not in reply.body
        assert b'"status":"ok"' not in reply.body


@row("F12", "a program inside is not shown the tokens and cookies that let a request in")
async def test_f12_programs_are_not_shown_tokens(real: Place):
    """What opens a port, and what a browser sends along for this server's name, ends at the server."""
    echo = (
        "import http.server, threading\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(str(self.headers).encode())\n"
        "    def log_message(self, *args): pass\n"
        "server = http.server.HTTPServer(('', 8000), Handler)\nthreading.Thread(target=server.serve_forever, daemon=True).start()"
    )
    box, e2b = await real.create("opensandbox"), await real.create("e2b")
    await stream(real, box, "/code", {"context": PYTHON, "code": echo})
    named = {"e2b_sandbox_id": e2b.id, "e2b_traffic_access_token": e2b.secrets["traffic"]}
    ran = await real.again()
    content = json.dumps({"code": echo})
    await ran.send(
        f"POST /execute HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-access-token: {e2b.secrets['sandbox']}\r\ne2b-sandbox-port: 49999\r\n"
        f"e2b-sandbox-id: {e2b.id}\r\ne2b-traffic-access-token: {e2b.secrets['traffic']}\r\ncontent-length: {len(content)}\r\n\r\n{content}".encode()
    )
    await ran.rest()
    shown = {
        "opensandbox_secure_access": box.secrets["sandbox"],
        "open_sandbox_api_key": KEY,
        "opensandbox_egress_auth": box.secrets["egress"],
    }
    for path, headers in (
        (f"/sandboxes/{box.id}/proxy/8000/", {**shown, "cookie": "session=secret"}),
        (f"/sandboxes/{box.id}/proxy/44772/proxy/8000/", {**shown, "cookie": "session=secret"}),
        ("/", {**named, "e2b_sandbox_port": "8000"}),
    ):
        wire = await real.again()
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        await wire.send(
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-canary: there\r\n{lines}\r\n".encode()
        )
        told = (await wire.rest()).decode().partition("\r\n\r\n")[2].lower()
        assert "x-canary: there" in told, told
        for secret in (*box.secrets.values(), *e2b.secrets.values(), KEY, "session=secret"):
            assert secret not in told, (path, told)
