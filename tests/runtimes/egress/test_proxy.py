"""The proxy by itself, over loopback: what it passes on, what it refuses, and how it ends."""

import asyncio
import base64
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator

import pytest

from cellfork.model.errors import StartupFailed
from cellfork.model.network import NetworkPolicy
from cellfork.runtimes.egress import rules
from cellfork.runtimes.egress.account import MAX_CONNECTIONS, Pace
from cellfork.runtimes.egress.gate import Gate
from cellfork.runtimes.egress.indexes import Endpoint, Indexes
from cellfork.runtimes.egress.proxy import Patience, Proxy
from cellfork.runtimes.egress.resolver import LookupFailed, SystemResolver
from tests.runtimes.egress.support import (
    CANARY,
    PUBLIC,
    PUBLIC_V6,
    Names,
    Server,
    Wire,
    client_hello,
    echo,
    page,
)

HASTE = Patience(head=0.5, connect=0.5, idle=1.0, reply=0.5)
"""For tests of what is given up; anything else is given the time that it takes."""


class World:
    """A gate that listens on loopback, with a little internet behind it."""

    def __init__(
        self, policy: NetworkPolicy, indexes: Indexes | None = None, patience: Patience | None = None
    ) -> None:
        self.web = Server()
        self.echo = Server(echo)
        self.names = Names({"web.example": [PUBLIC], "six.example": [PUBLIC_V6], "echo.example": ["1.0.0.1"]})
        self.wire = Wire({PUBLIC: self.web, PUBLIC_V6: self.web, "1.0.0.1": self.echo})
        self.proxy = Proxy(
            self.names, self.wire.connect, lambda: indexes or Indexes(), patience or Patience()
        )
        self.gate = Gate(self.proxy, policy)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.gate.open(listener)
        token = self.gate._account.token
        self.login = "Proxy-Authorization: Basic " + base64.b64encode(f"sandbox:{token}".encode()).decode()

    async def send(self, data: bytes) -> bytes:
        """Send bytes as they are; return everything that comes until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()

    def head(self, line: str, *fields: str) -> bytes:
        return ("\r\n".join([line, self.login, *fields]) + "\r\n\r\n").encode("latin-1")

    async def get(self, url: str, *fields: str) -> bytes:
        host = url.partition("//")[2].partition("/")[0]
        return await self.send(self.head(f"GET {url} HTTP/1.1", f"Host: {host}", *fields))

    async def connect(self, authority: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask for a tunnel; return the status line and the streams."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self.head(f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"))
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
        return head.partition(b"\r\n")[0], reader, writer

    async def tunnel(self, authority: str, data: bytes) -> bytes:
        """Send bytes through a tunnel; return everything that comes back."""
        status, reader, writer = await self.connect(authority)
        assert b" 200 " in status, status
        writer.write(data)
        writer.write_eof()
        answer = b""
        try:
            async with asyncio.timeout(10):
                while piece := await reader.read(65536):
                    answer += piece
        except ConnectionResetError:
            pass  # what was not read when the proxy ended the tunnel
        finally:
            writer.close()
        return answer

    async def has_connections(self, number: int) -> None:
        """Return when the gate has so many connections."""
        async with asyncio.timeout(10):
            while self.gate.traffic().connections != number:
                await asyncio.sleep(0.01)

    def reasons(self) -> list[str]:
        return [denial.reason for denial in self.gate.denied()]


@contextlib.asynccontextmanager
async def living(world: World) -> AsyncIterator[World]:
    yield world
    await world.gate.aclose()
    world.web.close()
    world.echo.close()


POLICY = NetworkPolicy.of(["web.example", "six.example", "echo.example", "echo.example:7", "*.sub.example"])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with living(World(POLICY)) as world:
        yield world


@pytest.fixture
async def hasty() -> AsyncIterator[World]:
    """A world in which whoever is slow is given up soon."""
    async with living(World(POLICY, patience=HASTE)) as world:
        yield world


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


async def test_an_allowed_request_is_passed_on(world):
    """The server sees origin form, one Host, no password and the end of the connection; the sandbox its answer."""
    answer = await world.get("http://web.example/x?y", "X-Kept: 1", "Connection: X-Dropped", "X-Dropped: 2")
    assert status(answer) == 200
    assert answer.endswith(b"\r\n\r\nhello")
    assert b"connection: close" in answer
    assert b"keep-alive" not in answer
    head = world.web.everything.lower()
    assert head.startswith(b"get /x?y http/1.1\r\nhost: web.example\r\n")
    assert b"x-kept: 1" in head
    assert b"proxy" not in head
    assert b"dropped" not in head
    assert world.gate._account.token.encode() not in head


async def test_bodies_are_passed_on_whole(world):
    """A body of a known length and one in chunks arrive; 100-continue is answered; nothing behind them goes on."""
    host = ("Host: web.example", "Content-Length: 5")
    line = "POST http://web.example/ HTTP/1.1"
    again = world.head("GET http://web.example/second HTTP/1.1", "Host: web.example")
    answer = await world.send(world.head(line, *host, "Expect: 100-continue") + b"first" + again)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    assert world.web.everything.endswith(b"first")
    chunked = world.head(line, "Host: web.example", "Transfer-Encoding: chunked")
    world.web.received.clear()
    await world.send(chunked + b"5;x=y\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n" + again)
    assert world.web.everything.endswith(b"5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n")
    assert b"second" not in world.web.everything


@pytest.mark.parametrize(
    "chunks", [b"x\r\n", b"-1\r\n", b"5\r\nhelloX\r\n", b"\r\n", b"fffffffff\r\n", b"5" * 300, b"5\nhello"]
)
async def test_malformed_chunks_end_the_request(hasty, chunks):
    """What is not clear is not passed on."""
    head = hasty.head("POST http://web.example/ HTTP/1.1", "Host: web.example", "Transfer-Encoding: chunked")
    await hasty.send(head + chunks + CANARY)
    assert CANARY not in hasty.web.everything


async def test_a_tunnel_carries_bytes_both_ways(world):
    """To a port that the policy names anything goes through, in order, to the end; half-close is passed on."""
    data = bytes(range(256)) * 4000
    assert await world.tunnel("echo.example:7", data) == data
    traffic = world.gate.traffic()
    assert traffic.sent == traffic.received == len(data)


async def test_ipv6_answers_are_used(world):
    """A name with an IPv6 address is reached there."""
    assert status(await world.get("http://six.example/")) == 200
    assert world.wire.dialled == [(PUBLIC_V6, 80)]


async def test_a_server_may_speak_first(world):
    """Nobody waits for the client's words in a tunnel to a port of its own."""

    def greet(_server, connected):
        connected.sendall(b"220 welcome")
        connected.recv(10)

    with Server(greet) as greeter:
        world.wire.servers["1.0.0.1"] = greeter
        _status, reader, writer = await world.connect("echo.example:7")
        assert await asyncio.wait_for(reader.read(100), 5) == b"220 welcome"
        writer.close()


