"""What the proxy reads from sandboxes and servers: heads, ClientHellos, targets.  Hostile input, strict rules."""

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model.hosts import BadHost
from cellfork.runtimes.egress.exchange import check_host, split_url
from cellfork.runtimes.egress.heads import (
    MAX_HEAD,
    BadHead,
    HeadReader,
    body_length,
    end_to_end,
    parse_request,
    parse_response,
)
from cellfork.runtimes.egress.hello import MAX_HELLO, Hello, NotTls, parse_hello
from cellfork.runtimes.egress.replies import reply
from cellfork.runtimes.egress.targets import parse_target
from tests.runtimes.egress.support import client_hello


def request(text: str):
    return parse_request((text + "\r\n\r\n").encode("latin-1"))


def test_a_request_is_read():
    """Method, target, version and fields, names in lower case, order kept."""
    read = request("GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\nX-Y:  z \r\nEmpty:")
    assert (read.method, read.target, read.minor) == ("GET", "http://a.example/x", 1)
    assert read.fields == [("host", "a.example"), ("x-y", "z"), ("empty", "")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GET",
        "GET / HTTP/2.0",
        "GET / HTTP/1.1 x",
        "GET  / HTTP/1.1",
        "get / HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET /\x00 HTTP/1.1",
        "GET /\xff HTTP/1.1",
        "GET / HTTP/1.1\r\nNo colon",
        "GET / HTTP/1.1\r\nName : value",
        "GET / HTTP/1.1\r\n folded: x",
        "GET / HTTP/1.1\r\nA: b\r\n continued",
        "GET / HTTP/1.1\r\nA: b\rc",
        "GET / HTTP/1.1\r\nA: b\x00c",
        "GET / HTTP/1.1\r\nA\x7f: b",
        "GET / HTTP/1.1\r\n: b",
        "GET /" + "a" * 20000 + " HTTP/1.1",
        "GET / HTTP/1.1" + "\r\nA: b" * 101,
    ],
    ids=lambda text: repr(text)[:40],
)
def test_a_malformed_head_is_refused(text):
    """What two programs could read in two ways is an error."""
    with pytest.raises(BadHead):
        request(text)


@pytest.mark.parametrize(
    "fields",
    [
        "Content-Length: 1\r\nContent-Length: 1",
        "Content-Length: 1\r\nTransfer-Encoding: chunked",
        "Content-Length: 1, 1",
        "Content-Length: -1",
        "Content-Length: +1",
        "Content-Length: 0x1",
        "Content-Length: ",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
    ],
)
def test_an_ambiguous_body_is_refused(fields):
    """Request smuggling lives on two lengths; there is one, or an error."""
    with pytest.raises(BadHead):
        body_length(request(f"POST http://a.example/ HTTP/1.1\r\n{fields}"))


