"""Events and errors on the wire: what is written is what is read."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.dialects.e2b.extension import codec, errors
from cellfork.engine.values import CommandTimeout, EntryInfo, ExecOutput
from cellfork.model import errors as kinds
from cellfork.model import events
from cellfork.model.artifacts import Artifact
from cellfork.model.errors import CellforkError, CommandFailed, ProtocolViolation, SandboxGone
from cellfork.model.network import NetworkPolicy
from cellfork.model.results import ExecutionError

ACCOUNTING = events.Accounting(1.5, None, 2**40, 7, truncated=True, posture="p")
MADE = (Artifact("/home/user/é", 3, "text/plain", "ab", lossy=True),)
EVENTS = [
    events.Started(1, seq=1, timestamp=10**18),
    events.Stdout("é\n\u2028\0\ud800"),
    events.Stderr(""),
    events.Display(
        {"text/plain": "x", "image/png": b"\x89", "application/json": [1, None, {"a": 2**80}]},
        {"m": {}},
        "d",
        True,
    ),
    events.Update({"text/plain": "x"}, "d", {"k": 1}),
    events.Clear(wait=True),
    events.InputRequest("name? ", password=True),
    events.Finished(execution_count=2, accounting=ACCOUNTING, artifacts=MADE, artifacts_truncated=True),
    events.Failed(ExecutionError("E", "v", "t"), accounting=ACCOUNTING),
    events.Interrupted(ExecutionError("KeyboardInterrupt", ""), "terminate"),
    events.TimedOut(3.0, "kill"),
    events.Killed("memory", "full"),
    events.Lost("gone"),
]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_come_back_as_they_were(event: events.Event):
    """Every kind of event, with every field, on one line."""
    line = codec.event_line(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert codec.read_event(json.loads(line)) == event


def test_every_kind_of_event_is_known():
    """A new event needs a name here, or a remote client would not understand it."""
    assert {type(event) for event in EVENTS} == set(codec.NAMES.values()) == set(events.AnyEvent.__args__)


@given(st.dictionaries(st.text(), st.text() | st.binary() | values, max_size=4), values)
def test_bundles_come_back_as_they_were(data: dict[str, Any], metadata: Any):
    """Whatever a kernel shows arrives unchanged, and the line is JSON."""
    event = events.Display(data, {"m": metadata})
    assert codec.read_event(json.loads(codec.event_line(event))) == event


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_come_back(value: float):
    """The line is JSON all the same."""

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    line = codec.event_line(events.Display({"application/json": {"x": [value]}}))
    event = codec.read_event(json.loads(line, parse_constant=refuse))
    assert isinstance(event, events.Display)
    (back,) = event.data["application/json"]["x"]
    assert math.isnan(back) if math.isnan(value) else back == value


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"type": "nope"},
        {"type": ["started"]},
        {"type": "started"},
        {"type": "started", "execution_count": 1, "surprise": 2},
        {"type": "display", "data": 5},
        {"type": "display", "data": [["a", "z", 1]]},
        {"type": "display", "data": [["a", "b", "###"]]},
        {"type": "display", "data": [["a", "p", "{"]]},
        {"type": "failed", "error": {"nope": 1}},
        {"type": "finished", "accounting": []},
        {"type": "finished", "artifacts": [{}]},
    ],
    ids=str,
)
def test_what_is_no_event_is_a_violation(line: dict[str, Any]):
    """A server that says something else is told apart from one that is gone."""
    with pytest.raises(ProtocolViolation):
        codec.read_event(line)


def test_entries_output_and_policies_come_back():
    """Files, pieces of output and network policies, with every field."""
    entry = EntryInfo("n", "/n", "symlink", 2**40, 0o4755, "user", "user", -5, "t", lossy=True)
    assert codec.read_entry(json.loads(json.dumps(codec.entry_of(entry)))) == entry
    item = ExecOutput(5, 10**18, "pty", b"\xff\0", 137)
    assert codec.read_output(json.loads(json.dumps(codec.output_of(item)))) == item
    policy = NetworkPolicy("allow", ("example.com:8443", "packages"), upload=5)
    assert codec.read_policy(json.loads(json.dumps(codec.policy_fields(policy)))) == policy
    broken: list[tuple[Any, Any]] = [
        (codec.read_entry, {"name": "x"}),
        (codec.read_output, [1, 2]),
        (codec.read_output, [1, 2, "x", "#", None]),
    ]
    for read, value in broken:
        with pytest.raises(ProtocolViolation):
            read(value)


def every_error() -> list[type[CellforkError]]:
    return [
        kind for kind in vars(kinds).values() if isinstance(kind, type) and issubclass(kind, CellforkError)
    ]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_errors_come_back_as_the_same_class(kind: type[CellforkError]):
    """Every class of error crosses the wire; only what its details are made of is kept to the message."""
    if kind is kinds.CommandFailed:
        error: CellforkError = CommandFailed(3, "out", "err", "killed by SIGKILL")
    elif kind is kinds.PostureMismatch:
        error = kinds.PostureMismatch(("a lock",))
    else:
        error = kind("why")
    back = errors.error_of(errors.http_status_of(error), json.loads(json.dumps(errors.body_of(error))))
    wanted = kinds.IsolationUnavailable if kind is kinds.PostureMismatch else kind
    assert type(back) is wanted
    if errors.http_status_of(error) != 500:
        assert str(back) == str(error)


def test_details_of_errors_come_back():
    """What a command wrote, and why a sandbox ended, are part of the error."""

    def crossed(error: CellforkError) -> Any:
        return errors.error_of(400, json.loads(json.dumps(errors.body_of(error))))

    failed = crossed(CommandFailed(3, "out", "err", "killed by SIGKILL"))
    assert (failed.exit_code, failed.stdout, failed.stderr, failed.error) == (
        3,
        "out",
        "err",
        "killed by SIGKILL",
    )
    late = crossed(CommandTimeout("late", "out", "err"))
    assert (type(late), late.stdout, late.stderr) == (CommandTimeout, "out", "err")
    assert crossed(SandboxGone("gone", "deadline")).reason == "deadline"


@pytest.mark.parametrize(
    "status, kind",
    [(400, "InvalidRequest"), (401, "Unauthorized"), (403, "Unauthorized"), (404, "NotFound"), (409, "Conflict"), (413, "LimitExceeded"),
     (418, "UsageError"), (429, "LimitExceeded"), (500, "UnavailableError"), (502, "UnavailableError"), (504, "OperationTimeout")],
)  # fmt: skip
@pytest.mark.parametrize(
    "body", [{}, {"error": "os.system"}, {"error": 5, "message": None}, {"details": 5}], ids=str
)
def test_an_error_without_a_known_code_goes_by_its_status(status: int, kind: str, body: dict[str, Any]):
    """A closed table: no name that a server sends is ever looked up as code."""
    assert type(errors.error_of(status, body)).__name__ == kind
