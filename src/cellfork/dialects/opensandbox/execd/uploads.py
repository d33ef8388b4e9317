"""``POST /files/upload``: files that stream from a form into a sandbox, each with a part that tells where to and whose it is.

Parts are paired by their order: the first ``metadata`` with the first ``file``.  Whoever looks at a place sees the old file or
the new one.  A file whose metadata comes behind it waits in the sandbox, not in the server.
"""

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec

from cellfork.dialects.asgi import allow_body, header, read_json, stream_body
from cellfork.dialects.multipart import END, Part, Piece, boundary_of, pieces
from cellfork.dialects.opensandbox.execd import schema
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.errors import (
    INVALID_CONTENT,
    INVALID_FILE,
    INVALID_METADATA,
    Refused,
)
from cellfork.dialects.opensandbox.execd.ownership import Wish, apply, mode_of, wish_of
from cellfork.dialects.opensandbox.execd.paths import expanded
from cellfork.engine.files import Upload
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError, InvalidRequest
from cellfork.model.ids import new_id
from cellfork.wire.frames import CHUNK

LARGEST_METADATA: Final = 64 * 1024
MOST_WAITING: Final = 1000
"""Parts that wait for the other one of their pair."""
NEW_MODE: Final = 0o755
"""Mode of a new file whose metadata names none."""


class Uploads:
    """Takes uploads of at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def routes(self) -> Routes:
        """Return what is served."""
        return (Route("POST", "/files/upload", self.upload),)

    async def upload(self, call: Call) -> None:
        """Write the files of a form.  Those before one that is refused are there."""
        allow_body(call.scope, self._limit)
        async with contextlib.aclosing(_parts(call)) as parts:
            await _Form(call.sandbox).take(parts)
        await call.answer()


async def _parts(call: Call) -> AsyncGenerator[Piece, None]:
    """Yield the parts of a form.  Raises :class:`Refused` where the body is none."""
    try:
        boundary = boundary_of(header(call.scope, b"content-type") or "")
        async for piece in pieces(stream_body(call.receive), boundary):
            yield piece
    except InvalidRequest as error:
        raise Refused(400, INVALID_FILE, f"multipart form is empty or malformed: {error}") from error


class _Form:
    """The parts of one form on their way into a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._metadata: deque[schema.FileMetadata] = deque()
        self._waiting: deque[str] = deque()
        self._counts = {"metadata": 0, "file": 0}

    async def take(self, parts: AsyncIterator[Piece]) -> None:
        """Take all parts.  Raises :class:`Refused`, and what writing raises; then nothing half written stays behind."""
        try:
            async for piece in parts:
                if isinstance(piece, Part):
                    await self._take_part(piece, parts)
            self._check_counts()
        finally:
            await self._clean_up()

    async def _take_part(self, part: Part, parts: AsyncIterator[Piece]) -> None:
        if part.name not in self._counts:
            await _passed_over(parts)
            return
        self._counts[part.name] += 1
        if len(self._metadata) + len(self._waiting) > MOST_WAITING:
            raise Refused(400, INVALID_FILE, "too many parts wait for the other one of their pair")
        if part.name == "metadata":
            self._metadata.append(await _read_metadata(parts))
            if self._waiting:
                await self._place(self._waiting.popleft(), self._metadata.popleft())
        elif self._metadata:
            await self._write(self._metadata.popleft(), parts)
        else:
            await self._keep(parts)

    async def _write(self, asked: schema.FileMetadata, parts: AsyncIterator[Piece]) -> None:
        """Write a file to its place."""
        path = expanded(self._sandbox, asked.path)
        wish = await wish_of(self._sandbox, asked)
        mode = wish.mode if wish.mode is not None else await self._mode_of_new(path)
        await self._stream(path, mode, parts)
        await apply(self._sandbox, path, Wish(names=wish.names))

    async def _keep(self, parts: AsyncIterator[Piece]) -> None:
        """Write a file of which nobody has said yet where it belongs."""
        path = f"/tmp/.upload-{new_id()}"
        self._waiting.append(path)
        await self._stream(path, 0o600, parts)

    async def _place(self, kept: str, asked: schema.FileMetadata) -> None:
        """Put a file that was kept where it belongs."""
        self._waiting.appendleft(kept)
        path = expanded(self._sandbox, asked.path)
        wish = await wish_of(self._sandbox, asked)
        mode = wish.mode if wish.mode is not None else await self._mode_of_new(path)
        if mode is None:
            mode = (await self._sandbox.files.stat(path)).mode
        await self._sandbox.files.move(kept, path)
        self._waiting.popleft()
        await apply(self._sandbox, path, Wish(mode, wish.names))

    async def _mode_of_new(self, path: str) -> int | None:
        """Return the mode of a file that is not there yet, ``None`` where it is."""
        return None if await self._sandbox.files.exists(path) else NEW_MODE

    async def _stream(self, path: str, mode: int | None, parts: AsyncIterator[Piece]) -> None:
        upload = await self._sandbox.files.open_upload(path, mode=mode)
        try:
            await _copy(parts, upload)
            await upload.commit()
        except BaseException:
            upload.abort()
            raise

    def _check_counts(self) -> None:
        metadata, files = self._counts["metadata"], self._counts["file"]
        if not metadata:
            raise Refused(400, INVALID_METADATA, "metadata file is missing")
        if not files:
            raise Refused(400, INVALID_CONTENT, "file is missing")
        if metadata != files:
            raise Refused(400, INVALID_FILE, f"metadata and file count mismatch: {metadata} vs {files}")

    async def _clean_up(self) -> None:
        for path in self._waiting:
            with contextlib.suppress(CellforkError):
                await self._sandbox.files.remove(path, recursive=False)


async def _read_metadata(parts: AsyncIterator[Piece]) -> schema.FileMetadata:
    text = bytearray()
    async for data in _content(parts):
        text += data
        if len(text) > LARGEST_METADATA:
            raise Refused(400, INVALID_METADATA, "the metadata is too long")
    try:
        metadata = read_json(bytes(text), schema.FileMetadata)
        mode_of(metadata.mode)
    except (msgspec.MsgspecError, Refused) as error:
        raise Refused(400, INVALID_METADATA, f"invalid metadata format. {error}") from error
    return metadata


async def _copy(parts: AsyncIterator[Piece], upload: Upload) -> None:
    """Write a part in pieces of the size in which they travel."""
    waiting = bytearray()
    async for data in _content(parts):
        waiting += data
        while len(waiting) >= CHUNK:
            await upload.write(bytes(waiting[:CHUNK]))
            del waiting[:CHUNK]
    if waiting:
        await upload.write(bytes(waiting))


async def _passed_over(parts: AsyncIterator[Piece]) -> None:
    async for _data in _content(parts):
        pass


async def _content(parts: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
    """Yield the bytes of the part that has begun."""
    async for piece in parts:
        if piece is END:
            return
        if isinstance(piece, bytes):
            yield piece
