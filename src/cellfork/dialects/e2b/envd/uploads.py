"""``POST /files``: files that stream from a request into a sandbox.  Whoever looks there sees the old file or the new one."""

import posixpath
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from cellfork.dialects.e2b.envd.access import resolve
from cellfork.dialects.e2b.envd.errors import Refusal
from cellfork.dialects.e2b.envd.translate import PREFIX
from cellfork.dialects.multipart import Part, boundary_of, parameters, pieces
from cellfork.engine.files import Files
from cellfork.engine.values import EntryInfo
from cellfork.model.errors import (
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotAFile,
    PathNotPermitted,
)
from cellfork.wire.frames import CHUNK

METADATA_HEADER = b"x-metadata-"
MAX_KEY = 255 - len(PREFIX)
MAX_METADATA = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """An upload: for whom, where to (``None``: each part says it), what it is, what is to be kept with the files."""

    user: str
    path: str | None
    content_type: str
    metadata: Mapping[str, str]
    length: int | None = None


def metadata_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return what ``X-Metadata-*`` headers say, by their names without that.  Raises :class:`Refusal` (400)."""
    found: dict[str, str] = {}
    total = 0
    for name, value in headers:
        key = name.lower().removeprefix(METADATA_HEADER)
        if key and len(key) < len(name):
            text = key.decode("latin-1")
            if text not in found:
                found[text] = _checked(text, value.decode("latin-1"))
                total += len(PREFIX) + len(key) + len(value)
    if total > MAX_METADATA:
        raise Refusal(400, f"invalid metadata: total metadata size {total} exceeds {MAX_METADATA} bytes")
    return found


def _checked(key: str, value: str) -> str:
    if len(key) > MAX_KEY:
        raise Refusal(400, f'invalid metadata: metadata key "{key}" exceeds {MAX_KEY} bytes')
    for what, text in (("key", key), (f'value for key "{key}"', value)):
        for offset, character in enumerate(text):
            if not " " <= character <= "~":
                byte = f"0x{ord(character):02x}"
                raise Refusal(
                    400,
                    f"invalid metadata: metadata {what} contains non-printable-ASCII byte {byte} at offset {offset}",
                )
    return value


async def upload(files: Files, request: Request, body: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    """Write what a request brings; return what is told of the files.

    Raises :class:`Refusal`, errors of the engine, and what ``body`` raises; then the file that was being written is
    dropped, and those before it are there.
    """
    kind = parameters(request.content_type)[0]
    if kind == "application/octet-stream":
        if request.path is None:
            raise Refusal(400, "path query parameter is required for raw body upload")
        path = resolve(request.path, request.user)
        async with _Writing(files, path, request) as writing:
            async for data in body:
                await writing.add(data)
            return [await writing.finish()]
    if kind.startswith("multipart/"):
        return await _upload_form(files, request, body)
    raise Refusal(
        400,
        f"unsupported content type: {request.content_type[:200]}, expected multipart/form-data or application/octet-stream",
    )


async def _upload_form(files: Files, request: Request, body: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    written: dict[str, dict[str, Any]] = {}
    writing: _Writing | None = None
    try:
        async for piece in pieces(body, boundary_of(request.content_type)):
            if isinstance(piece, Part):
                writing = None
                if piece.name == "file":
                    writing = _Writing(files, _path_of(piece, request, written), request)
                    await writing.begin()
            elif writing is None:
                continue
            elif isinstance(piece, bytes):
                await writing.add(piece)
            else:
                written[writing.path] = await writing.finish()
    finally:
        if writing is not None:
            writing.drop()
    return list(written.values())


def _path_of(part: Part, request: Request, written: Mapping[str, object]) -> str:
    named = request.path if request.path is not None else part.filename
    if named is None:
        raise Refusal(
            400,
            "error getting multipart custom part file name: filename not found in Content-Disposition header",
        )
    path = resolve(named, request.user)
    if path not in written:
        return path
    others = [other for other in written if other != path]
    also = f", also the following files were uploaded: {', '.join(others)}" if len(others) > 1 else ""
    raise Refusal(
        400,
        f"you cannot upload multiple files to the same path '{path}' in one upload request, only the first specified file "
        f"was uploaded{also}",
    )


class _Writing:
    """One file on its way into the sandbox, in pieces of the size in which it travels."""

    def __init__(self, files: Files, path: str, request: Request) -> None:
        self.path = path
        self._files = files
        self._request = request
        self._waiting = bytearray()
        self._upload: Any = None

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.drop()

    async def begin(self) -> None:
        """Make the directories above the file, and a place for its content."""
        try:
            self._upload = await self._files.open_upload(self.path)
        except NoSpace as error:
            raise Refusal(507, f"not enough inodes available: {error}") from error
        except IsADirectory as error:
            raise Refusal(400, f"path is a directory: {self.path}") from error
        except (NotADirectory, NotAFile) as error:
            raise Refusal(400, f"error opening file: {error}") from error
        except PathNotPermitted as error:
            raise Refusal(403, f"error opening file: {error}") from error

    async def add(self, data: bytes) -> None:
        """Add bytes.  Raises :class:`Refusal` (507) where the disk is full."""
        self._waiting += data
        while len(self._waiting) >= CHUNK:
            await self._write(bytes(self._waiting[:CHUNK]))
            del self._waiting[:CHUNK]

    async def finish(self) -> dict[str, Any]:
        """Put the file in its place; return what is told of it."""
        if self._waiting:
            await self._write(bytes(self._waiting))
        attributes = {PREFIX + key: value for key, value in self._request.metadata.items()}
        try:
            entry: EntryInfo = await self._upload.commit(attributes, prefix=PREFIX)
        except NoSpace as error:
            raise Refusal(507, f"not enough space for file metadata: {error}") from error
        except IsADirectory as error:
            raise Refusal(400, f"path is a directory: {self.path}") from error
        self._upload = None
        told: dict[str, Any] = {"path": self.path, "name": posixpath.basename(self.path), "type": "file"}
        return told | ({"metadata": dict(entry.attributes)} if entry.attributes else {})

    def drop(self) -> None:
        """Forget the file where it is not in its place.  Idempotent."""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.abort()

    async def _write(self, data: bytes) -> None:
        try:
            await self._upload.write(data)
        except NoSpace as error:
            length = self._request.length
            attempted = f"attempted to write {length} bytes: " if length else ""
            raise Refusal(507, f"{attempted}not enough disk space available") from error
