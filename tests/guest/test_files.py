"""Files inside the sandbox: every operation, and what hostile trees and names do to it."""

import errno
import json
import os
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellfork.guest import files, trees
from cellfork.guest.files import MAX_ENTRIES, MAX_HANDLES, TEMPORARY, Files
from cellfork.guest.paths import ERROR_OF_ERRNO, display, encode, error_of, os_errors, resolve
from cellfork.guest.services import Turns
from cellfork.model.errors import (
    GUEST_ERRORS,
    Conflict,
    DirectoryNotEmpty,
    FileError,
    InvalidRequest,
    IsADirectory,
    LimitExceeded,
    NoSpace,
    NotADirectory,
    NotAFile,
    NotFound,
    PathExists,
    PathNotFound,
    PathNotPermitted,
)
from cellfork.wire.frames import CHUNK
from tests.guest.driver import Driver


class FileDriver(Driver):
    """Calls file operations below a home of its own."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home = home
        self.service = Files(self.loop, self.link, home=str(home))
        self.serve(self.service.operations())

    def read(self, path: str, offset: int = 0, length: int = -1) -> bytes:
        request = self.begin("file.read", path=path, offset=offset, length=length)
        size = self.result(request)["size"]
        content = self.body("chunk", id=request)
        assert size == len(content)
        return content

    def write(
        self, path: str, *pieces: bytes, mode: int | None = None, append: bool = False
    ) -> dict[str, Any]:
        handle = self.call("file.open", path=path, mode=mode, append=append)["handle"]
        for piece in pieces:
            assert self.call("file.write", piece, handle=handle) == {}
        return self.call("file.close", handle=handle, commit=True)

    def entries(self, path: str = "~", depth: int = 1) -> list[dict[str, Any]]:
        entries, truncated = self.listing(path, depth)
        assert not truncated
        return entries

    def listing(self, path: str, depth: int) -> tuple[list[dict[str, Any]], bool]:
        request = self.begin("file.list", path=path, depth=depth)
        result = self.result(request)
        lines = self.body("chunk", id=request).decode("ascii").splitlines()
        return [json.loads(line) for line in lines], result["truncated"]

    def names(self, path: str = "~", depth: int = 1) -> list[str]:
        return [os.path.relpath(entry["path"], self.home) for entry in self.entries(path, depth)]


def in_memory() -> Path:
    """Make a directory in memory, where a sandbox's files are as well: a disk is slow, and busy with others."""
    return Path(tempfile.mkdtemp(prefix="cf-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


def remove(path: Path) -> None:
    subprocess.run(["rm", "-rf", path], check=True)  # shutil.rmtree would recurse too deeply


@pytest.fixture
def home() -> Iterator[Path]:
    path = in_memory()
    yield path
    remove(path)


@pytest.fixture
def disk(home: Path) -> Iterator[FileDriver]:
    driver = FileDriver(home)
    yield driver
    driver.service.close()
    driver.close()


@pytest.fixture
def other_mount(home: Path, tmp_path: Path) -> Path:
    """A directory on another mount than home."""
    if home.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm and the temporary directory are on one mount here")
    return tmp_path


def special(path: Path, kind: str) -> None:
    """Make something that is neither a file nor a directory."""
    if kind == "fifo":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.getcwd()
            os.chdir(path.parent)  # a socket's path is short
            try:
                listener.bind(path.name)
            finally:
                os.chdir(here)


# Paths


@pytest.mark.parametrize(
    "path, expected",
    [
        ("a", b"/h/a"),
        ("a/b/", b"/h/a/b"),
        ("./a//b/.", b"/h/a/b"),
        ("~", b"/h"),
        ("~/a", b"/h/a"),
        ("~other/a", b"/h/~other/a"),
        ("/", b"/"),
        ("//etc//passwd", b"/etc/passwd"),
        ("/a/../b", b"/a/../b"),
        ("a\nb", b"/h/a\nb"),
        ("é", "/h/é".encode()),
        (" ", b"/h/ "),
    ],
)
def test_resolve(path, expected):
    """Relative paths and ``~`` start at home; ``..`` is the kernel's affair."""
    assert resolve(path, b"/h") == expected


@pytest.mark.parametrize(
    "path", ["", "a\0b", "\ud800", "a\udc80", "a" * 4097, "é" * 2049, None, 3, b"/x", ["a"]]
)
def test_resolve_refuses(path):
    """What cannot be a path is refused before any system call."""
    with pytest.raises(InvalidRequest):
        resolve(path, b"/h")


@given(st.text())
def test_resolve_any_text(path):
    """Any text either is refused or gives an absolute path without empty or ``.`` parts."""
    try:
        resolved = resolve(path, b"/h")
    except InvalidRequest:
        return
    assert resolved.startswith(b"/")
    assert not {b"", b"."} & set(resolved[1:].split(b"/")) or resolved == b"/"


@given(st.binary(max_size=50))
def test_display_is_always_json(name):
    """Any name on disk can be shown and sent as JSON."""
    assert json.loads(json.dumps(display(name))) == display(name)
    display(name).encode("utf-8")


@pytest.mark.parametrize(
    "op, fields",
    [
        ("file.read", {"offset": 0, "length": -1}),
        ("file.open", {"mode": None, "append": False}),
        ("file.list", {"depth": 1}),
        ("file.stat", {}),
        ("file.remove", {"recursive": True}),
        ("file.mkdir", {}),
    ],
)
@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "a" * 5000, None, "a" * 300])
def test_every_operation_refuses_what_is_no_path(disk, op, fields, path):
    """A malformed path, or one with a name that no file system takes, is an invalid request everywhere."""
    with pytest.raises(InvalidRequest):
        disk.call(op, path=path, **fields)


