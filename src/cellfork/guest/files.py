"""Files: every file operation of the host, carried out inside the sandbox as the sandbox's user."""

import errno
import grp
import json
import os
import pwd
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cellfork.guest import trees
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.guest.paths import display, is_utf8, os_errors, resolve
from cellfork.guest.services import Handler, Result, Turns, Work, answering, flag, number
from cellfork.model.errors import (
    InvalidRequest,
    IsADirectory,
    LimitExceeded,
    NotADirectory,
    NotAFile,
    NotFound,
    PathExists,
    PathNotPermitted,
)
from cellfork.wire.frames import CHUNK

MAX_ENTRIES = 10_000
"""Entries of one listing."""
MAX_LISTING = 24 * 1024 * 1024
"""Bytes of one listing: names and paths may be long, and every byte of them take five."""
MAX_HANDLES = 256
"""Files that are being written at the same time."""
MAX_UNSIZED = 64 * 1024 * 1024
"""Bytes that are read of a file which says that it is empty, as those in ``/proc`` do."""
PAGE = 500
"""Entries of one ``chunk`` of a listing."""
MAX_LINKS = 40
MAX_LEVELS = 1_000_000
NEW_FILE_MODE = 0o644
NEW_DIRECTORY_MODE = 0o755

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

TEMPORARY = re.compile(rb"\.cellfork-[0-9a-f]{16}")
"""Names of files that are being written."""


@dataclass(slots=True)
class _Writing:
    """A file that is being written: the descriptor, the file it is, the one it will be (append: the same)."""

    fd: int
    path: bytes
    target: bytes


