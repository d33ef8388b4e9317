"""One table of cases for every generation of E2B's Python packages, in both of their flavours.

It runs in an environment that holds E2B's packages and nothing of cellfork.  A case is written once, as a
coroutine; :class:`Wrapped` makes the methods of the synchronous SDK awaitable.  What a generation does not
have is skipped by name, and said.  Every public method that a case reaches is noted, and those that none
reached fail the run: that is how the table stays whole when E2B's packages grow.
"""

import asyncio
import importlib
import importlib.metadata
import inspect
import os
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from resolving import resolve_locally

Flavour = Literal["sync", "async"]
Mode = Literal["url", "domain", "debug"]
"""How the client finds the server: by two URLs, by a wildcard domain over TLS, or by fixed ports of loopback."""

CASE_TIMEOUT = 90.0
"""Seconds after which a case has failed."""

HANDLES = {
    "Sandbox": "e2b_code_interpreter",
    "Commands": "e2b.sandbox_{0}.commands.command",
    "CommandHandle": "e2b.sandbox_{0}.commands.command_handle",
    "Pty": "e2b.sandbox_{0}.commands.pty",
    "Filesystem": "e2b.sandbox_{0}.filesystem.filesystem",
    "CommandInputHandle": "e2b.sandbox_{0}.commands.command_input_handle",
    "WatchHandle": "e2b.sandbox_{0}.filesystem.watch_handle",
    "Git": "e2b.sandbox_{0}.git",
    "SandboxPaginator": "e2b.sandbox_{0}.paginator",
    "SnapshotPaginator": "e2b.sandbox_{0}.paginator",
}
"""The classes whose public methods are the SDK, and where they are defined."""

AT_ONCE = {"get_host", "download_url", "upload_url", "get_mcp_url"}
"""Methods that answer at once in both flavours."""

NOT_CALLED = {
    "Sandbox.get_mcp_token": "needs the gateway of the mcp-gateway template, which cellfork does not have",
    "Git.dangerously_authenticate": "stores a credential for a host that no test can reach",
}
"""Public methods that no case calls, and why."""


class Skipped(Exception):
    """A case does not apply to this generation, flavour or mode; the message tells why."""


@dataclass(frozen=True)
class Case:
    """A rule of the SDK, as its users see it, and the coroutine that tries it."""

    name: str
    rule: str
    run: Callable[["Client"], Awaitable[None]]
    needs: tuple[str, ...]
    modes: tuple[Mode, ...]
    flavours: tuple[Flavour, ...]


CASES: list[Case] = []


def case(
    *needs: str,
    modes: tuple[Mode, ...] = ("url", "domain"),
    flavours: tuple[Flavour, ...] = ("sync", "async"),
) -> Callable[[Callable[["Client"], Awaitable[None]]], Callable[["Client"], Awaitable[None]]]:
    """Add a case to the table.

    ``needs`` names methods (``Sandbox.pause``) and arguments (``Filesystem.write:metadata``) without which it
    does not apply.  With ``modes`` that hold ``"debug"`` it has to be content with one sandbox for all cases.
    """

    def add(run: Callable[["Client"], Awaitable[None]]) -> Callable[["Client"], Awaitable[None]]:
        assert run.__doc__, f"{run.__name__} states no rule"
        module = run.__module__.rpartition(".")[2]
        rule = " ".join(run.__doc__.split())
        CASES.append(Case(f"{module}.{run.__name__}", rule, run, needs, modes, flavours))
        return run

    return add


ALL: tuple[Mode, ...] = ("url", "domain", "debug")
"""Modes of a case that a sandbox in use is good enough for."""


class Wrapped:
    """A handle of the SDK whose methods are awaitable in both flavours, and whose use is noted."""

    def __init__(self, thing: Any, kind: str, client: "Client") -> None:
        self.raw = thing
        self._kind = kind
        self._client = client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.raw, name)
        self._client.used.add(f"{self._kind}.{name}")
        if not callable(value) or isinstance(value, type):
            return self._client.wrap(value)
        if name in AT_ONCE:
            return value
        return lambda *args, **options: self._client.call(value, *args, **options)


