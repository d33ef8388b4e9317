"""Charts that the kernel reads from figures of matplotlib, plotly and altair."""

import datetime as dt
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellfork.guest.python.charts import schema, with_chart
from cellfork.guest.python.charts.matplotlib import matplotlib_chart
from cellfork.guest.python.charts.plotly import plotly_chart
from cellfork.guest.python.charts.vega import vega_chart
from cellfork.model.charts import Chart
from cellfork.model.results import CHART_MIME
from tests.guest.python.harness import Session

PLOTLY = "application/vnd.plotly.v1+json"
VEGALITE = "application/vnd.vegalite.v6+json"


# ------------------------------------------------------------------------------------------- matplotlib


def lines(ax: Any) -> None:
    import numpy as np

    ax.plot([1, 2, 3], [4, 5, 6], label="named")
    ax.plot(np.arange(3), np.arange(3))
    ax.set(title="T", xlabel="Time (s)", ylabel="Force [N]")
    ax.grid()


def horizontal_bars(ax: Any) -> None:
    ax.barh(["a", "b", "c"], [1, 2, 3])
    ax.set(xlabel="Books (k)")


def grouped_bars(ax: Any) -> None:
    ax.bar([0, 1], [1, 2], 0.4, label="A")
    ax.bar([0.4, 1.4], [3, 4], 0.4, label="B")
    ax.set_xticks([0, 1], ["p", "q"])


def boxes(ax: Any) -> None:
    data = [[85, 90, 78, 92, 88], [84, 90, 76, 95, 88, 86], [75, 80, 82, 86, 88]]
    ax.boxplot(data, patch_artist=True)
    ax.set_xticklabels(["x", "y", "z"])


def picture(ax: Any) -> None:
    ax.imshow([[1, 2]])
    ax.set_title("im")


GALLERY: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "lines": ("line", lines),
    "log": ("line", lambda ax: (ax.plot([1, 2], [1, 100]), ax.set_yscale("log"))),
    "dates": ("line", lambda ax: ax.plot([dt.date(2024, 1, day) for day in range(1, 5)], range(4))),
    "categories": ("line", lambda ax: ax.plot([1, 2, 3], ["a", "b", "c"])),
    "scatter": ("scatter", lambda ax: ax.scatter([1, 2], [3, 4], label="s")),
    "scattered names": ("scatter", lambda ax: ax.scatter(["a", "b"], [3, 4])),
    "bars": ("bar", lambda ax: ax.bar(["a", "b"], [1, 2], label="G")),
    "horizontal bars": ("bar", horizontal_bars),
    "grouped bars": ("bar", grouped_bars),
    "histogram": ("bar", lambda ax: ax.hist([1, 2, 2, 3, 3, 3], bins=3)),
    "pie": ("pie", lambda ax: ax.pie([90, 10], labels=["x", "y"], autopct="%d")),
    "boxes": ("box_and_whisker", boxes),
    "image": ("unknown", picture),
    "bars with errors": ("unknown", lambda ax: ax.bar(["a", "b"], [1, 2], yerr=[0.1, 0.1])),
    "polar": ("line", None),  # type: ignore[dict-item]
}


def figure(draw: Callable[[Any], Any] | None = None, **options: Any) -> Any:
    pytest.importorskip("e2b_charts")
    from matplotlib.figure import Figure

    made = Figure()
    if draw is None:
        made.add_subplot(projection="polar").plot([0, 1], [1, 2])
    else:
        draw(made.add_subplot())
    return made


@pytest.mark.parametrize("name", GALLERY)
def test_matplotlib_as_e2b_charts_reads_it(name: str) -> None:
    """Every kind is described exactly as e2b-charts describes it, as often as it is asked."""
    kind, draw = GALLERY[name]
    shown = figure(draw)
    from e2b_charts import chart_figure_to_dict

    chart = matplotlib_chart(shown)
    assert chart is not None
    assert chart["type"] == kind
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = json.dumps(chart_figure_to_dict(shown), default=float)
    assert json.loads(json.dumps(chart, allow_nan=False)) == json.loads(theirs)
    assert matplotlib_chart(shown) == chart
    assert Chart.from_dict(chart).type == kind


