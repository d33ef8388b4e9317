"""Snapshots and forks: copies that are independent, of one tenant only, found again by the next engine."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from cellfork.engine.archives import PREFIX, Archives
from cellfork.engine.engine import Engine
from cellfork.engine.records import SqliteRecords
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.settings import Settings
from cellfork.engine.snapshots import Snapshot, record_of, snapshot_of
from cellfork.model.errors import (
    InvalidRequest,
    NotFound,
    StartupFailed,
    UnavailableError,
)
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.testing.fakes import FakeClock, FakeGuest, FakeRuntime, settle
from tests.engine.conftest import Stage, spec

TEMPLATE = Template("mine", interpreter="/usr/bin/python3", preload=("json",), limits=Limits(memory="64M"))


async def furnished(engine: Engine, **fields) -> Sandbox:
    sandbox = await engine.create(spec(**fields))
    await sandbox.files.write("f", b"first")
    return sandbox


async def test_a_sandbox_from_a_snapshot(stage: Stage):
    """It has the files and the template of the source at that moment; what either does later is its own."""
    source = await furnished(stage.engine, template=TEMPLATE, limits=Limits(memory="128M"))
    snapshot = await stage.engine.snapshot(source.id, "name")
    assert source.guest.frozen == ""  # type: ignore[attr-defined]
    assert (snapshot.names, snapshot.sandbox_id, snapshot.template) == (("name",), source.id, TEMPLATE)
    assert snapshot.size == stage.engine.archives.used > 0
    await source.files.write("f", b"second")
    copies = [await stage.engine.create(spec(snapshot=name)) for name in (snapshot.id, "name")]
    assert {copy.spec.template for copy in copies} == {TEMPLATE}
    await copies[0].files.write("f", b"third")
    contents = [await sandbox.files.read("f") for sandbox in (source, *copies)]
    assert contents == [b"second", b"third", b"first"]
    await stage.engine.delete_snapshot("name")
    assert stage.engine.archives.used == 0
    assert await copies[1].files.read("f") == b"first"
    with pytest.raises(NotFound):
        await stage.engine.create(spec(snapshot=snapshot.id))
    with pytest.raises(NotFound):
        await stage.engine.delete_snapshot(snapshot.id)


async def test_requests_wait_while_a_sandbox_is_copied(stage: Stage):
    """What is asked of a sandbox while it is copied is done afterwards, not refused; its timers stand still meanwhile."""
    source = await furnished(stage.engine)
    guest: FakeGuest = source.guest  # type: ignore[assignment]
    replies = []
    guest.script["archive.read"] = lambda _guest, header, _body: replies.append(header["id"])
    copying = asyncio.ensure_future(stage.engine.snapshot(source.id))
    await settle()
    assert guest.frozen == "all but init"
    reading = asyncio.ensure_future(source.files.read("f"))
    await settle()
    assert guest.requests("file.read") == []
    now = source.clock.monotonic()
    await stage.clock.advance(50)
    assert source.clock.monotonic() == now
    guest.say({"op": "reply", "id": replies[0], "ok": True, "result": {"size": 0, "end": True}})
    await copying
    assert await reading == b"first"


@pytest.mark.parametrize("memory", [True, False])
async def test_a_snapshot_of_a_paused_sandbox(stage: Stage, memory: bool):
    """A paused sandbox can be copied, and stays paused."""
    source = await furnished(stage.engine)
    await source.pause(memory=memory)
    snapshot = await stage.engine.snapshot(source.id)
    (fork,) = await stage.engine.fork(source.id)
    assert source.state == "paused"
    if memory:
        assert source.guest.frozen == "all"  # type: ignore[attr-defined]
    assert isinstance(fork, Sandbox)
    copy = await stage.engine.create(spec(snapshot=snapshot.id))
    assert await copy.files.read("f") == await fork.files.read("f") == b"first"
    await source.resume()
    assert await source.files.read("f") == b"first"
    await stage.engine.delete_snapshot(snapshot.id)
    assert stage.engine.archives.used == 0


@pytest.mark.parametrize("state", ["running", "paused", "without memory"])
async def test_snapshots_nobody_waits_for(stage: Stage, state: str):
    """However far it is, one that is given up leaves no archive, no name and no bytes that count."""
    engine = stage.engine
    sandbox = await furnished(engine)
    if state != "running":
        await sandbox.pause(memory=state == "paused")
    paused = [] if sandbox.pausing.archive is None else [sandbox.pausing.archive]
    await engine.snapshot(sandbox.id, "name")
    for number in range(120):
        making = asyncio.create_task(engine.snapshot(sandbox.id, "name"))
        if number % 2:
            await asyncio.sleep(number * 0.00005)
        else:
            for _ in range(number // 2):
                await asyncio.sleep(0)
        making.cancel()
        (outcome,) = await asyncio.gather(making, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError | Snapshot)
        known = engine.snapshots()
        assert len(engine.snapshots(name="name")) <= 1
        assert isinstance(outcome, Snapshot) == (outcome in known)
        for snapshot in known:
            deleting = asyncio.create_task(engine.delete_snapshot(snapshot.id))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            deleting.cancel()
            await asyncio.gather(deleting, return_exceptions=True)
        for snapshot in engine.snapshots():
            await engine.delete_snapshot(snapshot.id)
    async with asyncio.timeout(5):
        while engine.archives._under_way:
            await asyncio.sleep(0.01)
    assert [*engine.archives._sizes] == paused
    assert engine.archives.used == sum(engine.archives._sizes.values())
    await sandbox.kill()
    async with asyncio.timeout(5):
        while engine.archives._directory is not None:
            await asyncio.sleep(0.01)


async def test_tenants_see_their_own(stage: Stage):
    """Nobody can list, use, name or delete the snapshot of another tenant, by id or by name."""
    mine = await stage.engine.snapshot((await furnished(stage.engine, tenant="a")).id, "name")
    yours = await stage.engine.snapshot((await furnished(stage.engine, tenant="b")).id, "name")
    assert stage.engine.snapshots(tenant="a") == [mine]
    assert stage.engine.find_snapshot("name", "b") == yours
    assert stage.engine.snapshots() == [yours, mine]
    for wanted in (mine.id, "other"):
        with pytest.raises(NotFound):
            stage.engine.find_snapshot(wanted, "b")
        with pytest.raises(NotFound):
            await stage.engine.delete_snapshot(wanted, "b")
        with pytest.raises(NotFound):
            await stage.engine.create(spec(snapshot=wanted, tenant="b"))
        with pytest.raises(NotFound):
            await stage.engine.name_snapshot(wanted, ("x",), "b")
    assert stage.runtime.guests[-1].killed == []
    await stage.engine.delete_snapshot("name", "b")
    assert stage.engine.snapshots() == [mine]


async def test_names(stage: Stage):
    """A name is that of the newest snapshot which was given it; it must be one that prints."""
    source = await furnished(stage.engine)
    old = await stage.engine.snapshot(source.id, "n")
    new = await stage.engine.snapshot(source.id, "n")
    assert stage.engine.find_snapshot("n") == new
    assert stage.engine.find_snapshot(old.id).names == ()
    assert stage.engine.snapshots(name="n") == [new]
    assert stage.engine.snapshots(sandbox_id="other") == []
    for wrong in ("", "x" * 300, "a\nb"):
        with pytest.raises(InvalidRequest):
            await stage.engine.snapshot(source.id, wrong)
    assert len(stage.engine.snapshots()) == 2


async def test_files_that_do_not_fit(stage: Stage):
    """Where a new sandbox cannot take the files, there is none; the snapshot can be used again."""
    snapshot = await stage.engine.snapshot((await furnished(stage.engine)).id)

    def break_it(guest: FakeGuest) -> None:
        guest.script["archive.write"] = lambda guest, header, body: guest.close("memory", "full")

    stage.runtime.on_start = break_it
    count = len(stage.engine.list())
    with pytest.raises(StartupFailed):
        await stage.engine.create(spec(snapshot=snapshot.id))
    assert len(stage.engine.list()) == count
    assert stage.runtime.guests[-1].killed
    stage.runtime.on_start = None
    assert await (await stage.engine.create(spec(snapshot=snapshot.id))).files.read("f") == b"first"


# ----------------------------------------------------------------------------------------------- forks


async def test_forks(stage: Stage):
    """Forks are as the source was asked for, each its own, without its notes; the source goes on; no archive is left."""
    source = await furnished(
        stage.engine,
        envs={"A": "1"},
        metadata={"m": "1"},
        notes={"token": "secret"},
        tenant="t",
        timeout=None,
    )
    forks = await stage.engine.fork(source.id, 3, 60)
    assert len({source.id, *(fork.id for fork in forks if isinstance(fork, Sandbox))}) == 4
    for fork in forks:
        assert isinstance(fork, Sandbox)
        assert (fork.spec.envs, fork.spec.metadata, fork.spec.tenant) == ({"A": "1"}, {"m": "1"}, "t")
        assert fork.notes == {}
        assert fork.deadline is not None
        await fork.files.write("f", fork.id.encode())
    assert await source.files.read("f") == b"first"
    assert stage.engine.archives.used == 0


async def test_one_fork_that_fails(stage: Stage):
    """Where one of several cannot be started, the others are there, and the reason is in its place."""
    source = await furnished(stage.engine)
    starts: list[int] = []

    def break_second(_guest: FakeGuest) -> None:
        starts.append(1)
        if len(starts) == 2:
            raise StartupFailed("no room")

    stage.runtime.on_start = break_second
    forks = await stage.engine.fork(source.id, 3)
    assert sorted(type(fork).__name__ for fork in forks) == ["Sandbox", "Sandbox", "StartupFailed"]


@pytest.mark.parametrize("count", [0, -1, 101, True, 1.0, "1"])
async def test_counts(stage: Stage, count):
    """The number of forks is checked before anything stands still."""
    with pytest.raises(InvalidRequest):
        await stage.engine.fork(stage.sandbox.id, count)
    assert stage.guest.requests("archive.read") == []


async def test_forks_nobody_waits_for(stage: Stage):
    """Where the caller gives up, no fork lives on and no archive is left."""
    source = await furnished(stage.engine)
    forking = asyncio.ensure_future(stage.engine.fork(source.id, 3))
    while len(stage.runtime.guests) < 5:
        await asyncio.sleep(0)
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    await stage.engine._background.join()
    assert [sandbox.id for sandbox in stage.engine.list()] == [stage.sandbox.id, source.id]
    assert all(guest.killed for guest in stage.runtime.guests[2:])
    assert stage.engine.archives.used == 0


# ------------------------------------------------------------------------------------- kept on disk


async def test_snapshots_outlive_their_engine(tmp_path: Path):
    """The next engine finds them with their names; archives that nobody knows, and halves of archives, are removed."""
    archives = tmp_path / "archives"
    settings = Settings(clock=FakeClock(), archives=str(archives))
    first = Engine({"fake": FakeRuntime()}, settings, SqliteRecords(tmp_path / "records"))
    await first.adopt()
    source = await furnished(first, template=TEMPLATE)
    kept = await first.snapshot(source.id, "kept")
    lost = await first.snapshot(source.id, "lost")
    await first.aclose()
    assert (archives.stat().st_mode & 0o777, (archives / kept.archive).stat().st_mode & 0o777) == (
        0o700,
        0o600,
    )
    (archives / lost.archive).unlink()
    (archives / "stray").write_bytes(b"x")
    (archives / "half.partial").write_bytes(b"x")

    second = Engine({"fake": FakeRuntime()}, settings, SqliteRecords(tmp_path / "records"))
    await second.adopt()
    assert second.snapshots() == [kept]
    assert os.listdir(archives) == [kept.archive]
    copy = await second.create(spec(snapshot="kept"))
    assert await copy.files.read("f") == b"first"
    await second.delete_snapshot("kept")
    await second.aclose()
    third = Engine({"fake": FakeRuntime()}, settings, SqliteRecords(tmp_path / "records"))
    await third.adopt()
    assert third.snapshots() == []
    assert os.listdir(archives) == []
    await third.aclose()


async def test_records_of_snapshots(stage: Stage):
    """A record gives back the same snapshot."""
    snapshot = await stage.engine.snapshot((await furnished(stage.engine, template=TEMPLATE)).id, "n")
    assert snapshot_of(record_of(snapshot)) == snapshot


async def test_a_directory_others_can_enter_is_not_used(tmp_path: Path):
    """Archives are the tenants' files: a place that somebody else can enter is refused."""
    place = tmp_path / "open"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    with pytest.raises(UnavailableError):
        Archives(place, 1000).draft(10)
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError):
        Archives(tmp_path / "file", 1000).draft(10)