@dataclass
class Client:
    """One flavour of one generation of the SDK, as the cases use it."""

    flavour: Flavour
    mode: Mode
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.e2b = importlib.import_module("e2b")
        self.sdk = importlib.import_module("e2b_code_interpreter")
        self.versions = {name: importlib.metadata.version(name) for name in ("e2b", "e2b-code-interpreter")}
        self.classes = dict(self._classes())
        self.Sandbox = Wrapped(self.classes["Sandbox"], "Sandbox", self)
        self._made: list[Any] = []

    def _classes(self) -> Iterable[tuple[str, type]]:
        for name, where in HANDLES.items():
            try:
                module = importlib.import_module(where.format(self.flavour))
            except ModuleNotFoundError:
                continue
            own = f"Async{name}" if self.flavour == "async" else name
            found = getattr(module, own, None) or getattr(module, name, None)
            if found is not None:
                yield name, found

    # ------------------------------------------------------------------------------- what there is

    def has(self, need: str) -> bool:
        """Tell whether this generation has a method, or an argument of one; ``"v2"``: is not the first one."""
        if need == "v2":
            return not self.versions["e2b"].startswith("1.")
        method, _, argument = need.partition(":")
        kind, _, name = method.partition(".")
        found = getattr(self.classes.get(kind), name, None)
        if found is None:
            return False
        return not argument or argument in inspect.signature(found).parameters

    def public(self) -> set[str]:
        """Return every public method of the SDK, as ``Class.method``."""
        return {
            f"{kind}.{name}"
            for kind, cls in self.classes.items()
            for name in dir(cls)
            if not name.startswith("_") and callable(getattr(cls, name))
        }

    def why_not(self, case: Case) -> str | None:
        """Return why a case does not apply, or ``None``."""
        if self.flavour not in case.flavours:
            return f"the {self.flavour} SDK has no such thing"
        if self.mode not in case.modes:
            return "needs a sandbox of its own" if self.mode == "debug" else f"not in mode {self.mode}"
        missing = [need for need in case.needs if not self.has(need)]
        return f"e2b {self.versions['e2b']} has no {', '.join(missing)}" if missing else None

    def require(self, need: str) -> None:
        """Skip the rest of a case where this generation lacks something."""
        if not self.has(need):
            raise Skipped(f"e2b {self.versions['e2b']} has no {need}")

    # ------------------------------------------------------------------------------------ calling

    def wrap(self, value: Any) -> Any:
        """Wrap handles of the SDK, also inside a list; return anything else as it is."""
        if isinstance(value, list):
            return [self.wrap(each) for each in value]
        for kind, cls in self.classes.items():
            if isinstance(value, cls):
                if kind == "Sandbox":
                    self._made.append(value)
                return Wrapped(value, kind, self)
        return value

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call into the SDK, in a thread where it would block."""
        if self.flavour == "sync":
            return self.wrap(await asyncio.to_thread(function, *args, **options))
        result = function(*args, **options)
        return self.wrap(await result if inspect.isawaitable(result) else result)

    async def create(self, **options: Any) -> Any:
        """Make a sandbox; it is killed when the case ends."""
        options.setdefault("timeout", 120)
        if self.mode == "debug":
            options = {}
        if self.has("Sandbox.create"):  # the synchronous SDK of the first generation has a constructor
            return await self.Sandbox.create(**options)
        return await self.call(self.classes["Sandbox"], **options)

    async def read_stream(self, stream: Any) -> bytes:
        """Read a stream of bytes to its end."""
        if self.flavour == "async":
            return b"".join([bytes(chunk) async for chunk in stream])
        return await asyncio.to_thread(lambda: b"".join(bytes(chunk) for chunk in stream))

    @asynccontextmanager
    async def watching(
        self, sandbox: Any, path: str, **options: Any
    ) -> AsyncIterator[Callable[[], Awaitable[list[Any]]]]:
        """Watch a directory; yields a coroutine function that returns all events so far."""
        events: list[Any] = []
        if self.flavour == "async":
            handle = await sandbox.files.watch_dir(path, on_event=events.append, **options)
        else:
            handle = await sandbox.files.watch_dir(path, **options)

        async def seen() -> list[Any]:
            if self.flavour == "sync":
                events.extend(await handle.get_new_events())
            return events

        try:
            yield seen
        finally:
            await handle.stop()

    async def clean_up(self) -> None:
        """Kill what the case left."""
        made, self._made = self._made, []
        if self.mode == "debug":
            return
        for sandbox in made:
            if not isinstance(sandbox, type):
                try:
                    await self.call(sandbox.kill)
                except Exception as error:
                    print(f"# could not kill {sandbox.sandbox_id}: {error}")


@dataclass
class Outcome:
    """How a case ended."""

    case: str
    rule: str
    outcome: Literal["passed", "failed", "skipped"]
    seconds: float
    detail: str = ""


async def eventually(look: Callable[[], Awaitable[Any]], what: str, timeout: float = 10.0) -> Any:
    """Look until what is seen is true; returns it."""
    deadline = time.monotonic() + timeout
    while True:
        seen = await look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def raises(*names: str, containing: str = "") -> AsyncIterator[list[BaseException]]:
    """Expect an exception whose class, or a base of it, has one of these names."""
    caught: list[BaseException] = []
    try:
        yield caught
    except Exception as error:
        caught.append(error)
    if not caught:
        raise AssertionError(f"nothing was raised; expected {' or '.join(names)}")
    bases = {base.__name__ for base in type(caught[0]).__mro__}
    if not bases & set(names):
        raise AssertionError(f"{type(caught[0]).__name__} instead of {names}") from caught[0]
    if containing not in str(caught[0]):
        raise AssertionError(f"{containing!r} is not in the message") from caught[0]


def told(error: BaseException | None) -> str:
    """Tell an error: what it is, and the lines of cases that led to it."""
    chain = [error] if error else []
    while chain and chain[-1].__context__:
        chain.append(chain[-1].__context__)
    lines = [f"{type(each).__name__}: {each}" for each in chain[:2]]
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    lines += [
        f"  {os.path.basename(frame.filename)}:{frame.lineno}: {frame.line}"
        for frame in frames
        if f"{os.sep}cases{os.sep}" in frame.filename
    ]
    return "\n".join(lines)


async def run_case(client: Client, case: Case) -> Outcome:
    """Run one case to its end, whatever that is."""
    reason = client.why_not(case)
    if reason:
        return Outcome(case.name, case.rule, "skipped", 0.0, reason)
    started = time.monotonic()
    outcome, detail = "passed", ""
    own = Client(client.flavour, client.mode, client.used)
    try:
        await asyncio.wait_for(case.run(own), CASE_TIMEOUT)
    except Skipped as skipped:
        outcome, detail = "skipped", str(skipped)
    except BaseException:
        outcome, detail = "failed", told(sys.exception())
    await own.clean_up()
    return Outcome(case.name, case.rule, outcome, round(time.monotonic() - started, 3), detail)  # type: ignore[arg-type]


def untouched(client: Client) -> Outcome:
    """Report the public methods that no case called."""
    rule = "Every public method of the SDK is called by a case."
    missing = sorted(client.public() - client.used - set(NOT_CALLED))
    return Outcome("every_method", rule, "failed" if missing else "passed", 0.0, ", ".join(missing))


async def run(client: Client, cases: list[Case], jobs: int) -> list[Outcome]:
    """Run cases, some at a time; returns their outcomes in the order of the table."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
    if client.mode == "domain":
        resolve_locally(os.environ["E2B_DOMAIN"])
    places = asyncio.Semaphore(1 if client.mode == "debug" else jobs)

    async def place(each: Case) -> Outcome:
        async with places:
            return await run_case(client, each)

    return list(await asyncio.gather(*(place(each) for each in cases)))
