"""The state directory: where what outlives a server is found again by the next one.

::

    lock             held by the server that uses the directory
    id               names the directory in what belongs to it and lies elsewhere (control groups)
    records.sqlite   what the engine knows (``engine/records.py``)
    forks/NAME       the socket through which a sandbox's init takes a new host
    zygotes/NAME     the same for a zygote; NAME.json says what it was started for

Only this user can enter it.  Sockets are bound and connected through ``/proc/self/fd``, so that the path may be as long as
it likes, and nobody who holds such a socket learns it.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cellfork.model.errors import Conflict, NotFound, UnavailableError

Kind = Literal["forks", "zygotes"]
KINDS: tuple[Kind, ...] = ("forks", "zygotes")

PATIENCE = 60.0
"""Seconds for which sandboxes wait for a new host when theirs has ended."""
LOCK_SECONDS = 5.0
"""How long the lock is waited for: a server that was killed a moment ago may not be gone yet."""
RECORDS = "records.sqlite"
BACKLOG = 4
_PRIVATE = 0o700
_ID = re.compile(r"[0-9a-f]{12}")
_ABSENT = frozenset({errno.ENOENT, errno.ECONNREFUSED})


class StateDirectory:
    """A directory that belongs to one server at a time.

    Made where it is absent.  Raises :class:`UnavailableError` where it cannot be used or where somebody else can enter it,
    :class:`Conflict` where another server uses it and goes on doing so for :data:`LOCK_SECONDS`.
    """

    def __init__(
        self, path: str | Path, *, patience: float = PATIENCE, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        self.path = Path(path).absolute()
        self.patience = patience
        self.id = ""
        """Twelve hexadecimal digits that stay the same as long as the directory is there."""
        self._fds: dict[str, int] = {}
        try:
            self._open(lock_seconds)
        except OSError as error:
            self.close()
            raise UnavailableError(f"the state directory {self.path} cannot be used: {error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def records(self) -> Path:
        """Where the records are."""
        return self.path / RECORDS

    def close(self) -> None:
        """Let another server have it.  Idempotent."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    # ---------------------------------------------------------------------------------------- sockets

    def bind(self, kind: Kind, name: str) -> socket.socket:
        """Return a socket that is bound to a name and does not listen yet.

        Whoever listens on it is known to those who connect (``SO_PEERCRED``): that is to be the guest.
        """
        bound = socket.socket(socket.AF_UNIX, _type_of(kind))
        try:
            bound.bind(self._address(kind, name))
        except BaseException:
            bound.close()
            raise
        return bound

    def connect(self, kind: Kind, name: str) -> socket.socket:
        """Return a connection to whoever listens on a name, without waiting.  Raises :class:`NotFound`."""
        connection = socket.socket(socket.AF_UNIX, _type_of(kind) | socket.SOCK_NONBLOCK)
        try:
            connection.connect(self._address(kind, name))
        except OSError as error:
            connection.close()
            if error.errno in _ABSENT or isinstance(error, BlockingIOError):
                raise NotFound(f"nobody listens on {kind}/{name}: {error}") from error
            raise
        return connection

    def forget(self, kind: Kind, name: str) -> None:
        """Remove a name, and what was written beside it."""
        for file in (name, f"{name}.json"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file, dir_fd=self._fds[kind])

    def names(self, kind: Kind) -> list[str]:
        """Return the names that are there, listened on or not."""
        return sorted({file.partition(".")[0] for file in os.listdir(self._fds[kind])} - {""})

    # ----------------------------------------------------------------------------------------- notes

    def write(self, kind: Kind, name: str, note: Mapping[str, Any]) -> None:
        """Write something beside a name, at once and as a whole."""
        temporary = f".{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600, dir_fd=self._fds[kind]), "w", encoding="ascii") as file:
            json.dump(note, file)
        os.rename(temporary, f"{name}.json", src_dir_fd=self._fds[kind], dst_dir_fd=self._fds[kind])

    def read(self, kind: Kind, name: str) -> dict[str, Any]:
        """Return what was written beside a name; nothing where that cannot be read."""
        try:
            fd = os.open(f"{name}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fds[kind])
            with open(fd, encoding="ascii") as file:
                note = json.load(file)
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def tidy(self) -> None:
        """Remove what a server left half written when it was killed."""
        for kind in KINDS:
            for file in os.listdir(self._fds[kind]):
                if file.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(file, dir_fd=self._fds[kind])

    # --------------------------------------------------------------------------------------- details

    def _open(self, lock_seconds: float) -> None:
        self.path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        self._fds["."] = _open_private(self.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fds["lock"] = os.open("lock", flags, 0o600, dir_fd=self._fds["."])
        self._lock(lock_seconds)
        for kind in KINDS:
            (self.path / kind).mkdir(mode=_PRIVATE, exist_ok=True)
            self._fds[kind] = _open_private(self.path / kind)
        self.id = self._read_id()
        self.tidy()

    def _read_id(self) -> str:
        file = self.path / "id"
        if not file.exists() or not _ID.fullmatch(file.read_text(encoding="ascii", errors="replace")):
            made = self.path / ".id"
            made.write_text(secrets.token_hex(6), encoding="ascii")
            made.rename(file)
        return file.read_text(encoding="ascii")

    def _lock(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(self._fds["lock"], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Conflict(f"another server uses the state directory {self.path}") from None
                time.sleep(0.02)
            else:
                return

    def _address(self, kind: Kind, name: str) -> str:
        return f"/proc/self/fd/{self._fds[kind]}/{name}"


async def open_state(path: str | Path, *, patience: float = PATIENCE) -> StateDirectory:
    """Open a state directory without holding the event loop up; raises as :class:`StateDirectory` does."""
    return await asyncio.to_thread(StateDirectory, path, patience=patience)


def _open_private(path: Path) -> int:
    """Open a directory that belongs to this user alone.  Raises ``PermissionError`` where it does not."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(fd)
        raise PermissionError(f"{path} can be entered by somebody else (chmod 700)")
    return fd


def _type_of(kind: Kind) -> socket.SocketKind:
    """A zygote speaks in messages, init in a stream."""
    return socket.SOCK_SEQPACKET if kind == "zygotes" else socket.SOCK_STREAM
