"""Files that ``--save`` writes."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from cellfork.cli.saving import save_results
from cellfork.model.errors import InvalidRequest
from cellfork.model.execution import Execution
from cellfork.model.results import Result


def test_every_rich_form_is_saved(tmp_path: Path) -> None:
    """Each form of each result has a file of its own, named after cell and result."""
    rich: dict[str, Any] = {
        "png": base64.b64encode(b"png").decode(), "jpeg": base64.b64encode(b"jpeg").decode(),
        "pdf": base64.b64encode(b"pdf").decode(), "svg": "<svg/>", "html": "<b>ü</b>", "markdown": "# x",
        "latex": "$x$", "javascript": "x", "chart": {"type": "bar"}, "data": {"a": [1]}, "json": [1],
    }  # fmt: skip
    paths = save_results(
        Execution(results=[Result(text="only"), Result(**rich)]), tmp_path / "deep" / "er", 3
    )
    names = [Path(path).name for path in paths]
    assert sorted(names) == sorted(
        f"cell-3-result-2.{extension}"
        for extension in ("png", "jpg", "pdf", "svg", "html", "md", "tex", "js", "chart.json", "csv", "json")
    )
    content = {Path(path).suffix: Path(path).read_bytes() for path in paths}
    assert content[".png"] == b"png"
    assert content[".html"].decode() == "<b>ü</b>"


def test_data_frames_are_csv_and_json(tmp_path: Path) -> None:
    """Columns become CSV with a header, missing values empty, and JSON."""
    data = {"a": [1, None, 2.5], "b,c": ["x", 'y"z', "ä\n"]}
    csv, as_json = save_results(Execution(results=[Result(data=data)]), tmp_path, 1)
    assert Path(csv).read_bytes().decode() == 'a,"b,c"\r\n1,x\r\n,"y""z"\r\n2.5,"ä\n"\r\n'
    assert json.loads(Path(as_json).read_text()) == data


@pytest.mark.parametrize(
    "bad", [{"png": "no base64 at all!"}, {"png": 7}, {"data": [1]}, {"html": 3}, {"svg": "\ud800"}]
)
def test_hostile_content_does_no_harm(tmp_path: Path, bad: dict[str, Any]) -> None:
    """What a guest sends in place of an image or a table is skipped or saved as text, never an exception."""
    save_results(Execution(results=[Result(**bad)]), tmp_path, 1)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """Where nothing can be saved, the message says where and why."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="cannot save to"):
        save_results(Execution(results=[Result(svg="<svg/>")]), tmp_path / "file", 1)
