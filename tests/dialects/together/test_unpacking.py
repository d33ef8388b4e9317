"""The context of a build: what is unpacked, what a source names, where it lands."""

import io
import tarfile
from pathlib import Path

import pytest

from cellfork.dialects.together import unpacking
from cellfork.dialects.together.unpacking import Problem, copy, matching, unpack


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A context with files, a hidden one, a directory, links."""
    place = tmp_path / "context"
    (place / "pkg/sub").mkdir(parents=True)
    for name in ("a.py", "b.py", ".hidden.py", "pkg/c.txt", "pkg/sub/d.txt"):
        (place / name).write_text(name)
    (place / "pkg/link").symlink_to("/nowhere")
    (place / "out").symlink_to("/etc")
    (place / "alias").symlink_to("a.py")
    return place


def names(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def archive(place: Path, *members: tuple[str, str], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(place, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = content if kind != tarfile.REGTYPE else ""
            tar.addfile(info, io.BytesIO(content.encode()))
    return place


def test_a_file_becomes_a_name_or_lands_in_a_directory(context: Path, tmp_path: Path) -> None:
    """Without a slash the destination is the file; with one, or where a directory is there, it is in that."""
    copy(context, ["a.py"], f"{tmp_path}/x/main.py")
    copy(context, ["/a.py"], f"{tmp_path}/y/")
    copy(context, ["./b.py"], f"{tmp_path}/y")
    copy(context, ["alias"], f"{tmp_path}/y/")
    assert (tmp_path / "x/main.py").read_text() == "a.py"
    assert names(tmp_path / "y") == ["a.py", "alias", "b.py"]
    assert (tmp_path / "y/alias").read_text() == "a.py"
    assert not (tmp_path / "y/alias").is_symlink()


def test_of_a_directory_its_contents_are_copied(context: Path, tmp_path: Path) -> None:
    """A directory's own name is not kept, links in it stay links, and files are written over what is there."""
    target = tmp_path / "t"
    copy(context, ["pkg"], str(target))
    (target / "c.txt").write_text("old")
    copy(context, ["pkg"], f"{target}/", 0o640)
    assert names(target) == ["c.txt", "link", "sub", "sub/d.txt"]
    assert (target / "link").is_symlink()
    assert (target / "c.txt").read_text() == "pkg/c.txt"
    assert (target / "c.txt").stat().st_mode & 0o777 == 0o640


def test_patterns_are_those_of_docker(context: Path, tmp_path: Path) -> None:
    """``*`` takes in hidden files, and never crosses a slash; several sources need a directory."""
    assert [found.name for found in matching(context, "*.py")] == [".hidden.py", "a.py", "b.py"]
    assert [found.name for found in matching(context, "*/*.txt")] == ["c.txt"]
    assert [found.name for found in matching(context, "[ab].p?")] == ["a.py", "b.py"]
    with pytest.raises(Problem, match="ends with /"):
        copy(context, ["a.py", "b.py"], str(tmp_path / "z"))


def test_sources_stay_in_the_context(context: Path) -> None:
    """Neither ``..`` nor a link leads out; what is not there is an error."""
    assert matching(context, "../../a.py") == [context / "a.py"]
    assert matching(context, "pkg/../a.py") == [context / "a.py"]
    for source in ("out/passwd", "out"):
        with pytest.raises(Problem, match="leads out"):
            matching(context, source)
    for source in ("none", "*.none", "a.py/x"):
        with pytest.raises(Problem, match="has no"):
            matching(context, source)


def test_a_file_does_not_replace_a_directory(context: Path, tmp_path: Path) -> None:
    """What would remove a directory is refused."""
    (tmp_path / "t/sub").mkdir(parents=True)
    (context / "pkg2").mkdir()
    (context / "pkg2/sub").write_text("a file")
    with pytest.raises(Problem, match="is a directory"):
        copy(context, ["pkg2"], str(tmp_path / "t"))


def test_add_unpacks_archives(context: Path, tmp_path: Path) -> None:
    """``ADD`` of an archive is what is in it; ``COPY`` of one is the archive."""
    archive(context / "t.tar.gz", ("in/x", "x"))
    copy(context, ["t.tar.gz"], f"{tmp_path}/add/", unpacks=True)
    copy(context, ["t.tar.gz"], f"{tmp_path}/copy/")
    assert names(tmp_path / "add") == ["in", "in/x"]
    assert names(tmp_path / "copy") == ["t.tar.gz"]


@pytest.mark.parametrize("name", ["../out", "/../../out", "a/../../out"])
def test_nothing_lands_outside(tmp_path: Path, name: str) -> None:
    """A member that would leave the directory is refused."""
    place = tmp_path / "deep/context"
    with pytest.raises(Problem, match="no archive that can be unpacked"):
        unpack(archive(tmp_path / "c.tar.gz", (name, "x")), place)
    assert names(tmp_path) == ["c.tar.gz", "deep", "deep/context"]


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    """Any other bytes, and an archive that is cut off, are a problem of the client's."""
    whole = archive(tmp_path / "c.tar.gz", ("a", "x" * 10_000)).read_bytes()
    for number, content in enumerate((b"", b"hello", whole[: len(whole) // 2])):
        place = tmp_path / f"{number}.tar.gz"
        place.write_bytes(content)
        with pytest.raises(Problem, match="no archive"):
            unpack(place, tmp_path / "context")


def test_the_program_is_one_file() -> None:
    """It runs where nothing of ours is installed: it imports the standard library alone."""
    source = Path(unpacking.__file__).read_text("utf-8")
    assert "cellfork" not in source
