"""MIME bundles: what was encoded comes out; malformed ones are violations and nothing else."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model.errors import ProtocolViolation
from cellfork.wire.bundles import MAX_MIME, MAX_PARTS, decode_bundle, encode_bundle
from cellfork.wire.values import MAX_DEPTH, is_shallow
from tests.wire.strategies import FINITE

CONTENTS = st.binary(max_size=100) | FINITE
NAMES = st.text(max_size=30).filter(str.isprintable)
BUNDLES = st.dictionaries(NAMES, CONTENTS, max_size=6)
PART = st.tuples(st.text(max_size=10), st.sampled_from(["s", "b", "j", "x"]), st.integers(-2, 60)).map(list)


@given(BUNDLES)
def test_round_trip(data):
    """Text, bytes and JSON values come out as they went in, in their order."""
    parts, body = encode_bundle(data)
    decoded = decode_bundle(json.loads(json.dumps(parts)), body)
    assert decoded == data
    assert list(decoded) == list(data)


@given(st.lists(PART | FINITE, max_size=6) | FINITE, st.binary(max_size=100))
def test_junk(parts, body):
    """Any parts with any body give a bundle or a violation; nothing in it is more than the body holds."""
    try:
        decoded = decode_bundle(parts, body)
    except ProtocolViolation:
        return
    assert isinstance(decoded, dict)


@given(BUNDLES, st.data())
def test_changed_sizes(data, choice):
    """Sizes that do not add up to the body are a violation."""
    parts, body = encode_bundle(data)
    if not parts:
        return
    index = choice.draw(st.integers(0, len(parts) - 1))
    parts[index][2] += choice.draw(st.sampled_from([-1, 1, 2**31, -(2**31)]))
    with pytest.raises(ProtocolViolation):
        decode_bundle(parts, body)


@pytest.mark.parametrize(
    "parts",
    [
        None,
        {},
        "s",
        [None],
        [[]],
        [["a/b", "s"]],
        [["a/b", "s", 0, 0]],
        [["a/b", "x", 0]],
        [[1, "s", 0]],
        [["a/b", "s", "0"]],
        [["a/b", "s", -1]],
        [["a/b", "s", 0.0]],
        [["a/b", "s", True], ["a/b", "s", False]],
        [["x" * (MAX_MIME + 1), "s", 0]],
        [["text/plain\r\nSet-Cookie: a", "s", 0]],
        [["text/\x1b[2J", "s", 0]],
        [["text/\u2028", "s", 0]],
        [["a/b", "s", 0]] * (MAX_PARTS + 1),
        [["a/b", "s", 10**30]],
    ],
    ids=lambda parts: repr(parts)[:30],
)
def test_malformed(parts):
    """Parts that are not ``[mime, kind, size]`` are a violation."""
    with pytest.raises(ProtocolViolation):
        decode_bundle(parts, b"x" if parts and "True" in repr(parts) else b"")


def test_most_and_longest():
    """As many parts with as long names as there may be come through; one more is refused on either side."""
    data: dict[str, Any] = {f"{n}".rjust(MAX_MIME, "x"): "" for n in range(MAX_PARTS)}
    assert decode_bundle(*encode_bundle(data)) == data
    with pytest.raises(ValueError):
        encode_bundle(data | {"one/more": ""})
    with pytest.raises(ValueError):
        encode_bundle({"x" * (MAX_MIME + 1): ""})
    with pytest.raises(ValueError):
        encode_bundle({"text/plain\n": ""})


def test_text_of_any_bytes():
    """Bytes that are no UTF-8 become replacement characters; surrogates in our own text become escapes."""
    assert decode_bundle([["a/b", "s", 3]], b"a\xff\xed") == {"a/b": "a\ufffd\ufffd"}
    assert decode_bundle(*encode_bundle({"a/b": "a\udcff"})) == {"a/b": "a\\udcff"}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1,]", b"\xff", b"[" * 100_000, b"[" * 300 + b"]" * 300, b"9" * 5000]
)
def test_json_that_does_not_parse_is_text(text):
    """JSON that does not parse, or nests too deeply, is text: no error, no deep value."""
    decoded = decode_bundle([["a/b", "j", len(text)]], text)
    assert decoded == {"a/b": text.decode("utf-8", "replace")}


def test_json_with_surrogates_can_be_encoded():
    """Text in JSON can always be encoded."""
    text = b'{"\\ud800": ["\\udfff", "\\ud83d\\ude00"]}'
    assert decode_bundle([["a/b", "j", len(text)]], text) == {"a/b": {"\ufffd": ["\ufffd", "😀"]}}


def test_json_may_hold_nan():
    """NaN, which pandas and others write, is a number."""
    decoded = decode_bundle(*encode_bundle({"a/b": [math.nan, math.inf]}))
    assert math.isnan(decoded["a/b"][0])
    assert decoded["a/b"][1] == math.inf


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}], ids=["list", "dict"])
def test_shallow(wrap):
    """The bound of nesting is exact, for lists and objects, and found without recursion."""
    value: Any = 0
    for _ in range(MAX_DEPTH - 1):
        value = wrap(value)
    assert is_shallow(value)
    for _ in range(50_000):
        value = wrap(value)
    assert not is_shallow(value)
    while isinstance(value, list | dict):  # so that its end needs no recursion either
        value = value[0] if isinstance(value, list) else value["a"]
