"""Text from Python into the two output pipes, with the markers that keep it in order with frames.

See "Kernel ↔ init" in ``wire/PROTOCOL.md``.
"""

import contextlib
import errno
import io
import os
import select
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

MARK = b"\x00\x1bCF"
NONCE_SIZE = 8
_EPOCH = struct.Struct(">I")
MARKER_SIZE = len(MARK) + NONCE_SIZE + _EPOCH.size

STDOUT = 0
STDERR = 1


class Outlet:
    """The writing ends of the two pipes and the number of the last marker.

    Until :meth:`connect` everything that is written is dropped: so it is in the zygote.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.epoch = 0
        self._fds: tuple[int, int] | None = None
        self._mark = b""
        self._last: int | None = None
        self._owner = True
        self.before_write: Callable[[], None] | None = None

    def connect(self, fds: tuple[int, int], nonce: bytes) -> None:
        """Write to ``fds`` (stdout, stderr) from now on; ``nonce`` is part of every marker."""
        self._fds = fds
        self._mark = MARK + nonce
        os.register_at_fork(after_in_child=self._disown)

    def mark(self) -> int:
        """Write the next marker into both pipes and return its number.  Call with the lock held."""
        self.epoch = (self.epoch + 1) & 0xFFFFFFFF
        self._last = None
        if self._fds is not None and self._owner:
            marker = self._mark + _EPOCH.pack(self.epoch)
            for fd in self._fds:
                write_all(fd, marker)
        return self.epoch

    def write(self, stream: int, data: bytes) -> None:
        """Write to :data:`STDOUT` or :data:`STDERR`, after a marker where the other one was written last.

        ``before_write``, where set, is called first: it sends what still waits to be sent.
        """
        with self.lock:
            if self._fds is None:
                return
            if self.before_write is not None:
                self.before_write()
            if self._last is not stream:
                if self._last is not None:
                    self.mark()
                self._last = stream
            write_all(self._fds[stream], data)

    def fence(self) -> None:
        """Keep what was written so far, to either stream, before what anybody writes from now on."""
        with self.lock:
            if self.before_write is not None:
                self.before_write()
            self.mark()

    @property
    def owner(self) -> bool:
        """Whether this process is the kernel, and not one that the user's code forked from it."""
        return self._owner

    def _disown(self) -> None:
        """In a process that the user's code forked: text goes on, markers and frames do not."""
        self._owner = False
        self.before_write = None
        self.lock = threading.RLock()


def write_all(fd: int, data: bytes) -> None:
    """Write everything; wait where the pipe was made non-blocking; drop the rest where its reader is gone."""
    try:
        written = os.write(fd, data)
    except BlockingIOError:
        written = 0
    except OSError as error:
        if error.errno in {errno.EPIPE, errno.EBADF}:
            return
        raise
    if written < len(data):
        _write_rest(fd, memoryview(data)[written:])


def _write_rest(fd: int, rest: memoryview) -> None:
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError as error:
            if error.errno in {errno.EPIPE, errno.EBADF}:
                return
            raise


class TextStream(io.TextIOBase):
    """``sys.stdout`` or ``sys.stderr``: every write leaves at once; closing it does nothing."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True
    write_through = True
    mode = "w"

    def __init__(self, outlet: Outlet, stream: int) -> None:
        self._outlet = outlet
        self._stream = stream
        self._fd = (1, 2)[stream]
        self.name = ("<stdout>", "<stderr>")[stream]
        self.buffer = ByteStream(self)

    def write(self, text: str) -> int:
        """Write ``text``; what UTF-8 cannot say is escaped with backslashes."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text)}")
        if text:
            self._outlet.write(self._stream, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Write ``data`` as it is."""
        if data:
            self._outlet.write(self._stream, data)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Write all ``lines`` in one go."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def fileno(self) -> int:
        """Return 1 or 2, which lead to the same pipe."""
        return self._fd

    def isatty(self) -> bool:
        """Return ``False``."""
        return False

    def writable(self) -> bool:
        """Return ``True``."""
        return True

    def close(self) -> None:
        """Do nothing: code that closes its standard output would lose what it prints later."""

    @property
    def closed(self) -> bool:
        """Always ``False``."""
        return False

    def reconfigure(self, **options: Any) -> None:
        """Accept what ``io.TextIOWrapper`` accepts; the encoding stays UTF-8."""

    def detach(self) -> Any:
        """Refuse, as the stream goes on living."""
        raise io.UnsupportedOperation("detach")


class ByteStream(io.RawIOBase):
    """``sys.stdout.buffer``: bytes into the same pipe."""

    mode = "wb"

    def __init__(self, text: TextStream) -> None:
        self._text = text
        self.name = text.name

    @property
    def raw(self) -> "ByteStream":
        """Itself: there is no buffer above it."""
        return self

    def write(self, data: Any) -> int:
        """Write ``data`` (anything with the buffer protocol) at once."""
        content = bytes(data)
        self._text.write_bytes(content)
        return len(content)

    def fileno(self) -> int:
        """Return 1 or 2."""
        return self._text.fileno()

    def writable(self) -> bool:
        """Return ``True``."""
        return True

    def close(self) -> None:
        """Do nothing, as :meth:`TextStream.close`."""

    @property
    def closed(self) -> bool:
        """Always ``False``."""
        return False


def flush_replaced(*own: TextStream) -> None:
    """Flush ``sys.stdout`` and ``sys.stderr`` where the user's code put other objects there."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None or stream in own:
            continue
        with contextlib.suppress(Exception):  # whatever an object of the user's raises
            stream.flush()
