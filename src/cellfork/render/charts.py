"""Small pictures of chart descriptions (schema: e2b-charts) for a terminal.

A description comes from a sandbox: anything in it may be missing, of the wrong type or absurd.  What
cannot be drawn is not drawn.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from rich.text import Text

from cellfork.render.text import as_text, clean

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")

_MOST_BARS = 24
_MOST_POINTS = 5000
_MOST_SERIES = 12
_ROWS = 12
_LABEL_WIDTH = 20
_BLOCKS = " ▏▎▍▌▋▊▉"
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character's dots by row and column."""

Point = tuple[float, float]


def draw_chart(chart: Any, width: int = 72) -> Text | None:
    """Return a picture of ``chart`` in at most ``width`` columns; ``None`` where there is nothing to draw."""
    if not isinstance(chart, dict):
        return None
    width = max(30, width)
    elements = [element for element in _list(chart.get("elements")) if isinstance(element, dict)]
    match chart.get("type"):
        case "bar":
            body = _bars(_bar_values(elements), width)
        case "pie":
            body = _bars(_pie_values(elements), width, suffix=" %")
        case "line" | "scatter" as kind:
            body = _plot(elements, width, connect=kind == "line")
        case "superchart":
            pictures = [
                p
                for p in (
                    draw_chart(element, width)
                    for element in elements[:4]
                    if element.get("type") != "superchart"
                )
                if p
            ]
            body = Text("\n").join(pictures) if pictures else None
        case _:
            return None
    if body is None:
        return None
    title = _label(chart.get("title"), width)
    return Text("\n").join([Text(title, style="bold"), body]) if title else body


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _label(value: Any, width: int = _LABEL_WIDTH) -> str:
    text = "" if value is None else " ".join(clean(as_text(value)[:1000]).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _number(value: Any) -> float | None:
    """Return a finite float for a number or a date; ``None`` for anything else."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < 1e300 else None


# ------------------------------------------------------------------------------------------------- bars


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    value: float
    group: int = 0


def _bar_values(elements: Sequence[dict[str, Any]]) -> list[_Bar]:
    groups: dict[str, int] = {}
    bars = []
    for element in elements:
        value = _number(element.get("value"))
        group = groups.setdefault(_label(element.get("group")), len(groups))
        if value is not None:
            bars.append(_Bar(_label(element.get("label")), value, group))
    return bars


def _pie_values(elements: Sequence[dict[str, Any]]) -> list[_Bar]:
    angles = [(_label(element.get("label")), _number(element.get("angle"))) for element in elements]
    total = math.fsum(abs(angle) for _, angle in angles if angle is not None)
    if not total:
        return []
    return [_Bar(label, abs(a) / total * 100, i) for i, (label, a) in enumerate(angles) if a is not None]


def _bars(bars: Sequence[_Bar], width: int, suffix: str = "") -> Text | None:
    """Horizontal bars, one line each; negative values are drawn by their size and say their sign."""
    if not bars:
        return None
    shown = bars[:_MOST_BARS]
    largest = max(abs(bar.value) for bar in shown) or 1.0
    margin = max(len(bar.label) for bar in shown)
    room = max(8, width - margin - 14)
    lines = []
    for bar in shown:
        line = Text(f"{bar.label:>{margin}} ")
        line.append(_bar(abs(bar.value) / largest * room), style=COLOURS[bar.group % len(COLOURS)])
        lines.append(line.append(f" {bar.value:.4g}{suffix}"))
    if len(bars) > len(shown):
        lines.append(Text(f"… and {len(bars) - len(shown)} more", style="dim"))
    return Text("\n").join(lines)


def _bar(length: float) -> str:
    eighths = round(length * 8)
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8]).rstrip() or "▏"


# ------------------------------------------------------------------------------------------------ points


def _plot(elements: Sequence[dict[str, Any]], width: int, *, connect: bool) -> Text | None:
    """Points (or lines through them) in braille dots, with the ends of both axes."""
    series = [(e, points) for e in elements[:_MOST_SERIES] if (points := _points(e.get("points")))]
    if not series:
        return None
    xs, ys = zip(*(point for _, points in series for point in points), strict=True)
    frame = _Frame(_Axis.of(xs, (width - 12) * 2), _Axis.of(ys, _ROWS * 4))
    dots: dict[tuple[int, int], tuple[int, int]] = {}
    for number, (_, points) in enumerate(series):
        for column, row in frame.dots(points, connect=connect):
            cell = row // 4, column // 2
            bits, _ = dots.get(cell, (0, 0))
            dots[cell] = bits | _BRAILLE[row % 4][column % 2], number
    lines = [_row(dots, row, width - 12, frame.y) for row in range(_ROWS)]
    show = _date if _has_dates(series[0][0]) else "{:.5g}".format
    low, high = show(frame.x.low), show(frame.x.high)
    lines.append(Text(f"{'':10} {low}{high:>{max(1, width - 12 - len(low))}}", style="dim"))
    if len(series) > 1:
        lines.append(_legend([_label(element.get("label")) for element, _ in series]))
    return Text("\n").join(lines)


def _points(value: Any) -> list[Point]:
    """Points as pairs of numbers; what is not a number on the x axis counts 0, 1, 2, …."""
    points = []
    for index, pair in enumerate(_list(value)[:_MOST_POINTS]):
        if isinstance(pair, list | tuple) and len(pair) == 2 and (y := _number(pair[1])) is not None:
            x = _number(pair[0])
            points.append((float(index) if x is None else x, y))
    return points


def _has_dates(element: dict[str, Any]) -> bool:
    first = next(iter(_list(element.get("points"))), None)
    return isinstance(first, list | tuple) and len(first) == 2 and isinstance(first[0], str)


def _date(timestamp: float) -> str:
    try:
        return f"{datetime.fromtimestamp(timestamp):%Y-%m-%d}"  # noqa: DTZ006 - read as local, shown as local
    except (ValueError, OverflowError, OSError):
        return f"{timestamp:.5g}"


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    dots: int

    @classmethod
    def of(cls, values: Sequence[float], dots: int) -> "_Axis":
        return cls(min(values), max(values), dots)

    def place(self, value: float) -> int:
        span = self.high - self.low
        return round((value - self.low) / span * (self.dots - 1)) if span else self.dots // 2


@dataclass(frozen=True, slots=True)
class _Frame:
    x: _Axis
    y: _Axis

    def dots(self, points: Sequence[Point], *, connect: bool) -> Iterator[tuple[int, int]]:
        """Yield column and row (from the top) of each dot."""
        places = [(self.x.place(x), self.y.dots - 1 - self.y.place(y)) for x, y in points]
        yield from places
        for (column, row), (to_column, to_row) in pairwise(places) if connect else ():
            steps = max(abs(to_column - column), abs(to_row - row))
            for step in range(1, steps):
                part = step / steps
                yield round(column + (to_column - column) * part), round(row + (to_row - row) * part)


def _row(dots: dict[tuple[int, int], tuple[int, int]], row: int, columns: int, axis: _Axis) -> Text:
    label = f"{axis.high:.5g}" if row == 0 else f"{axis.low:.5g}" if row == _ROWS - 1 else ""
    line = Text(f"{label:>10} ", style="dim")
    for column in range(columns):
        bits, number = dots.get((row, column), (0, 0))
        line.append(chr(0x2800 + bits) if bits else " ", style=COLOURS[number % len(COLOURS)])
    return line


def _legend(names: Sequence[str]) -> Text:
    return Text("  ").join(Text(f"● {name}", style=COLOURS[i % len(COLOURS)]) for i, name in enumerate(names))
