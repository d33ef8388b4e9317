"""The kernel's end of its socket: frames out in order, frames in, and what SIGINT may do meanwhile."""

import json
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cellfork.guest.python.content import Content, encode_bundle
from cellfork.guest.python.streams import Outlet
from cellfork.wire.frames import MAX_HEADER, PREFIX, Decoder, Frame

MAX_HELD = 64
"""Displays kept while no execution runs (threads and tasks that outlived their cell)."""
MAX_HELD_BYTES = 8 * 1024 * 1024
READ_SIZE = 256 * 1024

POKE = signal.SIGURG
"""Ends a system call, so that Python runs the handlers that wait: who does not handle it does not notice it."""
Message = tuple[dict[str, Any], bytes]
"""Header and body of a frame to be sent."""

_to_json = json.JSONEncoder(separators=(",", ":")).encode
"""Kept from the start: code may replace what is in ``json``."""


def be_pokeable() -> None:
    """Let a poke end a system call, and do nothing else."""
    signal.signal(POKE, lambda _number, _frame: None)


class Interrupts:
    """Turns SIGINT into ``KeyboardInterrupt`` while code runs, except in the middle of a frame.

    A signal that arrives while nothing runs is remembered in ``missed`` and otherwise ignored.
    """

    def __init__(self) -> None:
        self.running = False
        self.missed = False
        self.fired = False
        self._depth = 0
        self._pending = False
        self._main = threading.main_thread().ident

    def install(self) -> None:
        """Handle SIGINT from now on, whatever did so before."""
        signal.signal(signal.SIGINT, self.handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def handle(self, number: int, frame: Any) -> None:
        """Be the signal handler."""
        if not self.running:
            self.missed = True
        elif self._depth:
            self._pending = True
        else:
            self.fired = True
            raise KeyboardInterrupt

    @contextmanager
    def seen_from_here(self) -> Iterator["Interrupts"]:
        """Let ``fired`` tell for a while whether a signal came meanwhile; afterwards whether one came at all."""
        before, self.fired = self.fired, False
        try:
            yield self
        finally:
            self.fired = self.fired or before

    def hold(self) -> bool:
        """Let signals wait; return whether this is the main thread, to be given to :meth:`release`."""
        main = threading.get_ident() == self._main
        if main:
            self._depth += 1
        return main

    def release(self, main: bool) -> None:
        """Let a signal that waited act."""
        if main:
            self._depth -= 1
            if self._pending and not self._depth:
                self._pending = False
                if self.running:
                    self.fired = True
                    raise KeyboardInterrupt


class Reporter:
    """Sends what an execution produces.  Until :meth:`connect`, everything is dropped."""

    def __init__(self, outlet: Outlet, interrupts: Interrupts) -> None:
        self.outlet = outlet
        self.interrupts = interrupts
        self.execution: str | None = None
        self.result_limit = 32 * 1024 * 1024
        self._connection: socket.socket | None = None
        self._fflush: Any = None
        self._held: deque[Message] = deque()
        self._held_bytes = 0
        self._deferred: list[Message] = []

    def connect(self, connection: socket.socket, fflush: Any) -> None:
        """Send over ``connection`` from now on; ``fflush`` empties the buffers of C's stdio."""
        self._connection = connection
        self._fflush = fflush

    def begin(self, execution: str, result_limit: int) -> None:
        """Open an execution and send what came up since the last one."""
        with self.outlet.lock:
            self.execution = execution
            self.result_limit = result_limit
            while self._held:
                header, body = self._held.popleft()
                self._send([({**header, "execution": execution}, body)])
            self._held_bytes = 0

    def display(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        display_id: str | None = None,
        update: bool = False,
        main: bool = False,
        defer: bool = False,
    ) -> None:
        """Send a MIME bundle as a display, as an update of one, or as the cell's main result.

        ``defer`` lets it wait for what comes next: one system call for both.
        """
        if self._connection is None or not self.outlet.owner:
            return
        content = encode_bundle(data, metadata or {}, self.result_limit)
        header: dict[str, Any] = {
            "op": "update" if update else "display",
            "execution": self.execution,
            "parts": content.parts,
            "metadata": content.metadata,
            "display_id": display_id,
        }
        if not update:
            header["main"] = main
        self._emit(header, content.body, defer=defer)

    def flush(self) -> None:
        """Send what was deferred."""
        with self.outlet.lock:
            if self._deferred:
                frames, self._deferred = self._deferred, []
                self._send(frames)

    def clear(self, wait: bool) -> None:
        """Ask for the output so far to be cleared."""
        self._emit({"op": "clear", "execution": self.execution, "wait": bool(wait)}, b"")

    def ask(self, prompt: str, password: bool) -> None:
        """Ask the client for a line of input."""
        header = {
            "op": "input_request",
            "execution": self.execution,
            "prompt": prompt[:65536],
            "password": password,
        }
        self._emit(header, b"")

    def missed(self) -> None:
        """Tell init that a signal came before the code that it was meant for."""
        self._emit({"op": "missed", "execution": self.execution}, b"")

    def done(self, header: Mapping[str, Any], content: Content) -> None:
        """Close the execution."""
        with self.outlet.lock:
            message = {"op": "done", "execution": self.execution, **header, "parts": content.parts}
            self._emit(message, content.body)
            self.execution = None

    def _emit(self, header: dict[str, Any], body: bytes, *, defer: bool = False) -> None:
        if self._connection is None or not self.outlet.owner:
            return
        with self.outlet.lock:
            if self.execution is None:
                self._hold(header, body)
                return
            self._deferred.append((header, body))
            self.outlet.before_write = self.flush
            if not defer:
                self.flush()

    def _hold(self, header: dict[str, Any], body: bytes) -> None:
        if len(self._held) < MAX_HELD and self._held_bytes + len(body) <= MAX_HELD_BYTES:
            self._held_bytes += len(body)
            self._held.append((header, body))

    def _send(self, frames: list[Message]) -> None:
        self.outlet.before_write = None
        connection = self._connection
        if connection is None:
            return
        main = self.interrupts.hold()
        try:
            self._fflush(None)
            epoch = self.outlet.mark()
            connection.sendall(b"".join([_encode(header, body, epoch) for header, body in frames]))
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)  # init is gone, and nobody would ever read what this process does
        finally:
            self.interrupts.release(main)


def _encode(header: dict[str, Any], body: bytes, epoch: int) -> bytes:
    text = _to_json(header).encode("ascii")
    if len(text) > MAX_HEADER:
        text = _to_json({**header, "metadata": {}}).encode("ascii")
    return PREFIX.pack(len(text), len(body), epoch) + text + body


class Inbox:
    """Frames from init.  Reads nothing that it has not been asked for."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._decoder = Decoder()
        self._frames: deque[Frame] = deque()

    def take(self) -> Frame | None:
        """Return a frame that is here already."""
        return self._frames.popleft() if self._frames else None

    def take_all(self, op: str) -> list[Frame]:
        """Return the frames of a kind that are here already; the others stay, in their order."""
        taken = [frame for frame in self._frames if frame.header["op"] == op]
        self._frames = deque(frame for frame in self._frames if frame.header["op"] != op)
        return taken

    def read(self) -> bool:
        """Read once, blocking.  Returns ``False`` when init is gone."""
        data = self.connection.recv(READ_SIZE)
        self._frames.extend(self._decoder.feed(data))
        return bool(data)

    def next(self) -> Frame | None:
        """Return the next frame, ``None`` when init is gone."""
        while not self._frames:
            if not self.read():
                return None
        return self._frames.popleft()
