"""The comparison itself: what it lets pass, and that nothing else does."""

from collections.abc import Callable

import pytest

from tests.parity import normalise as rules
from tests.parity.normalise import differences, normalise
from tests.parity.outputs import NOT_SHOWN, Cell, Output

HOME = "/tmp/somewhere/home"


def cell(*outputs: Output, count: int | None = 1) -> Cell:
    return Cell("a cell", count, outputs)


def aspects(ours: Cell, theirs: Cell) -> list[str]:
    return [aspect for aspect, _, _ in differences(normalise(ours, "/home/user"), normalise(theirs, HOME))]


@pytest.mark.parametrize(
    "rule, ours, theirs",
    [
        (rules.without_addresses, "<object at 0x7f00aa11bb22>", "<object at 0x55d0c0ffee00>"),
        (rules.without_cell_files, "<ipython-input-3-abc12f>:2: W", "/tmp/ipykernel_17/42.py:2: W"),
        (rules.without_cell_files, "(<ipython-input-3-abc12f>, line 1)", "(2628513970.py, line 1)"),
        (rules.without_random_ids, "id=T_ab12c_row0 ", "id=T_00ff1_row0 "),
        (
            rules.without_random_ids,
            "0a1b2c3d-0000-1111-2222-333344445555",
            "f" * 8 + "-aaaa-bbbb-cccc-0123456789ab",
        ),
        (rules.without_dates_of_svg, "<dc:date>2024</dc:date>", "<dc:date>2025-01-01</dc:date>"),
        (rules.without_times, "Wall time: 3.1 ms", "Wall time: 1e+03 ns"),
        (
            rules.without_depth_of_stack,
            "skipping similar frames: f (9 times)",
            "skipping similar frames: f (71 times)",
        ),
        (rules.without_terminal_line_ends, "a\nb\n", "a\r\nb\r\n"),
        (
            rules.without_kernel_frames,
            "",
            "File /x/ipykernel/kernelbase.py:15, in raw_input\n-> 15 raise\n\n",
        ),
    ],
)
def test_what_a_rule_takes_out(rule: Callable[[str], str], ours: str, theirs: str) -> None:
    """Texts that differ only in what a rule is about are equal after it, and differed before."""
    assert ours != theirs
    assert rule(ours) == rule(theirs)


@pytest.mark.parametrize("rule", rules.TEXT_RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize(
    "text",
    [
        "mean    3.141593\n1.5 sigma, 20 items in 3 sets\n",
        "0x10 and 0xff are small numbers; T_1 and T_total are names",
        "File notes.py, line 3\n\n(page 4.py, line)",
        "2024-01-01 12:00:00 to 2024-01-02",
    ],
)
def test_what_a_rule_leaves(rule: Callable[[str], str], text: str) -> None:
    """Ordinary text passes every rule unchanged."""
    assert rule(text) == text


def test_the_cut_of_streams_is_no_difference() -> None:
    """Stream text is compared as a whole between two displays; stdout and stderr each for itself."""
    ours = cell(Output("stdout", "a"), Output("stderr", "e"), Output("stdout", "b"))
    assert not aspects(ours, cell(Output("stdout", "ab"), Output("stderr", "e")))


def test_streams_do_not_pass_displays() -> None:
    """Text before a display is not text after it."""
    shown = Output("display", data={"text/plain": "x"})
    assert aspects(cell(Output("stdout", "a"), shown), cell(shown, Output("stdout", "a"))) == ["order"]


def test_the_json_that_cellfork_adds() -> None:
    """``application/json`` beside the text of a list is no difference; that of a JSON display is one."""
    listed = {"text/plain": "[1]", "application/json": [1]}
    assert not aspects(
        cell(Output("result", data=listed)), cell(Output("result", data={"text/plain": "[1]"}))
    )
    shown = {"text/plain": "<IPython.core.display.JSON object>"}
    ours = cell(Output("display", data={**shown, "application/json": {}}))
    assert aspects(ours, cell(Output("display", data=shown))) == ["MIME types"]


def test_an_error_told_in_the_reply_only() -> None:
    """An error whose traceback ipykernel does not show is compared by name and value."""
    ours = cell(Output("error", "trace", name="UsageError", value="bad"))
    assert not aspects(ours, cell(Output("error", NOT_SHOWN, name="UsageError", value="bad")))
    assert aspects(ours, cell(Output("error", NOT_SHOWN, name="UsageError", value="worse"))) == [
        "error value"
    ]


def test_directories() -> None:
    """Each side's own working directory stands for the same place."""
    assert not aspects(cell(Output("stdout", "/home/user/a\n")), cell(Output("stdout", f"{HOME}/a\n")))


@pytest.mark.parametrize(
    "ours, theirs, aspect",
    [
        (cell(count=1), cell(count=2), "execution_count"),
        (cell(Output("stdout", "a")), cell(Output("stdout", "b")), "stdout"),
        (cell(Output("stdout", "a")), cell(), "order"),
        (cell(Output("error", "t", name="A")), cell(Output("error", "t", name="B")), "error name"),
        (cell(Output("error", "t")), cell(Output("error", "u")), "traceback"),
        (cell(Output("result", data={"a/b": "1"})), cell(Output("display", data={"a/b": "1"})), "order"),
        (cell(Output("result", data={"a/b": "1"})), cell(Output("result", data={"a/b": "2"})), "a/b"),
        (cell(Output("result", data={"a/b": "1"})), cell(Output("result", data={"a/c": "1"})), "MIME types"),
        (cell(Output("result", metadata={"a": 1})), cell(Output("result")), "metadata"),
    ],
)
def test_what_is_a_difference(ours: Cell, theirs: Cell, aspect: str) -> None:
    """A difference in number, order, kind, text, MIME types, content, metadata or error is told by its name."""
    assert aspects(ours, theirs) == [aspect]