# errno


@pytest.mark.parametrize("number", sorted(ERROR_OF_ERRNO))
def test_errno_has_its_error(number):
    """Every errno in the table gives its error, with the path and the kernel's words, and may cross the wire."""
    with pytest.raises(ERROR_OF_ERRNO[number]) as caught, os_errors(b"/x/\xff"):
        raise OSError(number, "?")
    assert type(caught.value) is ERROR_OF_ERRNO[number]
    assert type(caught.value) in GUEST_ERRORS
    assert str(caught.value) == f"'/x/\\xff': {os.strerror(number)}"


EXPECTED = {
    PathNotFound: ["ENOENT"],
    PathExists: ["EEXIST"],
    PathNotPermitted: ["EACCES", "EPERM", "EROFS"],
    NotADirectory: ["ENOTDIR"],
    IsADirectory: ["EISDIR"],
    DirectoryNotEmpty: ["ENOTEMPTY"],
    NotAFile: ["ENXIO", "ENODEV"],
    NoSpace: ["ENOSPC", "EDQUOT"],
    LimitExceeded: ["EFBIG", "EMFILE", "ENFILE", "ENOMEM"],
    Conflict: ["EBUSY", "ETXTBSY"],
    InvalidRequest: ["EINVAL", "ENAMETOOLONG"],
}


def test_errno_table_is_the_intended_one():
    """The table says what it is meant to say, and nothing else."""
    wanted = {getattr(errno, name): error for error, names in EXPECTED.items() for name in names}
    assert dict(ERROR_OF_ERRNO) == wanted


@pytest.mark.parametrize("number", [errno.EIO, errno.ELOOP, 4095, 0, None])
def test_unknown_errno_is_a_file_error(number):
    """An errno that is not in the table is a plain file error."""
    error = OSError("no number") if number is None else OSError(number, "?")
    assert type(error_of(error, b"/x")) is FileError


def test_other_errors_pass():
    """Only system calls' errors are turned."""
    with pytest.raises(ValueError), os_errors(b"/x"):
        raise ValueError


def test_encode_refuses_what_is_no_text():
    """Text for system calls is text."""
    with pytest.raises(InvalidRequest, match="bytes"):
        encode(b"x")


# Reading


def test_read_whole_file(disk, home):
    """A file of many chunks arrives whole, in pieces of at most one chunk."""
    content = os.urandom(3 * CHUNK + 17)
    (home / "f").write_bytes(content)
    assert disk.read("f") == content
    assert [len(frame.body) for frame in disk.frames("chunk")] == [CHUNK] * 3 + [17]


@pytest.mark.parametrize(
    "offset, length, expected",
    [
        (0, 0, b""),
        (0, 4, b"0123"),
        (3, 4, b"3456"),
        (8, 100, b"89"),
        (8, -1, b"89"),
        (10, -1, b""),
        (11, 5, b""),
        (2**62, -1, b""),
        (2**63 - 1, 2**63 - 1, b""),
    ],
)
def test_read_range(disk, home, offset, length, expected):
    """Offset and length cut; beyond the end there is nothing, and no error."""
    (home / "f").write_bytes(b"0123456789")
    assert disk.read("f", offset, length) == expected


@pytest.mark.parametrize(
    "offset, length", [(-1, 0), (0, -2), (2**63, 0), ("0", 0), (0, 1.5), (True, 0), (0, None)]
)
def test_read_range_refused(disk, home, offset, length):
    """Offset and length are numbers in range."""
    (home / "f").write_bytes(b"")
    with pytest.raises(InvalidRequest):
        disk.read("f", offset, length)


def test_read_empty_and_proc(disk, home):
    """An empty file is empty; a file that says it is empty but is not, as in /proc, is read to its end."""
    (home / "f").write_bytes(b"")
    assert disk.read("f") == b""
    assert disk.read("/proc/self/status").startswith(b"Name:")
    assert disk.read("/proc/self/status", 5, 3) == Path("/proc/self/status").read_bytes()[5:8]


