"""Servers that can be killed: an engine with a state directory in a process of its own, told what to do line by line."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .programs import alive, hear, program, say, wait_until

SERVER = """
import ast, asyncio, inspect, json, os, sys
from cellfork.engine.engine import Engine
from cellfork.engine.records import SqliteRecords
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.model.errors import CellforkError
from cellfork.model.limits import Limits
from cellfork.model.network import NetworkPolicy
from cellfork.model.specs import *
from cellfork.runtimes.state import StateDirectory

BARE = Template("bare", preload=())
LIMITS = Limits(memory="256M", pids=64, disk="64M")

async def main(path, patience):
    state = StateDirectory(path, patience=float(patience), lock_seconds=5)
    engine = Engine(LazyRuntimes(state=state), None, SqliteRecords(state.records))
    adoption = await engine.adopt()
    answer = {"adopted": [sandbox.id for sandbox in adoption.adopted], "ended": adoption.ended}

    async def create(**fields):
        return await engine.create(SandboxSpec(**{"template": BARE, "limits": LIMITS, "timeout": 600, **fields}))
    async def run(id, code, context=None):
        execution = await engine.get(id).run(context, ExecuteRequest(code))
        return execution.error.name if execution.error else execution.text
    def begin(id, code, context=None):
        return engine.get(id).start(context, ExecuteRequest(code, timeout=None))
    async def command(id, line, **fields):
        return await engine.get(id).execs.create(ExecSpec(("/bin/sh", "-c", line), **fields))
    async def leave():
        await engine.leave()
        state.close()
        asyncio.get_running_loop().call_later(0.1, sys.exit, 0)
    async def close():
        await engine.aclose()
        state.close()
        asyncio.get_running_loop().call_later(0.1, sys.exit, 0)

    names = {**globals(), **locals()}
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps(answer), flush=True)
    while line := await reader.readline():
        code = compile(line, "line", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            value = eval(code, names)
            value = await value if inspect.isawaitable(value) else value
            answer = {"value": value}
        except CellforkError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer, default=lambda value: getattr(value, "id", None) or repr(value)), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Server:
    """A server that lives, and what it adopted when it started."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        answer = json.loads(hear(process))
        self.adopted: list[str] = answer["adopted"]
        self.ended: dict[str, str] = answer["ended"]

    def __call__(self, line: str) -> Any:
        """Evaluate a line in the server; return its value, raise what it raised."""
        self.tell(line)
        return self.hear()

    def tell(self, line: str) -> None:
        say(self.process, line)

    def hear(self) -> Any:
        answer = json.loads(hear(self.process))
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer["value"]

    def kill(self) -> None:
        """Kill it, as ``kill -9`` does, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def end(self, how: str = "close") -> None:
        """Let it end by itself, with its sandboxes (``close``) or without (``leave``)."""
        self(f"await {how}()")
        assert self.process.wait(15) == 0


class Refused(Exception):
    """What a server raised: the name of the error, its message."""


@contextmanager
def server(path: Path, *, patience: float = 30) -> Iterator[Server]:
    """Start a server on a state directory; it is killed at the end if it lives."""
    with program(SERVER, arguments=(str(path), str(patience))) as process:
        yield Server(process)


def end_all(path: Path) -> None:
    """Start a server, let it end everything that was left."""
    with server(path) as last:
        last.end()


def processes(path: Path) -> set[int]:
    """The processes in the control groups of a state directory, and those that hold its doors."""
    found = {pid for group in groups(path) for pid in _numbers(os.path.join(group, "cgroup.procs"))}
    return alive(found | {pid for pid in _listeners(path) if pid > 0})


def groups(path: Path) -> list[str]:
    """The control groups that belong to a state directory, in every hierarchy."""
    mark = f"cellfork-k{(path / 'id').read_text()}-"
    return [
        os.path.join(directory, name)
        for directory, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith(mark)
    ]


def doors(path: Path) -> list[str]:
    """What is in the places of a state directory that belong to sandboxes and zygotes."""
    return [f"{kind}/{name}" for kind in ("forks", "zygotes") for name in sorted(os.listdir(path / kind))]


def nothing_is_left(path: Path, seconds: float = 5) -> None:
    """See that a state directory has no process, no control group, no socket."""
    wait_until(lambda: not processes(path), seconds)
    wait_until(lambda: not groups(path), seconds)
    assert doors(path) == []


def _listeners(path: Path) -> Iterator[int]:
    """Yield who listens at the doors, as the kernel tells whoever connects; that is harmless, but for a host that comes."""
    for note in (path / "zygotes").glob("*.json"):
        yield json.loads(note.read_text()).get("pid", 0)


def _numbers(file: str) -> set[int]:
    try:
        with open(file) as lines:
            return set(map(int, lines.read().split()))
    except OSError:
        return set()
