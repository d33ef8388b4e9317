"""One sandbox as a plain execd on a real socket: the documentation's own lines, tokens, terminals, ports, metrics."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cellfork.dialects.opensandbox.execd.terminals import KEPT, Mode, Terminal
from cellfork.engine.engine import Engine
from cellfork.engine.execs import Exec
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import InvalidRequest
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.server.execd import ExecdServer
from cellfork.server.logs import make_logger
from cellfork.server.serving import serving
from cellfork.server.settings import Settings
from cellfork.server.templates import Named
from tests.server.conftest import Recorder

TOKEN = "your-token"
TEMPLATE = Named(
    Template("default", preload=(), limits=Limits(memory="512M", disk="64M")), (), has_limits=True
)
SETTINGS = Settings(port=0, state=None, drain=1.0, templates=(TEMPLATE,))


class Place:
    """A server and clients of it."""

    def __init__(self, url: str, server: ExecdServer, client: httpx2.AsyncClient, log: Recorder) -> None:
        self.url, self.server, self.client, self.log = url, server, client, log

    async def sandbox(self) -> Sandbox:
        return await self.server.sandbox()

    async def terminal(self, **fields: Any) -> str:
        """Make a terminal; return its id."""
        answer = await self.client.post("/pty", json=fields)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["session_id"])

    def socket(self, id: str, query: str = "", token: str = TOKEN) -> connect:
        """Return a connection to a terminal that is to be opened."""
        url = f"{self.url.replace('http', 'ws', 1)}/pty/{id}/ws{query}"
        return connect(url, additional_headers={"X-EXECD-ACCESS-TOKEN": token}, open_timeout=10)

    async def run(self, command: str) -> str:
        """Run a command; return its output."""
        answer = await self.client.post("/command", json={"command": command})
        events = [json.loads(frame) for frame in answer.text.split("\n\n") if frame]
        return "\n".join(event["text"] for event in events if event["type"] == "stdout")


@asynccontextmanager
async def served(token: str | None = TOKEN, **settings: Any) -> AsyncIterator[Place]:
    log = Recorder()
    engine = Engine(LazyRuntimes())
    server = ExecdServer(
        replace(SETTINGS, **settings),
        token,
        engine=engine,
        logger=make_logger("debug", "json", log),  # type: ignore[arg-type]
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.aclose)
        url = await stack.enter_async_context(serving(server))
        headers = {} if token is None else {"X-EXECD-ACCESS-TOKEN": token}
        client = httpx2.AsyncClient(base_url=url, headers=headers, timeout=30)
        yield Place(url, server, await stack.enter_async_context(client), log)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with served() as made:
        yield made


# ------------------------------------------------------------------------------------ the documentation

DOCUMENTED = r"""
curl -X POST http://localhost:44772/code/context \
-H "X-EXECD-ACCESS-TOKEN: your-token" \
-H "Content-Type: application/json" \
-d '{
"language": "python"
}'
---
curl -X POST http://localhost:44772/code \
-H "X-EXECD-ACCESS-TOKEN: your-token" \
-H "Content-Type: application/json" \
-d '{
"context": {
"id": "session-123",
"language": "python"
},
"code": "print(\"Hello, World!\")\nresult = 2 + 2\nresult"
}'
---
curl -X GET "http://localhost:44772/code/contexts?language=python" \
-H "X-EXECD-ACCESS-TOKEN: your-token"
---
curl -X GET http://localhost:44772/code/contexts/session-abc123 \
-H "X-EXECD-ACCESS-TOKEN: your-token"
---
curl -X DELETE "http://localhost:44772/code?id=session-123" \
-H "X-EXECD-ACCESS-TOKEN: your-token"
---
curl -X DELETE http://localhost:44772/code/contexts/session-abc123 \
-H "X-EXECD-ACCESS-TOKEN: your-token"
---
curl -X DELETE "http://localhost:44772/code/contexts?language=python" \
-H "X-EXECD-ACCESS-TOKEN: your-token"
"""
"""The lines of OpenSandbox's documentation as they are; ``session-…`` stands for the id that the first one returns."""


