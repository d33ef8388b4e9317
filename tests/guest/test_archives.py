"""Archives inside the sandbox: everything that a tree has is kept, and nothing that an archive says leads out of its place."""

import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellfork.guest import archives
from cellfork.guest.archives import RECORD, VERSION, Archives, Unpacker, pack
from cellfork.model.errors import CellforkError, Conflict, InvalidRequest, Unsupported
from cellfork.wire.frames import CHUNK
from tests.guest.driver import Driver

RECORDS = archives._record
START = RECORDS(b"A", {"v": VERSION})
END = RECORDS(b"E", {"count": 0})


def file(name: str = "f", content: bytes = b"", **more: Any) -> bytes:
    return RECORDS(b"F", {"n": name, "m": 0o644, "t": 0, "s": len(content), **more}, content)


def directory(name: str = "d") -> bytes:
    return RECORDS(b"D", {"n": name, "m": 0o755, "t": 0})


UP = RECORDS(b"U", {})


def archive_of(place: Path) -> bytes:
    return b"".join(pack(os.fsencode(place)))


def unpack(data: bytes, place: Path, cuts: list[int] | None = None, **options: Any) -> Unpacker:
    place.mkdir(exist_ok=True)
    unpacker = Unpacker(os.fsencode(place), **options)
    try:
        start = 0
        for end in [*sorted(cuts or []), len(data)]:
            for _ in unpacker.feed(data[start:end]):
                pass
            start = end
        unpacker.finish()
    finally:
        unpacker.close()
    return unpacker


