"""Files of a sandbox of a server, and the directories that are watched in it."""

from typing import TYPE_CHECKING, Any

from cellfork.dialects.e2b.extension.codec import read_entry
from cellfork.engine.files import Listing
from cellfork.engine.values import EntryInfo, FilesystemEvent
from cellfork.model.errors import InvalidRequest, LimitExceeded, NotFound
from cellfork.model.limits import MiB

if TYPE_CHECKING:
    from cellfork.client.http.sandbox import HttpSandbox

WHOLE_FILE = 512 * MiB
"""Largest file that is read in one piece; a larger one has to be streamed."""


class HttpUpload:
    """A file that is being written piece by piece."""

    def __init__(self, sandbox: "HttpSandbox", handle: int) -> None:
        self._sandbox = sandbox
        self._handle = handle

    async def write(self, data: bytes) -> None:
        """Add bytes; return when they are in the file."""
        await self._sandbox.ask("PUT", f"uploads/{self._handle}", content=data)

    async def commit(self) -> EntryInfo:
        """Put the file in its place."""
        return read_entry(await self._sandbox.do("uploads.commit", handle=self._handle))

    def abort(self) -> None:
        """Drop what was written.  Returns at once."""
        self._sandbox.tell("uploads.abort", handle=self._handle)


class HttpFiles:
    """File operations, as :class:`cellfork.engine.files.Files` has them."""

    def __init__(self, sandbox: "HttpSandbox") -> None:
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        """Return a whole file."""
        stream = await self._sandbox.open("files", {"path": _checked(path)})
        content = bytearray()
        try:
            async for piece in stream.pieces():
                content += piece
                if len(content) > WHOLE_FILE:
                    raise LimitExceeded(
                        f"{path!r} is larger than {WHOLE_FILE:,} bytes; read it with format='stream'"
                    )
        finally:
            await stream.aclose()
        return bytes(content)

    async def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes of a file; fewer mean that it ends there."""
        query = {"path": _checked(path), "offset": str(offset), "length": str(length)}
        stream = await self._sandbox.open("files", query)
        return b"".join([piece async for piece in stream.pieces()])

    async def write(
        self, path: str, data: bytes, *, mode: int | None = None, append: bool = False
    ) -> EntryInfo:
        """Write a whole file at once."""
        query = {"path": _checked(path)} | ({} if mode is None else {"mode": f"{mode:o}"})
        if append:
            query["append"] = "1"
        return read_entry(await self._sandbox.ask("PUT", "files", content=data, query=query))

    async def open_upload(self, path: str, *, mode: int | None = None, append: bool = False) -> HttpUpload:
        """Begin to write a file."""
        told = await self._sandbox.do("uploads.open", path=path, mode=mode, append=append)
        return HttpUpload(self._sandbox, told["handle"])

    async def list(self, path: str, depth: int = 1) -> Listing:
        """Return what is in a directory."""
        told = await self._sandbox.do("files.list", path=path, depth=depth)
        return Listing([read_entry(entry) for entry in told["entries"]], told["truncated"])

    async def stat(self, path: str) -> EntryInfo:
        """Return what is known of a file or directory."""
        return read_entry(await self._sandbox.do("files.stat", path=path))

    async def exists(self, path: str) -> bool:
        """Tell whether there is anything at a path."""
        return (await self._sandbox.do("files.exists", path=path))["exists"]  # type: ignore[no-any-return]

    async def move(self, source: str, destination: str) -> EntryInfo:
        """Move a file or directory."""
        return read_entry(await self._sandbox.do("files.move", source=source, destination=destination))

    async def remove(self, path: str) -> None:
        """Remove a file or a directory, with everything in it."""
        await self._sandbox.do("files.remove", path=path)

    async def make_dir(self, path: str) -> bool:
        """Make a directory and those above it; ``False`` where it is there already."""
        return (await self._sandbox.do("files.make_dir", path=path))["created"]  # type: ignore[no-any-return]


class HttpWatch:
    """A watched directory, as :class:`cellfork.engine.watches.Watch` is one."""

    def __init__(self, sandbox: "HttpSandbox", handle: int) -> None:
        self._sandbox = sandbox
        self._handle = handle
        self._stopped = False

    async def take(self) -> list[FilesystemEvent]:
        """Return the events since the last call."""
        return await self._events("watches.take")

    async def batch(self) -> list[FilesystemEvent]:
        """Return the events since the last call; wait for one.  Nothing means that the watch was stopped."""
        while not (events := await self._events("watches.wait")) and not self._stopped:
            pass  # the server says now and then that nothing has happened
        return events

    async def stop(self) -> None:
        """Watch no longer.  Idempotent."""
        if not self._stopped:
            self._stopped = True
            await self._sandbox.do("watches.stop", handle=self._handle)

    async def _events(self, operation: str) -> list[FilesystemEvent]:
        if self._stopped:
            return []
        try:
            told: dict[str, Any] = await self._sandbox.do(operation, handle=self._handle)
        except NotFound:
            if self._stopped:  # meanwhile
                return []
            raise
        return [FilesystemEvent(name, kind) for name, kind in told["events"]]


class HttpWatches:
    """Starts watches."""

    def __init__(self, sandbox: "HttpSandbox") -> None:
        self._sandbox = sandbox

    async def start(self, path: str, *, recursive: bool = False) -> HttpWatch:
        """Watch a directory; with ``recursive`` those below it too."""
        told = await self._sandbox.do("watches.start", path=path, recursive=recursive)
        return HttpWatch(self._sandbox, told["handle"])


def _checked(path: object) -> str:
    if not isinstance(path, str):
        raise InvalidRequest(f"a path has to be text, not {type(path).__name__}")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"a path holds a lone surrogate at {error.start}: it is not valid text"
        ) from None
    return path
