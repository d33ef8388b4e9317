"""Limits, sizes, durations."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model.errors import InvalidRequest
from cellfork.model.limits import GiB, KiB, Limits, MiB, parse_duration, parse_size


@pytest.mark.parametrize(
    "text, size",
    [
        ("512M", 512 * MiB),
        ("1G", GiB),
        ("64KiB", 64 * KiB),
        ("64kb", 64 * KiB),
        (" 1.5 g ", GiB * 3 // 2),
        ("100", 100),
        ("100B", 100),
        ("2T", 2048 * GiB),
        ("2TiB", 2048 * GiB),
        (1, 1),
        (2**50, 2**50),
    ],
)
def test_sizes(text, size):
    """Sizes are numbers of bytes or text with a unit, in powers of 1024."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "value",
    [
        "",
        "M",
        "-1M",
        "1X",
        "1 2",
        "1e9",
        "0",
        "0.0001K",
        "nan",
        "inf",
        "1.M",
        "٣M",
        0,
        -1,
        1.5,
        True,
        None,
        [1],
        b"1M",
    ],
)
def test_sizes_refused(value):
    """Everything else is an invalid request."""
    with pytest.raises(InvalidRequest):
        parse_size(value)


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("30s", 30.0),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1.5", 1.5),
        (" 3 S ", 3.0),
        (3, 3.0),
        (0.25, 0.25),
    ],
)
def test_durations(text, seconds):
    """Durations are seconds or text with a unit."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "-1s",
        "1d",
        "0",
        "0s",
        "nan",
        "inf",
        "1e3",
        "1 2",
        "٣s",
        0,
        -1,
        math.nan,
        math.inf,
        -math.inf,
        True,
        None,
        [1],
        b"1s",
    ],
)
def test_durations_refused(value):
    """Everything else, endless and not-a-number ones too, is an invalid request."""
    with pytest.raises(InvalidRequest):
        parse_duration(value)


@given(st.text() | st.floats() | st.integers() | st.none() | st.binary())
def test_parsers_give_a_value_or_refuse(value):
    """Whatever comes in gives a positive finite number or an invalid request, never another error."""
    for parse in (parse_size, parse_duration):
        try:
            parsed = parse(value)
        except InvalidRequest:
            continue
        assert 0 < parsed < math.inf


def test_limits_in_bytes():
    """Text is turned into bytes at once; defaults are the documented ones."""
    limits = Limits(memory="1G", disk="2G", output="1M", result="3M")
    assert (limits.memory_bytes, limits.disk_bytes, limits.output_bytes, limits.result_bytes) == (
        GiB,
        2 * GiB,
        MiB,
        3 * MiB,
    )
    assert limits.memory == GiB
    default = Limits()
    assert (default.memory, default.cpu, default.pids, default.disk) == (512 * MiB, 1.0, 128, GiB)


def test_no_limit():
    """``None`` asks for no limit of memory, CPU or processes; disk and output always have one."""
    limits = Limits(memory=None, cpu=None, pids=None)
    assert (limits.memory_bytes, limits.cpu, limits.pids) == (0, None, None)
    for name in ("disk", "output", "result", "inodes", "open_files", "results"):
        with pytest.raises(InvalidRequest):
            Limits.from_dict({name: None})


@pytest.mark.parametrize(
    "values",
    [
        {"memory": "1M"},
        {"memory": 0},
        {"memory": True},
        {"memory": "lots"},
        {"memory": 2**70},
        {"cpu": 0},
        {"cpu": -1},
        {"cpu": math.nan},
        {"cpu": math.inf},
        {"cpu": "1"},
        {"cpu": True},
        {"pids": 0},
        {"pids": 7},
        {"pids": 1.5},
        {"pids": True},
        {"pids": 2**40},
        {"disk": -1},
        {"inodes": 1},
        {"open_files": 1},
        {"output": 0},
        {"result": "x"},
        {"results": 0},
    ],
    ids=repr,
)
def test_limits_refused(values):
    """Values out of range or of the wrong type are refused when the limits are made."""
    with pytest.raises(InvalidRequest):
        Limits(**values)


@given(
    st.builds(
        Limits,
        memory=st.none() | st.integers(32 * MiB, 2**40),
        cpu=st.none() | st.floats(0.01, 64),
        pids=st.none() | st.integers(8, 10_000),
        disk=st.integers(1, 2**40),
    )
)
def test_limits_as_json(limits):
    """Limits survive the way through JSON."""
    assert Limits.from_dict(json.loads(json.dumps(limits.to_dict()))) == limits


def test_unknown_limit():
    """A misspelled limit is refused and the known ones are named."""
    with pytest.raises(InvalidRequest, match=r"'mem'.*memory"):
        Limits.from_dict({"mem": 1})


def test_limits_do_not_change():
    """Limits are values: they cannot be changed, equal ones are one in a set."""
    with pytest.raises(AttributeError):
        Limits().memory = 1  # type: ignore[misc]
    assert len({Limits(), Limits(memory="512M")}) == 1