def things(place: Path) -> dict[bytes, Any]:
    """Return everything that can be seen of a tree, by path."""
    found: dict[bytes, Any] = {}
    numbers: dict[int, int] = {}
    for above, directories, files in os.walk(os.fsencode(place)):
        for name in sorted(directories + files):
            path = os.path.join(above, name)
            status = os.lstat(path)
            link = stat.S_ISLNK(status.st_mode)
            regular = stat.S_ISREG(status.st_mode)
            found[os.path.relpath(path, os.fsencode(place))] = (
                oct(status.st_mode),
                status.st_mtime_ns,
                status.st_nlink,
                numbers.setdefault(status.st_ino, len(numbers)) if status.st_nlink > 1 and regular else None,
                (status.st_size, status.st_blocks) if regular else None,
                os.readlink(path) if link else None,
                Path(os.fsdecode(path)).read_bytes() if regular else None,
                None if link else {name: os.getxattr(path, name) for name in os.listxattr(path)},
            )
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree on a file system as a sandbox has it."""
    place = tmp_path / "source"
    place.mkdir()
    return place


@pytest.fixture
def target(tmp_path: Path) -> Path:
    place = tmp_path / "target"
    place.mkdir()
    return place


def furnish(place: Path) -> None:
    """Make one of everything."""
    (place / "a/b/empty").mkdir(parents=True)
    (place / "a/text").write_text("hello")
    (place / "a/big").write_bytes(os.urandom(3 * CHUNK + 17))
    (place / "none").touch()
    (place / "link").symlink_to("a/text")
    (place / "dangling").symlink_to("/nowhere/at/all")
    (place / "a/b/hard").hardlink_to(place / "a/text")
    os.link(place / "link", place / "a/link2", follow_symlinks=False)
    os.mkfifo(place / "pipe", 0o640)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place / "socket"))
    with open(place / "sparse", "wb") as sparse:
        sparse.truncate(1 << 26)
        sparse.seek(30_000_000)
        sparse.write(b"in the middle")
    (place / "sticky").mkdir(mode=0o755)
    (place / "sticky").chmod(0o1777)
    (place / "program").write_text("#!/bin/sh")
    (place / "program").chmod(0o4755)
    Path(os.fsdecode(os.fsencode(place) + b"/\xff\xfe \n")).write_text("no text at all")
    for path, at in ((place / "a/text", 1), (place / "pipe", 2**31), (place / "a", -5), (place / "a/b", 7)):
        os.utime(path, ns=(at * 10**9 + 123_456_789,) * 2)
    os.utime(place / "link", ns=(3, 3), follow_symlinks=False)
    try:
        os.setxattr(place / "a/text", "user.a", b"\0\xff" * 100)
        os.setxattr(place / "a", "user.of.a.directory", b"")
    except OSError:
        pytest.skip("the file system of the tests' temporary directory has no extended attributes")


def test_everything_is_kept(source: Path, target: Path):
    """Content, names that are no text, modes, times, attributes, links of both kinds, holes, pipes and sockets."""
    furnish(source)
    before = things(source)
    data = archive_of(source)
    assert len(data) < 2**21  # a hole is not written
    assert unpack(data, target).count == len(before)
    assert things(target) == before
    assert things(source) == before
    assert archive_of(target) == data


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 3000), max_size=20))
def test_however_it_is_cut(tmp_path: Path, cuts: list[int]):
    """An archive means the same in whatever pieces it comes."""
    place = tmp_path / "source"
    (place / "d").mkdir(parents=True, exist_ok=True)
    for number in range(10):
        (place / "d" / f"{number}").write_bytes(b"x" * number * 11)
    data = archive_of(place)
    target = tmp_path / "cut"
    unpack(data, target, [cut for cut in cuts if cut < len(data)])
    assert things(target) == things(place)


def test_depth_and_width_take_no_descriptors(source: Path, target: Path):
    """A tree that is deeper than any path, and a directory of thousands, go with the same few descriptors."""
    here = os.open(source, os.O_RDONLY)
    for _ in range(1000):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    for number in range(1000):
        (source / f"f{number}").touch()
    before = len(os.listdir("/proc/self/fd"))
    seen = 0
    data = bytearray()
    for block in pack(os.fsencode(source)):
        seen = max(seen, len(os.listdir("/proc/self/fd")) - before)
        data += block
    assert seen <= 3
    assert unpack(bytes(data), target).count == 2001
    assert archive_of(target) == data
    for place in (source, target):
        subprocess.run(["rm", "-rf", place], check=True)


def test_work_is_done_in_short_steps(source: Path, target: Path):
    """Nobody waits for a large tree: packing and unpacking stop for others every so many files."""
    files = 3000
    for number in range(files):
        (source / f"f{number}").write_bytes(b"x" * 100)
    blocks = [*pack(os.fsencode(source))]
    unpacker = Unpacker(os.fsencode(target))
    stops = sum(1 for _ in unpacker.feed(b"".join(blocks)))
    unpacker.close()
    assert len(blocks) >= files // archives.STEP
    assert stops >= files // archives.STEP


def pack_and_unpack(source: Path, target: Path) -> None:
    half = pack(os.fsencode(source))
    next(half)
    half.close()
    assert stat.S_IMODE((source / "closed").stat().st_mode) == 0
    unpack(archive_of(source), target)
    assert [stat.S_IMODE(os.lstat(source / name).st_mode) for name in ("closed", "secret")] == [0, 0]


def as_user(work: Callable[[], None]) -> None:
    """Run something as user 1000, in a process of its own: ids that were changed once leave their mark on a process."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(1000, 1000, 1000)
            os.setresuid(1000, 1000, 1000)
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user than root, made by root")
def test_what_the_owner_may_not_read_is_kept(source: Path, target: Path):
    """A file of mode 0, and a directory of mode 0, are packed by their owner, who gets the modes back afterwards."""
    (source / "closed").mkdir()
    (source / "closed/in").write_text("inside")
    (source / "secret").write_text("s")
    for path in (source / "closed/in", source / "secret", source / "closed", source):
        os.chown(path, 1000, 1000)
    (source / "secret").chmod(0)
    (source / "closed").chmod(0)
    os.chown(target, 1000, 1000)
    for above in (source.parent, *source.parent.parents):
        mode = stat.S_IMODE(above.stat().st_mode)
        if not mode & stat.S_IXOTH:  # the temporary directories of a test run
            above.chmod(mode | stat.S_IXOTH)
    as_user(lambda: pack_and_unpack(source, target))
    assert [stat.S_IMODE(os.lstat(target / name).st_mode) for name in ("closed", "secret")] == [0, 0]
    assert (target / "closed/in").read_text() == "inside"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give a file to somebody else")
def test_what_is_the_templates_is_left_out(source: Path):
    """Files that do not belong to the sandbox's user were put there for it, and will be in every other sandbox too."""
    (source / "mine").touch()
    (source / "theirs").mkdir()
    os.chown(source / "theirs", 65534, 65534)
    assert b"mine" in archive_of(source)
    assert b"theirs" not in archive_of(source)


