"""Archives on the host: the files of a sandbox as init packed them (``guest/archives.py``).

The host keeps them as they are and never looks inside: what is in them was written by untrusted code.  They are unpacked by
another init, inside another sandbox of the same tenant.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

from cellfork.engine.requests import Requests
from cellfork.model.errors import (
    LimitExceeded,
    NotFound,
    ProtocolViolation,
    StartupFailed,
    UnavailableError,
)
from cellfork.model.ids import new_id
from cellfork.model.limits import Limits, MiB
from cellfork.runtimes.base import Guest
from cellfork.runtimes.waiting import finished
from cellfork.wire.frames import CHUNK, Frame

WINDOW = 4 * MiB
"""Bytes of an archive that are asked for, or written to disk, at the same time."""
PER_FILE = 2048
"""Bytes that an archive may take for each file, besides its content: names, links, attributes."""
PARTIAL = ".partial"
PREFIX = "cellfork-archives-"
LINK_SECONDS = 30.0
"""How long the host's disk may take to copy an archive, which is one name more for it."""
MADE_SECONDS = 60.0
"""A temporary directory that is younger may not be locked yet."""
MODE = 0o600


class Archives:
    """The archives in one directory.  All methods belong to the engine's event loop; files are touched in threads.

    ``directory`` is made where it is absent, for this user alone; without one they are in a temporary directory, which
    is there as long as any archive is.  All together take at most ``quota`` bytes.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, quota: int) -> None:
        self._wanted = None if directory is None else Path(directory)
        self._directory: Path | None = None
        self._lock: int | None = None
        self._quota = quota
        self._sizes: dict[str, int] = {}
        self._under_way = 0
        """How many are being written or removed."""
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes of all archives, those that are being written as well."""
        return self._used

    def open(self) -> None:
        """Find the archives that are there, and remove what was not finished; blocks.

        Raises :class:`UnavailableError` where the directory cannot be used, or can be entered by somebody else.
        """
        if self._directory is not None or self._wanted is None:
            return
        try:
            self._wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._wanted.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise PermissionError(f"{self._wanted} can be entered by somebody else (chmod 700)")
            for entry in [*os.scandir(self._wanted)]:
                if entry.name.endswith(PARTIAL):
                    Path(entry.path).unlink()
                else:
                    self._sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        except OSError as error:
            raise UnavailableError(f"there is no place for archives: {error}") from error
        self._used = sum(self._sizes.values())
        self._directory = self._wanted

    def draft(self, most: int) -> "Draft":
        """Begin an archive of at most ``most`` bytes.  Raises :class:`UnavailableError`."""
        self._under_way += 1
        try:
            return Draft(self, self._place(), most)
        except BaseException:
            self._dropped(0)
            raise

    async def copy(self, id: str) -> str:
        """Keep the same content under another id; :class:`NotFound` where there is none."""
        path, copied = self._path(id), new_id()
        self._reserve(self._sizes[id])
        self._sizes[copied] = self._sizes[id]
        async with self.handed_over() as made:
            made.append(copied)
            linking = asyncio.ensure_future(asyncio.to_thread(os.link, path, path.with_name(copied)))
            try:
                if not await finished(linking, LINK_SECONDS):
                    raise UnavailableError("the host's disk does not answer")
                linking.result()
            except OSError as error:
                raise UnavailableError(f"an archive could not be kept: {error}") from error
        return copied

    async def read(self, id: str) -> AsyncGenerator[bytes, None]:
        """Yield an archive piece by piece; :class:`NotFound` where there is none."""
        path = self._path(id)
        try:
            with path.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, WINDOW):
                    yield piece
        except OSError as error:
            raise UnavailableError(f"an archive could not be read: {error}") from error

    def size(self, id: str) -> int:
        """Return the bytes of an archive; :class:`NotFound` where there is none."""
        self._path(id)
        return self._sizes[id]

    async def discard(self, id: str) -> None:
        """Remove an archive, if it is there; that goes on where nobody waits for it any more."""
        size = self._sizes.pop(id, None)
        if size is None or self._directory is None:
            return
        removing = asyncio.ensure_future(asyncio.to_thread(_remove, self._directory / id))
        self._under_way += 1
        removing.add_done_callback(lambda _done: self._dropped(size))
        await asyncio.shield(removing)

    @contextlib.asynccontextmanager
    async def handed_over(self) -> AsyncGenerator[list[str], None]:
        """Remove the archives in the list that is yielded, where the block fails or is cancelled: nobody hears of them."""
        made: list[str] = []
        try:
            yield made
        except BaseException:
            for id in made:
                await self.discard(id)
            raise

    async def keep_only(self, ids: Iterable[str]) -> None:
        """Remove every archive but these: nobody knows of the others any more."""
        for id in {*self._sizes} - {*ids}:
            await self.discard(id)

    def close(self) -> None:
        """Remove the temporary directory, if there is one; blocks."""
        if self._wanted is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._used = 0
            self._sizes.clear()
            self._let_go()

    # ------------------------------------------------------------------------------------ for drafts

    def _reserve(self, size: int) -> None:
        if self._used + size > self._quota:
            raise LimitExceeded(
                f"all archives together may take {self._quota:,} bytes, and there is no room for more"
            )
        self._used += size

    def _finished(self, id: str, size: int) -> None:
        self._under_way -= 1
        self._sizes[id] = size

    def _dropped(self, size: int) -> None:
        self._under_way -= 1
        self._used -= size
        self._tidy()

    # --------------------------------------------------------------------------------------- details

    def _place(self) -> Path:
        self.open()
        if self._directory is None:
            try:
                sweep_abandoned()
                self._directory = Path(tempfile.mkdtemp(prefix=PREFIX))
                self._lock = _locked(self._directory)
            except OSError as error:
                raise UnavailableError(f"there is no place for archives: {error}") from error
        return self._directory

    def _path(self, id: str) -> Path:
        if id not in self._sizes or self._directory is None:
            raise NotFound("there is no such archive")
        return self._directory / id

    def _tidy(self) -> None:
        if self._wanted is not None or self._directory is None:
            return
        if not (self._sizes or self._under_way):
            with contextlib.suppress(OSError):
                self._directory.rmdir()
            self._let_go()

    def _let_go(self) -> None:
        """Have no temporary directory any more."""
        self._directory = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Draft:
    """An archive that is being written: under another name until :meth:`commit`."""

    def __init__(self, archives: Archives, directory: Path, most: int) -> None:
        self.id = new_id()
        self._archives = archives
        self._path = directory / f"{self.id}{PARTIAL}"
        self._most = most
        self._size = 0
        self._over = False
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
            # Buffered: its lock keeps a thread that nobody waits for any more from writing to a closed descriptor.
            self._file = os.fdopen(fd, "wb")
        except OSError as error:
            raise UnavailableError(f"there is no place for archives: {error}") from error

    async def write(self, pieces: list[bytes]) -> None:
        """Add bytes.  Raises :class:`LimitExceeded`, :class:`UnavailableError` where the host's disk takes no more."""
        size = sum(map(len, pieces))
        if self._size + size > self._most:
            raise LimitExceeded(f"the files of the sandbox take more than {self._most:,} bytes")
        self._archives._reserve(size)
        self._size += size
        try:
            await asyncio.to_thread(self._file.writelines, pieces)
        except OSError as error:
            raise UnavailableError(f"an archive could not be written: {error}") from error

    async def commit(self) -> str:
        """Keep it; return its id."""
        try:
            await asyncio.to_thread(self._flush)
            self._file.close()
            self._path.rename(self._path.with_name(self.id))
        except OSError as error:
            raise UnavailableError(f"an archive could not be written: {error}") from error
        self._over = True
        self._archives._finished(self.id, self._size)
        return self.id

    def abort(self) -> None:
        """Drop it.  Nothing happens after :meth:`commit`."""
        if self._over:
            return
        self._over = True
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._archives._dropped(self._size)

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


