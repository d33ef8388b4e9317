"""``sandbox.files``: files inside a sandbox, in E2B's shapes."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from cellfork.client.bridges import AsyncBridge, AsyncHandler, AsyncIterating, AsyncWork
from cellfork.client.uploads import Data, pieces_of
from cellfork.engine.values import EntryInfo, FilesystemEvent
from cellfork.model.errors import InvalidRequest, PathNotFound

if TYPE_CHECKING:
    from cellfork.engine.sandbox import Sandbox as Remote
    from cellfork.engine.watches import Watch

WINDOW = 4 * 1024 * 1024


class AsyncWatchHandle(AsyncIterating):
    """A watched directory (E2B: ``WatchHandle``).  Iterating yields events until :meth:`stop`."""

    def __init__(
        self, bridge: AsyncBridge, watch: "Watch", on_event: AsyncHandler[FilesystemEvent] | None
    ) -> None:
        self._bridge = bridge
        self._watch = watch
        self._on_event = on_event
        self._work: AsyncWork | None = bridge.spawn(self._deliver) if on_event is not None else None

    async def get_new_events(self) -> "list[FilesystemEvent]":
        """Return the events since the last call, without waiting; :class:`SandboxGone` after the sandbox's end."""
        return await self._bridge.call(self._watch.take)  # type: ignore[no-any-return]

    async def events(self) -> AsyncIterator[FilesystemEvent]:
        """Iterate over the events until the watch is stopped."""
        while batch := await self._bridge.call(self._watch.batch):
            for event in batch:
                yield event

    async def wait(self) -> None:
        """Call the callback until the watch is stopped; pass on what it raised."""
        if self._work is not None:
            await self._work.join()

    async def stop(self) -> None:
        """Watch no longer."""
        await self._bridge.call(self._watch.stop)

    async def _deliver(self) -> None:
        async for event in self.events():
            if self._on_event is not None:
                await self._bridge.invoke(self._on_event, event)


class AsyncFiles:
    """Files inside a sandbox (E2B: ``sandbox.files``).

    Everything is done inside, as the sandbox's user: no path leads out.  Relative paths start at the home directory,
    ``~`` is that.  What the sandbox refuses raises a subclass of :class:`FileError`.
    """

    def __init__(self, sandbox: "Remote", bridge: AsyncBridge) -> None:
        self._remote = sandbox
        self._bridge = bridge

    @overload
    async def read(self, path: str, format: Literal["text"] = "text") -> str: ...

    @overload
    async def read(self, path: str, format: Literal["bytes"]) -> bytes: ...

    @overload
    async def read(self, path: str, format: Literal["stream"]) -> AsyncIterator[bytes]: ...

    async def read(self, path: str, format: str = "text") -> Any:
        """Return a file as text (UTF-8, what is not is replaced), as bytes, or as an iterator of bytes.

        Only ``"stream"`` reads very large files: others raise :class:`LimitExceeded`.
        """
        if format == "stream":
            return self._pieces(path)
        if format not in {"text", "bytes"}:
            raise InvalidRequest(f"unknown format {format!r}; known: text, bytes, stream")
        content: bytes = await self._bridge.call(self._remote.files.read, path)
        return content.decode("utf-8", "replace") if format == "text" else content

    async def write(
        self, path: str, data: Data, *, mode: int | None = None, append: bool = False
    ) -> EntryInfo:
        """Write a file: text (UTF-8), bytes, a file object, or an iterable of pieces of text or bytes.

        It appears at its path when all of it is there; directories above it are made.  ``mode`` sets its permission
        bits; ``append`` adds to what is there, piece by piece.  Raises :class:`NoSpace` and other file errors.
        """
        files = self._remote.files
        if isinstance(data, str | bytes):
            content = next(pieces_of(data), b"")
            return await self._bridge.call(files.write, path, content, mode=mode, append=append)  # type: ignore[no-any-return]
        upload = await self._bridge.call(files.open_upload, path, mode=mode, append=append)
        try:
            for piece in pieces_of(data):
                await self._bridge.call(upload.write, piece)
            return await self._bridge.call(upload.commit)  # type: ignore[no-any-return]
        except BaseException:
            self._bridge.tell(upload.abort)
            raise

    async def write_files(self, files: Sequence[Mapping[str, Any]]) -> "list[EntryInfo]":
        """Write several files, each ``{"path": …, "data": …}``, one after the other (E2B: ``write_files``)."""
        for entry in files:
            if set(entry) != {"path", "data"}:
                raise InvalidRequest(f"a file to write has 'path' and 'data', not {sorted(entry)}")
        return [await self.write(entry["path"], entry["data"]) for entry in files]

    async def list(self, path: str, depth: int = 1) -> "list[EntryInfo]":
        """Return what is in a directory, down to ``depth``; at most 10,000 entries."""
        return (await self._bridge.call(self._remote.files.list, path, depth)).entries  # type: ignore[no-any-return]

    async def exists(self, path: str) -> bool:
        """Tell whether there is anything at a path."""
        return await self._bridge.call(self._remote.files.exists, path)  # type: ignore[no-any-return]

    async def get_info(self, path: str) -> EntryInfo:
        """Return what is known of a file or directory; a symbolic link is not followed."""
        return await self._bridge.call(self._remote.files.stat, path)  # type: ignore[no-any-return]

    async def rename(self, old_path: str, new_path: str) -> EntryInfo:
        """Move a file or directory; directories above the new place are made."""
        return await self._bridge.call(self._remote.files.move, old_path, new_path)  # type: ignore[no-any-return]

    move = rename

    async def remove(self, path: str, *, missing_ok: bool = True) -> None:
        """Remove a file, or a directory with everything in it.

        As in E2B it is no error that nothing is there, unless ``missing_ok`` is false: then :class:`PathNotFound`.
        """
        try:
            await self._bridge.call(self._remote.files.remove, path)
        except PathNotFound:
            if not missing_ok:
                raise

    async def make_dir(self, path: str) -> bool:
        """Make a directory and those above it; ``False`` where it is there already."""
        return await self._bridge.call(self._remote.files.make_dir, path)  # type: ignore[no-any-return]

    async def watch_dir(
        self,
        path: str,
        on_event: AsyncHandler[FilesystemEvent] | None = None,
        recursive: bool = False,
    ) -> AsyncWatchHandle:
        """Watch a directory; with ``recursive`` those below it too, also those that come later.

        Take the events with ``get_new_events()``, by iterating, or with ``on_event``: the async client calls it in a task, the
        sync one within ``wait()``.
        """
        watch = await self._bridge.call(self._remote.watches.start, path, recursive=recursive)
        return AsyncWatchHandle(self._bridge, watch, on_event)

    async def _pieces(self, path: str) -> AsyncIterator[bytes]:
        offset, size = 0, WINDOW
        while size == WINDOW:
            piece: bytes = await self._bridge.call(self._remote.files.read_range, path, offset, WINDOW)
            size = len(piece)
            offset += size
            if piece:
                yield piece
