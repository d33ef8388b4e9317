"""SPECIFICATION.md and LIMITATIONS.md name tests that exist, and numbers that are the code's."""

import ast
import dataclasses
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cellfork.cli.benchmarks import http
from cellfork.cli.benchmarks.rows import ROWS

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = (ROOT / "SPECIFICATION.md").read_text()
LIMITATIONS = (ROOT / "LIMITATIONS.md").read_text()
PROMISES, _, MEASURED = SPECIFICATION.partition("\n## Measured\n")

TEST_ID = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`")
BENCH_ROW = re.compile(r"bench `(\w+)`")
NUMBER = re.compile(r"([\d,]+(?:\.\d+)?)(?: (KiB|MiB|GiB|ms|s)\b)?")
UNITS = {None: 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "ms": 1e-3, "s": 1}

TEST_IDS = sorted({*TEST_ID.findall(SPECIFICATION), *TEST_ID.findall(LIMITATIONS)})
HEADINGS = ("what", "---")
TABLE_ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PROMISES.splitlines()
    if line.startswith("|")
    and not line.startswith(tuple(f"|{sep}{word}" for word in HEADINGS for sep in ("", " ")))
]
NUMBERS = [(row[0], row[1], row[2].strip("`")) for row in TABLE_ROWS if len(row) == 4 and row[2]]


@cache
def functions_in(file: Path) -> frozenset[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse(file.read_text())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def value_at(name: str) -> Any:
    """Return what a dotted name stands for: a constant of a module, or the default of a dataclass's field."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if dataclasses.is_dataclass(found):
                return {field.name: field.default for field in dataclasses.fields(found)}[part]
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} is nothing")


def number_of(text: str) -> float:
    """Return the number that a cell of a table says, in bytes or seconds where it has a unit."""
    match = NUMBER.match(text)
    assert match, f"{text!r} is no number"
    return float(match[1].replace(",", "")) * UNITS[match[2]]


@pytest.mark.parametrize(("file", "function"), TEST_IDS, ids="::".join)
def test_named_tests_exist(file: str, function: str):
    """Whoever looks for the test behind a promise finds it."""
    path = ROOT / file
    assert path.is_file()
    assert not function or function in functions_in(path)


def test_every_promise_names_what_enforces_it():
    """No row of a table stands without a test or a benchmark."""
    assert len(TABLE_ROWS) > 120
    for row in TABLE_ROWS:
        assert TEST_ID.search(row[-1]) or BENCH_ROW.search(row[-1]), row[0]


def test_named_rows_of_the_benchmark_exist():
    """Each row of the benchmark has its goal on the page, and the page names no other."""
    assert set(BENCH_ROW.findall(PROMISES)) == {*ROWS, *http.ROWS}


@pytest.mark.parametrize(("what", "number", "name"), NUMBERS, ids=[name for _, _, name in NUMBERS])
def test_numbers_are_those_of_the_code(what: str, number: str, name: str):
    """What is written on the page is what the code does."""
    assert number_of(number) == pytest.approx(value_at(name)), what


def test_there_is_a_place_for_what_was_measured():
    """``bench/record --specification`` finds its two markers, once each and in order."""
    assert re.findall(r"<!-- bench:(\w+) -->", MEASURED) == ["begin", "end"]
