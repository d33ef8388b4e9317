"""Files of one sandbox.  Every operation is carried out inside it, by init: no path leads out."""

import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from cellfork.engine.checks import check_text
from cellfork.engine.requests import Requests
from cellfork.engine.settings import Settings
from cellfork.engine.values import EntryInfo, FileType
from cellfork.model.errors import (
    InvalidRequest,
    LimitExceeded,
    NotADirectory,
    PathNotFound,
    ProtocolViolation,
)
from cellfork.model.events import KillReason
from cellfork.model.limits import MiB
from cellfork.wire.frames import CHUNK, MAX_HEADER
from cellfork.wire.messages import MAX_INT
from cellfork.wire.values import parse

WINDOW = 4 * MiB
"""Bytes of a streamed file that are on their way at the same time."""
MAX_LISTING = 32 * MiB
MAX_PATTERN = 32 * 1024
"""Characters of a regular expression."""


class Host(Protocol):
    """What files need of their sandbox."""

    settings: Settings
    requests: Requests

    def end_soon(self, reason: KillReason, message: str) -> None:
        """Kill the sandbox, without waiting for it."""
        ...


class Upload:
    """A file that is being written: beside its place until :meth:`commit` puts it there at once."""

    def __init__(self, files: "Files", requests: Requests, handle: int) -> None:
        self._files = files
        self._requests = requests
        self._handle = handle

    async def write(self, data: bytes) -> None:
        """Add bytes; return when they are in the file.  Raises :class:`NoSpace`."""
        view = memoryview(data)
        for start in range(0, len(view), CHUNK):
            piece = bytes(view[start : start + CHUNK])
            await self._requests.send("file.write", piece, handle=self._handle)

    async def commit(self, attributes: Mapping[str, str] | None = None, *, prefix: str = "") -> EntryInfo:
        """Put the file in its place.

        ``attributes`` are extended attributes, by their whole names, that it gets instead of all that it had; where the
        file system has none, the entry that comes back shows that.  ``prefix``: see :class:`Files`.
        """
        fields = {"attributes": dict(attributes or {}), "prefix": prefix}
        return await self._files._entry("file.close", handle=self._handle, commit=True, **fields)

    def abort(self) -> None:
        """Drop what was written.  Returns at once."""
        self._requests.tell("file.close", handle=self._handle, commit=False)


