"""What a terminal gets to see."""

import io
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from cellfork.model.execution import Execution
from cellfork.model.results import ExecutionError, Result
from cellfork.render.charts import draw_chart
from cellfork.render.terminal import render_error, render_execution, render_result, safe_text
from tests.render.builders import execution, executions, png

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
charts = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["bar", "pie", "line", "scatter", "superchart", "unknown"]),
        "title": JSON,
        "elements": st.lists(
            st.fixed_dictionaries(
                {
                    "label": JSON,
                    "group": JSON,
                    "value": JSON,
                    "angle": JSON,
                    "points": st.lists(st.tuples(JSON, JSON) | JSON, max_size=5),
                }
            )
            | JSON,
            max_size=5,
        ),
    }
)


def shown(cell: Execution, **options: Any) -> str:
    output = io.StringIO()
    render_execution(cell, Console(file=output, force_terminal=True, width=80), **options)
    return output.getvalue()


@settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
@given(executions)
def test_only_colours_reach_the_terminal(cell: Execution) -> None:
    """Whatever an execution holds, the terminal gets text and colours."""
    rest = re.sub(r"\x1b\[[0-9;]*m", "", shown(cell))
    assert not [c for c in rest if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]


def test_markup_of_rich_is_not_interpreted() -> None:
    """Square brackets are text, not Rich's markup."""
    assert "[bold]x[/bold] [/]" in shown(execution(stdout="[bold]x[/bold] [/]"))
    assert "[red]y" in shown(execution(Result(text="[red]y")))


def test_colours_are_kept() -> None:
    """What the code printed in red is red."""
    assert safe_text("\x1b[31mred\x1b[0m").spans[0].style != ""


def test_everything_is_shown_in_order() -> None:
    """Results follow stdout, the error comes last."""
    text = shown(
        execution(Result(text="value"), stdout="out\n", stderr="err\n", error=ExecutionError("E", "v"))
    )
    assert [text.index(part) for part in ("out", "value", "err", "E: v")] == sorted(
        text.index(part) for part in ("out", "value", "err", "E: v")
    )


@pytest.mark.parametrize(
    "result, expected",
    [
        (Result(png=png(640, 480), text="<Figure>"), "[image/png 640x480, 1."),
        (Result(text="None"), ""),
        (Result(text="a  b", html="<table>"), "a  b"),
        (Result(html="<b>x</b>"), "[html 8 B]"),
        (Result(extra={"application/x-new": "abc"}), "[application/x-new 3 B]"),
    ],
)
def test_results(result: Result, expected: str) -> None:
    """A data frame is its text; what a terminal cannot show is named with its size."""
    text = shown(execution(result))
    assert expected in text
    assert bool(text.strip()) == bool(expected)


def test_saved_results_name_their_files() -> None:
    """Where an image was saved, its path is shown."""
    assert "saved out/1-1.png" in shown(execution(Result(png=png(6, 4))), saved={0: ["out/1-1.png"]})


def test_a_result_of_a_hundred_megabytes_is_shortened() -> None:
    """A huge text does not fill the terminal for minutes, and the cut is told."""
    text = "\n".join(str(part) for part in render_result(Result(text="x" * 100_000_000)))
    assert len(text) < 200_000
    assert "99,900,000 characters not shown" in text


def test_an_error_without_a_traceback_has_a_name() -> None:
    """Errors that are ours (a timeout) have no traceback; name and message are shown."""
    assert render_error(ExecutionError("ExecutionTimeout", "2 s")).plain == "ExecutionTimeout: 2 s"


def test_a_bar_chart_is_drawn() -> None:
    """Bars are drawn in proportion and labelled."""
    picture = draw_chart(
        {
            "type": "bar",
            "title": "T",
            "elements": [{"label": "a", "value": 1, "group": "g"}, {"label": "b", "value": 2, "group": "g"}],
        }
    )
    assert picture is not None
    title, first, second = picture.plain.split("\n")
    assert title == "T"
    assert second.count("█") == pytest.approx(2 * first.count("█"), abs=1)


def test_a_line_chart_shows_its_axes_and_names() -> None:
    """A line chart has dots, the ends of both axes, and a legend where there are several lines."""
    lines = [{"label": name, "points": [[0, 0], [10, height]]} for name, height in (("up", 5), ("more", 8))]
    picture = draw_chart({"type": "line", "elements": [{"label": "empty", "points": []}, *lines]})
    assert picture is not None
    assert all(part in picture.plain for part in ("8", "10", "● up", "● more"))
    assert "empty" not in picture.plain


def test_dates_are_dates() -> None:
    """A time axis shows its first and last day."""
    picture = draw_chart(
        {"type": "scatter", "elements": [{"points": [["2024-01-01", 3], ["2024-05-02", 6]]}]}
    )
    assert picture is not None
    assert "2024-01-01" in picture.plain
    assert "2024-05-02" in picture.plain


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(charts | JSON)
def test_absurd_charts_do_no_harm(chart: Any) -> None:
    """A chart description from a hostile sandbox is drawn or not, but never raises nor prints control characters."""
    picture = draw_chart(chart)
    if picture is not None:
        assert not [c for c in picture.plain if ord(c) < 32 and c != "\n"]
