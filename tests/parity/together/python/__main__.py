"""Every public method of Together's own package, against a server; run in an environment that has the package.

Usage: ``python tests/parity/together/python``, with ``TOGETHER_BASE_URL``, ``TOGETHER_API_KEY`` and ``TOGETHER_SNAPSHOT_ID``.
Prints a line for each case, and exits with 1 where one failed or a public method was never called.
"""

import asyncio
import base64
import importlib.metadata
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from together_sandbox import TogetherSandbox
from together_sandbox._sandbox import Directories, Execs, Files, Ports, Sandbox
from together_sandbox._sandboxes import SandboxesNamespace
from together_sandbox._snapshots import (
    CreateContextSnapshotParams,
    CreateImageSnapshotParams,
    SnapshotsNamespace,
)
from together_sandbox.errors import HttpError

SNAPSHOT = os.environ["TOGETHER_SNAPSHOT_ID"]
CASE_SECONDS = 60.0
CLASSES = (Directories, Execs, Files, Ports, Sandbox, SandboxesNamespace, SnapshotsNamespace)
Case = Callable[[TogetherSandbox], Awaitable[None]]
CASES: list[Case] = []
called: set[str] = set()


def case(function: Case) -> Case:
    """Add a case; its docstring is the rule."""
    CASES.append(function)
    return function


def note_calls() -> None:
    """Let every public method note that it was called."""
    for owner in CLASSES:
        for name, method in vars(owner).items():
            if name.startswith("_") or not inspect.isfunction(
                inspect.unwrap(getattr(method, "__func__", method))
            ):
                continue
            setattr(owner, name, noted(f"{owner.__name__}.{name}", method))


def noted(name: str, method: Any) -> Any:
    """Return a method that notes its calls."""
    plain = method.__func__ if isinstance(method, classmethod) else method

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        called.add(name)
        return plain(*args, **kwargs)

    return classmethod(wrapper) if isinstance(method, classmethod) else wrapper


@asynccontextmanager
async def sandbox_of(sdk: TogetherSandbox, **options: Any) -> AsyncIterator[Sandbox]:
    """A sandbox that is terminated at the end."""
    sandbox = await sdk.sandboxes.create(snapshot_id=SNAPSHOT, **options)
    try:
        yield sandbox
    finally:
        if (await sdk.sandboxes.get(sandbox.id)).status == "running":
            await sandbox.terminate()
        await sandbox.close()


async def first(stream: AsyncIterator[Any], wanted: Callable[[Any], bool] = bool) -> Any:
    """Return the first event of a stream that is wanted."""
    async with asyncio.timeout(10):
        async for event in stream:
            if wanted(event):
                return event
    raise AssertionError("the stream ended")


async def refused(work: Awaitable[Any], status: int) -> HttpError:
    """Return the refusal of a request, which has this status."""
    try:
        await work
    except HttpError as error:
        if error.status != status:
            raise AssertionError(f"{error.status} instead of {status}") from error
        return error
    raise AssertionError("nothing was refused")


# ------------------------------------------------------------------------------------------------- life


@case
async def create_with_every_option(sdk: TogetherSandbox) -> None:
    """What is asked for is told back, by create, get and connect alike."""
    options = {"cpu": 0.5, "memory_bytes": 700_000_000, "ttl": 120, "tags": {"a": "b"}}
    async with sandbox_of(sdk, **options, termination_policy={"snapshot": {"aliases": ["x"]}}) as sandbox:
        info = await sdk.sandboxes.get(sandbox.id)
        assert (info.cpu, info.memory_bytes, info.ttl) == (0.5, 700_000_000, 120)
        assert info.tags.additional_properties == {"a": "b"}
        assert info.status == "running"
        if hasattr(sdk.sandboxes, "connect"):
            again = await sdk.sandboxes.connect(sandbox.id)
            assert (await again.execs.exec("echo", ["there"]))["output"] == "there\n"
            await again.close()
        await sandbox.terminate(snapshot=None)


