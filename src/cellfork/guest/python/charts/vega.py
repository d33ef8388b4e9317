"""Charts of Vega-Lite specifications (altair's charts) whose data they hold."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cellfork.guest.python.charts import schema
from cellfork.guest.python.charts.schema import Description, Unreadable

Row = Mapping[str, Any]
Channel = Mapping[str, Any]

_LINES = frozenset({"line", "area", "trail"})
_POINTS = frozenset({"point", "circle", "square", "tick"})
_NOTES = frozenset({"text", "rule", "image"})
"""Marks that stand beside the data of others."""
_JOINS = ("hconcat", "vconcat", "concat")
_SERIES = ("color", "fill", "stroke", "detail", "strokeDash", "shape", "xOffset", "yOffset", "opacity")
"""Channels that part the data into series, the first that has a field."""
_FACETS = ("facet", "row", "column")
_SCALES = {"utc": "datetime", "time": "datetime", "sqrt": "function", "pow": "function"}
_AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "average": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
    "median": lambda values: _quantile(sorted(values), 0.5),
}


def altair_chart(chart: Any) -> Description | None:
    """Return the chart of one of altair's objects."""
    try:
        return vega_chart(chart.to_dict(validate=False, context={"pre_transform": False}))
    except Exception:  # noqa: BLE001 - altair says itself what is wrong when it shows the chart
        return None


def vega_chart(spec: Mapping[str, Any]) -> Description | None:
    """Return the chart of a specification; layers and views beside each other make a superchart.

    Data behind an address and transformations of data leave it ``unknown``.
    """
    try:
        datasets = spec.get("datasets")
        reader = _Reader(datasets if isinstance(datasets, Mapping) else {})
        charts = reader.charts_of(spec, None)
    except Exception:  # noqa: BLE001 - a specification may be shown without being valid
        return schema.unknown(_title(spec))
    if len(charts) == 1:
        whole = charts[0]
        whole["title"] = _title(spec) or whole["title"]
    else:
        whole = schema.superchart(_title(spec), charts)
    schema.fit_points(whole["elements"] if len(charts) > 1 else charts, whole)
    return whole


class _Reader:
    """Reads views; knows the data that they name."""

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        self._datasets = datasets

    def charts_of(self, spec: Mapping[str, Any], above: Any) -> list[Description]:
        """Return the charts of a view and of the views in it; ``above`` is the data of the view around it."""
        data = spec.get("data", above)
        for join in _JOINS:
            if join in spec:
                return [chart for view in spec[join] for chart in self.charts_of(view, data)]
        if "layer" in spec:
            return self._layers(spec, data)
        if "spec" in spec or spec.get("transform"):
            return self._around(spec, data)
        return self._unit(spec, data)

    def _layers(self, spec: Mapping[str, Any], data: Any) -> list[Description]:
        """Return the charts of layers; they have the encoding of the whole where they have none of their own."""
        shared = spec.get("encoding", {})
        views = [
            {"transform": spec.get("transform"), **view, "encoding": {**shared, **view.get("encoding", {})}}
            for view in spec["layer"]
        ]
        drawn = [view for view in views if _mark(view) not in _NOTES] or views[:1]
        return [chart for view in drawn for chart in self.charts_of(view, data)]

    def _around(self, spec: Mapping[str, Any], data: Any) -> list[Description]:
        """Return the charts of one view that is repeated for parts of the data."""
        inner = spec.get("spec")
        facet = spec.get("facet")
        if spec.get("transform") or not isinstance(inner, Mapping) or not isinstance(facet, Mapping):
            return [schema.unknown(_title(spec))]
        channels = [facet] if "field" in facet else [facet[name] for name in _FACETS if name in facet]
        rows = self._rows(inner.get("data", data))
        return [
            chart
            for title, part in _parts(rows, channels)
            for chart in _titled(self.charts_of(inner, {"values": part}), title)
        ]

    def _unit(self, spec: Mapping[str, Any], data: Any) -> list[Description]:
        title = _title(spec)
        try:
            encoding = spec["encoding"]
            rows = self._rows(data)
            channels = [encoding[name] for name in _FACETS if name in encoding]
            if not channels:
                return [_read(spec, encoding, rows, title)]
            return [_read(spec, encoding, part, name) for name, part in _parts(rows, channels)]
        except (Unreadable, KeyError, TypeError, ValueError, AttributeError):
            return [schema.unknown(title)]

    def _rows(self, data: Any) -> Sequence[Row]:
        if not isinstance(data, Mapping):
            raise Unreadable
        rows = self._datasets.get(data["name"]) if "name" in data else data.get("values")
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise Unreadable
        return rows