def test_scales_units_and_labels() -> None:
    """A chart has its title, labels with their units, scales and the names of series."""
    chart = matplotlib_chart(figure(lines))
    assert chart is not None
    assert (chart["title"], chart["x_label"], chart["y_label"]) == ("T", "Time (s)", "Force [N]")
    assert (chart["x_unit"], chart["y_unit"]) == ("s", "N")
    assert [series["label"] for series in chart["elements"]] == ["named", "Line 1"]
    scales = {name: matplotlib_chart(figure(GALLERY[name][1])) for name in ("log", "dates", "categories")}
    assert scales["log"] and scales["log"]["y_scale"] == "log"
    assert scales["dates"] and scales["dates"]["x_scale"] == "datetime"
    assert scales["dates"]["elements"][0]["points"][0] == ["2024-01-01", 0.0]
    assert scales["categories"] and scales["categories"]["y_scale"] == "categorical"


def test_boxes_have_their_quartiles() -> None:
    """The five numbers of a box and what lies outside are e2b-charts' own test values."""
    chart = matplotlib_chart(figure(boxes))
    assert chart is not None
    found = [
        [box[key] for key in ("min", "first_quartile", "median", "third_quartile", "max")]
        for box in chart["elements"]
    ]
    assert found[0] == [78, 85, 88, 90, 92]
    assert found[2] == [75, 80, 82, 86, 88]


def test_several_axes_make_a_superchart() -> None:
    """Each of several axes has its chart; one that cannot be read is unknown and spoils no other."""
    pytest.importorskip("e2b_charts")
    from matplotlib.figure import Figure

    shown = Figure()
    shown.suptitle("S")
    first, second, third = shown.subplots(1, 3)
    lines(first)
    second.scatter([1], [2])
    third.boxplot([[1.0]], patch_artist=True)  # whiskers without a length, which e2b-charts stumbles over
    third.set_title("broken")
    chart = matplotlib_chart(shown)
    assert chart is not None
    assert (chart["type"], chart["title"]) == ("superchart", "S")
    assert [(one["type"], one["title"]) for one in chart["elements"]] == [
        ("line", "T"),
        ("scatter", None),
        ("unknown", "broken"),
    ]


def test_a_blank_figure_has_no_chart() -> None:
    """Axes without data are no chart; nor is something that only calls itself a figure."""
    assert matplotlib_chart(figure(lambda ax: None)) is None
    assert matplotlib_chart(object()) == {"type": "unknown", "title": None, "elements": []}


def test_gaps_are_null() -> None:
    """NaN and infinities are gaps, and the description is valid JSON."""
    chart = matplotlib_chart(figure(lambda ax: ax.plot([1, 2, 3], [1, float("nan"), float("inf")])))
    assert chart is not None
    assert chart["elements"][0]["points"] == [[1.0, 1.0], [2.0, None], [3.0, None]]


def test_a_million_points_are_thinned() -> None:
    """Of a huge line the first and last points and its extremes stay, in order; the chart says how many there were."""
    numpy = pytest.importorskip("numpy")
    values = numpy.sin(numpy.linspace(0, 50, 1_000_000))
    values[123_456], values[765_432] = 7.0, -7.0
    shown = figure(lambda ax: ax.plot(values))
    start = time.process_time()
    chart = matplotlib_chart(shown)
    assert time.process_time() - start < 2
    assert chart is not None
    points = chart["elements"][0]["points"]
    assert chart["truncated"] == {"points": 1_000_000, "points_kept": 10_000}
    assert len(points) == schema.MAX_POINTS
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert points[0] == [0.0, values[0]] and points[-1] == [999_999.0, values[-1]]
    assert [123_456.0, 7.0] in points and [765_432.0, -7.0] in points
    assert shown.axes[0].lines[0].get_xdata().size == 1_000_000


