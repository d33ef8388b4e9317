"""Init's end of the connection to the host."""

import socket
from typing import Any

from cellfork.wire.frames import PREFIX, encode


class HostLink:
    """Sends frames to the host.  Sending blocks: the host always reads.

    Where the host has ended, what would have been for it is dropped until :meth:`attach` names another one.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lost = False
        self._first = -1

    def attach(self, connection: socket.socket, first: int) -> None:
        """Send to another host from now on, whose requests are numbered from ``first`` on.

        Answers to earlier ones are dropped: who asked is gone.
        """
        self.connection = connection
        self._first = first
        self._lost = False

    def send(self, header: dict[str, Any], body: bytes = b"", channel: int = 0) -> None:
        """Send one frame."""
        number = header.get("id")
        if channel or not isinstance(number, int) or not -1 <= number < self._first:
            self._write(encode(header, body, channel))

    def forward(self, header: bytes, body: bytes, channel: int) -> None:
        """Send a frame whose header is encoded already, on ``channel``."""
        self._write(PREFIX.pack(len(header), len(body), channel) + header + body)

    def _write(self, data: bytes) -> None:
        if self._lost:
            return
        try:
            self.connection.sendall(data)
        except ConnectionError:
            self._lost = True  # whoever reads the connection comes to its end, and acts
