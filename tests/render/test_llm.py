"""``to_llm``: what is in it, what a budget does to it, and a corpus of real shapes."""

import base64
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from cellfork.model.errors import InvalidRequest
from cellfork.model.execution import Status
from cellfork.model.results import ExecutionError, Result
from cellfork.render.budget import estimate_tokens
from cellfork.render.llm import NO_OUTPUT, to_llm
from cellfork.render.text import clean
from tests.render.builders import GOLDEN, execution, load_golden, png

CASES = sorted(GOLDEN.glob("*.json"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_golden(case: Path) -> None:
    """The text of every execution in the corpus is known to the letter (CELLFORK_GOLDEN=write renews it)."""
    built, options = load_golden(case)
    view = to_llm(built, **options)
    shown = view.text + "".join(
        f"\n-- attached: {a.name} {a.mime} {len(a.data_base64)}" for a in view.attachments
    )
    expected = case.with_suffix(".txt")
    if os.environ.get("CELLFORK_GOLDEN") == "write":
        expected.write_text(shown + "\n")
    assert shown + "\n" == expected.read_text()


def test_the_corpus_is_large_enough() -> None:
    """At least forty executions in the corpus are what real cells gave, and seven languages are in it."""
    real = [case for case in CASES if "code" in json.loads(case.read_text())]
    assert len(real) >= 40
    words = {case.stem.partition("_")[0] for case in CASES}
    assert words >= {"run", "bash", "deno", "node", "r", "java", "go", "camel"}


@pytest.mark.parametrize("how", ["inline", "attachments", "none"])
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_every_case_fits_every_budget(case: Path, how: Any) -> None:
    """From 100 to 20,000 tokens: never over the budget, the error always there, every cut announced."""
    built, _ = load_golden(case)
    whole = to_llm(built, max_tokens=10_000_000, images=how).text
    for budget in (100, 150, 250, 400, 700, 1_000, 2_000, 4_000, 8_000, 20_000):
        view = to_llm(built, max_tokens=budget, images=how)
        assert estimate_tokens(view.text) <= budget
        if view.text != whole:
            assert re.search(r"dropped …\]|left out", view.text)
        if built.error is not None:
            headline = f"{built.error.name}: {clean(built.error.value).strip()}"
            assert headline in view.text or (len(headline) > 3 * budget and built.error.name in view.text)


def test_a_chart_is_numbers_where_there_is_no_image() -> None:
    """A figure without a picture is shown as its numbers, not as a script; what else there is stays named."""
    bar = {"type": "bar", "title": "T", "elements": [{"label": "a", "group": "g", "value": 2.5}]}
    made = Result(html="<script>draw()</script>", text="alt.Chart(...)", is_main_result=True, chart=bar)  # type: ignore[arg-type]
    assert to_llm(execution(made)).text == "bar chart 'T', 1 bars (a)\n- a: 2.5"
    unknown = Result(html="<b>x</b>", chart={"type": "unknown", "title": "T", "elements": []})  # type: ignore[arg-type]
    assert to_llm(execution(unknown)).text == "<b>x</b>"


def test_an_image_beside_the_text_is_described_by_its_chart() -> None:
    """Who does not see the image reads its kind, title, axes and how much is in it."""
    line = {
        "type": "line", "title": "T", "x_label": "Time (s)", "y_scale": "log",
        "elements": [{"label": "a", "points": [[0, 1], [1, 2]]}], "truncated": {"points": 90, "points_kept": 2},
    }  # fmt: skip
    text = to_llm(execution(Result(png=png(2, 2), chart=line)), images="none").text  # type: ignore[arg-type]
    for part in ("line chart 'T'", "x: Time (s)", "y: (log)", "1 series (a)", "2 points", "2 of 90 points"):
        assert part in text


def test_style_sheets_are_no_content() -> None:
    """HTML goes without its style sheets, unless it has nothing else or they are never closed."""
    assert to_llm(execution(Result(html="<style scoped>\n b {}\n</style>\n<b>x</b>"))).text == "<b>x</b>"
    for alone in ("<style>b {}</style>", "<style>b {}<b>x</b>", "</style>x<style>"):
        assert to_llm(execution(Result(html=alone))).text == alone
    start = time.perf_counter()
    to_llm(execution(Result(html="<style>" * 200_000)))
    assert time.perf_counter() - start < 5


def test_what_is_beside_a_text_is_named() -> None:
    """A result that is shown as text names its other types; widgets' have no content of their own."""
    extra = {"application/x-own": "abc", "application/vnd.jupyter.widget-view+json": {}}
    assert to_llm(execution(Result(text="t", extra=extra))).text == "t\n[also: application/x-own]"
    assert to_llm(execution(Result(extra={"text/x-own": "abc"}))).text == "[text/x-own]\nabc"
    assert to_llm(execution(Result(extra={"image/x-own": "abc"}))).text == "[a result of type image/x-own]"


def test_a_long_traceback_keeps_the_users_own_frames() -> None:
    """Where a traceback must be cut, the frames of libraries go first."""
    built, _ = load_golden(GOLDEN / "run_key_error_small_budget.json")
    text = to_llm(built, max_tokens=150).text
    assert "----> 2 pd.DataFrame({'a': [1]})['revenue']" in text
    assert "7 library frames" in text or "2 library frames left out" in text
    assert "frames left out" not in to_llm(built).text


def test_stacks_of_other_languages_are_trimmed() -> None:
    """Frames of Node, Deno and the JVM go on request; the code's own stay."""
    for name, own in (
        ("node_stack_user_frames", "at pick ([eval]:1:31)"),
        ("java_exception", "at .pick(#12:1)"),
    ):
        built, _ = load_golden(GOLDEN / f"{name}.json")
        text = to_llm(built, user_frames_only=True).text
        assert own in text
        assert "node:internal" not in text and "java.base" not in text
        assert "library frames left out" in text


def test_plot_stdout_stderr_and_error_all_survive() -> None:
    """A cell that plots, prints, warns and raises loses none of the four (CAMEL lost three)."""
    error = ExecutionError("ValueError", "bad", "Traceback …")
    cell = execution(Result(png=png(6, 4)), stdout="out\n", stderr="warn\n", error=error)
    text = to_llm(cell).text
    positions = [
        text.index(part)
        for part in ("data:image/png;base64,", "out", "[stderr] warn", "ValueError: bad", "Traceback")
    ]
    assert positions[:3] == sorted(positions[:3])
    assert max(positions[:3]) < min(positions[3:])


@pytest.mark.parametrize(
    "richest, formats",
    [
        ("data:image/png", {"png", "jpeg", "svg", "html", "text"}),
        ("data:image/jpeg", {"jpeg", "svg", "html", "text"}),
        ("data:image/svg+xml", {"svg", "html", "text"}),
        ("<b>html</b>", {"html", "text"}),
        ("plain", {"text"}),
    ],
)
def test_the_richest_form_of_a_result_is_shown(richest: str, formats: set[str]) -> None:
    """PNG goes before JPEG, SVG, HTML and text, and only one of them is shown."""
    everything: dict[str, Any] = {
        "png": png(2, 2),
        "jpeg": base64.b64encode(b"\xff\xd8\xff\xe0").decode(),
        "svg": "<svg/>",
        "html": "<b>html</b>",
        "text": "plain",
    }
    text = to_llm(execution(Result(**{name: everything[name] for name in formats}))).text
    assert richest in text
    assert sum(mark in text for mark in ("image/png", "image/jpeg", "image/svg", "<b>html", "plain")) == 1


def test_none_is_not_shown_as_the_main_text() -> None:
    """The text "None" is no result, but what was displayed beside it is."""
    nothing = Result(text="None", is_main_result=True)
    assert to_llm(execution(nothing)).text == NO_OUTPUT
    assert to_llm(execution(Result(text="shown"), nothing)).text == "shown"


@pytest.mark.parametrize("status", ["ok", "timed_out", "killed", "lost", "interrupted", "running"])
def test_silence_is_explained(status: Status) -> None:
    """Where there is nothing to show, the text says how the execution ended; only "ok" is a success."""
    text = to_llm(execution(status=status)).text
    assert "no output" in text
    assert ("successfully" in text) == (status == "ok")


def test_images_beside_the_text() -> None:
    """Attachments carry the image, the text names it, and it costs no tokens."""
    image = png(640, 480, 100_000)
    view = to_llm(execution(Result(png=image)), images="attachments", max_tokens=100)
    assert [(a.mime, a.data_base64, a.name) for a in view.attachments] == [
        ("image/png", image, "result-1.png")
    ]
    assert "image/png 640x480" in view.text
    assert view.attachments[0].name in view.text


def test_an_image_that_is_too_large_is_named_and_attached() -> None:
    """An image that the budget cannot hold is not lost: the text says its size, and it is attached."""
    image = png(640, 480, 100_000)
    view = to_llm(execution(Result(png=image)), max_tokens=500)
    assert "base64" not in view.text
    assert "left out" in view.text
    assert "99.3 KiB" in view.text
    assert view.attachments[0].data_base64 == image


def test_small_images_stay_when_a_large_one_goes() -> None:
    """One large image does not push the small ones out."""
    view = to_llm(execution(Result(png=png(4, 4)), Result(png=png(5, 5, 50_000)), Result(png=png(6, 6))))
    assert view.text.count("data:image/png") == 2
    assert [a.name for a in view.attachments] == ["result-2.png"]


def test_images_can_be_left_out() -> None:
    """``images="none"`` names images and carries none."""
    view = to_llm(execution(Result(png=png(7, 8))), images="none")
    assert view.attachments == ()
    assert "image/png 7x8" in view.text
    assert "base64" not in view.text


def test_content_that_is_no_base64_never_becomes_a_data_uri() -> None:
    """A guest cannot break out of the Markdown image with a forged "png"."""
    text = to_llm(execution(Result(png=") ![x](http://evil", text="fallback"))).text
    assert text == "fallback"


def test_long_output_keeps_head_and_tail_and_counts_what_it_dropped() -> None:
    """Of a long stdout the first and the last lines stay, and the marker's count is right."""
    lines = [f"line {number}" for number in range(10_000)]
    text = to_llm(execution(stdout="\n".join(lines)), max_tokens=200).text
    assert text.startswith("line 0\n")
    assert text.endswith("line 9999")
    marker = next(line for line in text.split("\n") if "dropped" in line)
    dropped = int(marker.split()[1].replace(",", ""))
    assert len(text) - len(marker) - 2 + dropped == len("\n".join(lines))


def test_a_large_output_does_not_starve_a_small_one() -> None:
    """Sections share the budget: stderr and the error stay whole beside a megabyte of stdout."""
    cell = execution(stdout="x" * 1_000_000, stderr="small warning", error=ExecutionError("KeyError", "'a'"))
    text = to_llm(cell, max_tokens=300).text
    assert "[stderr] small warning" in text
    assert "KeyError: 'a'" in text


def test_a_traceback_is_trimmed_to_the_users_frames() -> None:
    """On request the frames of libraries go, and their number is told."""
    trace = (
        "KeyError   Traceback (most recent call last)\n"
        "File /opt/venv/lib/python3.11/site-packages/pandas/core/indexes/base.py:3812, in Index.get_loc(self, key)\n"
        "   3811 try:\n-> 3812     return self._engine.get_loc(casted_key)\n\n"
        "File pandas/_libs/index.pyx:167, in pandas._libs.index.IndexEngine.get_loc()\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "KeyError                                  Traceback (most recent call last)\n"
        "Cell In[3], line 1\n----> 1 sales['revnue'].sum()\n\n"
        "File /opt/venv/lib/python3.11/site-packages/pandas/core/frame.py:4107, in DataFrame.__getitem__(self, key)\n"
        "-> 4107     indexer = self.columns.get_loc(key)\n\n"
        "KeyError: 'revnue'"
    )
    cell = execution(error=ExecutionError("KeyError", "'revnue'", trace))
    text = to_llm(cell, user_frames_only=True).text
    assert "sales['revnue'].sum()" in text
    assert "get_loc" not in text
    assert "[… 2 library frames left out]" in text
    assert "[… 1 library frame left out]" in text
    assert text.endswith("KeyError: 'revnue'")
    assert "frame.py" in to_llm(cell).text


def test_a_traceback_of_libraries_alone_is_kept() -> None:
    """Where no frame is the user's own, all are shown."""
    trace = 'Traceback (most recent call last):\n  File "/usr/lib/python3.11/json/decoder.py", line 1, in decode\n    x\nValueError: no'
    text = to_llm(execution(error=ExecutionError("ValueError", "no", trace)), user_frames_only=True).text
    assert "decoder.py" in text


def test_an_own_tokenizer_is_obeyed() -> None:
    """The budget counts whatever ``count_tokens`` counts."""
    cell = execution(stdout="word " * 5_000, error=ExecutionError("ValueError", "no"))
    view = to_llm(cell, max_tokens=100, count_tokens=lambda text: len(text.split()))
    assert len(view.text.split()) <= 100
    assert len(view.text.split()) > 80
    assert "ValueError: no" in view.text


def test_bad_options_are_refused() -> None:
    """A budget below one token and an unknown kind of images are the caller's mistakes."""
    with pytest.raises(InvalidRequest, match="max_tokens"):
        to_llm(execution(), max_tokens=0)
    with pytest.raises(InvalidRequest, match="inline, attachments, none"):
        to_llm(execution(), images="outline")  # type: ignore[arg-type]


def test_the_executions_own_method() -> None:
    """``Execution.to_llm`` is the same function, and its value prints as its text."""
    cell = execution(Result(text="42", is_main_result=True))
    assert str(cell.to_llm(max_tokens=100)) == "42"


def test_sixteen_megabytes_take_little_time() -> None:
    """The largest output that the engine keeps is rendered in seconds, not minutes."""
    start = time.perf_counter()
    to_llm(execution(stdout="\x1b[31mline\x1b[0m\r\n" * 1_200_000))
    assert time.perf_counter() - start < 20
