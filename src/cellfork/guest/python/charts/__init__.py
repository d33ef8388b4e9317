"""Descriptions of charts, in the schema of e2b-charts, from the figures of three libraries.

A library is met through the user's own objects; none is imported that the code did not import.  Reading a
figure never raises, and costs little however much it holds: what is beyond the bounds of :mod:`.schema` is left
out, and the description says so in ``truncated``.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cellfork.guest.python.charts.matplotlib import matplotlib_chart
from cellfork.guest.python.charts.plotly import figure_chart, plotly_chart
from cellfork.guest.python.charts.schema import Description
from cellfork.guest.python.charts.vega import altair_chart, vega_chart
from cellfork.model.results import CHART_MIME

CHART_OF_TYPE: tuple[tuple[str, str, Callable[[Any], Description | None]], ...] = (
    ("matplotlib.figure", "Figure", matplotlib_chart),
    ("plotly.basedatatypes", "BaseFigure", figure_chart),
    *((f"altair.vegalite.{version}.api", "TopLevelMixin", altair_chart) for version in ("v5", "v6")),
)
"""Module, class, and what returns the chart of one of its objects."""

_CHART_OF_JSON: tuple[tuple[str, Callable[[Mapping[str, Any]], Description | None]], ...] = (
    ("application/vnd.plotly.", plotly_chart),
    ("application/vnd.vegalite.", vega_chart),
)


def with_chart(data: dict[str, Any]) -> dict[str, Any]:
    """Return a MIME bundle together with the chart of the plotly or Vega-Lite JSON in it; else as it is."""
    if CHART_MIME in data:
        return data
    for mime, value in data.items():
        for prefix, chart_of in _CHART_OF_JSON:
            if isinstance(mime, str) and mime.startswith(prefix) and isinstance(value, dict):
                chart = chart_of(value)
                return data if chart is None else {**data, CHART_MIME: chart}
    return data
