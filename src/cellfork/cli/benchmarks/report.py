"""Rows as text for people, as Markdown for SPECIFICATION.md, as JSON for machines."""

from collections.abc import Mapping, Sequence
from typing import Any

from cellfork.cli.benchmarks.stats import Row, Summary

HEADINGS = ("what", "p50", "p95", "p99", "min", "n", "peer p50", "ratio", "goal", "met")


def as_json(
    rows: Sequence[Row], machine: dict[str, Any], not_measured: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return everything: the machine, all rows, and why others are not there."""
    return {
        "machine": machine,
        "rows": [row.to_dict() for row in rows],
        "not_measured": dict(not_measured or {}),
    }


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def as_text(row: Row) -> str:
    """Return one row as a few lines for a terminal."""
    _, p50, p95, p99, least, count, peer, ratio, goal, met = cells(row)
    lines = [row.title, f"  cellfork  p50 {p50}  p95 {p95}  p99 {p99}  min {least}  (n={count})"]
    if row.peer is not None:
        lines.append(f"  peer      p50 {peer}: {ratio}   [{row.peer_name}]")
    lines += [f"  {name}: {value}" for name, value in row.notes.items()]
    if goal:
        lines.append(f"  goal      {goal}")
    return "\n".join([*lines, f"  met       {met}"])


def cells(row: Row) -> tuple[str, ...]:
    """Return one row as text, in the order of :data:`HEADINGS`."""
    ours: Summary = row.ours
    peer = f"{_number(row.peer.p50)} {row.unit} (n={row.peer.count})" if row.peer else "–"
    return (
        row.title,
        f"{_number(ours.p50)} {row.unit}",
        _number(ours.p95),
        _number(ours.p99),
        _number(ours.min),
        str(ours.count),
        peer,
        f"{row.ratio:.3g}×" if row.ratio is not None else "–",
        row.goal.describe(row.unit),
        "yes" if not row.misses else f"no: {'; '.join(row.misses)}",
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
