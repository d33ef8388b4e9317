"""Files inside the sandbox: changing modes and attributes, and searching by name."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfork.guest import files
from cellfork.model.errors import InvalidRequest, PathNotFound
from tests.guest.test_files import FileDriver

NAME = "user.cellfork.test"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FileDriver]:
    made = FileDriver(tmp_path)
    yield made
    made.service.close()
    made.close()


def found(driver: FileDriver, path: str, pattern: str) -> tuple[list[str], bool]:
    request = driver.begin("file.search", path=path, pattern=pattern)
    result = driver.result(request)
    lines = driver.body("chunk", id=request).splitlines()
    return [json.loads(line)["path"] for line in lines], result["truncated"]


def change(driver: FileDriver, path: str, **fields: Any) -> dict[str, Any]:
    return driver.result(driver.begin("file.change", path=path, prefix=NAME[:-4], **fields))


def has_attributes(directory: Path) -> bool:
    try:
        os.setxattr(directory, NAME, b"x")
    except OSError:
        return False
    os.removexattr(directory, NAME)
    return True


def test_modes_are_set(driver, tmp_path) -> None:
    """The bits are as asked, of what a link leads to as well."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert change(driver, "file", mode=0o640)["mode"] == 0o640
    change(driver, "link", mode=0o600)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_attributes_are_set_and_taken_away(driver, tmp_path) -> None:
    """A text sets one, null takes it away, of what may not be written as well; the mode stays."""
    if not has_attributes(tmp_path):
        pytest.skip("the file system of the temporary directory has no attributes")
    (tmp_path / "file").touch(0o444)
    assert change(driver, "file", attributes={NAME: "me"})["attributes"] == {"test": "me"}
    entry = change(driver, "file", attributes={NAME: None, "user.cellfork.none": None})
    assert entry["attributes"] == {}
    assert entry["mode"] == 0o444
    assert entry["ctime"] >= entry["mtime"]


@pytest.mark.parametrize(
    "fields", [{"mode": 0o10000}, {"mode": "x"}, {"attributes": []}, {"attributes": {"user.x": 1}}]
)
def test_malformed_changes_are_refused(driver, tmp_path, fields) -> None:
    """Nothing is changed."""
    (tmp_path / "file").touch(0o600)
    with pytest.raises(InvalidRequest):
        change(driver, "file", **fields)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_what_is_not_there_cannot_be_changed(driver) -> None:
    """It is an error that names the path."""
    with pytest.raises(PathNotFound, match="nothing"):
        change(driver, "nothing", mode=0o600)


def test_search_finds_files_by_name(driver, tmp_path) -> None:
    """Files and links at any depth, in the order of a walk; directories are walked and not found, links not followed."""
    for name in ("b/x.txt", "a/deep/er/y.txt", "a.txt", "b/z.log", "dir.txt/inside.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/link.txt").symlink_to("..")
    names = ["a/deep/er/y.txt", "a.txt", "b/link.txt", "b/x.txt", "dir.txt/inside.txt"]
    assert found(driver, ".", r".*\.txt") == ([str(tmp_path / name) for name in names], False)
    assert found(driver, "a.txt", ".*") == ([str(tmp_path / "a.txt")], False)
    assert found(driver, "a.txt", "b.*") == ([], False)


def test_search_is_bounded_and_says_so(driver, tmp_path, monkeypatch) -> None:
    """More than the most that is told is marked as truncated."""
    for number in range(20):
        (tmp_path / f"{number:02}").touch()
    monkeypatch.setattr(files, "MAX_ENTRIES", 20)
    assert found(driver, ".", ".*")[1] is False
    (tmp_path / "more").touch()
    paths, truncated = found(driver, ".", ".*")
    assert (len(paths), truncated) == (20, True)
    assert found(driver, ".", "more") == ([str(tmp_path / "more")], False)


@pytest.mark.parametrize("pattern", [None, 1, "(", "(?P<x", "\ud800"])
def test_malformed_patterns_are_refused(driver, pattern) -> None:
    """They are no regular expression."""
    with pytest.raises(InvalidRequest):
        found(driver, ".", pattern)


def test_search_below_nothing(driver) -> None:
    """It is an error, not an empty list."""
    with pytest.raises(PathNotFound):
        found(driver, "nothing", ".*")
