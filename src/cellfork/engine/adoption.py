"""From a record back to a sandbox: what an engine keeps of each, and what the next engine makes of it.

A record holds what was decided outside: the spec, the contexts, the deadline, the dialect's notes, what the runtime needs to find
the sandbox again.  What lives inside is asked of init when it is found (:mod:`cellfork.runtimes.kept`): that is never older
than the sandbox itself, and no command and no execution costs a write to disk.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from cellfork.engine.execs import Exec
from cellfork.engine.executions import RunningExecution
from cellfork.engine.pausing import AbsentGuest
from cellfork.engine.recorder import Recorder
from cellfork.model.errors import CellforkError, InternalError
from cellfork.model.execution import Execution
from cellfork.model.specs import ContextSpec, ExecSpec, ExecuteRequest, SandboxSpec
from cellfork.runtimes.kept import Kept, KeptKernel, KeptProcess

if TYPE_CHECKING:
    from cellfork.engine.contexts import Context
    from cellfork.engine.engine import Engine
    from cellfork.engine.sandbox import Sandbox

KIND = "sandbox"
"""The kind of their records."""
VERSION = 1
REQUESTS = 1 << 40
"""How many requests each life of a sandbox, from one host to the next, can number: so no late answer is taken for another's."""
EXECUTIONS = 1_000_000_000
"""The same for its executions."""
AT_ONCE = 16
"""Sandboxes that are adopted side by side."""
_ID = re.compile(r"[a-z0-9]{1,64}")

Record = Mapping[str, Any]


@dataclass(slots=True)
class Adoption:
    """What came of it: the sandboxes that go on, and why the others do not, by id."""

    adopted: list["Sandbox"] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Past:
    """What a sandbox was before: its record, what was found in it, how many hosts it has had."""

    record: Record
    kept: Kept
    life: int

    def restore(self, sandbox: "Sandbox") -> None:
        """Make a new sandbox the old one, before anything is delivered to it."""
        record, kept = self.record, self.kept
        sandbox.life = self.life
        sandbox.notes = dict(record["notes"])
        sandbox.started_at = record["started_at"]
        sandbox.number_from(self.life * REQUESTS, kept.highest_channel, self.life * EXECUTIONS)
        kernels = {kernel.label: kernel for kernel in kept.kernels}
        for known in record["contexts"]:
            spec = msgspec.convert(known["spec"], ContextSpec)
            context = sandbox.contexts.restore(known["id"], spec, default=known["default"])
            kernel = kernels.pop(known["id"], None)
            if kernel is not None:
                _restore_kernel(sandbox, context, kernel)
        for (
            kernel
        ) in kernels.values():  # of a context that was removed, or never recorded: nobody can ask for it
            sandbox.requests.tell("context.stop", context=kernel.channel)
        sandbox.execs.number_from(kept.highest_process)
        for process in kept.processes:
            _restore_exec(sandbox, process)


def record_of(sandbox: "Sandbox") -> dict[str, Any] | None:
    """Return what has to be known of a sandbox to adopt it; ``None`` where it ends with its engine."""
    guest = sandbox.guest.record
    if guest is None and sandbox.pausing.archive is None:
        return None
    spec, network = sandbox.spec, sandbox.guest.network
    return {
        "version": VERSION,
        "spec": msgspec.to_builtins(spec),
        "policy": None if network is None else msgspec.to_builtins(network.policy),
        "notes": dict(sandbox.notes),
        "started_at": sandbox.started_at,
        "deadline": sandbox.deadline,
        "state": sandbox.state,
        "archive": sandbox.pausing.archive,
        "life": sandbox.life,
        "guest": None if guest is None else dict(guest),
        "contexts": [
            {
                "id": context.id,
                "spec": msgspec.to_builtins(context.spec),
                "default": sandbox.contexts.is_default(context),
            }
            for context in sandbox.contexts.list()
        ],
    }


