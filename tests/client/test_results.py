"""Results from the code to the caller: every type, updates, clearing, numbers that JSON does not have."""

import base64
import json
import math
from collections.abc import Iterator

import pytest

from cellfork import Execution, Sandbox
from cellfork.model import events
from cellfork.model.execution import fold

DISPLAY = "from IPython.display import display, update_display, clear_output\n"


@pytest.fixture
def sandbox(create) -> Iterator[Sandbox]:
    with create() as sandbox:
        yield sandbox


def told(sandbox: Sandbox, code: str) -> tuple[list[events.Event], Execution]:
    """Run ``code``; return its events, and what they amount to."""
    stream = list(sandbox.stream_code(DISPLAY + code))
    return stream, fold(stream)


def kinds(stream: list[events.Event]) -> list[str]:
    return [type(event).__name__ for event in stream[1:-1]]


def texts(execution: Execution) -> list[str | None]:
    return [result.text for result in execution.results]


def test_many_types_at_once(sandbox: Sandbox):
    """One result has all its types: known ones as attributes, others in ``extra``, bytes as base64."""
    bundle = {
        "text/plain": "t", "text/html": "<b>", "image/png": b"\x89PNG", "image/gif": b"GIF89a", "application/pdf": b"%PDF",
        "application/json": {"a": 1}, "application/geo+json": {"type": "Point"}, "application/x-unknown": "?",
    }  # fmt: skip
    (result,) = told(sandbox, f"display({bundle!r}, raw=True)")[1].results
    assert (result.text, result.html, result.json) == ("t", "<b>", {"a": 1})
    assert (result.png, result.pdf) == ("iVBORw==", "JVBERg==")
    assert result.extra == {
        "image/gif": base64.b64encode(b"GIF89a").decode(),
        "application/geo+json": {"type": "Point"},
        "application/x-unknown": "?",
    }


def test_widgets_are_told_as_text(sandbox: Sandbox):
    """A widget, which has no other half here, is a result with text; its view is in ``extra``."""
    code = "import ipywidgets\nipywidgets.IntSlider(value=3)"
    (result,) = told(sandbox, code)[1].results
    assert result.text is not None and "IntSlider(value=3" in result.text
    assert "application/vnd.jupyter.widget-view+json" in result.extra


def test_an_update_replaces_what_it_names(sandbox: Sandbox):
    """An update is an event, and its display has the new content in its old place, every display of that name."""
    stream, execution = told(
        sandbox,
        "display(1, display_id='a'); display(2); display(3, display_id='a'); update_display(4, display_id='a')",
    )
    assert kinds(stream) == ["Display", "Display", "Display", "Update"]
    assert texts(execution) == ["4", "2", "4"]


def test_an_update_of_an_earlier_cell(sandbox: Sandbox):
    """An update of a display of an earlier execution is an event of this one, and changes no result of it."""
    first = sandbox.run_code(DISPLAY + "handle = display('old', display_id='a')")
    stream, execution = told(sandbox, "handle.update('new')\ndisplay('own')")
    assert kinds(stream) == ["Update", "Display"]
    assert (texts(first), texts(execution)) == (["'old'"], ["'own'"])
    update = stream[1]
    assert isinstance(update, events.Update)
    assert (update.display_id, update.data["text/plain"]) == ("a", "'new'")


def test_an_update_of_nothing(sandbox: Sandbox):
    """An update of a display that nobody made is an event, and no result."""
    stream, execution = told(sandbox, "update_display(1, display_id='nobody')")
    assert (kinds(stream), execution.results) == (["Update"], [])


@pytest.mark.parametrize(
    ("code", "shown", "out"),
    [
        ("display(1); clear_output(); display(2)", ["2"], []),
        ("display(1); clear_output(wait=True); display(2)", ["2"], []),
        ("display(1); clear_output(wait=True)", ["1"], []),
        ("print('a'); clear_output(); print('b')", [], ["b\n"]),
        ("print('a'); display(1); clear_output(wait=True); print('b')", [], ["b\n"]),
        ("for i in range(50):\n    clear_output(wait=True); print(i)", [], ["49\n"]),
        ("display(1, display_id='a'); clear_output(); update_display(2, display_id='a')", [], []),
        ("display(1); clear_output()\n7", ["7"], []),
    ],
)
def test_clearing(sandbox: Sandbox, code: str, shown: list[str], out: list[str]):
    """Cleared output is gone from the execution, at once or when there is something new; the clearing is an event."""
    live, execution = told(sandbox, code)
    assert "Clear" in kinds(live)
    assert (texts(execution), execution.logs.stdout) == (shown, out)
    assert texts(sandbox.run_code(DISPLAY + code)) == shown


def test_numbers_that_json_does_not_have(sandbox: Sandbox):
    """NaN and infinities are floats for the caller; in JSON they are ``null``, and told."""
    code = "import pandas as pd\npd.DataFrame({'a/b': [1.5, float('nan'), float('-inf')]})"
    execution = told(sandbox, code)[1]
    (result,) = execution.results
    assert result.data is not None
    assert result.data["a/b"][0] == 1.5 and math.isnan(result.data["a/b"][1])

    def refuse(word: str) -> None:
        raise AssertionError(word)

    (value,) = json.loads(execution.to_json(), parse_constant=refuse)["results"]
    assert value["data"] == {"a/b": [1.5, None, None]}
    assert value["non_finite"] == {"/data/a~1b/1": "NaN", "/data/a~1b/2": "-Infinity"}


def test_a_frame_that_is_cut_tells_its_shape(sandbox: Sandbox):
    """Of a large frame the first rows arrive, and the true shape with them, in JSON too."""
    (result,) = told(sandbox, "import pandas as pd\npd.DataFrame({'a': range(200_000)})")[1].results
    (shape,) = result.metadata.values()
    assert (shape, result.data is not None and len(result.data["a"])) == (
        {"rows": 200_000, "rows_kept": 100_000},
        100_000,
    )
    assert json.loads(result.to_json())["metadata"] == result.metadata
