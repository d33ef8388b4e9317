"""Whole notebooks, cell by cell: cellfork next to nbclient and ipykernel."""

import difflib
from collections.abc import Callable, Iterator

import pytest

from tests.parity.known import KNOWN_DIFFERENCES
from tests.parity.normalise import differences, normalise
from tests.parity.notebooks import NAMES, cells_of, run_ours, run_theirs

pytest.importorskip("nbclient", reason="the peer of these tests; pip install 'cellfork[dev]'")

Differences = dict[str, tuple[object, object]]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_what_it_is_in_jupyter(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """Each cell has the output, results, error and number that it has with ipykernel, known differences aside."""
    unknown: list[str] = []
    for title, found in _compare(name):
        known = KNOWN_DIFFERENCES.get((name, title))
        if known is None:
            unknown += [_told(title, aspect, *values) for aspect, values in found.items()]
        elif found.keys() != known.aspects:
            unknown.append(f"{title}: differs in {sorted(found)}, known is {sorted(known.aspects)}")
        else:
            record_property("known difference", f"{name}, {title!r}: {known.reason}")
    assert not unknown, "\n\n".join([f"{len(unknown)} differences (- cellfork, + ipykernel)", *unknown])


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_a_session(name: str) -> None:
    """A notebook has at least eight cells, and every title names one cell."""
    titles = [title for title, _ in cells_of(name)]
    assert len(titles) >= 8
    assert len(set(titles)) == len(titles)
    assert {cell for notebook, cell in KNOWN_DIFFERENCES if notebook == name} <= set(titles)


def test_known_differences_name_notebooks() -> None:
    """The table of known differences speaks of notebooks that exist."""
    assert {notebook for notebook, _ in KNOWN_DIFFERENCES} <= set(NAMES)


def _compare(name: str) -> Iterator[tuple[str, Differences]]:
    """Yield each cell's title and what it differs in, for those that differ or are known to."""
    ours, theirs = run_ours(name), run_theirs(name)
    for one, other in zip(ours.cells, theirs.cells, strict=True):
        pair = normalise(one, ours.home), normalise(other, theirs.home)
        found = {aspect: (mine, peers) for aspect, mine, peers in differences(*pair)}
        if found or (name, one.title) in KNOWN_DIFFERENCES:
            yield one.title, found


def _told(title: str, aspect: str, ours: object, theirs: object) -> str:
    changes = difflib.unified_diff(_lines(ours), _lines(theirs), lineterm="", n=1)
    return "\n".join([f"{title} [{aspect}]", *list(changes)[2:60]])


def _lines(value: object) -> list[str]:
    return value.splitlines() if isinstance(value, str) else [repr(value)[:2000]]
