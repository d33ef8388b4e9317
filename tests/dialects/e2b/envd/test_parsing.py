"""What reads bytes of clients: forms, compressed bodies, nested messages, headers.  However they are cut, the answer is the same."""

import gzip
import json
import random
import time
import zlib
from itertools import pairwise
from typing import Any

import pytest
from connectrpc.errors import ConnectError
from hypothesis import given, settings
from hypothesis import strategies as st

from cellfork.dialects.asgi import TooLarge
from cellfork.dialects.e2b.envd.access import basic_user, resolve
from cellfork.dialects.e2b.envd.codecs import MAX_DEPTH, ShallowJSON, check_depth
from cellfork.dialects.e2b.envd.encodings import PIECE, accepted, decompressed
from cellfork.dialects.e2b.envd.errors import Refusal
from cellfork.dialects.e2b.envd.follow import keepalive_seconds
from cellfork.dialects.e2b.envd.stubs import process_pb as pb
from cellfork.dialects.e2b.envd.translate import permissions
from cellfork.dialects.multipart import (
    END,
    MAX_PART_HEADERS,
    MAX_PARTS,
    Parser,
    Part,
    boundary_of,
    parameters,
)
from cellfork.model.errors import InvalidRequest

BOUNDARY = b"b0und"


def body_of(parts: list[tuple[str, bytes]]) -> bytes:
    text = b"preamble\r\n"
    for name, content in parts:
        head = f'--b0und \t\r\ncontent-type: x/y\r\nContent-Disposition: form-data; filename="{name}"; name=file\r\n\r\n'
        text += head.encode() + content + b"\r\n"
    return text + b"--b0und--\r\nepilogue\r\n--b0und\r\n"


def cut(body: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[start:end] for start, end in pairwise(marks)]


def parsed(pieces: list[bytes]) -> list[tuple[str | None, bytes]]:
    parser = Parser(BOUNDARY)
    found: list[tuple[str | None, bytes]] = []
    is_open = False
    for data in pieces:
        for piece in parser.feed(data):
            if isinstance(piece, Part):
                assert not is_open
                found.append((piece.filename, b""))
                is_open = True
            elif piece is END:
                is_open = False
            else:
                assert is_open
                assert isinstance(piece, bytes)
                found[-1] = found[-1][0], found[-1][1] + piece
    parser.close()
    return found


contents = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"\r\n", b"--b0und", b"\r\n--b0und", b"\r\n--b0un", b"-", b"\r", b"\n", b"x"]),
    max_size=8,
).map(b"".join)


@given(st.lists(contents, max_size=4), st.lists(st.integers(0, 10_000), max_size=30))
def test_forms_are_read_however_they_are_cut(given_contents: list[bytes], places: list[int]):
    """Parts come out as they went in, whatever they hold but the boundary itself, and wherever the body is cut."""
    parts = [
        (f"f{number}", content)
        for number, content in enumerate(given_contents)
        if not any(
            (content + b"\r\n--").find(b"\r\n--b0und" + mark) >= 0 for mark in (b"--", b"\r", b" ", b"\t")
        )
        and not (b"\r\n" + content).startswith(b"\r\n--b0und")
    ]
    body = body_of(parts)
    assert parsed(cut(body, places)) == parts
    assert parsed([bytes([byte]) for byte in body]) == parts


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_any_bytes_are_a_form_or_an_error(data: bytes, places: list[int]):
    """What is no form is an error of the client, and never another one."""
    body = data.replace(b"\x00", b"\r\n--b0und").replace(b"\x01", b"\r\n\r\n").replace(b"\x02", b"--")
    try:
        parsed(cut(body, places))
    except InvalidRequest:
        pass


