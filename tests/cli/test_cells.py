"""Cutting files into cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.cli.cells import Cell, language_of, split_cells


def test_a_file_without_markers_is_one_cell() -> None:
    """Code is not changed where there is nothing to cut."""
    assert split_cells("a = 1\n# %%timeit is magic\na\n") == [Cell("a = 1\n# %%timeit is magic\na\n")]


def test_cells_have_titles() -> None:
    """A marker's text is the title of the cell below it."""
    assert split_cells("# %% Read\na = 1\n# %%\na\n") == [Cell("a = 1\n", "Read"), Cell("a\n")]


def test_comments_before_the_first_marker_are_no_cell() -> None:
    """A file may begin with comments; code there is a cell of its own."""
    assert split_cells("#!/usr/bin/env python\n# about\n\n# %%\na\n") == [Cell("a\n")]
    assert split_cells("import a\n# %%\na\n") == [Cell("import a\n"), Cell("a\n")]


def test_markdown_and_empty_cells_are_skipped() -> None:
    """Cells without code are not run."""
    assert split_cells("# %% [markdown]\n# # Title\n# %%\n\n# %%\na\n") == [Cell("a\n")]


def test_markers_stand_at_the_start_of_a_line() -> None:
    """An indented marker is a comment inside a block."""
    assert len(split_cells("# %%\nif a:\n    # %%\n    b\n")) == 1


@pytest.mark.parametrize("marker", ["# %%", "#%%", "// %%", "# %% title", "# %%\r"])
def test_spellings(marker: str) -> None:
    """The spellings that editors use are all known."""
    assert [cell.code for cell in split_cells(f"{marker}\na\n{marker}\nb\n")] == ["a\n", "b\n"]


@given(
    st.lists(st.sampled_from(["a = 1\n", "# note\n", "\n", "# %%\n", "# %% t\n", "'''\n", "x\r\n"])).map(
        "".join
    )
)
def test_no_code_is_lost(source: str) -> None:
    """Every line that is neither marker, comment nor blank is in exactly one cell, in order."""
    code = [line for line in source.splitlines() if line.strip() and not line.startswith("#")]
    cells = [line for cell in split_cells(source) for line in cell.code.splitlines()]
    assert [line for line in cells if line.strip() and not line.startswith("#")] == code


def test_languages_by_file_name() -> None:
    """A file's name tells its language; Python is the default."""
    assert [language_of(path) for path in ("a.py", "b.SH", "c.js", "d.R", "", "-", "e.txt")] == [
        "python", "bash", "javascript", "r", "python", "python", "python",
    ]  # fmt: skip
