"""An execution as a fold over its events."""

import dataclasses
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model import events
from cellfork.model.events import (
    Accounting,
    AnyEvent,
    Clear,
    Display,
    Event,
    Failed,
    Finished,
    InputRequest,
    Interrupted,
    Killed,
    Lost,
    Started,
    Stderr,
    Stdout,
    Terminal,
    TimedOut,
    Update,
)
from cellfork.model.execution import Execution, fold, outcome_of
from cellfork.model.results import ExecutionError, Result

ERROR = ExecutionError("ValueError", "bad", "Traceback …")
ENDS: list[tuple[Terminal, str, ExecutionError | None]] = [
    (Finished(execution_count=3), "ok", None),
    (Failed(ERROR, execution_count=3), "error", ERROR),
    (
        Interrupted(ExecutionError("KeyboardInterrupt", "")),
        "interrupted",
        ExecutionError("KeyboardInterrupt", ""),
    ),
    (
        TimedOut(1.5, "terminate"),
        "timed_out",
        ExecutionError(
            "ExecutionTimeout", "the execution did not end within 1.5 s and was stopped (terminate)"
        ),
    ),
    (Killed("memory", "512 MiB"), "killed", ExecutionError("ExecutionKilled", "memory: 512 MiB")),
    (Killed("request"), "killed", ExecutionError("ExecutionKilled", "request")),
    (
        Lost("the kernel exited with code 9"),
        "lost",
        ExecutionError("KernelLost", "the kernel exited with code 9"),
    ),
]

TEXT = st.text(max_size=5)
OPEN = st.one_of(
    st.builds(Started, st.integers(1, 9)),
    st.builds(Stdout, TEXT),
    st.builds(Stderr, TEXT),
    st.builds(
        Display,
        st.dictionaries(st.sampled_from(["text/plain", "text/html"]), TEXT),
        display_id=st.none() | st.sampled_from("ab"),
        is_main_result=st.booleans(),
    ),
    st.builds(Update, st.dictionaries(st.just("text/plain"), TEXT), st.sampled_from("ab")),
    st.builds(Clear, st.booleans()),
    st.builds(InputRequest, TEXT),
)
TERMINAL = st.sampled_from([end for end, _, _ in ENDS])


def display(text: str, display_id: str | None = None, *, main: bool = False) -> Display:
    return Display({"text/plain": text}, display_id=display_id, is_main_result=main)


def test_union_is_every_event():
    """The union of events is closed: exactly the classes of the module, six of them terminal."""
    members = set(typing.get_args(AnyEvent))
    classes = {
        value
        for value in vars(events).values()
        if isinstance(value, type) and issubclass(value, Event) and value not in {Event, Terminal}
    }
    assert members == classes
    assert {kind for kind in members if issubclass(kind, Terminal)} == {type(end) for end, _, _ in ENDS}


def test_a_run():
    """Output, results, numbers, error and accounting are where E2B's users look for them."""
    accounting = Accounting(wall_time=0.5, output_bytes=3, truncated=True)
    execution = fold(
        [
            Started(3),
            Stdout("a\n"),
            Stderr("w"),
            display("shown"),
            Stdout("b"),
            display("42", main=True),
            Failed(ERROR, execution_count=3, accounting=accounting),
        ]
    )
    assert execution.text == "42"
    assert [result.text for result in execution.results] == ["shown", "42"]
    assert (execution.logs.stdout, execution.logs.stderr) == (["a\n", "b"], ["w"])
    assert (execution.execution_count, execution.status, execution.error) == (3, "error", ERROR)
    assert execution.accounting is accounting


@pytest.mark.parametrize(
    "end, status, error", ENDS, ids=lambda value: getattr(type(value), "__name__", value)
)
def test_ends(end, status, error):
    """Each terminal event has its status; every one but ``Finished`` has an error that says what happened."""
    assert outcome_of(end) == (status, error)
    execution = fold([Started(1), end])
    assert (execution.status, execution.error, execution.terminal) == (status, error, end)
    assert execution.execution_count == (3 if end.execution_count else 1)


def test_outcome_of_what_is_no_end():
    """Only terminal events have an outcome."""
    with pytest.raises(TypeError):
        outcome_of(Terminal())


