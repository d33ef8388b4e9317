"""Charts of matplotlib figures: what e2b-charts reads from their axes, within bounds."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cellfork.guest.python.charts.schema import (
    MAX_CHARTS,
    MAX_POINTS,
    MAX_SERIES,
    MAX_TICKS,
    Description,
    Point,
    as_list,
    note_truncated,
    number,
    places,
    shares,
    shortened,
    strided,
    unknown,
)


def matplotlib_chart(figure: Any) -> Description | None:
    """Return the chart of a figure; ``None`` for a blank one, or where e2b-charts is not installed.

    Axes that e2b-charts fails on are of type ``unknown``.
    """
    try:
        from e2b_charts.main import get_chart_from_ax
    except Exception:  # noqa: BLE001 - missing, or made for another matplotlib
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _chart_of(figure, get_chart_from_ax)
    except Exception:  # noqa: BLE001 - the user may have put anything into a figure
        return unknown()


def _chart_of(figure: Any, read: Callable[[Any], Any]) -> Description | None:
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes):
        return None
    limits = _Limits(axes[:MAX_CHARTS])
    charts = [_chart_of_axes(ax, limits, read) for ax in axes[:MAX_CHARTS]]
    if len(axes) == 1:
        whole = charts[0]
    else:
        whole = {"type": "superchart", "title": shortened(figure.get_suptitle()), "elements": charts}
    for what, total, kept in limits.left_out():
        note_truncated(whole, what, total, kept)
    if len(axes) > MAX_CHARTS:
        note_truncated(whole, "charts", len(axes), MAX_CHARTS)
    return whole


def _chart_of_axes(ax: Any, limits: "_Limits", read: Callable[[Any], Any]) -> Description:
    try:
        chart: Description = read(limits.view_of(ax)).model_dump()
        return _plain(chart)
    except Exception:  # noqa: BLE001 - it reads private attributes, and not every figure is as it expects
        return unknown(ax.get_title())


# ---------------------------------------------------------------------------------------------- bounds


class _View:
    """One of matplotlib's objects with some of its attributes replaced: the figure itself is never changed."""

    def __init__(self, target: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced, _target=target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class _Bars(list[Any]):
    """The first bars of a container."""

    def __init__(self, container: Any, count: int) -> None:
        super().__init__(container[:count])
        self.get_label = container.get_label


class _Limits:
    """How much of which line, cloud of points and group of bars is looked at."""

    def __init__(self, axes: Sequence[Any]) -> None:
        self._sizes: dict[Any, int] = {}
        self._series = 0
        for ax in axes:
            self._add(ax.get_lines(), lambda line: len(line.get_xdata()))
            self._add(
                [c for c in ax.collections if hasattr(c, "get_offsets")], lambda c: len(c.get_offsets())
            )
            self._add(ax.containers, len)
            self._sizes[ax] = len(ax.patches)
        self._kept = dict(zip(self._sizes, shares(list(self._sizes.values()), MAX_POINTS), strict=True))

    def _add(self, artists: Sequence[Any], size_of: Callable[[Any], int]) -> None:
        self._series += max(0, len(artists) - MAX_SERIES)
        self._sizes.update({artist: size_of(artist) for artist in artists[:MAX_SERIES]})

    def left_out(self) -> list[tuple[str, int, int]]:
        """Return what is beyond the bounds: of what, how many there are, how many are kept."""
        notes = []
        total, kept = sum(self._sizes.values()), sum(self._kept.values())
        if kept < total:
            notes.append(("points", total, kept))
        if self._series:
            series = sum(1 for artist in self._sizes if not hasattr(artist, "patches"))
            notes.append(("series", series + self._series, series))
        return notes

    def view_of(self, ax: Any) -> Any:
        """Return the axes, or a view with less in it."""
        lines = [self._line(line) for line in ax.get_lines()[:MAX_SERIES]]
        collections = [self._cloud(cloud) for cloud in ax.collections[:MAX_SERIES]]
        containers = [self._bars(container) for container in ax.containers[:MAX_SERIES]]
        patches = ax.patches[: self._kept[ax]]
        pairs = (lines, ax.get_lines()), (collections, ax.collections), (containers, ax.containers)
        whole = all(
            len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs, strict=True))
            for ours, theirs in (*pairs, (patches, ax.patches))
        )
        if whole:
            return ax
        return _View(
            ax,
            get_lines=lambda: lines,
            lines=lines,
            collections=collections,
            containers=containers,
            patches=patches,
        )

    def _line(self, line: Any) -> Any:
        if self._kept[line] >= self._sizes[line]:
            return line
        xs, ys = line.get_xdata(), line.get_ydata()
        kept = [i for i in places(_comparable(ys), self._kept[line]) if i < len(xs)]
        return _View(line, get_xdata=lambda: [xs[i] for i in kept], get_ydata=lambda: [ys[i] for i in kept])

    def _cloud(self, cloud: Any) -> Any:
        kept = self._kept.get(cloud)
        if kept is None or kept >= self._sizes[cloud]:
            return cloud
        offsets = as_list(strided(cloud.get_offsets(), max(1, kept)))
        return _View(cloud, get_offsets=lambda: offsets)

    def _bars(self, container: Any) -> Any:
        kept = self._kept[container]
        return container if kept >= self._sizes[container] else _Bars(container, kept)


def _comparable(values: Any) -> Any:
    """Return what can be sliced and compared: a date in an array becomes an integer of its own."""
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    return values if kind in "iuf" or isinstance(values, list) else range(len(values))


# -------------------------------------------------------------------------------------------- plain values


def _plain(chart: Description) -> Description:
    """Return e2b-charts' values as JSON: names of types, no NaN, text and ticks within bounds."""
    elements = [_element(element) for element in chart["elements"]]
    plain = {key: elements if key == "elements" else _bounded(value) for key, value in chart.items()}
    return {**plain, "type": str(getattr(chart["type"], "value", chart["type"]))}


def _element(element: Any) -> Any:
    if not isinstance(element, dict):
        return None
    return {
        key: [_point(point) for point in value] if key == "points" else _bounded(value)
        for key, value in element.items()
    }


def _point(point: Point) -> list[Any]:
    return [_bounded(point[0]), _bounded(point[1])]


def _bounded(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value and shortened(value)
    if isinstance(value, list):
        return [_bounded(item) for item in value[: MAX_TICKS * 2]]
    return number(value)
