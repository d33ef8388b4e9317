"""Files that an execution made or changed, found by looking at the places where its code may write.

Nothing tells of a change: inotify needs milliseconds to be given up and is counted for all sandboxes together,
dnotify is refused to what runs here, and neither sees what is written through a mapping.  So init keeps, for every
file, what ``lstat`` said of it (inode, size, both times) and asks again when an execution has ended: one call for each file
and each directory.  A directory is listed anew only when its own time has changed.

What was changed within the tick of the clock in which it was looked at may change again without a trace; of
such a file, where it is small, the content is compared.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from cellfork.guest.paths import MAX_PATH, display, is_utf8

MAX_TOLD = 1000
"""Files that are told of one execution."""
MAX_LOOKED_AT = 8192
"""Files and directories that are looked at, in all places together."""
MAX_DEPTH = 16
"""Directories below a place that are entered."""
MAX_LOOK_SECONDS = 0.1
"""Seconds that one look takes."""
MAX_HASHED = 64 * 1024 * 1024
"""Bytes that are read for the digests of one execution; what does not fit is told without one."""
MAX_HASH_SECONDS = 0.25
"""Seconds that the digests of one execution take."""
MAX_COMPARED = 64 * 1024
"""Size of the files whose content is compared where their times say nothing."""
MAX_TOLD_TEXT = 1024 * 1024
"""Characters of all paths that are told of one execution."""

LEFT_OUT = frozenset({"__pycache__", "node_modules"})
"""Directories that hold what tools keep for themselves, like everything whose name begins with a dot."""
ENVIRONMENT = "pyvenv.cfg"
"""A directory with this file in it is a virtual environment, and left out."""

_READ_SIZE = 256 * 1024
_CLOCK_STRIDE = 64
_CLOCK_OF_FILES = 5
"""``CLOCK_REALTIME_COARSE``, which the times of files are taken from; Python has no name for it."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Artifact(NamedTuple):
    """One file: its path as text, its size in bytes, its SHA-256 in hex (``None``: too large, unreadable, or changing).

    ``lossy``: the name is not UTF-8, and the text not the path.
    """

    path: str
    size: int
    sha256: str | None
    lossy: bool


class Made(NamedTuple):
    """What an execution made; ``truncated`` where there may be more."""

    artifacts: list[Artifact]
    truncated: bool


@dataclass(slots=True)
class _File:
    """What is known of a file; ``settled`` where any later change would change its signature."""

    signature: tuple[int, int, int, int]
    settled: bool
    digest: str | None = None


@dataclass(slots=True)
class _Directory:
    """What is known of a directory and of what is in it."""

    signature: tuple[int, int, int] | None = None
    files: dict[str, _File] = field(default_factory=dict)
    directories: "dict[str, _Directory]" = field(default_factory=dict)


class _Enough(Exception):
    """A look has used up its entries or its time."""


