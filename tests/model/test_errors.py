"""The error tree: documented as it is, and closed on the wire."""

import pickle
import re
from collections.abc import Iterator

import pytest

from cellfork.model import errors
from cellfork.model.errors import (
    CODES,
    GUEST_ERRORS,
    CellforkError,
    CommandFailed,
    IsolationUnavailable,
    Missing,
    ProtocolViolation,
    SandboxGone,
    from_code,
)


def documented() -> Iterator[tuple[int, str]]:
    """Yield depth and name of each line of the tree in the module's docstring."""
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:[│ ]  )*(?:[├└]─ )?)([A-Z]\w+)(?:  |$)", line)
        if match:
            yield len(match[1]) // 3, match[2]


def tree(kind: type[BaseException], depth: int = 0) -> Iterator[tuple[int, str]]:
    yield depth, kind.__name__
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child, depth + 1)


def everything() -> list[type[CellforkError]]:
    return [getattr(errors, name) for _, name in tree(CellforkError)]


def test_docstring_is_the_tree():
    """The tree in the docstring equals the classes: names, order and nesting."""
    assert list(documented()) == list(tree(CellforkError))


def test_codes_are_closed_and_distinct():
    """Every error has a code of its own; the table holds exactly what a guest may answer with."""
    codes = [kind.code for kind in everything()]
    assert len(set(codes)) == len(codes)
    assert dict(CODES) == {kind.code: kind for kind in GUEST_ERRORS}
    assert set(GUEST_ERRORS) <= set(everything())


@pytest.mark.parametrize("kind", GUEST_ERRORS, ids=lambda kind: kind.__name__)
def test_from_code(kind):
    """A guest's answer becomes exactly the error that it names, with its message."""
    error = from_code(kind.code, "why")
    assert type(error) is kind
    assert str(error) == "why"


@pytest.mark.parametrize(
    "code", ["", "x" * 10_000, "error", "usage", "unavailable", "protocol_violation", "sandbox_gone"]
)
def test_unknown_code_is_a_violation(code):
    """A code that is not in the table is a violation, told briefly: a guest cannot make up errors of the host."""
    error = from_code(code, "why")
    assert type(error) is ProtocolViolation
    assert len(str(error)) < 120


def test_errors_carry_what_they_promise():
    """The errors with fields have them, and tell them in their text."""
    missing = Missing(
        "user namespaces", "the root is built in one", "sysctl kernel.unprivileged_userns_clone=1"
    )
    unavailable = IsolationUnavailable("cannot isolate", (missing,))
    assert unavailable.missing == (missing,)
    assert str(unavailable).splitlines() == [
        "cannot isolate",
        "  - user namespaces: the root is built in one. Fix: sysctl kernel.unprivileged_userns_clone=1",
    ]
    failed = CommandFailed(3, "out", "err\n", "e")
    assert (failed.exit_code, failed.stdout, failed.stderr, failed.error) == (3, "out", "err\n", "e")
    assert str(failed) == "command exited with code 3: err"
    assert str(CommandFailed(1)) == "command exited with code 1"
    assert (SandboxGone("m").reason, SandboxGone("m", "memory").reason) == ("lost", "memory")


@pytest.mark.parametrize(
    "error",
    [
        *(kind("why") for kind in GUEST_ERRORS),
        IsolationUnavailable("why", (Missing("a", "b", "c"),)),
        SandboxGone("why", "memory"),
        CommandFailed(3, "out", "err", "e"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickle(error):
    """Errors cross process pools (pytest-xdist, multiprocessing) with all they carry."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