def test_running():
    """Without a terminal event it is still running: there is no empty success."""
    execution = fold([Started(1), Stdout("x")])
    assert (execution.status, execution.error, execution.terminal) == ("running", None, None)


@given(st.lists(OPEN, max_size=12), TERMINAL, st.lists(OPEN | TERMINAL, max_size=6))
def test_nothing_follows_the_end(before, end, after):
    """The first terminal event is the last that counts: whatever comes afterwards changes nothing."""
    assert fold([*before, end, *after]) == fold([*before, end])


@given(st.lists(OPEN, max_size=12), TERMINAL)
def test_exactly_one_outcome(stream, end):
    """For every stream the status is the terminal event's, and there is an error unless it is ok."""
    running, ended = fold(stream), fold([*stream, end])
    assert (running.status, running.error) == ("running", None)
    assert (ended.status, ended.error) == outcome_of(end)
    assert (ended.error is None) == (ended.status == "ok")
    assert (ended.results, ended.logs) == (running.results, running.logs)


@given(st.lists(OPEN | TERMINAL, max_size=12), st.integers(0, 12))
def test_fold_is_incremental(stream, cut):
    """Folding in two steps gives what folding at once gives."""
    execution = fold(stream[:cut])
    for event in stream[cut:]:
        execution.apply(event)
    assert execution == fold(stream)


def test_update():
    """An update changes every display with its id, in place, and nothing else."""
    execution = fold(
        [
            display("1", "a"),
            display("2", "b"),
            display("3", "a", main=True),
            Update({"text/html": "<b>"}, "a", {"m": 1}),
        ]
    )
    assert [(result.text, result.html) for result in execution.results] == [
        (None, "<b>"),
        ("2", None),
        (None, "<b>"),
    ]
    assert [result.is_main_result for result in execution.results] == [False, False, True]
    assert [result.display_id for result in execution.results] == ["a", "b", "a"]
    assert execution.results[0].metadata == {"m": 1}
    assert fold([Update({"text/plain": "x"}, "nobody")]).results == []


def test_clear():
    """``Clear`` empties everything at once; with ``wait`` when new output comes, and only then."""
    output = [Stdout("a"), Stderr("b"), display("c")]
    execution = fold([*output, Clear()])
    assert (execution.results, execution.logs.stdout, execution.logs.stderr) == ([], [], [])
    for new in (Stdout("n"), Stderr("n"), display("n")):
        waiting = fold([*output, Clear(wait=True)])
        assert (len(waiting.results), waiting.logs.stdout) == (1, ["a"])
        waiting.apply(new)
        waiting.apply(Stdout("more"))
        kept = [result.text or "" for result in waiting.results] + waiting.logs.stdout + waiting.logs.stderr
        assert sorted(kept) == ["more", "n"]
    assert fold([*output, Clear(wait=True), Clear(wait=False), Stdout("n")]).logs.stdout == ["n"]
    assert fold([*output, Clear(wait=True), Finished()]).logs.stdout == ["a"]


@given(st.lists(OPEN, max_size=12), st.none() | TERMINAL)
def test_as_json(stream, end):
    """Every execution is one valid JSON object with E2B's keys and ours."""
    execution = fold([*stream, *([end] if end else [])])
    value = json.loads(execution.to_json())
    assert set(value) == {
        "results", "logs", "error", "execution_count", "status", "artifacts", "artifacts_truncated", "accounting",
        "isolation",
    }  # fmt: skip
    assert value["logs"] == {"stdout": execution.logs.stdout, "stderr": execution.logs.stderr}
    assert len(value["results"]) == len(execution.results)
    assert value["error"] == (execution.error.to_dict() if execution.error else None)
    assert value["accounting"] == dataclasses.asdict(execution.accounting)


def test_nan_as_json():
    """NaN in a result is ``null`` in JSON, and where it was is told."""
    execution = Execution(results=[Result(json=float("nan"), data={"a": [float("inf")]})])
    value = json.loads(execution.to_json())
    assert value["results"] == [
        {
            "json": None,
            "data": {"a": [None]},
            "is_main_result": False,
            "non_finite": {"/json": "NaN", "/data/a/0": "Infinity"},
        }
    ]


def test_str():
    """An execution reads as its status, text and error."""
    assert (
        str(fold([display("42", main=True), Finished()]))
        == "Execution(status=ok, text='42', results=1, error=None)"
    )