class Ledger:
    """Knows the files below the home and below the working directories of contexts, and when they changed.

    ``told_home`` is the home's path as the host says it.  Whatever may change files without being code of a context
    sets ``disturbed``: then the next execution begins with a look.
    """

    def __init__(self, home: str, told_home: str) -> None:
        self.disturbed = True
        self._given_home = home
        self._home = os.path.realpath(home)
        self._told_home = told_home
        self._places: dict[str, _Directory] = {self._home: _Directory()}
        self._users: dict[int, str] = {}
        self._looks = 0
        self._open: list[int] = []
        self._changed: dict[str, tuple[int, _File]] = {}
        self._truncated_at = 0
        self._quiet = False
        self._tick = self._left = 0
        self._deadline = 0.0

    # ------------------------------------------------------------------------------------- places

    def add_place(self, context: int, cwd: str) -> None:
        """Look below the working directory of a context as well, where code may write and nobody looks yet."""
        if cwd == self._given_home:
            return
        path = os.path.realpath(cwd)
        if self._is_seen(path) or _contains(path, self._home) or not os.access(path, os.W_OK):
            return
        self._users[context] = path
        if path not in self._places:
            self._places[path] = _Directory()
            self._look([path], quiet=True)

    def drop_place(self, context: int) -> None:
        """Forget the working directory of a context, unless another one has the same."""
        path = self._users.pop(context, None)
        if path is not None and path not in self._users.values():
            del self._places[path]

    def _is_seen(self, path: str) -> bool:
        if not _contains(self._home, path):
            return False
        below = path.removeprefix(self._home).strip("/")
        return not any(map(_is_left_out, below.split("/"))) if below else True

    # --------------------------------------------------------------------------------- executions

    def prepare(self) -> None:
        """Look, where somebody may have changed files since the last look, so that no execution counts them as its own."""
        if self.disturbed:
            self.disturbed = False
            self._look(list(self._places), quiet=not self._open)

    def begin(self) -> int:
        """Return the mark that :meth:`made_since` wants when the execution that begins now has ended."""
        self.prepare()
        mark = self._looks
        self._open.append(mark)
        return mark

    def made_since(self, mark: int) -> Made:
        """Return the files that are new or changed since :meth:`begin` gave out ``mark``, which is of no use then."""
        self._look(list(self._places), quiet=False)
        changed = [path for path, (look, _) in self._changed.items() if look > mark]
        truncated = self._truncated_at > mark or len(changed) > MAX_TOLD
        made = list(self._tell(changed[:MAX_TOLD]))
        if sum(len(artifact.path) for artifact in made) > MAX_TOLD_TEXT:
            made, truncated = made[: MAX_TOLD_TEXT // MAX_PATH], True
        self.forget(mark)
        return Made(made, truncated)

    def forget(self, mark: int) -> None:
        """Take note that nobody will ask what was made since ``mark``."""
        self._open.remove(mark)
        if not self._changed:
            return
        oldest = min(self._open, default=self._looks)
        self._changed = {path: at for path, at in self._changed.items() if at[0] > oldest}

    def _tell(self, paths: list[str]) -> Iterator[Artifact]:
        digests = _Digests()
        for path in paths:
            known = self._changed[path][1]
            size, digest = digests.of(path, known.signature)
            if size is None:
                continue  # it is gone again
            known.digest = digest
            raw = os.fsencode(self._told(path))
            text = display(raw)
            if len(text) <= MAX_PATH:
                yield Artifact(text, size, digest, not is_utf8(raw))

    def _told(self, path: str) -> str:
        return self._told_home + path.removeprefix(self._home) if _contains(self._home, path) else path

    # --------------------------------------------------------------------------------------- looks

    def _look(self, places: list[str], *, quiet: bool) -> None:
        """Compare everything with what is known; what differs is changed from now on, unless ``quiet``."""
        self._looks += 1
        self._quiet = quiet
        self._tick = time.clock_gettime_ns(_CLOCK_OF_FILES)
        self._left = MAX_LOOKED_AT
        self._deadline = time.monotonic() + MAX_LOOK_SECONDS
        try:
            for path in places:
                self._visit(path, self._places[path], 0)
        except _Enough:
            self._truncated_at = self._looks

    def _visit(self, path: str, directory: _Directory, depth: int) -> None:
        self._count(1)
        try:
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode):
                return
            signature = found.st_dev, found.st_ino, found.st_mtime_ns
            if signature == directory.signature:
                self._check_files(path, directory)
            else:
                directory.signature = None
                self._list(path, directory, depth)
                if found.st_mtime_ns < self._tick:
                    directory.signature = signature
        except OSError:  # it is gone, or closed to us: then what is in it is nobody's result
            return
        for name, below in list(directory.directories.items()):
            self._visit(f"{path}/{name}", below, depth + 1)

    def _check_files(self, path: str, directory: _Directory) -> None:
        """Compare the files of a directory that holds the same ones as before.  This is where the time goes."""
        self._count(len(directory.files))
        prefix = path + "/"
        lstat = os.lstat
        for name, known in directory.files.items():
            try:
                found = lstat(prefix + name)
            except OSError:
                continue
            signature = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            if signature != known.signature or not known.settled:
                self._compare(prefix + name, known, found)

    def _list(self, path: str, directory: _Directory, depth: int) -> None:
        with os.scandir(path) as entries:
            names = {entry.name: entry for entry in entries if not _is_left_out(entry.name)}
        if ENVIRONMENT in names and depth:
            names = {}
        files: dict[str, _File] = {}
        directories: dict[str, _Directory] = {}
        for name, entry in names.items():
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    directories[name] = directory.directories.get(name) or _Directory()
                else:
                    self._truncated_at = self._looks
            elif entry.is_file(follow_symlinks=False):
                self._count(1)
                with suppress(OSError):
                    files[name] = self._meet(entry, directory.files.get(name))
        directory.files, directory.directories = files, directories

    def _meet(self, entry: os.DirEntry[str], known: _File | None) -> _File:
        found = entry.stat(follow_symlinks=False)
        if known is not None:
            self._compare(entry.path, known, found)
            return known
        file = _File(_signature(found), self._is_settled(found))
        if self._quiet and not file.settled:
            file.digest = _digest_of_small(entry.path, found.st_size)
        self._note(entry.path, file)
        return file

    def _compare(self, path: str, known: _File, found: os.stat_result) -> None:
        signature = _signature(found)
        if signature == known.signature and known.settled:
            return
        if signature[:3] == known.signature[:3] and known.digest is not None:
            # Only its rights, or its name, or in the same tick as before: its content tells.
            digest = _digest_of_small(path, found.st_size)
            changed = signature != known.signature if digest is None else digest != known.digest
        else:
            changed = signature != known.signature
        known.signature, known.settled = signature, self._is_settled(found)
        if changed:
            known.digest = None
            self._note(path, known)

    def _note(self, path: str, file: _File) -> None:
        if not self._quiet:
            self._changed[path] = self._looks, file

    def _is_settled(self, found: os.stat_result) -> bool:
        return max(found.st_mtime_ns, found.st_ctime_ns) < self._tick

    def _count(self, entries: int) -> None:
        """Take entries off what one look may see; look at the clock every now and then."""
        before = self._left // _CLOCK_STRIDE
        self._left -= entries
        if self._left < 0 or (self._left // _CLOCK_STRIDE != before and time.monotonic() > self._deadline):
            raise _Enough


class _Digests:
    """Reads files for their SHA-256, within the bounds of one execution."""

    def __init__(self) -> None:
        self._room = MAX_HASHED
        self._deadline = time.monotonic() + MAX_HASH_SECONDS

    def of(self, path: str, signature: tuple[int, int, int, int]) -> tuple[int | None, str | None]:
        """Return size and digest: no size where there is no file, no digest where it cannot be had."""
        try:
            found = os.lstat(path)
        except OSError:
            return None, None
        if not stat.S_ISREG(found.st_mode):
            return None, None
        if found.st_size > self._room or time.monotonic() > self._deadline:
            return found.st_size, None
        digest = self._read(path, found.st_ino)
        return found.st_size, digest

    def _read(self, path: str, inode: int) -> str | None:
        try:
            fd = os.open(path, _OPEN)
        except OSError:
            return None
        try:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode) or before.st_ino != inode:
                return None
            digest = hashlib.sha256()
            while data := os.read(fd, _READ_SIZE):
                self._room -= len(data)
                if self._room < 0 or time.monotonic() > self._deadline:
                    return None
                digest.update(data)
            return digest.hexdigest() if _signature(os.fstat(fd)) == _signature(before) else None
        except OSError:
            return None
        finally:
            os.close(fd)


def _digest_of_small(path: str, size: int) -> str | None:
    if size > MAX_COMPARED:
        return None
    return _Digests().of(path, (0, 0, 0, 0))[1]


def _signature(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name in LEFT_OUT


def _contains(place: str, path: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")
