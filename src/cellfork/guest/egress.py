"""The sandbox's end of the way out: a listening socket in its own network namespace, given to the host.

Init makes it while it becomes the sandbox: nobody's code has run by then, so nobody else can hold the port.  The host
accepts from it; what comes and goes never passes through init, and once the host's end is closed a
connection is refused at once.
"""

import contextlib
import socket
from typing import Any

from cellfork.wire.frames import encode

BACKLOG = 64


def listen(address: list[Any]) -> socket.socket:
    """Return a socket that listens on ``[host, port]``.  Raises ``OSError``."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(tuple(address))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def hand_over(connection: socket.socket, header: dict[str, Any], listener: socket.socket) -> None:
    """Send a frame and with its first byte the socket, then close this end of it.

    Where the host has ended, only that: whoever reads the connection hears of it.
    """
    data = encode(header)
    with listener, contextlib.suppress(ConnectionError):
        sent = socket.send_fds(connection, [data], [listener.fileno()])
        connection.sendall(data[sent:])