async def adopt(engine: "Engine") -> Adoption:
    """Take over every recorded sandbox that can be, end the others, then whatever is left of the former engine."""
    outcome = Adoption()
    records = await engine.records.load(KIND)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(id: str, record: Record) -> None:
        async with turns:
            try:
                outcome.adopted.append(await _adopt_one(engine, id, record))
            except (CellforkError, OSError, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
                # Whatever is wrong with one: it must not keep the others from going on.  What lives of it is swept.
                outcome.ended[id] = f"{type(error).__name__}: {error}"
                await engine.records.delete(KIND, id)

    await asyncio.gather(*(one(id, record) for id, record in records.items()))
    for runtime in engine.runtimes.values():
        await runtime.sweep()
    outcome.adopted.sort(key=lambda sandbox: sandbox.started_at)
    return outcome


async def _adopt_one(engine: "Engine", id: str, record: Record) -> "Sandbox":
    if record["version"] != VERSION:
        raise InternalError(f"a record of version {record['version']}")
    spec = msgspec.convert(record["spec"], SandboxSpec)
    life = int(record["life"]) + 1
    if record["archive"] is not None:
        return _restore_paused(engine, id, spec, Past(record, Kept(), life))
    runtime = engine.runtime_of(spec)
    guest, kept = await runtime.adopt(spec, record["guest"], life * REQUESTS)
    try:
        sandbox = engine.take(id, spec, guest, Past(record, kept, life))
    except BaseException:
        await guest.kill("owner", "it could not be adopted")
        raise
    try:
        if guest.network is not None:
            guest.network.set_policy(msgspec.convert(record["policy"], type(spec.network)))
        await sandbox.save()
        if record["state"] == "paused":
            await sandbox.pause()
        else:
            await guest.thaw()  # it may have been held still for a copy
    except BaseException:
        await sandbox.kill("owner", "it could not be adopted")
        raise
    return sandbox


def _restore_paused(engine: "Engine", id: str, spec: SandboxSpec, past: Past) -> "Sandbox":
    """Go on with a sandbox that is paused without its memory: there are its files, and no process."""
    archive = str(past.record["archive"])
    engine.archives.size(archive)  # raises where they are gone
    sandbox = engine.take(id, spec, AbsentGuest(spec.isolation), past)
    sandbox.pausing.restore(archive)
    return sandbox


def _restore_kernel(sandbox: "Sandbox", context: "Context", kernel: KeptKernel) -> None:
    """Give a context the kernel that it had; what it runs is stopped: whoever waited for it is gone."""
    if kernel.over:
        sandbox.requests.tell("context.stop", context=kernel.channel)
        return
    running = None
    if kernel.execution is not None:
        execution = Execution(isolation=sandbox.isolation, id=kernel.execution)
        recorder = Recorder(execution, sandbox.limits, sandbox.settings.clock, None)
        request = ExecuteRequest("", timeout=None)
        running = RunningExecution(context, recorder, request, code=b"", envs={}, timeout=None)
    context.restore(kernel.channel, kernel.next_count, running)
    if running is not None:
        sandbox.keep(running)
        running.begin(kernel.next_count or 1)
        running.interrupt()


def _restore_exec(sandbox: "Sandbox", process: KeptProcess) -> None:
    """Know a command again; one that cannot be told from what init says runs on, and nobody can ask for it."""
    try:
        label = json.loads(process.request["label"])
        id, tag, deadline = label["id"], label.get("tag"), label.get("deadline")
        pty = process.request.get("pty")
        names = {"argv", "cwd", "envs", "user", "stdin"} & process.request.keys()
        fields: dict[str, Any] = {name: process.request[name] for name in names}
        size = None if pty is None else {"rows": pty[0], "cols": pty[1]}
        spec = msgspec.convert({**fields, "pty": size, "tag": tag}, ExecSpec)
        seconds = None if deadline is None else float(deadline) - sandbox.settings.clock.time_ns() / 1e9
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, msgspec.ValidationError):
        return
    if not isinstance(id, str) or not _ID.fullmatch(id):
        return
    deadly = label.get("deadly") is True
    exec_ = Exec(sandbox, process.number, spec, seconds, sandbox.execs.ended, deadly=deadly)
    sandbox.execs.restore(exec_, id, process.pid)
    if process.code is not None:
        exec_.on_exit(process.code, process.signal)
