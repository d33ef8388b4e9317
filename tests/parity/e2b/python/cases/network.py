"""Ports of a sandbox seen from outside, and what it may reach itself."""

import asyncio

from harness import Client, Skipped, case, eventually, raises

SERVE = (
    'python3 -c "import http.server as h\n'
    "class H(h.BaseHTTPRequestHandler):\n"
    "  def do_GET(s):\n"
    "    b=('path '+s.path+' host '+s.headers['Host']).encode(); s.send_response(200)\n"
    "    s.send_header('content-length',str(len(b))); s.end_headers(); s.wfile.write(b)\n"
    "h.HTTPServer(('0.0.0.0',8000),H).serve_forever()\""
)


async def fetch(client: Client, sandbox, port: int, path: str = "/", headers=None):
    """Ask a port of a sandbox, the way this mode addresses it."""
    import httpx

    headers = dict(headers or {})
    if client.mode == "domain":
        url = f"https://{sandbox.get_host(port)}{path}"
    else:
        url = f"{sandbox.raw.envd_api_url}{path}"
        headers |= {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
    return await asyncio.to_thread(lambda: httpx.get(url, headers=headers, timeout=20))


@case()
async def a_port_is_reachable(client: Client) -> None:
    """A server inside a sandbox answers outside, and a closed port is told from a sandbox that is gone."""
    sandbox = await client.create()
    closed = await fetch(client, sandbox, 8000)
    assert closed.status_code == 502
    assert closed.json()["message"] == "The sandbox is running but port is not open", closed.text
    await sandbox.commands.run(SERVE, background=True, timeout=0)

    async def answers():
        answer = await fetch(client, sandbox, 8000, "/some/path?q=1")
        return answer if answer.status_code == 200 else None

    answer = await eventually(answers, "the server answered")
    assert answer.text.startswith("path /some/path?q=1 host ")
    await sandbox.kill()
    gone = await fetch(client, sandbox, 8000)
    assert gone.status_code == 502 and "not found" in gone.text


@case("Sandbox.create:network")
async def private_ports(client: Client) -> None:
    """Without public traffic, ports want the token of the sandbox."""
    sandbox = await client.create(network={"allow_public_traffic": False})
    await sandbox.commands.run(SERVE, background=True, timeout=0)
    token = {"e2b-traffic-access-token": sandbox.traffic_access_token}

    async def answers():
        return (await fetch(client, sandbox, 8000, headers=token)).status_code == 200

    await eventually(answers, "the server answered")
    assert (await fetch(client, sandbox, 8000)).status_code == 403
    wrong = {"e2b-traffic-access-token": "wrong"}
    assert (await fetch(client, sandbox, 8000, headers=wrong)).status_code == 403
    assert (await sandbox.run_code("1 + 1")).text == "2"


@case("Sandbox.create:allow_internet_access")
async def no_internet(client: Client) -> None:
    """A sandbox without internet access reaches nothing outside."""
    sandbox = await client.create(allow_internet_access=False)
    async with raises("CommandExitException"):
        await sandbox.commands.run("curl -s --max-time 5 http://1.1.1.1", timeout=15)


@case("Sandbox.update_network")
async def update_network(client: Client) -> None:
    """What a sandbox may reach can be changed while it runs, and is told by its information."""
    sandbox = await client.create()
    await sandbox.update_network({"deny_out": [client.e2b.ALL_TRAFFIC]})
    info = await sandbox.get_info()
    assert info.network["deny_out"] == [client.e2b.ALL_TRAFFIC]
    async with raises("CommandExitException"):
        await sandbox.commands.run("curl -s --max-time 5 http://1.1.1.1", timeout=15)
    await client.Sandbox.update_network(sandbox.sandbox_id, {})
    info = await sandbox.get_info()
    assert not (info.network or {}).get("deny_out")


@case("Sandbox.create:network")
async def what_cannot_be_honoured(client: Client) -> None:
    """A proxy for traffic out, which there is none of, is a clear error, not a sandbox without it."""
    if not client.has("Sandbox.update_network"):
        raise Skipped("this generation knows no egress proxy")
    async with raises("SandboxException", "InvalidArgumentException", containing="roxy"):
        await client.create(network={"egress_proxy": {"address": "proxy.example.com:1080"}})
