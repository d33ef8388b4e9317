"""Small pictures of charts for a terminal.

A chart comes from a sandbox: its labels and numbers may be absurd.  What cannot be drawn is not drawn.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from cellfork.model.charts import (
    BarChart,
    BoxAndWhiskerChart,
    BoxAndWhiskerData,
    Chart,
    Coordinate,
    PieChart,
    PointChart,
    ScaleType,
    SuperChart,
)
from cellfork.render.captions import label as text_of
from cellfork.render.captions import of_all

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")

_MOST_BARS = 24
_MOST_CHARTS = 4
_MOST_POINTS = 20_000
_MOST_SERIES = 12
_ROWS = 12
_LABEL_WIDTH = 20
_MARGIN = 11
"""Columns left of a plot: what is written at the ends of the y axis."""
_BLOCKS = " ▏▎▍▌▋▊▉"
_FILLS = "█▓▒░"
_MARKS = "●○×+*#%&$@=~"
_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character's dots by row and column."""


def draw_chart(chart: Any, width: int = 72, *, colour: bool = True) -> Text | None:
    """Return a picture of ``chart`` in at most ``width`` columns; ``None`` where there is nothing to draw.

    Series differ by their colours; without ``colour``, by their marks.
    """
    if isinstance(chart, Mapping):
        chart = Chart.from_dict(chart)
    if not isinstance(chart, Chart):
        return None
    return _draw(chart, _Canvas(max(30, width), colour))


@dataclass(frozen=True, slots=True)
class _Canvas:
    width: int
    colour: bool

    def style(self, number: int) -> str:
        return COLOURS[number % len(COLOURS)] if self.colour else ""


def _draw(chart: Chart, canvas: _Canvas) -> Text | None:
    match chart:
        case BarChart():
            body = _bars(_bar_values(chart), canvas)
        case PieChart():
            body = _bars(_pie_values(chart), canvas, suffix=" %")
        case BoxAndWhiskerChart():
            body = _boxes(chart.elements, canvas)
        case PointChart():
            body = _plot(chart, canvas)
        case SuperChart():
            body = _several(chart, canvas)
        case _:
            return None
    if body is None:
        return None
    title, missing = _label(chart.title, canvas.width), of_all(chart)
    parts = [Text(title, style="bold")] if title else []
    return Text("\n").join([*parts, body, *([Text(f"({missing})", style="dim")] if missing else [])])


def _several(chart: SuperChart, canvas: _Canvas) -> Text | None:
    drawn = [
        picture
        for one in chart.elements[:_MOST_CHARTS]
        if not isinstance(one, SuperChart) and (picture := _draw(one, canvas)) is not None
    ]
    if not drawn:
        return None
    more = len(chart.elements) - _MOST_CHARTS
    note = [Text(f"… and {more} more charts", style="dim")] if more > 0 else []
    return Text("\n").join([*drawn, *note])


def _label(value: object, width: int = _LABEL_WIDTH) -> str:
    """Return text in at most ``width`` columns: some characters take two."""
    text = text_of(value, width)
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _right(text: str, width: int) -> str:
    return " " * max(0, width - cell_len(text)) + text


# ------------------------------------------------------------------------------------------------- bars


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    value: float
    group: str = ""


def _bar_values(chart: BarChart) -> list[_Bar]:
    """Return the bars, those with the same name beside each other."""
    bars = [
        _Bar(_label(one.label), one.value, _label(one.group))
        for one in chart.elements
        if isinstance(one.value, float) and abs(one.value) < 1e300
    ]
    places = {name: place for place, name in enumerate(dict.fromkeys(bar.label for bar in bars))}
    return sorted(bars, key=lambda bar: places[bar.label])


def _pie_values(chart: PieChart) -> list[_Bar]:
    wedges = [(_label(one.label), abs(one.angle)) for one in chart.elements if one.angle is not None]
    total = math.fsum(angle for _, angle in wedges if angle < 1e300)
    return [_Bar(name, angle / total * 100) for name, angle in wedges if angle < 1e300] if total else []


def _bars(bars: Sequence[_Bar], canvas: _Canvas, suffix: str = "") -> Text | None:
    """Horizontal bars, one line each; negative values are drawn by their size and say their sign."""
    if not bars:
        return None
    shown = bars[:_MOST_BARS]
    groups = list(dict.fromkeys(bar.group for bar in bars))
    largest = max(abs(bar.value) for bar in shown) or 1.0
    margin = max(cell_len(bar.label) for bar in shown)
    room = max(8, canvas.width - margin - 14)
    lines = []
    above = None
    for bar in shown:
        group = groups.index(bar.group)
        line = Text(_right("" if bar.label == above else bar.label, margin) + " ")
        fill = "█" if canvas.colour else _FILLS[group % len(_FILLS)]
        line.append(_bar(abs(bar.value) / largest * room, fill), style=canvas.style(group))
        lines.append(line.append(f" {bar.value:.4g}{suffix}"))
        above = bar.label
    if len(bars) > len(shown):
        lines.append(Text(f"… and {len(bars) - len(shown)} more", style="dim"))
    if len(groups) > 1:
        lines += _legend(groups, canvas, _FILLS)
    return Text("\n").join(lines)


