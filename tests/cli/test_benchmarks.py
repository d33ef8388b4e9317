"""What the benchmark makes of its samples.  Nothing is timed here."""

import json
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.cli.benchmarks import machine, report
from cellfork.cli.benchmarks.rows import per_second
from cellfork.cli.benchmarks.stats import Goal, Row, percentile, summarise
from scripts.specification import with_section


def row(
    ours: list[float],
    peer: list[float] | None = None,
    goal: Goal | None = None,
    *,
    more_is_better: bool = False,
) -> Row:
    theirs = summarise(peer) if peer else None
    return Row("r", "a row", "ms", summarise(ours), goal or Goal(), theirs, more_is_better=more_is_better)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_ordered(samples: list[float]) -> None:
    """min ≤ p50 ≤ p95 ≤ p99 ≤ max, and the ends are samples."""
    found = summarise(samples)
    assert found.min == min(samples)
    assert found.min <= found.p50 * (1 + 1e-9)
    assert found.p50 <= found.p95 * (1 + 1e-9)
    assert found.p95 <= found.p99 * (1 + 1e-9)
    assert found.p99 <= max(samples) * (1 + 1e-9)


def test_percentiles_interpolate() -> None:
    """Between two samples the percentile lies between them."""
    assert percentile([1, 2, 3, 4], 0.5) == 2.5
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_a_goal_is_met_or_missed_with_numbers() -> None:
    """A bound and a factor are both checked; a miss says by how much."""
    goal = Goal(10, 50)
    assert row([8.0], [800.0], goal).misses == []
    assert row([12.0], [120.0], goal).misses == ["12 ms against 10 ms", "10× against 50×"]
    assert row([8.0], None, goal).misses == []


def test_rates_are_better_when_higher() -> None:
    """For a rate the bound is the least, and the ratio turns around."""
    assert row([90.0], None, Goal(100, at_least=True)).misses
    assert row([200.0], [100.0], more_is_better=True).ratio == 2


def test_failures_are_misses() -> None:
    """A row in which something failed is not met, however fast the rest was."""
    failed = Row("r", "t", "ms", summarise([1.0]), Goal(10), failures=2)
    assert failed.misses == ["2 failures"]


def test_reports_agree() -> None:
    """Text, Markdown and JSON tell the same rows."""
    rows = [row([8.0], [800.0], Goal(10, 50)), row([12.0], None, Goal(10))]
    whole = json.loads(json.dumps(report.as_json(rows, machine.describe())))
    assert [found["met"] for found in whole["rows"]] == [True, False]
    lines = report.as_markdown(whole["rows"]).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert "100×" in report.as_text(rows[0])
    assert "no: 12 ms against 10 ms" in report.as_text(rows[1])


def test_the_specification_gets_the_table() -> None:
    """Between the two markers of a page, and only there, stand the day, the machine and the rows."""
    whole = report.as_json([row([8.0], [800.0], Goal(10, 50))], machine.describe())
    page = "before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n"
    written = with_section(page, report.as_section(whole, "2030-01-02"))
    assert written.startswith("before\n<!-- bench:begin -->\n\nMeasured on 2030-01-02: ")
    assert "| a row | 8 ms |" in written
    assert written.endswith("<!-- bench:end -->\nafter\n")
    assert with_section(written, "") != written
    with pytest.raises(ValueError, match="markers"):
        with_section("no markers", "")


def test_rates_per_second() -> None:
    """Ends are counted in the second they fall into; what ends later is not counted."""
    assert per_second([0.1, 0.9, 1.5, 3.2], 3) == [2, 1, 0]


def test_memory_of_a_process_tree() -> None:
    """The private memory of a child is found through /proc."""
    child = subprocess.Popen(["sh", "-c", "sleep 30 & wait"])
    try:
        while len(tree := machine.descendants(os.getpid())) < 2:
            pass
        assert child.pid in tree
        assert 0 < machine.private_memory(tree) < 100 * 1024**2
    finally:
        for process in machine.descendants(child.pid):
            os.kill(process, 9)
        child.kill()
        child.wait()
