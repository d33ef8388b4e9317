"""What a figure shows, as values to draw it again: the classes of E2B's SDK for the schema of e2b-charts.

A description comes from a sandbox and may hold anything.  :meth:`Chart.from_dict` never raises: what does not fit
the schema is a :class:`Chart` of type ``unknown``, and :meth:`Chart.to_dict` returns the description as it came.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar

MAX_ELEMENTS = 20_000
"""Elements of one chart that become objects; the first ones."""
MAX_POINTS = 100_000
"""Points of one series that become pairs; the first ones."""
MAX_DEPTH = 4
"""Supercharts within supercharts."""

T = TypeVar("T")


class ChartType(StrEnum):
    """Kinds of charts."""

    LINE = "line"
    SCATTER = "scatter"
    BAR = "bar"
    PIE = "pie"
    BOX_AND_WHISKER = "box_and_whisker"
    SUPERCHART = "superchart"
    UNKNOWN = "unknown"


class ScaleType(StrEnum):
    """Kinds of scales of an axis."""

    LINEAR = "linear"
    DATETIME = "datetime"
    CATEGORICAL = "categorical"
    LOG = "log"
    SYMLOG = "symlog"
    LOGIT = "logit"
    FUNCTION = "function"
    FUNCTIONLOG = "functionlog"
    ASINH = "asinh"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Chart:
    """A figure's chart; of type ``unknown`` where only its title could be read.

    ``truncated`` tells what the description left out: for instance ``{"points": 50000, "points_kept": 10000}``.
    """

    type: ChartType = ChartType.UNKNOWN
    title: str | None = None
    elements: Sequence[Any] = ()
    truncated: dict[str, int] = field(default_factory=dict)
    _raw: dict[str, Any] | None = field(default=None, repr=False, compare=False, kw_only=True)

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> "Chart":
        """Return the chart that ``description`` stands for, as an object of its own class.

        Missing labels, ticks and scales are empty; a value of a wrong type makes the whole chart ``unknown``,
        with what was in ``elements`` as it came.
        """
        return _chart(description, 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the description as it came; of a chart that was made here, its fields."""
        if self._raw is not None:
            return self._raw
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in {"elements", "_raw"}}
        if not self.truncated:
            del plain["truncated"]
        return {**plain, "type": str(self.type), "elements": [_plain(element) for element in self.elements]}


def _plain(element: Any) -> Any:
    if isinstance(element, Chart):
        return element.to_dict()
    return asdict(element) if is_dataclass(element) and not isinstance(element, type) else element


@dataclass(slots=True)
class Chart2D(Chart):
    """A chart with two axes: their labels, and the units that the labels name in parentheses or brackets."""

    x_label: str | None = None
    y_label: str | None = None
    x_unit: str | None = None
    y_unit: str | None = None


Coordinate = float | str | None
"""A number, a date (ISO 8601) or a category's name; ``None`` for a gap."""


@dataclass(slots=True)
class PointData:
    """The points of one series, as pairs of x and y."""

    label: str
    points: list[tuple[Coordinate, Coordinate]]


@dataclass(slots=True)
class PointChart(Chart2D):
    """A chart of points: where the ticks of both axes are, what is written at them, and the axes' scales."""

    x_ticks: list[Coordinate] = field(default_factory=list)
    x_tick_labels: list[str] = field(default_factory=list)
    x_scale: ScaleType = ScaleType.UNKNOWN
    y_ticks: list[Coordinate] = field(default_factory=list)
    y_tick_labels: list[str] = field(default_factory=list)
    y_scale: ScaleType = ScaleType.UNKNOWN


@dataclass(slots=True)
class LineChart(PointChart):
    """Lines; ``elements`` are :class:`PointData`."""

    type: ChartType = ChartType.LINE
    elements: Sequence[PointData] = ()


@dataclass(slots=True)
class ScatterChart(PointChart):
    """Clouds of points; ``elements`` are :class:`PointData`."""

    type: ChartType = ChartType.SCATTER
    elements: Sequence[PointData] = ()


@dataclass(slots=True)
class BarData:
    """One bar: the name at its foot, the group it belongs to, its value (``None`` for none)."""

    label: str
    group: str
    value: float | str | None


@dataclass(slots=True)
class BarChart(Chart2D):
    """Bars; ``elements`` are :class:`BarData`.  Of horizontal ones, x is still the axis with their names."""

    type: ChartType = ChartType.BAR
    elements: Sequence[BarData] = ()


@dataclass(slots=True)
class PieData:
    """One wedge; ``angle`` in degrees."""

    label: str
    angle: float | None
    radius: float | None


@dataclass(slots=True)
class PieChart(Chart):
    """A pie; ``elements`` are :class:`PieData`."""

    type: ChartType = ChartType.PIE
    elements: Sequence[PieData] = ()


@dataclass(slots=True)
class BoxAndWhiskerData:
    """One box: the ends of the whiskers, the quartiles, what lies outside."""

    label: str
    min: float | None
    first_quartile: float | None
    median: float | None
    third_quartile: float | None
    max: float | None
    outliers: list[float | None] = field(default_factory=list)


@dataclass(slots=True)
class BoxAndWhiskerChart(Chart2D):
    """Boxes; ``elements`` are :class:`BoxAndWhiskerData`."""

    type: ChartType = ChartType.BOX_AND_WHISKER
    elements: Sequence[BoxAndWhiskerData] = ()


