"""Archives: everything in a sandbox's writable places as one stream of bytes, and back.

The stream is a walk.  A record names one thing in the directory that was entered last, in one word that cannot be a path;
so nothing that an archive says can lead out of the place where it is unpacked, and trees may be as deep as they like.
Kept are names that are no text, modes, times, extended attributes, hard links, holes, pipes and sockets.

Record: ``kind (1 byte) · u32 size of the description · u32 size of the content``, a JSON object, raw bytes.  Names are
Latin-1 in it, which gives every byte a letter.

====  ===========================  ==================================================
kind  description                  content
====  ===========================  ==================================================
A     v                            (the first record)
D     n m t                        (enter the directory, made where it is not there)
U                                  (leave it)
F     n m t s [i]                  the first bytes of a regular file of ``s`` bytes
C     o                            more bytes of it, from offset ``o`` on
S     n t [i]                      target of a symbolic link
P, K  n m t [i]                    (a pipe, a socket)
L     n i                          (another name of thing number ``i``)
X     n                            value of an extended attribute of what came before
E     count                        (the last record)
====  ===========================  ==================================================
"""

import contextlib
import errno
import json
import os
import signal
import stat
import struct
from collections.abc import Generator, Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple

from cellfork.guest import trees
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.guest.paths import os_errors
from cellfork.guest.services import Handler, Result, Turns, Work, answering, flag, number
from cellfork.model.errors import Conflict, InvalidRequest, Unsupported
from cellfork.wire.frames import CHUNK

VERSION: Final = 1
RECORD: Final = struct.Struct(">cII")
MAX_DESCRIPTION = 8 * 1024
MAX_CONTENT = CHUNK
BLOCK = CHUNK - 64 * 1024
"""Bytes of records that are sent together, roughly."""
STEP = 256
"""Things that are packed in one step."""
USER = "user."
"""How the names of the extended attributes begin that belong to programs; the others are the kernel's."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SPECIAL: Mapping[int, bytes] = {stat.S_IFIFO: b"P", stat.S_IFSOCK: b"K"}

Description = dict[str, Any]
Identity = tuple[int, int]


class Archives:
    """Packs a directory, and unpacks into it.

    ``kept`` are names directly in it that are no part of any archive, ``first`` those of directories that a sandbox begins
    with, in whose place comes what an archive has.
    """

    def __init__(
        self,
        loop: Loop,
        link: HostLink,
        *,
        place: str | None,
        kept: frozenset[str] = frozenset(),
        first: frozenset[str] = frozenset(),
    ) -> None:
        self._loop = loop
        self._link = link
        self._turns: Turns | None = None
        self._place = place
        self._kept = kept
        self._first = first
        self._packing: Iterator[bytes] = iter(())
        self._sent = 0
        self._unpacking: Unpacker | None = None
        self._taken = 0

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by the names of their operations."""
        return {
            "archive.read": self._read,
            "archive.write": self._write,
            "archive.close": self._close,
        }

    def forget(self) -> None:
        """Give up what is being packed or unpacked: whoever asked is gone."""
        self._close({}, b"")

    def _read(self, header: dict[str, Any], body: bytes) -> None:
        """Send the next bytes; from offset 0 on a new archive, before which ``alone`` ends every other process."""
        place = self._own_place()
        offset, length = number(header, "offset"), number(header, "length", 1)
        if offset == 0:
            if flag(header, "alone"):
                _kill_all_others()
            self._packing, self._sent = pack(place, self._kept), 0
        if offset != self._sent:
            raise InvalidRequest(f"the archive goes on at {self._sent}, not at {offset}")
        self._answer(header, self._send(header["id"], length, place))

    def _send(self, request: int, length: int, place: bytes) -> Work[Result]:
        sent = 0
        with os_errors(place):
            while sent < length:
                block = next(self._packing, None)
                if block is None:
                    return {"size": sent, "end": True}
                if block:
                    self._link.send({"op": "chunk", "id": request}, block)
                    sent += len(block)
                    self._sent += len(block)
                yield
        return {"size": sent, "end": False}

    def _write(self, header: dict[str, Any], body: bytes) -> None:
        """Unpack the next bytes; from offset 0 on a new archive, over what the sandbox began with."""
        place, offset = self._own_place(), number(header, "offset")
        end = flag(header, "end")
        if offset == 0:
            self._unpacking, self._taken = Unpacker(place, self._kept), 0
        if self._unpacking is None or offset != self._taken:
            raise InvalidRequest(f"the archive goes on at {self._taken}, not at {offset}")
        self._answer(header, self._take(self._unpacking, body, place, end=end))

    def _take(self, unpacker: "Unpacker", body: bytes, place: bytes, *, end: bool) -> Work[Result]:
        with os_errors(place):
            if not self._taken:
                yield from self._make_room(place)
            yield from unpacker.feed(body)
        self._taken += len(body)
        if not end:
            return {}
        unpacker.finish()
        with os_errors(place):
            self._fill_up(place)
        return {"count": unpacker.count}

    def _fill_up(self, place: bytes) -> None:
        """Make those directories that a sandbox begins with and that the archive lacks: a volume was there."""
        for name in self._first:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(place, os.fsencode(name)), 0o755)

    def _make_room(self, place: bytes) -> Work[None]:
        """Remove what the sandbox began with."""
        for name in self._first:
            path = os.path.join(place, os.fsencode(name))
            if os.path.isdir(path) and not os.path.islink(path):
                yield from trees.remove(path)

    def _close(self, header: dict[str, Any], body: bytes) -> Result:
        """Give back what a reading or writing holds that has ended or is not to go on."""
        self._packing = iter(())
        if self._unpacking is not None:
            self._unpacking.close()
            self._unpacking = None
        if self._turns is not None:
            self._turns.close()
            self._turns = None
        return {}

    def _answer(self, header: dict[str, Any], work: Work[Result]) -> None:
        if self._turns is None:  # its descriptor is opened when it is needed: hardly ever
            self._turns = Turns(self._loop)
        self._turns.start(answering(self._link, header["id"], work))

    def _own_place(self) -> bytes:
        if self._place is None:
            raise Unsupported("without isolation a sandbox has no places of its own that could be kept")
        return os.fsencode(self._place)