def _titled(charts: list[Description], title: str) -> list[Description]:
    for chart in charts:
        chart["title"] = schema.label(f"{chart['title']}, {title}" if chart["title"] else title)
    return charts


def _parts(rows: Sequence[Row], channels: Sequence[Channel]) -> list[tuple[str, list[Row]]]:
    """Part rows by the values of fields."""
    fields = [_field(channel) for channel in channels]
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(", ".join(schema.name(row.get(name)) for name in fields), []).append(row)
    return list(parts.items())[: schema.MAX_CHARTS]


# ----------------------------------------------------------------------------------------------- one view


def _read(
    spec: Mapping[str, Any], encoding: Mapping[str, Channel], rows: Sequence[Row], title: Any
) -> Description:
    if spec.get("transform") or any(
        channel.get("bin") or channel.get("timeUnit") or channel.get("impute")
        for channel in encoding.values()
        if isinstance(channel, Mapping)
    ):
        raise Unreadable
    mark = _mark(spec)
    if mark in _LINES or mark in _POINTS:
        return _planar(encoding, rows, title, "line" if mark in _LINES else "scatter")
    if mark == "bar":
        return _bars(encoding, rows, title)
    if mark == "arc":
        return _pie(encoding, rows, title)
    if mark == "boxplot":
        return _boxes(spec, encoding, rows, title)
    raise Unreadable


def _mark(spec: Mapping[str, Any]) -> str:
    mark = spec.get("mark")
    return str(mark.get("type") if isinstance(mark, Mapping) else mark)


def _planar(encoding: Mapping[str, Channel], rows: Sequence[Row], title: Any, kind: str) -> Description:
    x, y = encoding["x"], encoding["y"]
    chart = schema.planar(kind, title, _axis_title(x), _axis_title(y))
    table = _table(rows, {"x": x, "y": y}, _series_field(encoding))
    for axis, channel in (("x", x), ("y", y)):
        schema.add_scale(chart, axis, _scale(channel), (row[axis] for row in table))
    series: dict[str, list[list[Any]]] = {}
    for row in table:
        points = series.setdefault(row["series"], [])
        points.append([schema.coordinate(row["x"]), schema.coordinate(row["y"])])
    if kind == "line" and "order" not in encoding:
        for points in series.values():
            _sort(points)
    names = _series_names(series, _axis_title(y))
    chart["elements"] = [{"label": names[name], "points": points} for name, points in series.items()]
    return schema.bounded(chart)


def _sort(points: list[list[Any]]) -> None:
    """Vega-Lite draws a line from the left to the right, categories in the order of their names."""
    if all(isinstance(x, float) for x, _ in points) or all(isinstance(x, str) for x, _ in points):
        points.sort(key=lambda point: point[0])


def _bars(encoding: Mapping[str, Channel], rows: Sequence[Row], title: Any) -> Description:
    x, y = encoding["x"], encoding["y"]
    if "x2" in encoding or "y2" in encoding:
        raise Unreadable
    horizontal = _is_measure(x) and not _is_measure(y)
    chart = schema.planar("bar", title, _axis_title(x), _axis_title(y))
    if horizontal:
        schema.swap_axes(chart)
    name, value = (y, x) if horizontal else (x, y)
    table = _table(rows, {"x": name, "y": value}, _series_field(encoding))
    groups = _series_names(dict.fromkeys(row["series"] for row in table), "Group 0")
    chart["elements"] = [
        {
            "label": schema.name(row["x"]),
            "group": groups[row["series"]],
            "value": schema.number(row["y"]),
        }
        for row in table
    ]
    return schema.bounded(chart)


def _pie(encoding: Mapping[str, Channel], rows: Sequence[Row], title: Any) -> Description:
    theta = encoding["theta"]
    field = _series_field(encoding)
    table = _table(rows, {"y": theta}, field)
    total = sum(schema.number(row["y"]) or 0.0 for row in table)
    if not total > 0:
        raise Unreadable
    elements = [
        {"label": row["series"] or "", "angle": (schema.number(row["y"]) or 0.0) / total * 360, "radius": 1.0}
        for row in table
    ]
    return schema.bounded({"type": "pie", "title": schema.label(title), "elements": elements})


