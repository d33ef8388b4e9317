"""Targets: what the egress proxy reads from a sandbox: heads of HTTP, a TLS client's first words, hosts and ports."""

import ipaddress
import socket

from cellfork.model.hosts import BadHost, HostRule, canonical_name
from cellfork.runtimes.egress.addresses import never, parse_address, refusal, unwrapped
from cellfork.runtimes.egress.exchange import check_host, request_head, split_url
from cellfork.runtimes.egress.heads import (
    BadHead,
    HeadReader,
    Request,
    body_length,
    end_to_end,
    parse_request,
    parse_response,
)
from cellfork.runtimes.egress.hello import Hello, NotTls, parse_hello
from cellfork.runtimes.egress.replies import reply
from cellfork.runtimes.egress.targets import Target, parse_target

HEAD_SEEDS = (
    b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\nProxy-Authorization: Basic eDp5\r\n\r\nrest",
    b"GET http://example.com/a?b HTTP/1.1\r\nHost: example.com\r\nConnection: close, x-a\r\nX-A: 1\r\nX-B:\t2 \r\n\r\n",
    b"POST http://[2001:db8::1]:8080/ HTTP/1.1\r\nHost: [2001:db8::1]:8080\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"PUT http://a.example/ HTTP/1.0\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    b"GET http://example.com HTTP/1.1\nHost: example.com\r\n\r\n",
    b"GET http://example.com/ HTTP/1.1\r\nHost : example.com\r\n folded\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTrailer: x\r\n\r\n",
)
HOST_SEEDS = (
    b"example.com:443", b"EXAMPLE.com.:80", b"*.example.com", b"127.1:80", b"0x7f.1", b"017700000001", b"2130706433", b"[::ffff:127.0.0.1]:80",
    b"[::1%25lo]", b"[64:ff9b::7f00:1]", b"xn--nxasmq6b.example", b"a..b", b"a\0b.com", b"1.2.3.4.5", b"a.b.c:0", b"a.b.c:65536", b"[2002:7f00:1::]",
    b"[fe80::5efe:7f00:1]:1", b"1e3.0", b"0.0.0.0", b"[::]", b"169.254.169.254", "b\u00fccher.example".encode(), "\u212aelvin.example".encode(),
)  # fmt: skip


def hello_seed(name: bytes = b"example.com") -> bytes:
    """Return a ClientHello that asks for ``name``."""
    entry = b"\x00" + len(name).to_bytes(2, "big") + name
    names = len(entry).to_bytes(2, "big") + entry
    extension = b"\x00\x00" + len(names).to_bytes(2, "big") + names
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += len(extension).to_bytes(2, "big") + extension
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def hello_seeds() -> list[bytes]:
    """Return greetings: whole, without a name, in two records, and of another kind."""
    whole = hello_seed()
    split = whole[5:25], whole[25:]
    records = b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in split)
    return [whole, records, whole[:40], hello_seed(b""), b"\x17" + whole[1:], b"GET / HTTP/1.1\r\n\r\n"]


def heads(data: bytes) -> None:
    """A head is refused, or means the same however it was cut and after being sent on; nothing ends a line early."""
    whole = read([data])
    assert read([data[at : at + 1] for at in range(len(data))]) == whole
    if whole is None or isinstance(whole, str):
        return
    head, _rest = whole
    check_response(head)
    try:
        request = parse_request(head)
        target, path = split_url(request.target)
        check_host(request, target, 80)
        sent = request_head(request, target, path, None)
    except (BadHead, BadHost) as error:
        answer = reply(getattr(error, "status", 400), str(error), str(error))
        parse_response(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        return
    check_sent_on(request, target, sent)


def read(pieces: list[bytes]) -> tuple[bytes, bytes] | str | None:
    """Return head and rest, what is wrong, or ``None`` where the head does not end."""
    reader = HeadReader()
    fed = b""
    for piece in pieces:
        fed += piece
        try:
            found = reader.feed(piece)
        except BadHead as error:
            return str(error)
        if found is not None:
            return found[0], b"".join(pieces)[len(found[0]) :]
    return None


def check_sent_on(request: Request, target: Target, sent: bytes) -> None:
    again = parse_request(sent)
    assert again.method == request.method
    assert again.target.startswith("/")
    assert again.values("host") == [target.authority]
    assert not again.values("proxy-authorization")
    if body_length(request) is not None:
        assert body_length(again) == body_length(request)
    else:
        assert again.values("transfer-encoding") == ["chunked"]
    assert set(end_to_end(again.fields)) <= {*request.fields, ("host", target.authority)}


def check_response(head: bytes) -> None:
    try:
        response = parse_response(head)
    except BadHead:
        return
    assert 100 <= response.status <= 999


def hello(data: bytes) -> None:
    """The verdict on a greeting does not change with what follows it, and is one of three."""
    final = verdict(data)
    for size in (1, 6, len(data) // 2, len(data) * 3 // 4):
        assert verdict(data[:size]) in {None, final}
    if final is not None:
        assert verdict(data + b"more") == final


def verdict(data: bytes) -> Hello | str | None:
    try:
        return parse_hello(data)
    except NotTls:
        return "no"


def hosts(data: bytes) -> None:
    """A host is refused or canonical; whatever the system's resolver would read as an address is one, and the same one."""
    text = data.decode("utf-8", "surrogateescape")
    check_rule(text)
    check_like_the_system(text)
    try:
        target = parse_target(text, 80)
    except BadHost:
        return
    assert parse_target(target.authority, 80) == target
    assert target.host.isascii()
    assert target.host.isprintable()
    assert 1 <= target.port <= 65535
    if target.address is None:
        assert canonical_name(target.host) == target.host
    elif refusal(target.address) is None:
        assert ipaddress.ip_address(str(unwrapped(target.address))).is_global
        assert not never(target.address)


def check_rule(text: str) -> None:
    try:
        rule = HostRule.parse(text)
    except BadHost:
        return
    assert HostRule.parse(str(rule)) == rule
    assert not rule.matches("evil" + rule.name, 443)
    assert rule.matches(("a." if rule.below else "") + rule.name, rule.port or 443)


def check_like_the_system(text: str) -> None:
    try:
        seen = socket.inet_aton(text)
    except (OSError, UnicodeError, ValueError):
        return
    if any(character.isspace() for character in text):
        return  # inet_aton stops at a space; no host has one here
    try:
        address = parse_address(text)
    except BadHost:
        return
    assert address == ipaddress.IPv4Address(seen), text
