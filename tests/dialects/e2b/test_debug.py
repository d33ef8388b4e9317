"""Debug addressing: three listeners, one sandbox behind them, nobody else's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial

import pytest
from uvicorn.server import ServerState

from cellfork.dialects.e2b.addressing import CODE_PORT, ENVD_PORT
from cellfork.dialects.e2b.debug import API_PORT, HOST, ID
from cellfork.server.protocol import speaker
from tests.dialects.conftest import Place
from tests.server.conftest import KEY, OTHER_KEY, Reply, connected


@dataclass
class Listeners:
    """The debug listeners, each on some port of this machine."""

    place: Place
    ports: dict[int, int]

    async def ask(
        self, port: int, method: str = "GET", path: str = "/health", body: bytes = b"", **headers: str
    ) -> Reply:
        async with connected(self.ports[port]) as wire:
            return await wire.ask(method, path, body, **headers)


@pytest.fixture
async def debug(place: Place) -> AsyncIterator[Listeners]:
    app = place.server.app
    app.settings = replace(app.settings, e2b_debug=True)
    loop, ports = asyncio.get_running_loop(), {}
    async with AsyncExitStack() as stack:
        for host, port, answers in app.extra_listeners():
            speaks = speaker(answers, app.settings, ServerState())
            listening = await loop.create_server(partial(speaks, {}), host, 0)
            stack.callback(listening.close)
            ports[port] = listening.sockets[0].getsockname()[1]
        yield Listeners(place, ports)


def debugged(place: Place) -> list[str]:
    return [one.id for one in place.engine.list() if one is not place.sandbox]


async def test_the_listeners_are_where_clients_look(place: Place):
    """The ports are those that E2B's SDKs have built in, on loopback alone, and only where they were asked for."""
    app = place.server.app
    assert app.extra_listeners() == []
    app.settings = replace(app.settings, e2b_debug=True)
    found = [(host, port) for host, port, _ in app.extra_listeners()]
    assert found == [(HOST, port) for port in (API_PORT, ENVD_PORT, CODE_PORT)]
    assert (HOST, API_PORT, ENVD_PORT, CODE_PORT) == ("127.0.0.1", 3000, 49983, 49999)


async def test_one_sandbox_stands_behind_all(debug: Listeners):
    """The sandbox is made with the first request, once however many come, and serves without any token."""
    assert debugged(debug.place) == []
    asked = [debug.ask(port) for port in (ENVD_PORT, CODE_PORT) for _ in range(3)]
    assert {reply.status for reply in await asyncio.gather(*asked)} == {200, 204}
    assert len(debugged(debug.place)) == 1


async def test_another_takes_its_place(debug: Listeners):
    """When the sandbox has ended, the next request makes another one."""
    await debug.ask(CODE_PORT)
    (first,) = debugged(debug.place)
    await debug.place.engine.kill(first)
    assert (await debug.ask(CODE_PORT)).status == 200
    assert debugged(debug.place) != [first]


async def test_it_lives_while_it_is_used(debug: Listeners):
    """Each request gives it the default life anew: clients in debug mode never extend it."""
    await debug.ask(CODE_PORT)
    sandbox = debug.place.engine.get(debugged(debug.place)[0])
    sandbox.set_timeout(5)
    await debug.ask(CODE_PORT)
    left = (sandbox.deadline or 0) - sandbox.settings.clock.time_ns() / 1e9
    assert left > 200


async def test_the_api_knows_it_by_the_name_that_clients_give_it(debug: Listeners):
    """``debug_sandbox_id`` is the sandbox, for those with the server's own key; all else is the ordinary API."""
    reply = await debug.ask(API_PORT, path=f"/sandboxes/{ID}", x_api_key=KEY)
    assert (reply.status, reply.json["sandboxID"]) == (200, debugged(debug.place)[0])
    assert (await debug.ask(API_PORT, path=f"/sandboxes/{ID}", x_api_key=OTHER_KEY)).status == 404
    assert (await debug.ask(API_PORT, path="/v2/sandboxes")).status == 401
    assert (await debug.ask(API_PORT, path="/v2/sandboxes", x_api_key=KEY)).status == 200


@pytest.mark.parametrize("port", [API_PORT, ENVD_PORT, CODE_PORT])
async def test_no_page_may_use_it(debug: Listeners, port):
    """There is no token here, so a page in a browser, which always says where it is from, is refused; a name that was
    bent to this machine (DNS rebinding) is not answered.
    """
    assert (await debug.ask(port, origin="http://evil.example")).status == 403
    assert (await debug.ask(port, "POST", "/execute", b"{}", origin="null")).status == 403
    assert (
        await debug.ask(port, "OPTIONS", origin="http://evil", access_control_request_method="POST")
    ).status == 403
    assert (await debug.ask(port, host="evil.example")).status == 421
    assert debugged(debug.place) == []


async def test_a_full_server_says_so(debug: Listeners):
    """Where no sandbox can be made the answer is an error in the dialect's shape."""
    services = debug.place.server.app.parts.services  # type: ignore[union-attr]
    services.admission._most = 1
    reply = await debug.ask(CODE_PORT)
    assert reply.status == reply.json["code"]
    assert reply.status in {400, 429}
