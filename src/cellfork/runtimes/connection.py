"""The host's end of the connection to a sandbox's init: bytes in, checked frames out."""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from cellfork.model.errors import ProtocolViolation, SandboxGone
from cellfork.wire.descriptors import receive_descriptors
from cellfork.wire.frames import Decoder, Frame, encode
from cellfork.wire.messages import check_from_guest

READ_SIZE = 256 * 1024
HIGH_WATER = 4 * 1024 * 1024
MOST_DESCRIPTORS = 2
"""That are received at once; the kernel drops what is more."""

FrameHandler = Callable[[Frame], None]
EndHandler = Callable[[ProtocolViolation | None], None]


class Connection:
    """Reads frames in the running event loop and writes them without waiting.

    ``on_end`` is called exactly once: with the violation if the guest broke the protocol, with ``None``
    at the end of the stream.  Nothing is delivered after that.
    """

    def __init__(self, stream: socket.socket, on_frame: FrameHandler, on_end: EndHandler) -> None:
        stream.setblocking(False)
        self._socket = stream
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._on_frame = on_frame
        self._on_end = on_end
        self._unsent: deque[memoryview] = deque()
        self._unsent_size = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._open = True
        self.take_descriptors: Callable[[list[int]], None] | None = None
        """Where it is set, descriptors that come with the bytes are received and belong to it; else they are dropped.

        It may raise :class:`ProtocolViolation`.
        """
        self._loop.add_reader(stream.fileno(), self._read)

    def send(self, header: dict[str, Any], body: bytes = b"", channel: int = 0) -> None:
        """Send one frame now, or as soon as the guest reads.  Raises :class:`SandboxGone` after the end."""
        if not self._open:
            raise SandboxGone("the sandbox has ended")
        self._send_rest(memoryview(encode(header, body, channel)))

    def send_with(self, descriptors: Sequence[int], header: dict[str, Any], body: bytes = b"") -> None:
        """Send one frame, with descriptors attached to its first byte; before anything else is sent.

        Raises :class:`SandboxGone` after the end.
        """
        if not self._open:
            raise SandboxGone("the sandbox has ended")
        data = memoryview(encode(header, body))
        try:
            sent = socket.send_fds(self._socket, [data], descriptors)
        except (ConnectionError, BlockingIOError) as error:
            raise SandboxGone("the sandbox has ended") from error
        self._send_rest(data[sent:])

    def _send_rest(self, data: memoryview) -> None:
        if not self._unsent and data:
            data = data[self._write_now(data) :]
        if data:
            self._queue(data)

    async def drain(self) -> None:
        """Wait until little is left unsent."""
        await self._drained.wait()
        if not self._open:
            raise SandboxGone("the sandbox has ended")

    def close(self) -> None:
        """Stop, without calling ``on_end``."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._unsent.clear()
            self._drained.set()
            self._socket.close()

    def _read(self) -> None:
        try:
            data = self._receive()
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionError:
            data = b""
        except ProtocolViolation as violation:
            self._end(violation)
            return
        if not data:
            self._end(None)
            return
        try:
            for frame in self._decoder.feed(data):
                check_from_guest(frame)
                self._on_frame(frame)
                if not self._open:
                    return
        except ProtocolViolation as violation:
            self._end(violation)

    def _receive(self) -> bytes:
        if self.take_descriptors is None:
            return self._socket.recv(READ_SIZE)
        data, fds = receive_descriptors(self._socket, READ_SIZE, MOST_DESCRIPTORS)
        if fds:
            self.take_descriptors(fds)
        return data

    def _end(self, violation: ProtocolViolation | None) -> None:
        if self._open:
            self.close()
            self._on_end(violation)

    def _write_now(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except ConnectionError as error:
            raise SandboxGone("the sandbox has ended") from error

    def _queue(self, data: memoryview) -> None:
        self._unsent.append(data)
        self._unsent_size += len(data)
        if self._unsent_size > HIGH_WATER:
            self._drained.clear()
        self._loop.add_writer(self._socket.fileno(), self._write_queued)

    def _write_queued(self) -> None:
        with contextlib.suppress(SandboxGone):
            while self._unsent:
                sent = self._write_now(self._unsent[0])
                if not sent:
                    return
                self._unsent_size -= sent
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()
                if self._unsent_size <= HIGH_WATER:
                    self._drained.set()
            self._loop.remove_writer(self._socket.fileno())
            return
        self._loop.remove_writer(self._socket.fileno())