@dataclass(slots=True)
class SuperChart(Chart):
    """Several charts in one figure; ``elements`` are charts."""

    type: ChartType = ChartType.SUPERCHART
    elements: Sequence[Chart] = ()


# ----------------------------------------------------------------------------------------- untrusted input


class _Misfit(Exception):
    """A value is not of the type that the schema gives it."""


def _chart(description: Mapping[str, Any], depth: int) -> Chart:
    raw = dict(description)
    build = _BUILDERS.get(raw.get("type")) if isinstance(raw.get("type"), str) else None
    if build is not None and depth < MAX_DEPTH:
        try:
            return build(raw, depth)
        except _Misfit:
            pass
    elements = raw.get("elements")
    return Chart(
        ChartType.UNKNOWN,
        raw["title"] if isinstance(raw.get("title"), str) else None,
        list(elements) if isinstance(elements, list | tuple) else [],
        _truncated(raw),
        _raw=raw,
    )


def _line(raw: dict[str, Any], depth: int) -> Chart:
    return LineChart(elements=_elements(raw, _points), **_point_chart(raw))


def _scatter(raw: dict[str, Any], depth: int) -> Chart:
    return ScatterChart(elements=_elements(raw, _points), **_point_chart(raw))


def _bar(raw: dict[str, Any], depth: int) -> Chart:
    def bar(one: Mapping[str, Any]) -> BarData:
        return BarData(_name(one, "label"), _name(one, "group"), _coordinate(one.get("value")))

    return BarChart(elements=_elements(raw, bar), **_chart2d(raw))


def _pie(raw: dict[str, Any], depth: int) -> Chart:
    def wedge(one: Mapping[str, Any]) -> PieData:
        return PieData(_name(one, "label"), _number(one.get("angle")), _number(one.get("radius")))

    return PieChart(elements=_elements(raw, wedge), **_base(raw))


def _box(raw: dict[str, Any], depth: int) -> Chart:
    def box(one: Mapping[str, Any]) -> BoxAndWhiskerData:
        names = ("min", "first_quartile", "median", "third_quartile", "max")
        outliers = [_number(value) for value in _list(one.get("outliers"))[:MAX_POINTS]]
        low, first, median, third, high = (_number(one.get(name)) for name in names)
        return BoxAndWhiskerData(_name(one, "label"), low, first, median, third, high, outliers)

    return BoxAndWhiskerChart(elements=_elements(raw, box), **_chart2d(raw))


def _super(raw: dict[str, Any], depth: int) -> Chart:
    return SuperChart(elements=_elements(raw, lambda one: _chart(one, depth + 1)), **_base(raw))


_BUILDERS: Mapping[Any, Callable[[dict[str, Any], int], Chart]] = {
    "line": _line,
    "scatter": _scatter,
    "bar": _bar,
    "pie": _pie,
    "box_and_whisker": _box,
    "superchart": _super,
}


def _base(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"title": _text(raw.get("title")), "truncated": _truncated(raw), "_raw": raw}


def _chart2d(raw: Mapping[str, Any]) -> dict[str, Any]:
    names = ("x_label", "y_label", "x_unit", "y_unit")
    return {**_base(raw), **{name: _text(raw.get(name)) for name in names}}


def _point_chart(raw: Mapping[str, Any]) -> dict[str, Any]:
    axes: dict[str, Any] = {}
    for axis in "xy":
        axes[f"{axis}_ticks"] = [_coordinate(tick) for tick in _list(raw.get(f"{axis}_ticks"))[:MAX_ELEMENTS]]
        labels = _list(raw.get(f"{axis}_tick_labels"))[:MAX_ELEMENTS]
        axes[f"{axis}_tick_labels"] = [_text(label) or "" for label in labels]
        axes[f"{axis}_scale"] = _scale(raw.get(f"{axis}_scale"))
    return {**_chart2d(raw), **axes}


def _points(one: Mapping[str, Any]) -> PointData:
    return PointData(_name(one, "label"), [_pair(pair) for pair in _list(one.get("points"))[:MAX_POINTS]])


def _pair(value: Any) -> tuple[Coordinate, Coordinate]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise _Misfit
    return _coordinate(value[0]), _coordinate(value[1])


def _elements(raw: Mapping[str, Any], build: Callable[[Mapping[str, Any]], T]) -> list[T]:
    elements = _list(raw.get("elements"))[:MAX_ELEMENTS]
    if not all(isinstance(element, Mapping) for element in elements):
        raise _Misfit
    return [build(element) for element in elements]


def _list(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise _Misfit
    return value


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _Misfit


def _name(one: Mapping[str, Any], key: str) -> str:
    value = one.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = _number(value)
        return "" if number is None else f"{number:.12g}"
    return _text(value) or ""


def _number(value: Any) -> float | None:
    """Return a finite number; NaN, infinities and what no float can hold are ``None``."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Misfit
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _coordinate(value: Any) -> Coordinate:
    return value if isinstance(value, str) else _number(value)


def _scale(value: Any) -> ScaleType:
    try:
        return ScaleType(value)
    except ValueError:
        return ScaleType.UNKNOWN


def _truncated(raw: Mapping[str, Any]) -> dict[str, int]:
    value = raw.get("truncated")
    if not isinstance(value, Mapping):
        return {}
    return {
        str(key): count
        for key, count in list(value.items())[:20]
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**63
    }