def test_forms_are_bounded():
    """Headers without end, parts without end and what follows a boundary without end are refused; memory stays small."""
    with pytest.raises(InvalidRequest, match="headers"):
        parsed([b"--b0und\r\n", *[b"a: " + b"x" * 1000 + b"\r\n"] * 100])
    with pytest.raises(InvalidRequest, match="parts"):
        parsed([b"--b0und\r\n\r\n\r\n"] * (MAX_PARTS + 1))
    with pytest.raises(InvalidRequest, match="something else"):
        parsed([b"--b0und" + b" " * 100_000])
    parser = Parser(BOUNDARY)
    for _ in range(1000):
        list(parser.feed(b"y" * 10_000))
    assert len(parser._buffer) < MAX_PART_HEADERS


@pytest.mark.parametrize(
    "header", ["", "multipart/form-data", "a/b; boundary=", f"a/b; boundary={'x' * 71}", "a/b; boundary=ü"]
)
def test_boundaries_that_are_none(header: str):
    """A form without a boundary that can be one is refused."""
    with pytest.raises(InvalidRequest, match="boundary"):
        boundary_of(header)


def test_parameters():
    """Parameters of a header are read quoted and bare, names in any case, the first of each counts."""
    header = 'Form-Data; NAME="a\\"b\\\\c"; filename=x.txt; filename="later"; filename*=utf-8\'\'y'
    assert parameters(header) == (
        "form-data",
        {"name": 'a"b\\c', "filename": "x.txt", "filename*": "utf-8''y"},
    )
    start = time.perf_counter()
    parameters("a" + "; " * 20_000 + '"' * 20_000)
    parameters("a;" + "a" * 40_000)
    assert time.perf_counter() - start < 2


async def chunks(*pieces: bytes):
    for piece in pieces:
        yield piece


async def inflated(*pieces: bytes, limit: int = 1 << 30) -> bytes:
    return b"".join([piece async for piece in decompressed(chunks(*pieces), limit)])


async def test_decompression_whatever_the_pieces():
    """Members and cuts do not matter; what is missing or behind the end is noticed."""
    generator = random.Random(1)
    for _ in range(50):
        text = generator.randbytes(generator.randrange(3000)) + bytes(generator.randrange(5_000_000))
        body = gzip.compress(text[:2000]) + gzip.compress(text[2000:])
        assert await inflated(*cut(body, [generator.randrange(len(body)) for _ in range(5)])) == text
    body = gzip.compress(b"abc")
    for broken in (b"", body[:-1], body + b"x", body[:5] + b"\xff" + body[6:-1], b"abc"):
        with pytest.raises(InvalidRequest, match="error decompressing request body"):
            await inflated(broken)


async def test_decompression_is_bounded():
    """A bomb is handed on in pieces, and ends at the bound."""
    bomb = zlib.compressobj(wbits=31)
    body = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(64)) + bomb.flush()
    sizes = [len(piece) async for piece in decompressed(chunks(body), 1 << 30)]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= PIECE
    with pytest.raises(TooLarge):
        await inflated(body, limit=10 << 20)


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, "identity"),
        ("", "identity"),
        ("gzip", "gzip"),
        ("GZIP;q=0.5", "gzip"),
        ("gzip;q=0", "identity"),
        ("br, gzip;q=0.1", "gzip"),
        ("identity, gzip;q=0.9", "identity"),
        ("*", "identity"),
        ("*, identity;q=0", "gzip"),
        ("br", "identity"),
        ("gzip;q=x", "gzip"),
    ],
)
def test_encodings(header: str | None, chosen: str):
    """The client's preferences decide, and identity where it has none."""
    assert accepted(header) == chosen


@pytest.mark.parametrize("header", ["identity;q=0", "*;q=0", "br, *;q=0", "identity;q=0, gzip;q=0"])
def test_no_encoding_in_common(header: str):
    """A client that takes nothing that there is gets told so."""
    with pytest.raises(Refusal) as refused:
        accepted(header)
    assert refused.value.status == 406


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * levels + closing * levels


