"""Bytes of a stream become text, within bounds."""

import codecs

from cellfork.wire.frames import CHUNK

_decoder = codecs.getincrementaldecoder("utf-8")


def dropped_marker(count: int, stream: str) -> str:
    """Return the text that stands where output was dropped."""
    return f"\n… {count:,} bytes of {stream} dropped …\n"


class TextStream:
    """Standard output or error of one execution: decodes, bounds, counts.

    The guest bounds what it sends.  Nobody trusts it, so the same bound holds here, with one chunk of
    tolerance: the guest drops whole pieces.
    """

    __slots__ = ("_beyond", "_decode", "_room", "name", "produced", "truncated")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.produced = 0
        self.truncated = False
        self._room = limit + CHUNK
        self._beyond = 0
        self._decode = _decoder("replace").decode

    def feed(self, data: bytes, dropped: int = 0) -> str:
        """Return the text of the next piece; ``dropped`` bytes before it did not arrive."""
        text = self._note_dropped(dropped) if dropped > 0 else ""
        self._room = max(0, self._room - len(text))
        size = len(data)
        self.produced += size
        if size <= self._room:
            self._room -= size
            return text + self._decode(data)
        kept, self._room = data[: self._room], 0
        self._beyond += size - len(kept)
        return text + self._decode(kept)

    def flush(self) -> str:
        """Return what was held back: an incomplete character, and the marker of what passed the bound."""
        text = self._decode(b"", final=True)
        if self._beyond:
            self.truncated = True
            text += dropped_marker(self._beyond, self.name)
            self._beyond = 0
        return text

    def _note_dropped(self, dropped: int) -> str:
        count = min(dropped, 2**63)
        self.truncated = True
        self.produced += count
        if not self._room:
            self._beyond += count
            return ""
        return self._decode(b"", final=True) + dropped_marker(count, self.name)


def complete_length(data: bytes) -> int:
    """Return how many bytes of ``data`` come before a UTF-8 character that is cut off at its end."""
    size = len(data)
    for back in range(1, min(3, size) + 1):
        byte = data[size - back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        needed = 1 if byte >= 0xF5 else 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return size - back if needed > back else size
    return size