class Files:
    """Reads, writes, lists, moves and removes files.  Relative paths start at ``home``."""

    def __init__(self, loop: Loop, link: HostLink, *, home: str) -> None:
        self._link = link
        self._home = os.fsencode(home)
        self._turns = Turns(loop)
        self._writing: dict[int, _Writing] = {}
        self._last_handle = 0
        self._owners = _Owners()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by the names of their operations."""
        return {
            "file.read": self._read,
            "file.open": self._open,
            "file.write": self._write,
            "file.close": self._close,
            "file.list": self._list,
            "file.stat": self._stat,
            "file.move": self._move,
            "file.remove": self._remove,
            "file.mkdir": self._mkdir,
        }

    def close(self) -> None:
        """Drop every file that is being written and end the work under way."""
        for handle in list(self._writing):
            self._drop(handle)
        self._turns.close()

    # Reading

    def _read(self, header: dict[str, Any], body: bytes) -> None:
        path = resolve(header.get("path"), self._home)
        offset, length = number(header, "offset"), number(header, "length", -1)
        with os_errors(path):
            fd = _open_regular(path, os.O_RDONLY)
            size = os.fstat(fd).st_size
        rest = max(0, size - offset) if size else MAX_UNSIZED
        if length >= 0:
            rest = min(rest, length)
        self._answer(header, self._send_file(header["id"], fd, path, offset, rest))

    def _send_file(self, request: int, fd: int, path: bytes, offset: int, rest: int) -> Work[Result]:
        """Send up to ``rest`` bytes: no more than the file had at first, so that one that grows has an end."""
        sent = 0
        try:
            with os_errors(path):
                os.lseek(fd, offset if rest else 0, os.SEEK_SET)
                while sent < rest and (piece := os.read(fd, min(CHUNK, rest - sent))):
                    self._link.send({"op": "chunk", "id": request}, piece)
                    sent += len(piece)
                    yield
        finally:
            os.close(fd)
        return {"size": sent}

    # Writing

    def _open(self, header: dict[str, Any], body: bytes) -> Result:
        path = resolve(header.get("path"), self._home)
        mode = None if header.get("mode") is None else number(header, "mode", 0, 0o7777)
        if len(self._writing) >= MAX_HANDLES:
            raise LimitExceeded(f"{MAX_HANDLES} files are being written already")
        with os_errors(path):
            target = _follow(path)
            _make_parents(target)
            writing = _append(target, mode) if flag(header, "append") else _replace(target, mode)
        self._last_handle += 1
        self._writing[self._last_handle] = writing
        return {"handle": self._last_handle}

    def _write(self, header: dict[str, Any], body: bytes) -> Result:
        handle = number(header, "handle")
        writing = self._handle(handle)
        rest = memoryview(body)
        try:
            with os_errors(writing.target):
                while rest:
                    rest = rest[os.write(writing.fd, rest) :]
        except BaseException:
            self._drop(handle)
            raise
        return {}

    def _close(self, header: dict[str, Any], body: bytes) -> Result:
        handle = number(header, "handle")
        if not flag(header, "commit"):
            self._drop(handle)
            return {}
        writing = self._handle(handle)
        try:
            with os_errors(writing.target):
                if writing.path != writing.target:
                    os.rename(writing.path, writing.target)
                    writing.path = writing.target
                return self._entry(writing.target)
        finally:
            self._drop(handle)

    def _handle(self, handle: int) -> _Writing:
        writing = self._writing.get(handle)
        if writing is None:
            raise NotFound(f"no file is being written as {handle}")
        return writing

    def _drop(self, handle: int) -> None:
        """Forget a handle, and its temporary file; nothing happens where there is no such handle."""
        writing = self._writing.pop(handle, None)
        if writing is None:
            return
        os.close(writing.fd)
        if writing.path != writing.target:
            _unlink_if_there(writing.path)

    # Looking

    def _stat(self, header: dict[str, Any], body: bytes) -> Result:
        path = resolve(header.get("path"), self._home)
        with os_errors(path):
            return self._entry(path)

    def _list(self, header: dict[str, Any], body: bytes) -> None:
        path = resolve(header.get("path"), self._home)
        depth = number(header, "depth", 1)
        with os_errors(path):
            os.scandir(path).close()
        self._answer(header, self._send_list(header["id"], path, depth))

    def _send_list(self, request: int, path: bytes, depth: int) -> Work[Result]:
        """Send the entries as JSON, one in a line: more than a header can hold."""
        with os_errors(path):
            found, truncated = yield from trees.listing(path, depth, MAX_ENTRIES)
        room = MAX_LISTING
        for start in range(0, len(found), PAGE):
            entries = (self._describe(*below) for below in found[start : start + PAGE])
            lines = [json.dumps(entry) + "\n" for entry in entries]
            count = _fitting(lines, room)
            page = "".join(lines[:count])
            self._link.send({"op": "chunk", "id": request}, page.encode("ascii"))
            if count < len(lines):
                return {"truncated": True}
            room -= len(page)
            yield
        return {"truncated": truncated}

    def _entry(self, path: bytes) -> Result:
        return self._describe(path, os.lstat(path))

    def _describe(self, path: bytes, status: os.stat_result) -> Result:
        return {
            "name": display(os.path.basename(path) or b"/"),
            "path": display(path),
            "type": _type_of(status.st_mode),
            "size": status.st_size,
            "mode": stat.S_IMODE(status.st_mode),
            "owner": self._owners.user(status.st_uid),
            "group": self._owners.group(status.st_gid),
            "mtime": status.st_mtime_ns,
            "target": _target_of(path) if stat.S_ISLNK(status.st_mode) else None,
            "lossy": not is_utf8(path),
        }

    # Changing

    def _move(self, header: dict[str, Any], body: bytes) -> None:
        source = _changeable(resolve(header.get("source"), self._home))
        destination = _changeable(resolve(header.get("destination"), self._home))
        self._answer(header, self._move_there(source, destination))

    def _move_there(self, source: bytes, destination: bytes) -> Work[Result]:
        with os_errors(source):
            if (yield from _is_inside(destination, source)):
                raise InvalidRequest(f"'{display(source)}' cannot be moved into itself")
        with os_errors(destination):
            _make_parents(destination)
            if _rename(source, destination):
                return self._entry(destination)
        return (yield from self._move_across(source, destination))

    def _move_across(self, source: bytes, destination: bytes) -> Work[Result]:
        """Move to another mount: copy beside the destination, rename, remove the source."""
        temporary = _temporary_beside(destination)
        try:
            with os_errors(destination):
                yield from trees.copy(source, temporary)
                os.rename(temporary, destination)
        except BaseException:
            yield from _remove_quietly(temporary)
            raise
        with os_errors(source):
            yield from _remove_any(source)
        with os_errors(destination):
            return self._entry(destination)

    def _remove(self, header: dict[str, Any], body: bytes) -> Result | None:
        path = _changeable(resolve(header.get("path"), self._home))
        with os_errors(path):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
            elif not flag(header, "recursive"):
                os.rmdir(path)
            else:
                self._answer(header, self._remove_tree(path))
                return None
        return {}

    @staticmethod
    def _remove_tree(path: bytes) -> Work[Result]:
        with os_errors(path):
            yield from trees.remove(path)
        return {}

    def _mkdir(self, header: dict[str, Any], body: bytes) -> Result:
        path = resolve(header.get("path"), self._home)
        with os_errors(path):
            return {"created": _make_directories(path)}

    def _answer(self, header: dict[str, Any], work: Work[Result]) -> None:
        self._turns.start(answering(self._link, header["id"], work))


class _Owners:
    """Names of users and groups, looked up once each."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._groups: dict[int, str] = {}

    def user(self, uid: int) -> str:
        """Return the user's name, or the number as text."""
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]

    def group(self, gid: int) -> str:
        """Return the group's name, or the number as text."""
        if gid not in self._groups:
            try:
                self._groups[gid] = grp.getgrgid(gid).gr_name
            except KeyError:
                self._groups[gid] = str(gid)
        return self._groups[gid]