@pytest.mark.parametrize(
    "line",
    [
        "GET http://denied.example/ HTTP/1.1",
        "GET http://web.example:8080/ HTTP/1.1",
        "GET http://web.example:443/ HTTP/1.1",
        "CONNECT denied.example:443 HTTP/1.1",
        "CONNECT web.example:80 HTTP/1.1",
        "CONNECT web.example:22 HTTP/1.1",
        "CONNECT sub.example:443 HTTP/1.1",
        "CONNECT evil-web.example:443 HTTP/1.1",
        f"CONNECT {PUBLIC}:443 HTTP/1.1",
        "CONNECT [::1]:443 HTTP/1.1",
    ],
)
async def test_a_denial_is_clear_and_remembered(world, line):
    """403 with the reason in the status line and the body; nobody was asked anything."""
    host = line.split(" ")[1].removeprefix("http://").rstrip("/")
    answer = await world.send(world.head(line, f"Host: {host}"))
    assert status(answer) == 403
    assert b"by cellfork: " in answer.partition(b"\r\n")[0]
    assert world.names.asked == []
    assert world.wire.dialled == []
    assert len(world.gate.denied()) == 1
    assert world.gate.traffic().denials == 1


async def test_denials_take_less_than_a_tenth_of_a_second(world):
    """E07, E09: the median of fifty."""
    times = []
    for _ in range(50):
        start = time.monotonic()
        await world.send(world.head("CONNECT denied.example:443 HTTP/1.1"))
        times.append(time.monotonic() - start)
    assert sorted(times)[25] < 0.1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"CONNECT web.example:443 HTTP/1.1\r\n\r\n", 407),
        (
            b"GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\nProxy-Authorization: Basic eDp5\r\n\r\n",
            407,
        ),
        (
            b"GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\nProxy-Authorization: Basic !!!\r\n\r\n",
            407,
        ),
        (
            b"GET http://web.example/ HTTP/1.1\r\nHost: web.example\r\nProxy-Authorization: Bearer x\r\n\r\n",
            407,
        ),
        (b"\x16\x03\x01\x00\x05hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\n\n", 400),
    ],
)
async def test_without_the_password_nothing_happens(world, data, expected):
    """Whoever has no password, or does not speak HTTP, is told so."""
    assert status(await world.send(data)) == expected
    assert world.names.asked == []


