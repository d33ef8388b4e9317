"""Samples, what they amount to, and whether that meets a goal.  No I/O."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Statistic = Literal["p50", "p95", "p99", "min"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples in a few numbers, in the unit of the samples."""

    count: int
    min: float
    p50: float
    p95: float
    p99: float


def percentile(samples: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` (0 to 1) of the samples lie; linear between neighbours.

    Raises ``ValueError`` where there are none.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(samples: Sequence[float]) -> Summary:
    """Return the summary of samples; ``ValueError`` where there are none."""
    return Summary(
        count=len(samples),
        min=min(samples, default=0.0),
        p50=percentile(samples, 0.5),
        p95=percentile(samples, 0.95),
        p99=percentile(samples, 0.99),
    )


@dataclass(frozen=True, slots=True)
class Goal:
    """What was promised: a bound on our p50 (in the row's unit), a factor over the peer, or both.

    ``at_least`` turns the bound around: for rates, more is better.
    """

    bound: float | None = None
    factor: float | None = None
    at_least: bool = False

    def describe(self, unit: str) -> str:
        """Return for instance ``≤ 10 ms, ≥ 50× peer``."""
        parts = []
        if self.bound is not None:
            parts.append(f"{'≥' if self.at_least else '≤'} {self.bound:g} {unit}")
        if self.factor is not None:
            parts.append(f"≥ {self.factor:g}× peer")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: what, in which unit, our summary, the peer's, the goal, and what else was seen."""

    name: str
    title: str
    unit: str
    ours: Summary
    goal: Goal
    peer: Summary | None = None
    peer_name: str = ""
    more_is_better: bool = False
    failures: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    """Parts of the promise beside the goal that were not kept (flatness, success)."""

    @property
    def ratio(self) -> float | None:
        """How many times better our p50 is than the peer's."""
        if self.peer is None or not self.ours.p50 or not self.peer.p50:
            return None
        ratio = self.peer.p50 / self.ours.p50
        return 1 / ratio if self.more_is_better else ratio

    @property
    def misses(self) -> list[str]:
        """What of the goal was missed, in words with numbers; nothing where all was met or could not be compared."""
        missed = list(self.broken)
        goal = self.goal
        if goal.bound is not None and (
            self.ours.p50 < goal.bound if goal.at_least else self.ours.p50 > goal.bound
        ):
            missed.append(f"{self.ours.p50:.3g} {self.unit} against {goal.bound:g} {self.unit}")
        if goal.factor is not None and self.ratio is not None and self.ratio < goal.factor:
            missed.append(f"{self.ratio:.3g}× against {goal.factor:g}×")
        if self.failures:
            missed.append(f"{self.failures} failures")
        return missed

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the derived ones too."""
        return {
            **asdict(self),
            "goal": self.goal.describe(self.unit),
            "ratio": self.ratio,
            "met": not self.misses,
            "misses": self.misses,
        }
