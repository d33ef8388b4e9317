"""Cleaning of untrusted text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.render.text import StreamCleaner, as_text, clean
from tests.render.builders import nasty_text

FORBIDDEN = [chr(c) for c in range(0x20) if chr(c) not in "\n\t"] + [chr(c) for c in range(0x7F, 0xA0)]


@pytest.mark.parametrize(
    "raw, expected",
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;owned\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1;2q#0;2;0;0;0\x1b\\after", "after"),
        ("\x1b_payload\x1b\\after", "after"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x9d52;c;aGk=\x9cafter", "after"),
        ("\x1b(Btext\x1bctext", "texttext"),
        ("a\r\nb\r\n", "a\nb\n"),
        (" 10%\r 50%\r100%\n", "100%\n"),
        (" 10%\r 50%\r", " 50%"),
        ("ab\b\bxy", "xy"),
        ("nul\x00 bell\x07", "nul␀ bell␇"),
        ("unfinished \x1b]0;title", "unfinished ␛]0;title"),
        ("\x1b\x1b[0m[31mtwo steps", "␛[31mtwo steps"),
        ("lone \ud800 surrogate", "lone � surrogate"),
        ("tab\tand é ✓ 𝄞", "tab\tand é ✓ 𝄞"),
    ],
)
def test_cleaning(raw: str, expected: str) -> None:
    """Escapes vanish whole, rewritten lines keep what was written last, other controls become visible."""
    assert clean(raw) == expected


@given(nasty_text)
def test_nothing_harmful_survives(text: str) -> None:
    """Whatever comes in, what comes out has no control character but newline and tab, and is valid UTF-8."""
    cleaned = clean(text)
    assert not [c for c in FORBIDDEN if c in cleaned]
    cleaned.encode("utf-8")


@given(nasty_text)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    """Cleaned text is clean."""
    assert clean(clean(text)) == clean(text)


@given(st.lists(nasty_text, max_size=6), st.booleans())
def test_streams_are_safe_piece_by_piece(pieces: list[str], terminal: bool) -> None:
    """A live stream lets only colours and what progress bars need through, wherever the pieces are cut."""
    cleaner = StreamCleaner(terminal=terminal)
    output = "".join(map(cleaner.feed, pieces)) + cleaner.close()
    if terminal:
        import re

        output = re.sub(r"\x1b\[[0-9;:]*m", "", output).replace("\r", "").replace("\b", "")
    assert not [c for c in FORBIDDEN if c in output]


@given(st.data(), nasty_text)
def test_a_stream_is_the_same_however_it_is_cut(data: st.DataObject, text: str) -> None:
    """Where the pieces of a stream are cut does not change what is printed."""
    whole = StreamCleaner(terminal=True)
    expected = whole.feed(text) + whole.close()
    middle = data.draw(st.integers(0, len(text)))
    cut = StreamCleaner(terminal=True)
    assert cut.feed(text[:middle]) + cut.feed(text[middle:]) + cut.close() == expected


def test_colours_stay_on_a_terminal_and_end_with_the_stream() -> None:
    """Colours reach a terminal, nothing else does, and they do not leak into what follows."""
    cleaner = StreamCleaner(terminal=True)
    assert cleaner.feed("\x1b[3") == ""
    assert cleaner.feed("1mred\x1b[2J") == "\x1b[31mred"
    assert cleaner.close() == "\x1b[0m"


def test_text_without_escapes_is_printed_at_once() -> None:
    """A piece without a control character is not held back, not even its last character."""
    assert StreamCleaner(terminal=True).feed("working… ") == "working… "


def test_content_of_the_wrong_type_is_text() -> None:
    """A guest may send anything where text belongs."""
    assert as_text({"a": 1}) == "{'a': 1}"


@pytest.mark.parametrize("attack", ["\x1b]", "\x1b[", "\x90", "\x9d0;", "\x1bP", "\x1b", "\r", "\b", "a\b"])
def test_cleaning_takes_linear_time(attack: str) -> None:
    """A megabyte of sequence starts that never end does not cost minutes."""
    start = time.perf_counter()
    clean(attack * (1_000_000 // len(attack)))
    StreamCleaner(terminal=True).feed(attack * (1_000_000 // len(attack)))
    assert time.perf_counter() - start < 10
