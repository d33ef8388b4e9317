"""The threat model promises nothing without a test: every sentence names its tests, and they exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.catalogue import ROWS
from tests.security.test_catalogue import rows_in_tests

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED_ROWS = re.compile(r"\[([A-J]\d\d(?:, [A-J]\d\d)*)\]")
NAMED_TESTS = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?(?:\[[^`]*\])?`")


def section(title: str) -> str:
    """Return the text under a heading of the second level."""
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def sentences(title: str) -> Iterator[str]:
    """Yield the items of the lists in a section, each as one line."""
    for item in re.split(r"\n(?=- )", section(title)):
        if item.strip().startswith("- "):
            yield re.split(r"\n\n", item.strip())[0].replace("\n", " ")


@pytest.mark.parametrize("sentence", [*sentences("Promises"), *sentences("Fail closed")])
def test_every_promise_names_tests(sentence):
    """A promise ends with the rows, or the file, of the tests that prove it."""
    assert NAMED_ROWS.search(sentence) or NAMED_TESTS.search(sentence), sentence


def test_every_row_that_is_named_is_tested():
    """A row in brackets is one of the catalogue, with a test."""
    named = {id for group in NAMED_ROWS.findall(PAGE) for id in group.split(", ")}
    assert named <= ROWS.keys()
    assert named <= rows_in_tests(), named - rows_in_tests()


def test_every_test_that_is_named_exists():
    """A path and a function in the page are those of a test."""
    for path, function in NAMED_TESTS.findall(PAGE):
        assert (ROOT / path).is_file(), path
        names = {
            node.name
            for node in ast.walk(ast.parse((ROOT / path).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert not function or function in names, f"{path}::{function}"


def test_every_class_of_bug_has_its_rows():
    """Each line of the table of bug classes ends with rows."""
    lines = [
        line
        for line in section("Classes of bugs that opened other sandboxes").splitlines()
        if line.startswith("| ")
    ]
    assert len(lines) >= 11
    for line in lines[1:]:
        assert NAMED_ROWS.search(line), line


def test_the_table_of_removed_controls_is_filled():
    """At least 25 controls were removed one by one, and a test turned red for each."""
    table = [line for line in section("Every control is missed").splitlines() if line.startswith("| ")]
    assert len(table) - 1 >= 25
