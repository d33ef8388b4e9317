"""Files and watches: pieces, bounds, malformed answers, events."""

import asyncio

import pytest

from cellfork.engine.engine import Engine
from cellfork.engine.files import WINDOW
from cellfork.engine.settings import Settings
from cellfork.engine.watches import LOST, MAX_EVENTS
from cellfork.model.errors import InvalidRequest, LimitExceeded, NoSpace, PathNotFound, ProtocolViolation
from cellfork.testing.fakes import FakeRuntime
from tests.engine.conftest import Stage, spec


async def test_write_and_read_in_pieces(stage: Stage):
    """A file travels in pieces that a frame can hold, and comes back as it was."""
    content = bytes(range(256)) * 4000
    entry = await stage.sandbox.files.write("a/b.bin", content, mode=0o600)
    assert (entry.name, entry.path, entry.size, entry.permissions) == (
        "b.bin",
        "a/b.bin",
        1_024_000,
        "-rw-r--r--",
    )
    assert max(len(frame.body) for frame in stage.guest.sent) == 256 * 1024
    assert stage.guest.requests("file.open")[0]["mode"] == 0o600
    assert await stage.sandbox.files.read("a/b.bin") == content
    assert await stage.sandbox.files.read_range("a/b.bin", 10, 5) == content[10:15]


async def test_stream_asks_for_the_next_window_when_one_was_taken(stage: Stage):
    """A large file is read no faster than it is taken."""
    stage.guest.files["big"] = b"x" * (2 * WINDOW + 5)
    stream = stage.sandbox.files.stream("big")
    assert len(await anext(stream)) == WINDOW
    assert len(stage.guest.requests("file.read")) == 1
    assert [len(piece) async for piece in stream] == [WINDOW, 5]


async def test_whole_file_is_bounded(stage: Stage):
    """A file that is too large for one piece is refused with the remedy."""
    engine = Engine({"fake": FakeRuntime()}, Settings(whole_file=1000))
    sandbox = await engine.create(spec())
    await sandbox.files.write("big", b"x" * 1001)
    with pytest.raises(LimitExceeded, match="stream"):
        await sandbox.files.read("big")
    await engine.aclose()


async def test_more_bytes_than_asked_for_are_a_violation(stage: Stage):
    """A guest cannot fill the host's memory with a file."""

    def flood(guest, header, body):
        for _ in range(10):
            guest.say({"op": "chunk", "id": header["id"]}, b"x" * 100)
        return {"size": 1000}

    stage.guest.script["file.read"] = flood
    with pytest.raises(Exception) as caught:
        await stage.sandbox.files.read_range("x", 0, 500)
    assert stage.sandbox.end_reason == "protocol"
    assert "more bytes" in str(caught.value)


async def test_failed_write_drops_the_file(stage: Stage):
    """When the disk is full nothing appears, and the handle is given back."""

    def full(guest, header, body):
        raise NoSpace("full")

    stage.guest.script["file.write"] = full
    with pytest.raises(NoSpace):
        await stage.sandbox.files.write("a", b"x")
    assert "a" not in stage.guest.files
    assert [header["commit"] for header in stage.guest.requests("file.close")] == [False]


async def test_operations(stage: Stage):
    """List, stat, move, remove and the rest are one request each."""
    files = stage.sandbox.files
    await files.write("a", b"1")
    assert [entry.path for entry in (await files.list(".", 2)).entries] == ["a"]
    assert (await files.stat("a")).modified_time.year == 2001
    assert await files.exists("a")
    assert not await files.exists("b")
    assert (await files.move("a", "b")).path == "b"
    await files.remove("b")
    with pytest.raises(PathNotFound):
        await files.remove("b")
    assert await files.make_dir("d")


@pytest.mark.parametrize("path", ["a\0b", "\ud800", 5, "x" * 5000])
async def test_malformed_paths(stage: Stage, path):
    """What cannot be a path is refused before anything is sent."""
    files = stage.sandbox.files
    for call in (
        files.read,
        files.stat,
        files.list,
        files.remove,
        files.make_dir,
        stage.sandbox.watches.start,
    ):
        with pytest.raises(InvalidRequest):
            await call(path)
    with pytest.raises(InvalidRequest):
        await files.write(path, b"")
    with pytest.raises(InvalidRequest):
        await files.move("a", path)
    assert stage.guest.sent == []


ENTRY = {
    "name": "a",
    "path": "a",
    "type": "file",
    "size": 1,
    "mode": 0,
    "owner": "u",
    "group": "g",
    "mtime": 0,
}


@pytest.mark.parametrize(
    "entry", [{}, {**ENTRY, "target": 5}, {**ENTRY, "target": None, "type": "door"}], ids=str
)
async def test_malformed_entries_kill_the_sandbox(stage: Stage, entry):
    """An answer that is no entry ends the sandbox as a protocol violation."""
    stage.guest.script["file.stat"] = lambda guest, header, body: entry
    with pytest.raises(ProtocolViolation):
        await stage.sandbox.files.stat("a")
    assert stage.sandbox.end_reason == "protocol"


async def test_malformed_listing_kills_the_sandbox(stage: Stage):
    """A listing that is not JSON lines ends the sandbox."""

    def listing(guest, header, body):
        guest.say({"op": "chunk", "id": header["id"]}, b"{nonsense\n")
        return {}

    stage.guest.script["file.list"] = listing
    with pytest.raises(ProtocolViolation):
        await stage.sandbox.files.list(".")
    assert stage.sandbox.end_reason == "protocol"


def happen(stage: Stage, name: str, kind: str = "create", watch: int = 1) -> None:
    stage.guest.say({"op": "watch.event", "watch": watch, "name": name, "kind": kind})


async def test_watch_events_are_taken_or_followed(stage: Stage):
    """Events are taken without waiting, or waited for; stopping ends who waits."""
    watch = await stage.sandbox.watches.start("d", recursive=True)
    happen(stage, "a")
    happen(stage, "b", "remove")
    happen(stage, "other", watch=2)
    assert [(event.name, event.type) for event in watch.take()] == [("a", "create"), ("b", "remove")]
    assert watch.take() == []
    follower = asyncio.ensure_future(anext(watch.events()))
    await asyncio.sleep(0)
    happen(stage, "c")
    assert (await follower).name == "c"
    waiting = asyncio.ensure_future(watch.batch())
    await asyncio.sleep(0)
    await watch.stop()
    await watch.stop()
    assert await waiting == []
    assert len(stage.guest.requests("watch.stop")) == 1


async def test_events_that_nobody_takes_are_bounded(stage: Stage):
    """The newest are kept, and the loss is told first."""
    watch = await stage.sandbox.watches.start("d")
    for index in range(MAX_EVENTS + 5):
        happen(stage, str(index))
    taken = watch.take()
    assert (taken[0], taken[1].name, len(taken)) == (LOST, "5", MAX_EVENTS + 1)


async def test_watch_of_what_is_not_there(stage: Stage):
    """The error of init reaches the caller."""

    def refuse(guest, header, body):
        raise PathNotFound("no d")

    stage.guest.script["watch.start"] = refuse
    with pytest.raises(PathNotFound):
        await stage.sandbox.watches.start("d")
