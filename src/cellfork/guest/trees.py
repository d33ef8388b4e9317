"""Directory trees of any size and depth, removed, copied and listed in short steps, without recursion.

Every function here is a generator that yields at least once in :data:`STEP` system calls or one
:data:`~cellfork.wire.frames.CHUNK` of bytes.  Paths are absolute ``bytes``; errors are ``OSError``.
"""

import errno
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cellfork.guest.services import Work
from cellfork.wire.frames import CHUNK

STEP = 256
"""Entries that are handled in one step."""
BATCH = 64
"""Subdirectories that are remembered per level, to bound the memory for deep trees."""
MAX_PENDING = 100_000
"""Directories that a search may have found and not looked into yet."""
PATIENCE = 60.0
"""Seconds for one removal.  A quarter of a million files take a few; only somebody who adds on can exceed it."""
MAX_RETRIES = 100
"""How often a removal begins anew because somebody else moves or fills directories meanwhile."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Identity = tuple[int, int]


@dataclass(slots=True)
class _Level:
    """A directory on the way down: its name in the one above, what it is, what is left to remove in it."""

    name: str
    identity: Identity
    subdirectories: list[str] = field(default_factory=list)


def remove(path: bytes) -> Work[None]:
    """Remove a directory and everything below it.

    Only the current directory is open, and the way up is ``..``, checked to be where we came from: the
    number of descriptors does not depend on the depth.  Symbolic links are removed, never followed.
    Raises ``EBUSY`` where somebody fills the directory faster than it can be emptied.
    """
    deadline = time.monotonic() + PATIENCE
    for _ in range(MAX_RETRIES):
        current = os.open(path, _DIRECTORY)
        walk = _Removal(current, deadline)
        try:
            yield from walk.run()
            os.rmdir(path)
        except _Changed:
            continue
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            return
        finally:
            os.close(walk.current)
    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))


class _Changed(Exception):
    """The tree was changed under our feet."""


class _Removal:
    """One attempt to empty a directory; ``current`` is the open one."""

    def __init__(self, root: int, deadline: float) -> None:
        self.current = root
        self._deadline = deadline
        self._levels = [_Level("", _identity(root))]

    def run(self) -> Work[None]:
        while True:
            self._check_time()
            level = self._levels[-1]
            if not level.subdirectories:
                yield from self._remove_files(level)
            if level.subdirectories:
                self._descend(level.subdirectories.pop())
            elif len(self._levels) > 1:
                self._ascend()
            else:
                return
            yield

    def _remove_files(self, level: _Level) -> Work[None]:
        """Remove what is no directory; remember up to :data:`BATCH` that are."""
        handled = 0
        with os.scandir(self.current) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    level.subdirectories.append(entry.name)
                    if len(level.subdirectories) == BATCH:
                        return
                else:
                    self._unlink(entry.name, level)
                handled += 1
                if handled % STEP == 0:
                    self._check_time()
                    yield

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _unlink(self, name: str, level: _Level) -> None:
        try:
            os.unlink(name, dir_fd=self.current)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            level.subdirectories.append(name)

    def _descend(self, name: str) -> None:
        if self._rmdir(name):
            return
        try:
            child = os.open(name, _DIRECTORY, dir_fd=self.current)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _Changed from error
        os.close(self.current)
        self.current = child
        self._levels.append(_Level(name, _identity(child)))

    def _ascend(self) -> None:
        left = self._levels.pop()
        parent = os.open("..", _DIRECTORY, dir_fd=self.current)
        os.close(self.current)
        self.current = parent
        if _identity(parent) != self._levels[-1].identity:
            raise _Changed
        if not self._rmdir(left.name):
            raise _Changed

    def _rmdir(self, name: str) -> bool:
        """Remove a directory of the current one; return whether it is gone, false where it has entries."""
        try:
            os.rmdir(name, dir_fd=self.current)
        except FileNotFoundError:
            pass
        except NotADirectoryError as error:
            raise _Changed from error
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
        return True


def copy(source: bytes, destination: bytes) -> Work[None]:
    """Copy a file, link or tree to where nothing is, with modes and times.

    Hard links become files of their own; extended attributes are left behind.
    """
    finished: list[tuple[bytes, os.stat_result]] = []
    pending = [(source, destination)]
    while pending:
        here, there = pending.pop()
        status = os.lstat(here)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(there, 0o700)
            finished.append((there, status))
            names = os.listdir(here)
            pending += [(os.path.join(here, name), os.path.join(there, name)) for name in names]
        else:
            yield from _copy_leaf(here, there, status)
        yield
    for count, (directory, status) in enumerate(reversed(finished)):
        _copy_attributes(directory, status)
        if count % STEP == 0:
            yield


def _copy_leaf(source: bytes, destination: bytes, status: os.stat_result) -> Work[None]:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), destination)
    elif stat.S_ISREG(status.st_mode):
        yield from _copy_file(source, destination)
        _copy_attributes(destination, status)
    else:
        os.mknod(destination, status.st_mode, status.st_rdev)


def _copy_file(source: bytes, destination: bytes) -> Work[None]:
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):  # exchanged meanwhile, for something without an end
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        writer = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while os.sendfile(writer, reader, None, CHUNK):
                yield
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_attributes(path: bytes, status: os.stat_result) -> None:
    os.chmod(path, stat.S_IMODE(status.st_mode))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


Listing = tuple[list[tuple[bytes, os.stat_result]], bool]
"""What was found, and whether there is more."""


def search(path: bytes, matches: Callable[[bytes], object], most: int) -> Work[Listing]:
    """Return what is below a directory, however deep, is none itself, and has a name that matches.

    At most ``most`` of them, each directory in the order of names.  ``path`` may be such a file itself.  What cannot be read
    and what vanishes meanwhile is passed over; symbolic links are not followed.
    """
    found: list[tuple[bytes, os.stat_result]] = []
    pending, truncated = [path], False
    while pending and not truncated:
        current = pending.pop()
        try:
            with os.scandir(current) as entries:
                while batch := _take(entries, STEP):
                    pending += (entry.path for entry in batch if entry.is_dir(follow_symlinks=False))
                    found += _stats(batch, matches)
                    truncated = len(found) > most or len(pending) > MAX_PENDING
                    if truncated:
                        break
                    yield
        except NotADirectoryError:
            found += _stats_of_one(current, matches)
        except OSError:
            continue
        yield
    found.sort(key=lambda entry: entry[0].split(b"/"))
    return found[:most], truncated


def _stats(
    batch: Iterable["os.DirEntry[bytes]"], matches: Callable[[bytes], object]
) -> Iterator[tuple[bytes, os.stat_result]]:
    for entry in batch:
        if matches(entry.name) and not entry.is_dir(follow_symlinks=False):
            try:
                yield entry.path, entry.stat(follow_symlinks=False)
            except OSError:
                continue


def _stats_of_one(path: bytes, matches: Callable[[bytes], object]) -> Iterator[tuple[bytes, os.stat_result]]:
    if matches(os.path.basename(path)):
        try:
            yield path, os.lstat(path)
        except OSError:
            return


def listing(path: bytes, depth: int, most: int) -> Work[Listing]:
    """Return what is below a directory, down to ``depth`` levels, and whether more than ``most`` were there.

    Sorted by name, each directory before what is in it.  Directories that cannot be read and entries that
    vanish meanwhile are passed over, except for ``path`` itself.
    """
    found: list[tuple[bytes, os.stat_result]] = []
    names = yield from _names(path, most)
    pending = [(os.path.join(path, name), 1) for name in reversed(names)]
    while pending and len(found) < most:
        current, level = pending.pop()
        try:
            status = os.lstat(current)
        except OSError:
            continue
        found.append((current, status))
        if level < depth and stat.S_ISDIR(status.st_mode):
            try:
                names = yield from _names(current, most)
            except OSError:
                continue
            pending += [(os.path.join(current, name), level + 1) for name in reversed(names)]
        if len(found) % STEP == 0:
            yield
    return found, bool(pending)


def _names(path: bytes, most: int) -> Work[list[bytes]]:
    """Return the first ``most`` + 1 names in a directory, sorted."""
    names: list[bytes] = []
    with os.scandir(path) as entries:
        while batch := _take(entries, STEP * 8):
            names += (entry.name for entry in batch)
            if len(names) > 2 * most:
                names = sorted(names)[: most + 1]
            yield
    return sorted(names)[: most + 1]


def _take(entries: Iterable["os.DirEntry[bytes]"], count: int) -> list["os.DirEntry[bytes]"]:
    return list(itertools.islice(entries, count))


def _identity(fd: int) -> Identity:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
