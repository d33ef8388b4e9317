"""Watches: what happens to the files of a directory, by inotify(7).

Names are relative to the watched directory; ``""`` is the directory itself.  The event ``write`` of ``""``
says that events were lost (too many at once, or too many directories): list the directory anew.
"""

import ctypes
import errno
import fcntl
import os
import stat
import struct
import sys
import termios
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cellfork.guest.files import TEMPORARY
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop
from cellfork.guest.paths import display, os_errors, resolve
from cellfork.guest.services import Handler, Result, Turns, Work, answering, flag, number
from cellfork.model.errors import Conflict, InvalidRequest, LimitExceeded, NotFound

MAX_DIRECTORIES = 8192
"""Directories that are watched at the same time, by all watches together."""
MAX_WATCHES = 64
MAX_REPORTED = 10_000
"""Entries of one new directory that are reported; where there are more, events count as lost."""
MAX_REMEMBERED = 100_000
"""Names that a listing told and that an event may tell again."""
READ_SIZE = 64 * 1024

NETWORK_KINDS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse"})

IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x01000000
IN_DONT_FOLLOW = 0x02000000
IN_EXCL_UNLINK = 0x04000000
IN_ISDIR = 0x40000000

_WANTED = (
    IN_MODIFY
    | IN_ATTRIB
    | IN_MOVED_FROM
    | IN_MOVED_TO
    | IN_CREATE
    | IN_DELETE
    | IN_DELETE_SELF
    | IN_MOVE_SELF
    | IN_ONLYDIR
    | IN_EXCL_UNLINK
)
_KINDS: Mapping[int, str] = {
    IN_CREATE: "create",
    IN_MOVED_TO: "create",
    IN_MODIFY: "write",
    IN_DELETE: "remove",
    IN_MOVED_FROM: "rename",
    IN_ATTRIB: "chmod",
}
_KINDS_OF_ROOT: Mapping[int, str] = {IN_DELETE_SELF: "remove", IN_MOVE_SELF: "rename"}
_PREFIX = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Watches:
    """Watches directories and reports what happens in them.  Relative paths start at ``home``."""

    def __init__(self, loop: Loop, link: HostLink, *, home: str) -> None:
        self._loop = loop
        self._link = link
        self._home = os.fsencode(home)
        self._turns = Turns(loop)
        self._budget = _Budget()
        self._watches: dict[int, _Watch] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by the names of their operations."""
        return {"watch.start": self._start, "watch.flush": self._flush, "watch.stop": self._stop}

    def close(self) -> None:
        """End every watch."""
        self.forget()
        self._turns.close()

    def forget(self) -> None:
        """Do the same, and be ready for others: whoever asked is gone."""
        self._turns.forget()
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _start(self, header: dict[str, Any], body: bytes) -> None:
        watch_number = number(header, "watch")
        if watch_number in self._watches:
            raise Conflict(f"watch {watch_number} exists already")
        if len(self._watches) >= MAX_WATCHES:
            raise LimitExceeded(f"{MAX_WATCHES} watches are there already")
        path = resolve(header.get("path"), self._home)
        if flag(header, "local"):
            _check_local(path)
        watch = _Watch(
            watch_number, path, flag(header, "recursive"), self._loop, self._link, self._turns, self._budget
        )
        self._watches[watch_number] = watch
        self._turns.start(answering(self._link, header["id"], self._begin(watch)))

    def _begin(self, watch: "_Watch") -> Work[Result]:
        try:
            with os_errors(watch.root):
                yield from watch.begin()
        except BaseException:
            self._watches.pop(watch.number, None)
            watch.close()
            raise
        return {}

    def _flush(self, header: dict[str, Any], body: bytes) -> None:
        """Report everything that has happened up to now, then answer."""
        watch = self._watches.get(number(header, "watch"))
        if watch is None:
            raise NotFound(f"there is no watch {header['watch']}")
        self._turns.start(answering(self._link, header["id"], watch.flush()))

    def _stop(self, header: dict[str, Any], body: bytes) -> Result:
        watch_number = number(header, "watch")
        watch = self._watches.pop(watch_number, None)
        if watch is None:
            raise NotFound(f"there is no watch {watch_number}")
        watch.close()
        return {}


@dataclass(slots=True)
class _Budget:
    """Directories that may still be watched."""

    left: int = MAX_DIRECTORIES


class _Watch:
    """One watched directory with, where ``recursive``, those below it: an inotify descriptor of its own.

    A directory that appears is watched first and listed then, so nothing in it is missed; what both the
    listing and an event tell is reported once.
    """

    def __init__(
        self,
        number: int,
        root: bytes,
        recursive: bool,
        loop: Loop,
        link: HostLink,
        turns: Turns,
        budget: _Budget,
    ) -> None:
        self.number = number
        self.root = root
        self._recursive = recursive
        self._loop = loop
        self._link = link
        self._turns = turns
        self._budget = budget
        with os_errors(root):
            self._fd = _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._names: dict[int, bytes] = {}
        self._descriptors: dict[bytes, int] = {}
        self._unlisted: dict[bytes, None] = {}
        self._listed: set[bytes] = set()
        self._hidden_move = 0
        self._hidden_replaces = False
        self._closed = False

    def begin(self) -> Work[None]:
        """Watch the directory, then report from now on.  Raises ``OSError`` or :class:`LimitExceeded`."""
        self._add(b"")
        if self._recursive:
            unlisted = [b""]
            while unlisted and not self._closed:
                for name, status in self._entries(unlisted.pop()):
                    if stat.S_ISDIR(status.st_mode) and self._add_if_there(name):
                        unlisted.append(name)
                yield
        if self._closed:
            raise NotFound(f"watch {self.number} was stopped")
        self._loop.watch(self._fd, self._readable)

    def flush(self) -> Work[Result]:
        """Report what waits to be read.  What happens meanwhile is not waited for: somebody may write on and on."""
        waiting = 0 if self._closed else self._pending_bytes()
        for _ in range(MAX_DIRECTORIES):
            if self._closed or not (self._unlisted or waiting > 0):
                break
            waiting -= self._read()
            yield
        return {}

    def close(self) -> None:
        """Stop watching."""
        if self._closed:
            return
        self._closed = True
        self._loop.unwatch(self._fd)
        os.close(self._fd)
        self._budget.left += len(self._names)
        self._names.clear()
        self._unlisted.clear()

    # Which directories are watched

    def _add(self, name: bytes) -> None:
        if self._budget.left <= 0:
            raise LimitExceeded(f"{MAX_DIRECTORIES} directories are watched already")
        path = os.path.join(self.root, name) if name else self.root
        flags = _WANTED | (IN_DONT_FOLLOW if name else 0)
        try:
            descriptor = _check(_libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(flags)))
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise LimitExceeded("the kernel's limit of watched directories is reached") from error
            raise
        if descriptor not in self._names:
            self._budget.left -= 1
        else:
            self._descriptors.pop(self._names[descriptor], None)
        self._names[descriptor] = name
        self._descriptors[name] = descriptor

    def _add_if_there(self, name: bytes) -> bool:
        try:
            self._add(name)
        except OSError:
            return False
        return True

    def _forget(self, descriptor: int) -> None:
        name = self._names.pop(descriptor, None)
        if name is not None:
            self._budget.left += 1
            self._descriptors.pop(name, None)

    def _forget_tree(self, name: bytes) -> None:
        """Stop watching a directory that has moved away; under its new name it is a new one."""
        below = name + b"/"
        for known in [known for known in self._descriptors if known == name or known.startswith(below)]:
            descriptor = self._descriptors[known]
            _libc.inotify_rm_watch(self._fd, descriptor)
            self._forget(descriptor)

    def _entries(self, name: bytes) -> list[tuple[bytes, os.stat_result]]:
        found: list[tuple[bytes, os.stat_result]] = []
        try:
            with os.scandir(os.path.join(self.root, name)) as entries:
                found.extend(
                    (os.path.join(name, entry.name), entry.stat(follow_symlinks=False))
                    for entry in entries
                    if not TEMPORARY.fullmatch(entry.name)
                )
        except OSError:  # gone, or not readable: then there is nothing to tell
            pass
        return found

    # Events

    def _readable(self) -> None:
        self._read()

    def _read(self) -> int:
        """Report what one read gives; return its size, which is more than there can be where nothing is left."""
        try:
            data = os.read(self._fd, READ_SIZE)
        except BlockingIOError:
            return sys.maxsize
        last: tuple[bytes, str] | None = None
        for descriptor, mask, cookie, name in _events_in(data):
            for event in self._events_of(descriptor, mask, cookie, name):
                if event != last:
                    self._report(*event)
                last = event
        if not self._pending_bytes():
            self._listed.clear()
        return len(data)

    def _events_of(self, descriptor: int, mask: int, cookie: int, name: bytes) -> Iterator[tuple[bytes, str]]:
        if mask & IN_IGNORED:
            self._forget(descriptor)
        elif mask & IN_Q_OVERFLOW:
            self._look_again()
            yield b"", "write"
        elif (directory := self._names.get(descriptor)) is None:
            return
        elif not name:
            yield from self._events_of_self(directory, mask)
        elif hidden := TEMPORARY.fullmatch(name):
            self._hidden_move, self._hidden_replaces = cookie, bool(hidden[1])
        else:
            yield from self._events_of_entry(os.path.join(directory, name), mask, cookie)

    @staticmethod
    def _events_of_self(directory: bytes, mask: int) -> Iterator[tuple[bytes, str]]:
        """A directory below is told about by the one above it."""
        if not directory:
            yield from ((b"", kind) for bit, kind in _KINDS_OF_ROOT.items() if mask & bit)

    def _events_of_entry(self, name: bytes, mask: int, cookie: int) -> Iterator[tuple[bytes, str]]:
        if self._recursive and mask & IN_ISDIR:
            self._follow_directory(name, mask)
        if mask & (IN_CREATE | IN_MOVED_TO) and name in self._listed:
            self._listed.discard(name)
            return
        if mask & (IN_DELETE | IN_MOVED_FROM):
            self._listed.discard(name)
        written = bool(mask & IN_MOVED_TO) and cookie == self._hidden_move  # by the host
        if not (written and self._hidden_replaces):
            yield from ((name, kind) for bit, kind in _KINDS.items() if mask & bit)
        if written:
            yield name, "chmod"
            yield name, "write"

    def _follow_directory(self, name: bytes, mask: int) -> None:
        if mask & IN_MOVED_FROM:
            self._forget_tree(name)
        elif mask & (IN_CREATE | IN_MOVED_TO) and name not in self._listed:
            self._discover(name)

    def _look_again(self) -> None:
        """Find directories that appeared while events were lost."""
        if self._recursive:
            for name in list(self._descriptors):
                self._discover(name)

    def _discover(self, name: bytes) -> None:
        """Watch a directory, then list it and those below it, step by step.

        Where directories appear faster than that goes, the rest counts as lost: memory has an end.
        """
        if len(self._unlisted) >= MAX_DIRECTORIES:
            self._report(b"", "write")
            return
        if not self._unlisted:
            self._turns.start(self._list_unlisted())
        self._unlisted[name] = None

    def _list_unlisted(self) -> Work[None]:
        while self._unlisted:
            name = next(iter(self._unlisted))
            self._list(name)
            del self._unlisted[name]
            if not self._pending_bytes():
                self._listed.clear()  # no event can tell again what the listing told
            yield

    def _pending_bytes(self) -> int:
        """Return how much there is to read, in bytes."""
        pending = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4))
        return int.from_bytes(pending, sys.byteorder)

    def _list(self, name: bytes) -> None:
        """Report what is in a directory that is new."""
        known = name in self._descriptors
        try:
            if not known and not self._add_if_there(name):
                return
        except LimitExceeded:
            self._report(b"", "write")
            return
        entries = self._entries(name)
        for entry, status in entries[:MAX_REPORTED]:
            is_directory = stat.S_ISDIR(status.st_mode)
            if is_directory and entry not in self._descriptors:
                self._unlisted[entry] = None
            if not known:
                self._report_found(entry, status)
        if len(entries) > MAX_REPORTED:
            self._report(b"", "write")

    def _report_found(self, name: bytes, status: os.stat_result) -> None:
        if len(self._listed) >= MAX_REMEMBERED:
            self._listed.clear()  # something may be told twice
        self._listed.add(name)
        self._report(name, "create")
        if stat.S_ISREG(status.st_mode) and status.st_size:
            self._report(name, "write")

    def _report(self, name: bytes, kind: str) -> None:
        self._link.send({"op": "watch.event", "watch": self.number, "name": display(name), "kind": kind})


def _check_local(path: bytes) -> None:
    """Refuse a directory on a file system of the network, which tells of changes here only."""
    with os_errors(path):
        device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _separator, source = line.partition(" - ")
            kind = source.partition(" ")[0]
            if fields.split(" ")[2] == wanted and kind.partition(".")[0] in NETWORK_KINDS:
                raise InvalidRequest(f"cannot watch path on network filesystem: {display(path)}")


def _events_in(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    position = 0
    while position < len(data):
        descriptor, mask, cookie, length = _PREFIX.unpack_from(data, position)
        position += _PREFIX.size
        yield descriptor, mask, cookie, data[position : position + length].rstrip(b"\0")
        position += length


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
