"""What can be done with a sandbox through the extension: an operation by its name, with the body that it takes."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from cellfork.dialects.base import Services
from cellfork.dialects.e2b.extension import codec, schema
from cellfork.dialects.e2b.extension.handles import Handles
from cellfork.dialects.e2b.network import NOTHING, policy_of
from cellfork.dialects.e2b.notes import notes_of
from cellfork.engine.background import Background
from cellfork.engine.commands import result_of
from cellfork.engine.contexts import Context
from cellfork.engine.execs import Exec
from cellfork.engine.files import Upload
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.values import FilesystemEvent
from cellfork.engine.watches import Watch
from cellfork.model.errors import InvalidRequest, Unsupported
from cellfork.model.network import NetworkPolicy
from cellfork.model.specs import ContextSpec, ExecSpec, PtySize

POLL_SECONDS = 20.0
"""How long an operation waits for something to happen before it says that nothing has: the client asks again."""
MOST_UPLOADS = 64
UPLOAD_SECONDS = 300.0
MOST_WATCHES = 256
WATCH_SECONDS = 3600.0
MOST_DELETED = 16
"""Deleted commands whose end can still be read by who was following their output."""
HOST_FACTS = frozenset({"pid"})
"""What a guest tells about itself that is nobody's business outside the machine."""

Answer = Mapping[str, Any]


class Operation(NamedTuple):
    """The body that an operation takes, and what carries it out."""

    body: type[Struct]
    run: Callable[[Sandbox, Any], Awaitable[Answer]]


