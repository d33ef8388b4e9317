"""What one execution sends becomes numbered, bounded events and, folded, an ``Execution``.

The frames are the guest's, hence untrusted.  Their fields have the right types
(:func:`cellfork.wire.messages.check_from_guest`); everything else is bounded here:

- text by ``limits.output`` for each stream; small pieces that arrive together become one event;
- results by ``limits.results``, ``limits.result`` for each, and :data:`RESULTS_FACTOR` times that for all;
- clears and updates by what they make void in the log.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from cellfork.engine.clock import Clock
from cellfork.engine.output import TextStream
from cellfork.engine.replay import EventLog
from cellfork.model import events
from cellfork.model.execution import Execution
from cellfork.model.limits import Limits
from cellfork.wire.bundles import decode_bundle
from cellfork.wire.frames import CHUNK

RESULTS_FACTOR = 4
"""All results of an execution together may be this many times as large as one."""
SLOW_AFTER = 10_000
"""After this many pieces of text, pieces are put together for :data:`SLOW_SECONDS`."""
SLOW_SECONDS = 0.05

Header = dict[str, Any]
Listener = Callable[[events.Event], object]


class Recorder:
    """Numbers, bounds, folds and logs the events of one execution; tells each to one listener at once."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_count",
        "_dropped",
        "_flush_handle",
        "_limits",
        "_listener",
        "_main_seen",
        "_seq",
        "_text",
        "_text_count",
        "_text_stream",
        "_updates",
        "execution",
        "log",
        "stderr",
        "stdout",
    )

    def __init__(self, execution: Execution, limits: Limits, clock: Clock, listener: Listener | None) -> None:
        self.execution = execution
        self.log = EventLog()
        self._limits = limits
        self._clock = clock
        self._listener = listener
        self.stdout = TextStream("stdout", limits.output_bytes)
        self.stderr = TextStream("stderr", limits.output_bytes)
        self._seq = 0
        self._text: list[str] = []
        self._text_stream = self.stdout
        self._text_count = 0
        self._flush_handle: Any = None
        self._bytes = self._count = self._dropped = 0
        self._updates: dict[str, int] = {}
        self._main_seen = False

    # ------------------------------------------------------------------------------------------ text

    def text(self, stream: TextStream, header: Header, body: bytes) -> None:
        """Take a piece of stdout or stderr."""
        if self._text and stream is not self._text_stream:
            self.flush_text()
        text = stream.feed(body, header["dropped"])
        if not text:
            return
        self._text_stream = stream
        self._text.append(text)
        if self._flush_handle is None:
            self._flush_handle = self._flush_later()

    def flush_text(self) -> None:
        """Emit the text that was put together."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._text:
            text = "".join(self._text)
            self._text.clear()
            self._text_count += 1
            self._emit(events.Stdout if self._text_stream is self.stdout else events.Stderr, text)

    def _flush_later(self) -> Any:
        if self._text_count < SLOW_AFTER:
            return asyncio.get_running_loop().call_soon(self.flush_text)
        return self._clock.later(SLOW_SECONDS, self.flush_text)

    # --------------------------------------------------------------------------------------- results

    def display(self, header: Header, body: bytes) -> None:
        """Take a result; :class:`ProtocolViolation` where the bundle is malformed."""
        data = decode_bundle(header["parts"], body)
        main, display_id = header["main"], header["display_id"]
        if not self._admit(len(body), counts=not (main and not self._main_seen)):
            return
        self._main_seen |= main
        if display_id is not None:
            self._updates.setdefault(display_id, 0)
        self.flush_text()
        self._emit(events.Display, data, header["metadata"], display_id, main)

    def update(self, header: Header, body: bytes) -> None:
        """Take new content of a display; :class:`ProtocolViolation` where the bundle is malformed."""
        data = decode_bundle(header["parts"], body)
        display_id = header["display_id"]
        before = self._updates.get(display_id)
        if self._admit(len(body), void=before or 0, counts=before is None):
            self._updates[display_id] = len(body)
            self.flush_text()
            self._emit(events.Update, data, display_id, header["metadata"])

    def clear(self, header: Header) -> None:
        """Take a request to clear the output."""
        self.flush_text()
        self._bytes = self._count = 0
        self._updates.clear()
        self._emit(events.Clear, header["wait"])

    def _admit(self, size: int, *, void: int = 0, counts: bool) -> bool:
        """Tell whether a result is within bounds, and count it; it makes ``void`` bytes of the log void."""
        limit = self._limits.result_bytes + CHUNK
        total = self._bytes + size - void
        if size > limit or total > RESULTS_FACTOR * limit or (counts and self._count >= self._limits.results):
            self._dropped += 1
            return False
        self._bytes = total
        self._count += counts
        return True

    # ------------------------------------------------------------------------------------- the rest

    def started(self, count: int) -> None:
        """Say that the code was handed over."""
        self._emit(events.Started, count)

    def input_request(self, header: Header) -> None:
        """Take a question."""
        self.flush_text()
        self._emit(events.InputRequest, header["prompt"], header["password"])

    def finish_text(self) -> None:
        """Emit what was held back: incomplete characters, markers of what was dropped."""
        self.flush_text()
        if text := self.stdout.flush():
            self._emit(events.Stdout, text)
        text = self.stderr.flush()
        if self._dropped:
            text += f"\n… {self._dropped:,} results dropped …\n"
        if text:
            self._emit(events.Stderr, text)

    def finish(self, kind: type[events.Terminal], *values: Any, **more: Any) -> None:
        """Emit the terminal event; :meth:`finish_text` was called before."""
        self._emit(kind, *values, **more)

    @property
    def produced(self) -> int:
        """Bytes that were written to both streams, kept or not."""
        return self.stdout.produced + self.stderr.produced

    @property
    def kept_bytes(self) -> int:
        """Roughly what the log holds."""
        return self._bytes + min(self.produced, 2 * self._limits.output_bytes)

    @property
    def truncated(self) -> bool:
        """Whether anything was dropped."""
        return self.stdout.truncated or self.stderr.truncated or self._dropped > 0

    def _emit(self, kind: Callable[..., events.Event], *values: Any, **more: Any) -> None:
        self._seq += 1
        event = kind(*values, seq=self._seq, timestamp=self._clock.time_ns(), **more)
        self.execution.apply(event)
        self.log.append(event)
        if self._listener is not None:
            self._listener(event)
