"""Pauses, snapshots and copies, over both transports."""

import time

import pytest

from cellfork import CellforkError, Conflict, NotFound, Sandbox
from cellfork.model.errors import SandboxGone, SandboxPaused
from cellfork.model.limits import Limits, MiB
from tests.client.conftest import Place


def test_a_paused_sandbox_takes_nothing_until_it_is_resumed(place: Place):
    """Paused is a state of its own: every call says so, files and contexts are there afterwards."""
    sandbox = place.create(timeout=60)
    sandbox.run_code("1")
    assert sandbox.pause() is True
    assert sandbox.pause() is False
    assert not sandbox.is_running()
    info = sandbox.get_info()
    assert (info.state, info.end_at) == ("paused", None)
    with pytest.raises(SandboxPaused):
        sandbox.run_code("1")
    with pytest.raises(SandboxPaused):
        sandbox.commands.run("print a")
    sandbox.resume(120)
    assert sandbox.is_running()
    with pytest.raises(Conflict):
        sandbox.resume()
    assert sandbox.run_code("2").execution_count == 2
    end = sandbox.get_info().end_at
    assert end is not None
    assert end.timestamp() - time.time() == pytest.approx(120, abs=5)


def test_connecting_wakes(place: Place):
    """Who connects to a paused sandbox finds it running."""
    sandbox = place.create()
    sandbox.pause()
    again = Sandbox.connect(sandbox.sandbox_id, 60, transport=place.transport)
    assert again.is_running()
    assert again.run_code("7").text == "7"


def test_a_resumed_sandbox_may_have_no_end(place: Place):
    """``timeout=None`` means until it is killed, after a pause as well."""
    sandbox = place.create(timeout=60)
    sandbox.pause()
    sandbox.resume(None)
    assert sandbox.get_info().end_at is None


def test_a_paused_sandbox_can_be_killed(place: Place):
    """A pause protects from nothing."""
    sandbox = place.create()
    sandbox.pause()
    assert sandbox.kill()
    assert not sandbox.kill()
    assert sandbox.get_info().state == "ended"


def test_time_may_pause_a_sandbox(place: Place):
    """With ``on_timeout="pause"`` the deadline is no end."""
    sandbox = place.create(timeout=0.2, on_timeout="pause")
    deadline = time.monotonic() + 5
    while sandbox.is_running() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sandbox.get_info().state == "paused"
    sandbox.resume(60)
    assert sandbox.run_code("7").text == "7"


def test_a_timeout_of_zero_is_now(place: Place):
    """E2B's ``set_timeout(0)`` ends the sandbox, or pauses one that is paused at its end."""
    killed = place.create(timeout=60)
    killed.set_timeout(0)
    assert not killed.is_running()
    assert killed.get_info().state == "ended"
    with pytest.raises(SandboxGone) as gone:
        killed.set_timeout(0)
    assert gone.value.reason == "deadline"
    paused = place.create(timeout=60, on_timeout="pause")
    paused.set_timeout(0)
    deadline = time.monotonic() + 5
    while paused.is_running() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert paused.get_info().state == "paused"


def test_a_snapshot_has_limits(place: Place):
    """Without limits of its own, a sandbox that starts with a snapshot has those of the one that it was made of."""
    sandbox = place.create(limits=Limits(memory="64M"))
    snapshot = sandbox.create_snapshot()
    assert place.create(snapshot=snapshot.snapshot_id).info.limits.memory_bytes == 64 * MiB
    lower = place.create(snapshot=snapshot.snapshot_id, limits=Limits(memory="32M"))
    assert lower.info.limits.memory_bytes == 32 * MiB


def test_snapshots(place: Place):
    """Files are kept by id and by name, used to start others, listed, deleted."""
    sandbox = place.create()
    sandbox.files.write("f", "kept")
    snapshot = sandbox.create_snapshot("mine")
    sandbox.files.write("f", "changed")
    assert snapshot.names == ("mine",)
    for which in (snapshot.snapshot_id, "mine"):
        copy = place.create(snapshot=which)
        assert copy.files.read("f") == "kept"
    assert sandbox.files.read("f") == "changed"
    other = place.create()
    nameless = other.create_snapshot()
    assert [one.snapshot_id for one in Sandbox.list_snapshots(transport=place.transport)] == [
        nameless.snapshot_id,
        snapshot.snapshot_id,
    ]
    assert Sandbox.list_snapshots(sandbox.sandbox_id, transport=place.transport) == [snapshot]
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, transport=place.transport)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id, transport=place.transport)
    with pytest.raises(NotFound):
        place.create(snapshot="mine")


def test_copies(place: Place):
    """A fork has the files of its source and goes its own way."""
    sandbox = place.create()
    sandbox.files.write("f", "x")
    copies = sandbox.fork(timeout=60, count=2)
    assert len(copies) == 2
    for copy in copies:
        assert not isinstance(copy, CellforkError)
        assert copy.files.read("f") == "x"
        copy.files.write("f", "y")
    assert sandbox.files.read("f") == "x"
    assert len({sandbox.sandbox_id, *(copy.sandbox_id for copy in copies if isinstance(copy, Sandbox))}) == 3
