"""Ports of a real sandbox through a real server: programs inside are reached, and reach the planes."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from cellfork.server.app import create_app
from cellfork.server.serving import serving
from cellfork.server.settings import load

KEY = "e2b_" + 40 * "a"

PROGRAM = """
import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *_): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""
INSIDE = """
import subprocess
for url in ('http://0.0.0.0:49999/health', 'http://localhost:49983/health'):
    print(subprocess.run(['curl', '-s', '-o', '/dev/null', '-w', '%{http_code}', url], capture_output=True, text=True).stdout)
"""


class Api:
    """A client of the server, and one sandbox."""

    def __init__(self, client: httpx2.AsyncClient, sandbox: dict[str, Any]) -> None:
        self.client = client
        self.id, self.token = sandbox["sandboxID"], sandbox["envdAccessToken"]

    def to(self, port: int) -> dict[str, str]:
        return {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port), "X-Access-Token": self.token}

    async def run(self, code: str) -> str:
        reply = await self.client.post("/execute", headers=self.to(49999), json={"code": code})
        lines = [json.loads(line) for line in reply.text.splitlines()]
        assert not [line for line in lines if line["type"] == "error"], lines
        return "".join(line["text"] for line in lines if line["type"] == "stdout")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    flags = {"port": "0", "api_key": KEY, "state": "none", "warm": False, "log_level": "error"}
    app = create_app(load(flags, {}, []).settings)
    async with serving(app) as url, httpx2.AsyncClient(base_url=url, timeout=60) as client:
        made = await client.post(
            "/v2/sandboxes",
            headers={"X-API-KEY": KEY},
            json={"templateID": "base", "allow_internet_access": False},
        )
        assert made.status_code == 201, made.text
        yield Api(client, made.json())


async def test_a_program_inside_is_reached(api: Api):
    """What a program inside answers comes back, a large body too; a port without one is closed."""
    closed = await api.client.post("/", headers=api.to(8000), content=b"x")
    assert (closed.status_code, closed.json()["port"]) == (502, 8000)
    await api.run(PROGRAM)
    body = bytes(range(256)) * 20_000
    reply = await api.client.post("/echo", headers=api.to(8000), content=body)
    assert (reply.status_code, reply.content == body) == (200, True)
    by_name = await api.client.post("/", headers={"host": f"8000-{api.id}.localhost"}, content=b"named")
    assert by_name.content == b"named"


async def test_a_websocket_inside_is_reached(api: Api):
    """A WebSocket server inside, here the smallest one there is, is reached as well."""
    await api.run(
        """
import base64, hashlib, socket, threading
def serve(listener):
    connection, _ = listener.accept()
    head = b''
    while not head.endswith(b'\\r\\n\\r\\n'):
        head += connection.recv(1)
    key = [line[19:].strip() for line in head.split(b'\\r\\n') if line.lower().startswith(b'sec-websocket-key')][0]
    accept = base64.b64encode(hashlib.sha1(key + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())
    connection.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n'
                       b'Sec-WebSocket-Accept: ' + accept + b'\\r\\n\\r\\n' + b'\\x81\\x05hello')
    connection.recv(100)
threading.Thread(target=serve, args=(socket.create_server(('127.0.0.1', 8001)),), daemon=True).start()
"""
    )
    url = str(api.client.base_url).replace("http", "ws", 1)
    async with connect(url, additional_headers=api.to(8001)) as socket:
        assert await asyncio.wait_for(socket.recv(), 10) == "hello"


async def test_the_planes_answer_inside(api: Api):
    """Programs inside find both planes at the addresses that upstream's have, in the very first request to a sandbox."""
    assert await api.run(INSIDE) == "200\n204\n"


async def test_nothing_inside_can_end_them(api: Api):
    """Killing whatever is called like upstream's servers changes nothing: there is no such process inside."""
    for name in ("jupyter server", "uvicorn main:app"):
        await api.run(f"import subprocess; subprocess.run(['bash', '-c', 'kill -9 $(pgrep -f \"{name}\")'])")
        assert await api.run(INSIDE) == "200\n204\n"
        assert await api.run("print(1 + 1)") == "2\n"


async def test_a_program_takes_a_port_only_where_it_is_free(api: Api):
    """Code that wants the port of a plane is told that it is taken."""
    told = await api.run(
        "import socket\ntry: socket.create_server(('0.0.0.0', 49999))\nexcept OSError as error: print(error.errno)"
    )
    assert told == "98\n"