async def shell(line: str) -> str:
    """Run a line as its reader would; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f"set -e; {line}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()


async def test_the_lines_of_the_documentation(place: Place) -> None:
    """They work as they are printed, but for the port and the id that a context got."""
    port = place.url.rsplit(":", 1)[1]
    create, run, list_, get, interrupt, remove, remove_all = DOCUMENTED.replace("44772", port).split("---\n")
    context = json.loads(await shell(create))
    assert context.keys() == {"id", "language"}

    def own(line: str) -> str:
        return re.sub("session-(abc)?123", context["id"], line)

    events = [json.loads(frame) for frame in (await shell(own(run))).split("\n\n") if frame]
    kinds = [event["type"] for event in events]
    assert kinds == ["init", "ping", "stdout", "execution_count", "result", "execution_complete"]
    assert events[2]["text"] == "Hello, World!\n"
    assert events[4]["results"]["text/plain"] == "4"
    assert json.loads(await shell(list_)) == [context]
    assert json.loads(await shell(own(get))) == context
    assert await shell(own(interrupt)) == ""
    assert await shell(own(remove)) == ""
    assert json.loads(await shell(list_)) == []
    assert await shell(remove_all) == ""


# ------------------------------------------------------------------------------------------ who may come


async def test_tokens(place: Place) -> None:
    """Without the token nothing is answered, not even a ping; the refusal is upstream's."""
    assert (await place.client.get("/ping")).status_code == 200
    for headers in (
        {},
        {"X-EXECD-ACCESS-TOKEN": "wrong"},
        {"X-EXECD-ACCESS-TOKEN": ""},
        {"x-execd-access-token": "é"},
    ):
        async with httpx2.AsyncClient(base_url=place.url) as stranger:
            raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
            for path in ("/ping", "/code/contexts", "/proxy/80/", "/absent"):
                answer = await stranger.get(path, headers=raw)
                assert answer.status_code == 401
                assert answer.json() == {
                    "error": "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN"
                }
    with pytest.raises(InvalidStatus):
        async with place.socket(await place.terminal(), token="wrong"):
            pass
    assert "your-token" not in place.log.text


async def test_without_a_token() -> None:
    """Programs of this machine may come in, pages in a browser may not, and neither may other names of the host."""
    async with served(None) as place:
        assert (await place.client.get("/ping")).status_code == 200
        assert (await place.client.get("/ping", headers={"origin": "http://evil.example"})).status_code == 401
        assert (await place.client.get("/ping", headers={"host": "evil.example"})).status_code == 421


@pytest.mark.parametrize(
    ("token", "host"), [(None, "0.0.0.0"), ("", "127.0.0.1"), ("a\nb", "127.0.0.1"), ("é", "127.0.0.1")]
)
def test_settings_that_let_anybody_in(token: str | None, host: str) -> None:
    """They are refused before anything is served."""
    with pytest.raises(InvalidRequest):
        ExecdServer(replace(SETTINGS, host=host), token)


def test_an_unknown_template() -> None:
    """It is refused by its name."""
    with pytest.raises(InvalidRequest, match="nothing"):
        ExecdServer(SETTINGS, TOKEN, "nothing")


async def test_another_sandbox_takes_the_place(place: Place) -> None:
    """Where the sandbox has ended, the next request finds a new one, and the log tells why."""
    await place.run("echo kept > /tmp/kept")
    await (await place.sandbox()).kill(message="for a test")
    assert "kept" not in await place.run("ls /tmp")
    assert "for a test" in place.log.text


async def test_the_server_does_not_outlive_its_sandbox() -> None:
    """At the end of the server nothing of the sandbox is left."""
    async with served() as place:
        sandbox = await place.sandbox()
    assert sandbox.state == "ended"


async def test_unknown_routes(place: Place) -> None:
    """404 and 405, in the shape of every other error."""
    for method, path, status in [
        ("GET", "/", 404),
        ("GET", "/absent", 404),
        ("POST", "/code/contexts/a/b", 404),
        ("PUT", "/code", 405),
        ("GET", "/session/x/run", 405),
        ("GET", "//code", 404),
        ("GET", "/code/contexts/..%2f..%2fx", 404),
        ("GET", "/pty/x/ws", 404),
    ]:
        answer = await place.client.request(method, path)
        assert answer.status_code == status, (method, path)
        assert answer.json().keys() == {"code", "message"}


# --------------------------------------------------------------------------------------------- terminals


