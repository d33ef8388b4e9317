"""Sockets that init hands over when it is asked: which are waited for, and what the host accepts.

A descriptor is taken only while a request for one waits, one for each request, and only if it is what was asked
for; everything else is closed, and a violation.

Whoever has handed a socket over can keep a copy, and with it the power to make the host's reads and writes on it
block.  So they ask for each call not to (``MSG_DONTWAIT``, see ``engine/ports.py``), accept in a thread
(``listening.py``), and trust no flag of the socket.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from cellfork.model.errors import (
    CellforkError,
    LimitExceeded,
    PortClosed,
    ProtocolViolation,
    SandboxGone,
    from_code,
)

MOST_WAITING = 128
FIRST_NUMBER = -2
"""Requests for sockets count down from here: the engine counts its own up from 1, and -1 is taken as well."""

SIOCGSKNS = 0x894C
"""Asks for the network namespace of a socket; for those who own the namespace."""

Namespace = tuple[int, int]
Check = Callable[[socket.socket], bool]


class Handovers:
    """The sockets that were asked for, by the number of the request.  Use in one event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[asyncio.Future[socket.socket], Check]] = {}
        self._received: list[int] = []
        self._next = FIRST_NUMBER

    @property
    def waiting(self) -> bool:
        """Whether a descriptor may come."""
        return bool(self._waiting)

    def expect(self, check: Check) -> tuple[int, asyncio.Future[socket.socket]]:
        """Return the number of a new request and the future of its socket, which has to pass ``check``.

        Whoever gives the future up does so by cancelling it: the socket that still comes is closed then.
        Raises :class:`LimitExceeded`.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise LimitExceeded(f"{MOST_WAITING} sockets were asked of the sandbox and have not come")
        number, self._next = self._next, self._next - 1
        future: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, check
        return number, future

    def take(self, fds: list[int]) -> None:
        """Keep a descriptor until its reply is read.  Raises :class:`ProtocolViolation` for a second one."""
        self._received += fds
        if len(self._received) > 1:
            self._drop()
            raise ProtocolViolation("the guest handed over more descriptors than it was asked for")

    def is_reply(self, header: Mapping[str, Any]) -> bool:
        """Tell whether a message of init answers one of these requests."""
        return header["op"] == "reply" and header["id"] in self._waiting

    def on_reply(self, header: Mapping[str, Any]) -> None:
        """Settle a request.  Raises :class:`ProtocolViolation` where what came is not what was asked for."""
        future, check = self._waiting.pop(header["id"])
        fds, self._received = self._received, []
        try:
            opened = _checked(fds, check) if header["ok"] else _refused(fds, header)
        except CellforkError as error:
            if not future.done():
                future.set_exception(error)
            if isinstance(error, ProtocolViolation):
                raise
            return
        if future.done():
            opened.close()
        else:
            future.set_result(opened)

    def fail_all(self, error: CellforkError) -> None:
        """Fail every request and let go of what came for none."""
        waiting, self._waiting = self._waiting, {}
        for future, _check in waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark as looked at: not everybody waits
        self._drop()

    def _drop(self) -> None:
        for fd in self._received:
            os.close(fd)
        self._received.clear()


def connects_to(port: int, namespace: Namespace) -> Check:
    """Return the check of a connection to ``port`` of the loopback of a network namespace."""

    def check(opened: socket.socket) -> bool:
        if not _is_tcp(opened) or not _is_in(opened, namespace) or _listens(opened):
            return False
        try:
            return opened.getpeername()[:2] in {("127.0.0.1", port), ("::1", port)}
        except OSError as error:  # the program has reset it by now, and nobody is to blame
            raise PortClosed(f"the program on port {port} closed the connection at once") from error

    return check


def listens_on(host: str, port: int, namespace: Namespace) -> Check:
    """Return the check of a listening socket in a network namespace."""

    def check(opened: socket.socket) -> bool:
        return (
            _is_tcp(opened)
            and _is_in(opened, namespace)
            and _listens(opened)
            and opened.getsockname()[:2] == (host, port)
        )

    return check


def namespace_of(pid: int) -> Namespace:
    """Return what tells the network namespace of a process from all others.  Raises :class:`SandboxGone`."""
    try:
        found = os.stat(f"/proc/{pid}/ns/net")
    except OSError as error:
        raise SandboxGone("the sandbox has ended") from error
    return found.st_dev, found.st_ino


def _checked(fds: list[int], check: Check) -> socket.socket:
    opened = _as_socket(fds)
    try:
        right = opened is not None and check(opened)
    except CellforkError:
        if opened is not None:
            opened.close()
        raise
    if opened is None or not right:
        if opened is not None:
            opened.close()
        raise ProtocolViolation("the guest did not hand over the socket that it was asked for")
    opened.setblocking(False)
    return opened


def _refused(fds: list[int], header: Mapping[str, Any]) -> socket.socket:
    for fd in fds:
        os.close(fd)
    if fds:
        raise ProtocolViolation("the guest refused to hand over a socket, and handed something over")
    raise from_code(header["code"], header["message"])


def _as_socket(fds: list[int]) -> socket.socket | None:
    if len(fds) == 1:
        with contextlib.suppress(OSError):  # no socket: closed below
            return socket.socket(fileno=fds[0])
    for fd in fds:
        os.close(fd)
    return None


def _is_tcp(opened: socket.socket) -> bool:
    return (
        opened.family in {socket.AF_INET, socket.AF_INET6}
        and opened.type == socket.SOCK_STREAM
        and opened.proto in {0, socket.IPPROTO_TCP}
    )


def _listens(opened: socket.socket) -> bool:
    return opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


def _is_in(opened: socket.socket, namespace: Namespace) -> bool:
    """Tell whether a socket belongs to a network namespace, where the kernel lets us ask; else the other checks remain."""
    try:
        fd = fcntl.ioctl(opened, SIOCGSKNS)
    except OSError as error:
        return error.errno in {errno.EPERM, errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP}
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    return (found.st_dev, found.st_ino) == namespace
