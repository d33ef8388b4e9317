"""Init's reading of a kernel's pipes: markers found however the bytes were cut, text bounded."""

import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.guest.loop import Loop
from cellfork.guest.outputs import KEEP, OutputPipe, TextFlow
from cellfork.guest.python.streams import MARK

NONCE = b"12345678"


def marker(epoch: int) -> bytes:
    return MARK + NONCE + struct.pack(">I", epoch)


class Pipe:
    """An :class:`OutputPipe` and its writing end."""

    def __init__(self) -> None:
        self.loop = Loop()
        reading, self.writing = os.pipe2(os.O_NONBLOCK)
        self.pipe = OutputPipe(self.loop, reading, NONCE, lambda: None)

    def close(self) -> None:
        self.pipe.close()
        os.close(self.writing)
        self.loop.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    opened = Pipe()
    yield opened
    opened.close()


TEXTS = st.lists(
    st.binary(max_size=40)
    | st.sampled_from([MARK, MARK + NONCE[:3], b"\x00", b"\x00\x1b", MARK + b"87654321" + b"abcd", b"\n"]),
    max_size=6,
)


@given(TEXTS, st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_text_is_cut_at_markers_only(texts: list[bytes], sizes: list[int]):
    """However the bytes arrive, each epoch's text is whole, and what only resembles a marker stays text."""
    texts = [text for text in texts if MARK + NONCE not in text]
    data = b"".join(text + marker(epoch) for epoch, text in enumerate(texts, 1))
    pipe = Pipe()
    try:
        told: dict[int, bytes] = {}
        position = number = 0
        while position < len(data):
            size = sizes[number % len(sizes)]
            number += 1
            os.write(pipe.writing, data[position : position + size])
            position += size
            pipe.pipe.read()
            for segment in pipe.pipe.take(None):
                told[segment.epoch] = told.get(segment.epoch, b"") + segment.text
        assert pipe.pipe.epoch == len(texts)
        assert told == {epoch: text for epoch, text in enumerate(texts) if text}
    finally:
        pipe.close()


def test_take_up_to_an_epoch(pipe: Pipe):
    """Only what precedes a marker is taken for it; the rest waits."""
    os.write(pipe.writing, b"a" + marker(1) + b"b" + marker(2) + b"c")
    pipe.pipe.read()
    assert [segment.text for segment in pipe.pipe.take(1)] == [b"a"]
    assert [segment.text for segment in pipe.pipe.take(2)] == [b"b"]
    assert not pipe.pipe.is_empty
    assert [segment.text for segment in pipe.pipe.take(None)] == [b"c"]


def test_reading_to_a_marker_that_never_comes(pipe: Pipe):
    """Init never waits: it reads until the pipe is empty."""
    os.write(pipe.writing, b"a" + marker(1) + b"b")
    pipe.pipe.read_to(7)
    assert [segment.text for segment in pipe.pipe.take(7)] == [b"a", b"b"]


def test_the_end_of_the_pipe(pipe: Pipe):
    """When every writer is gone the pipe is no longer watched."""
    os.write(pipe.writing, b"last")
    os.close(pipe.writing)
    pipe.writing = os.open("/dev/null", os.O_RDONLY)
    pipe.pipe.read()
    pipe.pipe.read()
    pipe.pipe.pause()
    assert [segment.text for segment in pipe.pipe.take(None)] == [b"last"]
    pipe.loop.run_once(0)


def test_the_cap_counts_what_it_drops():
    """A flow passes its limit's worth of bytes and counts the rest."""
    flow = TextFlow("stdout")
    assert flow.begin("e1", 5) == []
    assert flow.add(b"abc") == [(b'{"op":"stdout","execution":"e1","dropped":0}', b"abc")]
    assert [text for _, text in flow.add(b"defg")] == [b"de"]
    assert flow.add(b"h") == []
    assert flow.end() == [(b'{"op":"stdout","execution":"e1","dropped":3}', b"")]
    assert flow.end() == []


def test_text_between_executions_is_kept():
    """Text that comes while nothing runs starts the next execution, up to a bound; the rest is counted there."""
    flow = TextFlow("stderr")
    assert flow.add(b"x" * KEEP + b"yy") == []
    assert flow.begin("e2", None) == [(b'{"op":"stderr","execution":"e2","dropped":0}', b"x" * KEEP)]
    assert flow.end() == [(b'{"op":"stderr","execution":"e2","dropped":2}', b"")]
    assert flow.begin("e3", None) == []
