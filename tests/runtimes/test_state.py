"""The state directory: private, locked, and its sockets, whatever its path."""

import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cellfork.model.errors import Conflict, NotFound, StartupFailed, UnavailableError
from cellfork.runtimes.adopted import peer_of
from cellfork.runtimes.state import StateDirectory


@pytest.fixture
def state(tmp_path: Path):
    state = StateDirectory(tmp_path / "state")
    yield state
    state.close()


def test_it_is_private(tmp_path: Path, state: StateDirectory):
    """Everything that is made in it belongs to this user alone, whatever the umask says."""
    state.write("zygotes", "a", {"x": 1})
    for path in (state.path, *state.path.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert not mode & 0o077 or (path.name == "id" and not mode & 0o022), path


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_that_others_can_enter(tmp_path: Path, mode: int):
    """A directory that somebody else can enter is refused, not repaired: who knows what they did in it."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    with pytest.raises(UnavailableError, match="somebody else"):
        StateDirectory(tmp_path / "state")


def test_that_is_a_link(tmp_path: Path):
    """A symbolic link in its place is not followed."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "real")
    with pytest.raises(UnavailableError):
        StateDirectory(tmp_path / "state")


def test_one_at_a_time(tmp_path: Path, state: StateDirectory):
    """Another server is refused with a typed error, and gets it when the first has closed it."""
    with pytest.raises(Conflict, match="another server"):
        StateDirectory(state.path, lock_seconds=0.05)
    before, id = len(os.listdir("/proc/self/fd")), state.id
    state.close()
    state.close()
    again = StateDirectory(state.path)
    assert again.id == id
    assert len(os.listdir("/proc/self/fd")) == before
    again.close()


def test_the_lock_ends_with_the_process(tmp_path: Path):
    """A server that is killed lets go of it; the next one waits for that as long as it takes to die."""
    code = "import sys; from cellfork.runtimes.state import StateDirectory\ns = StateDirectory(sys.argv[1]); print('locked', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "state")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        timer = threading.Timer(0.2, process.send_signal, [signal.SIGKILL])
        timer.start()
        StateDirectory(tmp_path / "state").close()
        timer.join()


def test_a_long_path(tmp_path: Path):
    """Sockets work below a path that is longer than any address of a socket, and nobody learns it from them."""
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    state = StateDirectory(deep)
    with state.bind("forks", "name") as bound:
        bound.listen(1)
        with state.connect("forks", "name") as connection:
            assert "xxx" not in str(connection.getpeername())
    state.close()


def test_nobody_listens(state: StateDirectory):
    """Connecting to a name that is absent, or bound and not listened on, or was, is :class:`NotFound`."""
    with pytest.raises(NotFound):
        state.connect("forks", "absent")
    with state.bind("forks", "bound") as bound:
        with pytest.raises(NotFound):
            state.connect("forks", "bound")
        bound.listen(0)
        state.connect("forks", "bound").close()
    with pytest.raises(NotFound):
        state.connect("forks", "bound")
    assert state.names("forks") == ["bound"]
    state.forget("forks", "bound")
    state.forget("forks", "bound")
    assert state.names("forks") == []


def test_notes(state: StateDirectory):
    """A note is there as a whole or not at all; one that is damaged counts as none; rests of a killed server go."""
    state.write("zygotes", "a", {"x": [1]})
    assert state.read("zygotes", "a") == {"x": [1]}
    assert state.read("zygotes", "b") == {}
    (state.path / "zygotes" / "a.json").write_text("{")
    assert state.read("zygotes", "a") == {}
    assert state.names("zygotes") == ["a"]
    (state.path / "zygotes" / ".half").write_text("{")
    state.close()
    again = StateDirectory(state.path)
    assert not (state.path / "zygotes" / ".half").exists()
    again.close()


def test_who_listens_is_known(state: StateDirectory):
    """The kernel tells whoever connects which process listens, not who bound the socket; a dead one is told from a living."""
    bound = state.bind("forks", "name")
    ready, told = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=listen, args=(bound, told))
    child.start()
    bound.close()
    ready.recv()
    with state.connect("forks", "name") as connection:
        peer = peer_of(connection)
        assert peer.pid == child.pid != os.getpid()
        assert peer.poll() is None
        peer.kill()
        child.join()
        assert peer.poll() == 0
        with pytest.raises(StartupFailed):
            peer_of(connection)
        assert peer.wait(0) == peer.wait(0) == 0
        peer.kill()  # which does nothing: the descriptor is gone, and the number may be another's
    for end in (ready, told):
        end.close()


def listen(bound: socket.socket, told) -> None:
    bound.listen(1)
    told.send(True)
    signal.pause()