async def test_socks_is_not_spoken(hasty):
    """What never becomes a request is not waited for."""
    assert status(await hasty.send(b"\x05\x01\x00")) == 408
    assert hasty.names.asked == []


@pytest.mark.parametrize("method", ["TRACE", "PROPFIND", "FOO", "PRI"])
async def test_other_methods_are_refused(world, method):
    """405, for an allowed host as well."""
    assert (
        status(await world.send(world.head(f"{method} http://web.example/ HTTP/1.1", "Host: web.example")))
        == 405
    )


@pytest.mark.parametrize(
    "url", ["/", "*", "https://web.example/", "ftp://web.example/", "http://web.example/#x"]
)
async def test_other_forms_are_refused(world, url):
    """This is a proxy: it takes absolute http URLs and CONNECT."""
    assert status(await world.send(world.head(f"GET {url} HTTP/1.1", "Host: web.example"))) == 400


async def test_the_host_header_must_agree(world):
    """E12: a request for one host with the Host of another is denied and remembered."""
    answer = await world.send(world.head("GET http://web.example/ HTTP/1.1", "Host: denied.example"))
    assert status(answer) == 403
    assert len(world.gate.denied()) == 1
    assert world.wire.dialled == []


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("web.example", True),
        ("WEB.example", True),
        ("denied.example", False),
        (None, False),
        ("web.example\0", False),
        ("web.example.", False),
        ("", False),
    ],
)
async def test_tls_must_name_the_host_of_its_tunnel(world, name, passes):
    """E12: the name in the ClientHello is the CONNECT's, or not a byte goes on."""
    await world.tunnel("web.example:443", client_hello(name) + CANARY)
    assert (CANARY in world.web.everything) is passes
    assert len(world.gate.denied()) == (0 if passes else 1)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: denied.example\r\n\r\n", b"SSH-2.0-x\r\n", b"\x16\x03\x01\x00\x00", b"\x16"],
)
async def test_a_tunnel_to_443_carries_tls(world, data):
    """Anything else is held back and denied."""
    await world.tunnel("web.example:443", data)
    assert world.web.everything == b""
    assert len(world.gate.denied()) == 1


