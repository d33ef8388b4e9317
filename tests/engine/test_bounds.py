"""What the host keeps is bounded in memory, whatever a sandbox says and however often.

Each test says one small thing again and again; the bounds themselves are made small where that makes it quick.
"""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from cellfork.engine import recorder as recording
from cellfork.engine import replay, watches
from cellfork.engine.recorder import Recorder
from cellfork.engine.values import FilesystemEvent
from cellfork.engine.watches import Watch, Watches
from cellfork.model import events
from cellfork.model.errors import CellforkError, ProtocolViolation
from cellfork.model.execution import Execution
from cellfork.model.limits import Limits, MiB
from cellfork.testing.fakes import FakeClock, FakeKernel, settle
from cellfork.wire.frames import CHUNK
from tests.engine.conftest import Stage

EMPTY_LISTS = b"[" + b"[]," * 40_000 + b"[]]"
"""An eighth of a megabyte that takes more than three as a value."""


@contextmanager
def host_memory_within(size: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= size, f"{peak / MiB:.1f} MiB"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(Execution(), Limits(), FakeClock(), None)


def display(body: bytes, mime: str = "application/json", kind: str = "j", **fields) -> tuple[dict, bytes]:
    header: dict[str, Any] = {
        "parts": [[mime, kind, len(body)]],
        "metadata": {},
        "display_id": None,
        "main": False,
    }
    return header | fields, body


def kept(recorder: Recorder, kind: type[events.Event] = events.Event) -> list[events.Event]:
    return [event for event in recorder.log.since(0) if isinstance(event, kind)]


async def test_json_counts_by_the_memory_that_it_takes(recorder, monkeypatch):
    """Values that are much larger than their text are counted as what they are, and dropped before they are read."""
    monkeypatch.setattr(recording, "MAX_WEIGHT", 16 * MiB)
    with host_memory_within(16 * MiB):
        for _ in range(100):
            recorder.display(*display(EMPTY_LISTS))
    assert 1 <= len(kept(recorder)) <= 4
    assert recorder.truncated


async def test_one_huge_value_is_not_even_read(recorder):
    """JSON that would take more than all results together may is dropped as it came."""
    body = b"[" + b"[]," * (3 * MiB) + b"[]]"
    with host_memory_within(48 * MiB):
        recorder.display(*display(body))
    assert kept(recorder) == []


async def test_an_ordinary_table_of_numbers_is_kept(recorder):
    """A million numbers of a plot are no abuse."""
    body = json.dumps([n / 7 for n in range(1_000_000)]).encode()
    recorder.display(*display(body))
    assert len(kept(recorder)) == 1


@pytest.mark.parametrize("where", ["metadata", "display_id", "mime"])
async def test_what_goes_with_a_result_counts_too(recorder, monkeypatch, where):
    """Metadata, display ids and MIME types are no way around the bounds."""
    monkeypatch.setattr(recording, "MAX_WEIGHT", MiB)
    for n in range(500):
        long = f"{n}".rjust(100_000, "x")
        extras: dict[str, dict[str, Any]] = {
            "metadata": {"metadata": {"a": long}},
            "display_id": {"display_id": long},
            "mime": {},
        }
        header, body = display(
            b"", mime=f"{n}".rjust(255, "x") if where == "mime" else "text/plain", kind="s", **extras[where]
        )
        header["parts"] *= 60 if where == "mime" else 1
        recorder.display(header, body)
    size = sum(len(repr(event)) for event in kept(recorder))
    assert 1 <= len(kept(recorder)) < 100
    assert size <= 2 * MiB


async def test_updates_behind_a_clear_that_waits(recorder):
    """What a waiting clear will make void counts until it does: updates of ever new displays cannot pile up behind it."""
    limit = recorder._limits.result_bytes
    body = bytes(limit // 2)
    for n in range(60):
        recorder.clear({"wait": True})
        header, body = display(body, "image/png", "b", display_id=f"{n}")
        recorder.update(header, body)
    held = sum(
        len(event.data["image/png"])
        for event in kept(recorder, events.Update)
        if isinstance(event, events.Update)
    )
    assert held <= recording.RESULTS_FACTOR * (limit + CHUNK)
    assert len(kept(recorder, events.Clear)) == 1


async def test_a_clear_that_waits_makes_room_when_it_takes_effect(recorder):
    """After the next output the bounds count from zero again."""
    body = bytes(recorder._limits.result_bytes)
    for _ in range(10):
        recorder.clear({"wait": True})
        recorder.display(*display(body, "image/png", "b"))
    assert len(kept(recorder, events.Display)) == 1
    assert not recorder.truncated
    recorder.clear({"wait": True})
    recorder.text(recorder.stdout, {"dropped": 0}, b"text")
    recorder.flush_text()
    for _ in range(recording.RESULTS_FACTOR):
        recorder.display(*display(body, "image/png", "b"))
    assert len(kept(recorder, events.Display)) == recording.RESULTS_FACTOR
    assert not recorder.truncated


async def test_turns_between_streams(recorder, monkeypatch):
    """A byte here and a byte there, for ever: nothing is lost, and after many turns the order between the streams is."""
    monkeypatch.setattr(recording, "MAX_TURNS", 1000)
    for _ in range(50_000):
        recorder.text(recorder.stdout, {"dropped": 0}, b"o")
        recorder.text(recorder.stderr, {"dropped": 0}, b"e")
    recorder.finish_text()
    assert len(kept(recorder)) <= 1100
    assert "".join(recorder.execution.logs.stdout) == "o" * 50_000
    assert "".join(recorder.execution.logs.stderr) == "e" * 50_000


async def test_markers_of_dropped_output(recorder):
    """Each marker of dropped output takes room as the output does; beyond it they become one."""
    recorder = Recorder(Execution(), Limits(output="1M"), FakeClock(), None)
    for _ in range(100_000):
        recorder.text(recorder.stdout, {"dropped": 2}, b"")
    recorder.finish_text()
    assert len("".join(recorder.execution.logs.stdout)) <= MiB + 2 * CHUNK
    assert recorder.produced == 200_000


async def test_questions(recorder):
    """Of questions the newest are kept, however many are asked and answered, before and behind a clear."""
    for n in range(1000):
        recorder.input_request({"prompt": f"{n}", "password": False})
        if n == 500:
            recorder.clear({"wait": True})
    asked = [event.prompt for event in kept(recorder) if isinstance(event, events.InputRequest)]
    assert asked == [f"{n}" for n in range(1000 - replay.MAX_QUESTIONS, 1000)]


def test_events_of_files(monkeypatch):
    """Events that nobody takes are bounded by the length of their names as well; the loss is told."""
    monkeypatch.setattr(watches, "MAX_NAMES", 1000)
    watch = Watch(cast("Watches", None), 1)
    for n in range(100):
        watch.add(FilesystemEvent(f"{n}".rjust(100, "x"), "write"))
    taken = watch.take()
    assert taken[0] == watches.LOST
    assert [event.name.strip("x") for event in taken[1:]] == [f"{n}" for n in range(90, 100)]
    watch.add(FilesystemEvent("y" * 2000, "write"))
    assert watch.take() == [watches.LOST]


async def test_an_error_is_text_and_nothing_is_parsed_for_it(stage: Stage):
    """JSON in the place of an error's text ends the sandbox, without having been read."""
    running = await stage.start("hang")
    kernel: FakeKernel = stage.guest.kernels[1]
    header = {
        "status": "error",
        "count": 1,
        "next_count": 2,
        "name": "E",
        "parts": [["value", "j", len(EMPTY_LISTS)]],
    }
    with host_memory_within(MiB):
        kernel.say("done", EMPTY_LISTS, execution=kernel.execution, **header)
    execution = await running.wait()
    assert execution.status == "killed"
    assert isinstance(execution.terminal, events.Killed)
    assert execution.terminal.reason == "protocol"


ENTRY = {
    "name": "n",
    "path": "/n",
    "type": "file",
    "size": 1,
    "mode": 420,
    "owner": "u",
    "group": "g",
    "mtime": 10**18,
    "target": None,
}


@pytest.mark.parametrize(
    "line",
    [
        b"[" + b"[]," * 100_000 + b"[]]",
        b"[" * 100_000,
        b"\xff",
        json.dumps(ENTRY).encode("utf-16"),
        json.dumps(ENTRY | {"mtime": 10**30}).encode(),
        json.dumps(ENTRY | {"size": True}).encode(),
        json.dumps(ENTRY | {"type": "device"}).encode(),
        b"null",
    ],
    ids=["wide", "deep", "bytes", "utf-16", "no-time", "no-size", "no-type", "null"],
)
async def test_listings_that_are_none(stage: Stage, line: bytes):
    """A malformed listing is a violation that ends the sandbox, at little cost."""

    def lie(guest, header, _body):
        guest.say({"op": "chunk", "id": header["id"]}, line)
        return {"truncated": False}

    stage.guest.script["file.list"] = lie
    with host_memory_within(4 * MiB), pytest.raises(ProtocolViolation):
        await stage.sandbox.files.list("/")
    await settle()
    assert stage.sandbox.state == "ended"


async def test_names_in_a_listing_can_be_encoded(stage: Stage):
    """Lone surrogates in a name arrive as the replacement character, as everywhere."""

    def lie(guest, header, _body):
        guest.say({"op": "chunk", "id": header["id"]}, json.dumps(ENTRY | {"name": "\udcff"}).encode())
        return {"truncated": False}

    stage.guest.script["file.list"] = lie
    (entry,) = (await stage.sandbox.files.list("/")).entries
    assert entry.name == "\N{REPLACEMENT CHARACTER}"


async def test_pieces_of_files_without_content(stage: Stage):
    """Empty pieces are not kept, however many come."""

    def flood(guest, header, _body):
        for _ in range(300_000):
            guest._on_frame((0, {"op": "chunk", "id": header["id"]}, b""))
        return {"size": 0}

    stage.guest.script["file.read"] = flood
    with host_memory_within(MiB):
        assert await stage.sandbox.files.read("/x") == b""


async def test_a_file_that_does_not_end(stage: Stage):
    """More bytes than were asked for end the sandbox."""

    def flood(guest, header, _body):
        for _ in range(20):
            guest.say({"op": "chunk", "id": header["id"]}, bytes(CHUNK))
        return {"size": 0}

    stage.guest.script["file.read"] = flood
    with pytest.raises(CellforkError):
        await stage.sandbox.files.read_range("/x", 0, CHUNK)
    await settle()
    assert stage.sandbox.end_reason == "protocol"
