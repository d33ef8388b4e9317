"""Framing: whatever was encoded comes out, however it was cut; whatever else comes in is a violation."""

import itertools
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model.errors import ProtocolViolation
from cellfork.wire.frames import MAX_BODY, MAX_HEADER, PREFIX, Decoder, Frame, decode_header, encode
from tests.wire.strategies import BODIES, CHANNELS, HEADERS

FRAMES = st.lists(st.builds(Frame, CHANNELS, HEADERS, BODIES), max_size=5)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(FRAMES, st.lists(st.integers(0, 10**6), max_size=10))
def test_any_cut(frames, cuts):
    """Frames come out as they went in, in order, however the bytes are cut; nothing is kept."""
    data = b"".join(encode(frame.header, frame.body, frame.channel) for frame in frames)
    decoder = Decoder()
    decoded = [frame for piece in pieces(data, cuts) for frame in decoder.feed(piece)]
    assert decoded == frames
    assert decoder.pending == 0


@given(st.builds(Frame, CHANNELS, HEADERS, BODIES))
def test_byte_by_byte(frame):
    """A frame comes out with its last byte, not before."""
    data = encode(frame.header, frame.body, frame.channel)
    decoder = Decoder()
    for position in range(len(data) - 1):
        assert list(decoder.feed(data[position : position + 1])) == []
        assert decoder.pending == position + 1
    assert list(decoder.feed(data[-1:])) == [frame]


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_junk(junk):
    """Junk gives frames or a violation, and never any other error; what is kept is bounded by what was fed."""
    decoder = Decoder()
    try:
        for piece in junk:
            for frame in decoder.feed(piece):
                assert isinstance(frame.header["op"], str)
    except ProtocolViolation:
        return
    assert decoder.pending <= sum(map(len, junk))


@given(st.binary(max_size=200), BODIES, CHANNELS)
def test_junk_as_header(text, body, channel):
    """Any bytes in place of the header are a violation, or are a JSON object with an op."""
    data = PREFIX.pack(len(text), len(body), channel) + text + body
    try:
        (frame,) = Decoder().feed(data)
    except ProtocolViolation:
        return
    assert frame.header == json.loads(text)
    assert (frame.body, frame.channel) == (body, channel)


@given(HEADERS, BODIES, st.data())
def test_one_wrong_byte(header, body, data):
    """A frame with a byte changed gives a violation, another frame or waits for more: nothing else."""
    encoded = bytearray(encode(header, body))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    try:
        frames = list(Decoder().feed(bytes(encoded)))
    except ProtocolViolation:
        return
    assert all(isinstance(frame.header["op"], str) for frame in frames)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_caps_are_checked_before_anything_is_stored(header_size, body_size):
    """A length beyond the caps is a violation as soon as it was read."""
    decoder = Decoder()
    prefix = PREFIX.pack(header_size, body_size, 0)
    if header_size > MAX_HEADER or body_size > MAX_BODY:
        with pytest.raises(ProtocolViolation, match=f"{header_size} \\+ {body_size}"):
            list(decoder.feed(prefix))
    elif header_size:
        assert list(decoder.feed(prefix)) == []


def test_own_cap_for_bodies():
    """A decoder may allow less than the protocol does; its cap itself is allowed."""
    assert len(list(Decoder(max_body=10).feed(encode({"op": "x"}, bytes(10))))) == 1
    with pytest.raises(ProtocolViolation):
        list(Decoder(max_body=10).feed(encode({"op": "x"}, bytes(11))))


def test_largest_frame():
    """Header and body at their caps pass; one byte more is refused by the sender already."""
    header = {"op": "x" * (MAX_HEADER - len('{"op":""}'))}
    body = bytes(MAX_BODY)
    (frame,) = Decoder().feed(encode(header, body))
    assert len(frame.body) == MAX_BODY
    with pytest.raises(ValueError, match="too large"):
        encode({"op": header["op"] + "x"})
    with pytest.raises(ValueError, match="too large"):
        encode({"op": "x"}, body + b"x")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_sender_refuses_what_the_receiver_would(value):
    """NaN and infinities are no JSON: neither side passes them."""
    with pytest.raises(ValueError):
        encode({"op": "x", "value": value})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"op"',
        b'{"op":1}',
        b'{"op":null}',
        b'{"op":["x"]}',
        b'{"op":"x"',
        b'{"op":"x"}{"op":"x"}',
        b'{"op":"x","a":NaN}',
        b'{"op":"x","a":-Infinity}',
        b'{"op":"\xff"}',
        b'{"op":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"op":"x"}',
        '{"op":"x"}'.encode("utf-16"),
        '{"op":"x"}'.encode("utf-32-le"),
        b'{"op":"x","a":' + b"9" * 5000 + b"}",
        b'{"op":"x","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"op":"x","a":' + b'{"a":' * 50_000,
        b"\0" * 100,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_headers_that_are_none(text):
    """What is not one JSON object in UTF-8 with an op is a violation."""
    with pytest.raises(ProtocolViolation):
        decode_header(text)


@given(st.text(st.characters(codec=None, categories=["Cs", "Lu", "So"]), max_size=20))
def test_lone_surrogates_become_replacement_characters(text):
    """Text of a header can always be encoded; what is valid stays as it was."""
    header = decode_header(json.dumps({"op": "x", "text": text, text: [text]}).encode("ascii"))
    json.dumps(header, ensure_ascii=False).encode("utf-8")
    paired: Any = json.loads(json.dumps(text))
    expected = "".join("\ufffd" if 0xD800 <= ord(character) <= 0xDFFF else character for character in paired)
    assert header["text"] == expected


def test_frames_before_a_violation_are_delivered():
    """What came before the violation comes out; the violation is told again for what follows."""
    data = encode({"op": "a"}) + encode({"op": "b"}) + PREFIX.pack(1, 0, 0) + b"x"
    seen: list[str] = []
    decoder = Decoder()
    with pytest.raises(ProtocolViolation):
        seen.extend(frame.header["op"] for frame in decoder.feed(data))
    assert seen == ["a", "b"]
    with pytest.raises(ProtocolViolation):
        list(decoder.feed(b""))


def test_consumer_that_stops():
    """A consumer that stops after a frame gets the next one later: none is lost, none comes twice."""
    decoder = Decoder()
    data = b"".join(encode({"op": str(n)}) for n in range(3))
    for frame in decoder.feed(data):
        assert frame.header["op"] == "0"
        break
    assert [frame.header["op"] for frame in decoder.feed(b"")] == ["1", "2"]


def test_layout():
    """The bytes are those that PROTOCOL.md describes."""
    data = encode({"op": "x"}, b"body", 7)
    assert data == struct.pack(">III", 10, 4, 7) + b'{"op":"x"}' + b"body"
