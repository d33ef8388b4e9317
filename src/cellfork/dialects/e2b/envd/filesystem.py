"""The service ``filesystem.Filesystem``: files and directories of one sandbox, and what happens to them."""

import asyncio
import contextlib
import posixpath
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from protobuf import Oneof

from cellfork.dialects.e2b.envd import translate
from cellfork.dialects.e2b.envd.access import resolve
from cellfork.dialects.e2b.envd.follow import keepalive_seconds
from cellfork.dialects.e2b.envd.processes import Context, user_of
from cellfork.dialects.e2b.envd.stubs import filesystem_connect as stubs
from cellfork.dialects.e2b.envd.stubs import filesystem_pb as pb
from cellfork.dialects.e2b.envd.translate import PREFIX
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.values import FilesystemEvent
from cellfork.engine.watches import LOST, Watch
from cellfork.model.errors import (
    CellforkError,
    FileError,
    LimitExceeded,
    NotADirectory,
    PathExists,
    PathNotFound,
)
from cellfork.model.ids import new_id

MAX_DEPTH = 10_000


@dataclass(frozen=True, slots=True)
class _Watcher:
    """A watch whose events are asked for from time to time."""

    watch: Watch
    path: str
    include_entry: bool


class Filesystem(stubs.Filesystem):
    """Implements the service for one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._watchers: dict[str, _Watcher] = {}

    async def stat(self, request: pb.StatRequest, ctx: Context, /) -> pb.StatResponse:
        """Describe a file or directory."""
        return pb.StatResponse(entry=await self._entry(resolve(request.path or "~", user_of(ctx))))

    async def make_dir(self, request: pb.MakeDirRequest, ctx: Context, /) -> pb.MakeDirResponse:
        """Make a directory and those above it."""
        path = resolve(request.path or "~", user_of(ctx))
        try:
            created = await self._sandbox.files.make_dir(path)
        except PathExists as error:
            message = f"path already exists but it is not a directory: {path}"
            raise ConnectError(Code.INVALID_ARGUMENT, message) from error
        if not created:
            raise ConnectError(Code.ALREADY_EXISTS, f"directory already exists: {path}")
        return pb.MakeDirResponse(entry=await self._entry(path))

    async def move(self, request: pb.MoveRequest, ctx: Context, /) -> pb.MoveResponse:
        """Move a file or directory; directories above the destination are made."""
        user = user_of(ctx)
        source, destination = resolve(request.source, user), resolve(request.destination, user)
        try:
            entry = await self._sandbox.files.move(source, destination, prefix=PREFIX)
        except PathNotFound as error:
            message = f"source file not found: rename {source} {destination}: no such file or directory"
            raise ConnectError(Code.NOT_FOUND, message) from error
        return pb.MoveResponse(entry=translate.entry_of(entry, destination))

    async def list_dir(self, request: pb.ListDirRequest, ctx: Context, /) -> pb.ListDirResponse:
        """Describe what is in a directory, down to a depth of one or more."""
        path = resolve(request.path or "~", user_of(ctx))
        try:
            listing = await self._sandbox.files.list(path, min(request.depth, MAX_DEPTH) or 1, prefix=PREFIX)
        except PathNotFound as error:
            message = f"path not found: lstat {path}: no such file or directory"
            raise ConnectError(Code.NOT_FOUND, message) from error
        except NotADirectory as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"path is not a directory: {path}") from error
        if listing.truncated:  # a list that leaves something out must not look whole
            raise LimitExceeded(
                f"there are more than {len(listing.entries):,} entries below {path}; list parts of it"
            )
        return pb.ListDirResponse(
            entries=[translate.entry_of(entry, entry.path) for entry in listing.entries]
        )

    async def remove(self, request: pb.RemoveRequest, ctx: Context, /) -> pb.RemoveResponse:
        """Remove a file, or a directory with all that is in it; nothing happens where nothing is."""
        with contextlib.suppress(PathNotFound):
            await self._sandbox.files.remove(resolve(request.path, user_of(ctx)))
        return pb.RemoveResponse()

    async def watch_dir(
        self, request: pb.WatchDirRequest, ctx: Context, /
    ) -> AsyncGenerator[pb.WatchDirResponse]:
        """Tell what happens in a directory, until the client goes away."""
        watcher = await self._watch(request, user_of(ctx))
        interval = keepalive_seconds(ctx.request_headers.get("keepalive-ping-interval"))
        try:
            yield pb.WatchDirResponse(event=_START)
            while (events := await _next(watcher.watch, interval)) is not None:
                if not events:
                    yield pb.WatchDirResponse(event=_KEEPALIVE)
                for event in events:
                    told = await self._told(watcher, event)
                    answer: Oneof[Literal["filesystem"], pb.FilesystemEvent] = Oneof("filesystem", told)
                    yield pb.WatchDirResponse(event=answer)
        finally:
            with contextlib.suppress(CellforkError):
                await watcher.watch.stop()

    async def create_watcher(
        self, request: pb.CreateWatcherRequest, ctx: Context, /
    ) -> pb.CreateWatcherResponse:
        """Watch a directory for a client that will ask for the events."""
        watcher = await self._watch(request, user_of(ctx))
        id = f"w{new_id()}"
        self._watchers[id] = watcher
        return pb.CreateWatcherResponse(watcher_id=id)

    async def get_watcher_events(
        self, request: pb.GetWatcherEventsRequest, ctx: Context, /
    ) -> pb.GetWatcherEventsResponse:
        """Return everything that has happened since the last time."""
        watcher = self._watcher(request.watcher_id)
        await watcher.watch.flush()
        events = watcher.watch.take()
        return pb.GetWatcherEventsResponse(events=[await self._told(watcher, event) for event in events])

    async def remove_watcher(
        self, request: pb.RemoveWatcherRequest, ctx: Context, /
    ) -> pb.RemoveWatcherResponse:
        """Watch no longer."""
        watcher = self._watcher(request.watcher_id)
        del self._watchers[request.watcher_id]
        await watcher.watch.stop()
        return pb.RemoveWatcherResponse()

    # -------------------------------------------------------------------------------------- details

    async def _entry(self, path: str) -> pb.EntryInfo:
        try:
            return translate.entry_of(await self._sandbox.files.stat(path, prefix=PREFIX), path)
        except PathNotFound as error:
            message = f"file not found: lstat {path}: no such file or directory"
            raise ConnectError(Code.NOT_FOUND, message) from error
        except NotADirectory as error:
            # Somewhere above it is a file: nothing is there, and whoever asks whether it exists wants to hear that.
            raise ConnectError(Code.NOT_FOUND, f"file not found: lstat {path}: not a directory") from error

    async def _watch(self, request: pb.WatchDirRequest | pb.CreateWatcherRequest, user: str) -> _Watcher:
        path = resolve(request.path or "~", user)
        local = not request.allow_network_mounts
        try:
            watch = await self._sandbox.watches.start(path, recursive=request.recursive, local=local)
        except PathNotFound as error:
            message = f"path {path} not found: stat {path}: no such file or directory"
            raise ConnectError(Code.NOT_FOUND, message) from error
        except NotADirectory as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"path {path} not a directory") from error
        return _Watcher(watch, path, request.include_entry)

    async def _told(self, watcher: _Watcher, event: FilesystemEvent) -> pb.FilesystemEvent:
        """Return an event as clients know it.  Raises where events were lost: what they know is not whole any more."""
        if event == LOST:
            message = f"watcher error: events were lost; list {watcher.path} anew"
            raise ConnectError(Code.RESOURCE_EXHAUSTED, message)
        entry = None
        if watcher.include_entry and event.type in translate.WITH_ENTRY:
            with contextlib.suppress(FileError, ConnectError):  # gone already
                entry = await self._entry(posixpath.join(watcher.path, event.name))
        return translate.filesystem_event(event, entry)

    def _watcher(self, id: str) -> _Watcher:
        self._sandbox.check_running()
        watcher = self._watchers.get(id)
        if watcher is None:
            raise ConnectError(Code.NOT_FOUND, f"watcher with id {id[:80]} not found")
        return watcher


_START: Oneof[Literal["start"], pb.WatchDirResponse.StartEvent] = Oneof(
    "start", pb.WatchDirResponse.StartEvent()
)
_KEEPALIVE: Oneof[Literal["keepalive"], pb.WatchDirResponse.KeepAlive] = Oneof(
    "keepalive", pb.WatchDirResponse.KeepAlive()
)


async def _next(watch: Watch, interval: float) -> list[FilesystemEvent] | None:
    """Return the events that came; nothing where none came for ``interval`` seconds, ``None`` where none will."""
    try:
        async with asyncio.timeout(interval) as waiting:
            return await watch.batch() or None
    except TimeoutError:
        if not waiting.expired():
            raise
        return []
