"""Programs that embed cellfork, run as processes of their own, and what they leave on the machine."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

BUSY = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        os.closerange(0, 1000)
        while True: time.sleep(1)
    os._exit(0)
os.fork()
while True: pass
"""
"""Code that keeps processors busy in two processes, and has a daemon that detached itself."""


@contextmanager
def program(
    code: str, *, arguments: Sequence[str] = (), **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """Run a Python program; talk to it over its standard input and output."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> str:
    """The next line that the program prints; fails with its errors where it ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, errors = process.communicate()
        raise AssertionError(f"the program ended with {process.returncode}: {errors}")
    return line.strip()


def finish(process: "subprocess.Popen[str]", seconds: float = 30) -> str:
    """Wait for the end of a program that should succeed in silence; return what it printed."""
    output, errors = process.communicate(timeout=seconds)
    assert (process.returncode, errors) == (0, ""), (process.returncode, output, errors)
    return output


def processes_of(owner: int) -> set[int]:
    """Every process below ``owner``, whatever its parent is by now: found by parent, then by the sandbox's groups."""
    found = {owner}
    while True:
        more = {pid for pid, parent in parents().items() if parent in found} - found
        if not more:
            break
        found |= more
    return found - {owner} | {pid for path in groups_of(owner) for pid in _members(path)}


def groups_of(owner: int) -> list[str]:
    """The control groups whose names carry the owner's pid, in every hierarchy."""
    return [
        os.path.join(directory, name)
        for directory, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith("cellfork-") and f".{owner}." in name
    ]


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if _state(pid) not in {"", "Z", "X"}}


def wait_until(condition: Callable[[], object], seconds: float) -> float:
    """Wait for a condition; return how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds:g} s"
        time.sleep(0.01)
    return time.monotonic() - start


def parents() -> dict[int, int]:
    return {pid: int(fields[1]) for pid in _pids() if (fields := _stat(pid))}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except OSError:
        return []
    return stat[stat.rindex(")") + 2 :].split()


def _members(path: str) -> set[int]:
    try:
        with open(os.path.join(path, "cgroup.procs")) as file:
            return set(map(int, file.read().split()))
    except OSError:
        return set()
