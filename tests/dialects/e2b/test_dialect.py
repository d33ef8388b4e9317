"""The dialect as a whole: which part of it answers, who is let in, what is woken, what programs inside see."""

import asyncio
import socket
from urllib.parse import quote

import pytest

from cellfork.dialects import inside
from cellfork.dialects.e2b.addressing import CODE_PORT, ENVD_PORT, sign
from cellfork.dialects.e2b.notes import notes_of
from cellfork.model.specs import SandboxSpec
from tests.dialects.conftest import PORT, Place, answering, length
from tests.server.conftest import connected

NOT_FOUND = "The sandbox was not found"
PLANES = (ENVD_PORT, CODE_PORT)


async def health(place: Place, port: int, **headers: str):
    wire = await place.connect()
    return await wire.ask("GET", "/health", **{**place.to(port), **headers})


async def test_each_port_has_its_answerer(place: Place):
    """The planes answer on their ports, programs on theirs, the control plane where no sandbox is named."""
    await place.run(answering(length(b"program")))
    assert (await health(place, ENVD_PORT)).status == 204
    assert (await health(place, CODE_PORT)).json == "OK"
    assert (await place.ask()).body == b"program"
    assert (await (await place.connect()).ask("GET", "/sandboxes")).status == 401


async def test_host_names_lead_there_too(place: Place):
    """The same by ``{port}-{id}.localhost``, without headers."""
    await place.run(answering(length(b"program")))
    for port, status in ((ENVD_PORT, 204), (CODE_PORT, 200), (PORT, 200)):
        wire = await place.connect()
        assert (
            await wire.ask("GET", "/health", host=f"{port}-{place.sandbox.id}.localhost:80")
        ).status == status


@pytest.mark.parametrize("port", [ENVD_PORT, CODE_PORT, PORT])
async def test_a_sandbox_that_is_gone(place: Place, port):
    """Every port of a sandbox that never was, has ended, or belongs to another dialect answers 502 in upstream's words:
    that is how clients learn that it is not running.
    """
    foreign = await place.engine.create(SandboxSpec(isolation="fake"))
    ended = place.sandbox.id
    await place.sandbox.kill()
    for id in ("i0000never", ended, foreign.id):
        reply = await health(place, port, e2b_sandbox_id=id)
        assert reply.status == 502
        assert reply.json == {"sandboxId": id, "message": NOT_FOUND, "code": 502}


async def test_a_closed_port(place: Place):
    """A port where no program listens answers 502 with the port, in upstream's words."""
    reply = await place.ask()
    assert reply.status == 502
    message = "The sandbox is running but port is not open"
    assert reply.json == {"sandboxId": place.sandbox.id, "message": message, "port": PORT, "code": 502}
    assert reply.headers["content-type"] == "application/json"


async def test_people_get_a_page(place: Place):
    """A browser is shown the same as a page, which runs nothing, and in which nothing of the request can be markup."""
    reply = await place.ask(accept="text/html,application/xhtml+xml")
    assert (reply.status, reply.headers["content-type"]) == (502, "text/html; charset=utf-8")
    assert b"port is not open" in reply.body
    assert b"<script" not in reply.body
    reply = await place.ask(accept="text/html", e2b_sandbox_id="<script>")
    assert b"<script>" not in reply.body


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"e2b_sandbox_port": "none"}, "Invalid sandbox port"),
        ({"e2b_sandbox_id": "no/id"}, "Invalid sandbox ID"),
    ],
)
async def test_half_an_address(place: Place, headers, message):
    """What cannot be an address is a clear 400."""
    reply = await place.ask(**headers)
    assert (reply.status, reply.json) == (400, {"code": 400, "message": message})


