"""Bundles are encoded within their bounds, whatever is in them."""

import datetime as dt
import decimal
import fractions
import json
import pathlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.guest.python.content import cut, encode_bundle, encode_error
from cellfork.guest.python.formats import json_of
from cellfork.wire.bundles import decode_bundle

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)
BUNDLES = st.dictionaries(
    st.sampled_from(["text/plain", "text/html", "image/png", "application/json", "x/y"]) | st.text(), VALUES
)


@given(BUNDLES, st.dictionaries(st.text(), VALUES), st.integers(0, 2000))
def test_every_bundle_decodes(data: dict[str, Any], metadata: dict[str, Any], limit: int):
    """What is encoded decodes, its metadata are JSON, and it is not much larger than the limit."""
    content = encode_bundle(data, metadata, limit)
    decoded = decode_bundle(content.parts, content.body)
    assert set(decoded) <= {*data, "text/plain"}
    json.dumps(content.metadata, allow_nan=False)
    assert len(content.body) <= limit + 300 * (len(data) + 1)


@given(st.text(), st.integers(0, 200))
def test_cut_keeps_both_ends(text: str, limit: int):
    """What is cut is valid UTF-8 and begins and ends as the whole did."""
    whole = text.encode("utf-8", "backslashreplace")
    kept = cut(whole, limit)
    kept.decode()
    if len(whole) <= limit:
        assert kept == whole
    else:
        head, _, rest = kept.decode().partition("\n… [")
        tail = rest.partition("] …\n")[2]
        assert whole.decode().startswith(head) and whole.decode().endswith(tail)


def test_surrogates_and_errors():
    """Lone surrogates are escaped in text and in errors."""
    assert decode_bundle(*encode_bundle({"text/plain": "\ud800"}, {}, 100)[:2]) == {"text/plain": "\\ud800"}
    assert decode_bundle(*encode_error("\udfff", "trace")[:2]) == {"value": "\\udfff", "traceback": "trace"}


@given(VALUES)
def test_json_of_anything(value: Any):
    """A value either has JSON that ``json`` can write, or none."""
    json.dumps(json_of([value]))


def test_json_of_itself():
    """A list that holds itself has no JSON, and asking ends."""
    own: list[Any] = []
    own.append(own)
    assert json_of(own) is None
    assert json_of([[list(range(100))] * 1000]) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (decimal.Decimal("0.10"), "0.10"),
        (1 + 2j, "(1+2j)"),
        (dt.timedelta(hours=1), "1:00:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.Path("/a"), "/a"),
        (fractions.Fraction(1, 2), 0.5),
        (dt.date(2024, 1, 2), "2024-01-02"),
        (frozenset({1}), [1]),
        (b"\xff", "/w=="),
        ({1: 2}, {"1": 2}),
    ],
)
def test_values_that_json_does_not_know(value: Any, told: Any):
    """In JSON that code displays, common values that JSON does not know are told as text, numbers or lists."""
    content = encode_bundle({"application/json": {"v": value}}, {}, 1000)
    assert decode_bundle(content.parts, content.body) == {"application/json": {"v": told}}
