"""Charts of plotly figures, read from the JSON that they are displayed as."""

import base64
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cellfork.guest.python.charts import schema
from cellfork.guest.python.charts.schema import Description, Unreadable

_FORMATS = {
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "i8": "q",
    "u8": "Q",
    "f4": "f",
    "f8": "d",
}
_POINTS = frozenset({"scatter", "scattergl"})
_CARTESIAN = frozenset({"scatter", "scattergl", "bar", "box", "histogram"})
_SCALES = {"log": "log", "date": "datetime", "category": "categorical", "linear": "linear"}
_FEW = 20
"""Plotly draws lines with markers through fewer points than these, lines alone through more."""


def plotly_chart(figure: Mapping[str, Any]) -> Description | None:
    """Return the chart of a figure given as ``{"data": traces, "layout": …}``; ``None`` for an empty one."""
    layout: Mapping[str, Any] = {}
    try:
        layout = _mapping(figure.get("layout"))
        traces = [
            t for t in _list(figure.get("data")) if isinstance(t, Mapping) and t.get("visible") is not False
        ]
        return _chart_of(traces, layout) if traces else None
    except Exception:  # noqa: BLE001 - a figure may be shown without being valid
        return schema.unknown(_title(layout))


def figure_chart(figure: Any) -> Description | None:
    """Return the chart of one of plotly's objects."""
    try:
        return plotly_chart(figure.to_dict())
    except Exception:  # noqa: BLE001 - an object of the user's own class, perhaps
        return None


