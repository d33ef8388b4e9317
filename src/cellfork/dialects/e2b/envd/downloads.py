"""``GET /files``: one file of a sandbox, whole or in part, as it is or compressed."""

import asyncio
import mimetypes
import posixpath
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote

from cellfork.dialects.asgi import Headers, Send, send_body
from cellfork.dialects.downloads import OpenedFile, open_file
from cellfork.dialects.e2b.envd.encodings import Compressor, accepted
from cellfork.dialects.e2b.envd.errors import Refusal
from cellfork.engine.files import Files, Part
from cellfork.model.errors import IsADirectory, NotADirectory, NotAFile, PathNotFound

CONFINED = (b"content-security-policy", b"sandbox")
"""A page that code in a sandbox wrote runs nothing, and is no part of this server's origin, whose addresses lead to it."""
PDF = "application/pdf"
"""Browsers show it with a program of their own, which they do not start for a document that is confined."""
IN_THREAD = 128 * 1024
"""Bytes from which compressing them takes longer than handing them to a thread."""

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks of a file: the headers that decide how it is answered."""

    range: str | None = None
    if_range: str | None = None
    if_modified_since: str | None = None
    accept_encoding: str | None = None

    @property
    def conditional(self) -> bool:
        """Whether the answer may be something else than the whole file."""
        return bool(self.range or self.if_range or self.if_modified_since)


async def download(files: Files, path: str, wanted: Wanted, send: Send) -> None:
    """Send a file.  Raises :class:`Refusal` before anything is sent, :class:`Abort` where it cannot be sent to its end."""
    encoding = accepted(wanted.accept_encoding, identity_only=wanted.conditional)
    file = await _open(files, path)
    first = file.first
    headers = _headers_of(path, first)
    if _not_modified(first, wanted):
        await send_body(send, 304, headers=headers)
        return
    chosen = _range_of(first, wanted) if first.total else None
    if chosen is not None:
        await _send_range(file, chosen, headers, send)
    elif encoding == "gzip" and file.size:
        await _send_compressed(file.parts(), headers, send)
    else:
        await _send_parts(file.parts(), 200, file.size, headers, send)


async def _open(files: Files, path: str) -> OpenedFile:
    try:
        return await open_file(files, path)
    except (PathNotFound, NotADirectory) as error:
        raise Refusal(404, f"path '{path}' does not exist") from error
    except IsADirectory as error:
        raise Refusal(400, f"path '{path}' is a directory") from error
    except NotAFile as error:
        raise Refusal(400, f"path '{path}' is not a regular file") from error


async def _send_parts(
    parts: AsyncIterator[bytes], status: int, size: int, headers: Headers, send: Send
) -> None:
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [*headers, (b"content-length", b"%d" % size)],
    }
    await send(start)
    sent = 0
    async for data in parts:
        sent += len(data)
        await send({"type": "http.response.body", "body": data, "more_body": sent < size})
    if not size:
        await send({"type": "http.response.body", "body": b""})


async def _send_compressed(parts: AsyncIterator[bytes], headers: Headers, send: Send) -> None:
    lines = [*headers, (b"content-encoding", b"gzip")]
    await send({"type": "http.response.start", "status": 200, "headers": lines})
    compressor = Compressor()
    async for data in parts:
        if len(data) < IN_THREAD:
            made = compressor.add(data)
        else:
            made = await asyncio.to_thread(compressor.add, data)
        if made:
            await send({"type": "http.response.body", "body": made, "more_body": True})
    await send({"type": "http.response.body", "body": compressor.end()})


async def _send_range(file: OpenedFile, chosen: tuple[int, int], headers: Headers, send: Send) -> None:
    start, end = chosen
    if start >= end:
        lines = [*headers, (b"content-range", b"bytes */%d" % file.size)]
        await send_body(send, 416, b"invalid range: failed to overlap\n", b"text/plain; charset=utf-8", lines)
        return
    lines = [*headers, (b"content-range", b"bytes %d-%d/%d" % (start, end - 1, file.size))]
    await _send_parts(file.parts(start, end), 206, end - start, lines, send)


def _range_of(part: Part, wanted: Wanted) -> tuple[int, int] | None:
    """Return the one range that is asked for, from and up to; ``None`` for the whole.  An empty one cannot be served.

    Several ranges at once, and what is no range, are answered with the whole file.
    """
    match = _RANGE.fullmatch((wanted.range or "").replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return None
    if wanted.if_range is not None and _seconds(wanted.if_range) != part.mtime // 10**9:
        return None
    if not match[1]:
        return max(0, part.total - int(match[2])), part.total
    start, last = int(match[1]), int(match[2]) if match[2] else part.total - 1
    if match[2] and last < start:
        return None
    return start, min(last + 1, part.total)


def _not_modified(part: Part, wanted: Wanted) -> bool:
    since = _seconds(wanted.if_modified_since)
    return since is not None and part.mtime // 10**9 <= since


def _seconds(date: str | None) -> int | None:
    """Return an HTTP date as Unix time; ``None`` for what is none."""
    if date is None:
        return None
    try:
        return int(parsedate_to_datetime(date[:100]).timestamp())
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def _headers_of(path: str, part: Part) -> Headers:
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    confined = [] if kind == PDF else [CONFINED]
    return [
        *confined,
        (b"content-type", kind.encode("ascii")),
        (b"content-disposition", _disposition(posixpath.basename(path))),
        (b"last-modified", formatdate(min(max(part.mtime // 10**9, 0), 2**40), usegmt=True).encode("ascii")),
        (b"accept-ranges", b"bytes"),
        (b"vary", b"Accept-Encoding"),
        (b"x-content-type-options", b"nosniff"),
    ]


def _disposition(name: str) -> bytes:
    """Return the header that names the file: nothing in a name can begin another header."""
    if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        return b"inline; filename=" + name.encode("ascii")
    if name.isascii() and name.isprintable():
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        return f'inline; filename="{escaped}"'.encode("ascii")
    return b"inline; filename*=utf-8''" + quote(name, safe="", errors="replace").encode("ascii")