async def test_a_silent_tunnel_ends(hasty):
    """A client that does not say what it wants is not waited for."""
    _status, reader, writer = await hasty.connect("web.example:443")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_every_answer_is_checked_and_the_checked_address_is_used(world):
    """E11: one private address among the answers denies; the next answer is checked anew; no second look-up."""
    world.names.known["web.example"] = [
        [PUBLIC],
        [PUBLIC, "10.0.0.1"],
        ["127.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
    ]
    assert status(await world.get("http://web.example/")) == 200
    for _ in range(4):
        assert status(await world.get("http://web.example/")) == 403
    assert world.wire.dialled == [(PUBLIC, 80)]
    assert world.names.asked == ["web.example"] * 5


async def test_a_dead_resolver_and_a_dead_server_are_told(world):
    """502 and 504 in bounded time, not a hang."""
    world.names.known |= {"a.sub.example": "hang", "c.sub.example": ["9.9.9.9"]}
    assert status(await world.get("http://a.sub.example/")) == 504
    assert status(await world.get("http://b.sub.example/")) == 502
    assert status(await world.get("http://c.sub.example/")) == 502


async def test_slow_look_ups_of_one_sandbox_leave_room_for_others(world):
    """Four at a time; what waits longer than it may is told 504; afterwards there is room again."""
    running = most = 0

    async def slow(_name, _port, *, own):
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(60)
        finally:
            running -= 1

    world.names.resolve = slow
    world.proxy._patience = Patience(head=0.5, lookup=0.3, connect=0.5)
    answers = await asyncio.gather(*(world.get("http://web.example/") for _ in range(10)))
    assert {status(answer) for answer in answers} == {504}
    assert (most, running) == (4, 0)


@pytest.mark.parametrize("minor", [0, 1])
async def test_a_response_in_chunks_ends_where_it_says(world, minor):
    """The server keeps its connection open until the client has got the end, and nothing that is behind it."""

    def respond(server, connected):
        server.note(connected.recv(65536))
        connected.sendall(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nTrailer: x\r\n\r\nHTTP/1.1 200 OK\r\n"
        )
        connected.recv(1)

    with Server(respond) as chunky:
        world.wire.servers[PUBLIC] = chunky
        answer = await world.send(world.head(f"GET http://web.example/ HTTP/1.{minor}", "Host: web.example"))
        assert answer.endswith(b"5\r\nhello\r\n0\r\n\r\n")
        assert chunky.everything.startswith(b"GET / HTTP/1.%d\r\n" % minor)


async def test_an_address_that_does_not_answer_is_given_up():
    """The next one is tried; when none answers, 504."""

    async def never(_address, _port):
        await asyncio.sleep(60)

    proxy = Proxy(Names({"web.example": [PUBLIC, "1.1.1.1"]}), never, patience=HASTE)
    world = World(NetworkPolicy.of(["web.example"]))
    world.gate._proxy = proxy
    start = time.monotonic()
    assert status(await world.get("http://web.example/")) == 504
    assert time.monotonic() - start < 2
    await world.gate.aclose()
    world.web.close()
    world.echo.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\nA: b\n\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad field\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
    ],
    ids=lambda answer: repr(answer)[:30],
)
async def test_a_malformed_answer_is_not_passed_on(world, answer):
    """502: a server is not trusted either."""

    def respond(_server, connected):
        connected.recv(65536)
        connected.sendall(answer)

    with Server(respond) as strange:
        world.wire.servers[PUBLIC] = strange
        assert status(await world.get("http://web.example/")) == 502


async def test_redirects_are_the_clients_to_follow(world):
    """E14: the proxy follows nothing; the next request is asked like the first."""
    world.web.pages["/away"] = page(b"", "302 Found", "Location: http://denied.example/\r\n")
    answer = await world.get("http://web.example/away")
    assert status(answer) == 302
    assert status(await world.get("http://denied.example/")) == 403
    assert world.names.asked == ["web.example"]


async def test_one_connection_is_one_request(world):
    """E15: what follows on the connection of an allowed request is not passed on."""
    more = world.head("GET http://denied.example/ HTTP/1.1", "Host: denied.example") + CANARY
    answer = await world.send(world.head("GET http://web.example/ HTTP/1.1", "Host: web.example") + more)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert CANARY not in world.web.everything
    assert b"denied" not in world.web.everything


