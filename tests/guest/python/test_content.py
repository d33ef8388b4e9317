"""Bundles are encoded within their bounds, whatever is in them."""

import json
from typing import Any

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
