"""Files that ``--save`` writes."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellfork.cli.saving import save_artifacts, save_results
from cellfork.model.artifacts import Artifact
from cellfork.model.errors import InvalidRequest, PathNotFound
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


class Files:
    """Files of a sandbox, or of what claims to be one."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content

    async def read(self, path: str, format: str) -> AsyncIterator[bytes]:
        assert format == "stream"
        if path not in self.content:
            raise PathNotFound(f"{path}: no\x1b[31m such file")
        return self._pieces(self.content[path])

    async def _pieces(self, content: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(content), 2):
            yield content[start : start + 2]


async def saved_of(
    content: dict[str, bytes], directory: Path, *paths: str, room: int = 100, lossy: bool = False
) -> list[tuple[str, str | None]]:
    """Save artifacts with these paths; return what was told."""
    told: list[tuple[str, str | None]] = []
    execution = Execution(artifacts=[Artifact(path, 1, "text/plain", lossy=lossy) for path in paths])
    await save_artifacts(
        execution,
        Files(content),
        directory,
        2,
        room=room,
        tell=lambda path, problem: told.append((path, problem)),
    )
    return told


@pytest.mark.anyio
async def test_files_that_the_code_made(tmp_path: Path) -> None:
    """Files keep their places relative to the home; what is elsewhere goes below ``_``."""
    content = {"/home/user/a/b.csv": b"12345", "/tmp/work/c": b""}
    told = await saved_of(content, tmp_path, *content)
    base = tmp_path / "cell-2-files"
    assert told == [(str(base / "a/b.csv"), None), (str(base / "_/tmp/work/c"), None)]
    assert (base / "a/b.csv").read_bytes() == b"12345"
    assert (base / "_/tmp/work/c").read_bytes() == b""


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path",
    [
        "/home/user/../../etc/x",
        "/..",
        "/home/user/a/../b",
        "/home/user//etc/x",
        "/home/user/.",
        "/",
        "/home/user",
    ],
)
async def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    """A path with ``..``, ``.`` or empty parts is refused, whatever is behind it, and nothing is written."""
    ((name, problem),) = await saved_of({path: b"owned"}, tmp_path / "out", path)
    if problem is None:  # the home itself, as a file: then it is one more name
        assert Path(name).is_relative_to(tmp_path / "out" / "cell-2-files")
    else:
        assert not (tmp_path / "out").exists()
    assert {entry.name for entry in tmp_path.iterdir()} <= {"out"}


@pytest.mark.anyio
async def test_names_that_steer_a_terminal(tmp_path: Path) -> None:
    """Control characters, backslashes and lone surrogates are replaced; names that then are the same are kept apart."""
    paths = ["/home/user/a\x1b[2Jb", "/home/user/a\x07[2Jb", "/home/user/c\\d"]
    told = await saved_of(dict.fromkeys(paths, b"x"), tmp_path, *paths)
    assert [Path(path).name for path, _ in told] == ["a\ufffd[2Jb", "a\ufffd[2Jb.1", "c_d"]
    ((shown, problem),) = await saved_of({}, tmp_path, "/home/user/gone\x1b")
    assert shown.isprintable() and problem is not None and problem.isprintable()


@pytest.mark.anyio
async def test_what_cannot_be_saved_is_told(tmp_path: Path) -> None:
    """A file that is gone, too large, or in the way of another is told of; the others are saved."""
    content = {
        "/home/user/a": b"1",
        "/home/user/a/b": b"2",
        "/home/user/large": b"x" * 99,
        "/home/user/z": b"3",
    }
    told = await saved_of(content, tmp_path, "/home/user/gone", *content, room=50)
    assert [Path(path).name for path, problem in told if problem is None] == ["a", "z"]
    assert [path for path, problem in told if problem is not None] == [
        "/home/user/gone", "/home/user/a/b", "/home/user/large",
    ]  # fmt: skip
    assert not (tmp_path / "cell-2-files/large").exists()
    assert (await saved_of(content, tmp_path, "/home/user/a", lossy=True))[0][1] is not None


@pytest.mark.anyio
async def test_no_link_is_followed(tmp_path: Path) -> None:
    """Where a symbolic link has the name of a file to save, it is not written through."""
    base = tmp_path / "out" / "cell-2-files"
    base.mkdir(parents=True)
    (base / "a").symlink_to(tmp_path / "victim")
    ((_, problem),) = await saved_of({"/home/user/a": b"owned"}, tmp_path / "out", "/home/user/a")
    assert problem is not None and not (tmp_path / "victim").exists()