def many_lines(ax: Any) -> None:
    for number in range(400):
        ax.plot([0, number])


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (lambda ax: ax.scatter(range(30_000), range(30_000)), {"points": 30_000, "points_kept": 10_000}),
        (many_lines, {"series": 400, "series_kept": 256}),
        (lambda ax: ax.hist(range(20_000), bins=12_000), {"points": 24_000, "points_kept": 10_000}),
    ],
    ids=["scatter", "lines", "bars"],
)
def test_everything_is_bounded(draw: Callable[[Any], Any], told: dict[str, int]) -> None:
    """More points, series or bars than the bounds allow are left out, and the chart says so."""
    chart = matplotlib_chart(figure(draw))
    assert chart is not None
    assert chart["truncated"] == told
    assert len(json.dumps(chart)) < 1_000_000


def test_long_texts_are_cut() -> None:
    """A title or a label of a megabyte does not travel twice."""
    chart = matplotlib_chart(figure(lambda ax: (ax.plot([1], label="l" * 10**6), ax.set_title("t" * 10**6))))
    assert chart is not None
    assert len(chart["title"]) == len(chart["elements"][0]["label"]) == schema.MAX_TEXT


def test_a_figure_shown_twice(session: Session) -> None:
    """Every display of a figure carries its chart."""
    pytest.importorskip("e2b_charts")
    ran = session.run(
        "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.bar(['a', 'b'], [1, 2])\ndisplay(fig)\ndisplay(fig)\nfig"
    ).ok()
    charts = [bundle[CHART_MIME] for bundle in ran.displays]
    assert len(charts) >= 3
    assert all(chart == charts[0] for chart in charts)
    assert charts[0]["type"] == "bar"


# ----------------------------------------------------------------------------------------------- plotly


def plotly(session: Session, code: str) -> Any:
    """The chart of the figure that ``code`` makes, as the kernel sends it."""
    pytest.importorskip("plotly")
    start = "import plotly.graph_objects as go, plotly.express as px, numpy as np, pandas as pd\nfrom plotly.subplots import make_subplots\n"
    bundle = session.run(start + code).ok().displays[0]
    assert PLOTLY in bundle
    return bundle.get(CHART_MIME)


def test_plotly_kinds(session: Session) -> None:
    """Lines, points, bars, pies and boxes of plotly have the same description as matplotlib's."""
    line = plotly(
        session,
        "px.line(x=pd.date_range('2024', periods=2), y=[1, 2], title='<b>T</b>', labels={'y': 'Speed (km/h)'})",
    )
    assert (line["type"], line["title"], line["y_label"], line["y_unit"]) == (
        "line",
        "T",
        "Speed (km/h)",
        "km/h",
    )
    assert (line["x_scale"], line["y_scale"]) == ("datetime", "linear")
    assert line["elements"] == [
        {"label": "trace 0", "points": [["2024-01-01T00:00:00", 1.0], ["2024-01-02T00:00:00", 2.0]]}
    ]
    scatter = plotly(
        session, "px.scatter(x=[1, 2, 3], y=[1., np.nan, 3.], color=['a', 'a', 'b'], log_y=True)"
    )
    assert (scatter["type"], scatter["y_scale"]) == ("scatter", "log")
    assert scatter["elements"][0] == {"label": "a", "points": [[1.0, 1.0], [2.0, None]]}
    bar = plotly(session, "px.bar(x=['p', 'q'], y=[3, 4], color=['g', 'h'])")
    assert bar["elements"] == [
        {"label": "p", "group": "g", "value": 3.0},
        {"label": "q", "group": "h", "value": 4.0},
    ]
    flat = plotly(
        session,
        "go.Figure(go.Bar(x=[3, 4], y=['p', 'q'], orientation='h')).update_layout(xaxis_title='n (k)')",
    )
    assert (flat["y_label"], flat["y_unit"], flat["elements"][1]["label"]) == ("n (k)", "k", "q")
    pie = plotly(session, "px.pie(names=['a', 'b', 'a'], values=[1, 2, 1])")
    assert [(wedge["label"], wedge["angle"]) for wedge in pie["elements"]] == [("a", 180.0), ("b", 180.0)]
    box = plotly(session, "px.box(x=['g'] * 6, y=[1, 2, 3, 4, 5, 50])")["elements"][0]
    assert (box["label"], box["first_quartile"], box["median"], box["max"], box["outliers"]) == (
        "g",
        2.0,
        3.5,
        5.0,
        [50.0],
    )
    counted = plotly(session, "px.histogram(x=['a', 'b', 'a'])")
    assert [(one["label"], one["value"]) for one in counted["elements"]] == [("a", 2.0), ("b", 1.0)]