class Files:
    """File operations.  All methods belong to the engine's event loop.

    Relative paths start at the sandbox's home, ``~`` is that.  Errors are the subclasses of :class:`FileError`,
    :class:`InvalidRequest` for what is no path, and :class:`SandboxGone`.

    Where a ``prefix`` is given, an entry tells more: the extended attributes whose names begin with it (the names without
    it), what kind of special file it is, and where a symbolic link leads in the end.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    async def read(self, path: str) -> bytes:
        """Return a whole file.  Raises :class:`LimitExceeded` for a very large one: stream it."""
        limit = self._host.settings.whole_file
        content = await self.read_range(path, 0, limit + 1)
        if len(content) > limit:
            raise LimitExceeded(f"{path!r} is larger than {limit:,} bytes; read it with format='stream'")
        return content

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes of a file; fewer mean that it ends there."""
        fields = {"path": check_text(path, "a path"), "offset": offset, "length": length}
        return b"".join((await self._chunks("file.read", length, **fields))[0])

    async def read_part(self, path: str, offset: int, length: int, same: str | None = None) -> "Part":
        """Return at most ``length`` bytes of a file, and what the file is at that moment.

        ``same`` is the ``file`` of an earlier part: :class:`Conflict` where another file has taken its place since then.
        """
        fields = {"path": check_text(path, "a path"), "offset": offset, "length": length, "file": same}
        chunks, reply = await self._chunks("file.read", length, **fields)
        match reply:
            case {"total": int(total), "mtime": int(mtime), "file": str(file)} if 0 <= total <= MAX_INT:
                return Part(b"".join(chunks), total, max(-MAX_INT, min(mtime, MAX_INT)), file[:100])
        raise self._violation("what was read of a file is malformed")

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """Yield a file piece by piece; the next piece is asked for when one was taken."""
        offset = 0
        while True:
            piece = await self.read_range(path, offset, WINDOW)
            if piece:
                yield piece
            if len(piece) < WINDOW:
                return
            offset += len(piece)

    async def open_upload(self, path: str, *, mode: int | None = None, append: bool = False) -> Upload:
        """Begin to write a file.  Directories above it are made.  ``mode``: its permission bits."""
        check_text(path, "a path")
        reply = await self._host.requests.send("file.open", path=path, mode=mode, append=append)
        handle = reply.get("handle")
        if not isinstance(handle, int):
            raise self._violation("a handle that is no number")
        return Upload(self, self._host.requests, handle)

    async def write(
        self, path: str, data: bytes, *, mode: int | None = None, append: bool = False
    ) -> EntryInfo:
        """Write a whole file at once: whoever reads it sees the old content or the new one."""
        upload = await self.open_upload(path, mode=mode, append=append)
        try:
            await upload.write(data)
            return await upload.commit()
        except BaseException:
            upload.abort()
            raise

    async def list(self, path: str, depth: int = 1, *, prefix: str = "") -> "Listing":
        """Return what is in a directory, down to ``depth``; at most 10,000 entries."""
        check_text(path, "a path")
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise InvalidRequest("depth is a whole number of at least 1")
        return await self._listing("file.list", path=path, depth=depth, prefix=prefix)

    async def _listing(self, op: str, **fields: Any) -> "Listing":
        chunks, reply = await self._chunks(op, MAX_LISTING, **fields)
        try:
            entries = [_entry(_parse_line(line)) for line in b"".join(chunks).splitlines()]
        except (ValueError, RecursionError):
            raise self._violation("a listing that is not JSON lines") from None
        except ProtocolViolation as error:
            raise self._violation(str(error)) from None
        return Listing(entries, truncated=reply.get("truncated") is True)

    async def stat(self, path: str, *, prefix: str = "") -> EntryInfo:
        """Return what is known of a file or directory; a symbolic link is not followed."""
        return await self._entry("file.stat", path=check_text(path, "a path"), prefix=prefix)

    async def search(self, path: str, pattern: str, *, prefix: str = "") -> "Listing":
        """Return what is below a directory, is no directory, and has a name that matches; at most 10,000 entries.

        ``pattern`` is a regular expression for the whole name.  Links are not followed.
        """
        check_text(path, "a path")
        check_text(pattern, "a pattern", MAX_PATTERN)
        return await self._listing("file.search", path=path, pattern=pattern, prefix=prefix)

    async def change(
        self,
        path: str,
        *,
        mode: int | None = None,
        attributes: Mapping[str, str | None] | None = None,
        prefix: str = "",
    ) -> EntryInfo:
        """Set permission bits, and extended attributes by their whole names (``None``: take one away).

        A symbolic link is followed, and what comes back is the entry of ``path`` itself.  Where the file system has no
        attributes, the entry shows that.
        """
        fields = {"mode": mode, "attributes": dict(attributes or {}), "prefix": prefix}
        return await self._entry("file.change", path=check_text(path, "a path"), **fields)

    async def exists(self, path: str) -> bool:
        """Tell whether there is anything at a path."""
        try:
            await self.stat(path)
        except (PathNotFound, NotADirectory):
            return False
        return True

    async def move(self, source: str, destination: str, *, prefix: str = "") -> EntryInfo:
        """Move a file or directory; return what is at the destination then."""
        check_text(source, "a path")
        check_text(destination, "a path")
        return await self._entry("file.move", source=source, destination=destination, prefix=prefix)

    async def remove(self, path: str, *, recursive: bool = True) -> None:
        """Remove a file or a directory, with everything in it."""
        await self._host.requests.send("file.remove", path=check_text(path, "a path"), recursive=recursive)

    async def make_dir(self, path: str) -> bool:
        """Make a directory and those above it; ``False`` where it is there already."""
        reply = await self._host.requests.send("file.mkdir", path=check_text(path, "a path"))
        return reply.get("created") is True

    async def _entry(self, op: str, **fields: Any) -> EntryInfo:
        try:
            return _entry(await self._host.requests.send(op, **fields))
        except ProtocolViolation as error:
            raise self._violation(str(error)) from None

    async def _chunks(self, op: str, limit: int, **fields: Any) -> tuple[Sequence[bytes], dict[str, Any]]:
        chunks = []
        room = limit

        def take(chunk: bytes) -> None:
            nonlocal room
            room -= len(chunk)
            if room < 0:
                raise ProtocolViolation("more bytes than were asked for")
            if chunk:
                chunks.append(chunk)

        reply = await self._host.requests.send(op, on_chunk=take, **fields)
        return chunks, reply

    def _violation(self, message: str) -> ProtocolViolation:
        self._host.end_soon("protocol", message)
        return ProtocolViolation(message)


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file, its whole size (0 where it has none, as in ``/proc``), when it changed last, and its identity."""

    data: bytes
    total: int
    mtime: int
    file: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries of a directory; ``truncated`` where there are more."""

    entries: list[EntryInfo]
    truncated: bool


def _extras(value: dict[str, Any]) -> dict[str, Any]:
    match value:
        case {"attributes": dict(attributes), "format": int(format)} if all(
            isinstance(text, str) for text in attributes.values()
        ):
            resolved, mode = value.get("resolved"), value.get("resolved_mode", 0)
            ctime = value.get("ctime", 0)
            if isinstance(resolved, str | None) and type(mode) is int:
                return {
                    "attributes": attributes,
                    "format": stat.S_IFMT(format & 0o177777),
                    "ctime": ctime if type(ctime) is int and abs(ctime) <= MAX_INT else 0,
                    "resolved": resolved,
                    "resolved_mode": mode & 0o177777,
                }
    raise ProtocolViolation("an entry of a file is malformed")


def _parse_line(line: bytes) -> Any:
    if len(line) > MAX_HEADER:
        raise ValueError("too long")
    return parse(line.decode("utf-8"))


def _entry(value: Any) -> EntryInfo:
    """Check what init says of a file; anything else is a :class:`ProtocolViolation`."""
    match value:
        case {
            "name": str(name),
            "path": str(path),
            "type": "file" | "dir" | "symlink" | "other" as kind,
            "size": int(size),
            "mode": int(mode),
            "owner": str(owner),
            "group": str(group),
            "mtime": int(mtime),
            "target": str() | None as target,
        }:
            if any(type(number) is not int or abs(number) > MAX_INT for number in (size, mode, mtime)):
                raise ProtocolViolation("an entry of a file has a number that cannot be")
            lossy = value.get("lossy") is True
            type_ = cast("FileType", kind)
            entry = EntryInfo(name, path, type_, size, mode & 0o7777, owner, group, mtime, target, lossy)
            return replace(entry, **_extras(value)) if "attributes" in value else entry
    raise ProtocolViolation("an entry of a file is malformed")
