"""Values for property tests of the wire."""

from typing import Any

from hypothesis import strategies as st

from cellfork.wire.messages import FROM_CONTEXT, FROM_INIT, REPLY, WORDS

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False) | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
FINITE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
HEADERS = st.builds(
    lambda rest, op: {**rest, "op": op}, st.dictionaries(st.text(max_size=10), FINITE, max_size=5), st.text()
)
BODIES = st.binary(max_size=300)
CHANNELS = st.integers(0, 2**32 - 1)

_OF_TYPE: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63) + 1, 2**63 - 1),
    str: st.text(max_size=20),
    bool: st.booleans(),
    dict: st.dictionaries(st.text(max_size=5), FINITE, max_size=3),
    list: st.lists(FINITE, max_size=3),
    type(None): st.none(),
}


@st.composite
def guest_messages(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """Return a channel and a header that keep every rule."""
    channel = draw(st.integers(0, 3))
    table = FROM_CONTEXT if channel else FROM_INIT
    op = draw(st.sampled_from(sorted(table)))
    header: dict[str, Any] = {"op": op}
    fields = dict(table[op])
    if op == "reply":
        header["ok"] = draw(st.booleans())
        fields |= REPLY[header["ok"]]
        del fields["ok"]
    for name, types in fields.items():
        words = WORDS.get((op, name))
        values = st.sampled_from(sorted(words)) if words else st.one_of([_OF_TYPE[kind] for kind in types])
        header[name] = draw(values)
    return channel, header
