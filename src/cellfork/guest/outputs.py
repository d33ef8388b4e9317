"""A kernel's output pipes as init reads them: text cut at markers, paced, bounded per execution."""

import json
import os
from collections.abc import Callable
from typing import NamedTuple

from cellfork.guest.loop import Loop, Timer
from cellfork.guest.python.streams import MARK, MARKER_SIZE

READ_SIZE = 64 * 1024
MAX_READ = 4 * READ_SIZE
"""Bytes read from one pipe in one turn."""
PIPE_SIZE = 1024 * 1024
"""No pipe holds more, so no marker is further away."""
KEEP = 64 * 1024
"""Bytes of each stream that are kept while no execution runs."""
PAUSES = ((8 * 1024, 0.005), (32 * 1024, 0.001))
"""After passing on fewer bytes than this, the pipe is left alone for so many seconds, so that text gathers."""

Piece = tuple[bytes, bytes]
"""An encoded header and the text that goes with it."""


class Segment(NamedTuple):
    """Text that was written after marker ``epoch`` and before the next one."""

    epoch: int
    text: bytes


class OutputPipe:
    """The reading end of one pipe.  ``wake`` is called when there is something to read.

    ``epoch`` is the number of the last marker seen.
    """

    def __init__(self, loop: Loop, fd: int, nonce: bytes, wake: Callable[[], None]) -> None:
        self.epoch = 0
        self._loop = loop
        self._fd = fd
        self._mark = MARK + nonce
        self._wake = wake
        self._segments: list[Segment] = []
        self._held_back = b""
        self._taken = 0
        self._at_end = False
        self._pause: Timer | None = None
        loop.watch(fd, wake)

    def read(self, limit: int = MAX_READ) -> None:
        """Read what is there, at most about ``limit`` bytes."""
        while limit > 0 and (count := self._read_once()) == READ_SIZE:
            limit -= count

    def read_to(self, epoch: int) -> None:
        """Read until marker ``epoch`` was seen or nothing is there."""
        limit = PIPE_SIZE
        while self.epoch < epoch and limit > 0 and (count := self._read_once()):
            limit -= count

    def take(self, epoch: int | None) -> list[Segment]:
        """Return, once, the segments that precede marker ``epoch``; all for ``None``."""
        if not self._segments:
            return []
        if epoch is None:
            taken, self._segments = self._segments, []
        else:
            taken = [segment for segment in self._segments if segment.epoch < epoch]
            self._segments = [segment for segment in self._segments if segment.epoch >= epoch]
        self._taken += sum(len(segment.text) for segment in taken)
        return taken

    @property
    def is_empty(self) -> bool:
        """Whether nothing that was read waits to be taken."""
        return not self._segments

    @property
    def ends_amid_line(self) -> bool:
        """Whether what waits is short and its last line incomplete."""
        if not self._segments:
            return False
        text = self._segments[-1].text
        return len(text) < READ_SIZE and not text.endswith((b"\n", b"\r"))

    def pause(self) -> None:
        """Leave the pipe alone for a moment, the shorter the more was taken since the last pause."""
        taken, self._taken = self._taken, 0
        if not taken or self._at_end or self._pause is not None:
            return
        for size, seconds in PAUSES:
            if taken < size:
                self._loop.unwatch(self._fd)
                self._pause = self._loop.later(seconds, self._end_pause)
                return

    def resume(self) -> None:
        """Watch the pipe again at once."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._loop.watch(self._fd, self._wake)

    def close(self) -> None:
        """Stop watching and give the descriptor back."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.unwatch(self._fd)
        os.close(self._fd)

    def _end_pause(self) -> None:
        self.resume()
        self._wake()

    def _read_once(self) -> int:
        if self._at_end:
            return 0
        try:
            data = os.read(self._fd, READ_SIZE)
        except BlockingIOError:
            return 0
        if not data:
            self._at_end = True
            self.resume()
            self._loop.unwatch(self._fd)
            return 0
        self._cut(data)
        return len(data)

    def _cut(self, data: bytes) -> None:
        """Split ``data`` at markers.  The beginning of one at its very end waits for the rest."""
        data = self._held_back + data
        self._held_back = b""
        position = 0
        while (found := data.find(self._mark, position)) >= 0:
            end = found + MARKER_SIZE
            if end > len(data):
                break
            self._add(data[position:found])
            self.epoch = int.from_bytes(data[end - 4 : end], "big")
            position = end
        rest = data[position:] if position else data
        start = _start_of_partial_marker(rest, self._mark)
        if start < len(rest):
            self._held_back = rest[start:]
            rest = rest[:start]
        self._add(rest)

    def _add(self, text: bytes) -> None:
        if not text:
            return
        segments = self._segments
        if segments and segments[-1].epoch == self.epoch:
            text = segments.pop().text + text
        segments.append(Segment(self.epoch, text))


def _start_of_partial_marker(data: bytes, mark: bytes) -> int:
    """Return where at the end of ``data`` an incomplete marker begins, its length if nowhere."""
    start = data.find(mark[:1], max(0, len(data) - MARKER_SIZE + 1))
    while start >= 0:
        if mark.startswith(data[start : start + len(mark)]):
            return start
        start = data.find(mark[:1], start + 1)
    return len(data)


class TextFlow:
    """One stream's text on its way to the host: bounded per execution, kept for the next one in between."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._execution: str | None = None
        self._header = b""
        self._left: int | None = None
        self._dropped = 0
        self._kept = bytearray()

    def begin(self, execution: str, limit: int | None) -> list[Piece]:
        """Open an execution whose text is bounded by ``limit`` bytes; return what was kept for it."""
        self._execution = execution
        self._header = self._encode(0)
        self._left = limit
        kept = bytes(self._kept)
        self._kept.clear()
        return self.add(kept) if kept else []

    def add(self, text: bytes) -> list[Piece]:
        """Return the piece to be sent for ``text``, if any."""
        if self._execution is None:
            return self._keep(text)
        if self._left is None:
            return [(self._header, text)]
        if len(text) > self._left:
            self._dropped += len(text) - self._left
            text = text[: self._left]
        self._left -= len(text)
        return [(self._header, text)] if text else []

    def end(self) -> list[Piece]:
        """Close the execution; return the piece that tells how much was dropped, if anything was."""
        pieces = [(self._encode(self._dropped), b"")] if self._dropped else []
        self._dropped = 0
        self._execution = None
        return pieces

    def _keep(self, text: bytes) -> list[Piece]:
        room = KEEP - len(self._kept)
        self._kept += text[:room]
        self._dropped += max(0, len(text) - room)
        return []

    def _encode(self, dropped: int) -> bytes:
        header = {"op": self._stream, "execution": self._execution, "dropped": dropped}
        return json.dumps(header, separators=(",", ":")).encode("ascii")