def test_read_endless_proc_file_has_an_end(disk, monkeypatch):
    """A file without a size is read up to a bound."""
    monkeypatch.setattr(files, "MAX_UNSIZED", 1000)
    assert len(disk.read("/proc/self/smaps")) == 1000


def test_read_does_not_starve(disk, home):
    """While a large file is sent, other requests are answered, and two files advance side by side."""
    for name in ("a", "b"):
        (home / name).write_bytes(bytes(20 * CHUNK))
    requests = [disk.begin("file.read", path=name, offset=0, length=-1) for name in ("a", "b")]
    disk.turn()
    assert disk.call("file.stat", path="a")["size"] == 20 * CHUNK
    assert all(disk.answer(request) is None for request in requests)
    for request in requests:
        assert disk.result(request)["size"] == 20 * CHUNK
    order = [frame.header["id"] for frame in disk.frames("chunk")]
    assert order == requests * 20


def test_read_file_that_changes(disk, home):
    """A file that grows has an end, one that is cut or removed meanwhile ends early: never an error, never a hang."""
    for name, change in (
        ("grows", lambda path: os.truncate(path, 6 * CHUNK)),
        ("shrinks", lambda path: os.truncate(path, 10)),
        ("goes", os.unlink),
    ):
        path = home / name
        path.write_bytes(bytes(5 * CHUNK))
        request = disk.begin("file.read", path=name, offset=0, length=-1)
        disk.wait(lambda request=request: disk.frames("chunk", id=request))
        change(path)
        size = disk.result(request)["size"]
        assert size == len(disk.body("chunk", id=request)) <= 5 * CHUNK


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_specials_are_not_opened(disk, home, kind):
    """A pipe or socket is refused at once, whether it is read, replaced or appended to."""
    special(home / "s", kind)
    started = time.monotonic()
    with pytest.raises(NotAFile):
        disk.read("s")
    for append in (False, True):
        with pytest.raises(NotAFile):
            disk.write("s", b"x", append=append)
    assert time.monotonic() - started < 5
    assert disk.call("file.stat", path="s")["type"] == "other"