@pytest.mark.parametrize(
    "data",
    [b"[" * 1_000_000, b'{"process":' + b"[" * 1_000_000, b'{"process":{"cmd":' + nested(100_000) + b"}}", b'{"a":' * 200_000,
     b'{"tag":"\\"' + b"[" * 500_000, b"[]" * 40 + b"]" * 40, nested(2 * MAX_DEPTH + 1), b'"' + b"[" * 100],
)  # fmt: skip
def test_deep_messages_never_reach_the_decoder(data: bytes):
    """What nests too deeply, or has no pairs, is the client's error: the decoder would end the process."""
    with pytest.raises(ConnectError):
        ShallowJSON().decode(data, pb.StartRequest)


def test_shallow_messages_with_many_brackets():
    """Brackets in texts, and many of them side by side, are no depth."""
    args = ['[[["{{{' * 1000, "\\" * 7 + '"' + "[" * 100, "]" * 100, "{" * 100]
    message = {"process": {"cmd": "x", "args": args, "envs": {"[": "{" * 50}}, "new": [[], {}] * 1000}
    decoded: Any = ShallowJSON().decode(json.dumps(message).encode(), pb.StartRequest)
    assert decoded.process.args == args


def test_checking_the_depth_takes_no_time():
    """The check of a large message is as fast as reading it, whatever it holds."""
    for data in (b"[]" * 5_000_000, nested(MAX_DEPTH) * 250_000, b'"\\"[",' * 1_500_000, b"[" * 10_000_000):
        start = time.process_time()
        try:
            check_depth(data)
        except ConnectError:
            pass
        assert time.process_time() - start < 2


@settings(max_examples=300)
@given(
    st.recursive(
        st.none() | st.text(alphabet='[]{}"\\a'),
        lambda below: st.lists(below) | st.dictionaries(st.text('[]{}"\\a'), below),
    )
)
def test_depth_of_any_json(value: Any):
    """Whatever JSON there is within the bound passes, however its texts look."""
    text = json.dumps(value, ensure_ascii=True)
    check_depth(text.encode() + b" " + b"[]" * MAX_DEPTH)  # enough brackets for the check to look closer


@pytest.mark.parametrize(
    ("path", "user", "expected"),
    [
        ("f", "user", "/home/user/f"),
        ("f", "root", "/root/f"),
        ("~", "user", "/home/user"),
        ("~/x/../y", "root", "/root/y"),
        ("../etc", "user", "/home/etc"),
        ("/a/../b", "user", "/a/../b"),
        ("./a//b/", "user", "/home/user/a/b"),
    ],
)
def test_paths(path: str, user: str, expected: str):
    """Relative paths and ``~`` start at the user's home; absolute ones are left as they are."""
    assert resolve(path, user) == expected


@pytest.mark.parametrize(
    ("header", "user"),
    [("Basic dXNlcjo=", "user"), ("basic cm9vdDpw", "root"), ("Basic Og==", ""), ("Basic dXNlcg==", None), (None, None),
     ("Basic \u00fc", None), ("Bearer dXNlcjo=", None), ("Basic /////w==", None)],
)  # fmt: skip
def test_basic_users(header: str | None, user: str | None):
    """The user is what precedes the colon; what is no such header names nobody."""
    assert basic_user(header) == user


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 90),
        ("50", 50),
        ("0", 1),
        ("x", 90),
        ("-1", 90),
        ("9" * 30, 90),
        ("999999999", 3600),
        ("\u0663", 90),
    ],
)
def test_keepalive_interval(header: str | None, seconds: float):
    """The interval is the client's within bounds, and upstream's where it says nothing."""
    assert keepalive_seconds(header) == seconds


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (0o100644, "-rw-r--r--"),
        (0o040755, "drwxr-xr-x"),
        (0o041777, "dtrwxrwxrwx"),
        (0o120777, "Lrwxrwxrwx"),
        (0o104755, "urwxr-xr-x"),
        (0o010600, "prw-------"),
        (0o140755, "Srwxr-xr-x"),
        (0o020666, "Dcrw-rw-rw-"),
        (0o060660, "Drw-rw----"),
    ],
)
def test_modes_as_go_writes_them(mode: int, text: str):
    """Kinds of files have Go's letters and not those of ls(1)."""
    assert permissions(mode) == text
