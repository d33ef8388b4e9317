"""Ports of sandboxes: who gets in, what programs inside are told, and what a page of theirs may do."""

import asyncio
import time

import pytest

from cellfork.dialects.opensandbox.access import may_enter, signed
from cellfork.dialects.opensandbox.gateway import is_port
from tests.dialects.opensandbox.conftest import Place

ECHO = """
import http.server
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{self.requestline}\\n{self.headers}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
http.server.HTTPServer(("127.0.0.1", 8123), Echo).serve_forever()
"""


async def program(place: Place, id: str) -> str:
    """Run a program on port 8123 that tells what it was asked; return its address."""
    url, headers = await place.endpoint(id, 44772)
    body = {"command": f"python3 -c '{ECHO}'", "background": True}
    await place.client.post(f"{url}/command", json=body, headers=headers)
    address, _headers = await place.endpoint(id, 8123)
    for _ in range(200):
        if (await place.client.get(address, headers=headers)).status_code != 502:
            return address
        await asyncio.sleep(0.02)
    raise AssertionError("the program did not come up")


async def test_addresses(place) -> None:
    """An address is the same in both modes, has no scheme, and ends with the port; a port that is none is 400."""
    id = (await place.create())["id"]
    told = await place.client.get(f"/v1/sandboxes/{id}/endpoints/44772")
    proxied = await place.client.get(f"/v1/sandboxes/{id}/endpoints/44772?use_server_proxy=true")
    assert (
        told.json()
        == proxied.json()
        == {"endpoint": f"{place.url.partition('//')[2]}/sandboxes/{id}/proxy/44772"}
    )
    for port in ("0", "65536", "-1", "x", "1e3", "٤"):
        answer = await place.client.get(f"/v1/sandboxes/{id}/endpoints/{port}")
        assert (answer.status_code, answer.json()["code"]) == (400, "DOCKER::INVALID_PORT"), port


async def test_programs_are_told_no_secret(place) -> None:
    """Path and query come as they were sent; keys, tokens and cookies do not; the key of the server opens nothing inside."""
    id = (await place.create())["id"]
    address = await program(place, id)
    headers = {
        "OpenSandbox-Secure-Access": "x",
        "OPENSANDBOX-EGRESS-AUTH": "y",
        "Cookie": "c=1",
        "X-Mine": "z",
    }
    told = (await place.client.get(f"{address}/a%2Fb/../c?d=%20e", headers=headers)).text
    assert told.startswith("GET /")
    assert "?d=%20e HTTP/1.1" in told
    lowered = told.lower()
    assert "x-mine: z" in lowered
    for hidden in ("open-sandbox-api-key", "secure-access", "egress-auth", "cookie"):
        assert hidden not in lowered


async def test_an_encoded_slash_is_no_slash(place) -> None:
    """What a client encoded stays encoded for the program, and never changes whose port is meant."""
    id = (await place.create())["id"]
    address = await program(place, id)
    assert "GET /x%2F..%2Fy HTTP" in (await place.client.get(f"{address}/x%2F..%2Fy")).text
    for path in (
        f"/sandboxes/{id}%2Fproxy/8123/",
        f"/sandboxes/{id}/proxy%2F8123/",
        "/sandboxes//proxy/8123/",
        f"/sandboxes/{id}/proxy/99999/x",
    ):
        assert (await place.client.get(path)).status_code in {401, 404}, path


async def test_pages_of_sandboxes_have_no_origin(place) -> None:
    """A page that a program serves is confined: it is no part of the server's own origin, which all sandboxes share."""
    id = (await place.create())["id"]
    answer = await place.client.get(await program(place, id))
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy


async def test_a_port_where_nothing_listens(place) -> None:
    """It is 502, in the API's own form; so is one that is only reached by a sandbox that has ended: 404."""
    id = (await place.create())["id"]
    address, _headers = await place.endpoint(id, 8124)
    answer = await place.client.get(address)
    assert (answer.status_code, answer.json().keys()) == (502, {"code", "message"})
    await place.client.delete(f"/v1/sandboxes/{id}")
    assert (await place.client.get(address)).status_code == 404