@case
async def create_by_the_class(_sdk: TogetherSandbox) -> None:
    """``Sandbox.create`` and the context manager work; leaving it does not end the sandbox."""
    sandbox = await Sandbox.create(snapshot_id=SNAPSHOT)
    async with sandbox:
        assert sandbox.id == str(sandbox.vm_info.id)
    await sandbox.terminate()


@case
async def pages(sdk: TogetherSandbox) -> None:
    """Pages are walked to the end without duplicates; filters hold."""
    tags = {"run": os.urandom(8).hex()}
    async with sandbox_of(sdk, tags=tags) as one, sandbox_of(sdk, tags=tags) as two:
        found = [str(item.id) async for item in await sdk.sandboxes.list(limit=1, tags=tags)]
        assert sorted(found) == sorted([one.id, two.id])
        running = await sdk.sandboxes.list(statuses=["running"], tags=tags)
        assert {one.id, two.id} <= {str(item.id) for item in running.data}


@case
async def terminate_from_outside(sdk: TogetherSandbox) -> None:
    """``sandboxes.terminate`` ends a sandbox; ending it twice is no error; its agent is gone."""
    async with sandbox_of(sdk) as sandbox:
        await sdk.sandboxes.terminate(sandbox.id)
        await sdk.sandboxes.terminate(sandbox.id)
        await refused(sandbox.execs.list(), 404)
    await refused(sdk.sandboxes.get("00000000-0000-0000-0000-00000000dead"), 404)


@case
async def snapshots(sdk: TogetherSandbox) -> None:
    """Files are kept at the end, by alias; sandboxes are created from them; retired they are usable no more."""
    async with sandbox_of(sdk) as sandbox:
        await sandbox.files.create("/kept.txt", "kept")
        await sandbox.terminate(snapshot={"aliases": ["parity"]})
    snapshot = await sdk.snapshots.get_by_alias("parity")
    assert str((await sdk.snapshots.get_by_id(str(snapshot.id))).id) == str(snapshot.id)
    await sdk.snapshots.alias(str(snapshot.id), "parity-two")
    assert str(snapshot.id) in [str(item.id) async for item in await sdk.snapshots.list(limit=1)]
    copy = await sdk.sandboxes.create(snapshot_alias="parity-two")
    assert await copy.files.read("/kept.txt") == "kept"
    await copy.terminate()
    await copy.close()
    assert (await sdk.snapshots.retire_by_id(str(snapshot.id))).retired_at
    await refused(sdk.sandboxes.create(snapshot_id=str(snapshot.id)), 400)


@case
async def images(sdk: TogetherSandbox) -> None:
    """A Dockerfile and an image become snapshots; lines of the log come; a failed build raises with its output."""
    dockerfile = (
        'FROM python:3.12\nWORKDIR /app\nCOPY . .\nRUN cat name.txt > made && echo built\nCMD ["python3"]\n'
    )
    told: list[Any] = []
    with tempfile.TemporaryDirectory() as context:
        (Path(context) / "name.txt").write_text("parity")
        (Path(context) / "left.log").write_text("left out")
        (Path(context) / ".dockerignore").write_text("*.log\n")
        (Path(context) / "Dockerfile").write_text(dockerfile)
        wanted = CreateContextSnapshotParams(context=context, alias="parity-built", on_progress=told.append)
        built = await sdk.snapshots.create(wanted)
        (Path(context) / "Dockerfile").write_text("FROM python:3.12\nRUN echo why; exit 3\n")
        try:
            await sdk.snapshots.create(CreateContextSnapshotParams(context=context))
        except RuntimeError as error:
            why = str(error)
        else:
            raise AssertionError("a failed build made a snapshot")
    assert "exit code 3" in why
    assert "why" in why.splitlines()
    assert any("#3 built" in progress.output for progress in told), told
    async with await sdk.sandboxes.create(snapshot_alias="parity-built") as sandbox:
        names = {entry.name for entry in await sandbox.directories.list("/app")}
        assert names == {".dockerignore", "Dockerfile", "made", "name.txt"}
        assert await sandbox.files.read("/app/made") == "parity"
        await sandbox.terminate()
    plain = await sdk.snapshots.create(CreateImageSnapshotParams(image="python:3"))
    for id in (built.snapshot_id, plain.snapshot_id):
        assert (await sdk.snapshots.retire_by_id(id)).retired_at


