"""Waiting for signals and for everything else at once."""

import signal
import socket


class Wakeup:
    """A descriptor that can be read when a signal came; who waits without a bound waits for it as well.

    Python runs a handler between two of its own instructions.  A signal that comes after the last of them and before
    the wait itself does not end the wait, and its handler would be run when that ends for another reason.

    A process has one: the latest.  Source: "Execution of Python signal handlers" and ``set_wakeup_fd`` in the
    documentation of Python's ``signal``.
    """

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """Return what to wait for."""
        return self._read_end.fileno()

    def clear(self) -> None:
        """Forget the signals that came: their handlers run before whatever the caller does next."""
        self._read_end.recv(4096)