def _fitting(lines: list[str], room: int) -> int:
    """Return how many of ``lines``, from the first on, take at most ``room`` letters together."""
    for count, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            return count
    return len(lines)


def _open_regular(path: bytes, flags: int, mode: int = NEW_FILE_MODE) -> int:
    """Open a file; a pipe, socket or device is refused without waiting for anybody at its other end."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    try:
        _check_regular(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_regular(path: bytes, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectory(f"'{display(path)}' is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise NotAFile(f"'{display(path)}' is a pipe, a socket or a device")


def _append(target: bytes, mode: int | None) -> _Writing:
    fd = _open_regular(
        target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, NEW_FILE_MODE if mode is None else mode
    )
    if mode is not None:
        os.fchmod(fd, mode)
    return _Writing(fd, target, target)


def _replace(target: bytes, mode: int | None) -> _Writing:
    """Begin a temporary file beside the target, with the mode that the target will have."""
    try:
        status = os.lstat(target)
    except FileNotFoundError:
        mode = NEW_FILE_MODE if mode is None else mode
    else:
        _check_regular(target, status)
        if not os.access(target, os.W_OK):
            raise PathNotPermitted(f"'{display(target)}' is not writable")
        mode = status.st_mode & 0o777 if mode is None else mode
    temporary = _temporary_beside(target)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, mode)
    return _Writing(fd, temporary, target)


def _follow(path: bytes) -> bytes:
    """Return where writing to ``path`` writes: symbolic links are followed, also to where nothing is yet."""
    for _ in range(MAX_LINKS):
        try:
            link = os.readlink(path)
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
                return path
            raise
        path = os.path.join(os.path.dirname(path), link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _temporary_beside(path: bytes) -> bytes:
    return os.path.join(os.path.dirname(path), b".cellfork-" + os.urandom(8).hex().encode("ascii"))


def _make_directories(path: bytes) -> bool:
    """Make a directory with its parents; return false where it was there."""
    missing: list[bytes] = []
    while not os.path.isdir(path):
        if os.path.lexists(path):
            kind = NotADirectory if missing else PathExists
            raise kind(f"'{display(path)}' exists and is not a directory")
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, NEW_DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
    return bool(missing)


def _make_parents(path: bytes) -> None:
    parent = os.path.dirname(path)
    try:
        _make_directories(parent)
    except PathExists as error:
        raise NotADirectory(f"'{display(parent)}' is not a directory") from error


def _changeable(path: bytes) -> bytes:
    """Return a path that may be moved or removed: neither the root nor ``…/..``."""
    if path == b"/":
        raise PathNotPermitted("'/' cannot be moved or removed")
    if os.path.basename(path) == b"..":
        raise InvalidRequest(f"'{display(path)}' does not name what is to be moved or removed")
    return path


def _is_inside(path: bytes, directory: bytes) -> Work[bool]:
    """Tell whether ``path``, which may not exist, is below ``directory``: by what directories are, not by names.

    From the nearest one that exists ``..`` leads up, which takes one step for each level, whatever links
    there are on the way.
    """
    wanted = _identity(os.lstat(directory))
    path = os.path.dirname(path)
    while not os.path.isdir(path):
        if os.path.lexists(path) and _identity(os.lstat(path)) == wanted:
            return True
        path = os.path.dirname(path)
    fd, level = os.open(path, _PLACE), 0
    try:
        here = _identity(os.fstat(fd))
        while here != wanted:
            above = os.open("..", _PLACE, dir_fd=fd)
            os.close(fd)
            fd = above
            below, here = here, _identity(os.fstat(fd))
            if here == below:
                return False
            level += 1
            if level > MAX_LEVELS:  # somebody moves the directories down as fast as this goes up
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if level % trees.STEP == 0:
                yield
    finally:
        os.close(fd)
    return True


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _rename(source: bytes, destination: bytes) -> bool:
    """Rename; return false where the destination is on another mount."""
    try:
        os.rename(source, destination)
    except OSError as error:
        if error.errno == errno.EXDEV:
            return False
        raise
    return True


def _remove_any(path: bytes) -> Work[None]:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        yield from trees.remove(path)
    else:
        os.unlink(path)


def _remove_quietly(path: bytes) -> Work[None]:
    try:
        yield from _remove_any(path)
    except OSError:
        pass


def _unlink_if_there(path: bytes) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _type_of(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _target_of(path: bytes) -> str | None:
    try:
        return display(os.readlink(path))
    except OSError:
        return None