def _boxes(
    spec: Mapping[str, Any], encoding: Mapping[str, Channel], rows: Sequence[Row], title: Any
) -> Description:
    x, y = encoding.get("x", {}), encoding.get("y", {})
    horizontal = _is_measure(x) and not _is_measure(y)
    chart = schema.planar("box_and_whisker", title, _axis_title(x), _axis_title(y))
    if horizontal:
        schema.swap_axes(chart)
    name, value = (y, x) if horizontal else (x, y)
    groups: dict[str, list[Any]] = {}
    for row in rows:
        key = schema.name(row.get(_field(name))) if "field" in name else ""
        groups.setdefault(key, []).append(row.get(_field(value)))
    mark = spec["mark"]
    extent = mark.get("extent", 1.5) if isinstance(mark, Mapping) else 1.5
    reach = None if extent == "min-max" else float(extent)
    boxes = [schema.box_of(key, values, _quantile, reach) for key, values in groups.items()]
    chart["elements"] = [box for box in boxes if box is not None]
    return schema.bounded(chart)


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Interpolate as d3 does."""
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# -------------------------------------------------------------------------------------------------- data


def _table(rows: Sequence[Row], channels: Mapping[str, Channel], series: str | None) -> list[dict[str, Any]]:
    """Return what each mark shows: the values of channels, aggregated where one asks for it, and its series."""
    table = []
    aggregated = {
        key: str(channel["aggregate"]) for key, channel in channels.items() if "aggregate" in channel
    }
    for row in rows:
        shown = {
            key: channel["datum"]
            if "datum" in channel
            else row.get(_field(channel))
            if "field" in channel
            else None
            for key, channel in channels.items()
        }
        shown["series"] = "" if series is None else schema.name(row.get(series))
        table.append(shown)
    return _aggregated(table, aggregated) if aggregated else table


def _aggregated(table: Sequence[dict[str, Any]], functions: Mapping[str, str]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in table:
        key = tuple(value for name, value in row.items() if name not in functions)
        groups.setdefault(key, []).append(row)
    merged = []
    for rows in groups.values():
        row = dict(rows[0])
        for name, function in functions.items():
            if function == "count":
                row[name] = float(len(rows))
                continue
            if function not in _AGGREGATES:
                raise Unreadable
            values = [n for n in (schema.number(one[name]) for one in rows) if n is not None]
            row[name] = _AGGREGATES[function](values) if values else None
        merged.append(row)
    return merged


def _field(channel: Channel) -> str:
    """Return the field's name; one with dots in it is written with backslashes."""
    field = channel["field"]
    if not isinstance(field, str):
        raise Unreadable
    return field.replace("\\", "")


def _series_field(encoding: Mapping[str, Channel]) -> str | None:
    for name in _SERIES:
        channel = encoding.get(name)
        if isinstance(channel, Mapping) and "field" in channel and "aggregate" not in channel:
            if _is_measure(channel):
                continue  # a gradient, not series
            return _field(channel)
    return None


def _series_names(series: Mapping[str, Any], alone: str | None) -> dict[str, str]:
    return {name: name or alone or "" for name in series}


def _is_measure(channel: Channel) -> bool:
    return channel.get("type") == "quantitative" or channel.get("aggregate") == "count"


def _scale(channel: Channel) -> str:
    scale = channel.get("scale")
    given = scale.get("type") if isinstance(scale, Mapping) else None
    if isinstance(given, str) and given not in {"band", "point"}:
        return _SCALES.get(given, given)
    return {"quantitative": "linear", "temporal": "datetime"}.get(str(channel.get("type")), "categorical")


def _axis_title(channel: Channel) -> str | None:
    """Return the title that Vega-Lite gives an axis."""
    axis = channel.get("axis")
    for place in (axis, channel):
        if isinstance(place, Mapping) and "title" in place:
            return schema.label(place["title"])
    aggregate = channel.get("aggregate")
    if aggregate == "count":
        return "Count of Records"
    field = schema.label(_field(channel)) if "field" in channel else None
    return f"{str(aggregate).capitalize()} of {field}" if aggregate else field


def _title(spec: Mapping[str, Any]) -> str | None:
    title = spec.get("title")
    return schema.label(title.get("text") if isinstance(title, Mapping) else title)
