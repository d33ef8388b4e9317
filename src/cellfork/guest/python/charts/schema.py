"""The schema that all charts share (e2b-charts'), its bounds, and how values become numbers and text."""

import datetime as dt
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

Description = dict[str, Any]
Point = tuple[Any, Any]

MAX_POINTS = 10_000
"""Points (or bars, wedges, outliers) of all series of a figure."""
MAX_SERIES = 256
"""Series of one chart."""
MAX_CHARTS = 64
"""Charts of a superchart."""
MAX_TEXT = 500
"""Characters of a title or a label."""
MAX_TICKS = 500

_MOST_LOOKED_AT = 1_000_000
"""Values of one series that are compared with each other; of more, every n-th."""
_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")
_TAG = re.compile(r"<[^<>]{0,200}>")
_DATE = re.compile(r"[+-]?\d{4,6}-\d\d(-\d\d([T ]\d\d:\d\d.{0,30})?)?\Z")
_EMPTY_FRACTION = re.compile(r"\.0+(?=\Z|[+Z-])")


class Unreadable(Exception):
    """The figure does not hold what its chart would need."""


def unknown(title: Any = None) -> Description:
    """Return the description of a figure that could not be read."""
    return {"type": "unknown", "title": label(title), "elements": []}


def superchart(title: Any, charts: Sequence[Description]) -> Description:
    """Return one description for several charts."""
    chart: Description = {"type": "superchart", "title": label(title), "elements": list(charts[:MAX_CHARTS])}
    if len(charts) > MAX_CHARTS:
        note_truncated(chart, "charts", len(charts), MAX_CHARTS)
    return chart


def note_truncated(chart: Description, what: str, total: int, kept: int) -> None:
    """Say in the description that of ``total`` only ``kept`` are in it."""
    chart.setdefault("truncated", {}).update({what: total, f"{what}_kept": kept})


def shortened(text: str) -> str:
    """Return a text within the bound."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def label(value: Any) -> str | None:
    """Return a title or a label as text without markup, bounded; ``None`` for nothing."""
    if isinstance(value, list | tuple):
        value = " ".join(str(line) for line in value[:20])
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else str(value)
    if "<" in text:
        text = _TAG.sub("", text[:4000].replace("<br>", " "))
    return shortened(text)


def unit(text: str | None) -> str | None:
    """Return the unit that a label names in parentheses or brackets, as e2b-charts does."""
    match = _UNIT.search(text or "")
    return (match[1] or match[2]) if match else None


def planar(kind: str, title: Any, x_label: Any, y_label: Any) -> Description:
    """Return a chart with two axes, without elements yet."""
    x_text, y_text = label(x_label), label(y_label)
    return {
        "type": kind,
        "title": label(title),
        "elements": [],
        "x_label": x_text,
        "y_label": y_text,
        "x_unit": unit(x_text),
        "y_unit": unit(y_text),
    }


def swap_axes(chart: Description) -> None:
    """Turn a horizontal chart: labels belong to x, values to y."""
    for name in ("label", "unit"):
        chart[f"x_{name}"], chart[f"y_{name}"] = chart[f"y_{name}"], chart[f"x_{name}"]


def number(value: Any) -> float | None:
    """Return a finite float; ``None`` for NaN, infinities and what is no number."""
    if value is None or isinstance(value, str):
        return None
    try:
        converted = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return converted if math.isfinite(converted) else None


def coordinate(value: Any) -> float | str | None:
    """Return a number, a date in ISO format, or a category's name."""
    if isinstance(value, str):
        return _EMPTY_FRACTION.sub("", value) if is_date(value) else shortened(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bool):
        return str(value)
    return number(value)


def name(value: Any) -> str:
    """Return a category's name; whole numbers without a point."""
    given = coordinate(value)
    if isinstance(given, float) and given.is_integer():
        return str(int(given))
    return "" if given is None else str(given)


def is_date(value: Any) -> bool:
    """Tell whether a coordinate is a date."""
    return isinstance(value, dt.date) or (isinstance(value, str) and _DATE.match(value) is not None)


def scale_of(values: Iterable[Any]) -> str:
    """Return the scale that values ask for: dates, categories, or numbers."""
    given = [value for value in values if value is not None]
    if any(isinstance(value, str | dt.date) for value in given):
        return "datetime" if all(is_date(value) for value in given) else "categorical"
    return "linear"


