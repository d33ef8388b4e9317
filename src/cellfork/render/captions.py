"""Charts in words: one line for a reader, and their numbers for a model."""

from collections.abc import Iterator, Sequence

from cellfork.model.charts import (
    BarChart,
    BoxAndWhiskerChart,
    Chart,
    Chart2D,
    Coordinate,
    PieChart,
    PointChart,
    PointData,
    SuperChart,
)
from cellfork.render.text import as_text, clean

_LONGEST_LABEL = 60
_MOST_NAMED = 3
_MOST_CHARTS = 64
_SHOWN_POINTS = 1000
_SHOWN_ELEMENTS = 2000


def caption(chart: Chart, longest: int = 160) -> str:
    """Return one line of at most ``longest`` characters: the kind, the title, what is on the axes, how much there is."""
    line = ", ".join(part for part in (_head(chart), *_facts(chart)) if part)
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def numbers(chart: Chart) -> str:
    """Return what the chart shows as text: its caption, then a line for each series, bar, wedge or box."""
    return "\n".join(_lines(chart, 0))


def label(value: object, longest: int = _LONGEST_LABEL) -> str:
    """Return text from a chart on one line, cut to ``longest`` characters."""
    text = "" if value is None else " ".join(clean(as_text(value)[:1000]).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def of_all(chart: Chart) -> str:
    """Return how much of the figure the description holds, where it is not all: ``500 of 9,000 points``."""
    parts = [
        f"{kept:,} of {total:,} {what}"
        for what, total in list(chart.truncated.items())[:6]
        if (kept := chart.truncated.get(f"{what}_kept")) is not None
    ]
    return label(", ".join(parts), 120)


def _head(chart: Chart) -> str:
    title = label(chart.title)
    kind = (
        "chart"
        if chart.type == "unknown"
        else "charts"
        if chart.type == "superchart"
        else f"{chart.type} chart"
    )
    kind = kind.replace("_", " ")
    count = f"{len(chart.elements)} " if isinstance(chart, SuperChart) else ""
    return f"{count}{kind} '{title}'" if title else f"{count}{kind}"


def _facts(chart: Chart) -> Iterator[str]:
    if isinstance(chart, Chart2D):
        yield ", ".join(f"{axis}: {_axis(chart, axis)}" for axis in "xy" if _axis(chart, axis))
    if isinstance(chart, PointChart):
        yield _named([label(one.label) for one in chart.elements], "series")
        yield f"{sum(len(one.points) for one in chart.elements):,} points"
    elif isinstance(chart, SuperChart):
        yield "; ".join(_head(one) for one in chart.elements[:_MOST_NAMED])
    elif isinstance(chart, BarChart | PieChart | BoxAndWhiskerChart):
        what = {"bar": "bars", "pie": "wedges"}.get(chart.type, "boxes")
        yield _named([label(one.label) for one in chart.elements], what)
    yield of_all(chart)


def _axis(chart: Chart2D, axis: str) -> str:
    text = label(getattr(chart, f"{axis}_label"))
    scale = str(getattr(chart, f"{axis}_scale", ""))
    return text if scale in {"", "linear", "unknown"} else f"{text} ({scale})".strip()


def _named(names: Sequence[str], what: str) -> str:
    """Return how many there are, and the names of the first."""
    count = f"{len(names):,} {what}"
    given = [name for name in names[:_MOST_NAMED] if name]
    more = ", …" if len(names) > _MOST_NAMED else ""
    return f"{count} ({', '.join(given)}{more})" if given else count


# ---------------------------------------------------------------------------------------------- numbers


def _lines(chart: Chart, depth: int) -> Iterator[str]:
    yield ", ".join(part for part in (_head(chart), *_facts(chart)) if part)
    if isinstance(chart, SuperChart):
        for one in chart.elements[:_MOST_CHARTS] if depth < 4 else ():
            yield from _lines(one, depth + 1)
    elif isinstance(chart, PointChart):
        yield from map(_series, chart.elements[:_SHOWN_ELEMENTS])
    else:
        yield from _elements(chart)


def _elements(chart: Chart) -> Iterator[str]:
    if isinstance(chart, BarChart):
        groups = len({bar.group for bar in chart.elements}) > 1
        for bar in chart.elements[:_SHOWN_ELEMENTS]:
            group = f" [{label(bar.group)}]" if groups else ""
            yield f"- {label(bar.label)}{group}: {_shown(bar.value)}"
    elif isinstance(chart, PieChart):
        total = sum(abs(wedge.angle or 0.0) for wedge in chart.elements) or 1.0
        for wedge in chart.elements[:_SHOWN_ELEMENTS]:
            yield f"- {label(wedge.label)}: {abs(wedge.angle or 0.0) / total * 100:.3g} %"
    elif isinstance(chart, BoxAndWhiskerChart):
        for box in chart.elements[:_SHOWN_ELEMENTS]:
            quartiles = f"{_shown(box.first_quartile)} | {_shown(box.median)} | {_shown(box.third_quartile)}"
            outside = f", {len(box.outliers):,} outliers" if box.outliers else ""
            yield f"- {label(box.label)}: {_shown(box.min)} [{quartiles}] {_shown(box.max)}{outside}"
    if len(chart.elements) > _SHOWN_ELEMENTS:
        yield f"[… {len(chart.elements) - _SHOWN_ELEMENTS:,} more …]"


def _series(series: PointData) -> str:
    shown = series.points[:_SHOWN_POINTS]
    points = " ".join(f"({_shown(x)}, {_shown(y)})" for x, y in shown)
    more = (
        f" [… {len(series.points) - len(shown):,} more points …]" if len(series.points) > len(shown) else ""
    )
    return f"- {label(series.label)}: {points}{more}"


def _shown(value: Coordinate) -> str:
    return "–" if value is None else label(value) if isinstance(value, str) else f"{value:.6g}"
