"""Where a kernel and its bridge meet: the connection file, and the addresses in it (standard library only).

Source: "Connection files" in the documentation of ``jupyter_client``.
"""

import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
SCHEME = "hmac-sha256"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Places:
    """The addresses of one kernel and the key that its messages are signed with."""

    where: Mapping[str, Any]
    key: str

    @classmethod
    def fresh(cls, directory: str, transport: str) -> "Places":
        """Return places nobody uses: sockets in ``directory`` for ``ipc``, ports of the loopback device for ``tcp``."""
        key = secrets.token_hex(32)
        if transport == "ipc":
            numbers = {f"{name}_port": number for number, name in enumerate(CHANNELS, 1)}
            return cls({"transport": "ipc", "ip": os.path.join(directory, "kernel"), **numbers}, key)
        return cls({"transport": "tcp", "ip": LOOPBACK, **_free_ports()}, key)

    def write(self, path: str) -> None:
        """Write the connection file, for this user alone."""
        content = json.dumps({**self.where, "key": self.key, "signature_scheme": SCHEME})
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(content)

    def url(self, channel: str) -> str:
        """Return the address of a channel as ZeroMQ writes it."""
        separator = "-" if self.where["transport"] == "ipc" else ":"
        return f"{self.where['transport']}://{self.where['ip']}{separator}{self.where[channel + '_port']}"


def _free_ports() -> dict[str, int]:
    """Return ports that nobody listens on; they are the sandbox's own, so hardly anybody will take them meanwhile."""
    held = [socket.create_server((LOOPBACK, 0)) for _ in CHANNELS]
    try:
        numbers = [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
    return {f"{name}_port": number for name, number in zip(CHANNELS, numbers, strict=True)}
