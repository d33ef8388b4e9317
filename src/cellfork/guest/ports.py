"""Ports of a sandbox: connections to programs inside, and listeners for the host, handed over as descriptors.

Init only opens them: what comes and goes afterwards never passes through it, and nothing here waits.
"""

import errno
import socket
from functools import partial
from typing import Any

from cellfork.guest.egress import hand_over
from cellfork.guest.link import HostLink
from cellfork.guest.loop import Loop, Timer
from cellfork.guest.services import Handler, Result, number, refuse
from cellfork.model.errors import CellforkError, Conflict, InvalidRequest, LimitExceeded, PortClosed

CONNECT_SECONDS = 5.0
"""How long a program may leave a connection waiting whose queue is full."""
MOST_PENDING = 64
"""Connections that are being made at once."""
BACKLOG = 128

LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
"""Where programs are looked for, in this order: some know ``localhost`` only as ``::1``."""

_ABSENT = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED})
_NO_SUCH_FAMILY = frozenset(
    {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EPROTONOSUPPORT}
)
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Ports:
    """Connects and listens in the sandbox's own network namespace, one request a socket."""

    def __init__(self, loop: Loop, link: HostLink) -> None:
        self._loop = loop
        self._link = link
        self._pending: dict[socket.socket, Timer] = {}

    def operations(self) -> dict[str, Handler]:
        """Return the operations by name."""
        return {"port.connect": self._connect, "port.listen": self._listen}

    def forget(self) -> None:
        """Give up every connection that is being made: whoever asked is gone."""
        for connection in list(self._pending):
            self._settle(connection)
            connection.close()

    def _connect(self, header: dict[str, Any], _body: bytes) -> Result | None:
        port = number(header, "port", 1, 65535)
        if len(self._pending) >= MOST_PENDING:
            raise LimitExceeded(f"{MOST_PENDING} connections to ports of this sandbox are being made already")
        self._try(header["id"], port, 0)
        return None

    def _try(self, request: int, port: int, attempt: int) -> None:
        """Connect to a loopback address; where nobody listens there, to the next one."""
        family, host = LOOPBACKS[attempt]
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            self._failed(request, port, attempt, error.errno or 0)
            return
        failure = connection.connect_ex((host, port))
        if failure == errno.EINPROGRESS:
            failure = connection.connect_ex((host, port))  # over the loopback it is usually done by now
        if failure == errno.EALREADY:
            self._wait(request, port, attempt, connection)
        else:
            self._connected(request, port, attempt, connection, 0 if failure == errno.EISCONN else failure)

    def _wait(self, request: int, port: int, attempt: int, connection: socket.socket) -> None:
        done = partial(self._waited, request, port, attempt, connection)
        self._pending[connection] = self._loop.later(CONNECT_SECONDS, partial(done, errno.ETIMEDOUT))
        self._loop.watch_writable(connection.fileno(), done)

    def _waited(
        self, request: int, port: int, attempt: int, connection: socket.socket, failure: int | None = None
    ) -> None:
        self._settle(connection)
        if failure is None:
            failure = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._connected(request, port, attempt, connection, failure)

    def _settle(self, connection: socket.socket) -> None:
        self._pending.pop(connection).cancel()
        self._loop.unwatch_writable(connection.fileno())

    def _connected(
        self, request: int, port: int, attempt: int, connection: socket.socket, failure: int
    ) -> None:
        if not failure and not _leads_to_another(connection):
            failure = errno.ECONNREFUSED
        if failure:
            connection.close()
            self._failed(request, port, attempt, failure)
            return
        self._give(request, connection)

    def _failed(self, request: int, port: int, attempt: int, failure: int) -> None:
        if failure in _ABSENT | _NO_SUCH_FAMILY and attempt + 1 < len(LOOPBACKS):
            self._try(request, port, attempt + 1)
        else:
            refuse(self._link, request, _error_of(failure, port))

    def _listen(self, header: dict[str, Any], _body: bytes) -> Result | None:
        host, port = header.get("host"), number(header, "port", 1, 65535)
        try:
            listener = _listener(_family_of(host), str(host), port)
        except OSError as error:
            raise _error_of(error.errno or 0, port) from error
        self._give(header["id"], listener)
        return None

    def _give(self, request: int, opened: socket.socket) -> None:
        reply: dict[str, Any] = {"op": "reply", "id": request, "ok": True, "result": {}}
        hand_over(self._link.connection, reply, opened)


def _leads_to_another(connection: socket.socket) -> bool:
    """Tell whether somebody else is at the other end: TCP can connect a port that nobody has to itself."""
    try:
        return bool(connection.getsockname() != connection.getpeername())
    except OSError:
        return False  # whoever was there has reset it


def _listener(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Return a listening socket.  The address may be taken again at once; whoever listens there already keeps it."""
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _family_of(host: object) -> socket.AddressFamily:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, str(host))
        except (OSError, ValueError):
            continue
        return family
    raise InvalidRequest("host is an address of version 4 or 6")


def _error_of(failure: int, port: int) -> CellforkError:
    if failure == errno.EADDRINUSE:
        return Conflict(f"port {port} is in use inside the sandbox")
    if failure == errno.EADDRNOTAVAIL:
        return InvalidRequest("the sandbox does not have this address")
    if failure in {errno.EACCES, errno.EPERM}:
        return InvalidRequest(f"nobody inside the sandbox may listen on port {port}")
    if failure in _FULL:
        return LimitExceeded("the sandbox has no room for another socket")
    if failure == errno.ETIMEDOUT:
        return PortClosed(f"the program on port {port} did not accept within {CONNECT_SECONDS:g} s")
    return PortClosed(f"no program listens on port {port} inside the sandbox")
