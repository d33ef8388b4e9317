"""Ports over HTTP: who is let in from outside, and how far a sandbox gets through what the server opens inside it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cellfork.server.app import create_app
from cellfork.server.serving import serving
from cellfork.server.settings import load
from tests.security.catalogue import row

KEYS = {"one": "e2b_" + 40 * "1", "two": "e2b_" + 40 * "2"}
SECRET = "import http.server, threading\nopen('secret', 'w').write('mine')\nserver = http.server.ThreadingHTTPServer(('', 8000), http.server.SimpleHTTPRequestHandler)\nthreading.Thread(target=server.serve_forever, daemon=True).start()"


class Tenant:
    """One key's owner, with one sandbox."""

    def __init__(self, client: httpx2.AsyncClient, name: str) -> None:
        self.client, self.key = client, KEYS[name]
        self.sandbox: dict[str, Any] = {}

    async def create(self, **fields: Any) -> None:
        body = {"templateID": "base", "allow_internet_access": False, **fields}
        made = await self.client.post("/v2/sandboxes", headers={"X-API-KEY": self.key}, json=body)
        assert made.status_code == 201, made.text
        self.sandbox = made.json()

    def to(self, port: int, **headers: str) -> dict[str, str]:
        return {"E2b-Sandbox-Id": self.sandbox["sandboxID"], "E2b-Sandbox-Port": str(port), **headers}

    async def run(self, code: str) -> Any:
        """Run code that assigns ``answer`` and return it."""
        headers = self.to(49999, **{"X-Access-Token": self.sandbox["envdAccessToken"]})
        if "trafficAccessToken" in self.sandbox:
            headers["E2b-Traffic-Access-Token"] = self.sandbox["trafficAccessToken"]
        code += "\nimport json\nprint('ANSWER' + json.dumps(answer))"
        reply = await self.client.post("/execute", headers=headers, json={"code": code})
        lines = [json.loads(line) for line in reply.text.splitlines()]
        text = "".join(line["text"] for line in lines if line["type"] == "stdout")
        assert "ANSWER" in text, reply.text
        return json.loads(text.partition("ANSWER")[2])


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    keys = ",".join(f"{name}:{key}" for name, key in KEYS.items())
    flags = {"port": "0", "api_key": keys, "state": "none", "warm": False, "log_level": "error"}
    app = create_app(load(flags, {}, []).settings)
    async with serving(app) as url, httpx2.AsyncClient(base_url=url, timeout=60) as client:
        yield client


@row(
    "E22",
    "a private sandbox's ports ask for its token, whoever comes; paths, methods and WebSockets change nothing",
)
async def test_e22_a_port_asks_for_the_token(server: httpx2.AsyncClient) -> None:
    """A tenant that knows the id of another one's private sandbox gets nothing from its ports, and wakes nothing in it."""
    owner, other = Tenant(server, "one"), Tenant(server, "two")
    await owner.create(network={"allowPublicTraffic": False})
    await other.create(network={"allowPublicTraffic": False})
    await owner.run(SECRET + "\nanswer = 1")
    token = owner.sandbox["trafficAccessToken"]
    attempts = [
        {},
        {"E2b-Traffic-Access-Token": ""},
        {"E2b-Traffic-Access-Token": token[:-1]},
        {"E2b-Traffic-Access-Token": other.sandbox["trafficAccessToken"]},
        {"X-API-KEY": KEYS["one"]},
        {"X-Access-Token": owner.sandbox["envdAccessToken"]},
    ]
    for headers in attempts:
        for method, path in (("GET", "/secret"), ("POST", "/"), ("OPTIONS", "/secret"), ("GET", "//secret")):
            reply = await server.request(method, path, headers=owner.to(8000, **headers))
            assert (reply.status_code, b"mine" in reply.content) == (403, False), (headers, method, path)
    named = f"8000-{owner.sandbox['sandboxID']}.localhost"
    assert (await server.get("/secret", headers={"host": named})).status_code == 403
    allowed = await server.get("/secret", headers=owner.to(8000, **{"E2b-Traffic-Access-Token": token}))
    assert (allowed.status_code, allowed.text) == (200, "mine")


@row(
    "E02", "what the server listens on inside a sandbox leads to this sandbox's own planes, not to the server"
)
async def test_e02_the_servers_own_api_is_not_inside(server: httpx2.AsyncClient) -> None:
    """From inside neither the control plane, nor metrics, nor another sandbox is reached, whatever a request says; the
    server's own port is refused.
    """
    mine, neighbour = Tenant(server, "one"), Tenant(server, "two")
    await asyncio.gather(mine.create(), neighbour.create())
    await neighbour.run("answer = 1")
    port = server.base_url.port
    tries = await mine.run(
        f"""
import http.client
answer = []
for port, path, headers in (
    (49999, "/sandboxes", {{"X-API-KEY": "{KEYS["one"]}"}}),
    (49999, "/metrics", {{"X-API-KEY": "{KEYS["one"]}"}}),
    (49999, "/openapi.json", {{}}),
    (49983, "/v2/sandboxes", {{"X-API-KEY": "{KEYS["one"]}"}}),
    (49983, "/files?path=/etc/hostname", {neighbour.to(49983)!r}),
    (49999, "http://127.0.0.1:{port}/health", {{}}),
    (49999, "/health", {{"Host": "8000-{neighbour.sandbox["sandboxID"]}.localhost"}}),
):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    answer.append(reply.read().decode() if reply.status == 200 else reply.status)
try:
    http.client.HTTPConnection("127.0.0.1", {port}, timeout=10).request("GET", "/health")
except OSError as error:
    answer.append(type(error).__name__)
"""
    )
    own = '"OK"'  # the code plane's own word, not that of the server's /health
    assert tries == [404, 404, 404, 401, 401, own, own, "ConnectionRefusedError"]