def _bar(length: float, fill: str) -> str:
    if fill != "█":
        return fill * round(length) or "▏"
    eighths = round(length * 8)
    return (fill * (eighths // 8) + _BLOCKS[eighths % 8]).rstrip() or "▏"


# ------------------------------------------------------------------------------------------------ boxes


def _boxes(boxes: Sequence[BoxAndWhiskerData], canvas: _Canvas) -> Text | None:
    """Boxes on one common scale, a line each: whiskers, quartiles, median, what lies outside."""
    shown = [(box, marks) for box in boxes[:_MOST_BARS] if (marks := _marks(box))]
    if not shown:
        return None
    margin = max(cell_len(_label(box.label)) for box, _ in shown)
    values = [value for _, marks in shown for value in marks]
    axis = _Axis(min(values), max(values), max(12, canvas.width - margin - 2))
    lines = [_box(box, axis, margin, canvas.style(number)) for number, (box, _) in enumerate(shown)]
    if len(boxes) > len(shown):
        lines.append(Text(f"… and {len(boxes) - len(shown)} more", style="dim"))
    low, high = f"{axis.low:.5g}", f"{axis.high:.5g}"
    lines.append(Text(f"{'':{margin}} {low}{high:>{max(1, axis.dots - len(low))}}", style="dim"))
    return Text("\n").join(lines)


def _marks(box: BoxAndWhiskerData) -> list[float]:
    five = (box.min, box.first_quartile, box.median, box.third_quartile, box.max)
    if any(value is None for value in five):
        return []
    values = [value for value in (*five, *box.outliers[:_MOST_POINTS]) if value is not None]
    return values if all(abs(value) < 1e300 for value in values) else []


def _box(box: BoxAndWhiskerData, axis: "_Axis", margin: int, style: str) -> Text:
    cells = [" "] * axis.dots
    low, first, median, third, high, *outliers = (axis.place(value) for value in _marks(box))
    for place in outliers:
        cells[place] = "∘"
    for place in range(min(low, high), max(low, high) + 1):
        cells[place] = "─"
    for place in range(min(first, third), max(first, third) + 1):
        cells[place] = "▒"
    cells[low], cells[high] = "├", "┤"
    cells[median] = "┃"
    line = Text(_right(_label(box.label), margin) + " ")
    return line.append("".join(cells).rstrip(), style=style)


# ------------------------------------------------------------------------------------------------ points

Point = tuple[float, float]
Kind = Literal["number", "date", "name"]


def _plot(chart: PointChart, canvas: _Canvas) -> Text | None:
    """Points (or lines through them) in braille dots, with the ends of both axes."""
    series = [one for one in chart.elements[:_MOST_SERIES] if one.points]
    columns = canvas.width - _MARGIN - 1
    x_scale = _Scale.of(chart.x_scale, [x for one in series for x, _ in one.points[:_MOST_POINTS]])
    y_scale = _Scale.of(chart.y_scale, [y for one in series for _, y in one.points[:_MOST_POINTS]])
    placed = [_placed(one.points[:_MOST_POINTS], x_scale, y_scale) for one in series]
    drawn = [(text_of(one.label, _LABEL_WIDTH), points) for one, points in zip(series, placed, strict=True)]
    drawn = [(name, points) for name, points in drawn if any(points)]
    found = [point for _, points in drawn for point in points if point is not None]
    if not found:
        return None
    xs, ys = zip(*found, strict=True)
    frame = _Frame(_Axis(min(xs), max(xs), columns * 2), _Axis(min(ys), max(ys), _ROWS * 4))
    cells: dict[tuple[int, int], tuple[int, int]] = {}
    for number, (_, points) in enumerate(drawn):
        for column, row in frame.dots(points, connect=chart.type == "line"):
            cell = row // 4, column // 2
            bits, _ = cells.get(cell, (0, 0))
            cells[cell] = bits | _BRAILLE[row % 4][column % 2], number
    marked = not canvas.colour and len(drawn) > 1
    ends = {0: y_scale.show(frame.y.high), _ROWS - 1: y_scale.show(frame.y.low)}
    lines = [
        _row(cells, row, columns, _label(ends.get(row), 10), canvas, marked=marked) for row in range(_ROWS)
    ]
    if y_label := _label(chart.y_label, canvas.width):
        lines.insert(0, Text(y_label, style="dim"))
    low, high = (_label(x_scale.show(end)) for end in (frame.x.low, frame.x.high))
    lines.append(_foot(low, high, _label(chart.x_label, 40), columns))
    if len(drawn) > 1:
        lines += _legend([name for name, _ in drawn], canvas, _MARKS)
    if len(chart.elements) > _MOST_SERIES:
        lines.append(Text(f"… and {len(chart.elements) - _MOST_SERIES} more series", style="dim"))
    return Text("\n").join(lines)


@dataclass(frozen=True, slots=True)
class _Scale:
    """How coordinates become places, and places text again."""

    kind: Kind
    logarithmic: bool
    names: Mapping[str, int]

    @classmethod
    def of(cls, scale: ScaleType, values: Sequence[Coordinate]) -> "_Scale":
        names = [value for value in values if isinstance(value, str)]
        if not names or scale not in {ScaleType.DATETIME, ScaleType.CATEGORICAL}:
            kind: Kind = "number" if not names else "date" if _date(names[0]) is not None else "name"
        else:
            kind = "date" if scale == ScaleType.DATETIME else "name"
        places = {name: place for place, name in enumerate(dict.fromkeys(names))} if kind == "name" else {}
        return cls(kind, scale == ScaleType.LOG and not names, places)

    def place(self, value: Coordinate) -> float | None:
        """Return where a coordinate is; ``None`` for a gap and for what the scale cannot show."""
        if isinstance(value, str):
            return _date(value) if self.kind == "date" else self.names.get(value)
        if value is None or abs(value) >= 1e300:
            return None
        if self.logarithmic:
            return math.log10(value) if value > 0 else None
        return value

    def show(self, place: float) -> str:
        """Return what is written at a place."""
        if self.kind == "date":
            return _shown_date(place)
        if self.kind == "name":
            return next((name for name, at in self.names.items() if at == round(place)), f"{place:.5g}")
        return f"{10**place:.5g}" if self.logarithmic else f"{place:.5g}"


def _date(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _shown_date(place: float) -> str:
    try:
        moment = datetime.fromtimestamp(place, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{place:.5g}"
    return f"{moment:%Y-%m-%d}" if place % 86400 == 0 else f"{moment:%Y-%m-%d %H:%M}"


def _placed(
    points: Sequence[tuple[Coordinate, Coordinate]], x_scale: _Scale, y_scale: _Scale
) -> list[Point | None]:
    placed: list[Point | None] = []
    for x, y in points:
        across, up = x_scale.place(x), y_scale.place(y)
        placed.append(None if across is None or up is None else (across, up))
    return placed


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    dots: int

    def place(self, value: float) -> int:
        span = self.high - self.low
        return round((value - self.low) / span * (self.dots - 1)) if span else self.dots // 2


@dataclass(frozen=True, slots=True)
class _Frame:
    x: _Axis
    y: _Axis

    def dots(self, points: Sequence[Point | None], *, connect: bool) -> Iterator[tuple[int, int]]:
        """Yield column and row (from the top) of each dot; a gap ends a line."""
        places = [p and (self.x.place(p[0]), self.y.dots - 1 - self.y.place(p[1])) for p in points]
        yield from (place for place in places if place)
        for start, end in pairwise(places) if connect else ():
            if start and end:
                yield from _between(start, end)


def _between(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for step in range(1, steps):
        part = step / steps
        yield round(start[0] + (end[0] - start[0]) * part), round(start[1] + (end[1] - start[1]) * part)


def _row(
    cells: Mapping[tuple[int, int], tuple[int, int]],
    row: int,
    columns: int,
    end: str,
    canvas: _Canvas,
    *,
    marked: bool,
) -> Text:
    line = Text().append(_right(end, _MARGIN - 1) + " ", style="dim")
    last = max((column for at, column in cells if at == row), default=-1)
    for column in range(min(columns, last + 1)):
        bits, number = cells.get((row, column), (0, 0))
        shown = " " if not bits else _MARKS[number % len(_MARKS)] if marked else chr(0x2800 + bits)
        line.append(shown, style=canvas.style(number))
    line.rstrip()
    return line


def _foot(low: str, high: str, name: str, columns: int) -> Text:
    """The ends of the x axis with its label between them."""
    room = columns - cell_len(low) - cell_len(high)
    if cell_len(name) + 4 > room:
        name = ""
    left = max(1, (room - cell_len(name)) // 2)
    right = max(1, room - left - cell_len(name))
    return Text(" " * _MARGIN + low + " " * left + name + " " * right + high, style="dim")


def _legend(names: Sequence[str], canvas: _Canvas, marks: str) -> list[Text]:
    """The names of series behind their marks, on as many lines as they need."""
    lines = [Text()]
    for number, name in enumerate(names[:_MOST_SERIES]):
        mark = "●" if canvas.colour else marks[number % len(marks)]
        entry = f"{mark} {name}"
        if lines[-1] and cell_len(lines[-1].plain) + cell_len(entry) + 2 > canvas.width:
            lines.append(Text())
        lines[-1].append("  " if lines[-1] else "").append(entry, style=canvas.style(number))
    return lines