async def test_private_traffic(place: Place):
    """Where a sandbox's traffic is private every port but envd's asks for the token, and never shows it to the program."""
    place.sandbox = await place.new_sandbox(traffic_token="secret")
    seen: list[bytes] = []

    async def program(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(length(b"in"))

    await place.run(program)
    assert (await health(place, ENVD_PORT)).status == 204
    wrong = {"e2b_traffic_access_token": "wrong"}
    for replies, message in (
        ((await place.ask(), await health(place, CODE_PORT)), "is missing"),
        ((await health(place, PORT, **wrong), await health(place, CODE_PORT, **wrong)), "is invalid"),
    ):
        for reply in replies:
            assert reply.status == 403
            assert reply.json["message"].endswith(message)
            assert "'e2b-traffic-access-token'" in reply.json["message"]
    assert seen == []
    assert (await place.ask(e2b_traffic_access_token="secret")).body == b"in"
    assert b"secret" not in seen[0]
    assert (await health(place, CODE_PORT, e2b_traffic_access_token="secret")).status == 200


async def test_a_signed_address_of_a_file(place: Place):
    """``/files`` without any address is that of the sandbox whose token signed it."""
    await place.new_sandbox(envd_token="other")
    place.sandbox = await place.new_sandbox(envd_token="token")
    signature = quote(sign("/home/user/a:read::token:1"), safe="")
    query = f"path=/home/user/a&signature={signature}&signature_expiration=1"
    reply = await (await place.connect()).ask("GET", f"/files?{query}")
    assert (reply.status, reply.json["message"]) == (401, "signature is already expired")
    reply = await (await place.connect()).ask("GET", "/files?path=/home/user/a&signature=v1_wrong")
    assert reply.status == 404


# --------------------------------------------------------------------------------------------- paused


async def test_a_paused_sandbox_is_not_found(place: Place):
    """A sandbox that sleeps answers as one that is gone, unless traffic is to wake it."""
    await place.run(answering(length(b"awake")))
    await place.sandbox.pause()
    for port in (*PLANES, PORT):
        assert (await health(place, port)).json["message"] == NOT_FOUND
    assert place.sandbox.state == "paused"


@pytest.mark.parametrize("port", [ENVD_PORT, CODE_PORT, PORT])
async def test_traffic_wakes(place: Place, port):
    """Where its creator asked for it, a request to any port wakes a paused sandbox, for as long as it was created for;
    requests that come at once are all answered.
    """
    place.sandbox = await place.new_sandbox(auto_resume=True, timeout=77)
    await place.run(answering(length(b"awake")))
    await place.sandbox.pause()
    replies = await asyncio.gather(*(health(place, port) for _ in range(5)))
    assert {reply.status for reply in replies} <= {200, 204}
    assert place.sandbox.state == "running"
    left = (place.sandbox.deadline or 0) - place.engine.settings.clock.time_ns() / 1e9
    assert 70 < left <= 77


async def test_traffic_does_not_wake_what_kept_its_files_alone(place: Place):
    """What ran there is gone: only who asks for the sandbox wakes it."""
    place.sandbox = await place.new_sandbox(auto_resume=True)
    await place.sandbox.pause(memory=False)
    assert (await health(place, PORT)).json["message"] == NOT_FOUND
    assert place.sandbox.state == "paused"


async def test_strangers_do_not_wake(place: Place):
    """A request without the traffic token wakes nothing."""
    place.sandbox = await place.new_sandbox(auto_resume=True, traffic_token="secret")
    await place.sandbox.pause()
    assert (await place.ask()).status == 403
    assert place.sandbox.state == "paused"


# --------------------------------------------------------------------------------------------- inside


async def opened(place: Place, port: int) -> int:
    """Return the port of this machine where ``port`` is served inside, once it is."""
    for _ in range(100):
        if port in place.guest.listening:
            return place.guest.listening[port][1]
        await asyncio.sleep(0.01)
    raise AssertionError(f"nothing listens on {port}")


async def test_programs_inside_reach_both_planes(place: Place):
    """The first request for a sandbox opens both ports inside it; what needs no token inside is answered without one."""
    place.sandbox = await place.new_sandbox(envd_token="secret")
    await health(place, ENVD_PORT)
    async with connected(await opened(place, CODE_PORT)) as wire:
        assert (await wire.ask("GET", "/health", host="0.0.0.0:49999")).json == "OK"
    async with connected(await opened(place, ENVD_PORT)) as wire:
        assert (await wire.ask("GET", "/health", host="anything")).status == 204
        assert (await wire.ask("GET", "/envs")).status == 200
        refused = await wire.ask("GET", "/files?path=/home/user/a")
        assert refused.status == 401
    assert (await (await place.connect()).ask("GET", "/envs", **place.to(ENVD_PORT))).status == 401


async def test_inside_a_header_leads_nowhere_else(place: Place):
    """A program inside is in its own sandbox, whatever it says about another one."""
    other = await place.new_sandbox()
    await health(place, ENVD_PORT)
    async with connected(await opened(place, CODE_PORT)) as wire:
        reply = await wire.ask("GET", "/contexts", e2b_sandbox_id=other.id, e2b_sandbox_port="22")
        assert reply.status == 200
        assert (await wire.ask("GET", "/sandboxes")).status == 404
        assert (await wire.ask("GET", "/metrics")).status == 404


async def test_the_port_is_the_programs_that_had_it_first(place: Place):
    """Code that listens on such a port keeps it; the other port is served, and requests from outside are answered."""
    await place.run(answering(length(b"mine")), CODE_PORT)
    assert (await health(place, CODE_PORT)).json == "OK"
    await opened(place, ENVD_PORT)
    assert CODE_PORT not in place.guest.listening


async def test_the_doors_close_with_the_sandbox(place: Place):
    """When a sandbox ends, nothing listens for it any more, and connections from inside are cut."""
    await health(place, ENVD_PORT)
    port = await opened(place, CODE_PORT)
    async with connected(port) as wire:
        await wire.ask("GET", "/health")
        await place.sandbox.kill()
        assert await wire.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_connections_from_inside_are_bounded(place: Place, monkeypatch):
    """A program that connects without end is cut off at the bound, and the server goes on."""
    monkeypatch.setattr(inside, "MOST_CONNECTIONS", 3)
    await health(place, ENVD_PORT)
    port = await opened(place, CODE_PORT)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    for each in (writer, *(one for _, one in held)):
        each.close()
        await asyncio.gather(each.wait_closed(), return_exceptions=True)
    await asyncio.sleep(0.05)
    async with connected(port) as wire:
        assert (await wire.ask("GET", "/health")).status == 200


async def test_adopted_sandboxes_are_served_inside(place: Place):
    """A server that starts with sandboxes of the one before opens their ports before anybody asks."""
    assert place.server.app.parts is not None
    (dialect,) = [one for one in place.server.app.parts.dialects if one.name == "e2b"]
    assert place.guest.listening == {}
    await dialect.start()
    for port in PLANES:
        await opened(place, port)


async def test_a_sandbox_with_new_processes_is_served_again(place: Place):
    """What came back from its files alone has new ports inside."""
    await health(place, ENVD_PORT)
    await opened(place, CODE_PORT)
    first = place.guest
    place.sandbox.guest = type(first)(place.sandbox.spec)
    await health(place, ENVD_PORT)
    await opened(place, CODE_PORT)
    place.sandbox.guest = first
    assert notes_of(place.sandbox) is not None


async def test_hostile_http_from_inside(place: Place):
    """What a program inside sends that is no request is refused, without a word in the log of a failure of ours."""
    await health(place, ENVD_PORT)
    port = await opened(place, CODE_PORT)
    for noise in (
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
    ):
        async with connected(port) as wire:
            await wire.send(noise + b"\r\n")
            answer = await wire.rest()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert "failed" not in [event["event"] for event in place.server.log.events]