class Operations:
    """All operations on sandboxes.  Those that open something for a client keep it here."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._background = Background()
        self._deleted: deque[Exec] = deque(maxlen=MOST_DELETED)
        clock = services.engine.settings.clock
        self._uploads: Handles[Upload] = Handles(clock, "uploads", MOST_UPLOADS, UPLOAD_SECONDS, Upload.abort)
        self._watches: Handles[Watch] = Handles(clock, "watches", MOST_WATCHES, WATCH_SECONDS, self._stop)
        self.by_name: Mapping[str, Operation] = {
            "info": Operation(schema.Nothing, self._info),
            "timeout": Operation(schema.Timeout, self._timeout),
            "metrics": Operation(schema.Nothing, self._metrics),
            "languages": Operation(schema.Nothing, self._languages),
            "interrupt": Operation(schema.InContext, self._interrupt),
            "executions.interrupt": Operation(schema.Id, self._interrupt_execution),
            "executions.input": Operation(schema.Input, self._input),
            "contexts.create": Operation(schema.NewContext, self._create_context),
            "contexts.list": Operation(schema.Nothing, self._list_contexts),
            "contexts.prepare": Operation(schema.Language, self._prepare),
            "contexts.restart": Operation(schema.Id, self._restart_context),
            "contexts.remove": Operation(schema.Id, self._remove_context),
            "execs.create": Operation(schema.NewExec, self._create_exec),
            "execs.start": Operation(schema.Id, self._start_exec),
            "execs.list": Operation(schema.Nothing, self._list_execs),
            "execs.get": Operation(schema.Id, self._get_exec),
            "execs.find": Operation(schema.Pid, self._find_exec),
            "execs.delete": Operation(schema.Id, self._delete_exec),
            "execs.forget": Operation(schema.Id, self._forget_exec),
            "execs.output": Operation(schema.Output, self._output),
            "execs.result": Operation(schema.Outcome, self._result),
            "execs.stdin": Operation(schema.Stdin, self._stdin),
            "execs.resize": Operation(schema.Resize, self._resize),
            "execs.kill": Operation(schema.Id, self._kill_exec),
            "execs.end": Operation(schema.Id, self._end_exec),
            "files.list": Operation(schema.ListDirectory, self._list_files),
            "files.stat": Operation(schema.Path, self._stat),
            "files.exists": Operation(schema.Path, self._exists),
            "files.move": Operation(schema.Move, self._move),
            "files.remove": Operation(schema.Path, self._remove),
            "files.make_dir": Operation(schema.Path, self._make_dir),
            "uploads.open": Operation(schema.OpenUpload, self._open_upload),
            "uploads.commit": Operation(schema.Handle, self._commit),
            "uploads.abort": Operation(schema.Handle, self._abort),
            "watches.start": Operation(schema.StartWatch, self._start_watch),
            "watches.take": Operation(schema.Handle, self._take),
            "watches.wait": Operation(schema.Handle, self._wait),
            "watches.stop": Operation(schema.Handle, self._stop_watch),
            "network.get": Operation(schema.Nothing, self._network),
            "network.set": Operation(schema.Policy, self._set_network),
        }
        """Name → operation."""

    def upload(self, sandbox: Sandbox, handle: int) -> Upload:
        """Return an upload that is open.  Raises :class:`NotFound`."""
        return self._uploads.get(sandbox, handle)

    async def aclose(self) -> None:
        """Wait for what was begun and nobody waits for."""
        await self._background.join()

    # ------------------------------------------------------------------------------------- the sandbox

    async def _info(self, sandbox: Sandbox, body: schema.Nothing) -> Answer:
        return info_of(sandbox)

    async def _timeout(self, sandbox: Sandbox, body: schema.Timeout) -> Answer:
        sandbox.set_timeout(checked_timeout(self._services, body.seconds))
        return {"end_at": sandbox.deadline}

    async def _metrics(self, sandbox: Sandbox, body: schema.Nothing) -> Answer:
        sandbox.check_running()
        usage, limits = sandbox.usage(), sandbox.limits
        return {
            "timestamp": sandbox.settings.clock.time_ns() / 1e9,
            "cpu_count": limits.cpu,
            "cpu_time": usage.cpu_time,
            "mem_used": usage.memory,
            "mem_peak": usage.peak_memory,
            "mem_total": limits.memory_bytes or None,
            "processes": usage.pids,
        }

    async def _languages(self, sandbox: Sandbox, body: schema.Nothing) -> Answer:
        return {"languages": await sandbox.languages()}

    # ------------------------------------------------------------------------------------------- code

    async def _interrupt(self, sandbox: Sandbox, body: schema.InContext) -> Answer:
        sandbox.check_running()
        contexts = sandbox.contexts
        running = (contexts.default() if body.context is None else contexts.get(body.context)).interrupt()
        if running is not None:
            await running.wait()
        return {"ran": running is not None}

    async def _interrupt_execution(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        sandbox.execution(body.id).interrupt()
        return {}

    async def _input(self, sandbox: Sandbox, body: schema.Input) -> Answer:
        running = sandbox.execution(body.id)
        if not running.ended:  # an answer that comes too late is dropped
            running.provide_input(body.text)
        return {}

    async def _create_context(self, sandbox: Sandbox, body: schema.NewContext) -> Answer:
        sandbox.check_running()
        return _context(await sandbox.contexts.create(ContextSpec(body.language, body.cwd, body.envs)))

    async def _list_contexts(self, sandbox: Sandbox, body: schema.Nothing) -> Answer:
        return {"contexts": [_context(context) for context in sandbox.contexts.list()]}

    async def _prepare(self, sandbox: Sandbox, body: schema.Language) -> Answer:
        sandbox.check_running()
        await sandbox.contexts.prepare(body.language)
        return {}

    async def _restart_context(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        await sandbox.contexts.restart(body.id)
        return {}

    async def _remove_context(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        sandbox.contexts.remove(body.id)
        return {}

    # --------------------------------------------------------------------------------------- commands

    async def _create_exec(self, sandbox: Sandbox, body: schema.NewExec) -> Answer:
        sandbox.check_running()
        size = None if body.pty is None else PtySize(body.pty.rows, body.pty.cols)
        spec = ExecSpec(tuple(body.argv or ()), body.cwd, body.envs, body.user, body.stdin, size)
        if body.argv is not None:
            exec_ = await sandbox.execs.create(spec, autostart=body.autostart, timeout=body.timeout)
        elif body.command is not None:
            exec_ = await sandbox.commands.start(body.command, spec, body.timeout)
        elif size is not None:
            exec_ = await sandbox.commands.start_terminal(spec, size, body.timeout)
        else:
            raise InvalidRequest("say what to run: argv, command, or a terminal (pty)")
        return _exec(exec_)

    async def _start_exec(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        exec_ = sandbox.execs.get(body.id)
        await exec_.start()
        return _exec(exec_)

    async def _list_execs(self, sandbox: Sandbox, body: schema.Nothing) -> Answer:
        return {"execs": [_exec(exec_) for exec_ in sandbox.execs.list()]}

    async def _get_exec(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        return _exec(sandbox.execs.get(body.id))

    async def _find_exec(self, sandbox: Sandbox, body: schema.Pid) -> Answer:
        return _exec(sandbox.execs.by_pid(body.pid))

    async def _delete_exec(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        exec_ = sandbox.execs.get(body.id)
        await sandbox.execs.delete(body.id)
        self._deleted.append(exec_)
        return {}

    async def _forget_exec(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        sandbox.execs.forget(sandbox.execs.get(body.id))
        return {}

    async def _output(self, sandbox: Sandbox, body: schema.Output) -> Answer:
        deleted = next((exec_ for exec_ in self._deleted if exec_.id == body.id), None)
        exec_ = deleted or sandbox.execs.get(body.id)
        if body.wait:
            await _within(exec_.log.batch(body.after), None)
        items = exec_.log.since(body.after)  # read at the moment at which the state is told
        return {"items": [codec.output_of(item) for item in items], "exec": _exec(exec_)}

    async def _result(self, sandbox: Sandbox, body: schema.Outcome) -> Answer:
        exec_ = sandbox.execs.get(body.id)
        await _within(exec_.wait(), None)
        if not exec_.ended:
            return {"exec": _exec(exec_)}
        if body.forget:
            sandbox.execs.forget(exec_)
        result = result_of(exec_)
        told = {"stdout": result.stdout, "stderr": result.stderr, "exit_code": result.exit_code}
        return {"exec": _exec(exec_), "result": {**told, "error": result.error}}

    async def _stdin(self, sandbox: Sandbox, body: schema.Stdin) -> Answer:
        await sandbox.execs.get(body.id).send_stdin(body.data, eof=body.eof)
        return {}

    async def _resize(self, sandbox: Sandbox, body: schema.Resize) -> Answer:
        await sandbox.execs.get(body.id).resize(PtySize(body.rows, body.cols))
        return {}

    async def _kill_exec(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        sandbox.execs.get(body.id).kill()
        return {}

    async def _end_exec(self, sandbox: Sandbox, body: schema.Id) -> Answer:
        exec_ = sandbox.execs.get(body.id)
        killed = await exec_.end()
        return {"killed": killed, "exec": _exec(exec_)}

    # ------------------------------------------------------------------------------------------ files

    async def _list_files(self, sandbox: Sandbox, body: schema.ListDirectory) -> Answer:
        listing = await sandbox.files.list(body.path, body.depth)
        return {"entries": list(map(codec.entry_of, listing.entries)), "truncated": listing.truncated}

    async def _stat(self, sandbox: Sandbox, body: schema.Path) -> Answer:
        return codec.entry_of(await sandbox.files.stat(body.path))

    async def _exists(self, sandbox: Sandbox, body: schema.Path) -> Answer:
        return {"exists": await sandbox.files.exists(body.path)}

    async def _move(self, sandbox: Sandbox, body: schema.Move) -> Answer:
        return codec.entry_of(await sandbox.files.move(body.source, body.destination))

    async def _remove(self, sandbox: Sandbox, body: schema.Path) -> Answer:
        await sandbox.files.remove(body.path)
        return {}

    async def _make_dir(self, sandbox: Sandbox, body: schema.Path) -> Answer:
        return {"created": await sandbox.files.make_dir(body.path)}

    async def _open_upload(self, sandbox: Sandbox, body: schema.OpenUpload) -> Answer:
        self._uploads.check_room(sandbox)
        upload = await sandbox.files.open_upload(body.path, mode=body.mode, append=body.append)
        return {"handle": self._uploads.add(sandbox, upload)}

    async def _commit(self, sandbox: Sandbox, body: schema.Handle) -> Answer:
        return codec.entry_of(await self._uploads.take(sandbox, body.handle).commit())

    async def _abort(self, sandbox: Sandbox, body: schema.Handle) -> Answer:
        self._uploads.take(sandbox, body.handle).abort()
        return {}

    async def _start_watch(self, sandbox: Sandbox, body: schema.StartWatch) -> Answer:
        self._watches.check_room(sandbox)
        watch = await sandbox.watches.start(body.path, recursive=body.recursive)
        return {"handle": self._watches.add(sandbox, watch)}

    async def _take(self, sandbox: Sandbox, body: schema.Handle) -> Answer:
        watch = self._watches.get(sandbox, body.handle)
        return {"events": [[event.name, event.type] for event in watch.take()]}

    async def _wait(self, sandbox: Sandbox, body: schema.Handle) -> Answer:
        watch = self._watches.get(sandbox, body.handle)
        batch: list[FilesystemEvent] = await _within(watch.batch(), [])
        return {"events": [[event.name, event.type] for event in batch]}

    async def _stop_watch(self, sandbox: Sandbox, body: schema.Handle) -> Answer:
        await self._watches.take(sandbox, body.handle).stop()
        return {}

    def _stop(self, watch: Watch) -> None:
        self._background.spawn(watch.stop())

    # ---------------------------------------------------------------------------------------- network

    async def _network(self, sandbox: Sandbox, body: schema.Nothing) -> Answer:
        network = sandbox.guest.network
        if network is None:
            return {"policy": codec.policy_fields(NOTHING), "denied": [], "traffic": None}
        traffic = network.traffic()
        return {
            "policy": codec.policy_fields(network.policy),
            "denied": [[denial.time, denial.host, denial.port, denial.reason] for denial in network.denied()],
            "traffic": [traffic.sent, traffic.received, traffic.connections, traffic.denials],
        }

    async def _set_network(self, sandbox: Sandbox, body: schema.Policy) -> Answer:
        sandbox.check_running()
        policy, network = checked_policy(self._services, body), sandbox.guest.network
        if network is not None:
            network.set_policy(policy)
            await sandbox.save()  # a host that was taken away must not come back with the next server
        elif policy.mode != "none":
            raise Unsupported(
                "this sandbox was created without a network, and cannot be given one; name a policy in create"
            )
        return {"policy": codec.policy_fields(policy)}


def info_of(sandbox: Sandbox, *, tokens: bool = True) -> dict[str, Any]:
    """Return everything that is known of a sandbox."""
    spec, notes = sandbox.spec, notes_of(sandbox)
    return {
        "sandbox_id": sandbox.id,
        "template": spec.template.name,
        "metadata": dict(spec.metadata),
        "started_at": sandbox.started_at,
        "end_at": sandbox.deadline,
        "state": sandbox.state,
        "end_reason": sandbox.end_reason,
        "end_message": sandbox.end_message,
        "isolation": sandbox.isolation,
        "limits": spec.limits.to_dict(),
        "features": {name: value for name, value in sandbox.guest.info.items() if name not in HOST_FACTS},
        "tenant": spec.tenant,
        "posture": sandbox.guest.info.get("posture"),
        "network": codec.policy_fields(policy_of(sandbox)),
        "envd_access_token": notes.envd_token if notes is not None and tokens else None,
        "traffic_access_token": notes.traffic_token if notes is not None and tokens else None,
    }


def checked_timeout(services: Services, seconds: float | None) -> float | None:
    """Return a life in seconds.  Raises :class:`InvalidRequest` for one that is longer than this server's longest."""
    most = services.limits.max_timeout
    if most is not None and (seconds is None or seconds > most):
        raise InvalidRequest(
            f"a sandbox of this server lives for at most {most:g} s at once (its setting max_timeout)"
        )
    return seconds


