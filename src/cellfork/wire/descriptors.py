"""Descriptors that come over a Unix socket.

``socket.recv_fds`` takes flags, and that of Python 3.11 does not pass them on: what it receives stays open in every program that
is started later.
"""

import array
import socket


def receive_descriptors(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive up to ``size`` bytes and the descriptors that came with them, closed on exec; the kernel closes those beyond ``most``.

    Raises ``OSError`` as ``recvmsg`` does.
    """
    fds = array.array("i")
    room = socket.CMSG_LEN(most * fds.itemsize)
    data, ancillary, _flags, _address = connection.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, fds.tolist()
