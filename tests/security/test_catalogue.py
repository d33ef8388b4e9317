"""The catalogue itself: every row is tested, or says why it is not."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.security.catalogue import NOT_TESTED, ROWS

HERE = Path(__file__).parent


def rows_in_tests() -> set[str]:
    """Return the rows that the tests of this directory name."""
    return {id for _, _, ids in marked_tests() for id in ids}


def marked_tests() -> Iterator[tuple[str, str, list[str]]]:
    """Yield file, function and rows of every function that stands for a row."""
    for path in HERE.glob("test_*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                ids = [id for decorator in function.decorator_list if (id := row_of(decorator))]
                if ids:
                    yield path.name, function.name, ids


def row_of(decorator: ast.expr) -> str | None:
    """Return the row that ``decorator`` names, where it is ``@row(…)``."""
    match decorator:
        case ast.Call(func=ast.Name(id="row"), args=[ast.Constant(value=str() as id), *_]):
            return id
        case _:
            return None


def test_every_row_is_tested_or_says_why_not():
    """No row of the catalogue is passed over in silence."""
    missing = sorted(ROWS.keys() - rows_in_tests() - NOT_TESTED.keys())
    assert not missing, missing


def test_no_row_is_excused_and_tested():
    """A reason for not testing goes when the test comes."""
    assert not rows_in_tests() & NOT_TESTED.keys()


def test_tests_are_named_by_their_first_row():
    """``@row("A01", …)`` stands over ``def test_a01_…``, so that a name in a report leads to the catalogue."""
    wrong = [
        f"{file}::{name}"
        for file, name, ids in marked_tests()
        if not any(name.startswith(f"test_{id.lower()}_") for id in ids)
    ]
    assert not wrong, wrong
