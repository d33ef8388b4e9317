"""``GET /files/download``: a file whole, a range of its bytes, or some of its lines."""

import posixpath
import re
from typing import Final
from urllib.parse import quote

from cellfork.dialects import asgi
from cellfork.dialects.asgi import Send
from cellfork.dialects.downloads import OpenedFile, open_file
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.errors import UNKNOWN, Refused, invalid
from cellfork.dialects.opensandbox.execd.paths import expanded

UNBOUNDED: Final = 10**18

_RANGE = re.compile(r"([0-9]{0,18})-([0-9]{0,18})")


class Downloads:
    """Sends files."""

    def routes(self) -> Routes:
        """Return what is served."""
        return (Route("GET", "/files/download", self.download),)

    async def download(self, call: Call) -> None:
        """Send a file."""
        path = expanded(call.sandbox, call.wanted("path"))
        wanted = asgi.header(call.scope, b"range")
        if call.value("offset") or call.value("limit"):
            if wanted is not None:
                raise invalid(
                    "line-based reading (offset/limit) and byte range (Range header) are mutually exclusive"
                )
            first, most = call.number("offset", 1, 1), call.number("limit", UNBOUNDED, 1)
            await _send_lines(await open_file(call.sandbox.files, path), first, most, call.send)
        else:
            await _send_bytes(await open_file(call.sandbox.files, path), wanted, call.send)


async def _send_bytes(file: OpenedFile, wanted: str | None, send: Send) -> None:
    size = file.size
    start, end = (0, size) if wanted is None else _range(wanted, size)
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-disposition", disposition(posixpath.basename(file.path))),
        (b"content-length", b"%d" % (end - start)),
        (b"accept-ranges", b"bytes"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if wanted is not None:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, size)))
    status = 200 if wanted is None else 206
    await send({"type": "http.response.start", "status": status, "headers": headers})
    async for data in file.parts(start, end):
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _send_lines(file: OpenedFile, first: int, most: int, send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    cutter = LineCutter(first, most)
    async for data in file.parts():
        await send({"type": "http.response.body", "body": cutter.take(data), "more_body": True})
        if cutter.done:
            break
    await send({"type": "http.response.body", "body": b""})


class LineCutter:
    r"""Takes lines out of bytes that come in pieces: ``most`` of them, the first one being number ``first`` from 1.

    Lines are joined with ``\n``; the ``\r`` before their ends, and the end of the last one, are left out.
    """

    def __init__(self, first: int, most: int) -> None:
        self._skip = first - 1
        self._most = most
        self._taken = 0
        self._in_line = False
        self._returns = 0
        self.done = False

    def take(self, data: bytes) -> bytes:
        """Return what of ``data`` belongs to the lines."""
        made = bytearray()
        start = 0
        while start < len(data) and not self.done:
            end = data.find(b"\n", start)
            stop = len(data) if end < 0 else end
            if not self._skip:
                self._add(made, data[start:stop])
            if end < 0:
                break
            self._end_line()
            start = end + 1
        return bytes(made)

    def _add(self, made: bytearray, piece: bytes) -> None:
        """Add a part of a line; a run of returns waits until it is known whether the line ends behind it."""
        if not self._in_line:
            self._in_line = True
            if self._taken:
                made += b"\n"
        text = piece.rstrip(b"\r")
        if text:
            made += b"\r" * self._returns + text
            self._returns = 0
        self._returns += len(piece) - len(text)

    def _end_line(self) -> None:
        if self._skip:
            self._skip -= 1
            return
        self._taken += 1
        self._in_line = False
        self._returns = 0
        self.done = self._taken >= self._most


def _range(wanted: str, size: int) -> tuple[int, int]:
    """Return the first range that can be served, from and up to.  Raises :class:`Refused` (416)."""
    unit, _equals, ranges = wanted.partition("=")
    if unit.strip() == "bytes":
        for one in ranges.split(",")[:16]:
            match = _RANGE.fullmatch(one.strip())
            if match is None or not (match[1] or match[2]):
                break
            start = int(match[1]) if match[1] else max(0, size - int(match[2]))
            end = min(int(match[2]) + 1, size) if match[1] and match[2] else size
            if start < end:
                return start, end
    raise Refused(416, UNKNOWN, f"the range cannot be served: the file has {size} bytes")


def disposition(name: str) -> bytes:
    """Return the header that names a file: nothing in a name can begin another header."""
    plain = re.sub(r"[^ !#-\[\]-~]", "_", name)
    if plain == name:
        return f'attachment; filename="{name}"'.encode("ascii")
    encoded = quote(name, safe="", errors="replace")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}".encode("ascii")