async def test_the_budget_ends_tunnels_and_requests():
    """E23: not a byte more than the budget leaves, and it is told."""
    world = World(
        NetworkPolicy.of({"allow": ["web.example", "echo.example:7"], "upload": 100_000, "download": 50_000})
    )
    await world.tunnel("echo.example:7", b"x" * 400_000)
    assert len(world.echo.everything) <= 100_000
    assert world.gate.traffic().received <= 50_000
    assert any("bytes in all" in reason for reason in world.reasons())
    head = world.head("POST http://web.example/ HTTP/1.1", "Host: web.example", "Content-Length: 200000")
    assert status(await world.send(head + b"x" * 200_000)) == 403
    assert len(world.web.everything) <= 100_000
    await world.gate.aclose()
    world.web.close()
    world.echo.close()


async def test_connections_are_bounded(world):
    """E17: beyond 64 the answer is 503, and those that live are not disturbed."""
    held = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(MAX_CONNECTIONS)]
    await world.has_connections(MAX_CONNECTIONS)
    assert status(await world.send(b"")) == 503
    assert world.gate.traffic().connections == MAX_CONNECTIONS
    for _reader, writer in held:
        writer.close()
    await world.has_connections(0)
    assert status(await world.get("http://web.example/")) == 200


async def test_a_slow_request_is_given_up(hasty):
    """E17: a head that trickles is answered with 408."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty.port)
    start = time.monotonic()
    for _ in range(20):
        writer.write(b"G")
        await asyncio.sleep(0.04)
    assert status(await asyncio.wait_for(reader.read(), 5)) == 408
    assert time.monotonic() - start < 3
    writer.close()


async def test_a_slow_reader_holds_up_the_server_not_the_host(world):
    """Backpressure: what a client does not read stays with the server."""

    def flood(server, connected):
        connected.recv(65536)
        while True:
            server.note(bytes(connected.send(bytes(65536))))

    with Server(flood) as flooding:
        world.wire.servers["1.0.0.1"] = flooding
        status_line, _reader, writer = await world.connect("echo.example:7")
        assert b" 200 " in status_line
        writer.write(b"go")
        await asyncio.sleep(0.5)
        assert world.gate.traffic().received < 16 << 20
        writer.transport.abort()


async def test_a_new_policy_holds_at_once_and_for_live_tunnels(world):
    """E24: what the new policy does not allow ends within a second; what it allows goes on."""
    _status, denied, first = await world.connect("echo.example:7")
    world.gate.set_policy(NetworkPolicy.of(["echo.example:7"]))
    first.write(b"still here")
    assert await asyncio.wait_for(denied.read(100), 5) == b"still here"
    start = time.monotonic()
    world.gate.set_policy(NetworkPolicy.of(["web.example"]))
    assert await asyncio.wait_for(denied.read(), 5) == b""
    assert time.monotonic() - start < 1
    assert status(await world.get("http://web.example/")) == 200
    world.gate.set_policy(NetworkPolicy.of("none"))
    assert status(await world.get("http://web.example/")) == 403
    first.close()


async def test_a_closed_gate_refuses(world):
    """R4: no proxy, no way out, and nobody waits for it."""
    _status, reader, writer = await world.connect("echo.example:7")
    await world.gate.aclose()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", world.port)
    writer.close()


async def test_denials_are_kept_in_a_ring(world):
    """Many refusals cost bounded memory; all are counted."""
    for number in range(300):
        world.gate._account.deny(f"{number}.example", 443, "x" * 1000)
    assert len(world.gate.denied()) == 256
    assert world.gate.denied()[-1].host == "299.example"
    assert max(len(denial.reason) for denial in world.gate.denied()) <= 160
    assert world.gate.traffic().denials == 300


async def test_connections_are_paced(world):
    """E17: a sandbox that connects without end gets so many a second, and the others wait outside."""
    gate = world.gate
    gate._pace = Pace(10.0, 5)
    start = time.monotonic()
    await asyncio.gather(*(world.send(b"x\n") for _ in range(10)))
    assert time.monotonic() - start > 0.35


# ------------------------------------------------------------------------------------------------ public


@pytest.fixture
async def public() -> AsyncIterator[World]:
    world = World(NetworkPolicy.of("public"))
    yield world
    await world.gate.aclose()
    world.web.close()
    world.echo.close()


async def test_public_reaches_public_hosts_by_name_and_address(public):
    """Any public host on 80 and 443; IPv4 inside of IPv6 is IPv4."""
    assert status(await public.get("http://web.example/")) == 200
    assert status(await public.get(f"http://{PUBLIC}/")) == 200
    assert status(await public.get(f"http://[::ffff:{PUBLIC}]/")) == 200
    await public.tunnel(f"{PUBLIC}:443", client_hello(None) + CANARY)
    assert CANARY in public.web.everything
    assert {address for address, _port in public.wire.dialled} == {PUBLIC}
    assert status(await public.get("http://web.example:8080/")) == 403


@pytest.mark.parametrize("host", ["web.example", PUBLIC])
async def test_this_machines_own_addresses_are_refused(public, monkeypatch, host):
    """E02: a public address of this machine leads to its services as loopback does, and is refused as well."""
    monkeypatch.setattr(rules, "is_own", lambda address: str(address) == PUBLIC)
    assert status(await public.get(f"http://{host}/")) == 403
    assert "this machine's own" in public.reasons()[0]
    assert public.wire.dialled == []


async def test_an_allow_list_says_that_it_is_one_of_names(world):
    """E07: whoever asks for an address is told that names are wanted."""
    await world.get(f"http://{PUBLIC}/")
    assert "by name only" in world.reasons()[0]


async def test_tls_to_an_address_names_no_host(public):
    """E12: a tunnel to an address is no way to a name."""
    await public.tunnel(f"{PUBLIC}:443", client_hello("denied.example") + CANARY)
    assert CANARY not in public.web.everything


# ------------------------------------------------------------------------------------------------ indexes


async def test_a_package_index_may_be_private_and_keeps_its_password_outside():
    """Exactly its host and port; the password is added to what reads, and to nothing else."""
    web = Server()
    endpoint = Endpoint("http", "10.1.2.3", 8081, "user:secret")
    world = World(NetworkPolicy.of(["packages"]), Indexes((endpoint,)))
    world.wire.servers["10.1.2.3"] = web
    assert status(await world.get("http://10.1.2.3:8081/simple/")) == 200
    assert b"authorization: Basic " + base64.b64encode(b"user:secret") in web.everything
    web.received.clear()
    await world.send(
        world.head("POST http://10.1.2.3:8081/ HTTP/1.1", "Host: 10.1.2.3:8081", "Content-Length: 0")
    )
    assert b"authorization" not in web.everything
    assert status(await world.send(world.head("CONNECT 10.1.2.3:8081 HTTP/1.1"))) == 403
    for url in ("http://10.1.2.3/", "http://10.1.2.3:8082/", "http://10.1.2.4:8081/"):
        assert status(await world.get(url)) == 403
    assert "secret" not in str(world.gate.variables) + repr(endpoint)
    await world.gate.aclose()
    for server in (web, world.web, world.echo):
        server.close()


async def test_not_even_an_index_may_be_a_metadata_service():
    """Link-local is out of reach for every name."""
    world = World(NetworkPolicy.of(["packages"]), Indexes((Endpoint("https", "index.example", 443),)))
    world.names.known["index.example"] = ["169.254.169.254"]
    answer = await world.send(world.head("CONNECT index.example:443 HTTP/1.1"))
    assert status(answer) == 403
    assert world.wire.dialled == []
    await world.gate.aclose()
    world.web.close()
    world.echo.close()


async def test_indexes_that_cannot_be_told_refuse_the_start():
    """Fail closed: no guess."""

    def broken() -> Indexes:
        raise StartupFailed("pip.conf cannot be read")

    with pytest.raises(StartupFailed):
        Gate(Proxy(indexes=broken), NetworkPolicy.of(["packages"]))


# ------------------------------------------------------------------------------------------------ resolver


async def test_look_ups_are_bounded_in_time_and_number():
    """A resolver that hangs costs a bounded wait and no more than 32 threads; the event loop goes on."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(_name: str, _port: int) -> list[str]:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
        return [PUBLIC]

    resolver = SystemResolver(hang, seconds=0.2)
    outcomes = await asyncio.gather(
        *(resolver.resolve("a.example", 80, own=False) for _ in range(40)), return_exceptions=True
    )
    assert all(isinstance(outcome, LookupFailed) and outcome.status == 504 for outcome in outcomes)
    assert sum("too many" in str(outcome) for outcome in outcomes) == 8
    release.set()
    while resolver._running:
        await asyncio.sleep(0.01)
    assert [str(found) for found in await resolver.resolve("a.example", 80, own=False)] == [PUBLIC]


