"""Rows as text for people, as Markdown for SPECIFICATION.md, as JSON for machines."""

from collections.abc import Mapping, Sequence
from typing import Any

from cellfork.cli.benchmarks.stats import Row
from cellfork.model.limits import GiB

HEADINGS = ("what", "p50", "p95", "p99", "min", "n", "peer p50", "ratio", "goal", "met")


def as_json(rows: Sequence[Row], machine: dict[str, Any]) -> dict[str, Any]:
    """Return everything: the machine and all rows."""
    return {"machine": machine, "rows": [row.to_dict() for row in rows]}


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of rows as :meth:`Row.to_dict` gives them."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def as_section(whole: Mapping[str, Any], day: str) -> str:
    """Return what SPECIFICATION.md says of a run, from what :func:`as_json` returned."""
    machine = whole["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        (
            f"Measured on {day}: {machine['processors']} processors ({machine['processor']}), "
            f"{machine['memory_bytes'] / GiB:.1f} GiB of memory, Linux {machine['kernel']}, {machine['system']}, "
            f"Python {machine['python']}, as {machine['user']}; {versions}. The load was {machine['load'][0]:g} at the start."
        ),
        "",
        as_markdown(whole["rows"]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def as_text(row: Row) -> str:
    """Return one row as a few lines for a terminal."""
    _, p50, p95, p99, least, count, peer, ratio, goal, met = cells(row.to_dict())
    lines = [row.title, f"  cellfork  p50 {p50}  p95 {p95}  p99 {p99}  min {least}  (n={count})"]
    if row.peer is not None:
        lines.append(f"  peer      p50 {peer}: {ratio}   [{row.peer_name}]")
    lines += [f"  {name}: {value}" for name, value in row.notes.items()]
    if goal:
        lines.append(f"  goal      {goal}")
    return "\n".join([*lines, f"  met       {met}"])


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one row (as :meth:`Row.to_dict` gives it) as text, in the order of :data:`HEADINGS`."""
    ours, peer, unit = row["ours"], row["peer"], row["unit"]
    return (
        row["title"],
        f"{_number(ours['p50'])} {unit}",
        _number(ours["p95"]),
        _number(ours["p99"]),
        _number(ours["min"]),
        str(ours["count"]),
        f"{_number(peer['p50'])} {unit} (n={peer['count']})" if peer else "–",
        f"{row['ratio']:.3g}×" if row["ratio"] is not None else "–",
        row["goal"],
        _verdict(row),
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _verdict(row: Mapping[str, Any]) -> str:
    if row["misses"]:
        return f"no: {'; '.join(row['misses'])}"
    return "yes" if row["goal"] else "–"
