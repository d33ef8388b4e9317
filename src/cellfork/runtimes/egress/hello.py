"""The first words of a TLS client: which server it asks for by name (SNI).  Pure, bounded, never raises but :class:`NotTls`.

What is inside of an encrypted ClientHello cannot be seen, only the name outside of it.  Source: RFC 8446 §4.1.2, RFC 6066 §3.
"""

from dataclasses import dataclass

MAX_HELLO = 32 * 1024
MAX_RECORD = (1 << 14) + 256
MAX_RECORDS = 16
HANDSHAKE, CLIENT_HELLO = 22, 1
SERVER_NAME = 0


class NotTls(ValueError):
    """The bytes are not the beginning of a TLS connection."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a ClientHello says: the server's name, ``None`` where it names none."""

    server_name: str | None


def parse_hello(data: bytes) -> Hello | None:
    """Return what the ClientHello at the start of ``data`` says; ``None`` where more bytes are needed."""
    message = _handshake(data)
    return None if message is None else Hello(_server_name(message))


def _handshake(data: bytes) -> bytes | None:
    """Return the body of the first handshake message, put together from its records."""
    message = b""
    position = 0
    for _ in range(MAX_RECORDS):
        header = data[position : position + 5]
        if header[:1] not in {b"", bytes([HANDSHAKE])} or header[1:2] not in {b"", b"\x03"}:
            raise NotTls("no handshake record")
        if len(header) < 5:
            return None
        size = int.from_bytes(header[3:5], "big")
        if not 0 < size <= MAX_RECORD:
            raise NotTls("a record of an impossible size")
        message += data[position + 5 : position + 5 + size]
        position += 5 + size
        if message and message[0] != CLIENT_HELLO:
            raise NotTls("no ClientHello")
        wanted = 4 + int.from_bytes(message[1:4], "big") if len(message) >= 4 else 4
        if wanted > MAX_HELLO or len(message) > MAX_HELLO:
            raise NotTls("a ClientHello that is too large")
        if len(message) >= wanted > 4:
            return message[4:wanted]
        if len(message) >= 4 and wanted == 4:
            raise NotTls("an empty ClientHello")
        if position > len(data):
            return None
    raise NotTls("a ClientHello in too many pieces")


class _Reader:
    """Takes pieces with a length in front; everything beyond the end is :class:`NotTls`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.position : self.position + size]
        if len(piece) < size:
            raise NotTls("a ClientHello that ends early")
        self.position += size
        return piece

    def vector(self, length_size: int) -> bytes:
        return self.take(int.from_bytes(self.take(length_size), "big"))

    @property
    def over(self) -> bool:
        return self.position == len(self.data)


def _server_name(message: bytes) -> str | None:
    reader = _Reader(message)
    reader.take(2 + 32)
    for length_size in (1, 2, 1):  # session id, cipher suites, compression methods
        reader.vector(length_size)
    if reader.over:
        return None
    extensions = _Reader(reader.vector(2))
    names: list[str] = []
    while not extensions.over:
        kind = int.from_bytes(extensions.take(2), "big")
        body = extensions.vector(2)
        if kind == SERVER_NAME:
            names += _names(body)
    if not reader.over or len(names) > 1:
        raise NotTls("a ClientHello with more than it may have")
    return names[0] if names else None


def _names(body: bytes) -> list[str]:
    outer = _Reader(body)
    entries = _Reader(outer.vector(2))
    names = []
    while not entries.over:
        if entries.take(1) != b"\x00":
            raise NotTls("a server name of an unknown kind")
        names.append(entries.vector(2).decode("latin-1"))
    if not outer.over or not names:
        raise NotTls("a malformed server name")
    return names