async def said(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """Return the next message of a kind."""
    async with asyncio.timeout(10):
        while True:
            message = await socket.recv()
            if isinstance(message, str) and (told := json.loads(message))["type"] == kind:
                return dict(told)


async def shown(socket: ClientConnection, text: bytes, channel: int = 1) -> bytes:
    """Return what comes over a channel, until ``text`` is in it."""
    seen = b""
    async with asyncio.timeout(10):
        while text not in seen:
            message = await socket.recv()
            if isinstance(message, bytes) and message[0] == channel:
                seen += message[1:] if channel != 3 else message[9:]
    return seen


def typed(text: str) -> bytes:
    return b"\0" + text.encode()


async def test_a_terminal(place: Place) -> None:
    """Bytes in both directions, a size, signals, pings; at the shell's end the exit code and a clean close."""
    id = await place.terminal(cwd="/tmp")
    assert (await place.client.get(f"/pty/{id}")).json() == {
        "session_id": id,
        "running": False,
        "output_offset": 0,
    }
    async with place.socket(id) as socket:
        assert await said(socket, "connected") == {"type": "connected", "session_id": id, "mode": "pty"}
        await socket.send(typed("echo at $PWD; stty size\n"))
        seen = await shown(socket, b"24 80")
        assert b"at /tmp" in seen
        await socket.send(json.dumps({"type": "resize", "cols": 120, "rows": 40}))
        await socket.send(json.dumps({"type": "stdin", "data": "stty size\n"}))
        await shown(socket, b"40 120")
        await socket.send(json.dumps({"type": "ping"}))
        assert await said(socket, "pong") == {"type": "pong"}
        status = (await place.client.get(f"/pty/{id}")).json()
        assert status["running"] is True
        assert status["output_offset"] > 0
        await socket.send(typed("exit 3\n"))
        assert await said(socket, "exit") == {"type": "exit", "exit_code": 3}
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "process exited")


async def test_a_shell_that_speaks_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes before its first client can be served comes to that client as new, each stream on its channel."""
    start = Terminal.start

    async def start_and_wait(self: Terminal, mode: Mode) -> Exec:
        exec_ = await start(self, mode)
        await exec_.wait()
        return exec_

    monkeypatch.setattr(Terminal, "start", start_and_wait)
    id = await place.terminal(command="echo out; echo err >&2")
    for since in (
        0,
        4,
    ):  # the second client has a shell of its own again, and the first one's output before it
        async with place.socket(id, f"?pty=0&since={since}") as socket:
            messages = [message async for message in socket if isinstance(message, bytes)]
        replayed = [message for message in messages if message[0] == 3]
        assert sorted(messages[len(replayed) :]) == [b"\x01out\n", b"\x02err\n"]
        assert [(int.from_bytes(message[1:9], "big"), len(message) - 9) for message in replayed] == (
            [(4, 4)] if since else []
        )


async def test_pipes_instead_of_a_terminal(place: Place) -> None:
    """Each stream has its channel."""
    id = await place.terminal()
    async with place.socket(id, "?pty=0") as socket:
        assert (await said(socket, "connected"))["mode"] == "pipe"
        await socket.send(typed("echo out; echo error >&2; test -t 0 || echo none\n"))
        seen = {1: b"", 2: b""}
        async with asyncio.timeout(10):
            while b"none" not in seen[1] or b"error" not in seen[2]:
                message = await socket.recv()
                assert isinstance(message, bytes)
                seen[message[0]] += message[1:]
        assert seen == {1: b"out\nnone\n", 2: b"error\n"}


async def test_coming_back(place: Place) -> None:
    """The shell lives on; what it wrote since an offset is replayed, with the offset where that begins."""
    id = await place.terminal()
    async with place.socket(id) as socket:
        await said(socket, "connected")
        await socket.send(typed("A=kept; printf 'fi''rst\\n'\n"))
        await shown(socket, b"first")
    offset = (await place.client.get(f"/pty/{id}")).json()["output_offset"]
    async with place.socket(id, f"?since={offset}") as socket:
        await said(socket, "connected")
        await socket.send(typed("echo still $A\n"))
        await shown(socket, b"still kept")
    async with place.socket(id) as socket:
        replay = await socket.recv()
        assert isinstance(replay, bytes)
        assert replay[0] == 3
        assert int.from_bytes(replay[1:9], "big") == 0
        assert b"first" in replay
        assert b"still kept" in replay
    async with place.socket(id, f"?since={offset}") as socket:
        replay = await socket.recv()
        assert isinstance(replay, bytes)
        assert int.from_bytes(replay[1:9], "big") == offset
        assert b"first" not in replay


async def test_output_while_nobody_listens(place: Place) -> None:
    """It is kept, at most the last mebibyte of it."""
    id = await place.terminal(command="head -c 3000000 /dev/zero | tr '\\0' x; printf END; sleep 60")
    async with place.socket(id, "?pty=0") as socket:
        await said(socket, "connected")
    async with asyncio.timeout(20):
        while (await place.client.get(f"/pty/{id}")).json()["output_offset"] < 3_000_003:
            await asyncio.sleep(0.05)
    async with place.socket(id) as socket:
        replay = await socket.recv()
        assert isinstance(replay, bytes)
        assert int.from_bytes(replay[1:9], "big") == 3_000_003 - KEPT
        assert len(replay) == 9 + KEPT == 1024 * 1024
        assert replay.endswith(b"xEND")


async def test_two_clients(place: Place) -> None:
    """One has the terminal; another one is refused, or takes it over where it says so."""
    id = await place.terminal()
    async with place.socket(id) as first:
        await said(first, "connected")
        with pytest.raises(InvalidStatus) as refused:
            async with place.socket(id):
                pass
        assert refused.value.response.status_code == 409
        assert json.loads(refused.value.response.body)["code"] == "ALREADY_CONNECTED"
        await first.send(typed("B=there\n"))
        async with place.socket(id, "?takeover=1") as second:
            await said(second, "connected")
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await first.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "TAKEN_OVER")
            await second.send(typed("echo still $B\n"))
            await shown(second, b"still there")
    async with place.socket(id) as third:
        await said(third, "connected")


async def test_a_shell_is_started_again(place: Place) -> None:
    """A client that comes after the shell's end finds another one, and what the first one wrote."""
    id = await place.terminal()
    async with place.socket(id) as socket:
        await socket.send(typed("echo ol''der; exit\n"))
        await said(socket, "exit")
    async with place.socket(id) as socket:
        assert b"older" in await shown(socket, b"older", 3)
        await said(socket, "connected")
        await socket.send(typed("echo ne''wer\n"))
        await shown(socket, b"newer")


