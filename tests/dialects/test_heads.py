"""Heads that are passed on: what belongs to one connection stays there, and nothing can become two lines."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.dialects.heads import (
    FORWARDED,
    HOP_BY_HOP,
    BadField,
    canonical,
    end_to_end,
    forwarded,
    target_of,
    values_of,
)

names = st.sampled_from(
    [b"Connection", b"X-A", b"x-b", b"TE", b"Keep-Alive", b"Upgrade", b"Set-Cookie", b"content-length"]
) | st.binary(max_size=12)
values = st.sampled_from([b"close", b"x-a, X-B", b"keep-alive,,te", b"", b" v "]) | st.binary(max_size=30)


@given(st.lists(st.tuples(names, values), max_size=12))
def test_what_is_passed_on_is_a_head(fields):
    """Whatever comes in, what goes out has no line of the connection's own and none that could be read as two."""
    try:
        kept = end_to_end(fields)
    except BadField:
        return
    named = {
        token.strip().lower()
        for name, value in fields
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    for name, value in kept:
        assert name == name.lower()
        assert name not in HOP_BY_HOP | named
        assert not set(value) & set(b"\r\n\0")
        assert name


@given(st.lists(st.tuples(names, values), max_size=6), st.binary(max_size=40))
def test_what_is_written_is_what_was_meant(fields, body):
    """A head that was let through and written again is read as the same fields, and the body after it as the body."""
    try:
        kept = [
            field for field in end_to_end(fields) if field[0] not in {b"content-length", b"expect", b"host"}
        ]
    except BadField:
        return
    writing = h11.Connection(h11.CLIENT)
    head = [(b"host", b"h"), *kept, (b"content-length", b"%d" % len(body))]
    try:
        data = writing.send(h11.Request(method="POST", target="/", headers=head)) or b""
    except h11.LocalProtocolError:
        return
    data += (writing.send(h11.Data(body)) or b"") + (writing.send(h11.EndOfMessage()) or b"")
    reading = h11.Connection(h11.SERVER)
    reading.receive_data(data)
    request = reading.next_event()
    assert isinstance(request, h11.Request)
    read = [(name, value) for name, value in request.headers if name not in {b"host", b"content-length"}]
    assert read == [(name, value.strip(b" \t")) for name, value in kept]
    heard = b""
    while not isinstance(event := reading.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        heard += event.data
    assert heard == body
    assert reading.trailing_data[0] == b""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"", b"v"),
        (b"a b", b"v"),
        (b"a:", b"v"),
        (b"a\r", b"v"),
        (b"a", b"b\r\nc: d"),
        (b"a", b"b\nc"),
        (b"a", b"\0"),
        (b"a", b"\x7f"),
        ("ä".encode(), b"v"),
    ],
)
def test_what_is_no_field(name, value):
    """A name or a value that two programs could read in two ways is refused."""
    with pytest.raises(BadField):
        end_to_end([(name, value)])


def test_what_the_server_knows():
    """The client's address, host and scheme are told, over TLS as such."""
    scope = {"client": ("10.1.2.3", 5), "scheme": "https", "headers": [(b"host", b"a.b")]}
    assert dict(forwarded(scope)) == {
        b"x-forwarded-for": b"10.1.2.3",
        b"x-forwarded-host": b"a.b",
        b"x-forwarded-proto": b"https",
    }
    assert dict(forwarded(scope)).keys() <= FORWARDED
    assert dict(forwarded({"client": None, "scheme": "ws", "headers": []})) == {b"x-forwarded-proto": b"http"}


def test_targets_stay_as_they_are():
    """The path is what the client sent, not what it was decoded to."""
    assert target_of({"raw_path": b"/a%2Fb", "path": "/a/b", "query_string": b"x=%20"}) == b"/a%2Fb?x=%20"
    assert target_of({"raw_path": None, "path": "/ä b", "query_string": b""}) == b"/%C3%A4%20b"


def test_names_are_written_as_most_programs_write_them():
    """A program that looks for ``Host:`` finds it, and h11 writes what it is given."""
    assert [canonical(name) for name in (b"host", b"x-forwarded-for", b"etag", b"a--b")] == [
        b"Host",
        b"X-Forwarded-For",
        b"Etag",
        b"A--B",
    ]
    request = h11.Request(method="GET", target="/", headers=[(canonical(b"host"), b"a")])
    assert h11.Connection(h11.CLIENT).send(request) == b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def test_values():
    """All values of a name, whatever its case."""
    assert values_of([(b"A", b"1"), (b"b", b"2"), (b"a", b"3")], b"a") == [b"1", b"3"]
