"""Targets: frames, headers, messages, bundles and values of the wire."""

import json
import math
import sys
from typing import Any

from cellfork.model.errors import ProtocolViolation
from cellfork.wire.bundles import MAX_PARTS, decode_bundle, encode_bundle
from cellfork.wire.frames import PREFIX, Decoder, Frame, decode_header, encode
from cellfork.wire.messages import FROM_CONTEXT, FROM_INIT, REPLY, check_from_guest
from cellfork.wire.values import MAX_DEPTH, is_shallow, parse, weigh
from tests.fuzz.choices import Choices

SMALL = 4096
DEEP: list[Any] = []
for _ in range(MAX_DEPTH):
    DEEP = [DEEP]
OF_ANY_TYPE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63 - 1,
    2**63,
    1.5,
    "",
    "ok",
    "stdout",
    "write",
    [],
    {},
    DEEP,
    {"a": DEEP},
)


def frames(data: bytes) -> None:
    """However a stream is cut, the same frames come out and the same verdict, and no more is held than was fed."""
    whole = decoded([data])
    assert decoded([data[at : at + 1] for at in range(len(data))]) == whole
    half = len(data) // 2
    for cut in {1, half, PREFIX.size, len(data) - 1}:
        assert decoded([data[:cut], data[cut:]]) == whole


def decoded(pieces: list[bytes]) -> tuple[list[Frame], bool]:
    """Return the frames in ``pieces``, and whether they end with a violation."""
    decoder, found, fed = Decoder(max_body=SMALL), [], 0
    try:
        for piece in pieces:
            fed += len(piece)
            found += decoder_output(decoder, piece)
            taken = sum(PREFIX.size + len(frame.body) for frame in found)
            assert decoder.pending <= fed - taken
    except Violated as violated:
        return found + violated.before, True
    return found, False


class Violated(Exception):
    """A violation, with the frames of the same piece that came before it."""

    def __init__(self, before: list[Frame]) -> None:
        super().__init__()
        self.before = before


def decoder_output(decoder: Decoder, piece: bytes) -> list[Frame]:
    found: list[Frame] = []
    try:
        found.extend(decoder.feed(piece))
    except ProtocolViolation as violation:
        raise Violated(found) from violation
    return found


def header(data: bytes) -> None:
    """A header is refused, or is an object with an op that can be encoded again and comes back the same."""
    try:
        value = decode_header(data)
    except ProtocolViolation:
        return
    assert isinstance(value["op"], str)
    if is_shallow(value):
        check_clean(value)
        (frame,) = Decoder().feed(encode(value))
        assert frame.header == value


def check_clean(value: Any) -> None:
    """Walk a value: every text can be encoded, every number is finite."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            name.encode()
            check_clean(item)
    elif isinstance(value, list):
        for item in value:
            check_clean(item)


def messages(data: bytes) -> None:
    """What passes the check is in the table of its channel, with fields of the types that it names."""
    choices = Choices(data)
    channel = choices.pick((0, 1, 2**32 - 1))
    try:
        frame = Frame(channel, drawn_header(choices) if choices.chance(2) else decode_header(choices.rest()))
        check_from_guest(frame)
    except ProtocolViolation:
        return
    table = FROM_CONTEXT if channel else FROM_INIT
    for name, types in table[frame.header["op"]].items():
        value = frame.header[name]
        assert isinstance(value, types)
        assert isinstance(value, bool) == (types == (bool,))
    assert is_shallow(frame.header)


def drawn_header(choices: Choices) -> dict[str, Any]:
    """Return a header whose fields have their names, and values of any type."""
    op = choices.pick([*FROM_INIT, *FROM_CONTEXT])
    fields = [*FROM_INIT.get(op, {}), *FROM_CONTEXT.get(op, {}), *REPLY[True], *REPLY[False]]
    return {"op": op, **{name: choices.pick(OF_ANY_TYPE) for name in fields if not choices.chance(8)}}


def bundles(data: bytes) -> None:
    """Parts and body that do not fit are refused; what a bundle holds is harmless to whoever encodes or walks it."""
    choices = Choices(data)
    size = choices.byte() * 256 + choices.byte()
    text, body = data[2 : 2 + size], data[2 + size :]
    try:
        parts = parse(text.decode("utf-8", "replace"), strict=True)
    except (ValueError, RecursionError):
        return
    try:
        bundle = decode_bundle(parts, body)
    except ProtocolViolation:
        return
    assert len(bundle) <= len(parts) <= MAX_PARTS
    for value in bundle.values():
        assert is_shallow(value)
        if not isinstance(value, bytes):
            json.dumps(value, ensure_ascii=False).encode()
    assert repr(decode_bundle(*encode_bundle(bundle))) == repr(bundle)


def values(data: bytes) -> None:
    """JSON is a value without lone surrogates, or a ``ValueError`` or ``RecursionError``; its weight is no understatement."""
    text = data.decode("utf-8", "replace")
    for strict in (False, True):
        try:
            value = parse(text, strict=strict)
        except (ValueError, RecursionError):
            continue
        assert is_shallow(value) == (depth_of(value) <= MAX_DEPTH)
        if is_shallow(value):
            json.dumps(value, ensure_ascii=False).encode()
            assert held(value) <= weigh(data)


def depth_of(value: Any) -> int:
    """Count levels without recursion: a scalar has one."""
    level, depth = [value], 0
    while level:
        depth += 1
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


def held(value: Any) -> int:
    """Return the bytes that a JSON value takes, as if nothing in it were shared."""
    size = sys.getsizeof(value)
    if isinstance(value, list):
        return size + sum(map(held, value))
    if isinstance(value, dict):
        return size + sum(sys.getsizeof(name) + held(item) for name, item in value.items())
    return size
