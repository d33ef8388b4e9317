"""The table of runtimes: loaded when asked for, with a hint where that fails."""

import sys

import pytest

from cellfork.engine.runtimes import RUNTIMES, LazyRuntimes, RuntimeEntry
from cellfork.model.errors import Unsupported


def test_runtimes_are_made_once_and_only_when_asked_for():
    """Knowing the names imports nothing; asking makes one runtime."""
    runtimes = LazyRuntimes({"fake": RuntimeEntry("cellfork.testing.fakes:FakeRuntime", "")})
    assert "fake" in runtimes
    assert list(runtimes) == ["fake"]
    assert runtimes["fake"] is runtimes["fake"]


def test_runtime_that_cannot_be_imported_tells_the_hint():
    """Who names a runtime that is not installed learns how to get it."""
    runtimes = LazyRuntimes(
        {"later": RuntimeEntry("cellfork_later:Runtime", "pip install 'cellfork[later]'")}
    )
    with pytest.raises(Unsupported, match="pip install"):
        runtimes["later"]
    assert "cellfork_later" not in sys.modules


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_runtime_of_the_table_can_be_loaded(name: str):
    """No entry points nowhere."""
    runtime = LazyRuntimes()[name]
    assert runtime.name == name