def add_scale(chart: Description, axis: str, scale: str, values: Iterable[Any]) -> None:
    """Describe one axis; categories are its ticks."""
    names: list[str] = []
    if scale == "categorical":
        seen = dict.fromkeys(name(value) for value in values if value is not None)
        names = list(seen)[:MAX_TICKS]
    chart[f"{axis}_ticks"] = [float(index) for index in range(len(names))]
    chart[f"{axis}_tick_labels"] = names
    chart[f"{axis}_scale"] = scale


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divide ``room`` among series: the small ones in full, the large ones get equal parts of the rest."""
    kept = [0] * len(sizes)
    waiting = len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        kept[index] = min(sizes[index], room // waiting)
        room -= kept[index]
        waiting -= 1
    return kept


def fit_points(charts: Sequence[Description], whole: Description) -> None:
    """Thin out the points of all ``charts`` of a figure where there are too many; ``whole`` says so."""
    series = [s for c in charts if c["type"] in {"line", "scatter"} for s in c["elements"]]
    sizes = [len(element["points"]) for element in series]
    kept = shares(sizes, MAX_POINTS)
    if sum(kept) == sum(sizes):
        return
    for element, count in zip(series, kept, strict=True):
        points = element["points"]
        element["points"] = [points[place] for place in places([y for _, y in points], count)]
    note_truncated(whole, "points", sum(sizes), sum(kept))


def bounded(chart: Description) -> Description:
    """Return ``chart`` with no more elements than a chart may have."""
    elements = chart["elements"]
    points = chart["type"] in {"line", "scatter"}
    most = MAX_SERIES if points else MAX_POINTS
    if len(elements) > most:
        note_truncated(chart, "series" if points else "elements", len(elements), most)
        chart["elements"] = elements[:most]
    return chart


def places(values: Any, count: int) -> list[int]:
    """Return the indexes of ``count`` values: the first, the last, and the extremes of equal parts between them."""
    size = len(values)
    if size <= count:
        return list(range(size))
    if count < 4:
        return [place * size // count for place in range(count)]
    parts, inner = (count - 2) // 2, size - 2
    step = max(1, size // _MOST_LOOKED_AT)
    kept = [0]
    for part in range(parts):
        start, end = 1 + part * inner // parts, 1 + (part + 1) * inner // parts
        kept += [start + place * step for place in _extremes(as_list(values[start:end:step]))]
    return [*kept, size - 1]


def _extremes(part: Sequence[Any]) -> list[int]:
    """Return where the lowest and the highest of a few values are, in their order."""
    try:
        return sorted((part.index(min(part)), part.index(max(part))))
    except (TypeError, ValueError):  # names, gaps, or nothing
        return [0, len(part) - 1]


def as_list(part: Any) -> list[Any]:
    """Return a slice of a list or of an array as a list of Python's own values."""
    listed = part.tolist() if hasattr(part, "tolist") else list(part)
    return listed if isinstance(listed, list) else [listed]


def strided(values: Any, most: int) -> Any:
    """Return every n-th of a long sequence, so that there are at most ``most``."""
    size = len(values)
    return values if size <= most else values[:: -(-size // most)]


def quartiles_to_box(
    title: Any, quartiles: tuple[float, float, float], fences: tuple[float, float], outliers: Sequence[float]
) -> Description:
    """Return an element of a box-and-whisker chart."""
    return {
        "label": label(title) or "",
        "min": fences[0],
        "first_quartile": quartiles[0],
        "median": quartiles[1],
        "third_quartile": quartiles[2],
        "max": fences[1],
        "outliers": list(outliers[: MAX_POINTS // 10]),
    }


def box_of(title: Any, values: Iterable[Any], quantile: Any, reach: float | None = 1.5) -> Description | None:
    """Return a box for raw values; whiskers end at the last value within ``reach`` times the quartiles' distance.

    ``quantile(sorted values, fraction)`` is the library's own way to interpolate; with ``reach`` ``None`` the
    whiskers go to the extremes.
    """
    ordered = sorted(n for n in map(number, values) if n is not None)
    if not ordered:
        return None
    first, median, third = (quantile(ordered, fraction) for fraction in (0.25, 0.5, 0.75))
    if reach is None:
        return quartiles_to_box(title, (first, median, third), (ordered[0], ordered[-1]), ())
    low, high = first - reach * (third - first), third + reach * (third - first)
    within = [value for value in ordered if low <= value <= high] or [median]
    outliers = [value for value in ordered if not low <= value <= high]
    return quartiles_to_box(title, (first, median, third), (within[0], within[-1]), outliers)
