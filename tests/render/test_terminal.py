"""What a terminal gets to see."""

import io
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from cellfork.model.charts import Chart
from cellfork.model.execution import Execution
from cellfork.model.results import ExecutionError, Result
from cellfork.render.captions import caption, numbers
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
        "type": st.sampled_from(
            ["bar", "pie", "line", "scatter", "box_and_whisker", "superchart", "unknown"]
        ),
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


LINES = {
    "type": "line",
    "title": "T",
    "x_label": "Time (s)",
    "y_label": "Speed",
    "elements": [
        {"label": "up", "points": [[0, 1], [9, 100]]},
        {"label": "down", "points": [[0, 100], [9, 1]]},
    ],
}
BOXES = {
    "type": "box_and_whisker",
    "elements": [
        {
            "label": "a",
            "min": 0,
            "first_quartile": 2,
            "median": 5,
            "third_quartile": 8,
            "max": 10,
            "outliers": [20],
        },
        {"label": "b", "min": 15, "first_quartile": 15, "median": 15, "third_quartile": 15, "max": 15},
    ],
}


def test_axes_have_their_names() -> None:
    """A plot shows the labels of both axes, the x axis' between its ends."""
    picture = draw_chart(LINES)
    assert picture is not None
    lines = picture.plain.split("\n")
    assert lines[:2] == ["T", "Speed"]
    assert lines[-2].split() == ["0", "Time", "(s)", "9"]


def test_logarithms_names_and_gaps() -> None:
    """A logarithmic axis is drawn as one, names stand in their order, and a gap interrupts a line."""
    powers = draw_chart(
        {"type": "scatter", "y_scale": "log", "elements": [{"points": [[0, 1], [1, 10], [2, 100]]}]}
    )
    steps = draw_chart({"type": "scatter", "elements": [{"points": [[0, 0], [1, 1], [2, 2]]}]})
    assert powers is not None and steps is not None
    assert [line[11:] for line in powers.plain.split("\n")] == [line[11:] for line in steps.plain.split("\n")]
    assert powers.plain.split("\n")[0].split()[0] == "100"
    named = draw_chart({"type": "line", "elements": [{"points": [["x", 1], ["y", 3], ["z", 2]]}]})
    assert named is not None
    assert named.plain.split("\n")[-1].split() == ["x", "z"]
    gap = draw_chart({"type": "line", "elements": [{"points": [[0, 0], [1, None], [2, 2]]}]})
    dots = draw_chart({"type": "scatter", "elements": [{"points": [[0, 0], [2, 2]]}]})
    assert gap is not None and dots is not None
    assert gap.plain == dots.plain


def test_a_box_plot_is_drawn() -> None:
    """Whiskers, box, median and outliers are where they belong on one scale for all boxes."""
    picture = draw_chart(BOXES, 52)
    assert picture is not None
    first, second, axis = picture.plain.split("\n")
    assert first.index("├") < first.index("▒") < first.index("┃") < first.index("┤") < first.index("∘")
    assert second.index("┃") == pytest.approx((first.index("∘") - 2) * 0.75 + 2, abs=1)
    assert axis.split() == ["0", "20"]


def test_without_colours_marks_tell_series_apart() -> None:
    """Where there are no colours, series and groups differ by what they are drawn with."""
    picture = draw_chart(LINES, colour=False)
    assert picture is not None
    assert "● up  ○ down" in picture.plain
    assert all(picture.plain.count(mark) > 10 for mark in "●○")
    assert not [span for span in picture.spans if span.style not in {"dim", "bold", ""}]
    bars = {"type": "bar", "elements": [{"label": "a", "value": 2, "group": g} for g in ("first", "second")]}
    grouped = draw_chart(bars, colour=False)
    assert grouped is not None
    assert all(part in grouped.plain for part in ("a ██", "  ▓▓", "█ first", "▓ second"))


def test_bars_of_the_same_name_stand_together() -> None:
    """Grouped bars are ordered by name, and the name is written once."""
    elements = [{"label": name, "value": 1, "group": group} for group in "gh" for name in ("one", "two")]
    picture = draw_chart({"type": "bar", "elements": elements})
    assert picture is not None
    assert [line[:3] for line in picture.plain.split("\n")[:4]] == ["one", "   ", "two", "   "]


def test_what_was_left_out_is_told() -> None:
    """A picture of thinned points says of how many they are; charts beyond the fourth are counted."""
    picture = draw_chart(LINES | {"truncated": {"points": 5000, "points_kept": 4}})
    assert picture is not None
    assert picture.plain.endswith("(4 of 5,000 points)")
    several = draw_chart({"type": "superchart", "elements": [LINES] * 6})
    assert several is not None
    assert several.plain.endswith("… and 2 more charts")


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(charts, st.integers(30, 120), st.booleans())
def test_pictures_keep_to_their_width(chart: Any, width: int, colour: bool) -> None:
    """No line of a picture is wider than it may be, whatever labels say, also in characters of two columns."""
    chart["title"] = chart["x_label"] = chart["y_label"] = "東京" * 40
    picture = draw_chart(chart, width, colour=colour)
    if picture is not None:
        assert max(cell_len(line) for line in picture.plain.split("\n")) <= width


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({"force_terminal": True}, True),
        ({"force_terminal": True, "no_color": True}, True),
        ({"force_terminal": False}, False),
        ({"force_terminal": True, "_environ": {"TERM": "dumb"}}, False),
    ],
)
def test_pipes_get_a_line(options: dict[str, Any], drawn: bool) -> None:
    """On a terminal a chart is drawn, with or without colours; in a pipe it is one line of words."""
    output = io.StringIO()
    console = Console(file=output, width=80, **options)
    render_execution(execution(Result(png=png(4, 4), chart=LINES)), console)  # type: ignore[arg-type]
    text = output.getvalue()
    assert ("line chart 'T', x: Time (s), y: Speed, 2 series (up, down), 4 points" in text) != drawn
    assert bool(re.search("[\u2801-\u28ff●]", text)) == drawn
    assert "image/png 4x4" in text


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(charts | JSON)
def test_absurd_charts_do_no_harm(chart: Any) -> None:
    """A chart description from a hostile sandbox is drawn or not, but never raises nor prints control characters."""
    picture = draw_chart(chart)
    if picture is not None:
        assert not [c for c in picture.plain if ord(c) < 32 and c != "\n"]
    if isinstance(chart, dict):
        for words in (caption(Chart.from_dict(chart)), numbers(Chart.from_dict(chart))):
            assert not [c for c in words if ord(c) < 32 and c != "\n"]
        assert len(caption(Chart.from_dict(chart))) <= 160
