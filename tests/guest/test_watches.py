"""Watches: which events a change gives, and that none is missed where directories appear."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfork.guest import watches
from cellfork.guest.files import Files
from cellfork.guest.watches import MAX_WATCHES, Watches
from cellfork.model.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotADirectory,
    NotFound,
    PathNotFound,
)
from tests.guest.driver import Driver

Event = tuple[str, str]


class WatchDriver(Driver):
    """Watches directories below a home of its own."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.files = Files(self.loop, self.link, home=str(home))
        self.service = Watches(self.loop, self.link, home=str(home))
        self.serve(self.files.operations())
        self.serve(self.service.operations())

    def start(self, path: str = "~", *, recursive: bool = False, watch: int = 1) -> None:
        self.call("watch.start", watch=watch, path=path, recursive=recursive)

    def events(self, watch: int = 1) -> list[Event]:
        """Return what has come, once nothing more comes."""
        seen = -1
        while seen != len(self.link.frames):
            seen = len(self.link.frames)
            for _ in range(3):
                self.turn(0.005)
        frames = self.frames("watch.event", watch=watch)
        return [(frame.header["name"], frame.header["kind"]) for frame in frames]

    def forget(self) -> None:
        self.events()
        self.link.frames.clear()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def disk(home: Path) -> Iterator[WatchDriver]:
    driver = WatchDriver(home)
    yield driver
    driver.service.close()
    driver.files.close()
    driver.close()


def test_kinds(disk, home):
    """Each change has its kind, with the name below the watched directory."""
    disk.start()
    (home / "f").write_bytes(b"x")
    assert disk.events() == [("f", "create"), ("f", "write")]
    (home / "f").chmod(0o600)
    (home / "f").rename(home / "g")
    (home / "g").unlink()
    (home / "d").mkdir()
    (home / "d").rmdir()
    assert disk.events()[2:] == [
        ("f", "chmod"),
        ("f", "rename"),
        ("g", "create"),
        ("g", "remove"),
        ("d", "create"),
        ("d", "remove"),
    ]


def test_not_recursive(disk, home):
    """Without ``recursive`` what happens in directories below is not told."""
    (home / "d").mkdir()
    disk.start()
    (home / "d/f").touch()
    (home / "new").mkdir()
    (home / "new/f").touch()
    assert disk.events() == [("new", "create")]


def test_recursive(disk, home):
    """With ``recursive`` directories below are watched, those that were there and those that come."""
    (home / "a/b").mkdir(parents=True)
    disk.start(recursive=True)
    (home / "a/b/f").write_bytes(b"1")
    assert disk.events() == [("a/b/f", "create"), ("a/b/f", "write")]
    (home / "a/b/c").mkdir()
    disk.forget()
    (home / "a/b/c/g").touch()
    (home / "a/b/c/g").unlink()
    assert [event for event in disk.events() if event[1] != "chmod"] == [
        ("a/b/c/g", "create"),
        ("a/b/c/g", "remove"),
    ]


def test_directories_made_at_once(disk, home):
    """What is made in a new directory before it could be watched is told once all the same."""
    disk.start(recursive=True)
    for n in range(20):
        (home / f"{n}/x/y").mkdir(parents=True)
        (home / f"{n}/x/y/f").write_bytes(b"1")
    events = disk.events()
    for n in range(20):
        for name in (f"{n}", f"{n}/x", f"{n}/x/y", f"{n}/x/y/f"):
            assert events.count((name, "create")) == 1, name
        assert (f"{n}/x/y/f", "write") in events


def test_directory_filled_while_it_is_found(disk, home):
    """Files made while a new directory is being found are each told exactly once."""
    disk.start(recursive=True)
    (home / "d").mkdir()
    for n in range(300):
        (home / "d" / f"{n}").touch()
        disk.turn(0)
    events = disk.events()
    assert sorted(name for name, kind in events if kind == "create") == sorted(
        ["d", *(f"d/{n}" for n in range(300))]
    )


def test_made_again_after_it_was_found(disk, home):
    """A file that was found, removed and made again is told again."""
    disk.start(recursive=True)
    (home / "d").mkdir()
    (home / "d/f").touch()
    assert disk.events().count(("d/f", "create")) == 1
    (home / "d/f").unlink()
    (home / "d/f").touch()
    assert disk.events().count(("d/f", "create")) == 2
    (home / "other").touch()
    os.replace(home / "other", home / "d/f")
    assert disk.events().count(("d/f", "create")) == 3


def test_directory_moves(disk, home, tmp_path):
    """A directory that moves is told under its new name from then on; one that moved out is not told any more."""
    (home / "a/b").mkdir(parents=True)
    disk.start(recursive=True)
    (home / "a").rename(home / "z")
    events = disk.events()
    assert {("a", "rename"), ("z", "create"), ("z/b", "create")} <= set(events)
    disk.forget()
    (home / "z/b/f").touch()
    assert ("z/b/f", "create") in disk.events()
    (home / "z").rename(tmp_path / "gone")
    disk.forget()
    (tmp_path / "gone/b/g").touch()
    assert disk.events() == []
    (tmp_path / "gone").rename(home / "back")
    assert {("back", "create"), ("back/b", "create"), ("back/b/g", "create")} <= set(disk.events())