@case
async def refusals(sdk: TogetherSandbox) -> None:
    """What cannot be honoured is refused in words."""
    await refused(sdk.sandboxes.create(snapshot_id="00000000-0000-0000-0000-00000000dead"), 404)
    await refused(sdk.sandboxes.create(snapshot_id=SNAPSHOT, ttl=10**8), 400)
    if "memory" in inspect.getsource(sys.modules["together_sandbox._utils"]):  # not in the first versions
        policy = {"snapshot": {"memory": True}}
        creation = sdk.sandboxes.create(snapshot_id=SNAPSHOT, termination_policy=policy)
        assert "memory" in str(await refused(creation, 400))
    wrong = TogetherSandbox(api_key="wrong", base_url=os.environ["TOGETHER_BASE_URL"])
    await refused(wrong.sandboxes.list(), 401)
    await wrong.close()


# ------------------------------------------------------------------------------------------------ execs


@case
async def exec_to_its_end(sdk: TogetherSandbox) -> None:
    """Exit code, both streams, directory, variables, arguments, terminal."""
    async with sandbox_of(sdk) as sandbox:
        execs = sandbox.execs
        assert await execs.exec("sh", ["-c", "echo 1; echo 2 >&2; exit 3"]) == {
            "exit_code": 3,
            "output": "1\n2\n",
        }
        assert (await execs.exec("pwd", [], cwd="/tmp"))["output"] == "/tmp\n"
        assert (await execs.exec("printenv", ["A"], env={"A": "it's"}))["output"] == "it's\n"
        assert (await execs.exec("echo", ["a b", "$HOME"]))["output"] == "a b $HOME\n"
        assert (await execs.exec("tty", [], pty=True))["output"].startswith("/dev/")
        assert (await execs.exec("sh", ["-c", "kill -TERM $$"]))["exit_code"] == 143


@case
async def exec_step_by_step(sdk: TogetherSandbox) -> None:
    """Create, start, type, read, list, delete."""
    async with sandbox_of(sdk) as sandbox:
        execs = sandbox.execs
        made = await execs.create("sh", ["-c", "read x; echo got $x"], autostart=False)
        assert made.status == "CREATED"
        assert (await execs.start(made.id)).status == "RUNNING"
        assert [item.id for item in await execs.list()] == [made.id]
        assert (await execs.get_output(made.id))["exit_code"] is None
        await execs.send_stdin(made.id, "hello\n")
        events = [event async for event in execs.stream_output(made.id)]
        assert events[-1]["exitCode"] == 0
        assert [
            event async for event in execs.stream_output(made.id, last_sequence=events[0]["sequence"])
        ] == events[1:]
        assert await execs.get_output(made.id) == {"exit_code": 0, "output": "got hello\n"}
        assert (await execs.get(made.id)).exit_code == 0
        await execs.delete(made.id)
        assert "Failed to sandbox.get_exec" in str(await refused(execs.get(made.id), 404))


@case
async def terminal(sdk: TogetherSandbox) -> None:
    """The size of a terminal is set, and seen inside."""
    async with sandbox_of(sdk) as sandbox:
        made = await sandbox.execs.create("sh", ["-c", "read x; stty size"], pty=True)
        await sandbox.execs.resize(made.id, cols=99, rows=22)
        await sandbox.execs.send_stdin(made.id, "\n")
        output = [event["output"] async for event in sandbox.execs.stream_output(made.id)]
        assert "22 99" in "".join(output)


