"""Typed charts: the attributes of E2B's classes, and whatever else a description may hold."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model import charts
from cellfork.model.charts import (
    BarChart,
    BarData,
    BoxAndWhiskerChart,
    Chart,
    ChartType,
    LineChart,
    PieChart,
    PieData,
    PointData,
    ScaleType,
    ScatterChart,
    SuperChart,
)
from cellfork.model.results import Result

AXES: dict[str, Any] = {"x_label": "Time (s)", "y_label": None, "x_unit": "s", "y_unit": None}
TICKS: dict[str, Any] = {
    "x_ticks": [0.0, 1.0],
    "x_tick_labels": ["0", "1"],
    "x_scale": "linear",
    "y_ticks": [],
    "y_tick_labels": [],
}
LINE: dict[str, Any] = {
    "type": "line", "title": "T", "elements": [{"label": "a", "points": [[0, 1.5], ["2024-01-01", None]]}],
    **AXES, **TICKS, "y_scale": "log",
}  # fmt: skip
BAR: dict[str, Any] = {
    "type": "bar",
    "title": None,
    "elements": [{"label": "x", "group": "g", "value": 3.0}],
    **AXES,
}
PIE: dict[str, Any] = {
    "type": "pie",
    "title": None,
    "elements": [{"label": "x", "angle": 90.0, "radius": 1.0}],
}
BOX: dict[str, Any] = {
    "type": "box_and_whisker", "title": "B", **AXES,
    "elements": [
        {"label": "x", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 5.0, "outliers": [9.0]}
    ],
}  # fmt: skip
SUPER: dict[str, Any] = {"type": "superchart", "title": "S", "elements": [LINE, BAR]}
UNKNOWN: dict[str, Any] = {"type": "unknown", "title": "U", "elements": []}
ALL: list[dict[str, Any]] = [LINE, LINE | {"type": "scatter"}, BAR, PIE, BOX, SUPER, UNKNOWN]

E2B_ATTRIBUTES = {
    "Chart": "type title elements",
    "Chart2D": "type title elements x_label y_label x_unit y_unit",
    "PointChart": "type title elements x_label y_label x_unit y_unit x_ticks x_tick_labels x_scale y_ticks y_tick_labels y_scale",
    "PointData": "label points",
    "BarData": "label group value",
    "PieData": "label angle radius",
    "BoxAndWhiskerData": "label min first_quartile median third_quartile max outliers",
}
"""Attributes of the classes in e2b_code_interpreter/charts.py, as of 2.11.5."""


@pytest.mark.parametrize("name", E2B_ATTRIBUTES)
def test_attributes_are_e2bs(name: str) -> None:
    """Whoever used E2B's class finds every attribute under the same name."""
    assert set(E2B_ATTRIBUTES[name].split()) <= set(getattr(charts, name).__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("LineChart", "PointChart Chart2D Chart"), ("ScatterChart", "PointChart Chart2D Chart"),
        ("BarChart", "Chart2D Chart"), ("PieChart", "Chart"), ("BoxAndWhiskerChart", "Chart2D Chart"),
        ("SuperChart", "Chart"),
    ],
)  # fmt: skip
def test_classes_are_e2bs(name: str, bases: str) -> None:
    """Classes have E2B's names and E2B's ancestors, so that ``isinstance`` answers the same."""
    assert [cls.__name__ for cls in getattr(charts, name).__mro__[1:-1]] == bases.split()


def test_names_of_types_are_e2bs() -> None:
    """Types and scales have E2B's values, and compare with plain text."""
    assert " ".join(ChartType) == "line scatter bar pie box_and_whisker superchart unknown"
    assert " ".join(ScaleType) == (
        "linear datetime categorical log symlog logit function functionlog asinh unknown"
    )
    assert str(Chart.from_dict(PIE).type) == "pie"
    assert Chart.from_dict(PIE).type is ChartType.PIE


@pytest.mark.parametrize(
    ("description", "kind"),
    list(
        zip(
            ALL,
            [LineChart, ScatterChart, BarChart, PieChart, BoxAndWhiskerChart, SuperChart, Chart],
            strict=True,
        )
    ),
)
def test_kinds(description: dict[str, Any], kind: type[Chart]) -> None:
    """Every kind has its class, and gives back the description it came from."""
    chart = Chart.from_dict(description)
    assert type(chart) is kind
    assert chart.type == description["type"]
    assert chart.title == description["title"]
    assert chart.to_dict() == description


def test_points() -> None:
    """Points are pairs of numbers, dates and gaps; axes have labels, units, ticks and scales."""
    chart = Chart.from_dict(LINE)
    assert isinstance(chart, LineChart)
    assert chart.elements == [PointData("a", [(0.0, 1.5), ("2024-01-01", None)])]
    assert (chart.x_label, chart.x_unit, chart.x_ticks, chart.x_tick_labels) == (
        "Time (s)",
        "s",
        [0, 1],
        ["0", "1"],
    )
    assert (chart.x_scale, chart.y_scale) == (ScaleType.LINEAR, ScaleType.LOG)
    assert Chart.from_dict(LINE | {"y_scale": "new"}).y_scale == ScaleType.UNKNOWN  # type: ignore[attr-defined]