def test_removed_tree(disk, home):
    """A removed tree is told, entry by entry, and its watches are given back."""
    (home / "a/b").mkdir(parents=True)
    (home / "a/b/f").touch()
    disk.start(recursive=True)
    left = disk.service._budget.left
    shutil.rmtree(home / "a")
    events = disk.events()
    assert {("a/b/f", "remove"), ("a/b", "remove"), ("a", "remove")} <= set(events)
    assert disk.service._budget.left == left + 2


def test_upload_is_create_chmod_write(disk, home):
    """A file that the host writes is told under its own name, as created, given its mode and written."""
    disk.start()
    handle = disk.call("file.open", path="f", mode=0o600, append=False)["handle"]
    disk.call("file.write", b"x", handle=handle)
    assert disk.events() == []
    disk.call("file.close", handle=handle, commit=True)
    assert disk.events() == [("f", "create"), ("f", "chmod"), ("f", "write")]
    handle = disk.call("file.open", path="g", mode=None, append=False)["handle"]
    disk.call("file.close", handle=handle, commit=False)
    assert len(disk.events()) == 3


def test_a_replaced_file_is_not_created(disk, home):
    """A file that the host writes in the place of another one is given its mode and written, and was there before."""
    (home / "f").write_text("old")
    disk.start()
    handle = disk.call("file.open", path="f", mode=None, append=False)["handle"]
    disk.call("file.write", b"new", handle=handle)
    assert disk.events() == []
    disk.call("file.close", handle=handle, commit=True)
    assert disk.events() == [("f", "chmod"), ("f", "write")]
    (home / "f").rename(home / "g")
    assert disk.events()[2:] == [("f", "rename"), ("g", "create")]


def test_flush_tells_everything_first(disk, home):
    """When a flush is answered, what had happened was told, in directories that appeared a moment ago too."""
    disk.start(recursive=True)
    for number in range(50):
        (home / f"d{number}" / "e").mkdir(parents=True)
        (home / f"d{number}" / "e" / "f").write_text("x")
        disk.link.frames.clear()
        disk.call("watch.flush", watch=1)
        told = [frame.header["name"] for frame in disk.frames("watch.event", watch=1)]
        assert {f"d{number}", f"d{number}/e", f"d{number}/e/f"} <= set(told)
    with pytest.raises(NotFound):
        disk.call("watch.flush", watch=2)


def test_flush_has_an_end(disk, home, monkeypatch):
    """Whoever makes directories faster than they are listed does not keep a flush from its answer."""
    monkeypatch.setattr(watches, "MAX_DIRECTORIES", 20)
    disk.start(recursive=True)
    watch = disk.service._watches[1]
    more = (home / f"n{number}" for number in range(1000))
    original = watch._list

    def list_and_add(name):
        next(more).mkdir()
        original(name)

    monkeypatch.setattr(type(watch), "_list", lambda self, name: list_and_add(name))
    next(more).mkdir()
    assert disk.call("watch.flush", watch=1) == {}


def test_local_watches_refuse_network_mounts(disk, home, monkeypatch):
    """Where only what happens here would be told, a client that did not ask for that is refused."""
    disk.call("watch.start", watch=1, path="~", local=True)
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        kinds = {line.partition(" - ")[2].partition(" ")[0].partition(".")[0] for line in mounts}
    monkeypatch.setattr(watches, "NETWORK_KINDS", frozenset(kinds))
    with pytest.raises(InvalidRequest, match=f"cannot watch path on network filesystem: {home}"):
        disk.call("watch.start", watch=2, path="~", local=True)
    disk.call("watch.start", watch=2, path="~", local=False)
    with pytest.raises(PathNotFound):
        disk.call("watch.start", watch=3, path="missing", local=True)


def test_the_directory_itself(disk, home):
    """The end of the watched directory is told with an empty name; the watch can still be stopped."""
    (home / "d").mkdir()
    disk.start("d", recursive=True)
    (home / "d").rename(home / "e")
    (home / "e").rmdir()
    assert disk.events() == [("", "rename"), ("", "remove")]
    assert disk.call("watch.stop", watch=1) == {}


def test_strange_names(disk, home):
    """Names of any bytes are told."""
    disk.start()
    for name in (b"\xff", b"new\nline", b"\x1b[31m"):
        (home / os.fsdecode(name)).touch()
    assert {name for name, _ in disk.events()} == {"\\xff", "new\nline", "\x1b[31m"}