async def test_archives_are_whole_or_not_there(tmp_path: Path):
    """An archive has its name when it is complete; until then, and where it is dropped, it is nobody's and not counted."""
    archives = Archives(tmp_path / "a", 100)
    draft = archives.draft(50)
    await draft.write([b"x" * 20, b"y" * 10])
    assert [path.suffix for path in (tmp_path / "a").iterdir()] == [".partial"]
    assert archives.used == 30
    with pytest.raises(NotFound):
        archives.size(draft.id)
    id = await draft.commit()
    draft.abort()
    assert [piece async for piece in archives.read(id)] == [b"x" * 20 + b"y" * 10]
    copied = await archives.copy(id)
    assert archives.used == 60
    dropped = archives.draft(50)
    await dropped.write([b"z" * 30])
    dropped.abort()
    assert archives.used == 60
    await archives.discard(id)
    await archives.discard(id)
    assert archives.size(copied) == 30
    assert archives.used == 30
    with pytest.raises(NotFound):
        await archives.copy(id)
    with pytest.raises(NotFound):
        archives.size("../a")


async def test_temporary_places_of_engines_that_were_killed(monkeypatch: pytest.MonkeyPatch):
    """The next engine removes what one left behind that could not; it leaves alone what is in use, new, or no directory."""
    root = Path(tempfile.gettempdir())
    monkeypatch.setattr("cellfork.engine.archives.MADE_SECONDS", 0.0)
    living, abandoned = Archives(None, 100), Archives(None, 100)
    kept = await living.draft(10).commit()
    await abandoned.draft(10).commit()
    assert abandoned._lock is not None
    os.close(abandoned._lock)  # as the kernel does for a process that ends
    link = root / f"{PREFIX}link"
    link.symlink_to(root)
    try:
        other = Archives(None, 100)
        draft = other.draft(10)
        place = draft._path.parent
        assert living.size(kept) == 0
        assert {path.name for path in root.glob(f"{PREFIX}*")} == {
            link.name,
            place.name,
            str(living._directory).rpartition("/")[2],
        }
    finally:
        link.unlink()
    draft.abort()
    assert not place.exists()
    living.close()


async def test_a_temporary_place_goes_with_its_last_archive():
    """Without a directory of its own an engine leaves nothing behind, and nothing while it has no archive."""
    archives = Archives(None, 100)
    draft = archives.draft(10)
    place = draft._path.parent
    id = await draft.commit()
    assert place.is_dir()
    await archives.discard(id)
    assert not place.exists()
    again = archives.draft(10)
    place = again._path.parent
    await again.commit()
    archives.close()
    assert not place.exists()
