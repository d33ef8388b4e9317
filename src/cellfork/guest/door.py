"""The door: a socket through which another host may come when the one that was has ended.

Zygotes and sandboxes that are kept have one each; the host binds it in a directory that only its user can enter, and hands
it over before anybody's code runs.  Whoever serves it begins to listen on it himself, so that a new host learns from
the kernel whose it is (``SO_PEERCRED``, unix(7)).
"""

import select
import socket
import time
from collections.abc import Callable, Mapping

from cellfork.guest import sandbox
from cellfork.model.errors import ProtocolViolation

BACKLOG = 4


class Door:
    """Lets one host in after the other.  ``patience`` is how many seconds a host is waited for."""

    def __init__(self, fd: int, patience: float) -> None:
        self.patience = patience
        self._socket = socket.socket(fileno=fd)
        self._socket.listen(BACKLOG)

    def fileno(self) -> int:
        """Return the descriptor; readable when somebody knocks."""
        return self._socket.fileno()

    def admit(self) -> socket.socket:
        """Return the connection of whoever has knocked."""
        connection, _address = self._socket.accept()
        return connection

    def wait(self, meanwhile: Mapping[int, Callable[[], None]]) -> tuple[socket.socket, sandbox.Plan] | None:
        """Wait for a host that says what it wants; return its connection and that, ``None`` where none comes.

        ``meanwhile`` says what to do when other descriptors become readable.
        """
        poll = select.poll()
        for fd in (self.fileno(), *meanwhile):
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + self.patience
        while True:
            left = deadline - time.monotonic()
            ready = {fd for fd, _ in poll.poll(max(0.0, left) * 1000)}
            for fd in ready & meanwhile.keys():
                meanwhile[fd]()
            if self.fileno() in ready:
                connection = self.admit()
                request = _first_request(connection)
                if request is not None:
                    return connection, request
                connection.close()  # it was killed as well
                deadline = time.monotonic() + self.patience
            elif left <= 0:
                return None


def _first_request(connection: socket.socket) -> sandbox.Plan | None:
    try:
        return sandbox.read_request(connection.fileno())
    except (ConnectionError, ProtocolViolation):
        return None