def _kill_all_others() -> None:
    """Kill every other process of this pid namespace, which has to be the sandbox's own."""
    if os.getpid() != 1:
        raise Unsupported("only what is pid 1 can tell which processes are the sandbox's")
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return  # there is none


# ----------------------------------------------------------------------------------------------- packing


class _Above(NamedTuple):
    """A directory on the way down: what it is, how it was to be found, what is left to enter in it."""

    identity: Identity
    mode: int | None
    directories: list[str]


def pack(place: bytes, kept: frozenset[str] = frozenset()) -> Generator[bytes, None, None]:
    """Yield the archive of a directory in blocks of about :data:`BLOCK` bytes, and nothing now and then to let others run.

    Nobody may change the files meanwhile.  What their owner may not read is made readable for that moment.  Raises
    ``OSError``, :class:`Conflict` where somebody does change them.
    """
    packer = _Packer(place, kept)
    try:
        buffer = bytearray()
        for record in packer.run():
            buffer += record
            if len(buffer) >= BLOCK or not record:
                yield bytes(buffer)
                buffer.clear()
        yield bytes(buffer)
    finally:
        packer.close()


class _Packer:
    """One walk.  Only the directory where it is at is open; the way up is ``..``, checked to be where it came from."""

    def __init__(self, place: bytes, kept: frozenset[str]) -> None:
        self._fd = os.open(place, _DIRECTORY)
        self._device, self._owner = os.fstat(self._fd).st_dev, os.geteuid()
        self._mode: int | None = None
        self._levels: list[_Above] = []
        self._kept = kept
        self._links: dict[Identity, int] = {}
        self._count = 0

    def run(self) -> Generator[bytes, None, None]:
        yield _record(b"A", {"v": VERSION})
        directories = yield from self._things()
        while True:
            if directories:
                name = directories.pop()
                self._levels.append(_Above(_identity(self._fd), self._mode, directories))
                yield from self._enter(name)
                directories = yield from self._things()
            elif self._levels:
                directories = self._leave()
                yield _record(b"U", {})
            else:
                break
        yield _record(b"E", {"count": self._count})

    def close(self) -> None:
        """Put every mode back, wherever the walk is."""
        try:
            while self._levels:
                self._leave()
        except (OSError, Conflict):
            self._levels.clear()
        os.close(self._fd)

    def _things(self) -> Generator[bytes, None, list[str]]:
        """Pack what is no directory, return the names of those that are."""
        directories = []
        names = os.listdir(self._fd)
        if not self._levels:
            names = [name for name in names if name not in self._kept]
        for name in sorted(names):
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if status.st_dev != self._device or status.st_uid != self._owner:
                continue  # it is the template's, put there for every sandbox
            if stat.S_ISDIR(status.st_mode):
                directories.append(name)
            else:
                yield from self._thing(name, status)
            self._count += 1
            if self._count % STEP == 0:
                yield b""
        return directories[::-1]

    def _thing(self, name: str, status: os.stat_result) -> Generator[bytes, None, None]:
        description = _described(name, status)
        if status.st_nlink > 1:
            identity = status.st_dev, status.st_ino
            if identity in self._links:
                yield _record(b"L", {"n": description["n"], "i": self._links[identity]})
                return
            description["i"] = self._links[identity] = len(self._links)
        if stat.S_ISREG(status.st_mode):
            yield from self._file(name, status, description)
        elif stat.S_ISLNK(status.st_mode):
            del description["m"]
            yield _record(b"S", description, os.fsencode(os.readlink(name, dir_fd=self._fd)))
        elif stat.S_IFMT(status.st_mode) in _SPECIAL:
            yield _record(_SPECIAL[stat.S_IFMT(status.st_mode)], description)

    def _file(
        self, name: str, status: os.stat_result, description: Description
    ) -> Generator[bytes, None, None]:
        fd = self._open(name, status.st_mode, stat.S_IRUSR, _READ)
        try:
            if _identity(fd) != (status.st_dev, status.st_ino):
                raise Conflict("files were exchanged while they were packed")
            yield from _content(fd, status, description)
            yield from _attributes(fd)
        finally:
            if not status.st_mode & stat.S_IRUSR:
                os.fchmod(fd, stat.S_IMODE(status.st_mode))
            os.close(fd)

    def _open(self, name: str, mode: int, needed: int, flags: int) -> int:
        if mode & needed != needed:
            os.chmod(name, stat.S_IMODE(mode) | needed, dir_fd=self._fd)
        return os.open(name, flags, dir_fd=self._fd)

    def _enter(self, name: str) -> Generator[bytes, None, None]:
        status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        needed = stat.S_IRWXU & ~stat.S_IWUSR
        fd = self._open(name, status.st_mode, needed, _DIRECTORY)
        os.close(self._fd)
        self._fd = fd
        self._mode = stat.S_IMODE(status.st_mode) if status.st_mode & needed != needed else None
        if _identity(fd) != (status.st_dev, status.st_ino):
            raise Conflict("directories were exchanged while they were packed")
        yield _record(b"D", _described(name, status))
        yield from _attributes(fd)

    def _leave(self) -> list[str]:
        above = self._levels.pop()
        left, mode = self._fd, self._mode
        self._fd = os.open("..", _DIRECTORY, dir_fd=left)
        self._mode = above.mode
        if mode is not None:
            os.fchmod(left, mode)
        os.close(left)
        if _identity(self._fd) != above.identity:
            raise Conflict("directories were moved while they were packed")
        return above.directories


