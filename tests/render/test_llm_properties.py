"""What holds of ``to_llm`` for every execution and every budget."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellfork.model.execution import Execution
from cellfork.model.results import ExecutionError
from cellfork.render.budget import cut, estimate_tokens
from cellfork.render.llm import to_llm
from cellfork.render.text import clean
from tests.render.builders import errors, execution, executions, long_text, names

COUNTERS: list[Callable[[str], int]] = [estimate_tokens, len, lambda text: len(text.split())]

budgets = st.integers(100, 3000) | st.integers(100, 20_000)
counters = st.sampled_from(COUNTERS)
images = st.sampled_from(["inline", "attachments", "none"])
often = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@often
@given(executions, budgets, counters, images, st.booleans())
def test_never_over_budget(
    cell: Execution, budget: int, count: Callable[[str], int], how: str, trim: bool
) -> None:
    """The text never has more tokens than the budget, whatever counts them."""
    view = to_llm(cell, max_tokens=budget, count_tokens=count, images=how, user_frames_only=trim)  # type: ignore[arg-type]
    assert count(view.text) <= budget


@often
@given(executions, budgets)
def test_no_escapes_survive(cell: Execution, budget: int) -> None:
    """No control character but newline and tab is in the text."""
    text = to_llm(cell, max_tokens=budget).text
    assert not [c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    text.encode("utf-8")


@often
@given(executions, names, long_text, budgets)
def test_the_error_is_always_there(cell: Execution, name: str, value: str, budget: int) -> None:
    """The error's name is always in the text, and its message uncut unless it alone fills the budget."""
    cell.error = ExecutionError(name, value, "trace")
    text = to_llm(cell, max_tokens=budget).text
    message = clean(value).strip()
    headline = f"{name}: {message}" if message else name
    assert name in text
    if estimate_tokens(headline) + 8 <= budget:
        assert headline in text
    assert headline in text or "dropped" in text


@often
@given(executions, budgets)
def test_every_cut_is_announced(cell: Execution, budget: int) -> None:
    """Either all of a stream is in the text, or the text says that something was dropped or left out."""
    text = to_llm(cell, max_tokens=budget, images="none").text
    for pieces in (cell.logs.stdout, cell.logs.stderr):
        stream = clean("".join(pieces)).rstrip("\n")
        assert stream in text or "dropped" in text or "left out" in text


@often
@given(executions, budgets)
def test_images_are_shown_or_attached(cell: Execution, budget: int) -> None:
    """No image is lost to a budget: it is in the text or beside it."""
    generous = to_llm(cell, max_tokens=10_000_000)
    view = to_llm(cell, max_tokens=budget)
    shown = [found.text.count("](data:") + len(found.attachments) for found in (view, generous)]
    assert shown[0] == shown[1]


@often
@given(executions, budgets)
def test_deterministic(cell: Execution, budget: int) -> None:
    """The same execution gives the same text."""
    assert to_llm(cell, max_tokens=budget) == to_llm(cell, max_tokens=budget)


@often
@given(executions)
def test_all_is_there_when_there_is_room(cell: Execution) -> None:
    """With room for everything nothing is cut."""
    text = to_llm(cell, max_tokens=100_000_000).text
    for pieces in (cell.logs.stdout, cell.logs.stderr):
        assert clean("".join(pieces)).rstrip("\n") in text


@often
@given(errors, st.integers(1, 99))
def test_budgets_that_are_too_small_do_no_harm(error: ExecutionError, budget: int) -> None:
    """Below 100 tokens the text is as good as it can be, and still within the budget."""
    text = to_llm(execution(error=error, stdout="x" * 1000), max_tokens=budget).text
    assert estimate_tokens(text) <= budget


@often
@given(st.text(min_size=1, max_size=5000), st.integers(60, 4000), st.floats(0, 1))
def test_a_cut_adds_up(text: str, limit: int, head: float) -> None:
    """Head, tail and the number in the marker make up the whole text."""
    shortened = cut(text, lambda t: len(t) <= limit, head)
    assert shortened is not None
    assert len(shortened) <= limit
    if shortened == text:
        return
    line = next(line for line in shortened.split("\n") if line.startswith("[… ") and "dropped" in line)
    front, _, back = shortened.partition(line)
    front, back = front.removesuffix("\n"), back.removeprefix("\n")
    assert text.startswith(front)
    assert text.endswith(back)
    assert len(front) + len(back) + int(line.split()[1].replace(",", "")) == len(text)


@pytest.mark.parametrize("count", COUNTERS)
def test_a_thousand_results(count: Callable[[str], int]) -> None:
    """More results than the budget has room for: the first and the last are shown, the others counted."""
    from cellfork.model.results import Result

    cell = execution(*(Result(text=f"result number {n}") for n in range(1000)))
    text = to_llm(cell, max_tokens=400, count_tokens=count).text
    assert count(text) <= 400
    assert "result number 0" in text
    assert "result number 999" in text
    assert "results (" in text
