"""The parts that need no sandbox: lines, patterns, variables, tails, ranges of lines, frames."""

import fnmatch
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.dialects.opensandbox.execd import environment, frames
from cellfork.dialects.opensandbox.execd.downloads import LineCutter, disposition
from cellfork.dialects.opensandbox.execd.errors import Refused
from cellfork.dialects.opensandbox.execd.globs import MOST_ALTERNATIVES, compiled
from cellfork.dialects.opensandbox.execd.lines import Lines
from cellfork.dialects.opensandbox.execd.looking import moment
from cellfork.dialects.opensandbox.execd.terminals import Tail
from cellfork.model import events
from cellfork.model.results import ExecutionError


def lines_of(*pieces: str, longest: int = 1000) -> list[str]:
    cutter = Lines(longest)
    return [line for piece in pieces for line in cutter.take(piece)] + list(cutter.end())


def test_lines_end_with_newline_return_or_both() -> None:
    """Upstream's rule: each ends a line, both together once, an empty line is a newline, the last one needs no end."""
    assert lines_of("a\n\nb\n\n\nc\n") == ["a", "\n", "b", "\n", "\n", "c"]
    assert lines_of("a\r\nb\rc\n\rd") == ["a", "b", "c", "\n", "d"]
    assert lines_of("a\r", "\nb\r", "\r", "\n") == ["a", "b", "\n"]
    assert lines_of("a\r", "", "\nb") == ["a", "b"]
    assert lines_of("") == []


@given(st.lists(st.text(alphabet="ab\r\n\x85\u2028")), st.integers(1, 5))
def test_lines_do_not_depend_on_how_they_came(pieces: list[str], longest: int) -> None:
    """Whatever the pieces are, the lines are those of the whole; only what is too long is cut, and nothing is lost."""
    whole = "".join(pieces)
    assert lines_of(*pieces) == lines_of(whole)
    cut = lines_of(*pieces, longest=longest)
    assert all(0 < len(line) <= longest for line in cut)
    kept = "".join(line for line in cut if line != "\n")
    assert kept == re.sub(r"[\r\n]", "", whole)


PATTERNS = [
    ("*", "anything.txt", True),
    ("**", "anything", True),
    ("*.txt", "a.txt", True),
    ("*.txt", "a.txt.bak", False),
    ("a?c", "abc", True),
    ("a?c", "aéc", True),
    ("a?c", "ac", False),
    ("[a-c]x", "bx", True),
    ("[!a-c]x", "bx", False),
    ("[^a-c]x", "dx", True),
    ("[^]]x", "dx", True),
    ("[]]x", "]x", True),
    (r"[\]a]x", "]x", True),
    ("*.{py,txt}", "a.py", True),
    ("*.{py,txt}", "a.txt", True),
    ("*.{py,txt}", "a.rs", False),
    ("{a,b{c,d}}", "bd", True),
    ("{a,b{c,d}}", "b", False),
    ("{,x}", "", True),
    (r"\*", "*", True),
    (r"\*", "a", False),
    (r"\{a\}", "{a}", True),
    (r"a\,b", "a,b", True),
    ("[{]", "{", True),
    ("a.c", "abc", False),
    ("Ä*", "Äpfel", True),
    ("a\nb", "a\nb", True),
]


@pytest.mark.parametrize(("pattern", "name", "expected"), PATTERNS)
def test_patterns_match_names(pattern: str, name: str, expected: bool) -> None:
    """Stars, question marks, sets, alternatives and escapes mean what they mean upstream."""
    assert (re.compile(compiled(pattern), re.DOTALL).fullmatch(name) is not None) is expected


@pytest.mark.parametrize("pattern", ["[", "[a", "[]", "[!", "{a", "{a,{b}", "\\", "a\\", "[\\]", "x" * 2000])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    """They are an error of the request, not a match of nothing."""
    with pytest.raises(Refused) as refused:
        compiled(pattern)
    assert refused.value.status == 400


def test_alternatives_are_bounded() -> None:
    """Braces multiply; from a number on they are refused before anything is made of them."""
    assert compiled("{a,b}" * 6).count("|") == MOST_ALTERNATIVES - 1
    with pytest.raises(Refused):
        compiled("{a,b}" * 200)


def test_patterns_cannot_take_long() -> None:
    """Many stars do not try each way to match."""
    pattern = re.compile(compiled("*a" * 30), re.DOTALL)
    assert pattern.fullmatch("a" * 250 + "b") is None


