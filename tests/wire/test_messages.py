"""The closed sets: what keeps the rules passes, everything else is a violation and nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cellfork.wire
from cellfork.model.errors import ProtocolViolation
from cellfork.wire.frames import Decoder, Frame, encode
from cellfork.wire.messages import FROM_CONTEXT, FROM_INIT, REPLY, WORDS, check_from_guest
from cellfork.wire.values import MAX_DEPTH
from tests.wire.strategies import FINITE, HEADERS, VALUES, guest_messages

PROTOCOL = (Path(cellfork.wire.__file__).parent / "PROTOCOL.md").read_text()


@given(guest_messages())
def test_what_keeps_the_rules_passes(message):
    """Every message of the tables passes, also after its journey over the wire."""
    channel, header = message
    (frame,) = Decoder().feed(encode(header, b"", channel))
    check_from_guest(frame)


@given(st.integers(0, 3), HEADERS)
def test_unknown_messages(channel, header):
    """A message that is not in the table of its channel is a violation."""
    known = FROM_CONTEXT if channel else FROM_INIT
    if header["op"] not in known:
        with pytest.raises(ProtocolViolation):
            check_from_guest(Frame(channel, header))


@given(guest_messages(), st.data(), VALUES)
def test_changed_fields(message, data, value):
    """A field with another value, or none, passes or is a violation; what passes has the right types."""
    channel, header = message
    name = data.draw(st.sampled_from(sorted(header)))
    if name == "op":
        return
    changed = header | {name: value}
    try:
        check_from_guest(Frame(channel, changed))
    except ProtocolViolation:
        pass
    else:
        types = {
            **(FROM_CONTEXT if channel else FROM_INIT)[header["op"]],
            **(REPLY[changed["ok"]] if header["op"] == "reply" else {}),
        }
        assert name not in types or type(value) in types[name]
    del changed[name]
    with pytest.raises(ProtocolViolation, match=name):
        check_from_guest(Frame(channel, changed))


@given(
    st.integers(0, 2),
    st.sampled_from(sorted({*FROM_INIT, *FROM_CONTEXT})),
    st.dictionaries(st.text(), FINITE),
)
def test_junk_fields(channel, op, fields):
    """Known words with any fields never give another error."""
    try:
        check_from_guest(Frame(channel, {**fields, "op": op}))
    except ProtocolViolation:
        pass


@pytest.mark.parametrize(
    "channel, header",
    [
        (0, {"op": "stdout", "execution": "x", "dropped": 0}),
        (1, {"op": "reply", "id": 1, "ok": True, "result": {}}),
        (0, {"op": "reply", "id": 1, "ok": True}),
        (0, {"op": "reply", "id": 1, "ok": True, "result": []}),
        (0, {"op": "reply", "id": 1, "ok": False, "message": "m"}),
        (0, {"op": "reply", "id": 1, "ok": False, "code": [], "message": "m"}),
        (0, {"op": "reply", "id": 1, "ok": False, "code": "conflict", "message": None}),
        (0, {"op": "reply", "id": 1, "ok": 1, "result": {}}),
        (0, {"op": "reply", "id": True, "ok": True, "result": {}}),
        (0, {"op": "reply", "id": 2**63, "ok": True, "result": {}}),
        (0, {"op": "reply", "id": 1.0, "ok": True, "result": {}}),
        (0, {"op": "process.exit", "process": 1, "code": 0}),
        (0, {"op": "process.output", "process": 1, "stream": "stdin"}),
        (0, {"op": "watch.event", "watch": 1, "name": "", "kind": "overflow"}),
        (
            1,
            {
                "op": "done",
                "execution": "x",
                "status": "fine",
                "count": 1,
                "next_count": 2,
                "name": None,
                "parts": [],
            },
        ),
        (1, {"op": "execute", "execution": "x"}),
        (0, {"op": ""}),
        (0, {"op": "x" * 100_000}),
    ],
)
def test_violations(channel, header):
    """Messages on the wrong channel, with missing or wrong fields or unknown words are violations, told briefly."""
    with pytest.raises(ProtocolViolation) as caught:
        check_from_guest(Frame(channel, header))
    assert len(str(caught.value)) < 200


def test_depth_is_bounded():
    """A header that nests too deeply for those who walk it is a violation."""
    metadata: Any = {}
    for _ in range(MAX_DEPTH):
        metadata = {"a": metadata}
    header = {
        "op": "display",
        "execution": "",
        "parts": [],
        "metadata": metadata,
        "display_id": None,
        "main": False,
    }
    with pytest.raises(ProtocolViolation, match="deep"):
        check_from_guest(Frame(1, header))


def test_protocol_names_every_message():
    """PROTOCOL.md and the tables name the same messages from the guest, with every field and word."""
    section = PROTOCOL.split("## Init → host")[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z_.]+)`", section)) >= {*FROM_INIT, *FROM_CONTEXT}
    rows = [row.split("|") for row in section.splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row[1])}
    assert named == {*FROM_INIT, *FROM_CONTEXT}
    for table in (FROM_INIT, FROM_CONTEXT):
        for op, fields in table.items():
            told = " ".join(row[2] + row[3] for row in rows if f"`{op}`" in row[1])
            assert all(f"`{name}" in told or f" {name}" in told for name in fields), op
    for words in WORDS.values():
        assert all(f"`{word}`" in section for word in words)
