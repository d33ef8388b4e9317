"""Files that an execution made: what init finds when it looks."""

# mypy: disable-error-code="func-returns-value"
# A change is a lambda; a tuple makes one of several calls.

import hashlib
import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cellfork.guest import artifacts
from cellfork.guest.artifacts import Artifact, Ledger
from cellfork.guest.paths import MAX_PATH
from cellfork.model.specs import HOME


class Home:
    """A home directory and the ledger over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(str(path), HOME)

    def made_by(self, code: Callable[[], object]) -> dict[str, Artifact]:
        """Return what an execution that does ``code`` made, by paths relative to the home."""
        mark = self.ledger.begin()
        code()
        made = self.ledger.made_since(mark)
        assert not made.truncated
        return {artifact.path.removeprefix(HOME + "/"): artifact for artifact in made.artifacts}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    place = tmp_path / "home"
    place.mkdir()
    (place / "old.txt").write_text("old")
    (place / "sub").mkdir()
    (place / "sub" / "old.csv").write_text("a,b\n")
    home = Home(place)
    time.sleep(TICK)
    assert home.made_by(lambda: None) == {}
    return home


TICK = 0.02
"""Seconds after which a file has another time, on kernels with the slowest clock."""


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("x")


def in_child(code: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True)


def test_a_new_file(home: Home):
    """A new file is told with its path, its size and its digest, once."""
    made = home.made_by(lambda: (home.path / "new.txt").write_text("new"))
    assert made == {"new.txt": Artifact(f"{HOME}/new.txt", 3, hashlib.sha256(b"new").hexdigest(), False)}
    assert home.made_by(lambda: None) == {}


CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "created and emptied": (lambda p: (p / "empty").touch(), {"empty"}),
    "same size, in place": (lambda p: (p / "old.txt").write_text("OLD"), {"old.txt"}),
    "appended": (lambda p: append(p / "old.txt"), {"old.txt"}),
    "truncated": (lambda p: os.truncate(p / "old.txt", 1), {"old.txt"}),
    "renamed over": (
        lambda p: ((p / "t").write_text("OLD"), os.rename(p / "t", p / "old.txt")),
        {"old.txt"},
    ),
    "renamed": (lambda p: os.rename(p / "old.txt", p / "moved.txt"), {"moved.txt"}),
    "linked": (lambda p: os.link(p / "old.txt", p / "second.txt"), {"second.txt", "old.txt"}),
    "written deep below": (
        lambda p: ((p / "a/b/c").mkdir(parents=True), (p / "a/b/c/x.json").write_text("1")),
        {"a/b/c/x.json"},
    ),
    "below a directory that was there": (lambda p: (p / "sub/n").write_text("1"), {"sub/n"}),
    "changed below a directory that was there": (
        lambda p: (p / "sub/old.csv").write_text("b,a\n"),
        {"sub/old.csv"},
    ),
    "a directory moved": (lambda p: os.rename(p / "sub", p / "sub2"), {"sub2/old.csv"}),
    "a time set back": (
        lambda p: ((p / "old.txt").write_text("OLD"), os.utime(p / "old.txt", (0, 0))),
        {"old.txt"},
    ),
    "removed": (lambda p: (p / "old.txt").unlink(), set()),
    "made and removed": (lambda p: ((p / "x").touch(), (p / "x").unlink()), set()),
    "made and renamed": (lambda p: ((p / "x").touch(), os.rename(p / "x", p / "y")), {"y"}),
    "read": (lambda p: (p / "old.txt").read_text(), set()),
    "a symbolic link": (lambda p: (p / "link").symlink_to("old.txt"), set()),
    "a link to a directory outside": (lambda p: (p / "link").symlink_to("/etc"), set()),
    "a FIFO": (lambda p: os.mkfifo(p / "fifo"), set()),
    "an empty directory": (lambda p: (p / "d").mkdir(), set()),
    "hidden": (lambda p: (p / ".hidden").write_text("x"), set()),
    "hidden directories": (
        lambda p: ((p / ".cache/m").mkdir(parents=True), (p / ".cache/m/x").touch()),
        set(),
    ),
    "caches of modules": (lambda p: ((p / "__pycache__").mkdir(), (p / "__pycache__/m.pyc").touch()), set()),
    "modules of node": (lambda p: ((p / "node_modules").mkdir(), (p / "node_modules/m.js").touch()), set()),
    "a virtual environment": (
        lambda p: (
            (p / "env/bin").mkdir(parents=True),
            (p / "env/pyvenv.cfg").touch(),
            (p / "env/x").touch(),
        ),
        set(),
    ),
}


@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES)
def test_changes(home: Home, change: Callable[[Path], object], told: set[str]):
    """Regular files that are new, moved or have other content are told; what is left out is by the documented rule."""
    assert set(home.made_by(lambda: change(home.path))) == told
    assert home.made_by(lambda: None) == {}


def test_the_same_size_again_and_again(home: Home):
    """Content that changes without a change of size, many times within one tick of the clock, is told each time."""
    target = home.path / "old.txt"
    for number in range(300):
        content = f"{number:03}"
        made = home.made_by(lambda content=content: target.write_text(content))  # type: ignore[misc]
        assert made["old.txt"].sha256 == hashlib.sha256(content.encode()).hexdigest()


def test_only_the_rights(home: Home):
    """Where the content is known, other rights are no other content."""
    target = home.path / "script.sh"
    assert set(home.made_by(lambda: target.write_text("x"))) == {"script.sh"}
    time.sleep(TICK)
    assert home.made_by(lambda: target.chmod(0o755)) == {}
    assert set(home.made_by(lambda: target.write_text("y"))) == {"script.sh"}


def test_written_through_a_mapping(home: Home):
    """What is written into a mapping of a file is told, though no write was ever called."""
    target = home.path / "old.txt"
    time.sleep(TICK)

    def write() -> None:
        with target.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = ord("O")

    assert set(home.made_by(write)) == {"old.txt"}


def test_by_another_process(home: Home):
    """It does not matter which process writes."""
    code = "import sys; open(sys.argv[1], 'w').write('x')"
    assert set(home.made_by(lambda: in_child(code, home.path / "x"))) == {"x"}


def test_a_socket(home: Home):
    """A socket is no file to fetch."""

    def bind() -> None:
        with socket.socket(socket.AF_UNIX) as bound:
            here = os.getcwd()
            os.chdir(home.path)
            bound.bind("s")
            os.chdir(here)

    assert home.made_by(bind) == {}


def test_huge_sparse_and_unreadable(home: Home):
    """A file that is too large or cannot be read is told without a digest, at once."""

    def make() -> None:
        with open(home.path / "sparse", "wb") as file:
            file.truncate(1 << 40)
        (home.path / "small").write_text("x")

    start = time.monotonic()
    made = home.made_by(make)
    assert time.monotonic() - start < 5
    assert (made["sparse"].size, made["sparse"].sha256) == (1 << 40, None)
    assert made["small"].sha256 is not None


def test_names_that_are_not_utf8(home: Home):
    r"""Such a name is shown with ``\xNN`` and marked as one that cannot be given back."""

    def make() -> None:
        with open(os.fsencode(home.path) + b"/b\xff.bin", "wb") as file:
            file.write(b"x")

    assert [(a.path, a.lossy) for a in home.made_by(make).values()] == [(f"{HOME}/b\\xff.bin", True)]


def test_a_working_directory_elsewhere(home: Home, tmp_path: Path):
    """The working directory of a context is looked at as well, from when the context is there, until it is gone."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "before").touch()
    home.ledger.add_place(1, str(place))
    assert set(home.made_by(lambda: (place / "out").write_text("x"))) == {str(place / "out")}
    home.ledger.drop_place(1)
    assert home.made_by(lambda: (place / "later").write_text("x")) == {}


