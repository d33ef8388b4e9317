"""Lines of the stream: what is in a result and what is not, and that every line is JSON."""

import json

import pytest

from cellfork.dialects.e2b.code.translate import LONGEST_TEXT, Lines, cut, last_lines
from cellfork.dialects.streaming import MOST_PENDING, Follower
from cellfork.model import events
from cellfork.model.results import CHART_MIME, DATA_MIME, ExecutionError


def told(data, **fields) -> dict:
    line = Lines("python").of(events.Display(data, **fields))
    assert line.count(b"\n") == 1

    def refuse(constant: str):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(line, parse_constant=refuse)


def test_every_format_has_its_field():
    """MIME types become upstream's names; bytes are base64, JSON stays JSON, everything else is ``extra``."""
    line = told(
        {
            "text/plain": "t",
            "text/html": "<b>",
            "text/markdown": "*m*",
            "image/svg+xml": "<svg/>",
            "image/png": b"\x89PNG",
            "image/jpeg": b"\xff",
            "application/pdf": b"%PDF",
            "text/latex": "$x$",
            "application/json": [1, {"a": None}],
            "application/javascript": "js",
            DATA_MIME: {"a": [1]},
            CHART_MIME: {"type": "line", "title": None, "elements": []},
            "application/vnd.x": {"y": 1},
            "image/gif": b"GIF",
        },
        is_main_result=True,
    )
    assert line == {
        "type": "result",
        "text": "t",
        "html": "<b>",
        "markdown": "*m*",
        "svg": "<svg/>",
        "png": "iVBORw==",
        "jpeg": "/w==",
        "pdf": "JVBERg==",
        "latex": "$x$",
        "json": [1, {"a": None}],
        "javascript": "js",
        "data": {"a": [1]},
        "chart": {"type": "line", "title": None, "elements": []},
        "extra": {"application/vnd.x": {"y": 1}, "image/gif": "R0lG"},
        "is_main_result": True,
    }


def test_nulls_are_dropped_around_and_kept_within():
    """A format that is absent has no field; a unit that a chart lacks is ``null``, as JavaScript's clients expect."""
    chart = {"type": "bar", "title": None, "x_unit": None, "elements": [{"label": None}]}
    assert told({CHART_MIME: chart}) == {
        "type": "result",
        "chart": chart,
        "extra": {},
        "is_main_result": False,
    }


def test_an_empty_chart_is_none():
    """A blank figure has no chart to tell of."""
    assert "chart" not in told({"text/plain": "x", CHART_MIME: {}})


@pytest.mark.parametrize(
    "text, expected",
    [("'a'", "a"), ('"a"', "a"), ("'a\"", "'a\""), ("'", ""), ("", ""), ("a", "a"), ("'a' + 'b'", "a' + 'b")],
)
def test_quotes_around_a_text_are_stripped_as_upstream_does(text: str, expected: str):
    """The text of a result that begins and ends with the same quote loses both, whatever is between."""
    assert told({"text/plain": text})["text"] == expected


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {"a": {"b": float("-inf")}}, {"a": 10**30, "b": float("nan")}]
)
def test_every_line_is_json_that_javascript_reads(value):
    """NaN and infinities are ``null``; integers beyond 64 bits stay numbers."""
    line = told({"application/json": value, DATA_MIME: {"x": [float("nan")]}})
    assert line["data"] == {"x": [None]}
    if isinstance(value, dict) and "b" in value:
        assert line["json"] == {"a": 10**30, "b": None}


@pytest.mark.parametrize(
    "data", [{"text/plain": 5}, {"image/png": "cGxhaW4="}, {CHART_MIME: "x"}, {"text/html": None}]
)
def test_a_bundle_of_wrong_types_is_still_a_line(data):
    """What a hostile kernel shows cannot break the stream."""
    assert told(data)["type"] == "result"


def test_text_cannot_forge_a_line():
    """Newlines, quotes and whole lines of the protocol within a text stay within its string."""
    forged = 'x"}\n{"type":"end_of_execution"}\n\u2028'
    lines = Lines("python").of(events.Stdout(forged, timestamp=1)).split(b"\n")
    assert len(lines) == 2
    assert lines[1] == b""
    assert json.loads(lines[0])["text"] == forged


def test_time_is_told_to_the_microsecond_in_utc():
    """Nanoseconds since 1970 become ISO 8601 with an offset."""
    line = json.loads(Lines("python").of(events.Stdout("x", timestamp=1_700_000_000_123_456_789)))
    assert line["timestamp"] == "2023-11-14T22:13:20.123456+00:00"


def test_javas_newline_comes_by_itself():
    """Upstream's Java kernel writes a line and its end one after the other."""
    lines = Lines("java").of(events.Stdout("Hello\nWorld\n")).splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["Hello\nWorld", "\n"]
    assert Lines("java").of(events.Stdout("\n")).count(b"\n") == 1


def test_cuts_are_at_ends_of_lines_where_there_are_any():
    """Pieces are bounded, joined they are the text, and lines stay whole where they fit."""
    text = "".join(f"{n:04d}{'x' * 995}\n" for n in range(200)) + "y" * 200_000
    pieces = list(cut(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= LONGEST_TEXT
    assert all(piece.endswith("\n") for piece in pieces[:3])


@pytest.mark.parametrize(
    "event, error",
    [
        (events.Finished(), None),
        (events.Failed(ExecutionError("E", "v", "t")), ("E", "v")),
        (events.Interrupted(ExecutionError("KeyboardInterrupt", "")), ("KeyboardInterrupt", "")),
        (
            events.TimedOut(3.0),
            ("ExecutionTimeout", "the execution did not end within 3 s and was stopped (interrupt)"),
        ),
        (events.Killed("memory", "full"), ("ContextRestarting", "Context was restarted: full")),
        (
            events.Killed("request", "the context was restarted"),
            ("ContextRestarting", "Context was restarted"),
        ),
        (events.Lost("crashed"), ("ContextRestarting", "Context was restarted: crashed")),
    ],
)
def test_a_stream_ends_with_at_most_one_error(event: events.Terminal, error):
    """Every terminal event has its lines, the last of which is always the same."""
    lines = [json.loads(line) for line in last_lines(event, removed=False).splitlines()]
    assert lines[-1] == {"type": "end_of_execution"}
    assert [(line["name"], line["value"]) for line in lines[:-1]] == ([] if error is None else [error])


def test_a_follower_that_keeps_up_gets_events_and_one_that_lags_the_log():
    """What waits is bounded by its weight; beyond it the log is asked for what came after the last that was taken."""
    follower, asked = Follower(), []

    def since(after: int) -> list[events.Event]:
        asked.append(after)
        return [events.Stdout("from the log", seq=9)]

    follower.put(events.Stdout("a", seq=1))
    assert [event.seq for event in follower.take(since)] == [1]
    for seq in range(2, 9):
        follower.put(events.Display({"application/json": {}}, seq=seq))
    assert [event.seq for event in follower.take(since)] == [9]
    follower.put(events.Stdout("b", seq=10))
    assert [event.seq for event in follower.take(since)] == [10]
    assert asked == [1]
    assert MOST_PENDING >= 4 * 1024 * 1024
