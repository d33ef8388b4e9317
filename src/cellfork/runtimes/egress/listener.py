"""The listening socket that init makes in the sandbox's network namespace: where it listens, and what the host accepts."""

import os
import socket

from cellfork.model.errors import ProtocolViolation

ADDRESS = ("127.0.0.1", 3128)


def check_listener(fds: list[int]) -> socket.socket:
    """Return the socket that a guest handed over: exactly one, and exactly as it must be.

    Everything else is a :class:`ProtocolViolation`, and closed.
    """
    listener = _as_socket(fds)
    if listener is None or not _is_right(listener):
        if listener is not None:
            listener.close()
        raise ProtocolViolation("the guest did not hand over the listening socket that it should")
    return listener


def _as_socket(fds: list[int]) -> socket.socket | None:
    if len(fds) == 1:
        try:
            return socket.socket(fileno=fds[0])
        except OSError:
            pass  # no socket: closed below
    for fd in fds:
        os.close(fd)
    return None


def _is_right(listener: socket.socket) -> bool:
    return (
        listener.family == socket.AF_INET
        and listener.type == socket.SOCK_STREAM
        and listener.proto in {0, socket.IPPROTO_TCP}
        and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        and listener.getsockname() == ADDRESS
    )