def checked_policy(services: Services, wanted: schema.Policy) -> NetworkPolicy:
    """Return a network policy.  Raises :class:`Unsupported` for more than this server gives."""
    if wanted.mode == "public" and services.internet != "public":
        raise Unsupported(
            f"this server gives no public network (its setting `internet` is {services.internet!r}); name the hosts"
        )
    fields = {
        "mode": wanted.mode,
        "hosts": wanted.hosts,
        "upload": wanted.upload,
        "download": wanted.download,
    }
    return codec.read_policy(fields)


async def _within(waiting: Awaitable[Any], otherwise: Any) -> Any:
    try:
        return await asyncio.wait_for(waiting, POLL_SECONDS)
    except TimeoutError:
        return otherwise


def _context(context: Context) -> dict[str, Any]:
    return {
        "id": context.id,
        "language": context.language,
        "cwd": context.cwd,
        "envs": dict(context.envs),
    }


def _exec(exec_: Exec) -> dict[str, Any]:
    spec, size = exec_.spec, exec_.spec.pty
    return {
        "id": exec_.id,
        "argv": list(spec.argv),
        "cwd": spec.cwd,
        "envs": dict(spec.envs),
        "user": spec.user,
        "stdin": spec.stdin,
        "pty": None if size is None else {"rows": size.rows, "cols": size.cols},
        "status": exec_.status,
        "pid": exec_.pid,
        "exit_code": exec_.exit_code,
    }