async def pack(requests: Requests, archives: Archives, limits: Limits, *, alone: bool = False) -> str:
    """Have init pack the sandbox's files; return the archive's id.  Nobody may change the files meanwhile.

    ``alone``: every other process is killed first.  Raises :class:`LimitExceeded`, :class:`Unsupported` (no places of
    its own), :class:`Conflict` (files changed), :class:`UnavailableError`, :class:`SandboxGone`.
    """
    async with archives.handed_over() as made:
        draft = archives.draft(most_bytes(limits))
        try:
            offset, end = 0, False
            while not end:
                pieces, end = await _next_window(requests, offset, alone=alone)
                offset += sum(map(len, pieces))
                await draft.write(pieces)
            made.append(await draft.commit())
        finally:
            draft.abort()
            with contextlib.suppress(Exception):
                await requests.send_in_pause("archive.close")
    return made[0]


async def _next_window(requests: Requests, offset: int, *, alone: bool) -> tuple[list[bytes], bool]:
    pieces: list[bytes] = []
    room = WINDOW + 2 * CHUNK  # the last record is sent whole

    def take(chunk: bytes) -> None:
        nonlocal room
        room -= len(chunk)
        if room < 0:
            raise ProtocolViolation("more bytes than were asked for")
        pieces.append(chunk)

    fields: dict[str, Any] = {"offset": offset, "length": WINDOW, "alone": alone}
    reply = await requests.send_in_pause("archive.read", on_chunk=take, **fields)
    end = reply.get("end") is True
    if not pieces and not end:
        raise ProtocolViolation("an archive that does not go on")
    return pieces, end


async def unpack(guest: Guest, archives: Archives, id: str) -> None:
    """Give a guest the files of an archive, before anything else is asked of it; then it waits to be attached.

    Raises :class:`NoSpace` and :class:`LimitExceeded` where they do not fit, :class:`InvalidRequest` where the archive is
    damaged, :class:`NotFound`, :class:`StartupFailed` where the guest ends meanwhile.
    """
    requests = Requests(guest.send)

    def on_frame(frame: Frame) -> None:
        if frame.header["op"] == "reply" and not frame.channel:
            requests.on_reply(frame.header)

    def on_close(_reason: object, message: str) -> None:
        requests.fail_all(lambda: StartupFailed(f"the sandbox ended while it got its files: {message}"))

    guest.attach(on_frame, on_close)
    offset = 0
    async with contextlib.aclosing(archives.read(id)) as pieces:
        async for piece in pieces:
            for start in range(0, len(piece), CHUNK):
                part = piece[start : start + CHUNK]
                await requests.send("archive.write", part, offset=offset, end=False)
                offset += len(part)
    await requests.send("archive.write", offset=offset, end=True)
    await requests.send("archive.close")


def sweep_abandoned() -> None:
    """Remove temporary directories of this user whose engine is gone: who was killed could not do it; blocks."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < MADE_SECONDS:
                continue
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _locked(directory: Path) -> int | None:
    """Return a descriptor of a directory that nobody else has locked; ``None`` where somebody has."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def most_bytes(limits: Limits) -> int:
    """Return what the files of a sandbox can take as an archive."""
    return limits.disk_bytes + PER_FILE * limits.inodes + MiB
