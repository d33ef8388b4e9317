"""``multipart/form-data`` piece by piece: what is read of a body is handed on at once, nothing of a file is kept.

Source: RFC 7578 and RFC 2046; only what the dialects' clients send is understood, and everything has a bound.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from cellfork.model.errors import InvalidRequest

MAX_BOUNDARY = 70
MAX_PART_HEADERS = 16 * 1024
MAX_PARTS = 10_000

_BOUNDARY = re.compile(r"""[-0-9A-Za-z'()+_,./:=? ]{0,69}[-0-9A-Za-z'()+_,./:=?]""")
_PARAMETER = re.compile(
    r';\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s"]*))', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a part: its name in the form, the name of its file (``None``: it has none)."""

    name: str
    filename: str | None


class End:
    """The end of a part."""


END = End()
Piece = Part | bytes | End
"""What a body consists of: the beginning of a part, bytes of it, its end."""


def parameters(header: str) -> tuple[str, dict[str, str]]:
    """Return the value of a header such as ``Content-Type`` in lower case, and its parameters."""
    value, _semicolon, _rest = header.partition(";")
    found: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(header[len(value) :]):
        found.setdefault(name.lower(), re.sub(r'\\(["\\])', r"\1", quoted) or plain)
    return value.strip().lower(), found


def boundary_of(content_type: str) -> bytes:
    """Return the boundary of a body.  Raises :class:`InvalidRequest` where the header names none that can be."""
    boundary = parameters(content_type)[1].get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary):
        raise InvalidRequest("error parsing multipart form: no multipart boundary param in Content-Type")
    return boundary.encode("ascii")


async def pieces(body: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[Piece]:
    """Yield the parts of a body.  Raises :class:`InvalidRequest` where it is no such body, or ends too early."""
    parser = Parser(boundary)
    async for data in body:
        for piece in parser.feed(data):
            yield piece
    parser.close()


class Parser:
    """Cuts a body at its boundaries.  Holds what may be the beginning of one, and the headers of a part."""

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first boundary has no line before it
        self._step: Callable[[], list[Piece] | None] | None = self._search
        self._parts = 0
        self._in_part = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Take bytes; yield what they complete.  What follows the last boundary is passed over."""
        if self._step is not None:
            self._buffer += data
        while self._step is not None and (found := self._step()) is not None:
            yield from found

    def close(self) -> None:
        """Take note of the end.  Raises :class:`InvalidRequest` where the last boundary has not come."""
        if self._step is not None:
            raise InvalidRequest("error reading form: unexpected EOF")

    # Each step returns what it has found, or nothing where it needs more bytes.

    def _search(self) -> list[Piece] | None:
        """Hand on what comes before the next boundary."""
        found = self._buffer.find(self._mark)
        if found < 0:
            return self._content(len(self._buffer) - len(self._mark) + 1)
        after = bytes(self._buffer[found + len(self._mark) :][:2])
        if len(after) < 2:
            return self._content(found)
        if after != b"--" and after[:1] not in {b"\r", b" ", b"\t"}:  # it only begins like the boundary
            return self._content(found + len(self._mark))
        content = self._content(found) or []
        del self._buffer[: len(self._mark)]
        if self._in_part:
            content.append(END)
        self._step = None if after == b"--" else self._boundary_line
        if self._step is None:
            self._buffer.clear()
        return content

    def _boundary_line(self) -> list[Piece] | None:
        """Pass over the blanks behind a boundary."""
        end = self._buffer.find(b"\r\n")
        if len(self._buffer if end < 0 else self._buffer[:end]) > MAX_BOUNDARY:
            raise InvalidRequest("error reading form: a boundary is followed by something else")
        if end < 0:
            return None
        if self._buffer[:end].strip(b" \t"):
            raise InvalidRequest("error reading form: a boundary is followed by something else")
        del self._buffer[:end]  # not the line's end: where there are no headers, it is their end as well
        self._step = self._headers
        return []

    def _headers(self) -> list[Piece] | None:
        """Read the headers of a part."""
        end = self._buffer.find(b"\r\n\r\n")
        if (end if end >= 0 else len(self._buffer)) > MAX_PART_HEADERS:
            raise InvalidRequest(
                f"error reading form: a part has more than {MAX_PART_HEADERS} bytes of headers"
            )
        if end < 0:
            return None
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidRequest(f"error reading form: there are more than {MAX_PARTS:,} parts")
        part = _part_of(bytes(self._buffer[2:end]).split(b"\r\n"))
        del self._buffer[: end + 4]
        self._in_part, self._step = True, self._search
        return [part]

    def _content(self, count: int) -> list[Piece] | None:
        """Take bytes that are no boundary: of a part, or before the first one."""
        if count <= 0:
            return None
        piece = bytes(self._buffer[:count])
        del self._buffer[:count]
        return [piece] if self._in_part else []


def _part_of(lines: list[bytes]) -> Part:
    for line in lines:
        name, _colon, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            kind, found = parameters(value.decode("utf-8", "replace").strip())
            if kind == "form-data":
                return Part(found.get("name", ""), found.get("filename"))
    return Part("", None)