@case
async def lists_as_streams(sdk: TogetherSandbox) -> None:
    """Lists of execs and of ports come at once, and again when they change."""
    async with sandbox_of(sdk) as sandbox:
        assert await first(sandbox.execs.stream_list()) == {"execs": []}
        code = "import socket, time; s = socket.create_server(('127.0.0.1', 5005)); time.sleep(60)"
        await sandbox.execs.create("python3", ["-c", code])
        event = await first(sandbox.ports.stream_list(), lambda told: bool(told["ports"]))
        assert event == {"ports": [{"port": 5005, "address": "127.0.0.1"}]}
        assert [port.port for port in await sandbox.ports.list()] == [5005]


@case
async def exec_of_a_killed_sandbox(sdk: TogetherSandbox) -> None:
    """``exec`` raises where no exit code can come: it neither hangs nor returns."""
    async with sandbox_of(sdk) as sandbox:
        running = asyncio.create_task(sandbox.execs.exec("sleep", ["60"]))
        await asyncio.sleep(0.3)
        await sdk.sandboxes.terminate(sandbox.id)
        try:
            await asyncio.wait_for(running, 10)
        except RuntimeError as error:
            if "without an exit code" not in str(error):
                raise
        else:
            raise AssertionError("exec returned")


# ------------------------------------------------------------------------------------------------ files


@case
async def files(sdk: TogetherSandbox) -> None:
    """Text, bytes and nothing come back; stat, move, copy, delete."""
    async with sandbox_of(sdk) as sandbox:
        files = sandbox.files
        for content in ("héllo ✓", ""):
            await files.create("/t.txt", content)
            assert await files.read("/t.txt") == content
        data = bytes(range(256))
        await files.create("/b.bin", data)
        assert base64.b64decode(await files.read("/b.bin")) == data
        assert (await files.stat("/b.bin")).size == 256
        await files.move("/b.bin", "/deep/er/c.bin")
        await files.copy("/deep/er/c.bin", "/d.bin")
        assert (await files.stat("/d.bin")).size == 256
        await files.delete("/d.bin")
        await refused(files.read("/d.bin"), 404)


@case
async def directories(sdk: TogetherSandbox) -> None:
    """Make, list, remove with what is inside."""
    async with sandbox_of(sdk) as sandbox:
        await sandbox.directories.create("/a/b")
        await sandbox.files.create("/a/x", "1")
        listed = {entry.name: entry.is_dir for entry in await sandbox.directories.list("/a")}
        assert listed == {"b": True, "x": False}
        await sandbox.directories.delete("/a")
        await refused(sandbox.directories.list("/a"), 404)


@case
async def watch(sdk: TogetherSandbox) -> None:
    """Connected first, then what happens."""
    async with sandbox_of(sdk) as sandbox:
        await sandbox.directories.create("/w")
        events = sandbox.files.watch("/w", recursive=True, ignore_patterns=["*.log"])
        assert (await anext(events))["type"] == "connected"
        await sandbox.files.create("/w/x.log", "1")
        await sandbox.files.create("/w/x.txt", "1")
        event = await first(events, lambda told: "/w/x.txt" in told["paths"])
        assert event["type"] in {"ADD", "CHANGE"}


# -------------------------------------------------------------------------------------------------- run


async def run() -> int:
    """Run every case; return how many failed."""
    failed = 0
    for one in CASES:
        try:
            async with TogetherSandbox() as sdk, asyncio.timeout(CASE_SECONDS):
                await one(sdk)
        except Exception:
            failed += 1
            print(f"failed  {one.__name__}: {one.__doc__}")
            traceback.print_exc(file=sys.stdout)
        else:
            print(f"passed  {one.__name__}")
    return failed


def main() -> int:
    """Run the cases, and see that they reach every public method."""
    print(f"together-sandbox {importlib.metadata.version('together-sandbox')}")
    note_calls()
    failed = asyncio.run(run())
    public = {
        f"{owner.__name__}.{name}"
        for owner in CLASSES
        for name, value in vars(owner).items()
        if not name.startswith("_") and not isinstance(value, property)
    }
    missed = sorted(public - called)
    print(f"{len(CASES) - failed} passed, {failed} failed; never called: {', '.join(missed) or 'nothing'}")
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
