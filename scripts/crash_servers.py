"""The servers that ``crashes.py`` kills: an engine that answers lines of JSON, and ``cellfork serve`` with cellfork's own client.

The first is asked for everything that a sandbox can do and told what happens to its records; the second is what users run.  What
the campaign's clients know outlives each server; the next one listens elsewhere, as after a move.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from cellfork import AsyncSandbox  # noqa: E402 - the path is set first
from cellfork.client.http.transport import HttpTransport  # noqa: E402
from cellfork.engine.engine import Engine  # noqa: E402
from cellfork.engine.records import SqliteRecords  # noqa: E402
from cellfork.engine.runtimes import LazyRuntimes  # noqa: E402
from cellfork.engine.sandbox import Sandbox  # noqa: E402
from cellfork.engine.settings import Settings  # noqa: E402
from cellfork.engine.values import ExecOutput  # noqa: E402, F401 - so that it is loaded before the first request
from cellfork.model.errors import CellforkError  # noqa: E402
from cellfork.model.limits import Limits  # noqa: E402
from cellfork.model.specs import ExecSpec, ExecuteRequest, SandboxSpec, Template  # noqa: E402
from cellfork.runtimes.state import StateDirectory  # noqa: E402

LIMITS = Limits(memory="128M", pids=40, disk="16M", inodes=2000)
BARE = Template(preload=())
PATIENCE = 30.0
"""Seconds for which sandboxes wait for a server; none of the pauses of the campaign is as long."""
GRACE = 15.0
"""Seconds that code has for its interrupt: on a machine with too much to do the default can end a kernel, and its counter."""
ANSWER_SECONDS = 60.0
LIFE = 3600.0
COUNTER = 'n=0; while :; do n=$((n+1)); echo "$n" > .count; mv .count count; sleep 0.02; done'
SHOUT = "seq 1 200000; sleep 0.05"
HANG = "import time\ntime.sleep(3600)"
HANGING = "/tmp"

Chances = Mapping[str, float]


class Died(Exception):
    """The server was killed before it answered."""


class Server(Protocol):
    """A server process, as the campaign sees it."""

    chances: ClassVar[Chances]
    """What it can be asked for, and how often it is."""
    patient: ClassVar[bool]
    """Whether code has enough time for its interrupt, so that no variable is ever lost with its kernel."""
    greeting: asyncio.Future[dict[str, Any]]
    """What it says when it listens: the ids that it ``adopted``, and why others ``ended``."""

    @classmethod
    async def start(cls, path: Path) -> Self:
        """Start one on a state directory."""
        ...

    async def ask(self, op: str, *args: Any) -> Any:
        """Ask for something.  Raises :class:`Died`, ``RuntimeError`` for a refusal."""
        ...

    async def kill(self) -> None:
        """Kill it, and let everybody who waits know."""
        ...

    async def end(self) -> None:
        """Let it end every sandbox, and itself."""
        ...


# -------------------------------------------------------------------------------- an engine, inside its process


async def serve(path: str) -> None:
    """Adopt, then answer what stands in lines of JSON on standard input, everything at once."""
    state = StateDirectory(path, patience=PATIENCE)
    engine = Engine(LazyRuntimes(state=state), Settings(grace=GRACE), SqliteRecords(state.records))
    adoption = await engine.adopt()
    tell({"adopted": [sandbox.id for sandbox in adoption.adopted], "ended": adoption.ended})
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        request = json.loads(line)
        if request["op"] == "end":
            await engine.aclose()
            state.close()
            break
        task = asyncio.create_task(answer(engine, request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def answer(engine: Engine, request: dict[str, Any]) -> None:
    """Do what was asked; tell the outcome."""
    try:
        value = await OPERATIONS[request["op"]](engine, *request["args"])
        tell({"number": request["number"], "value": value})
    except CellforkError as error:
        tell({"number": request["number"], "error": f"{type(error).__name__}: {error}"})


def tell(message: dict[str, Any]) -> None:
    """Write a line."""
    print(json.dumps(message), flush=True)


async def create(engine: Engine, name: str) -> str:
    """Make a sandbox with a counter and a command that counts."""
    spec = SandboxSpec(template=BARE, limits=LIMITS, timeout=LIFE, notes={"name": name})
    sandbox = await engine.create(spec)
    await run(sandbox, "x = 0")
    await sandbox.execs.create(ExecSpec(("/bin/sh", "-c", COUNTER)))
    return sandbox.id


async def run(sandbox: Sandbox, code: str) -> str | None:
    """Run code in the default context; return its value."""
    execution = await sandbox.run(None, ExecuteRequest(code, timeout=30))
    if execution.error is not None:
        return f"{execution.error.name}: {execution.error.value}"
    return execution.text


async def count(engine: Engine, id: str) -> str | None:
    """Count in a variable."""
    return await run(engine.get(id), "x += 1; x")


async def look(engine: Engine, id: str) -> dict[str, Any]:
    """Return all that a client can see of a sandbox."""
    sandbox = engine.get(id)
    execs = sandbox.execs.list()
    return {
        "x": await run(sandbox, "x"),
        "file": (await sandbox.files.read("file")).decode() if await sandbox.files.exists("file") else None,
        "note": sandbox.notes.get("text"),
        "count": int(await sandbox.files.read("count")) if await sandbox.files.exists("count") else 0,
        "execs": [exec_.status for exec_ in execs],
        "names": [entry.name for entry in (await sandbox.files.list(".")).entries],
        "pid": sandbox.guest.info["pid"],
    }


async def write(engine: Engine, id: str, text: str) -> None:
    """Replace a file."""
    await engine.get(id).files.write("file", text.encode())


async def note(engine: Engine, id: str, text: str) -> None:
    """Save a note."""
    sandbox = engine.get(id)
    sandbox.notes["text"] = text
    await sandbox.save()


async def hang(engine: Engine, id: str) -> None:
    """Run code that does not end, in the context of the counter."""
    await run(engine.get(id), HANG)


async def shout(engine: Engine, id: str) -> None:
    """Write more than any pipe holds, in a command."""
    await engine.get(id).commands.run(SHOUT, ExecSpec(()), 30)


async def kill(engine: Engine, id: str) -> None:
    """Kill a sandbox."""
    await engine.kill(id)


OPERATIONS: dict[str, Any] = {
    "create": create, "count": count, "look": look, "write": write, "note": note, "hang": hang, "shout": shout, "kill": kill,
}  # fmt: skip


# ------------------------------------------------------------------------------- the same, from outside


class EngineServer:
    """An engine in a process of its own that answers lines of JSON."""

    chances: ClassVar[Chances] = {"count": 10, "write": 6, "note": 6, "hang": 1, "shout": 2, "kill": 0.6}
    patient: ClassVar[bool] = True

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last = 0
        self._over = False
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.greeting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, path: Path) -> Self:
        """Start one on a state directory."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, str(path),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "CELLFORK_PREFORK": "0"}, limit=1 << 24,
        )  # fmt: skip
        return cls(process)

    async def ask(self, op: str, *args: Any) -> Any:
        """Ask for something.  Raises :class:`Died`, ``RuntimeError`` for a refusal."""
        if self._over:
            raise Died
        self._last += 1
        future = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        self._write({"number": self._last, "op": op, "args": args})
        return await asyncio.wait_for(future, ANSWER_SECONDS)

    async def kill(self) -> None:
        """Kill it, and let everybody who waits know."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def end(self) -> None:
        """Let it end every sandbox, and itself."""
        self._write({"op": "end"})
        await asyncio.wait_for(self._process.wait(), ANSWER_SECONDS)

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - asked for
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - asked for
        while line := await self._process.stdout.readline():
            if not line.endswith(b"\n"):
                break  # it was killed while it wrote
            message = json.loads(line)
            future = self.greeting if "adopted" in message else self._waiting.pop(message["number"])
            if "error" in message:
                future.set_exception(RuntimeError(message["error"]))
            elif not future.done():
                future.set_result(message if future is self.greeting else message["value"])
        self._over = True
        for future in (*self._waiting.values(), self.greeting):
            if not future.done():
                future.set_exception(Died())
                future.exception()


class HttpServer:
    """``cellfork serve``, asked through :class:`AsyncSandbox`: over HTTP, with E2B's wire below."""

    chances: ClassVar[Chances] = {"count": 10, "write": 6, "hang": 1, "shout": 2, "kill": 0.6}
    patient: ClassVar[bool] = False
    KEY = "e2b_" + 40 * "c"
    SETTINGS = '[templates.default]\npreload = []\nlimits = { memory = "128M", pids = 40, disk = "16M", inodes = 2000 }\n'

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._over = False
        self._transport: HttpTransport | None = None
        self._sandboxes: dict[str, AsyncSandbox] = {}
        self._hanging: list[asyncio.Task[None]] = []
        self.greeting: asyncio.Future[dict[str, Any]] = asyncio.ensure_future(self._greet())

    @classmethod
    async def start(cls, path: Path) -> Self:
        """Start one on a state directory."""
        (path.parent / "cellfork.toml").write_text(cls.SETTINGS)
        serving = ("serve", "--port", "0", "--json", "--no-warm", "--state", str(path))
        log = path.parent / "log"
        with log.open("w") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cellfork.cli.main", *serving, "--log-level", "warning", "--log-format", "json",
                stdout=asyncio.subprocess.PIPE, stderr=errors, cwd=path.parent,
                env={**os.environ, "CELLFORK_PREFORK": "0", "CELLFORK_API_KEY": cls.KEY},
            )  # fmt: skip
        return cls(process, log)

    async def ask(self, op: str, *args: Any) -> Any:
        """Ask for something.  Raises :class:`Died`, ``RuntimeError`` for a refusal."""
        await self.greeting
        operation: Callable[..., Awaitable[Any]] = getattr(self, f"_{op}")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await operation(*args)
        except CellforkError as error:
            if self._over:
                raise Died from error
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    async def kill(self) -> None:
        """Kill it, and let everybody who waits know."""
        self._over = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await asyncio.gather(self.greeting, return_exceptions=True)
        if self._transport is not None:
            await asyncio.to_thread(self._transport.close)
        await asyncio.gather(*self._hanging)

    async def end(self) -> None:
        """Let it end every sandbox, and itself."""
        for id in (await self.greeting)["adopted"]:
            await self.ask("kill", id)
        self._process.terminate()
        await asyncio.wait_for(self._process.wait(), ANSWER_SECONDS)

    async def _greet(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - asked for
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise Died
        self._transport = HttpTransport(json.loads(line)["url"], self.KEY)
        try:
            known = await AsyncSandbox.list(transport=self._transport)
        except CellforkError as error:
            raise Died from error
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        ended = {line["sandbox"]: line["reason"] for line in lines if {"sandbox", "reason"} <= line.keys()}
        return {"adopted": [each.sandbox_id for each in known], "ended": ended}

    async def _sandbox(self, id: str) -> AsyncSandbox:
        if id not in self._sandboxes:
            self._sandboxes[id] = await AsyncSandbox.connect(id, transport=self._transport)
        return self._sandboxes[id]

    async def _create(self, name: str) -> str:
        sandbox = await AsyncSandbox.create(timeout=LIFE, metadata={"name": name}, transport=self._transport)
        await sandbox.run_code("x = 0")
        await sandbox.commands.run(COUNTER, background=True, timeout=None)
        return sandbox.sandbox_id

    async def _count(self, id: str) -> str | None:
        return await self._value(await self._sandbox(id), "x += 1; x")

    async def _value(self, sandbox: AsyncSandbox, code: str) -> str | None:
        execution = await sandbox.run_code(code, timeout=30)
        if execution.error is not None:
            return f"{execution.error.name}: {execution.error.value}"
        return execution.text

    async def _look(self, id: str) -> dict[str, Any]:
        sandbox = await self._sandbox(id)
        files = sandbox.files
        return {
            "x": await self._value(sandbox, "x"),
            "file": await files.read("file") if await files.exists("file") else None,
            "note": None,
            "count": int(await files.read("count")) if await files.exists("count") else 0,
            "execs": [exec_.status for exec_ in await sandbox.execs.list()],
            "names": [entry.name for entry in await files.list(".")],
            "pid": None,
        }

    async def _write(self, id: str, text: str) -> None:
        await (await self._sandbox(id)).files.write("file", text)

    async def _hang(self, id: str) -> None:
        """In a context of its own: how long an interrupt may take cannot be set here, and a counter must not be ended by it.

        Nobody waits for it, and nobody who gives up waiting ends it.
        """
        sandbox = await self._sandbox(id)
        # One for all of them, told by its directory: by its place it may be the counter's, which is made with the first count.
        contexts = await sandbox.list_code_contexts()
        context = next((each for each in contexts if each.cwd == HANGING), None)
        context = context or await sandbox.create_code_context(cwd=HANGING)
        self._hanging.append(
            asyncio.create_task(self._until_the_end(sandbox.run_code(HANG, context=context)))
        )

    async def _until_the_end(self, work: Awaitable[object]) -> None:
        with contextlib.suppress(CellforkError):
            await work

    async def _shout(self, id: str) -> None:
        await (await self._sandbox(id)).commands.run(SHOUT, timeout=30)

    async def _kill(self, id: str) -> None:
        await AsyncSandbox.kill(id, transport=self._transport)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