def _described(name: str, status: os.stat_result) -> Description:
    return {
        "n": os.fsencode(name).decode("latin-1"),
        "m": stat.S_IMODE(status.st_mode),
        "t": status.st_mtime_ns,
    }


def _content(fd: int, status: os.stat_result, description: Description) -> Generator[bytes, None, None]:
    """Pack a file; what is a hole in it, is not written."""
    size = status.st_size
    whole = size <= CHUNK // 4 and status.st_blocks * 512 >= size
    first = _read(fd, 0, size) if whole else b""
    yield _record(b"F", {**description, "s": size}, first)
    if whole:
        return
    at = 0
    while (begin := _seek(fd, at, os.SEEK_DATA, size)) < size:
        end = min(size, _seek(fd, begin, os.SEEK_HOLE, size))
        for at in range(begin, end, CHUNK):
            yield _record(b"C", {"o": at}, _read(fd, at, min(CHUNK, end - at)))
        at = end


def _read(fd: int, offset: int, size: int) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise Conflict("a file was shortened while it was packed")
    return data


def _seek(fd: int, at: int, what: int, size: int) -> int:
    try:
        return os.lseek(fd, at, what)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


def _attributes(fd: int) -> Generator[bytes, None, None]:
    try:
        names = os.listxattr(fd)
    except OSError:
        return  # this file system has none
    for name in names:
        if name.startswith(USER):
            yield _record(b"X", {"n": os.fsencode(name).decode("latin-1")}, os.getxattr(fd, name))