def test_fifo_with_a_reader_is_not_appended_to(disk, home):
    """Also a pipe that could be opened is refused, and gets no byte."""
    special(home / "s", "fifo")
    reader = os.open(home / "s", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(NotAFile):
        disk.write("s", b"x", append=True)
    assert os.read(reader, 10) == b""
    os.close(reader)


def test_devices_are_not_read(disk):
    """An endless device is refused."""
    for path in ("/dev/zero", "/dev/null", "/dev/tty", "/proc/self/fd/0"):
        with pytest.raises((NotAFile, FileError)):
            disk.read(path)


def test_read_errors(disk, home):
    """Directories, missing files, files as directories and links in a circle each have their error."""
    (home / "f").write_bytes(b"")
    (home / "loop").symlink_to("loop")
    for path, error in (
        (".", IsADirectory),
        ("/", IsADirectory),
        ("no", PathNotFound),
        ("no/no", PathNotFound),
        ("f/x", NotADirectory),
        ("loop", FileError),
    ):
        with pytest.raises(error) as caught:
            disk.read(path)
        assert type(caught.value) is error


def test_read_goes_on_in_the_same_file_only(disk, home):
    """A part tells which file it is of; where another has taken its place, the next part is refused."""
    disk.write("f", b"first")
    first = disk.call("file.read", path="f", offset=0, length=2, file=None)
    assert (first["size"], first["total"]) == (2, 5)
    assert first["mtime"] == (home / "f").stat().st_mtime_ns
    assert disk.call("file.read", path="f", offset=2, length=2, file=first["file"])["size"] == 2
    disk.write("f", b"other")
    with pytest.raises(Conflict, match="replaced"):
        disk.call("file.read", path="f", offset=2, length=2, file=first["file"])


# Writing


def test_attributes(disk, home):
    """Extended attributes are set with the file, shown by their prefix, and gone when the file is replaced."""
    handle = disk.call("file.open", path="f", mode=None, append=False)["handle"]
    attributes = {"user.a.x": "1", "user.a.y": "\u00fc", "user.b": "2"}
    entry = disk.call("file.close", handle=handle, commit=True, attributes=attributes, prefix="user.a.")
    assert entry["attributes"] == {"x": "1", "y": "\u00fc"}
    os.setxattr(home / "f", "user.a.z", b"\xff")
    assert disk.call("file.stat", path="f", prefix="user.a.")["attributes"] == {"x": "1", "y": "\u00fc"}
    assert "attributes" not in disk.call("file.stat", path="f")
    assert disk.call("file.move", source="f", destination="g", prefix="user.a.")["attributes"]["x"] == "1"
    assert disk.write("g", b"new") and os.listxattr(home / "g") == []
    os.setxattr(home / "g", "user.a.large", b"x" * (files.MAX_ATTRIBUTES + 1))
    assert disk.call("file.stat", path="g", prefix="user.a.")["attributes"] == {}
    for wrong in ({"prefix": 1}, {"prefix": None}):
        with pytest.raises(InvalidRequest):
            disk.call("file.stat", path="g", **wrong)


def test_links_in_the_end(disk, home):
    """With a prefix an entry says where a link leads in the end; nothing where that is nowhere."""
    (home / "d").mkdir()
    (home / "one").symlink_to("two")
    (home / "two").symlink_to("d")
    (home / "broken").symlink_to("missing")
    (home / "loop").symlink_to("loop")
    entry = disk.call("file.stat", path="one", prefix="user.")
    assert (entry["resolved"], stat.S_ISDIR(entry["resolved_mode"])) == (str(home / "d"), True)
    assert stat.S_ISLNK(entry["format"])
    for name in ("broken", "loop"):
        assert "resolved" not in disk.call("file.stat", path=name, prefix="user.")


def test_write_new_file(disk, home):
    """A new file has its parents made, mode 0644, and all pieces in order."""
    entry = disk.write("a/b/f.txt", b"one", b"", b"two")
    assert (home / "a/b/f.txt").read_bytes() == b"onetwo"
    assert (entry["name"], entry["path"], entry["type"], entry["size"]) == (
        "f.txt",
        str(home / "a/b/f.txt"),
        "file",
        6,
    )
    assert entry["mode"] == 0o644
    assert stat.S_IMODE((home / "a").stat().st_mode) == 0o755


def test_write_is_seen_whole_or_not_at_all(disk, home):
    """Until it is committed the old content stays; what is dropped leaves nothing behind."""
    (home / "f").write_bytes(b"old")
    handle = disk.call("file.open", path="f", mode=None, append=False)["handle"]
    disk.call("file.write", b"new", handle=handle)
    assert (home / "f").read_bytes() == b"old"
    assert all(TEMPORARY.fullmatch(os.fsencode(name)) for name in set(os.listdir(home)) - {"f"})
    assert disk.call("file.close", handle=handle, commit=False) == {}
    assert os.listdir(home) == ["f"]
    assert (home / "f").read_bytes() == b"old"


def test_write_modes(disk, home):
    """The mode is the request's, else the old file's without special bits, else 0644."""
    assert disk.write("f", mode=0o751)["mode"] == 0o751
    assert disk.write("f", b"x")["mode"] == 0o751
    assert disk.write("f", mode=0o600)["mode"] == 0o600
    (home / "f").chmod(0o4755)
    assert disk.write("f")["mode"] == 0o755
    for mode in (-1, 0o10000, "644", True):
        with pytest.raises(InvalidRequest):
            disk.write("f", mode=mode)


def test_append(disk, home):
    """Appending writes to the file itself; a new one is made with its parents; a mode is set."""
    disk.write("a/log", b"1", append=True)
    inode = (home / "a/log").stat().st_ino
    disk.write("a/log", b"2", b"3", append=True)
    assert (home / "a/log").read_bytes() == b"123"
    assert (home / "a/log").stat().st_ino == inode
    assert disk.write("a/log", append=True, mode=0o600)["mode"] == 0o600


def test_write_through_links(disk, home):
    """Writing to a link writes where it leads, also to where nothing is yet; the link stays."""
    (home / "real").mkdir()
    (home / "real/f").write_bytes(b"old")
    (home / "one").symlink_to("two")
    (home / "two").symlink_to("real/f")
    (home / "dangling").symlink_to("fresh/g")
    disk.write("one", b"new")
    disk.write("dangling", b"g")
    assert (home / "real/f").read_bytes() == b"new"
    assert (home / "fresh/g").read_bytes() == b"g"
    assert (home / "one").is_symlink()
    assert (home / "dangling").is_symlink()


def test_write_errors(disk, home):
    """Directories, files as parents and links in a circle are refused, and leave nothing behind."""
    (home / "d").mkdir()
    (home / "f").write_bytes(b"")
    (home / "loop").symlink_to("loop")
    (home / "dangling").symlink_to("nowhere")
    for append in (False, True):
        for path, error in (
            ("d", IsADirectory),
            ("d/..", IsADirectory),
            ("f/x", NotADirectory),
            ("f/x/y", NotADirectory),
            ("loop", FileError),
            ("loop/x", FileError),
            ("dangling/x", FileError),
            ("/proc/none/x", PathNotFound),
        ):
            with pytest.raises(error):
                disk.write(path, b"x", append=append)
    assert sorted(os.listdir(home)) == ["d", "dangling", "f", "loop"]


def test_target_becomes_a_directory(disk, home):
    """Where the target has become a directory meanwhile, the commit is refused and nothing is left."""
    handle = disk.call("file.open", path="f", mode=None, append=False)["handle"]
    (home / "f").mkdir()
    with pytest.raises(IsADirectory):
        disk.call("file.close", handle=handle, commit=True)
    assert os.listdir(home) == ["f"]
    with pytest.raises(NotFound):
        disk.call("file.write", b"x", handle=handle)


def test_disk_full(disk, home, monkeypatch):
    """When the disk is full the write is refused, the temporary file is gone, the old content stays."""
    (home / "f").write_bytes(b"old")
    handle = disk.call("file.open", path="f", mode=None, append=False)["handle"]

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(NoSpace):
            disk.call("file.write", b"x", handle=handle)
    assert os.listdir(home) == ["f"]
    assert (home / "f").read_bytes() == b"old"
    assert disk.call("file.close", handle=handle, commit=False) == {}


def test_handles(disk):
    """Unknown handles are not found; the number of open ones is bounded; closing the service drops them all."""
    for handle in (0, 1, 99):
        with pytest.raises(NotFound):
            disk.call("file.write", b"", handle=handle)
        with pytest.raises(NotFound):
            disk.call("file.close", handle=handle, commit=True)
    for n in range(MAX_HANDLES):
        disk.call("file.open", path=f"f{n}", mode=None, append=False)
    with pytest.raises(LimitExceeded):
        disk.call("file.open", path="one", mode=None, append=False)
    disk.service.close()
    assert os.listdir(disk.home) == []
    disk.service._turns = Turns(disk.loop)


# Looking


def test_stat_kinds(disk, home):
    """An entry tells what is at the path itself: links are not followed."""
    (home / "f").write_bytes(b"123")
    os.utime(home / "f", ns=(0, 1_234_567_890_123_456_789))
    (home / "d").mkdir()
    (home / "l").symlink_to("no/where")
    special(home / "p", "fifo")
    entry = disk.call("file.stat", path="f")
    assert entry == {
        "name": "f",
        "path": str(home / "f"),
        "type": "file",
        "size": 3,
        "mode": 0o644,
        "owner": entry["owner"],
        "group": entry["group"],
        "mtime": 1_234_567_890_123_456_789,
        "target": None,
        "lossy": False,
    }
    assert entry["owner"]
    link = disk.call("file.stat", path="l")
    assert (link["type"], link["target"]) == ("symlink", "no/where")
    assert disk.call("file.stat", path="d")["type"] == "dir"
    assert disk.call("file.stat", path="p")["type"] == "other"
    assert disk.call("file.stat", path="/")["name"] == "/"
    for path, error in (("no", PathNotFound), ("f/x", NotADirectory)):
        with pytest.raises(error):
            disk.call("file.stat", path=path)


def test_owner_without_a_name(disk, home):
    """An owner that nobody knows is told by number."""
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    (home / "f").write_bytes(b"")
    os.chown(home / "f", 54321, 54322)
    entry = disk.call("file.stat", path="f")
    assert (entry["owner"], entry["group"]) == ("54321", "54322")


TREE = [".hidden", "a", "b", "b/0", "b/x", "b/x/1", "b/x/deep", "b/x/deep/2", "b/x/deep/er", "up", "z"]


def make_tree(home: Path) -> None:
    for path in ("b/x/deep/er", "a"):
        (home / path).mkdir(parents=True)
    for path in ("b/x/1", "b/0", "b/x/deep/2", "z", ".hidden"):
        (home / path).write_bytes(b"")
    (home / "up").symlink_to("..")


def test_list_depth(disk, home):
    """Depth 1 is the children; each directory comes before its content; all sorted; links are not entered."""
    make_tree(home)
    assert disk.names() == [".hidden", "a", "b", "up", "z"]
    assert disk.names(depth=2) == [".hidden", "a", "b", "b/0", "b/x", "up", "z"]
    assert disk.names(depth=99) == TREE
    for depth in (0, -1, "1", True, None):
        with pytest.raises(InvalidRequest):
            disk.listing("~", depth)


def test_list_through_a_link(disk, home):
    """A link to a directory can be listed itself; the paths are below the link."""
    make_tree(home)
    (home / "to-b").symlink_to("b")
    assert disk.names("to-b") == ["to-b/0", "to-b/x"]


def test_list_errors(disk, home):
    """Only directories that exist can be listed."""
    (home / "f").write_bytes(b"")
    (home / "loop").symlink_to("loop")
    for path, error in (("f", NotADirectory), ("no", PathNotFound), ("loop", FileError)):
        with pytest.raises(error):
            disk.entries(path)


def test_list_is_bounded(disk, home, monkeypatch):
    """A listing stops at its bound and says so: exactly the first entries by name, in one directory or in many."""
    monkeypatch.setattr(files, "MAX_ENTRIES", 300)
    for directory in ("d1", "d2"):
        (home / directory).mkdir()
        for n in range(3000 if directory == "d1" else 3):
            (home / directory / f"{n:05}").touch()
    entries, truncated = disk.listing("d1", 1)
    assert truncated
    assert [entry["name"] for entry in entries] == [f"{n:05}" for n in range(300)]
    entries, truncated = disk.listing("~", 5)
    assert truncated
    assert [entry["name"] for entry in entries] == ["d1", *(f"{n:05}" for n in range(299))]
    for n in range(297):
        (home / "d2" / f"x{n:05}").touch()
    entries, truncated = disk.listing("d2", 1)
    assert (len(entries), truncated) == (300, False)


def test_list_the_largest(disk, home):
    """The largest listing with long names fits the frames and leaves others their turn."""
    for n in range(MAX_ENTRIES):
        os.close(os.open(home / f"{n:05}{'é' * 120}", os.O_CREAT, 0o644))
    request = disk.begin("file.list", path="~", depth=1)
    disk.turn()
    assert disk.call("file.stat", path="~")["type"] == "dir"
    assert disk.result(request) == {"truncated": False}
    assert len(disk.body("chunk", id=request).splitlines()) == MAX_ENTRIES


NAMES = [
    b"new\nline",
    b"\x1b[31mred",
    b"\xff\xfe",
    b"caf\xe9",
    "é".encode(),
    b"-rf",
    b" ",
    b"a\\b",
    b"%2e%2e",
    b"*",
    b"x" * 255,
]


def test_strange_names(disk, home):
    """Names of any bytes are listed, told and removed; those that are no UTF-8 are marked."""
    for name in NAMES:
        (home / os.fsdecode(name)).write_bytes(b"")
    entries = {entry["name"]: entry for entry in disk.entries()}
    assert set(entries) == {display(name) for name in NAMES}
    assert {name for name, entry in entries.items() if entry["lossy"]} == {"\\xff\\xfe", "caf\\xe9"}
    for name in NAMES:
        if not entries[display(name)]["lossy"]:
            assert disk.call("file.stat", path=str(home / name.decode()))["name"] == name.decode()
    disk.call("file.remove", path="~", recursive=True)
    assert not home.exists()
    home.mkdir()


# Moving


def test_move(disk, home):
    """Files, directories and links move by a rename; parents of the destination are made; files are replaced."""
    make_tree(home)
    (home / "z").write_bytes(b"z")
    assert disk.call("file.move", source="z", destination="new/place/z")["path"] == str(home / "new/place/z")
    disk.call("file.move", source="new/place/z", destination=".hidden")
    assert (home / ".hidden").read_bytes() == b"z"
    disk.call("file.move", source="b", destination="a/b")
    assert (home / "a/b/x/deep/2").exists()
    assert disk.call("file.move", source="up", destination="down")["type"] == "symlink"
    assert os.readlink(home / "down") == ".."


def test_move_refuses(disk, home):
    """What cannot be moved stays where it is, and the error says why."""
    make_tree(home)
    (home / "into").symlink_to("b/x")
    for source, destination, error in (
        ("no", "x", PathNotFound),
        ("b", "b/x/b", InvalidRequest),
        ("b", "b/new/b", InvalidRequest),
        ("b", "into/b", InvalidRequest),
        ("b", "z", NotADirectory),
        ("z", "a", IsADirectory),
        ("a", "b", DirectoryNotEmpty),
        ("z", "z/z", InvalidRequest),
        ("z", ".hidden/z", NotADirectory),
        ("/", "x", PathNotPermitted),
        ("a", "/", PathNotPermitted),
        ("b/x/..", "c", InvalidRequest),
        ("a", "b/x/..", InvalidRequest),
        ("a", "", InvalidRequest),
    ):
        with pytest.raises(error):
            disk.call("file.move", source=source, destination=destination)
    assert disk.names(depth=9) == sorted([*TREE, "into"])


def test_remove_has_an_end(disk, home, monkeypatch):
    """Where a tree cannot be emptied in time, because somebody fills it, the removal is given up with a typed error."""
    make_tree(home)
    monkeypatch.setattr(trees, "PATIENCE", -1.0)
    with pytest.raises(Conflict):
        disk.call("file.remove", path="b", recursive=True)
    monkeypatch.undo()
    disk.call("file.remove", path="b", recursive=True)
    assert not (home / "b").exists()


def test_move_across_copies_files_only(disk, home, other_mount, monkeypatch):
    """What was a file when it was looked at and is a pipe when it is opened is not read from."""
    (home / "file").write_text("x")
    os.mkfifo(home / "pipe")
    before, real, file = sorted(other_mount.iterdir()), os.lstat, os.lstat(home / "file")
    monkeypatch.setattr(os, "lstat", lambda path: file if path.endswith(b"pipe") else real(path))
    with pytest.raises(NotAFile):
        disk.call("file.move", source="pipe", destination=str(other_mount / "pipe"))
    monkeypatch.undo()
    assert (home / "pipe").is_fifo()
    assert sorted(other_mount.iterdir()) == before


def test_move_onto_itself(disk, home):
    """Moving something to where it is changes nothing."""
    make_tree(home)
    disk.call("file.move", source="b", destination="b")
    assert (home / "b/x/1").exists()


def test_move_across_mounts(disk, home, other_mount):
    """Between mounts a tree is copied and removed: content, modes, times, links and pipes survive."""
    make_tree(home)
    (home / "b/data").write_bytes(os.urandom(3 * CHUNK))
    (home / "b/data").chmod(0o751)
    (home / "b/link").symlink_to("../z")
    special(home / "b/pipe", "fifo")
    os.utime(home / "b/data", ns=(1, 1_600_000_000_123_456_789))
    os.utime(home / "b/x", ns=(1, 1_500_000_000_000_000_000))
    (home / "b/x").chmod(0o550)
    content = (home / "b/data").read_bytes()
    there = other_mount / "p" / "b"
    entry = disk.call("file.move", source="b", destination=str(there))
    assert entry["type"] == "dir"
    assert not (home / "b").exists()
    assert (there / "data").read_bytes() == content
    assert stat.S_IMODE((there / "data").stat().st_mode) == 0o751
    assert (there / "data").stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert (there / "x").stat().st_mtime_ns == 1_500_000_000_000_000_000
    assert stat.S_IMODE((there / "x").stat().st_mode) == 0o550
    assert os.readlink(there / "link") == "../z"
    assert stat.S_ISFIFO((there / "pipe").lstat().st_mode)
    assert (there / "x/deep/2").exists()
    assert os.listdir(other_mount / "p") == ["b"]


def test_move_across_mounts_that_fails(disk, home, other_mount):
    """A move between mounts that fails leaves the source whole and nothing beside the destination."""
    make_tree(home)
    (other_mount / "taken").mkdir()
    (other_mount / "taken" / "x").touch()
    before = disk.names(depth=9)
    with pytest.raises(DirectoryNotEmpty):
        disk.call("file.move", source="b", destination=str(other_mount / "taken"))
    with pytest.raises(IsADirectory):
        disk.call("file.move", source="z", destination=str(other_mount / "taken"))
    assert disk.names(depth=9) == before
    assert os.listdir(other_mount) == ["taken"]


# Removing and making


def test_remove(disk, home):
    """A file or link goes alone; a directory only when empty, unless ``recursive``."""
    make_tree(home)
    disk.call("file.remove", path="z", recursive=False)
    disk.call("file.remove", path=".hidden", recursive=True)
    disk.call("file.remove", path="up", recursive=True)
    disk.call("file.remove", path="a", recursive=False)
    with pytest.raises(DirectoryNotEmpty):
        disk.call("file.remove", path="b", recursive=False)
    disk.call("file.remove", path="b", recursive=True)
    assert os.listdir(home) == []
    for recursive in (False, True):
        with pytest.raises(PathNotFound):
            disk.call("file.remove", path="b", recursive=recursive)


def test_remove_never_follows_links(disk, home, tmp_path):
    """What links in a tree lead to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (home / "d/e").mkdir(parents=True)
    (home / "d/link").symlink_to(outside)
    (home / "d/e/link").symlink_to(outside / "kept")
    (home / "top").symlink_to(outside)
    disk.call("file.remove", path="d", recursive=True)
    disk.call("file.remove", path="top", recursive=True)
    assert os.listdir(home) == []
    assert os.listdir(outside) == ["kept"]


def test_remove_refuses(disk, home):
    """The root and what ends in ``..`` are not removed."""
    (home / "a/b").mkdir(parents=True)
    with pytest.raises(PathNotPermitted):
        disk.call("file.remove", path="/", recursive=True)
    with pytest.raises(InvalidRequest):
        disk.call("file.remove", path="a/b/..", recursive=True)
    assert (home / "a/b").is_dir()


def test_remove_many_files(disk, home):
    """Twenty thousand files are removed in short steps: another request is answered meanwhile."""
    for directory in range(20):
        (home / "many" / str(directory)).mkdir(parents=True)
        for n in range(1000):
            os.close(os.open(home / "many" / str(directory) / str(n), os.O_CREAT, 0o644))
    request = disk.begin("file.remove", path="many", recursive=True)
    longest, turns = 0.0, 0
    while disk.answer(request) is None:
        started = time.thread_time()
        disk.turn()
        longest, turns = max(longest, time.thread_time() - started), turns + 1
        assert disk.call("file.stat", path="~")["type"] == "dir"
    assert disk.result(request) == {}
    assert turns > 50
    assert longest < 0.5
    assert os.listdir(home) == []


@pytest.fixture
def deep(home: Path) -> Path:
    """A directory with ten thousand nested ones."""
    path = home / "deep"
    path.mkdir()
    here = os.getcwd()
    os.chdir(path)
    try:
        for _ in range(10_000):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    return path


def test_list_deep_tree(disk, deep):
    """A deep tree is listed as far as a path reaches."""
    assert 1000 < len(disk.entries(str(deep), depth=10**6)) < 10_000


def test_remove_deep_tree(disk, deep):
    """A tree deeper than any path, recursion or table of descriptors is removed."""
    descriptors = len(os.listdir("/proc/self/fd"))
    request = disk.begin("file.remove", path=str(deep), recursive=True)
    disk.turn()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    assert disk.result(request) == {}
    assert not deep.exists()


def test_remove_wide_and_nested(disk, home):
    """More subdirectories than are remembered at once, some with content, all go."""
    for n in range(3 * trees.BATCH):
        (home / "d" / f"{n}" / "x").mkdir(parents=True)
        (home / "d" / f"{n}" / "x" / "f").touch()
        (home / "d" / f"f{n}").touch()
    disk.call("file.remove", path="d", recursive=True)
    assert os.listdir(home) == []


def test_remove_while_others_move_and_fill(disk, home):
    """Directories that are moved away or filled during the removal confuse it, but it ends, inside the tree."""
    (home / "kept").mkdir()
    for n in range(40):
        (home / "d" / f"{n}" / "x" / "y").mkdir(parents=True)
        (home / "d" / f"{n}" / "x" / "y" / "f").touch()
    request = disk.begin("file.remove", path="d", recursive=True)
    for n in range(10):
        disk.turn()
        try:
            os.rename(home / "d" / f"{n}" / "x", home / "kept" / f"{n}")
        except FileNotFoundError:
            pass
        (home / "d" / f"new{n}").mkdir(exist_ok=True)
    disk.result(request)
    assert not (home / "d").exists()
    assert (home / "kept").exists()


def test_removed_by_somebody_else(disk, home):
    """A tree that vanishes during its removal is removed, or is told to be gone."""
    for n in range(300):
        (home / "d" / f"{n}").mkdir(parents=True)
        (home / "d" / f"{n}" / "f").touch()
    request = disk.begin("file.remove", path="d", recursive=True)
    disk.turn()
    remove(home / "d")
    with suppress(PathNotFound):
        disk.result(request)
    assert not (home / "d").exists()


def test_mkdir(disk, home):
    """Parents are made; an existing directory, also behind a link, is none that was made; a file is in the way."""
    assert disk.call("file.mkdir", path="a/b/c") == {"created": True}
    assert disk.call("file.mkdir", path="a/b/c") == {"created": False}
    assert disk.call("file.mkdir", path="/") == {"created": False}
    (home / "l").symlink_to("a")
    (home / "dangling").symlink_to("no")
    (home / "f").touch()
    assert disk.call("file.mkdir", path="l") == {"created": False}
    assert disk.call("file.mkdir", path="l/new") == {"created": True}
    assert (home / "a/new").is_dir()
    for path, error in (
        ("f", PathExists),
        ("f/x", NotADirectory),
        ("dangling", PathExists),
        ("f/x/y", NotADirectory),
    ):
        with pytest.raises(error):
            disk.call("file.mkdir", path=path)


def test_mkdir_deep(disk, home):
    """As many parents as a path can have are made."""
    path = "d/" * 1900
    assert disk.call("file.mkdir", path=path) == {"created": True}
    disk.call("file.remove", path="d", recursive=True)
    assert os.listdir(home) == []


# The user's rights


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become an ordinary user")
def test_ordinary_user_is_refused(tmp_path):
    """What the sandbox's user may not do is not permitted: the service acts as that user."""
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent == Path("/tmp") or parent == Path("/"):
            break
        parent.chmod(0o755)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "f").touch()
    readonly = tmp_path / "readonly"
    readonly.write_bytes(b"x")
    readonly.chmod(0o644)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgid(54321)
            os.setuid(54321)
            disk = FileDriver(tmp_path)
            for op, fields in (
                ("file.read", {"path": "closed/f", "offset": 0, "length": -1}),
                ("file.open", {"path": "readonly", "mode": None, "append": False}),
                ("file.open", {"path": "readonly", "mode": None, "append": True}),
                ("file.open", {"path": "closed/g", "mode": None, "append": False}),
                ("file.list", {"path": "closed", "depth": 1}),
                ("file.mkdir", {"path": "new"}),
                ("file.remove", {"path": "readonly", "recursive": False}),
                ("file.move", {"source": "readonly", "destination": "x"}),
            ):
                with pytest.raises(PathNotPermitted):
                    disk.call(op, **fields)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(os.listdir(tmp_path)) == ["closed", "readonly"]


@given(st.lists(st.binary(max_size=100), max_size=5), st.integers(0, 600), st.integers(-1, 600))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_read_gives_what_was_written(disk, pieces, offset, length):
    """Whatever was written in whatever pieces is read back, from any offset and in any length."""
    disk.write("f", *pieces)
    content = b"".join(pieces)
    assert disk.read("f", offset, length) == (
        content[offset:] if length < 0 else content[offset : offset + length]
    )
