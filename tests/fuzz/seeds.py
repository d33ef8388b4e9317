"""Inputs to begin with: what a real guest said a moment ago, and what is known to be odd."""

import json
from typing import Any

from cellfork.wire.bundles import encode_bundle
from cellfork.wire.frames import PREFIX, encode
from cellfork.wire.messages import FROM_CONTEXT, FROM_INIT, REPLY

_EXAMPLES: dict[type, Any] = {
    int: 1,
    str: "text",
    bool: True,
    dict: {"a": [1, 2.5, None]},
    list: [],
    type(None): None,
}
ODD_JSON = (
    b"1e400",
    b"-1e400",
    b"NaN",
    b"Infinity",
    b"9" * 400,
    b"[" * 250 + b"]" * 250,
    b'{"a":1,"a":2}',
    b'"\\ud800"',
    b'"\\ud83d\\ude00"',
    b'{"\\udfff":"\\u0000\\u2028"}',
    b"\xef\xbb\xbf{}",
    b'"\xed\xa0\x80"',
    b'[[],{},"",0,1.5e3,true,null,[[[]]]]',
    b'{"a":{"b":["\xc3\xa9\xf0\x9f\x98\x80"]}}',
)


def message(channel: int, op: str) -> dict[str, Any]:
    """Return a header that keeps every rule."""
    table = FROM_CONTEXT if channel else FROM_INIT
    header: dict[str, Any] = {"op": op, **{name: _EXAMPLES[types[0]] for name, types in table[op].items()}}
    if op == "reply":
        header |= {name: _EXAMPLES[types[0]] for name, types in REPLY[True].items()}
    return header | {
        "kept": {"kind": "kernel"},
        "process.output": {"stream": "pty"},
        "watch.event": {"kind": "write"},
        "done": {"status": "ok"},
    }.get(op, {})


def streams() -> list[bytes]:
    """Return streams of frames: every message alone, all of them, and broken ones."""
    every = [
        encode(message(channel, op), b"body", channel)
        for channel, table in ((0, FROM_INIT), (1, FROM_CONTEXT))
        for op in table
    ]
    broken = [
        PREFIX.pack(2**32 - 1, 0, 0),
        PREFIX.pack(0, 0, 0),
        PREFIX.pack(10, 2**31, 1) + b"x",
        every[0][:-3],
    ]
    return [*every, b"".join(every[:6]), *broken]


def headers() -> list[bytes]:
    """Return headers, and JSON that is odd in a field."""
    right = [
        json.dumps(message(channel, op)).encode()
        for channel, table in ((0, FROM_INIT), (1, FROM_CONTEXT))
        for op in table
    ]
    return [*right, *(b'{"op":"ready","version":1,"pid":' + odd + b"}" for odd in ODD_JSON)]


def bundles() -> list[bytes]:
    """Return bundles: the size of the parts, the parts, the body."""
    made: list[tuple[Any, bytes]] = [
        encode_bundle({"text/plain": "text", "image/png": b"\x89PNG", "application/json": {"a": [1, None]}}),
        encode_bundle({"value": "no", "traceback": "Traceback"}),
        *(([["application/json", "j", len(odd)]], odd) for odd in ODD_JSON),
    ]
    texts = [(json.dumps(parts).encode(), body) for parts, body in made]
    return [len(text).to_bytes(2, "big") + text + body for text, body in texts]


def jsons() -> list[bytes]:
    """Return JSON, much of it odd."""
    return list(ODD_JSON)


def decisions() -> list[bytes]:
    """Return decisions for a session: short ones of every kind."""
    return [bytes([kind, *range(at, at + 12)]) * 3 for kind in range(0, 32, 3) for at in (0, 7)]


def zygote_messages() -> list[bytes]:
    """Return what a zygote says, each message behind its length, then the number of descriptors."""
    said: list[Any] = [
        {"op": "booted", "pid": 4000000},
        {"op": "ready", "python": "3.11"},
        {"op": "forked", "sandbox": "a", "pid": 5},
        {"op": "refused", "sandbox": "b", "message": "no"},
        {"op": "exited", "sandbox": "a", "status": 0},
        {"op": "failed", "step": "root", "errno": 1, "message": "no"},
        {"op": "failed", "step": "prepare", "errno": None, "message": "no"},
        [],
        {"op": 5},
    ]
    return [
        bytes([len(text), len(text)]) + text + b"\x02" for text in (json.dumps(one).encode() for one in said)
    ]


def texts() -> list[bytes]:
    """Return text with all kinds of escape sequences, and decisions for executions."""
    sequences = (
        b"\x1b]0;title\x07after",
        b"\x1b]52;c;Y29weQ==\x1b\\",
        b"\x1bP$q\x1b\\",
        b"\x1b[31mred\x1b[0m",
        b"\x1b[2J\x1b[H\x1b[?2004h",
        "\x9b31m\x9d0;t\x9c\x90q\x9c".encode(),
        b"10%\r20%\r\n\b\b\x00\x7f",
        b"\x1b[200~paste\x1b[201~",
        b"\xff\xfe\xed\xa0\x80",
    )
    return [
        *sequences,
        *(bytes([kind, 40]) + sequence for kind in range(4) for sequence in sequences),
        bytes(range(40)) * 4,
    ]