def test_a_hidden_working_directory(home: Home):
    """A context whose working directory is in a place that is left out is looked at there: it was asked for."""
    place = home.path / ".work"
    place.mkdir()
    home.ledger.add_place(1, str(place))
    assert set(home.made_by(lambda: (place / "out").write_text("x"))) == {".work/out"}


@pytest.mark.parametrize("place", ["/", "/proc/self", "/does/not/exist"])
def test_places_that_are_not_looked_at(home: Home, place: str):
    """What holds the home, what code cannot write and what is not there is not walked through."""
    home.ledger.add_place(1, place)
    assert len(home.ledger._places) == 1 or os.access(place, os.W_OK)
    home.ledger.drop_place(1)


def test_what_others_change_between_executions(home: Home):
    """What the host or a command writes between two executions is none of theirs."""
    (home.path / "uploaded").write_text("x")
    home.ledger.disturbed = True
    assert home.made_by(lambda: None) == {}
    assert set(home.made_by(lambda: (home.path / "uploaded").write_text("y"))) == {"uploaded"}


def test_two_at_once(home: Home):
    """What is changed while two executions run counts for both, what was before the second began for the first alone."""
    first = home.ledger.begin()
    (home.path / "early").write_text("1")
    home.ledger.disturbed = True
    second = home.ledger.begin()
    (home.path / "late").write_text("2")
    names = [[a.path for a in home.ledger.made_since(mark).artifacts] for mark in (second, first)]
    assert names == [[f"{HOME}/late"], [f"{HOME}/early", f"{HOME}/late"]]
    assert home.ledger._changed == {}


def test_many_files(home: Home, monkeypatch: pytest.MonkeyPatch):
    """Beyond the bounds the list is cut, and says so."""
    monkeypatch.setattr(artifacts, "MAX_TOLD", 10)
    mark = home.ledger.begin()
    for number in range(11):
        (home.path / str(number)).touch()
    made = home.ledger.made_since(mark)
    assert (len(made.artifacts), made.truncated) == (10, True)
    monkeypatch.setattr(artifacts, "MAX_LOOKED_AT", 5)
    mark = home.ledger.begin()
    assert home.ledger.made_since(mark).truncated


def test_deep_trees(home: Home):
    """What is deeper than is looked at is not told, but that there may be more is."""
    mark = home.ledger.begin()
    path = home.path.joinpath(*["d"] * (artifacts.MAX_DEPTH + 2))
    path.mkdir(parents=True)
    (path / "deep").touch()
    made = home.ledger.made_since(mark)
    assert (made.artifacts, made.truncated) == ([], True)


def test_long_names(home: Home, monkeypatch: pytest.MonkeyPatch):
    """All paths together have a bound, too."""
    monkeypatch.setattr(artifacts, "MAX_TOLD_TEXT", MAX_PATH * 2)
    mark = home.ledger.begin()
    for number in range(60):
        (home.path / (f"{number:03}" + "n" * 200)).touch()
    made = home.ledger.made_since(mark)
    assert made.truncated
    assert sum(len(a.path) for a in made.artifacts) <= MAX_PATH * 2


def test_a_home_that_is_gone(home: Home):
    """Code may remove its home, or put a file in its place: that is no error of ours."""
    assert home.made_by(lambda: os.rename(home.path, home.path.with_name("away"))) == {}
    assert home.made_by(lambda: home.path.write_text("a file")) == {}
