"""The way out of one sandbox: the listening socket in its network namespace, and what the SDK asks about it."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Mapping
from typing import Any

from cellfork.model.errors import ProtocolViolation
from cellfork.model.network import Denial, NetworkPolicy, Traffic
from cellfork.runtimes.egress.account import MAX_CONNECTIONS, USER, Account, Connection, Pace
from cellfork.runtimes.egress.environment import variables
from cellfork.runtimes.egress.indexes import CERTIFICATES
from cellfork.runtimes.egress.listener import ADDRESS
from cellfork.runtimes.egress.proxy import Proxy
from cellfork.runtimes.egress.replies import reply
from cellfork.runtimes.listening import Listener

RATE, BURST = 100.0, 128
"""Connections a second: a sandbox that opens and closes them all the time shall not keep the host busy."""
PAUSE_SECONDS = 0.5
BUSY = reply(503, f"a sandbox has at most {MAX_CONNECTIONS} connections at a time", "too many connections")
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Gate:
    """Accepts a sandbox's connections and lets the proxy serve them.  Implements :class:`cellfork.runtimes.base.Network`.

    Nothing is accepted before :meth:`open`, and nothing after :meth:`close`: then a connection is refused at once.
    """

    def __init__(self, proxy: Proxy, policy: NetworkPolicy, record: Mapping[str, Any] | None = None) -> None:
        """``record`` is that of the gate which the sandbox had before its host ended."""
        self._proxy = proxy
        self.on_change: Callable[[], object] | None = None
        self._account = Account(policy, proxy.indexes_of(policy))
        if record is not None:
            self._account.restore(str(record["token"]), int(record["sent"]), int(record["received"]))
        self._loop = asyncio.get_running_loop()
        self._pace = Pace(RATE, BURST)
        self._listener: Listener | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def policy(self) -> NetworkPolicy:
        """What holds now."""
        return self._account.policy

    @property
    def plan(self) -> dict[str, Any]:
        """What init must know: where to listen, and where to put the certificates."""
        return {"listen": list(ADDRESS), "certificates": CERTIFICATES if self.certificates else None}

    @property
    def variables(self) -> dict[str, str]:
        """The environment that lets programs inside find the way."""
        host, port = ADDRESS
        url = f"http://{USER}:{self._account.token}@{host}:{port}"
        return variables(self.policy, url, self._account.indexes)

    @property
    def certificates(self) -> bytes:
        """Certificates of the package indexes that a sandbox does not see otherwise (PEM)."""
        return self._account.indexes.certificates

    @property
    def record(self) -> dict[str, Any]:
        """What another host needs to go on: the password, and what was moved."""
        moved = self._account.traffic()
        return {"token": self._account.token, "sent": moved.sent, "received": moved.received}

    def denied(self) -> list[Denial]:
        """Return the latest refusals, the oldest first."""
        return self._account.denied()

    def traffic(self) -> Traffic:
        """Return what was moved so far."""
        return self._account.traffic()

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Replace the policy, for connections that live as well."""
        self._account.set_policy(policy, self._proxy.indexes_of(policy))
        if self.on_change is not None:
            self.on_change()

    def open(self, listener: socket.socket) -> None:
        """Accept connections from ``listener``, which belongs to the gate from now on."""
        listener.setblocking(False)
        self._listener = Listener(listener)
        self._accepting = self._loop.create_task(self._accept(self._listener))

    def close(self) -> None:
        """Refuse everything and end every connection.  Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._accepting is not None:
            self._accepting.cancel()
        for connection in self._account.connections:
            connection.task.cancel()

    async def aclose(self) -> None:
        """Close, and wait until nothing is left."""
        self.close()
        if self._accepting is not None:
            await asyncio.wait([self._accepting])
        while self._account.connections:
            await asyncio.wait([connection.task for connection in self._account.connections])

    async def _accept(self, listener: Listener) -> None:
        """Accept until the end.  A sandbox that makes the host wait has no network any more, and what it had ends."""
        while True:
            try:
                await self._turn()
                self._take(await listener.accept())
            except ConnectionAbortedError:
                return  # closed
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
            except ProtocolViolation as violation:
                self._account.deny("", 0, str(violation))
                self.close()

    async def _turn(self) -> None:
        """Wait until one more connection may be taken."""
        wait = self._pace.take()
        while wait:
            await asyncio.sleep(wait)
            wait = self._pace.take()

    def _take(self, accepted: socket.socket) -> None:
        if len(self._account.connections) >= MAX_CONNECTIONS:
            self._account.deny("", 0, "too many connections at a time")
            with accepted, contextlib.suppress(OSError):
                accepted.setblocking(False)
                accepted.send(BUSY)
                accepted.shutdown(socket.SHUT_RDWR)
            return
        connections = self._account.connections
        connection = Connection()
        connections.add(connection)
        connection.task = self._loop.create_task(self._proxy.serve(self._account, connection, accepted))
        connection.task.add_done_callback(lambda task: self._done(connection, accepted, task))

    def _done(self, connection: Connection, accepted: socket.socket, task: "asyncio.Task[None]") -> None:
        self._account.connections.discard(connection)
        accepted.close()  # a task that was cancelled before it began has not done it
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "the proxy failed to serve a connection", "exception": error}
            )
