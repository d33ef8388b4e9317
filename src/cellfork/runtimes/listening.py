"""Listening sockets inside a sandbox, from which the host accepts.

Whoever has handed such a socket over may have kept a copy.  With it they can take its non-blocking flag away, and the
connection that the host has just seen with it: then ``accept`` waits.  It has no way to ask for itself not to, so it is
done in a thread that has to be back in time, and never in the event loop.
"""

import asyncio
import contextlib
import errno
import socket
import threading

from cellfork.model.errors import ProtocolViolation

ACCEPT_SECONDS = 2.0
"""How long ``accept`` may take for a connection that was there already."""


class Listener:
    """A listening socket inside a sandbox, from which the host accepts.  One task may accept at a time."""

    def __init__(self, listener: socket.socket) -> None:
        """Take ``listener``, which does not block, over."""
        self._loop = asyncio.get_running_loop()
        self._socket = listener
        self._ready: asyncio.Future[None] | None = None
        self._accepting: asyncio.Future[socket.socket] | None = None
        self._open = True

    async def accept(self) -> socket.socket:
        """Wait for a connection and return it; it belongs to the host alone.

        Raises ``OSError`` (``ConnectionAbortedError`` once it is closed; after any other one it may be asked again), and
        :class:`ProtocolViolation` where the guest makes the host wait: then it is closed.
        """
        while True:
            await self._readable()
            if not self._open:
                raise ConnectionAbortedError("the listener is closed")
            accepting = self._accepting = _in_thread(self._socket)
            try:
                if not await _done_in_time(accepting):
                    raise ProtocolViolation("the guest keeps a listening socket waiting that it handed over")
                connection = accepting.result()
            except OSError as error:
                self._accepting = None
                if not self._open:
                    raise ConnectionAbortedError("the listener is closed") from error
                if isinstance(error, BlockingIOError | InterruptedError | ConnectionAbortedError):
                    continue  # whoever came has left again
                raise
            except BaseException:
                self.close()
                raise
            self._accepting = None
            connection.setblocking(False)
            return connection

    def close(self) -> None:
        """Close; a thread that waits in ``accept`` wakes.  Idempotent."""
        if not self._open:
            return
        self._open = False
        if self._ready is not None:
            _settle(self._ready)
            self._unwatch()
        if self._accepting is None:
            self._shut()
            self._socket.close()
        else:  # its number must not be another socket's while a thread uses it
            self._accepting.add_done_callback(self._accepted_late)
            self._wake(self._accepting)

    def _wake(self, accepting: "asyncio.Future[socket.socket]") -> None:
        """Wake the thread, again and again: a guest can let its copy listen anew before the thread has looked."""
        if not accepting.done():
            self._shut()
            self._loop.call_later(ACCEPT_SECONDS, self._wake, accepting)

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _accepted_late(self, accepting: "asyncio.Future[socket.socket]") -> None:
        if not accepting.cancelled() and accepting.exception() is None:
            accepting.result().close()
        self._socket.close()

    async def _readable(self) -> None:
        if not self._open:
            return
        self._ready = self._loop.create_future()
        self._loop.add_reader(self._socket.fileno(), _settle, self._ready)
        try:
            await self._ready
        finally:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._ready is not None:
            self._ready = None
            self._loop.remove_reader(self._socket.fileno())


async def _done_in_time(accepting: "asyncio.Future[socket.socket]") -> bool:
    """Wait for a thread that only a guest can hold up, twice: a machine that stood still has used up the first time, not both."""
    for _ in range(2):
        await asyncio.wait([accepting], timeout=ACCEPT_SECONDS / 2)
        if accepting.done():
            return True
    return False


def _in_thread(listener: socket.socket) -> "asyncio.Future[socket.socket]":
    """Accept in a thread of its own: one that a guest holds up keeps nobody else's work waiting, nor the end of the program."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[socket.socket] = loop.create_future()

    def run() -> None:
        connection: socket.socket | None = None
        failure: OSError | None = None
        try:
            connection, _address = listener.accept()
        except OSError as error:
            failure = error
        try:
            loop.call_soon_threadsafe(_hand_back, future, connection, failure)
        except RuntimeError:  # the loop is closed: nobody waits
            if connection is not None:
                connection.close()
            listener.close()

    try:
        threading.Thread(target=run, name="accept", daemon=True).start()
    except RuntimeError as error:
        _hand_back(future, None, OSError(errno.ENOBUFS, f"no thread can be started: {error}"))
    return future


def _hand_back(
    future: "asyncio.Future[socket.socket]", connection: socket.socket | None, failure: OSError | None
) -> None:
    if future.done():
        if connection is not None:
            connection.close()
    elif connection is not None:
        future.set_result(connection)
    elif failure is not None:
        future.set_exception(failure)
        future.exception()  # mark as looked at: not everybody waits


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
