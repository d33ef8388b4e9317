"""The table of ``make mutation-security`` fits the code: a control that cannot be removed any more is not tried."""

from pathlib import Path

import pytest

from scripts.mutation_table import MUTATIONS
from scripts.mutations import Mutation

SOURCES = Path(__file__).resolve().parents[2] / "src/cellfork"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.control)
def test_a_control_can_be_removed(mutation: Mutation) -> None:
    """Each edit finds its text once, and changes it."""
    for path, old, new in mutation.edits:
        assert (SOURCES / path).read_text().count(old) == 1
        assert old != new