def _chart_of(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> Description:
    groups: dict[Any, list[tuple[int, Mapping[str, Any]]]] = {}
    for index, trace in enumerate(traces):
        groups.setdefault(_place(trace, index), []).append((index, trace))
    room = _room(traces)
    charts = [
        _subplot(place, group, layout, room) for place, group in list(groups.items())[: schema.MAX_CHARTS]
    ]
    if len(groups) == 1:
        whole = charts[0]
        whole["title"] = _title(layout) or whole["title"]
    else:
        whole = schema.superchart(_title(layout), charts)
        if len(groups) > len(charts):
            schema.note_truncated(whole, "charts", len(groups), len(charts))
    total, kept = sum(size for size, _ in room.values()), sum(count for _, count in room.values())
    if kept < total:
        schema.note_truncated(whole, "points", total, kept)
    return whole


def _room(traces: Sequence[Mapping[str, Any]]) -> dict[int, tuple[int, int]]:
    """Return, by the identity of each trace with points, how many it has and how many of them are kept."""
    sizes = {id(trace): _size(trace) for trace in traces[: schema.MAX_CHARTS * schema.MAX_SERIES]}
    kept = schema.shares(list(sizes.values()), schema.MAX_POINTS)
    return {key: (size, count) for (key, size), count in zip(sizes.items(), kept, strict=True)}


def _size(trace: Mapping[str, Any]) -> int:
    if trace.get("type", "scatter") not in _POINTS:
        return 0
    try:
        return min(len(_array(trace[axis])) for axis in "xy" if trace.get(axis) is not None)
    except (Unreadable, ValueError, TypeError, KeyError):
        return 0


def _place(trace: Mapping[str, Any], index: int) -> Any:
    """Return what traces of the same subplot have in common."""
    kind = trace.get("type", "scatter")
    if kind in _CARTESIAN or "xaxis" in trace or "x" in trace:
        return str(trace.get("xaxis", "x")), str(trace.get("yaxis", "y"))
    for key in ("scene", "subplot", "geo"):
        if isinstance(trace.get(key), str):
            return trace[key]
    return index  # a pie has its own place


def _subplot(place: Any, group: "Group", layout: Mapping[str, Any], room: "Room") -> Description:
    axes = _axes(place, layout) if isinstance(place, tuple) else ({}, {})
    title = _subplot_title(axes, layout)
    kinds = {str(trace.get("type", "scatter")) for _, trace in group}
    try:
        if kinds <= _POINTS:
            return _points(group, axes, title, room)
        if kinds == {"pie"}:
            return schema.bounded(_pie(group[0][1], title))
        if kinds <= {"bar", "histogram"}:
            return _bars(group, axes, title)
        if kinds == {"box"}:
            return schema.bounded(_boxes(group, axes, title))
    except (Unreadable, ValueError, TypeError, KeyError, AttributeError, IndexError, struct.error):
        pass
    return schema.unknown(title)


# ------------------------------------------------------------------------------------------------ kinds

Axes = tuple[Mapping[str, Any], Mapping[str, Any]]
Group = Sequence[tuple[int, Mapping[str, Any]]]
Room = Mapping[int, tuple[int, int]]


def _points(group: Group, axes: Axes, title: Any, room: Room) -> Description:
    elements = []
    lines = []
    seen: tuple[list[Any], list[Any]] = ([], [])
    for index, trace in group[: schema.MAX_SERIES]:
        size, count = room[id(trace)]
        xs, ys = _coordinates(trace, size, count)
        points = [(schema.coordinate(x), schema.coordinate(y)) for x, y in zip(xs, ys, strict=True)]
        mode = trace.get("mode") or ("lines" if size >= _FEW else "lines+markers")
        lines.append("lines" in str(mode))
        seen[0].extend(xs)
        seen[1].extend(ys)
        elements.append({"label": _name(trace, index), "points": points})
    chart = schema.planar("line" if all(lines) else "scatter", title, _title(axes[0]), _title(axes[1]))
    for axis, settings, values in zip("xy", axes, seen, strict=True):
        _add_scale(chart, axis, settings, values)
    chart["elements"] = elements
    if len(group) > len(elements):
        schema.note_truncated(chart, "series", len(group), len(elements))
    return chart


def _coordinates(trace: Mapping[str, Any], size: int, count: int) -> tuple[list[Any], list[Any]]:
    """Return x and y of ``count`` points.  A missing one counts from its start in steps."""
    given = {axis: _array(trace[axis]) for axis in "xy" if trace.get(axis) is not None}
    if not given:
        raise Unreadable
    kept = schema.places(next(reversed(given.values()))[:size], count)
    xs, ys = (
        schema.as_list([given[axis][place] for place in kept])
        if axis in given
        else [float(trace.get(f"{axis}0", 0)) + place * float(trace.get(f"d{axis}", 1)) for place in kept]
        for axis in "xy"
    )
    return xs, ys


def _bars(group: Group, axes: Axes, title: Any) -> Description:
    chart = schema.planar("bar", title, _title(axes[0]), _title(axes[1]))
    horizontal = _is_horizontal(group[0][1])
    if horizontal:
        schema.swap_axes(chart)
    for index, trace in group:
        if _is_horizontal(trace) != horizontal or trace.get("base") is not None:
            raise Unreadable
        names, values = _bar_values(trace, horizontal=horizontal)
        chart["elements"] += [
            {
                "label": schema.name(name),
                "group": _name(trace, index, "Group"),
                "value": schema.number(value),
            }
            for name, value in zip(names, values, strict=False)
        ]
    total = sum(_bar_count(trace) for _, trace in group)
    chart["elements"] = chart["elements"][: schema.MAX_POINTS]
    if total > schema.MAX_POINTS:
        schema.note_truncated(chart, "elements", total, schema.MAX_POINTS)
    return chart


def _bar_count(trace: Mapping[str, Any]) -> int:
    value = trace.get("x" if _is_horizontal(trace) else "y")
    return len(_array(value)) if trace.get("type") == "bar" and value is not None else 0


def _is_horizontal(trace: Mapping[str, Any]) -> bool:
    if trace.get("type") == "histogram":
        return trace.get("orientation") == "h" or ("y" in trace and "x" not in trace)
    return trace.get("orientation") == "h"


def _bar_values(trace: Mapping[str, Any], *, horizontal: bool) -> tuple[Iterable[Any], Iterable[Any]]:
    name, value = ("y", "x") if horizontal else ("x", "y")
    if trace.get("type") == "histogram":
        counted = _counted(trace, name, value)
        return counted.keys(), counted.values()
    values = schema.as_list(_array(trace[value])[: schema.MAX_POINTS])
    names = (
        schema.as_list(_array(trace[name])[: schema.MAX_POINTS])
        if trace.get(name) is not None
        else range(len(values))
    )
    if names and all(isinstance(part, list) for part in names):  # categories in two levels
        names = [" ".join(map(str, parts)) for parts in zip(*names, strict=False)]
    return names, values


def _counted(trace: Mapping[str, Any], name: str, value: str) -> dict[str, float]:
    """Return the bars of a histogram of names; where the bins of numbers are, only plotly.js knows."""
    names = schema.as_list(_array(trace[name]))
    function = trace.get("histfunc", "count")
    if trace.get("histnorm") or trace.get("cumulative") or not all(isinstance(n, str) for n in names):
        raise Unreadable
    if schema.scale_of(names[:100]) != "categorical" or function not in {"count", "sum"}:
        raise Unreadable
    weights = schema.as_list(_array(trace[value])) if function == "sum" else [1.0] * len(names)
    counted: dict[str, float] = {}
    for key, weight in zip(names, weights, strict=False):
        counted[key] = counted.get(key, 0.0) + (schema.number(weight) or 0.0)
    return counted


def _pie(trace: Mapping[str, Any], title: Any) -> Description:
    labels = schema.as_list(_array(trace["labels"])) if trace.get("labels") is not None else None
    values = schema.as_list(_array(trace["values"])) if trace.get("values") is not None else None
    if labels is None and values is None:
        raise Unreadable
    names = labels if labels is not None else [str(i) for i in range(len(values or ()))]
    sums: dict[str, float] = {}
    for name, value in zip(names, values if values is not None else [1.0] * len(names), strict=False):
        key = schema.label(name) or ""
        sums[key] = sums.get(key, 0.0) + (schema.number(value) or 0.0)
    total = math.fsum(sums.values())
    if not total > 0:
        raise Unreadable
    own = schema.label(_text_of(trace.get("title")))
    return {
        "type": "pie",
        "title": own or schema.label(title),
        "elements": [{"label": n, "angle": v / total * 360, "radius": 1.0} for n, v in sums.items()],
    }


def _boxes(group: Group, axes: Axes, title: Any) -> Description:
    chart = schema.planar("box_and_whisker", title, _title(axes[0]), _title(axes[1]))
    horizontal = _is_horizontal_box(group[0][1])
    if horizontal:
        schema.swap_axes(chart)
    for index, trace in group:
        if _is_horizontal_box(trace) != horizontal:
            raise Unreadable
        chart["elements"] += _boxes_of(trace, index, *(("y", "x") if horizontal else ("x", "y")))
    return chart


def _is_horizontal_box(trace: Mapping[str, Any]) -> bool:
    return trace.get("orientation") == "h" or ("x" in trace and "y" not in trace)


def _boxes_of(trace: Mapping[str, Any], index: int, name: str, value: str) -> list[Description]:
    fallback = _name(trace, index)
    if trace.get("q1") is not None:
        return _given_boxes(trace, name, fallback)
    if trace.get("quartilemethod", "linear") != "linear":
        raise Unreadable
    values = schema.as_list(_array(trace[value]))
    groups: dict[str, list[Any]] = {}
    if trace.get(name) is None:
        groups[fallback] = list(values)
    else:
        for key, one in zip(schema.as_list(_array(trace[name])), values, strict=False):
            groups.setdefault(schema.name(key), []).append(one)
    reach = None if trace.get("boxpoints") is False else 1.5
    boxes = [schema.box_of(key, of_key, _quantile, reach) for key, of_key in groups.items()]
    return [box for box in boxes if box is not None]


def _given_boxes(trace: Mapping[str, Any], name: str, fallback: str) -> list[Description]:
    """Return boxes whose quartiles the code gave itself."""
    columns = [
        [schema.number(v) for v in schema.as_list(_array(trace[key]))]
        for key in ("q1", "median", "q3", "lowerfence", "upperfence")
    ]
    names = (
        schema.as_list(_array(trace[name])) if trace.get(name) is not None else [fallback] * len(columns[0])
    )
    boxes = []
    for key, first, median, third, low, high in zip(names, *columns, strict=False):
        if first is None or median is None or third is None or low is None or high is None:
            raise Unreadable
        boxes.append(schema.quartiles_to_box(schema.coordinate(key), (first, median, third), (low, high), ()))
    return boxes


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Interpolate as plotly.js does (its method "linear")."""
    place = min(max(fraction * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


# -------------------------------------------------------------------------------------------- the layout


def _axes(place: tuple[str, str], layout: Mapping[str, Any]) -> Axes:
    x, y = (_mapping(layout.get(f"{name[0]}axis{name[1:]}")) for name in place)
    return x, y


def _title(part: Mapping[str, Any]) -> str | None:
    return schema.label(_text_of(part.get("title")))


def _text_of(title: Any) -> Any:
    return title.get("text") if isinstance(title, Mapping) else title


def _subplot_title(axes: Axes, layout: Mapping[str, Any]) -> str | None:
    """Return the annotation that stands centred above a subplot: what ``subplot_titles`` makes."""
    domains = [_list(axis.get("domain")) for axis in axes]
    if any(len(domain) != 2 for domain in domains):
        return None
    (left, right), (_, top) = domains
    for note in _list(layout.get("annotations"))[:200]:
        if not isinstance(note, Mapping) or note.get("xref") != "paper" or note.get("yref") != "paper":
            continue
        x, y = schema.number(note.get("x")), schema.number(note.get("y"))
        if x is not None and y is not None and abs(x - (left + right) / 2) < 1e-6 and abs(y - top) < 1e-6:
            return schema.label(note.get("text"))
    return None


def _add_scale(chart: Description, axis: str, settings: Mapping[str, Any], values: Sequence[Any]) -> None:
    scale = _SCALES.get(str(settings.get("type"))) or schema.scale_of(values)
    schema.add_scale(chart, axis, scale, values)
    ticks, names = settings.get("tickvals"), settings.get("ticktext")
    if ticks is not None and names is not None:
        chart[f"{axis}_ticks"] = [
            schema.coordinate(v) for v in schema.as_list(_array(ticks)[: schema.MAX_TICKS])
        ]
        chart[f"{axis}_tick_labels"] = [
            str(schema.label(n) or "") for n in schema.as_list(_array(names)[: schema.MAX_TICKS])
        ]


def _name(trace: Mapping[str, Any], index: int, fallback: str = "trace") -> str:
    """Return the name in the legend; without one, plotly numbers the traces."""
    return schema.label(trace.get("name")) or f"{fallback} {index}"


# ----------------------------------------------------------------------------------------------- values


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _array(value: Any) -> Any:
    """Return something to slice: a list, or numbers that plotly packed into base64."""
    if not isinstance(value, Mapping):
        if isinstance(value, str) or not hasattr(value, "__getitem__"):
            raise Unreadable
        return value
    if "," in str(value.get("shape", "")):
        raise Unreadable  # more than one dimension
    packed: Any = memoryview(base64.b64decode(value["bdata"]))
    return packed.cast(_FORMATS[value["dtype"]])