def test_links_are_not_followed(disk, home, tmp_path):
    """The watched path may be a link; links below are entries like others, also those in a circle."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (home / "real").mkdir()
    (home / "l").symlink_to("real")
    (home / "real/out").symlink_to(outside)
    (home / "real/loop").symlink_to(".")
    disk.start("l", recursive=True)
    (outside / "f").touch()
    (home / "real/g").touch()
    assert [event for event in disk.events() if event[1] == "create"] == [("g", "create")]


def test_start_refuses(disk, home):
    """Only existing directories can be watched, under a number that is free."""
    (home / "f").touch()
    (home / "p").symlink_to("p")
    for path, error in (
        ("no", PathNotFound),
        ("f", NotADirectory),
        ("", InvalidRequest),
        ("a\0", InvalidRequest),
    ):
        for recursive in (False, True):
            with pytest.raises(error):
                disk.start(path, recursive=recursive)
    disk.start()
    with pytest.raises(Conflict):
        disk.start()
    with pytest.raises(InvalidRequest):
        disk.call("watch.start", watch=-1, path="~", recursive=False)


def test_stop(disk, home):
    """A stopped watch tells nothing more, its number is free, and it cannot be stopped twice."""
    disk.start(recursive=True)
    disk.call("watch.stop", watch=1)
    (home / "f").touch()
    assert disk.events() == []
    with pytest.raises(NotFound):
        disk.call("watch.stop", watch=1)
    disk.start()
    assert disk.service._budget.left == watches.MAX_DIRECTORIES - 1


def test_stop_while_it_starts(disk, home):
    """A watch that is stopped before it has begun is told so, and leaves nothing."""
    for n in range(50):
        (home / str(n)).mkdir()
    request = disk.begin("watch.start", watch=1, path="~", recursive=True)
    disk.turn()
    assert disk.answer(request) is None
    disk.call("watch.stop", watch=1)
    with pytest.raises(NotFound, match="stopped"):
        disk.result(request)
    assert disk.service._budget.left == watches.MAX_DIRECTORIES


def test_watches_are_independent(disk, home):
    """Watches of one directory each get every event; the end of one does not touch the other."""
    disk.start(watch=1)
    disk.start(watch=2, recursive=True)
    (home / "f").touch()
    assert ("f", "create") in disk.events(1)
    assert ("f", "create") in disk.events(2)
    disk.call("watch.stop", watch=1)
    (home / "g").touch()
    assert ("g", "create") in disk.events(2)
    assert ("g", "create") not in disk.events(1)


def test_number_of_watches_is_bounded(disk):
    """Beyond the bound a watch is refused, until another one ends."""
    for n in range(MAX_WATCHES):
        disk.start(watch=n)
    with pytest.raises(LimitExceeded):
        disk.start(watch=MAX_WATCHES)
    disk.call("watch.stop", watch=0)
    disk.start(watch=MAX_WATCHES)


def test_number_of_directories_is_bounded(disk, home, monkeypatch):
    """A tree with too many directories is refused; one that grows too large says that events are lost."""
    disk.service._budget.left = 10
    for n in range(8):
        (home / str(n)).mkdir()
    disk.start(recursive=True)
    with pytest.raises(LimitExceeded):
        disk.start(recursive=True, watch=2)
    assert disk.service._budget.left == 1
    (home / "8").mkdir()
    (home / "9").mkdir()
    assert ("", "write") in disk.events()
    (home / "0/f").touch()
    assert ("0/f", "create") in disk.events()


def test_flood_is_told_as_lost(disk, home):
    """When the kernel's queue overflows that is told, and directories that were missed are watched from then on."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        pytest.skip("the kernel's queue is too long to fill here")
    disk.start(recursive=True)
    (home / "d").mkdir()
    for name in ("a", "b"):
        (home / "d" / name).touch()
    disk.forget()
    for _ in range(limit // 2 + 10):
        os.utime(home / "d/a")
        os.utime(home / "d/b")
    (home / "d/missed/below").mkdir(parents=True)
    assert ("", "write") in disk.events()
    (home / "d/missed/below/f").touch()
    assert ("d/missed/below/f", "create") in disk.events()


def test_writes_are_told_together(disk, home):
    """Many small writes in a row do not give as many events."""
    (home / "f").touch()
    disk.start()
    with (home / "f").open("wb", buffering=0) as file:
        for _ in range(1000):
            file.write(b"x")
    assert disk.events() == [("f", "write")]


def test_large_tree_moved_in(disk, home, tmp_path):
    """A large tree that moves in is found in short steps: another request is answered meanwhile."""
    for n in range(500):
        (tmp_path / "big" / str(n)).mkdir(parents=True)
        (tmp_path / "big" / str(n) / "f").touch()
    disk.start(recursive=True)
    (tmp_path / "big").rename(home / "big")
    longest = 0.0
    while len(disk.frames("watch.event")) < 1001:
        started = time.thread_time()
        disk.turn()
        longest = max(longest, time.thread_time() - started)
    assert longest < 0.25
    created = [name for name, kind in disk.events() if kind == "create"]
    assert sorted(created) == sorted(
        ["big", *(f"big/{n}" for n in range(500)), *(f"big/{n}/f" for n in range(500))]
    )