async def test_removing_a_terminal(place: Place) -> None:
    """The shell ends, its client is told, the id is unknown."""
    id = await place.terminal(command="sleep 1000")
    async with place.socket(id) as socket:
        await said(socket, "connected")
        assert (await place.client.delete(f"/pty/{id}")).status_code == 200
        with pytest.raises(ConnectionClosed):
            while True:
                await socket.recv()
    assert (await place.client.get(f"/pty/{id}")).status_code == 404
    assert (await place.client.delete(f"/pty/{id}")).json()["code"] == "CONTEXT_NOT_FOUND"
    assert "sleep 1000" not in await place.run("ps ax 2>/dev/null || cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    with pytest.raises(InvalidStatus) as refused:
        async with place.socket(id):
            pass
    assert refused.value.response.status_code == 404


async def test_signals_come_through(place: Place) -> None:
    """Also to what reads nothing, behind input that waits."""
    id = await place.terminal(
        command="trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    )
    async with place.socket(id, "?pty=0") as socket:
        await shown(socket, b"ready")
        for _ in range(50):
            await socket.send(typed("x" * 10_000))
        await socket.send(json.dumps({"type": "signal", "signal": "SIGINT"}))
        await shown(socket, b"caught")
        assert (await said(socket, "exit"))["exit_code"] == 5


async def test_malformed_messages(place: Place) -> None:
    """Each is answered with an error, and the connection goes on."""
    id = await place.terminal(command="cat")
    async with place.socket(id) as socket:
        await said(socket, "connected")
        for message in (
            "",
            "{",
            "[]",
            "{}",
            '{"type": 1}',
            '{"type": "x"}',
            '{"type": "signal", "signal": "SIGNOTHING"}',
            '{"type": "resize", "cols": 0, "rows": 5}',
            '{"type": "resize", "cols": 99999999, "rows": 5}',
            '{"type": "resize", "cols": "a"}',
            '"' + "x" * 1000,
        ):
            await socket.send(message)
            assert (await said(socket, "error"))["code"] == "INVALID_FRAME", message
        for ignored in (b"", b"\x01x", b"\xffx", b"\0"):
            await socket.send(ignored)
        await socket.send(typed("goes on\n"))
        await shown(socket, b"goes on")


async def test_terminals_that_cannot_be(place: Place) -> None:
    """A directory that is not there, and more than there may be."""
    bodies: list[Any] = [{"cwd": "/absent"}, {"cwd": 1}, {"command": 1}, []]
    for body in bodies:
        assert (await place.client.post("/pty", json=body)).status_code == 400
    for _ in range(100):
        await place.terminal()
    assert (await place.client.post("/pty")).status_code == 429


async def test_a_terminal_of_a_sandbox_that_ends(place: Place) -> None:
    """Its client is told that it is gone."""
    id = await place.terminal(command="sleep 1000")
    async with place.socket(id) as socket:
        await said(socket, "connected")
        await (await place.sandbox()).kill()
        assert (await said(socket, "error"))["code"] == "SESSION_GONE"


# ----------------------------------------------------------------------------------------------- ports

SERVER = """\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = (self.path + "\\n" + str(self.headers)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


async def test_ports(place: Place, tmp_path: Path) -> None:
    """A program is reached by its port, with the path as it was written, and is not told the token."""
    await place.client.post(
        "/files/upload",
        files=[
            ("metadata", ("metadata", json.dumps({"path": "/tmp/server.py"}), "application/json")),
            ("file", ("server.py", SERVER.encode(), "application/octet-stream")),
        ],
    )
    await place.client.post("/command", json={"command": "python3 /tmp/server.py", "background": True})
    async with asyncio.timeout(20):
        while (await place.client.get("/proxy/8000/")).status_code == 502:
            await asyncio.sleep(0.05)
    for path in ("/", "/a%2Fb/c?x=1&y=%20", "/a//b", ""):
        answer = await place.client.get(f"/proxy/8000{path}", headers={"cookie": "a=b"})
        assert answer.status_code == 200
        assert answer.text.split("\n")[0] == (path or "/")
        assert "your-token" not in answer.text
        assert "cookie" not in answer.text.lower()
        assert answer.headers["content-security-policy"].startswith("sandbox ")


async def test_ports_that_cannot_be(place: Place) -> None:
    """400 for what is no port, 502 where nobody listens: as text, which is upstream's."""
    for port in ("", "x", "0", "65536", "99999999999999999999", "-1", "80x", "%30"):
        answer = await place.client.get(f"/proxy/{port}/")
        assert (answer.status_code, answer.text) == (400, "port is required"), port
    answer = await place.client.get("/proxy/9/x")
    assert (answer.status_code, answer.text) == (502, "Bad Gateway")
    with pytest.raises(InvalidStatus) as refused:
        async with connect(
            f"{place.url.replace('http', 'ws', 1)}/proxy/9/",
            additional_headers={"X-EXECD-ACCESS-TOKEN": TOKEN},
        ):
            pass
    assert refused.value.response.status_code == 502


# -------------------------------------------------------------------------------------- metrics and rest


async def test_metrics(place: Place) -> None:
    """Numbers that can be, now: of the sandbox and its limits, not of the machine."""
    for _ in range(3):
        told = (await place.client.get("/metrics")).json()
        assert told.keys() == {"cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib", "timestamp"}
        assert told["cpu_count"] == 1.0
        assert 0 <= told["cpu_used_pct"] <= 100
        assert told["mem_total_mib"] == 512
        assert 0 <= told["mem_used_mib"] <= 512
        await asyncio.sleep(0.25)


async def test_watching_metrics(place: Place) -> None:
    """A line of JSON at once and every second."""
    lines = []
    async with asyncio.timeout(15), place.client.stream("GET", "/metrics/watch") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            lines.append(json.loads(line))
            if len(lines) == 3:
                break
    assert lines[0]["timestamp"] < lines[1]["timestamp"] < lines[2]["timestamp"]
    assert (await place.client.get("/ping")).status_code == 200


async def test_there_is_no_isolation_within(place: Place) -> None:
    """Isolated sessions are told as not available, in the words of a machine that has none."""
    told = (await place.client.get("/v1/isolated/capabilities")).json()
    assert told["available"] is False
    assert told["message"]
    assert (await place.client.get("/v1/isolated/sessions")).json() == {"sessions": []}
    made = await place.client.post("/v1/isolated/session", json={"workspace": {"path": "/tmp"}})
    assert (made.status_code, made.json()["code"]) == (501, "NOT_SUPPORTED")


async def test_bodies_that_are_too_large() -> None:
    """413, and the server goes on."""
    async with served(body_limit=10_000) as place:
        answer = await place.client.post("/code", json={"code": "1" * 20_000})
        assert answer.status_code == 413
        assert (await place.client.get("/ping")).status_code == 200
