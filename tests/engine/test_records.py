"""Records: what was put is there after a restart, in order, whatever happened to the process."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellfork.engine.records import SCHEMA, NoRecords, SqliteRecords
from cellfork.model.errors import Conflict, UnavailableError
from tests.held import held


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.sqlite"


@pytest.fixture
async def records(path: Path) -> AsyncIterator[SqliteRecords]:
    records = SqliteRecords(path)
    yield records
    await records.aclose()


async def test_what_was_put_is_there(records: SqliteRecords, path: Path):
    """Records come back by kind and id, in the order in which they were put first; a second put replaces the first."""
    for id in ("b", "a", "c"):
        await records.put("sandbox", id, {"id": id})
    await records.put("snapshot", "a", {"other": True})
    await records.put("sandbox", "b", {"id": "b", "text": "ü \ud7ff \0", "none": None, "deep": [{"x": 1.5}]})
    await records.delete("sandbox", "c")
    await records.delete("sandbox", "absent")
    expected = {"b": {"id": "b", "text": "ü \ud7ff \0", "none": None, "deep": [{"x": 1.5}]}, "a": {"id": "a"}}
    assert await records.load("sandbox") == expected
    assert [*await records.load("sandbox")] == ["b", "a"]
    await records.aclose()
    again = SqliteRecords(path)
    assert await again.load("sandbox") == expected
    assert await again.load("snapshot") == {"a": {"other": True}}
    assert await again.load("unknown") == {}
    await again.aclose()


async def test_a_record_is_kept_as_it_was(records: SqliteRecords):
    """What changes after the call is not in the record."""
    value = {"list": [1]}
    done = records.put("sandbox", "a", value)
    value["list"].append(2)
    await done
    assert await records.load("sandbox") == {"a": {"list": [1]}}


async def test_order_without_waiting(records: SqliteRecords):
    """Changes that nobody awaits are made in the order of the calls, and a later one that is awaited has them all."""
    for number in range(1000):
        records.put("sandbox", "kept", {"number": number})
        records.put("sandbox", "deleted", {"number": number})
        records.delete("sandbox", "deleted")
    await records.put("sandbox", "last", {})
    assert await records.load("sandbox") == {"kept": {"number": 999}, "last": {}}


async def test_only_this_user_can_read_them(path: Path, records: SqliteRecords):
    """The file and those that SQLite keeps beside it belong to this user alone, whatever the umask says."""
    await records.put("sandbox", "a", {"token": "secret"})
    files = [*path.parent.iterdir()]
    assert {file.name for file in files} >= {"records.sqlite", "records.sqlite-wal"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_of_a_newer_version(path: Path):
    """A file that a newer cellfork has written is refused, not changed."""
    SqliteRecords(path)._changes.put(None)
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    database.close()
    with pytest.raises(Conflict, match="newer"):
        SqliteRecords(path)


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_that_are_damaged(path: Path, content: bytes):
    """A file that is no database is refused with a typed error, and left as it is."""
    path.write_bytes(content)
    with pytest.raises(UnavailableError, match="cannot be opened"):
        SqliteRecords(path)
    assert path.read_bytes() == content


async def test_that_cannot_be_written(records: SqliteRecords, path: Path):
    """Who awaits hears that nothing could be kept; what failed is not half done; later changes are made."""
    await records.put("sandbox", "a", {})
    with sqlite3.connect(path) as database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(FAIL, 'full'); END")
    with pytest.raises(UnavailableError, match="full"):
        await records.put("sandbox", "b", {})
    database.execute("DROP TRIGGER full")
    database.close()
    await records.put("sandbox", "c", {})
    assert [*await records.load("sandbox")] == ["a", "c"]


async def test_after_the_end(records: SqliteRecords):
    """Closing writes what waits and is idempotent; a change afterwards is refused; the thread is gone."""
    waiting = [records.put("sandbox", str(number), {}) for number in range(500)]
    await records.aclose()
    await records.aclose()
    await asyncio.gather(*waiting)
    with pytest.raises(UnavailableError, match="closed"):
        await records.put("sandbox", "late", {})
    assert not any(thread.name == "cellfork-records" for thread in threading.enumerate())


async def test_everything_is_settled(records: SqliteRecords, path: Path):
    """Who waits for that waits for every change so far, and hears nothing of one that failed; without a change nobody waits."""
    await records.settled()
    with held(path):
        changes = [records.put("sandbox", str(number), {}) for number in range(3)]
        settled = asyncio.ensure_future(records.settled())
        await asyncio.sleep(0.1)
        assert not settled.done()
    await asyncio.wait_for(settled, 5)
    assert all(change.done() for change in changes)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(FAIL, 'full'); END")
    database.close()
    failing = records.put("sandbox", "b", {})
    await asyncio.wait_for(records.settled(), 5)
    assert isinstance(failing.exception(), UnavailableError)


async def test_while_somebody_else_reads(records: SqliteRecords, path: Path):
    """A person who looks at the file meanwhile holds nobody up."""
    await records.put("sandbox", "a", {})
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM records").fetchone() == (1,)
    await asyncio.wait_for(records.put("sandbox", "b", {}), 2)
    reader.close()


KILLED = """
import asyncio, os, signal, sys
from cellfork.engine.records import SqliteRecords
async def main():
    records = SqliteRecords(sys.argv[1])
    for number in range(10_000):
        await records.put("sandbox", str(number), {"number": number})
        os.write(1, b"%d\\n" % number)
        records.put("sandbox", "unawaited", {"number": number})
asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 40, 200])
async def test_the_process_is_killed(path: Path, lines: int):
    """Everything that was awaited before ``kill -9`` is there, and so is what was put before it."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(lines)]
        process.kill()
        told += [int(line) for line in process.stdout.read().splitlines()]
    records = SqliteRecords(path)
    found = await records.load("sandbox")
    await records.aclose()
    assert {str(number) for number in told} <= found.keys()
    if len(told) > 1:
        assert found["unawaited"]["number"] >= told[-2]
    assert os.listdir(path.parent) == ["records.sqlite"]


async def test_nothing_is_kept():
    """Without records everything succeeds, and nothing is there afterwards."""
    records = NoRecords()
    assert not records.keep
    await records.put("sandbox", "a", {})
    await records.delete("sandbox", "a")
    await records.settled()
    assert await records.load("sandbox") == {}
    await records.aclose()