async def test_names_of_sandboxes_are_absolute():
    """No search domain is added to what a sandbox asks for; names of this machine's configuration mean what they mean here."""
    asked = []

    def remember(name: str, _port: int) -> list[str]:
        asked.append(name)
        return [PUBLIC, PUBLIC]

    resolver = SystemResolver(remember)
    assert len(await resolver.resolve("a.example", 80, own=False)) == 1
    await resolver.resolve("a.example", 80, own=True)
    assert asked == ["a.example.", "a.example"]


def test_the_listener_is_what_it_should_be(hostile_descriptors):
    """One TCP socket that listens on 127.0.0.1:3128; anything else is a violation, and closed."""
    import os

    from cellfork.model.errors import ProtocolViolation
    from cellfork.runtimes.egress.listener import check_listener

    for fds in hostile_descriptors:
        with pytest.raises(ProtocolViolation):
            check_listener(list(fds))
        for fd in fds:
            with pytest.raises(OSError):
                os.fstat(fd)


@pytest.fixture
def hostile_descriptors() -> list[list[int]]:
    import os

    def tcp(listen: bool, address: tuple[str, int] = ("127.0.0.1", 0)) -> int:
        made = socket.socket()
        made.bind(address)
        if listen:
            made.listen()
        return made.detach()

    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    unix = socket.socketpair()
    unix[1].close()
    return [
        [],
        [os.open("/dev/null", os.O_RDONLY)],
        [tcp(listen=True)],
        [tcp(listen=False)],
        [tcp(listen=True, address=("0.0.0.0", 0))],
        [udp.detach()],
        [unix[0].detach()],
        [tcp(listen=True), tcp(listen=True)],
    ]


