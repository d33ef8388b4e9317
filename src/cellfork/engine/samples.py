"""What sandboxes use, sampled: one timer for all of them, a bounded history for each.

The history of a sandbox covers its whole life: where it is full, every other one of its older samples is dropped.
"""

import math
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from cellfork.engine.clock import Clock, Timer
from cellfork.model.limits import Limits
from cellfork.runtimes.base import Guest

INTERVAL = 5.0
"""Seconds from one sample of a sandbox to the next."""
MOST_PER_SECOND = 200
"""Samples of all sandboxes together: where there are more than a thousand, each has to wait longer for its turn."""
SHORTEST_WAIT = 0.05
"""Seconds after which the timer is due at the earliest: what is due until then is sampled together."""
KEPT = 256
"""Samples of one sandbox."""
FIELDS: Final = 8
UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class Sample:
    """What a sandbox used at one moment.  ``None`` where the host cannot tell, or where there is no limit.

    ``time`` is Unix time in seconds.  ``cpu_percent`` is the processor time since the sample before, of all that the sandbox may
    use (``cpu_count`` cores): 0 to 100.  The rest is in bytes; ``memory_cache`` is the part of the memory that holds files.
    """

    time: float
    cpu_count: float
    cpu_percent: float | None
    memory_used: int | None
    memory_total: int | None
    memory_cache: int | None
    disk_used: int | None
    disk_total: int | None


class Measured(Protocol):
    """What is sampled."""

    guest: Guest
    history: "History"

    @property
    def state(self) -> str:
        """``running``: it can be measured."""
        ...

    @property
    def clock(self) -> Clock:
        """Its own time, which stands still in a pause."""
        ...

    @property
    def limits(self) -> Limits:
        """The sandbox's limits."""
        ...


class History:
    """The samples of one sandbox, the oldest first; kept as numbers, 64 bytes each."""

    def __init__(self, started: float) -> None:
        """``started`` is when the sandbox began to use anything, by its own clock."""
        self._numbers = array("d")
        self._cpu_time = 0.0
        self._at = started

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._numbers) // FIELDS

    def take(self, sandbox: Measured) -> None:
        """Measure a sandbox now."""
        usage, limits = sandbox.guest.measure(), sandbox.limits
        now = sandbox.clock.monotonic()
        cores = limits.cpu or float(os.cpu_count() or 1)
        percent = None
        if usage.cpu_time is not None:
            used, seconds = usage.cpu_time - self._cpu_time, max(0.001, now - self._at)
            percent = max(0.0, min(100.0, 100 * used / seconds / cores))
            self._cpu_time, self._at = usage.cpu_time, now
        numbers = (
            percent,
            usage.memory,
            limits.memory_bytes or None,
            usage.cache,
            usage.disk,
            usage.disk_total,
        )
        self._numbers.extend([
            sandbox.clock.time_ns() / 1e9,
            cores,
            *(UNKNOWN if number is None else number for number in numbers),
        ])  # fmt: skip
        if len(self) > KEPT:
            self._thin_out()

    def restart(self) -> None:
        """Count processor time from zero: other processes are measured from now on."""
        self._cpu_time = 0.0

    def between(self, start: float | None, end: float | None) -> list[Sample]:
        """Return the samples from ``start`` to ``end``, Unix times in seconds."""
        return [
            sample
            for sample in map(self._sample, range(len(self)))
            if (start is None or sample.time >= start) and (end is None or sample.time <= end)
        ]

    def _sample(self, number: int) -> Sample:
        time, cores, percent, *rest = self._numbers[number * FIELDS : (number + 1) * FIELDS]
        sizes = (None if math.isnan(value) else int(value) for value in rest)
        return Sample(time, cores, None if math.isnan(percent) else round(percent, 2), *sizes)

    def _thin_out(self) -> None:
        """Drop every other sample of the older half."""
        kept = array("d")
        for number in self._kept():
            kept.extend(self._numbers[number * FIELDS : (number + 1) * FIELDS])
        self._numbers = kept

    def _kept(self) -> Iterator[int]:
        half = len(self) // 2
        yield from range(0, half, 2)
        yield from range(half, len(self))


class Sampler:
    """Takes the samples of all sandboxes of an engine in turn.  All methods belong to the engine's event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns: OrderedDict[Measured, float] = OrderedDict()
        self._timer: Timer | None = None
        self._due = 0.0

    def add(self, sandbox: Measured) -> None:
        """Begin to sample a sandbox: in a moment, then regularly."""
        self._turns[sandbox] = self._clock.monotonic()
        self._turns.move_to_end(sandbox, last=False)
        self._wait(SHORTEST_WAIT)

    def discard(self, sandbox: Measured) -> None:
        """Sample a sandbox no longer."""
        self._turns.pop(sandbox, None)
        if not self._turns and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, seconds: float) -> None:
        """Have the timer due in ``seconds``, unless it is sooner anyway."""
        due = self._clock.monotonic() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._clock.later(seconds, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        interval = max(INTERVAL, len(self._turns) / MOST_PER_SECOND)
        while self._turns and (due := next(iter(self._turns.values()))) <= now:
            sandbox = next(iter(self._turns))
            if sandbox.state == "running":
                sandbox.history.take(sandbox)
            self._turns[sandbox] = now + interval
            self._turns.move_to_end(sandbox)
        if self._turns:
            self._wait(max(SHORTEST_WAIT, due - now))
