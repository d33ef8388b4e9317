"""Files: every file operation of the host, carried out inside the sandbox as the sandbox's user."""

import errno
import grp
import json
import os
import pwd
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cellfork.guest import trees
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.guest.paths import display, encode, is_utf8, os_errors, resolve
from cellfork.guest.services import Handler, Result, Turns, Work, answering, flag, number
from cellfork.model.errors import (
    Conflict,
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

TEMPORARY = re.compile(rb"\.cellfork-[0-9a-f]{16}(~?)")
"""Names of files that are being written; those with a tilde are to replace a file that was there."""
MAX_ATTRIBUTES = 4096
"""Bytes of the extended attributes of one file that an entry shows, names and values together."""


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
            "file.search": self._search,
            "file.stat": self._stat,
            "file.change": self._change,
            "file.move": self._move,
            "file.remove": self._remove,
            "file.mkdir": self._mkdir,
        }

    def close(self) -> None:
        """Drop every file that is being written and end the work under way."""
        self.forget()
        self._turns.close()

    def forget(self) -> None:
        """Do the same, and be ready for others: whoever asked is gone."""
        for handle in list(self._writing):
            try:
                self._drop(handle)
            except OSError:  # its directory is not what it was, and not ours to repair
                continue
        self._turns.forget()

    # Reading

    def _read(self, header: dict[str, Any], body: bytes) -> None:
        path = resolve(header.get("path"), self._home)
        offset, length = number(header, "offset"), number(header, "length", -1)
        with os_errors(path):
            fd = _open_regular(path, os.O_RDONLY)
        self._answer(header, self._send_file(header, fd, path, offset, length))

    def _send_file(
        self, header: dict[str, Any], fd: int, path: bytes, offset: int, length: int
    ) -> Work[Result]:
        """Send up to ``length`` bytes: no more than the file had at first, so that one that grows has an end."""
        sent, request = 0, header["id"]
        try:
            with os_errors(path):
                status = os.fstat(fd)
                _check_same(path, status, header.get("file"))
                rest = max(0, status.st_size - offset) if status.st_size else MAX_UNSIZED
                if length >= 0:
                    rest = min(rest, length)
                os.lseek(fd, offset if rest else 0, os.SEEK_SET)
                while sent < rest and (piece := os.read(fd, min(CHUNK, rest - sent))):
                    self._link.send({"op": "chunk", "id": request}, piece)
                    sent += len(piece)
                    yield
        finally:
            os.close(fd)
        return {"size": sent, "total": status.st_size, "mtime": status.st_mtime_ns, "file": _name_of(status)}

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
                _set_attributes(writing.fd, _texts(header.get("attributes", {})))
                if writing.path != writing.target:
                    os.rename(writing.path, writing.target)
                    writing.path = writing.target
                return self._entry(writing.target, _prefix(header))
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
            return self._entry(path, _prefix(header))

    def _list(self, header: dict[str, Any], body: bytes) -> None:
        path = resolve(header.get("path"), self._home)
        depth = number(header, "depth", 1)
        with os_errors(path):
            os.scandir(path).close()
        work = trees.listing(path, depth, MAX_ENTRIES)
        self._answer(header, self._send_list(header["id"], path, work, _prefix(header)))

    def _search(self, header: dict[str, Any], body: bytes) -> None:
        path = resolve(header.get("path"), self._home)
        matches = _matcher(header.get("pattern"))
        with os_errors(path):
            os.stat(path)
        work = trees.search(path, matches, MAX_ENTRIES)
        self._answer(header, self._send_list(header["id"], path, work, _prefix(header)))

    def _send_list(self, request: int, path: bytes, work: Work[trees.Listing], prefix: str) -> Work[Result]:
        """Send the entries as JSON, one in a line: more than a header can hold."""
        with os_errors(path):
            found, truncated = yield from work
        room = MAX_LISTING
        for start in range(0, len(found), PAGE):
            entries = (self._describe(*below, prefix) for below in found[start : start + PAGE])
            lines = [json.dumps(entry) + "\n" for entry in entries]
            count = _fitting(lines, room)
            page = "".join(lines[:count])
            self._link.send({"op": "chunk", "id": request}, page.encode("ascii"))
            if count < len(lines):
                return {"truncated": True}
            room -= len(page)
            yield
        return {"truncated": truncated}

    def _entry(self, path: bytes, prefix: str = "") -> Result:
        return self._describe(path, os.lstat(path), prefix)

    def _describe(self, path: bytes, status: os.stat_result, prefix: str = "") -> Result:
        """Describe a file; with ``prefix`` also its attributes of such names, its kind, and where a link leads in the end."""
        entry = self._describe_itself(path, status)
        if prefix:
            entry |= {"attributes": _attributes(path, prefix), "format": stat.S_IFMT(status.st_mode)}
            entry["ctime"] = status.st_ctime_ns
            if stat.S_ISLNK(status.st_mode):
                entry |= _resolved(path)
        return entry

    def _describe_itself(self, path: bytes, status: os.stat_result) -> Result:
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

    def _change(self, header: dict[str, Any], body: bytes) -> Result:
        """Set the mode and attributes of a file (``null``: take one away); a symbolic link is followed."""
        path = resolve(header.get("path"), self._home)
        mode = None if header.get("mode") is None else number(header, "mode", 0, 0o7777)
        attributes = header.get("attributes", {})
        if not isinstance(attributes, dict):
            raise InvalidRequest("attributes is an object of text")
        changes = {
            encode(name): None if value is None else encode(value) for name, value in attributes.items()
        }
        with os_errors(path):
            before = stat.S_IMODE(os.stat(path).st_mode)
            if changes and not before & stat.S_IWUSR:
                os.chmod(path, before | stat.S_IWUSR)  # attributes need it
            for name, value in changes.items():
                _change_attribute(path, name, value)
            wanted = before if mode is None else mode
            if wanted != stat.S_IMODE(os.stat(path).st_mode):
                os.chmod(path, wanted)
            return self._entry(path, _prefix(header))

    def _move(self, header: dict[str, Any], body: bytes) -> None:
        source = _changeable(resolve(header.get("source"), self._home))
        destination = _changeable(resolve(header.get("destination"), self._home))
        self._answer(header, self._move_there(source, destination, _prefix(header)))

    def _move_there(self, source: bytes, destination: bytes, prefix: str) -> Work[Result]:
        with os_errors(source):
            if (yield from _is_inside(destination, source)):
                raise InvalidRequest(f"'{display(source)}' cannot be moved into itself")
        with os_errors(destination):
            _make_parents(destination)
            if _rename(source, destination):
                return self._entry(destination, prefix)
        return (yield from self._move_across(source, destination, prefix))

    def _move_across(self, source: bytes, destination: bytes, prefix: str) -> Work[Result]:
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
            return self._entry(destination, prefix)

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
    replaced = b"~"
    try:
        status = os.lstat(target)
    except FileNotFoundError:
        replaced = b""
        mode = NEW_FILE_MODE if mode is None else mode
    else:
        _check_regular(target, status)
        if not os.access(target, os.W_OK):
            raise PathNotPermitted(f"'{display(target)}' is not writable")
        mode = status.st_mode & 0o777 if mode is None else mode
    temporary = _temporary_beside(target) + replaced
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


