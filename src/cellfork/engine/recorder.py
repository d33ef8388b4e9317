"""What one execution sends becomes numbered, bounded events and, folded, an ``Execution``.

The frames are the guest's, hence untrusted.  Their fields have the right types
(:func:`cellfork.wire.messages.check_from_guest`); everything else is bounded here:

- text by ``limits.output`` for each stream; small pieces that arrive together become one event, and after
  :data:`MAX_TURNS` turns from one stream to the other text is put together for each stream;
- results by ``limits.results``, ``limits.result`` for each, and :data:`RESULTS_FACTOR` times that for all; what of them
  is JSON, and what goes with them, also by the memory that it takes (:data:`MAX_WEIGHT`);
- clears and updates by what they make void in the log.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from cellfork.engine.clock import Clock
from cellfork.engine.output import TextStream
from cellfork.engine.replay import EventLog
from cellfork.model import events
from cellfork.model.execution import Execution
from cellfork.model.limits import Limits, MiB
from cellfork.wire.bundles import Part, cut_bundle
from cellfork.wire.frames import CHUNK
from cellfork.wire.values import weigh

RESULTS_FACTOR = 4
"""All results of an execution together may be this many times as large as one."""
MAX_WEIGHT = 256 * MiB
"""Bytes of memory that all JSON of an execution may take on the host: values of results, metadata, display ids."""
MAX_TURNS = 100_000
"""After so many turns from one stream to the other, the order between them is no longer kept."""
SLOW_AFTER = 10_000
"""After this many pieces of text, pieces are put together for :data:`SLOW_SECONDS`."""
SLOW_SECONDS = 0.05

Header = dict[str, Any]
Listener = Callable[[events.Event], object]


class Recorder:
    """Numbers, bounds, folds and logs the events of one execution; tells each to one listener at once."""

    __slots__ = (
        "_bytes",
        "_clear_waits",
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
        "_turns",
        "_updates",
        "_weight",
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
        self._text: dict[TextStream, list[str]] = {}
        self._text_stream = self.stdout
        self._text_count = self._turns = 0
        self._flush_handle: Any = None
        self._bytes = self._weight = self._count = self._dropped = 0
        self._updates: dict[str, tuple[int, int]] = {}
        self._main_seen = self._clear_waits = False

    # ------------------------------------------------------------------------------------------ text

    def text(self, stream: TextStream, header: Header, body: bytes) -> None:
        """Take a piece of stdout or stderr."""
        if self._text and stream is not self._text_stream and self._turns < MAX_TURNS:
            self._turns += 1
            self.flush_text()
        text = stream.feed(body, header["dropped"])
        if not text:
            return
        self._text_stream = stream
        self._text.setdefault(stream, []).append(text)
        if self._flush_handle is None:
            self._flush_handle = self._flush_later()

    def flush_text(self) -> None:
        """Emit the text that was put together."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        text, self._text = self._text, {}
        for stream, pieces in text.items():
            self._text_count += 1
            self._emit_text(stream, "".join(pieces))

    def _emit_text(self, stream: TextStream, text: str) -> None:
        self._start_anew()
        self._emit(events.Stdout if stream is self.stdout else events.Stderr, text)

    def _flush_later(self) -> Any:
        if self._text_count < SLOW_AFTER:
            return asyncio.get_running_loop().call_soon(self.flush_text)
        return self._clock.later(SLOW_SECONDS, self.flush_text)

    # --------------------------------------------------------------------------------------- results

    def display(self, header: Header, body: bytes) -> None:
        """Take a result; :class:`ProtocolViolation` where the bundle is malformed."""
        parts = cut_bundle(header["parts"], body)
        main, display_id = header["main"], header["display_id"]
        size, weight = len(body), _weight_of(parts, header)
        if self._clear_waits and self._fits(size, weight):
            self.flush_text()
            self._start_anew()
        if not self._admit(size, weight, counts=not (main and not self._main_seen)):
            return
        self._main_seen |= main
        if display_id is not None:
            self._updates.setdefault(display_id, (0, 0))
        self.flush_text()
        self._emit(events.Display, _read(parts), header["metadata"], display_id, main)

    def update(self, header: Header, body: bytes) -> None:
        """Take new content of a display; :class:`ProtocolViolation` where the bundle is malformed."""
        parts = cut_bundle(header["parts"], body)
        display_id = header["display_id"]
        before = self._updates.get(display_id)
        size, weight = len(body), _weight_of(parts, header)
        if self._admit(size, weight, void=before or (0, 0), counts=before is None):
            self._updates[display_id] = size, weight
            self.flush_text()
            self._emit(events.Update, _read(parts), display_id, header["metadata"])

    def clear(self, header: Header) -> None:
        """Take a request to clear the output: what it makes void counts until it takes effect."""
        self.flush_text()
        self._clear_waits = True
        if not header["wait"]:
            self._start_anew()
        self._emit(events.Clear, header["wait"])

    def _start_anew(self) -> None:
        """Count from zero where a clear takes effect now."""
        if self._clear_waits:
            self._clear_waits = False
            self._bytes = self._weight = self._count = 0
            self._updates.clear()

    def _fits(self, size: int, weight: int) -> bool:
        """Tell whether a result is within the bounds of a single one."""
        return size <= self._limits.result_bytes + CHUNK and weight <= MAX_WEIGHT

    def _admit(self, size: int, weight: int, *, void: tuple[int, int] = (0, 0), counts: bool) -> bool:
        """Tell whether a result is within bounds, and count it; it makes ``void`` (size and weight) of the log void."""
        total, heavy = self._bytes + size - void[0], self._weight + weight - void[1]
        most = RESULTS_FACTOR * (self._limits.result_bytes + CHUNK)
        within = self._fits(size, weight) and total <= most and heavy <= MAX_WEIGHT
        if not within or (counts and self._count >= self._limits.results):
            self._dropped += 1
            return False
        self._bytes, self._weight = total, heavy
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
            self._emit_text(self.stdout, text)
        text = self.stderr.flush()
        if self._dropped:
            text += f"\n… {self._dropped:,} results dropped …\n"
        if text:
            self._emit_text(self.stderr, text)

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
        return self._bytes + self._weight + min(self.produced, 2 * self._limits.output_bytes)

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


def _weight_of(parts: Sequence[Part], header: Header) -> int:
    """Return the memory that JSON takes in a result and in what goes with it; nothing has been read yet."""
    metadata, display_id = header["metadata"], header["display_id"]
    weight = sum(part.weight for part in parts) + 4 * sum(len(part.mime) for part in parts)
    if metadata:
        weight += weigh(json.dumps(metadata, ensure_ascii=False).encode())
    return weight + 4 * len(display_id or "")


def _read(parts: Sequence[Part]) -> dict[str, Any]:
    return {part.mime: part.read() for part in parts}
