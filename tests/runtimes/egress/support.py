"""A small internet for tests: names, a way to connect that is watched, servers that count what reaches them."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Self

from cellfork.runtimes.egress.addresses import Address
from cellfork.runtimes.egress.resolver import LookupFailed

PUBLIC = "93.184.215.14"
PUBLIC_V6 = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
CANARY = b"CANARY-7f3a"


@dataclass
class Names:
    """A resolver that knows what a test tells it, and remembers what it was asked.

    The answers to a name may be a list of lists: one for each time it is asked.
    """

    known: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hang: asyncio.Event | None = None

    async def resolve(self, name: str, port: int, *, own: bool) -> list[Address]:
        self.asked.append(name)
        answer = self.known.get(name)
        if answer == "hang":
            raise LookupFailed(f"{name} could not be looked up within 1 s", 504)
        if answer is None:
            raise LookupFailed(f"{name} could not be looked up")
        if answer and isinstance(answer[0], list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        return [ip_address(text) for text in answer]


@dataclass
class Wire:
    """Connects to the server that stands for an address; every other address is a failure of the test's."""

    servers: dict[str, "Server"] = field(default_factory=dict)
    dialled: list[tuple[str, int]] = field(default_factory=list)

    async def connect(self, address: Address, port: int) -> socket.socket:
        self.dialled.append((str(address), port))
        server = self.servers.get(str(address))
        if server is None:
            raise ConnectionRefusedError(111, "Connection refused")
        connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", server.port))
        return connected


Handler = Callable[["Server", socket.socket], None]


class Server:
    """A TCP server on loopback, a thread for each connection.  ``received`` is everything that reached it."""

    def __init__(self, handler: "Handler | None" = None) -> None:
        self._handler = handler or answer_http
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.received: list[bytes] = []
        self.connections = 0
        self.pages: dict[str, bytes] = {}
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def everything(self) -> bytes:
        return b"".join(self.received)

    def note(self, data: bytes) -> None:
        self.received.append(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(5)
        for connected in [*self._open]:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(connected)
            thread = threading.Thread(target=self._serve, args=(connected,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, contextlib.suppress(OSError, IndexError, ValueError):  # what comes may be no request
            self._handler(self, connected)
        self._open.discard(connected)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def answer_http(server: Server, connected: socket.socket) -> None:
    """Answer one request after the other, as a server that likes to keep connections would."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            piece = connected.recv(65536)
            if not piece:
                return
            server.note(piece)
            data += piece
        head, _, data = data.partition(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ),
            0,
        )
        while len(data) < length or (b"chunked" in head.lower() and not data.endswith(b"0\r\n\r\n")):
            piece = connected.recv(65536)
            if not piece:
                return
            server.note(piece)
            data += piece
        data = b"" if b"chunked" in head.lower() else data[length:]
        path = head.split(b" ")[1].decode()
        connected.sendall(server.pages.get(path, page(b"hello")))


def echo(server: Server, connected: socket.socket) -> None:
    """Send back what comes, until the end."""
    while piece := connected.recv(65536):
        server.note(piece)
        connected.sendall(piece)


def page(body: bytes, status: str = "200 OK", fields: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\n{fields}Content-Length: {len(body)}\r\nConnection: keep-alive\r\n\r\n"
    return head.encode() + body


def client_hello(name: str | None, extra: bytes = b"") -> bytes:
    """Return a ClientHello that asks for ``name``."""
    extensions = extra
    if name is not None:
        host = name.encode("latin-1")
        entry = b"\x00" + struct.pack(">H", len(host)) + host
        names = struct.pack(">H", len(entry)) + entry
        extensions = struct.pack(">HH", 0, len(names)) + names + extensions
    body = b"\x03\x03" + bytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"
    body += struct.pack(">H", len(extensions)) + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack(">H", len(message)) + message