def _record(kind: bytes, description: Description, content: bytes = b"") -> bytes:
    text = json.dumps(description, separators=(",", ":")).encode("ascii")
    return RECORD.pack(kind, len(text), len(content)) + text + content


# --------------------------------------------------------------------------------------------- unpacking


class _Node:
    """A directory of the tree that is being unpacked, as far as hard links need it: name and the one above."""

    __slots__ = ("above", "name")

    def __init__(self, name: str, above: "_Node | None") -> None:
        self.name = name
        self.above = above

    def path(self) -> list[str]:
        names: list[str] = []
        node: _Node | None = self
        while node is not None and node.above is not None:
            names.append(node.name)
            node = node.above
        return names[::-1]


class Unpacker:
    """Makes what an archive says, however its bytes are cut.

    What is there already gives way, but for directories, which are entered.  Raises :class:`InvalidRequest` where the
    archive is none, and ``OSError``.
    """

    def __init__(self, place: bytes, kept: frozenset[str] = frozenset()) -> None:
        self._place = place
        self._kept = kept
        self._fd = os.open(place, _DIRECTORY)
        self._node = _Node("", None)
        self._times: list[tuple[int, int]] = []
        self._things: dict[int, tuple[_Node, str]] = {}
        self._file: BinaryIO | None = None
        self._file_mode = self._file_time = 0
        self._skipping = False
        self._buffer = bytearray()
        self._begun = self._ended = False
        self.count = 0

    def feed(self, data: bytes) -> Work[None]:
        """Take bytes; yields now and then."""
        self._buffer += data
        done = 0
        try:
            position = 0
            while len(self._buffer) - position >= RECORD.size:
                kind, size, more = RECORD.unpack_from(self._buffer, position)
                if size > MAX_DESCRIPTION or more > MAX_CONTENT:
                    raise InvalidRequest("the archive is malformed: a record is too large")
                start = position + RECORD.size
                if len(self._buffer) < start + size + more:
                    break
                description = _parse(self._buffer[start : start + size])
                content = bytes(self._buffer[start + size : start + size + more])
                position = start + size + more
                yield from self._record(kind, description, content)
                done += 1
                if done % STEP == 0:
                    yield
        finally:
            del self._buffer[:position]

    def finish(self) -> None:
        """Raise :class:`InvalidRequest` unless the archive is complete."""
        if not self._ended or self._buffer:
            raise InvalidRequest("the archive is incomplete")

    def close(self) -> None:
        """Give the descriptors back.  Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _record(self, kind: bytes, description: Description, content: bytes) -> Work[None]:
        if self._ended or (kind == b"A") == self._begun:
            raise InvalidRequest("the archive is malformed: a record is out of order")
        self._begun = True
        match kind:
            case b"A":
                if description.get("v") != VERSION:
                    raise InvalidRequest("the archive was made by another version of cellfork")
            case b"C":
                self._more(_number(description, "o"), content)
            case b"X":
                self._attribute(_name(description), content)
            case _:
                self._close_file()
                yield from self._thing(kind, description, content)

    def _thing(self, kind: bytes, description: Description, content: bytes) -> Work[None]:
        match kind:
            case b"U":
                self._leave()
                return
            case b"E":
                self._end()
                return
        name = _name(description)
        if name in {".", ".."} or "/" in name or "\0" in name or not name:
            raise InvalidRequest("the archive is malformed: a name is a path")
        self._skipping = kind != b"D" and self._node.above is None and name in self._kept
        if self._skipping:
            return
        self.count += 1
        if kind == b"D":
            yield from self._enter(name, description)
            return
        yield from self._make_way(name)
        self._make(kind, name, description, content)
        if "i" in description and kind != b"L":
            self._things[_number(description, "i")] = self._node, name

    def _make(self, kind: bytes, name: str, description: Description, content: bytes) -> None:
        match kind:
            case b"F":
                self._begin_file(name, description, content)
            case b"S":
                os.symlink(content, os.fsencode(name), dir_fd=self._fd)
                self._set_time(name, description)
            case b"P" | b"K":
                type_ = stat.S_IFIFO if kind == b"P" else stat.S_IFSOCK
                os.mknod(name, type_ | 0o600, dir_fd=self._fd)
                os.chmod(name, _number(description, "m") & 0o7777, dir_fd=self._fd)
                self._set_time(name, description)
            case b"L":
                self._link(name, _number(description, "i"))
            case _:
                raise InvalidRequest("the archive is malformed: a record of an unknown kind")

    def _begin_file(self, name: str, description: Description, content: bytes) -> None:
        fd = os.open(name, _NEW, 0o600, dir_fd=self._fd)
        self._file = open(fd, "r+b", buffering=0)  # noqa: SIM115 - closed by the record after its last one
        self._file_mode = _number(description, "m") & 0o7777
        self._file_time = _number(description, "t", least=-(2**63))
        os.ftruncate(fd, _number(description, "s"))
        self._more(0, content)

    def _more(self, offset: int, content: bytes) -> None:
        if self._skipping:
            return
        if self._file is None:
            raise InvalidRequest("the archive is malformed: content of no file")
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._file.fileno(), rest, offset)
            rest, offset = rest[written:], offset + written

    def _attribute(self, name: str, value: bytes) -> None:
        """Give an attribute to the file that is open, or else to the directory: only those have any."""
        if self._skipping:
            return
        if not name.startswith(USER):
            raise InvalidRequest("the archive is malformed: an attribute that is the kernel's")
        os.setxattr(self._fd if self._file is None else self._file.fileno(), name, value)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with file:
                os.fchmod(file.fileno(), self._file_mode)
                os.utime(file.fileno(), ns=(self._file_time, self._file_time))

    def _enter(self, name: str, description: Description) -> Work[None]:
        if not self._is_directory(name):
            yield from self._make_way(name)
            os.mkdir(name, 0o700, dir_fd=self._fd)
        fd = os.open(name, _DIRECTORY, dir_fd=self._fd)
        os.close(self._fd)
        self._fd = fd
        os.fchmod(fd, 0o700)
        self._node = _Node(name, self._node)
        self._times.append((_number(description, "m") & 0o7777, _number(description, "t", least=-(2**63))))

    def _leave(self) -> None:
        if self._node.above is None:
            raise InvalidRequest("the archive is malformed: it leaves more directories than it enters")
        mode, time = self._times.pop()
        left = self._fd
        self._fd = os.open("..", _DIRECTORY, dir_fd=left)
        os.utime(left, ns=(time, time))
        os.fchmod(left, mode)
        os.close(left)
        self._node = self._node.above

    def _end(self) -> None:
        if self._node.above is not None:
            raise InvalidRequest("the archive is malformed: it ends inside a directory")
        self._ended = True

    def _link(self, name: str, number: int) -> None:
        """Make another name of a thing: from the top down to it, one directory after the other."""
        if number not in self._things:
            raise InvalidRequest("the archive is malformed: a link to nothing")
        node, first = self._things[number]
        fd = os.open(self._place, _DIRECTORY)
        try:
            for part in node.path():
                below = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
            os.link(first, name, src_dir_fd=fd, dst_dir_fd=self._fd, follow_symlinks=False)
        finally:
            os.close(fd)

    def _set_time(self, name: str, description: Description) -> None:
        time = _number(description, "t", least=-(2**63))
        os.utime(name, ns=(time, time), dir_fd=self._fd, follow_symlinks=False)

    def _is_directory(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def _make_way(self, name: str) -> Work[None]:
        """Remove what has the name."""
        if self._is_directory(name):
            yield from trees.remove(os.fsencode(f"/proc/self/fd/{self._fd}/{name}"))
            return
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass


def _parse(text: bytearray) -> Description:
    try:
        description = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError):
        description = None
    if not isinstance(description, dict):
        raise InvalidRequest("the archive is malformed: a description is no object")
    return description


def _name(description: Description) -> str:
    name = description.get("n")
    try:
        if isinstance(name, str):
            return os.fsdecode(name.encode("latin-1"))
    except UnicodeEncodeError:
        pass
    raise InvalidRequest("the archive is malformed: a name is missing")


def _number(description: Description, name: str, least: int = 0) -> int:
    value = description.get(name)
    if type(value) is not int or not least <= value < 2**63:
        raise InvalidRequest("the archive is malformed: a number is missing")
    return value


def _identity(fd: int) -> Identity:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