def test_a_reset_is_no_trouble():
    """A client that vanishes in the middle leaves nothing behind."""

    async def run() -> None:
        world = World(NetworkPolicy.of(["echo.example:7"]))
        _status, _reader, writer = await world.connect("echo.example:7")
        made = writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        for _ in range(100):
            if not world.gate.traffic().connections:
                break
            await asyncio.sleep(0.02)
        assert not world.gate.traffic().connections
        await world.gate.aclose()
        world.web.close()
        world.echo.close()

    asyncio.run(run())


async def test_a_sandbox_that_makes_the_host_wait_has_no_network_any_more():
    """A copy of the listening socket that blocks, and takes the connection first, holds up a thread and not the proxy.

    What the sandbox had open ends, and it is told why among its refusals; another sandbox is served meanwhile.
    """
    policy = NetworkPolicy.of(["web.example", "echo.example:7"])
    hostile, other = World(policy), World(policy)
    _status, reader, writer = await hostile.connect("echo.example:7")
    assert hostile.gate._listener is not None
    ours = hostile.gate._listener._socket

    class Stolen:
        """The host's end, whose guest is faster."""

        def __getattr__(self, name: str) -> object:
            return getattr(ours, name)

        def accept(self) -> tuple[socket.socket, object]:
            ours.accept()[0].close()
            ours.setblocking(True)
            return ours.accept()

    hostile.gate._listener._socket = Stolen()  # type: ignore[assignment]
    with socket.create_connection(("127.0.0.1", hostile.port)):
        ended = asyncio.create_task(reader.read())
        for _ in range(5):
            assert status(await other.get("http://web.example/")) == 200
        assert not ended.done()  # the answers came before the thread was let go
        assert await asyncio.wait_for(ended, 20) == b""
    writer.close()
    assert hostile.reasons() == ["the guest keeps a listening socket waiting that it handed over"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", hostile.port)
    for world in (hostile, other):
        await world.gate.aclose()
        world.web.close()
        world.echo.close()