def test_other_elements() -> None:
    """Bars, wedges, boxes and the charts of a superchart are objects."""
    assert Chart.from_dict(BAR).elements == [BarData("x", "g", 3.0)]
    assert Chart.from_dict(PIE).elements == [PieData("x", 90.0, 1.0)]
    box = Chart.from_dict(BOX).elements[0]
    assert (box.min, box.first_quartile, box.median, box.third_quartile, box.max) == (1, 2, 3, 4, 5)
    assert box.outliers == [9.0]
    assert [type(chart) for chart in Chart.from_dict(SUPER).elements] == [LineChart, BarChart]


@pytest.mark.parametrize(
    "wrong",
    [
        {"title": 3}, {"x_label": []}, {"elements": 5}, {"elements": [1]}, {"elements": [{"points": [1]}]},
        {"elements": [{"points": [[1, 2, 3]]}]}, {"elements": [{"points": [[1, {}]]}]},
        {"elements": [{"points": [[True, 1]]}]}, {"elements": [{"label": ["a"], "points": []}]},
        {"x_ticks": {}}, {"x_tick_labels": [1]}, {"type": ["line"]}, {"type": "lines"}, {"type": None},
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_unknown(wrong: dict[str, Any]) -> None:
    """A value of a wrong type makes the chart ``unknown``; the description stays as it came."""
    description = LINE | wrong
    chart = Chart.from_dict(description)
    assert type(chart) is Chart
    assert chart.type == ChartType.UNKNOWN
    assert chart.to_dict() == description
    assert isinstance(chart.title, str | None)
    assert isinstance(chart.elements, list)


def test_what_is_missing_is_empty() -> None:
    """Missing labels, ticks and elements do not spoil a chart; names may be numbers."""
    assert Chart.from_dict({"type": "line"}) == LineChart(elements=[])
    assert Chart.from_dict({"type": "bar", "elements": [{"label": 3, "value": 1}]}).elements == [
        BarData("3", "", 1.0)
    ]


def test_one_bad_chart_does_not_spoil_the_others() -> None:
    """In a superchart only what does not fit is unknown."""
    chart = Chart.from_dict({"type": "superchart", "elements": [LINE | {"elements": 1}, BAR]})
    assert [one.type for one in chart.elements] == ["unknown", "bar"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
KEYS = sorted({key for chart in ALL for key in chart} | {"truncated"})
HOSTILE = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8).flatmap(
    lambda extra: st.sampled_from(ALL).map(lambda chart: chart | extra)
)


@given(HOSTILE | st.dictionaries(st.text(max_size=8), JSON))
def test_no_description_does_harm(description: dict[str, Any]) -> None:
    """Whatever a sandbox sends becomes a chart, whose numbers are finite and whose words are words."""
    chart = Chart.from_dict(description)
    assert chart.to_dict() == description or "nan" in repr(description)
    assert isinstance(chart.title, str | None)
    if isinstance(chart, LineChart | ScatterChart):
        for series in chart.elements:
            json.dumps(series.points, allow_nan=False)


def test_depth_is_bounded() -> None:
    """Supercharts in supercharts end in an unknown chart, not in a recursion error."""
    description: dict[str, Any] = PIE
    for _ in range(400):
        description = {"type": "superchart", "elements": [description]}
    chart = Chart.from_dict(description)
    for _ in range(charts.MAX_DEPTH):
        assert isinstance(chart, SuperChart)
        chart = chart.elements[0]
    assert chart.type == ChartType.UNKNOWN


def test_size_is_bounded() -> None:
    """Of more elements or points than anybody draws, the first become objects; the description is whole."""
    bars = BAR | {"elements": BAR["elements"] * (charts.MAX_ELEMENTS + 1)}
    assert len(Chart.from_dict(bars).elements) == charts.MAX_ELEMENTS
    points = LINE | {"elements": [{"label": "", "points": [[0, 0]] * (charts.MAX_POINTS + 1)}]}
    assert len(Chart.from_dict(points).elements[0].points) == charts.MAX_POINTS
    assert len(Chart.from_dict(bars).to_dict()["elements"]) == charts.MAX_ELEMENTS + 1


def test_what_was_left_out_is_told() -> None:
    """The sandbox says how much of a figure the description holds; nonsense there is ignored."""
    told = {"points": 50_000, "points_kept": 10_000, "x": "y", "z": -1, "t": True}
    assert Chart.from_dict(LINE | {"truncated": told}).truncated == {"points": 50_000, "points_kept": 10_000}
    assert Chart.from_dict(LINE | {"truncated": [1]}).truncated == {}


def test_charts_can_be_made_by_hand() -> None:
    """A chart without a description gives its fields, which make the same chart again."""
    chart = SuperChart(
        title="S", elements=[Chart.from_dict(LINE), BarChart(elements=[BarData("a", "g", 1.0)])]
    )
    description = json.loads(json.dumps(chart.to_dict()))
    assert Chart.from_dict(description) == chart


def test_results_have_typed_charts() -> None:
    """``Result`` takes a description, as E2B's does, holds a chart, and is JSON again; ``{}`` is none."""
    result = Result(chart=LINE)  # type: ignore[arg-type]
    assert isinstance(result.chart, LineChart)
    assert json.loads(result.to_json())["chart"] == result.raw["chart"] == LINE
    assert result["chart"] is result.chart
    assert result.formats() == ["chart"]
    assert Result(chart={}).chart is None  # type: ignore[arg-type]
