"""A dialect's planes as programs inside a sandbox see them: ``http://0.0.0.0:PORT`` in the sandbox's own network.

Init makes the listening sockets, the server accepts from them; nothing that a program does inside can end them but
the end of the sandbox.  A program that has such a port first keeps it.
"""

import asyncio
import socket
from collections.abc import Sequence

from cellfork.dialects.base import Speaker
from cellfork.engine.background import Background
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError, Conflict, ProtocolViolation, SandboxPaused, Unsupported
from cellfork.runtimes.base import Guest
from cellfork.runtimes.listening import Listener

MOST_CONNECTIONS = 64
"""From inside one sandbox at once; one more is closed as soon as it is made."""


class Doors:
    """Opens ``ports`` inside sandboxes and serves what comes with ``speaker``."""

    def __init__(self, ports: Sequence[int], speaker: Speaker) -> None:
        self._ports = ports
        self._speaker = speaker
        self._doors: dict[str, _Door] = {}
        self._background = Background()

    def open(self, sandbox: Sandbox) -> bool:
        """See that a running sandbox has its doors; return whether they are being opened now.

        Cheap where it has.  A sandbox that came back with new processes gets new ones.
        """
        door = self._doors.get(sandbox.id)
        if door is not None and door.guest is sandbox.guest and not door.failed:
            return False
        if door is None:
            sandbox.on_end(lambda: self._close(sandbox.id))
            sandbox.on_restart(lambda: self.open(sandbox))
        else:
            door.close()
        self._doors[sandbox.id] = door = _Door(sandbox, self._speaker)
        for port in self._ports:
            self._background.spawn(door.serve(port))
        return True

    async def aclose(self) -> None:
        """Close every door and every connection through one."""
        for id in list(self._doors):
            self._close(id)
        await self._background.join()

    def _close(self, id: str) -> None:
        door = self._doors.pop(id, None)
        if door is not None:
            door.close()


class _Door:
    """The listeners of one sandbox and what came through them."""

    def __init__(self, sandbox: Sandbox, speaker: Speaker) -> None:
        self.sandbox = sandbox
        self.guest: Guest = sandbox.guest
        self._speaker = speaker
        self._listeners: list[Listener] = []
        self._connections: list[asyncio.Transport] = []
        self._closed = False
        self.failed = False
        """Whether it may work another time."""

    async def serve(self, port: int) -> None:
        """Listen on ``port`` until the sandbox ends."""
        try:
            listener = await self.sandbox.listen(port)
        except CellforkError as error:
            # A program that has the port keeps it, and where a sandbox has no network of its own there is no port.
            self.failed = isinstance(error, SandboxPaused) or not isinstance(error, Conflict | Unsupported)
            return
        self._listeners.append(listener)
        try:
            while not self._closed:
                await self._welcome(await listener.accept(), port)
        except ProtocolViolation as violation:
            self.sandbox.end_soon("protocol", str(violation))
        except OSError:
            pass  # closed
        finally:
            listener.close()

    def close(self) -> None:
        """Close everything at once."""
        self._closed = True
        for listener in self._listeners:
            listener.close()
        for transport in self._connections:
            transport.abort()

    async def _welcome(self, connection: socket.socket, port: int) -> None:
        self._connections = [one for one in self._connections if not one.is_closing()]
        if self._closed or len(self._connections) >= MOST_CONNECTIONS:
            connection.close()
            return
        state = {"sandbox": self.sandbox, "inside": True, "port": port}
        protocol = self._speaker(state)
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection
            )
        except OSError:
            connection.close()  # it has left again
            return
        self._connections.append(transport)
        if self._closed:
            transport.abort()