MALFORMED = {
    "empty": b"",
    "no start": file() + END,
    "two starts": START + START + END,
    "another version": RECORDS(b"A", {"v": VERSION + 1}) + END,
    "no end": START + file(),
    "half a record": START + file()[:-1],
    "something after the end": START + END + b"\0",
    "a record after the end": START + END + file(),
    "unknown kind": START + RECORDS(b"Z", {"n": "z"}) + END,
    "a path": START + file("a/b") + END,
    "an absolute path": START + file("/tmp/x") + END,
    "above": START + file("..") + END,
    "itself": START + file(".") + END,
    "no name": START + RECORDS(b"F", {"m": 0o644, "t": 0, "s": 0}) + END,
    "empty name": START + file("") + END,
    "NUL": START + file("a\0b") + END,
    "no Latin-1": START + file("ŧ") + END,
    "a directory above": START + directory("..") + UP + END,
    "up too far": START + UP + END,
    "up too far later": START + directory() + UP + UP + END,
    "an end inside": START + directory() + END,
    "a link to nothing": START + RECORDS(b"L", {"n": "l", "i": 0}) + END,
    "content of nothing": START + RECORDS(b"C", {"o": 0}, b"x") + END,
    "content of a directory": START + directory() + RECORDS(b"C", {"o": 0}, b"x") + UP + END,
    "negative size": START + RECORDS(b"F", {"n": "f", "m": 0, "t": 0, "s": -1}) + END,
    "a size that is no number": START + RECORDS(b"F", {"n": "f", "m": 0, "t": 0, "s": "1"}) + END,
    "a size that is a truth value": START + RECORDS(b"F", {"n": "f", "m": 0, "t": 0, "s": True}) + END,
    "a mode that is absent": START + RECORDS(b"F", {"n": "f", "t": 0, "s": 0}) + END,
    "an attribute of the kernel's": START + file() + RECORDS(b"X", {"n": "trusted.x"}, b"1") + END,
    "no JSON": START + RECORD.pack(b"F", 3, 0) + b"{a}" + END,
    "no object": START + RECORD.pack(b"F", 2, 0) + b"[]" + END,
    "nested": START + RECORD.pack(b"F", 8000, 0) + b"[" * 8000 + END,
    "a long description": START + RECORD.pack(b"F", 1 << 20, 0) + END,
    "a long content": START + RECORD.pack(b"F", 2, 1 << 30) + b"{}" + END,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_archive_is_refused(target: Path, name: str):
    """Whatever is not an archive is an error of the request, wherever it stops being one."""
    outside = sorted(os.listdir(target.parent))
    with pytest.raises(InvalidRequest):
        unpack(MALFORMED[name], target)
    assert sorted(os.listdir(target.parent)) == outside


def test_what_is_there_is_not_followed(target: Path):
    """Links in the place where an archive is unpacked give way; what they lead to is not touched."""
    outside = target.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("untouched")
    (target / "d").symlink_to(outside)
    (target / "f").symlink_to(outside / "f")
    (target / "full").mkdir()
    (target / "full/x").touch()
    data = START + directory("d") + file("f", b"new") + UP + file("f", b"new") + file("full", b"file") + END
    unpack(data, target)
    assert (outside / "f").read_text() == "untouched"
    assert (target / "f").read_text() == (target / "d/f").read_text() == "new"
    assert (target / "full").read_text() == "file"


def test_a_link_made_by_the_archive_is_not_followed(target: Path):
    """An archive that makes a link and then goes on through it gets a directory, or a file, in the link's place."""
    outside = target.parent / "outside"
    outside.mkdir()
    link = RECORDS(b"S", {"n": "way", "t": 0}, os.fsencode(outside))
    unpack(START + link + directory("way") + file("f", b"x") + UP + link + file("way", b"y") + END, target)
    assert os.listdir(outside) == []
    assert (target / "way").read_bytes() == b"y"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_archives_end_in_typed_errors(tmp_path: Path, data: st.DataObject):
    """A damaged archive is refused or unpacked, never more; nothing outside its place changes."""
    place = tmp_path / "place"
    place.mkdir(exist_ok=True)
    good = (
        START
        + directory()
        + file("f", b"abc", i=0)
        + RECORDS(b"L", {"n": "g", "i": 0})
        + UP
        + file("h", b"x")
        + END
    )
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack(bytes(damaged), place)
    except (CellforkError, OSError):
        pass
    assert os.listdir(tmp_path) == ["place"]
    subprocess.run(["rm", "-rf", place], check=True)


# ----------------------------------------------------------------------------------------- the service


class ArchiveDriver(Driver):
    """Calls the operations on a place."""

    def __init__(self, place: Path | None, **options: Any) -> None:
        super().__init__()
        self.service = Archives(self.loop, self.link, place=None if place is None else str(place), **options)
        self.serve(self.service.operations())

    def read(self, length: int = CHUNK) -> bytes:
        data, end = b"", False
        while not end:
            request = self.begin("archive.read", offset=len(data), length=length, alone=False)
            reply = self.result(request)
            piece = self.body("chunk", id=request)
            assert reply["size"] == len(piece) < length + 2 * CHUNK
            data, end = data + piece, reply["end"]
        return data

    def write(self, data: bytes, size: int = 1000) -> dict[str, Any]:
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            assert self.result(self.begin("archive.write", piece, offset=start, end=False)) == {}
        return self.result(self.begin("archive.write", offset=len(data), end=True))

    def close(self) -> None:
        self.call("archive.close")
        self.loop.close()


@pytest.fixture
def driver() -> Iterator[Any]:
    """Make drivers that are closed at the end."""
    made: list[ArchiveDriver] = []

    def make(place: Path | None, **options: Any) -> ArchiveDriver:
        made.append(ArchiveDriver(place, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_read_and_write(source: Path, target: Path, driver: Any):
    """The archive comes in pieces that are asked for, and goes in pieces that are taken; then nothing is held."""
    (source / "d").mkdir()
    (source / "d/f").write_bytes(os.urandom(CHUNK * 2))
    reader, writer = driver(source), driver(target)
    opened = len(os.listdir("/proc/self/fd"))
    data = reader.read(length=100_000)
    assert writer.write(data) == {"count": 2}
    assert things(target) == things(source)
    for one in (reader, writer):
        one.call("archive.close")
    assert len(os.listdir("/proc/self/fd")) == opened


def test_what_each_sandbox_gets_anew_is_left_out(source: Path, target: Path, driver: Any):
    """Files of the sandbox itself are not packed nor overwritten; what it begins with gives way to what the archive has."""
    for place in (source, target):
        (place / "certificates").write_text(place.name)
        (place / "venv/bin").mkdir(parents=True)
        (place / "venv/bin" / place.name).touch()
    options = {"kept": frozenset({"certificates"}), "first": frozenset({"venv"})}
    forged = file("certificates", b"forged") + RECORDS(b"C", {"o": 0}, b"forged") + END
    data = driver(source, **options).read()
    assert b"certificates" not in data
    driver(target, **options).write(data.removesuffix(RECORDS(b"E", {"count": 3})) + forged)
    assert (target / "certificates").read_text() == "target"
    assert os.listdir(target / "venv/bin") == ["source"]


@pytest.mark.parametrize("op", ["archive.read", "archive.write"])
def test_order(source: Path, driver: Any, op: str):
    """Offsets go on where the last piece ended; what does not is refused."""
    one = driver(source)
    fields = {"length": 10} if op == "archive.read" else {}
    with pytest.raises(InvalidRequest):
        one.result(one.begin(op, offset=10, **fields))


def test_without_a_place_of_its_own(driver: Any):
    """Where nothing isolates, home and /tmp are this machine's: they are never packed."""
    one = driver(None)
    with pytest.raises(Unsupported):
        one.result(one.begin("archive.read", offset=0, length=10, alone=False))


def test_only_the_first_process_kills_the_others(source: Path, driver: Any, monkeypatch: pytest.MonkeyPatch):
    """Where init is not pid 1, "every other process" would be this machine's: nobody is killed."""
    monkeypatch.setattr("os.kill", lambda *_: pytest.fail("somebody was killed"))
    one = driver(source)
    with pytest.raises(Unsupported):
        one.result(one.begin("archive.read", offset=0, length=10, alone=True))


def test_files_that_change_meanwhile(source: Path):
    """Packing needs files that stand still: a file that gets shorter is told, not filled up."""
    (source / "a").write_bytes(b"x" * CHUNK * 4)
    (source / "b").write_bytes(b"x" * CHUNK * 4)
    steps = pack(os.fsencode(source))
    next(steps)
    os.truncate(source / "a", 10)
    os.truncate(source / "b", 10)
    with pytest.raises(Conflict):
        list(steps)
