"""One real zygote, without isolation: what it refuses, what it says of itself, how it ends."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cellfork.model.errors import StartupFailed
from cellfork.runtimes import interpreter, plan
from cellfork.runtimes.zygote import Launch, Zygote

LATE_THREAD = """
import signal, threading, time
def start_thread(*_):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
signal.signal(signal.SIGUSR1, start_thread)
"""
"""A module that is harmless when it is imported."""


async def launch(
    tmp_path: Path, preload: Sequence[str] = (), modules: str | None = None, executable: str | None = None
) -> Zygote:
    """Start a zygote which finds modules in ``tmp_path / modules`` as well, where that is given."""
    python = await asyncio.to_thread(interpreter.describe, executable)
    *options, code = plan.zygote_argv(python.executable, os.path.dirname(plan.package_directory()))
    if modules is not None:
        code = f"import sys; sys.path.append({str(tmp_path / modules)!r}); {code}"
    settings = {"preload": [*preload], "seccomp_base": "", "plan": {"owns_pid_namespace": False}}
    env = plan.environment(os.defpath, str(tmp_path))
    return await Zygote.launch(Launch([*options, code], env, None, settings))


def fork(zygote: Zygote):
    """Return a child and our end of its connection."""
    ours, theirs = socket.socketpair()
    with theirs:
        return zygote.fork(secrets.token_hex(4), [theirs.fileno()]), ours


async def test_no_fork_of_a_process_with_two_threads(tmp_path):
    """A thread that starts after the start is seen before the next fork, which is refused; earlier forks live on."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "late_thread.py").write_text(LATE_THREAD)
    zygote = await launch(tmp_path, ["late_thread"], "late")
    child, connection = fork(zygote)
    _pid, pidfd = await child.forked
    assert zygote.fit
    os.kill(zygote.pid, signal.SIGUSR1)
    async with asyncio.timeout(5):
        while len(os.listdir(f"/proc/{zygote.pid}/task")) < 2:
            await asyncio.sleep(0.005)
    refused, other = fork(zygote)
    with pytest.raises(StartupFailed, match="2 threads"):
        await refused.forked
    assert not zygote.fit
    assert not child.exited.done()
    os.close(pidfd)
    connection.close()
    other.close()
    await zygote.aclose()


@pytest.mark.parametrize("executable", [sys.executable, getattr(sys, "_base_executable", sys.executable)])
async def test_nothing_is_imported_from_home_or_working_directory(tmp_path, monkeypatch, executable):
    """Modules and start-up files that lie in the zygote's home, or that the owner's environment names, do not run.

    Neither in a virtual environment nor outside of one, where Python would look into the home by itself.
    """
    planted = "import os\nopen(os.path.join({place!r}, 'ran'), 'w').close()\n"
    version = interpreter.describe().version
    site = tmp_path / ".local" / "lib" / f"python{version}" / "site-packages"
    for place in (tmp_path, site):
        place.mkdir(parents=True, exist_ok=True)
        for name in ("sitecustomize", "usercustomize", "startup", "json"):
            (place / f"{name}.py").write_text(planted.format(place=str(tmp_path)))
    (site / "evil.pth").write_text(f"import os; open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "startup.py"))
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(StartupFailed):  # without IPython it ends, but later than a start-up file runs
        await (await launch(tmp_path, ["json"], executable=executable)).aclose()
    assert not (tmp_path / "ran").exists()


async def test_the_same_image_has_the_same_digest(tmp_path):
    """Two zygotes of one template say the same, one with another preload says something else."""
    zygotes = [await launch(tmp_path, preload) for preload in (["csv"], ["csv"], ["csv", "wave"])]
    first, second, other = (zygote.report["image"] for zygote in zygotes)
    for zygote in zygotes:
        await zygote.aclose()
    assert len(first) == 64
    assert first == second
    assert first != other


async def test_a_changed_module_changes_the_digest(tmp_path):
    """The digest covers the files that were imported, not only their names."""
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / "own_module.py"
    digests = []
    for text in ("x = 1\n", "x = 1  # changed\n"):
        file.write_text(text)
        zygote = await launch(tmp_path, ["own_module"], "own")
        digests.append(zygote.report["image"])
        await zygote.aclose()
    assert len(set(digests)) == 2


async def test_it_is_killed_once(tmp_path, monkeypatch):
    """When the zygote has been reaped, its pid may be another's: closing again signals nobody."""
    zygote = await launch(tmp_path)
    os.kill(zygote.pid, signal.SIGKILL)
    async with asyncio.timeout(5):
        while zygote.alive:
            await asyncio.sleep(0.005)
    await zygote.aclose()
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _number: killed.append(pid))
    await zygote.aclose()
    assert killed == []


async def test_in_use_is_what_was_claimed(tmp_path):
    """A fork that waits for an owner keeps no zygote; one that has an owner does, until it ends."""
    zygote = await launch(tmp_path)
    child, connection = fork(zygote)
    _pid, pidfd = await child.forked
    os.close(pidfd)
    assert not zygote.in_use
    await asyncio.wait_for(zygote.wait_unused(), 1)
    child.claimed = True
    assert zygote.in_use
    connection.close()
    await asyncio.wait_for(zygote.wait_unused(), 5)
    assert await child.exited == 0
    assert zygote.last_end > 0
    await zygote.aclose()


async def test_the_end_needs_no_thread(tmp_path, monkeypatch):
    """It is killed and reaped where there is none to be had, as at the end of a program."""
    zygote = await launch(tmp_path)
    child, connection = fork(zygote)
    _pid, pidfd = await child.forked

    def none(*_arguments, **_named):
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", none)
    await zygote.aclose()
    assert not Path(f"/proc/{zygote.pid}").exists()
    assert child.exited.done()
    os.close(pidfd)
    connection.close()