def test_a_head_may_come_in_any_pieces():
    """Byte by byte is the same as all at once, and what follows the head is kept."""
    data = b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest"
    reader = HeadReader()
    found = None
    for position in range(len(data)):
        found = found or reader.feed(data[position : position + 1])
    assert found == (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", b"")
    assert HeadReader().feed(data) == (data[:-4], b"rest")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nA: b\n\n", b"\n", b"a\r\n\n"])
def test_a_bare_line_feed_is_refused_at_once(data):
    """Nobody waits for the end of a head that cannot come."""
    with pytest.raises(BadHead):
        HeadReader().feed(data)


def test_a_head_is_bounded():
    """More than 64 KiB are refused while they come."""
    reader = HeadReader()
    with pytest.raises(BadHead) as refused:
        for _ in range(MAX_HEAD // 1000 + 2):
            reader.feed(b"a" * 1000)
    assert refused.value.status == 431


@given(st.binary(max_size=300))
def test_any_bytes_are_a_head_or_an_error(data):
    """The parsers raise nothing but their own error."""
    for parse in (parse_request, parse_response):
        try:
            head = parse(data)
        except BadHead:
            continue
        assert all(
            name == name.lower() and "\r" not in value and "\n" not in value for name, value in head.fields
        )


def test_what_is_between_two_hops_goes_no_further():
    """The proxy's password, and every field that Connection names, stay behind."""
    fields = [
        ("connection", "x-one, close"),
        ("x-one", "1"),
        ("proxy-authorization", "secret"),
        ("te", "x"),
        ("keep", "2"),
    ]
    assert end_to_end(fields) == [("keep", "2")]


@pytest.mark.parametrize(
    "url",
    [
        "/",
        "*",
        "a.example:443",
        "https://a.example/",
        "ftp://a.example/",
        "http:///x",
        "http://user@a.example/",
        "http://a.example@evil.example/",
        "http://a.example/#f",
        "http://a.example\\@evil.example/",
        "http://a.example:80:80/",
        "http://a.example:/",
        "http://[::1/",
        "http://%61.example/",
        "http://a_b.example/",
    ],
)
def test_only_plain_http_urls_are_taken(url):
    """No user, no fragment, no other scheme, no escapes in the host."""
    with pytest.raises((BadHead, BadHost)):
        split_url(url)


def test_a_url_is_split():
    """Host and port canonical, the path as it came."""
    target, path = split_url("HTTP://A.Example.:8080/x?y=z")
    assert (target.host, target.port, path) == ("a.example", 8080, "/x?y=z")
    assert split_url("http://a.example?x")[1] == "/?x"
    assert split_url("http://a.example")[1] == "/"


@pytest.mark.parametrize(
    "hosts",
    [
        "",
        "Host: b.example",
        "Host: a.example\r\nHost: a.example",
        "Host: a.example:81",
        "Host: a.example, b.example",
        "Host: a.example b",
        "Host:",
    ],
)
def test_the_host_header_agrees_with_the_url(hosts):
    """E12: one Host, and the same as the URL's."""
    with pytest.raises(BadHead):
        read = request("GET http://a.example/ HTTP/1.1" + ("\r\n" + hosts if hosts else ""))
        check_host(read, parse_target("a.example:80"), 80)


@pytest.mark.parametrize(
    "text",
    [
        "a.example",
        "a.example:",
        "a.example:99999",
        "a.example:-1",
        ":443",
        "a.example:443:443",
        "a@b.example:443",
        "[::1]443",
        "[::1]:",
        "bücher.example:443",
        "a.example:４43",
    ],
)
def test_a_target_names_a_host_and_a_port(text):
    """Everything else is refused."""
    with pytest.raises(BadHost):
        parse_target(text)


# ---------------------------------------------------------------------------------------------------- TLS


def test_the_server_name_is_found():
    """In one record or in several, with other extensions around it, however the bytes are cut."""
    hello = client_hello("a.example", extra=b"\x00\x0b\x00\x02\x01\x00")
    assert parse_hello(hello) == Hello("a.example")
    assert parse_hello(client_hello(None)) == Hello(None)
    for cut in range(len(hello)):
        assert parse_hello(hello[:cut]) is None
    message = hello[5:]
    parts = b"".join(
        b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
        for part in (message[:3], message[3:40], message[40:])
    )
    assert parse_hello(parts) == Hello("a.example")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x17\x03\x03\x00\x01a",
        b"\x16\x02\x00\x00\x01a",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff" + bytes(100),
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x01\x01" * 20,
        client_hello("a.example", extra=client_hello("b.example")[52:]),
        client_hello("a.example")[:-1] + b"\x00\x00",
    ],
    ids=lambda data: data[:12].hex(),
)
def test_what_is_no_clienthello_is_refused(data):
    """Wrong types, impossible sizes, endless pieces, two names."""
    with pytest.raises(NotTls):
        found = parse_hello(data)
        if found is None or found.server_name != "a.example":
            raise NotTls("incomplete, or another name")


def test_a_large_clienthello_is_refused():
    """32 KiB are enough for everybody; more are refused by the length alone."""
    with pytest.raises(NotTls):
        parse_hello(b"\x16\x03\x01\x40\x00\x01" + (MAX_HELLO + 1).to_bytes(3, "big"))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_clienthello_or_not(data):
    """The parser raises nothing but its own error."""
    for candidate in (data, b"\x16\x03\x01" + len(data).to_bytes(2, "big") + data, mutated(data)):
        try:
            parse_hello(candidate)
        except NotTls:
            continue


def mutated(noise: bytes) -> bytes:
    hello = bytearray(client_hello("a.example", extra=b"\x00\x0b\x00\x02\x01\x00"))
    for index, value in enumerate(noise[:8]):
        hello[(value * 7 + index * 31) % len(hello)] = value
    return bytes(hello)


@given(st.text(string.printable + "\r\n\0é", max_size=400))
def test_an_answer_is_always_well_formed(text):
    """Whatever a sandbox wrote, the proxy's answer is one head of printable ASCII and one body of the right length."""
    data = reply(403, text, text or "x")
    head, _, body = data.partition(b"\r\n\r\n")
    parsed = parse_response(head + b"\r\n\r\n")
    assert parsed.status == 403
    assert len(parsed.line) < 300
    assert dict(parsed.fields)["content-length"] == str(len(body))


def test_reading_slowly_costs_little():
    """64 KiB byte by byte are looked at about once, not once for every byte."""
    rng = random.Random(7)
    reader = HeadReader()
    with pytest.raises(BadHead):
        for _ in range(MAX_HEAD + 1):
            reader.feed(bytes([rng.randrange(65, 90)]))