async def test_secure_access(place) -> None:
    """With it every port asks for the header that its endpoint tells, execd as well; a signed one opens its port until its time."""
    told = await place.create(secureAccess=True)
    assert "OpenSandbox" not in str(told)
    url, headers = await place.endpoint(told["id"], 44772)
    until = int(time.time()) + 60
    _url, lent = await place.endpoint(told["id"], 44772, expires=str(until))
    _url, other = await place.endpoint(told["id"], 8123, expires=str(until))
    token = headers["OpenSandbox-Secure-Access"]
    assert token not in str(lent)
    for wrong in ({}, {"OpenSandbox-Secure-Access": ""}, {"OpenSandbox-Secure-Access": token[:-1] + "x"}, other,
                  {"OpenSandbox-Secure-Access": lent["OpenSandbox-Secure-Access"].replace(str(until), str(until + 1))}):  # fmt: skip
        answer = await place.client.get(f"{url}/ping", headers=wrong)
        assert (answer.status_code, answer.json()["code"]) == (401, "SANDBOX::UNAUTHORIZED"), wrong
    for right in (headers, lent):
        assert (await place.client.get(f"{url}/ping", headers=right)).status_code == 200
    path = f"/v1/sandboxes/{told['id']}/endpoints/44772"
    for query in (f"expires={until}&use_server_proxy=true", "expires=1", "expires=x", "expires=" + "9" * 30):
        assert (await place.client.get(f"{path}?{query}")).status_code == 400
    plain = (await place.create())["id"]
    assert (await place.client.get(f"/v1/sandboxes/{plain}/endpoints/1?expires={until}")).status_code == 400


def test_what_was_lent_ends() -> None:
    """A signature holds for its port and before its time; nothing that was made without the token is one."""
    lent = signed("token", 80, 1000)
    assert may_enter("token", lent, 80, 999.9)
    assert not may_enter("token", lent, 80, 1000.0)
    assert not may_enter("token", lent, 81, 999.9)
    assert not may_enter("other", lent, 80, 999.9)
    for nonsense in (None, "", "-", "80-1000-", "80-x-" + "0" * 64, "\ud800", "80-1000"):
        assert not may_enter("token", nonsense, 80, 1.0)
    assert may_enter(None, None, 80, 1.0)


async def test_the_policy_asks_for_its_token(place) -> None:
    """Port 18080 is open to whoever was told its header, and to nobody else: also code inside knows the id of no sandbox."""
    id = (await place.create())["id"]
    url, headers = await place.endpoint(id, 18080)
    assert (await place.client.get(f"{url}/policy")).status_code == 401
    wrong = {"OPENSANDBOX-EGRESS-AUTH": "x" * 64}
    assert (await place.client.get(f"{url}/policy", headers=wrong)).status_code == 401
    assert (await place.client.get(f"{url}/policy", headers=headers)).status_code == 200


async def test_execd_is_there_inside(place) -> None:
    """A program inside finds execd on its port, and something that listens where upstream has Jupyter, before its own first line."""
    id = (await place.create())["id"]
    probing = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/44771' && echo there"
    assert await place.shell(id, probing) == "there"
    asking = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:44772/ping; curl -s http://127.0.0.1:44771/api"
    assert (await place.shell(id, asking)).startswith("200{")


async def test_websockets_pass(place) -> None:
    """A WebSocket is passed on to the program, and refused for a sandbox that is not there."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    id = (await place.create())["id"]
    url, headers = await place.endpoint(id, 44772)
    made = await place.client.post(f"{url}/pty", json={}, headers=headers)
    session = made.json()["session_id"]
    async with connect(f"{url.replace('http', 'ws', 1)}/pty/{session}/ws") as socket:
        assert "connected" in str(await asyncio.wait_for(socket.recv(), 10))
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"{url.replace('http', 'ws', 1).replace(id, 'i' * 32)}/pty/{session}/ws"):
            pass
    assert refused.value.response.status_code == 404


def test_paths_of_ports() -> None:
    """A path is one of a port where id and port are one part each, the port a number; with the version or without."""
    for path in (
        "/sandboxes/a/proxy/1",
        "/sandboxes/a/proxy/1/",
        "/v1/sandboxes/a/proxy/1/x/y",
        "/sandboxes/a/proxy/1/\n",
    ):
        assert is_port(path), path
    for path in (
        "/sandboxes/a/proxy/",
        "/sandboxes/a/proxy/1x",
        "/sandboxes/a/b/proxy/1",
        "/sandboxes/A/proxy/1",
        "/x/sandboxes/a/proxy/1",
    ):
        assert not is_port(path), path