def test_plotly_subplots(session: Session) -> None:
    """Subplots are a superchart, each with the title above it."""
    chart = plotly(
        session,
        "f = make_subplots(1, 2, subplot_titles=['L', 'R'])\nf.add_scatter(y=[1, 2], row=1, col=1)\n"
        "f.add_bar(x=['a'], y=[1], row=1, col=2)\nf.update_layout(title='S')",
    )
    assert (chart["type"], chart["title"]) == ("superchart", "S")
    assert [(one["type"], one["title"]) for one in chart["elements"]] == [("line", "L"), ("bar", "R")]


@pytest.mark.parametrize(
    "code",
    [
        "go.Figure(go.Heatmap(z=[[1]]))",
        "px.histogram(x=[1.5, 2, 3])",
        "px.scatter_3d(x=[1], y=[1], z=[1])",
        "go.Figure([go.Bar(x=[1], y=[1]), go.Scatter(x=[1], y=[1])])",
    ],
)
def test_what_plotly_alone_knows_is_unknown(session: Session, code: str) -> None:
    """Where the numbers are not in the figure, or mean something else, the chart is unknown but keeps its title."""
    assert plotly(session, f"({code}).update_layout(title='T')") == {
        "type": "unknown",
        "title": "T",
        "elements": [],
    }


def test_plotly_shown_twice(session: Session) -> None:
    """``show()`` and ``display`` carry the chart each time; an empty figure has none."""
    pytest.importorskip("plotly")
    ran = session.run(
        "import plotly.graph_objects as go\nf = go.Figure(go.Bar(x=['a'], y=[1]))\nf.show()\nf.show()\nf"
    ).ok()
    assert [bundle[CHART_MIME]["type"] for bundle in ran.displays] == ["bar"] * 3
    assert plotly(session, "go.Figure()") is None


def test_many_plotly_points_are_thinned(session: Session) -> None:
    """Packed arrays are read without being unpacked whole, and thinned like all others."""
    chart = plotly(session, "y = np.zeros(500_000); y[1234] = 9\ngo.Figure(go.Scattergl(y=y))")
    assert chart["truncated"] == {"points": 500_000, "points_kept": 10_000}
    assert [1234.0, 9.0] in chart["elements"][0]["points"]


# ------------------------------------------------------------------------------------------------ altair

ROWS = [
    {"a": "x", "b": 1, "g": "p", "t": "2024-01-02T00:00:00"},
    {"a": "y", "b": 2, "g": "p", "t": "2024-01-01T00:00:00"},
    {"a": "x", "b": 3, "g": "q", "t": "2024-01-03T00:00:00"},
]
A, B = {"field": "a", "type": "nominal"}, {"field": "b", "type": "quantitative"}
T = {"field": "t", "type": "temporal"}


def vega(mark: Any, rows: Any = ROWS, **encoding: Any) -> Any:
    return vega_chart({"title": "T", "mark": mark, "data": {"values": rows}, "encoding": encoding})