@given(st.text(alphabet="ab*?[]!", max_size=12), st.text(alphabet="ab]!", max_size=6))
def test_plain_patterns_are_those_of_fnmatch(pattern: str, name: str) -> None:
    """Without braces and escapes a pattern is what Python's ``fnmatch`` takes it for, unless it is malformed."""
    try:
        made = compiled(pattern)
    except Refused:
        return
    assert bool(re.compile(made, re.DOTALL).fullmatch(name)) is fnmatch.fnmatchcase(name, pattern)


def test_lines_of_the_environment_file() -> None:
    """Single quotes keep a value as it is, double ones have escapes, variables are replaced elsewhere; the rest is no line."""
    lines = (
        "A=plain", "  B = x", "# C=1", "", "D", "E='$A \\n'", 'F="a\\nb\\"c\\\\ ${A} $NONE."', "G=$A/x", "H=",
        "=x", "I=a=b", "J=\0",
    )  # fmt: skip
    text = "\n".join(lines)
    assert environment.parse(text, {"A": "base"}) == {
        "A": "plain",
        "E": "$A \\n",
        "F": 'a\nb"c\\ base .',
        "G": "base/x",
        "H": "",
        "I": "a=b",
    }


def test_a_tail_keeps_the_end_of_a_stream() -> None:
    """It tells where what it has begins, whatever offset is asked for."""
    tail = Tail(10)
    assert tail.since(0) == (0, b"")
    tail.add(b"0123456")
    assert tail.since(0) == (0, b"0123456")
    assert tail.since(4) == (4, b"456")
    assert tail.since(99) == (7, b"")
    for number in range(100):
        tail.add(b"%010d" % number)
    assert tail.end == 1007
    assert tail.since(0) == (997, b"0000000099")
    assert tail.since(1004) == (1004, b"099")


@given(
    st.lists(st.text(alphabet="ab\r\n").map(str.encode), max_size=8),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_lines_of_a_file(pieces: list[bytes], first: int, most: int) -> None:
    r"""However a file comes, its lines are those that ``\n`` ends, without the returns before it, joined by ``\\n``."""
    cutter = LineCutter(first, most)
    made = b"".join(cutter.take(piece) for piece in pieces)
    lines = b"".join(pieces).split(b"\n")
    lines = lines[:-1] if not lines[-1] else lines
    assert made == b"\n".join(line.rstrip(b"\r") for line in lines[first - 1 : first - 1 + most])


def test_names_of_downloads_cannot_begin_a_header() -> None:
    """A name is told as it is where it is plain, and escaped where it is not."""
    assert disposition("a b.txt") == b'attachment; filename="a b.txt"'
    for name in ['a"b', "a\r\nx: y", "ä", "a\\b", "\x00"]:
        told = disposition(name)
        assert told.isascii()
        assert b"\r" not in told
        assert told.count(b'"') == 2
        assert b"filename*=UTF-8''" in told


def test_times_are_told_whatever_they_are() -> None:
    """A program can give a file any time; it is told as near as a date can be."""
    assert moment(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
    assert moment(-(2**63)).startswith("1677-") or moment(-(2**63)).startswith("0001-")
    assert moment(2**63 - 1).startswith("2262-")


def test_frames_are_ascii_and_one_line() -> None:
    """Clients cut at every kind of line end, so none is ever sent within a frame."""
    frame = frames.frame("stdout", text="a\x85b\u2028c\nd\r\U0001f600\ud800")
    assert frame.isascii()
    assert frame.endswith(b"}\n\n")
    assert frame.count(b"\n") == 2
    assert json.loads(frame)["text"] == "a\x85b\u2028c\nd\r\U0001f600\ud800"


def test_numbers_that_json_has_not_are_told_as_null() -> None:
    """A result with NaN is still JSON."""
    assert json.loads(frames.frame("result", results={"x": float("nan")}))["results"] == {"x": None}


def test_results_have_both_names_of_plain_text() -> None:
    """The documentation says ``text/plain``, upstream's server ``text``; bytes are base64."""
    display = events.Display(seq=1, timestamp=0, data={"text/plain": "4", "image/png": b"\x89P"}, metadata={})
    told = json.loads(frames.of_event(display))
    assert told["results"] == {"text": "4", "text/plain": "4", "image/png": "iVA="}


def test_what_java_throws_has_the_name_that_clients_know() -> None:
    """It is an ``EvalException`` whose value names what was thrown; what is no Java stays as it is."""
    thrown = ExecutionError("ArithmeticException", "/ by zero", "…")
    assert frames.named(thrown, "java").name == "EvalException"
    assert frames.named(thrown, "java").value == "ArithmeticException: / by zero"
    assert frames.named(ExecutionError("CompilationException", "x"), "java").name == "CompilationException"
    assert frames.named(thrown, "python") is thrown
