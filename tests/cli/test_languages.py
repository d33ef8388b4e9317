"""``cellfork languages``."""

import json

from cellfork.model.languages import KNOWN
from tests.cli.conftest import Invoke


def test_the_list(invoke: Invoke) -> None:
    """Every known language is there, ready with its version or missing with the one command that installs it."""
    outcome = invoke("languages", "--json", "--isolation", "none")
    rows = {row["name"]: row for row in json.loads(outcome.out)}
    assert outcome.code == 0
    assert set(KNOWN) <= set(rows)
    for name, row in rows.items():
        assert row["ready"] is True or row["install"] == KNOWN[name].remedy != ""
    assert rows["python"]["ready"] and rows["python"]["version"].startswith("3.")
    assert rows["bash"]["ready"] and rows["bash"]["version"]


def test_the_table(invoke: Invoke) -> None:
    """The same for people: a line for each language."""
    outcome = invoke("languages", "--isolation", "none")
    assert outcome.code == 0
    assert all(name in outcome.out for name in KNOWN)


def test_no_such_isolation(invoke: Invoke) -> None:
    """What cannot be asked is an error, not an empty list."""
    outcome = invoke("languages", "--isolation", "nope")
    assert outcome.code != 0
    assert outcome.out == ""