def _check_same(path: bytes, status: os.stat_result, name: object) -> None:
    """Refuse to go on reading a file that is not the one which reading began with."""
    if name is not None and name != _name_of(status):
        raise Conflict(f"'{display(path)}' was replaced while it was read")


def _name_of(status: os.stat_result) -> str:
    """Return what tells a file from another one that takes its place."""
    return f"{status.st_dev}:{status.st_ino}"


def _prefix(header: dict[str, Any]) -> str:
    prefix = header.get("prefix", "")
    if not isinstance(prefix, str):
        raise InvalidRequest("prefix is how the names of extended attributes begin")
    return prefix


def _texts(attributes: object) -> dict[bytes, bytes]:
    if not isinstance(attributes, dict):
        raise InvalidRequest("attributes is an object of text")
    return {encode(name): encode(value) for name, value in attributes.items()}


def _change_attribute(path: bytes, name: bytes, value: bytes | None) -> None:
    try:
        if value is not None:
            os.setxattr(path, name, value)
        else:
            os.removexattr(path, name)
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.EOPNOTSUPP}:
            raise


def _matcher(pattern: object) -> Callable[[bytes], object]:
    """Return what tells whether a name is what is searched for."""
    text = encode(pattern).decode("utf-8")
    try:
        whole = re.compile(text, re.DOTALL).fullmatch
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"the pattern cannot be used: {error}") from error
    return lambda name: whole(name.decode("utf-8", "surrogateescape"))


def _set_attributes(fd: int, attributes: Mapping[bytes, bytes]) -> None:
    """Set extended attributes; where the file system has none, there are none afterwards, and the entry says so."""
    for name, value in attributes.items():
        try:
            os.setxattr(fd, name, value)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise


def _attributes(path: bytes, prefix: str) -> dict[str, str]:
    """Return the extended attributes whose names begin with ``prefix``, without it; what is no text is passed over."""
    found: dict[str, str] = {}
    room = MAX_ATTRIBUTES
    try:
        for name in os.listxattr(path):
            if name.startswith(prefix):
                value = os.getxattr(path, name)
                room -= len(name) + len(value)
                if room < 0:
                    break
                _add_text(found, name[len(prefix) :], value)
    except OSError:  # gone, or a file system without them: then there are none
        pass
    return found


def _add_text(found: dict[str, str], name: str, value: bytes) -> None:
    try:
        name.encode("utf-8")
        found[name] = value.decode("utf-8")
    except UnicodeError:
        pass


def _resolved(path: bytes) -> Result:
    """Return where a symbolic link leads in the end, and the mode of that; nothing where it leads nowhere."""
    try:
        target = os.path.realpath(path, strict=True)
        return {"resolved": display(target), "resolved_mode": os.stat(target).st_mode}
    except OSError:
        return {}


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