def test_vega_kinds() -> None:
    """Marks of Vega-Lite have the same description as matplotlib's artists."""
    bars = vega("bar", x=A, y=B | {"aggregate": "sum"})
    assert (bars["type"], bars["title"], bars["y_label"]) == ("bar", "T", "Sum of b")
    assert [(bar["label"], bar["value"]) for bar in bars["elements"]] == [("x", 4.0), ("y", 2.0)]
    flat = vega({"type": "bar"}, y=A, x=B | {"title": "n [k]"}, color={"field": "g", "type": "nominal"})
    assert (flat["x_label"], flat["y_label"], flat["y_unit"]) == ("a", "n [k]", "k")
    assert [bar["group"] for bar in flat["elements"]] == ["p", "p", "q"]
    line = vega({"type": "line", "point": True}, x=T, y=B | {"scale": {"type": "log"}})
    assert (line["type"], line["x_scale"], line["y_scale"]) == ("line", "datetime", "log")
    assert [y for _, y in line["elements"][0]["points"]] == [2.0, 1.0, 3.0]
    points = vega("point", x=B, y=B, color=A)
    assert [(one["label"], len(one["points"])) for one in points["elements"]] == [("x", 2), ("y", 1)]
    pie = vega("arc", theta=B, color=T)
    assert [round(wedge["angle"]) for wedge in pie["elements"]] == [60, 120, 180]
    box = vega({"type": "boxplot", "extent": "min-max"}, x=A, y=B)["elements"][0]
    assert (box["label"], box["min"], box["median"], box["max"]) == ("x", 1.0, 2.0, 3.0)


def test_vega_views() -> None:
    """Layers, views beside each other and facets are supercharts; a layer of labels is no chart of its own."""
    data = {"data": {"name": "d"}, "datasets": {"d": ROWS}}
    unit = {"mark": "bar", "encoding": {"x": A, "y": B}}
    labels = {"mark": "text", "encoding": {"x": A, "y": B, "text": B}}
    rule = {"mark": "line", "encoding": {"x": T, "y": B}}

    def kinds(**spec: Any) -> Any:
        chart = vega_chart({**data, **spec})
        assert chart is not None
        return chart["type"], [one.get("type") for one in chart["elements"]]

    assert kinds(layer=[unit, rule]) == ("superchart", ["bar", "line"])
    assert kinds(layer=[unit, labels])[0] == "bar"
    assert kinds(hconcat=[unit, {"vconcat": [rule, unit]}]) == ("superchart", ["bar", "line", "bar"])
    facets = vega_chart({**data, "facet": {"field": "g", "type": "nominal"}, "spec": unit})
    assert facets and [one["title"] for one in facets["elements"]] == ["p", "q"]
    columns = vega("bar", x=A, y=B, column={"field": "g", "type": "nominal"})
    assert [one["title"] for one in columns["elements"]] == ["p", "q"]


@pytest.mark.parametrize(
    "change",
    [
        {"transform": [{"filter": "datum.b > 1"}]},
        {"data": {"url": "http://example.com/data.json"}},
        {"mark": "rect"},
        {"encoding": {"x": B | {"bin": True}, "y": {"aggregate": "count"}}},
        {"encoding": {"x": T | {"timeUnit": "month"}, "y": B}},
        {"encoding": {"x": A, "y": B | {"aggregate": "stdev"}}},
        {"encoding": None},
    ],
    ids=str,
)
def test_what_vega_computes_is_unknown(change: dict[str, Any]) -> None:
    """Where the browser would fetch or transform data, the chart is unknown but keeps its title."""
    spec = {"title": "T", "mark": "bar", "data": {"values": ROWS}, "encoding": {"x": A, "y": B}}
    assert vega_chart(spec | change) == {"type": "unknown", "title": "T", "elements": []}


def test_altair(session: Session) -> None:
    """An altair chart carries its description, as a value and by ``display``, whatever renderer is chosen."""
    pytest.importorskip("altair")
    make = (
        "import altair as alt, pandas as pd\n"
        "c = alt.Chart(pd.DataFrame({'a': ['x', 'y'], 'b': [1, 2]})).mark_bar().encode(x='a', y='b')\n"
    )
    ran = session.run(make + "display(c)\nalt.renderers.enable('mimetype')\nc").ok()
    assert [bundle[CHART_MIME]["type"] for bundle in ran.displays] == ["bar", "bar"]
    both = session.run("c | c").ok().result
    assert both and both[CHART_MIME]["type"] == "superchart"
    raw = session.run("display({'application/vnd.vegalite.v6+json': c.to_dict()}, raw=True)").ok().displays[0]
    assert raw[CHART_MIME]["type"] == "bar"


