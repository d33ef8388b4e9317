"""What a command wrote: the head and the tail, numbered; late readers get everything that was kept, then follow."""

from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from itertools import takewhile
from operator import attrgetter

from cellfork.engine.output import complete_length, dropped_marker
from cellfork.engine.replay import Changes
from cellfork.engine.values import ExecOutput, Stream

_sequence = attrgetter("sequence")
OVERHEAD = 128
"""What an event costs beside its bytes, so that many tiny pieces are bounded too."""


class ExecLog:
    """The output of one command, at most ``limit`` bytes of it: the first half and the last half.

    Where something between them was dropped, readers find a marker with the number of bytes.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head: list[ExecOutput] = []
        self._head_size = 0
        self._tail: deque[ExecOutput] = deque()
        self._tail_size = 0
        self._marker: ExecOutput | None = None
        self._dropped = 0
        self._sequence = 0
        self._rest: dict[Stream, bytes] = {}
        self._changes = Changes()
        self.closed = False

    def add(self, stream: Stream, data: bytes, timestamp: int) -> None:
        """Take a piece."""
        data = self._rest.pop(stream, b"") + data
        complete = complete_length(data)
        if complete < len(data):
            self._rest[stream] = data[complete:]
        if complete:
            self._append(stream, data[:complete], timestamp)

    def end(self, timestamp: int, exit_code: int | None) -> None:
        """Take note of the end, with an exit code where there was one."""
        for stream, data in self._rest.items():
            self._append(stream, data, timestamp)
        self._rest.clear()
        if exit_code is not None:
            stream = self._head[-1].type if self._head and self._head[-1].type == "pty" else "stdout"
            self._append(stream, b"", timestamp, exit_code)
        self.closed = True
        self._changes.tell()

    def since(self, sequence: int) -> list[ExecOutput]:
        """Return what was kept after number ``sequence`` (0: everything)."""
        if sequence >= self._sequence:
            return []
        newest = [*takewhile(lambda item: item.sequence > sequence, reversed(self._tail))]
        newest.reverse()
        if len(newest) < len(self._tail):
            return newest
        marker = [self._marker] if self._marker is not None and self._marker.sequence > sequence else []
        return [*self._head[bisect_right(self._head, sequence, key=_sequence) :], *marker, *newest]

    def bytes_from(self, offset: int) -> tuple[bytes, int]:
        """Return what was kept from byte ``offset`` on of all that was written, and how much was written.

        What was dropped is one marker; who is behind it already does not get it.
        """
        head = b"".join(item.data for item in self._head)
        tail = b"".join(item.data for item in self._tail)
        skipped = len(head) + self._dropped
        if offset >= skipped:
            kept = tail[offset - skipped :]
        else:
            kept = head[offset:] + (self._marker.data if self._marker is not None else b"") + tail
        return kept, skipped + len(tail)

    async def batch(self, sequence: int) -> list[ExecOutput]:
        """Return what was kept after number ``sequence``; wait for it.  Nothing means the end."""
        while True:
            found = self.since(sequence)
            if found or self.closed:
                return found
            await self._changes.next()

    async def follow(self, sequence: int = 0) -> AsyncIterator[ExecOutput]:
        """Yield what was kept after number ``sequence``, then what comes, to the end."""
        while found := await self.batch(sequence):
            for item in found:
                yield item
            sequence = found[-1].sequence

    async def wait_closed(self) -> None:
        """Return when the end is there."""
        while not self.closed:
            await self._changes.next()

    def text(self, *streams: Stream) -> str:
        """Return what was kept of some streams, in the order of arrival, as text."""
        return b"".join(item.data for item in self.since(0) if item.type in streams).decode(
            "utf-8", "replace"
        )

    @property
    def last(self) -> int:
        """The number of the newest piece: what comes has a higher one."""
        return self._sequence

    @property
    def size(self) -> int:
        """Roughly the memory that is held."""
        return self._head_size + self._tail_size

    def _append(self, stream: Stream, data: bytes, timestamp: int, exit_code: int | None = None) -> None:
        self._sequence += 1
        item = ExecOutput(self._sequence, timestamp, stream, data, exit_code)
        size = len(data) + OVERHEAD
        if not self._tail and not self._dropped and self._head_size + size <= self._half:
            self._head.append(item)
            self._head_size += size
        else:
            self._tail.append(item)
            self._tail_size += size
            self._shorten_tail()
        self._changes.tell()

    def _shorten_tail(self) -> None:
        while self._tail_size > self._half and len(self._tail) > 1:
            oldest = self._tail.popleft()
            self._tail_size -= len(oldest.data) + OVERHEAD
            self._dropped += len(oldest.data)
            marker = dropped_marker(self._dropped, "output").encode()
            self._marker = ExecOutput(oldest.sequence, oldest.timestamp, oldest.type, marker)
