"""Init's end of the connection to the host."""

import socket
from typing import Any

from cellfork.wire.frames import PREFIX, encode


class HostLink:
    """Sends frames to the host.  Sending blocks: the host always reads."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, header: dict[str, Any], body: bytes = b"", channel: int = 0) -> None:
        """Send one frame."""
        self.connection.sendall(encode(header, body, channel))

    def forward(self, header: bytes, body: bytes, channel: int) -> None:
        """Send a frame whose header is encoded already, on ``channel``."""
        self.connection.sendall(PREFIX.pack(len(header), len(body), channel) + header + body)
