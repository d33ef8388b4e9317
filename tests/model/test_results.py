"""Results, logs and errors as values and as JSON."""

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model.charts import BarChart, Chart
from cellfork.model.results import (
    CHART_MIME,
    DATA_MIME,
    FIELD_OF_MIME,
    MAX_NON_FINITE,
    ExecutionError,
    Logs,
    OutputMessage,
    Result,
    json_safe,
    non_finite,
)

PNG = b"\x89PNG\r\n\x1a\n"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
BUNDLES = st.dictionaries(
    st.sampled_from([*FIELD_OF_MIME, "a/b", "x/y+json"]), st.binary() | JSON, max_size=6
)


def strict_json(text: str) -> Any:
    """Parse JSON as other languages do: without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_every_mime_type_has_its_attribute():
    """Each known MIME type is found under its attribute, its MIME type, and in ``formats``; others in ``extra``."""
    bundle: dict[str, Any] = dict.fromkeys(FIELD_OF_MIME, "x")
    bundle |= {"image/png": PNG, DATA_MIME: {"a": [1]}, CHART_MIME: {"type": "bar"}, "application/json": [1]}
    bundle["application/x-mine"] = "mine"
    result = Result.from_bundle(bundle, is_main_result=True, metadata={"m": 1}, display_id="d")
    assert result.png == base64.b64encode(PNG).decode()
    assert (result.json, result.data) == ([1], {"a": [1]})
    assert isinstance(result.chart, BarChart) and result.chart.to_dict() == {"type": "bar"}
    assert result.extra == {"application/x-mine": "mine"}
    assert result.formats() == [*FIELD_OF_MIME.values(), "application/x-mine"]
    for mime, name in FIELD_OF_MIME.items():
        assert result[name] == getattr(result, name)
        if mime not in {DATA_MIME, CHART_MIME}:
            assert result[mime] == result.raw[mime] == getattr(result, name)
    assert result["application/x-mine"] == "mine"
    assert (result.raw["data"], result.raw["chart"]) == ({"a": [1]}, {"type": "bar"})
    assert (result.is_main_result, result.metadata, result.display_id) == (True, {"m": 1}, "d")


def test_what_is_absent():
    """Formats that are not there are ``None``, as attributes and as items; a type that is not there is a ``KeyError``."""
    result = Result.from_bundle({"text/plain": "1"})
    assert result.html is None
    assert result.formats() == ["text"]
    assert (result["html"], result["extra"], result["is_main_result"]) == (None, {}, False)
    for name in ("text/html", "nothing"):
        with pytest.raises(KeyError):
            result[name]
    assert Result.from_bundle({}).formats() == []


def test_jupyter_can_show_it():
    """A result shows itself in a notebook in each of its formats."""
    bundle = {mime: mime for mime in FIELD_OF_MIME}
    result = Result.from_bundle(bundle)
    for name in ("html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript"):
        assert getattr(result, f"_repr_{name}_")() == getattr(result, name) is not None


@given(BUNDLES)
def test_attributes_have_their_types(bundle):
    """Whatever a bundle holds, text is text, images are text, ``data`` is an object, ``chart`` a chart."""
    result = Result.from_bundle(bundle)
    for name in ("text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "javascript"):
        assert isinstance(getattr(result, name), str | None)
    assert isinstance(result.data, dict | None)
    assert isinstance(result.chart, Chart | None)
    assert isinstance(str(result), str)
    assert set(result.formats()) <= {*FIELD_OF_MIME.values(), *result.extra}


@given(BUNDLES, st.booleans())
def test_results_as_json(bundle, main):
    """Every result is valid JSON, which holds exactly the formats that are there."""
    result = Result.from_bundle(bundle, is_main_result=main)
    value = strict_json(result.to_json())
    assert value["is_main_result"] is main
    assert set(value) - {"extra", "is_main_result", "non_finite"} == set(result.formats()) - set(result.extra)
    assert set(value.get("extra", {})) == set(result.extra)


def test_bytes_where_text_belongs():
    """Bytes of a text format are decoded, those of an image are base64; wrong kinds of value become text."""
    result = Result.from_bundle(
        {"text/plain": b"caf\xc3\xa9\xff", "image/svg+xml": b"<svg/>", "text/html": [1, math.nan]}
    )
    assert (result.text, result.svg, result.html) == ("café\ufffd", "<svg/>", "[1, null]")
    assert Result.from_bundle({CHART_MIME: "x"}).extra == {CHART_MIME: "x"}


def test_str():
    """A result reads as its text, or as the list of its formats."""
    assert str(Result(text="1")) == "Result(1)"
    assert str(Result(html="x")) == "Result(Formats: html)"


def test_logs_errors_messages():
    """Logs, errors and messages have E2B's shapes."""
    logs = Logs(["a\n"], ["b"])
    assert json.loads(logs.to_json()) == logs.to_dict() == {"stdout": ["a\n"], "stderr": ["b"]}
    logs.to_dict()["stdout"].append("x")
    assert logs.stdout == ["a\n"]
    error = ExecutionError("ValueError", "v" * 100_000, "tb")
    assert error.to_dict() == {"name": "ValueError", "value": "v" * 100_000, "traceback": "tb"}
    message = OutputMessage("line", 1, error=True)
    assert (str(message), message.timestamp, message.error) == ("line", 1, True)


@given(JSON)
def test_json_safe(value):
    """What is made safe is valid JSON; what has no NaN or infinity stays as it was."""
    text = json.dumps(json_safe(value))
    strict_json(text)
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        assert "null" in text
    else:
        assert json_safe(value) == value


def test_json_safe_keys_and_tuples():
    """Keys become text and tuples lists, as in JSON."""
    assert json_safe({1: (1, math.inf)}) == {"1": [1, None]}


def put_back(value: Any, places: dict[str, str]) -> Any:
    """Return ``value`` with what JSON could not hold in its places again."""
    words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    for pointer, word in places.items():
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        at = value
        for part in way:
            at = at[int(part) if isinstance(at, list) else part]
        at[int(last) if isinstance(at, list) else last] = words[word]
    return value


@given(JSON)
def test_nothing_of_numbers_is_lost(value: Any):
    """From a result's JSON every NaN and every infinity can be put back where it was."""
    parsed = strict_json(Result(json=value, text="x").to_json())
    places = parsed.pop("non_finite", {})
    assert repr(put_back(parsed, places).get("json")) == repr(value)


def test_most_places_are_bounded():
    """Of very many such numbers the places of the first are told."""
    places = non_finite([math.nan] * (MAX_NON_FINITE + 1))
    assert len(places) == MAX_NON_FINITE
    assert list(places)[:2] == ["/0", "/1"]


def test_metadata_as_json():
    """What goes with a result is in its JSON where there is any: the true shape of a frame that was cut, for one."""
    assert Result(text="x").to_dict() == {"text": "x", "is_main_result": False}
    value = json.loads(Result(text="x", metadata={DATA_MIME: {"rows": 10**6}}).to_json())
    assert value["metadata"] == {DATA_MIME: {"rows": 10**6}}