# -------------------------------------------------------------------------------------------------- all


def test_nothing_is_imported(session: Session) -> None:
    """Showing a figure of one library, or none, imports no other."""
    pytest.importorskip("e2b_charts")
    session.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\ndisplay({'a': 1})").ok()
    assert session.run("import sys\n[m for m in ('plotly', 'altair') if m in sys.modules]").text == "[]"


def test_bundles_without_figures_stay_as_they_are() -> None:
    """A bundle without a figure, or with a chart of its own, is not touched."""
    for bundle in (
        {"text/plain": "x"},
        {PLOTLY: {"data": [{"y": [1]}]}, CHART_MIME: {"type": "line"}},
        {PLOTLY: "x"},
    ):
        assert with_chart(bundle) is bundle


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def changed(value: Any, path: list[int], new: Any) -> Any:
    """``value`` with one of its parts replaced."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[path[0] % len(keys)]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = changed(value[key], path[1:], new)
    return copy


FIGURE = {
    "data": [
        {
            "type": "scatter",
            "x": [1, 2],
            "y": {"dtype": "f8", "bdata": "AAAAAAAA8D8AAAAAAAAAQA=="},
            "mode": "lines",
        },
        {"type": "bar", "x": ["a"], "y": [1], "xaxis": "x2", "yaxis": "y2"},
        {"type": "pie", "labels": ["a"], "values": [1]},
        {"type": "box", "y": [1, 2, 3], "xaxis": "x3"},
        {
            "type": "box",
            "q1": [1],
            "median": [2],
            "q3": [3],
            "lowerfence": [0],
            "upperfence": [4],
            "xaxis": "x4",
        },
    ],
    "layout": {"title": {"text": "T"}, "xaxis": {"domain": [0, 1]}, "annotations": [{"text": "x"}]},
}
SPEC = {
    "data": {"values": ROWS},
    "hconcat": [
        {"mark": "bar", "encoding": {"x": A, "y": B | {"aggregate": "sum"}}},
        {"layer": [{"mark": "line", "encoding": {"x": T, "y": B}}]},
        {"mark": {"type": "boxplot"}, "encoding": {"x": A, "y": B}},
        {"mark": "arc", "encoding": {"theta": B, "color": A}},
        {"facet": {"field": "g"}, "spec": {"mark": "point", "encoding": {"x": B, "y": B}}},
    ],
}


@settings(deadline=None)
@given(st.sampled_from([FIGURE, SPEC]), st.lists(st.integers(0, 9), max_size=8), JSON)
def test_no_figure_raises(figure_or_spec: Any, path: list[int], new: Any) -> None:
    """A figure with anything in any place is read or unknown, and its chart is valid JSON that fits the schema."""
    value = changed(figure_or_spec, path, new)
    if not isinstance(value, dict):
        return
    for mime in (PLOTLY, VEGALITE):
        chart = with_chart({mime: value}).get(CHART_MIME)
        if chart is not None:
            json.dumps(chart, allow_nan=False)
            assert Chart.from_dict(chart).type == chart["type"]


def test_plotly_in_full() -> None:
    """The figure that the test above spoils is read in all its parts."""
    chart = plotly_chart(FIGURE)
    assert chart and [one["type"] for one in chart["elements"]] == [
        "line",
        "bar",
        "pie",
        "box_and_whisker",
        "box_and_whisker",
    ]
    assert chart["elements"][0]["elements"][0]["points"] == [(1.0, 1.0), (2.0, 2.0)]
    spec = vega_chart(SPEC)
    assert spec and [one["type"] for one in spec["elements"]] == [
        "bar",
        "line",
        "box_and_whisker",
        "pie",
        "scatter",
        "scatter",
    ]
