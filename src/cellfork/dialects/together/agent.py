"""The agent API of one sandbox: execs, files, directories, watchers, ports; below ``/agents/{id}``."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import wraps
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from cellfork.dialects.asgi import allow_body, name_route, read_body, read_json, stream_body
from cellfork.dialects.base import Services
from cellfork.dialects.together import schema, streams
from cellfork.dialects.together.errors import Refused
from cellfork.dialects.together.management import bearer
from cellfork.dialects.together.registry import Sandboxes, scope_of
from cellfork.dialects.together.sockets import ExecSocket
from cellfork.dialects.together.translate import (
    EVENT_TYPES,
    Json,
    exec_item,
    exec_output,
    file_content,
    file_info,
    inside,
    is_ignored,
    listening_ports,
    watcher_event,
)
from cellfork.engine.execs import Exec
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import InvalidRequest, IsADirectory, NotADirectory, PathNotFound, SandboxGone
from cellfork.model.specs import HOME, ExecSpec, PtySize

T = TypeVar("T")
Handler = Callable[[Request, Sandbox], Awaitable[Response]]
ROUTES: tuple[tuple[str, str, str, str], ...] = (
    ("POST", "/api/v1/files/{path:path}", "create_file", "admin"),
    ("GET", "/api/v1/files/{path:path}", "read_file", "readonly"),
    ("PATCH", "/api/v1/files/{path:path}", "act_on_file", "admin"),
    ("DELETE", "/api/v1/files/{path:path}", "delete_file", "admin"),
    ("GET", "/api/v1/file_stat/{path:path}", "stat_file", "readonly"),
    ("POST", "/api/v1/directories/{path:path}", "create_directory", "admin"),
    ("GET", "/api/v1/directories/{path:path}", "list_directory", "readonly"),
    ("DELETE", "/api/v1/directories/{path:path}", "delete_directory", "admin"),
    ("POST", "/api/v1/execs", "create_exec", "admin"),
    ("GET", "/api/v1/execs", "list_execs", "readonly"),
    ("GET", "/api/v1/execs/{exec}", "get_exec", "readonly"),
    ("POST", "/api/v1/execs/{exec}/start", "start_exec", "admin"),
    ("DELETE", "/api/v1/execs/{exec}", "delete_exec", "admin"),
    ("GET", "/api/v1/execs/{exec}/io", "exec_output", "readonly"),
    ("POST", "/api/v1/execs/{exec}/io", "exec_input", "admin"),
    ("GET", "/api/v1/stream/execs/{exec}/io", "stream_output", "readonly"),
    ("GET", "/api/v1/stream/execs", "stream_execs", "readonly"),
    ("GET", "/api/v1/ports", "list_ports", "readonly"),
    ("GET", "/api/v1/stream/ports", "stream_ports", "readonly"),
    ("GET", "/api/v1/stream/directories/watcher/{path:path}", "watch", "readonly"),
    ("GET", "/api/v1/tasks", "list_tasks", "readonly"),
    ("GET", "/api/v1/setup-tasks", "list_setup_tasks", "readonly"),
    ("GET", "/api/v1/tasks/{task}", "no_task", "readonly"),
    ("PATCH", "/api/v1/tasks/{task}/actions", "no_task", "admin"),
)
"""Method, path, name of the handler, and the weakest token of each route."""
POLL = 1.0
"""Seconds between two looks at what a stream of lists shows."""
MOST_OF_TABLE = 1024 * 1024
NO_TASKS = "this agent has no tasks: start commands with execs"


class Agent:
    """Serves the agent API of every sandbox of this dialect."""

    def __init__(self, services: Services, sandboxes: Sandboxes) -> None:
        self._services = services
        self._sandboxes = sandboxes

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes, each with its check of the token; ``readonly`` ones may be read with the weaker token."""
        routes: list[BaseRoute] = [
            Route("/agents/{id}" + path, self._guarded(path, getattr(self, name), scope), methods=[method])
            for method, path, name, scope in ROUTES
        ]
        socket = ExecSocket(self._sandboxes)
        return [*routes, WebSocketRoute("/agents/{id}/ws/v1/execs/{exec}", socket.serve)]

    # ----------------------------------------------------------------------------------------- files

    async def create_file(self, request: Request, sandbox: Sandbox) -> Response:
        """Write a file from the body, as it comes; directories above it are made."""
        path = request.path_params["path"]
        allow_body(request.scope, self._services.limits.upload)
        upload = await sandbox.files.open_upload(_place(path))
        kept = bytearray()
        try:
            async for piece in stream_body(request.receive):
                await upload.write(piece)
                kept += piece[: max(0, self._services.limits.body - len(kept))]
            await upload.commit()
        except BaseException:
            upload.abort()
            raise
        return JSONResponse(file_content(_shown(path), bytes(kept)), 201)

    async def read_file(self, request: Request, sandbox: Sandbox) -> Response:
        """Return a file's content, as text or base64."""
        path = request.path_params["path"]
        return JSONResponse(file_content(_shown(path), await sandbox.files.read(_place(path))))

    async def act_on_file(self, request: Request, sandbox: Sandbox) -> Response:
        """Move or copy a file or a directory."""
        source = request.path_params["path"]
        action = await self._body(request, schema.FileAction)
        target = action.destination
        if action.action == "move":
            await sandbox.files.move(_place(source), _place(target))
        else:
            await self._copy(sandbox, _place(source), _place(target), recursive=action.recursive)
        return JSONResponse(
            {"message": f"{action.action} done", "from": _shown(source), "to": _shown(target)}
        )

    async def delete_file(self, request: Request, sandbox: Sandbox) -> Response:
        """Remove a file."""
        path = request.path_params["path"]
        entry = await sandbox.files.stat(_place(path))
        if entry.type == "dir":
            raise IsADirectory(f"{_shown(path)} is a directory")
        await sandbox.files.remove(_place(path), recursive=False)
        return JSONResponse({"message": "file deleted", "path": _shown(path)})

    async def stat_file(self, request: Request, sandbox: Sandbox) -> Response:
        """Return what is known of a file or directory."""
        path = request.path_params["path"]
        return JSONResponse(file_info(await sandbox.files.stat(_place(path)), _shown(path)))

    async def create_directory(self, request: Request, sandbox: Sandbox) -> Response:
        """Make a directory and those above it."""
        path = request.path_params["path"]
        await sandbox.files.make_dir(_place(path))
        return JSONResponse({"message": "directory created", "path": _shown(path)}, 201)

    async def list_directory(self, request: Request, sandbox: Sandbox) -> Response:
        """Return what is in a directory."""
        path = _shown(request.path_params["path"])
        listing = await sandbox.files.list(_place(path))
        files = [file_info(entry, f"{path.rstrip('/')}/{entry.name}") for entry in listing.entries]
        return JSONResponse({"path": path, "files": files})

    async def delete_directory(self, request: Request, sandbox: Sandbox) -> Response:
        """Remove a directory with everything in it."""
        path = request.path_params["path"]
        entry = await sandbox.files.stat(_place(path))
        if entry.type != "dir":
            raise NotADirectory(f"{_shown(path)} is not a directory")
        await sandbox.files.remove(_place(path))
        return JSONResponse({"message": "directory deleted", "path": _shown(path)})

    async def watch(self, request: Request, sandbox: Sandbox) -> Response:
        """Stream what happens to the files of a directory."""
        query = request.query_params
        path = _shown(request.path_params["path"])
        ignored = [*query.getlist("ignorePatterns"), *query.getlist("ignorePatterns[]")]
        recursive = query.get("recursive", "").lower() in {"true", "1"}
        clock = sandbox.settings.clock
        watch = await sandbox.watches.start(_place(path), recursive=recursive)

        async def events() -> AsyncIterator[bytes]:
            try:
                yield streams.event(watcher_event("connected", [path], clock.time_ns() / 1e9))
                async for event in watch.events():
                    if not is_ignored(event, ignored):
                        shown = f"{path.rstrip('/')}/{event.name}" if event.name else path
                        kind = EVENT_TYPES[event.type]
                        yield streams.event(watcher_event(kind, [shown], clock.time_ns() / 1e9))
            except SandboxGone:
                return
            finally:
                with contextlib.suppress(SandboxGone):
                    await watch.stop()

        return streams.respond(events())

    # ----------------------------------------------------------------------------------------- execs

    async def create_exec(self, request: Request, sandbox: Sandbox) -> Response:
        """Make a command and, unless told otherwise, start it."""
        body = await self._body(request, schema.CreateExec)
        spec = ExecSpec(
            argv=(body.command, *body.args),
            cwd=HOME if body.cwd is None else _place(body.cwd),
            envs=body.env,
            user=_user(body.user),
            stdin=True,
            pty=PtySize() if body.pty else None,
        )
        exec_ = await sandbox.execs.create(spec, autostart=body.autostart)
        return JSONResponse(exec_item(exec_), 201)

    async def list_execs(self, _request: Request, sandbox: Sandbox) -> Response:
        """Return the execs, the oldest first."""
        return JSONResponse(_exec_list(sandbox))

    async def get_exec(self, request: Request, sandbox: Sandbox) -> Response:
        """Return an exec."""
        return JSONResponse(exec_item(_exec(request, sandbox)))

    async def start_exec(self, request: Request, sandbox: Sandbox) -> Response:
        """Start an exec that was made without being started; nothing happens where it runs."""
        exec_ = _exec(request, sandbox)
        await self._body(request, dict[str, object])
        await exec_.start()
        return JSONResponse(exec_item(exec_))

    async def delete_exec(self, request: Request, sandbox: Sandbox) -> Response:
        """End an exec and forget it."""
        await sandbox.execs.delete(_exec(request, sandbox).id)
        return JSONResponse({"message": "exec deleted"})

    async def exec_output(self, request: Request, sandbox: Sandbox) -> Response:
        """Return what an exec has written so far."""
        exec_, after = _exec(request, sandbox), _last_sequence(request)
        found = exec_.log.since(max(after, 0))
        found = found[after:] if after < 0 else found
        return JSONResponse([exec_output(item) for item in found])

    async def exec_input(self, request: Request, sandbox: Sandbox) -> Response:
        """Write to an exec's input, or change the size of its terminal (``"80x24"``: columns, rows)."""
        exec_ = _exec(request, sandbox)
        body = await self._body(request, schema.ExecInput)
        if body.type == "stdin":
            await exec_.send_stdin(body.input.encode())
        else:
            await exec_.resize(_size(body.input))
        return JSONResponse(exec_item(exec_))

    async def stream_output(self, request: Request, sandbox: Sandbox) -> Response:
        """Stream what an exec has written, then what it writes, to its exit code."""
        exec_, after = _exec(request, sandbox), max(0, _last_sequence(request))

        async def events() -> AsyncIterator[bytes]:
            async for item in exec_.stream_output(after):
                yield streams.event(exec_output(item), item.sequence)

        return streams.respond(events())

    async def stream_execs(self, _request: Request, sandbox: Sandbox) -> Response:
        """Stream the list of execs: as it is, and whenever it has changed."""
        return streams.respond(_changes(sandbox, lambda: _immediately(_exec_list(sandbox))))

    # ----------------------------------------------------------------------------- ports and the rest

    async def list_ports(self, _request: Request, sandbox: Sandbox) -> Response:
        """Return the ports that programs in the sandbox listen on."""
        return JSONResponse(await _port_list(sandbox))

    async def stream_ports(self, _request: Request, sandbox: Sandbox) -> Response:
        """Stream the list of ports: as it is, and whenever it has changed."""
        return streams.respond(_changes(sandbox, lambda: _port_list(sandbox)))

    async def list_tasks(self, _request: Request, _sandbox: Sandbox) -> Response:
        """Return no tasks: they belong to a development environment that is not here."""
        return JSONResponse({"tasks": []})

    async def list_setup_tasks(self, _request: Request, _sandbox: Sandbox) -> Response:
        """Return no tasks."""
        return JSONResponse({"setupTasks": []})

    async def no_task(self, _request: Request, _sandbox: Sandbox) -> Response:
        """Say that there is no such task."""
        raise Refused(404, NO_TASKS)

    # --------------------------------------------------------------------------------------- details

    def _guarded(self, path: str, handler: Handler, needed: str) -> Callable[[Request], Awaitable[Response]]:
        @wraps(handler)
        async def guarded(request: Request) -> Response:
            name_route(request.scope, "together", path)
            sandbox = self._sandboxes.living(request.path_params["id"])
            scope = scope_of(sandbox, bearer(request.headers) or request.query_params.get("token"))
            if scope is None:
                raise Refused(401, "the agent's token is missing or wrong")
            if needed == "admin" and scope != "admin":
                raise Refused(403, "this token may only read")
            return await handler(request, sandbox)

        return guarded

    async def _body(self, request: Request, kind: type[T]) -> T:
        data = await read_body(request.scope, request.receive, self._services.limits.body)
        return read_json(data, kind)

    async def _copy(self, sandbox: Sandbox, source: str, target: str, *, recursive: bool) -> None:
        """Copy inside the sandbox, by its own cp."""
        entry = await sandbox.files.stat(source)
        if entry.type == "dir" and not recursive:
            raise IsADirectory(f"{source} is a directory; copy it with recursive")
        await sandbox.files.make_dir(target.rpartition("/")[0] or "/")
        exec_ = await sandbox.execs.create(ExecSpec(("cp", "-a", "-T", "--", source, target)))
        try:
            await exec_.wait()
        finally:
            sandbox.execs.forget(exec_)
        if exec_.exit_code != 0:
            raise InvalidRequest(exec_.log.text("stderr")[:2000] or "the copy failed")


def _place(path: str) -> str:
    if not path.strip("/") and "\0" in path:
        raise InvalidRequest("a path has no NUL")
    return inside(path)


def _shown(path: str) -> str:
    return "/" + path.lstrip("/")


def _exec(request: Request, sandbox: Sandbox) -> Exec:
    return sandbox.execs.get(request.path_params["exec"])


def _exec_list(sandbox: Sandbox) -> Json:
    return {"execs": [exec_item(exec_) for exec_ in sandbox.execs.list()]}


async def _immediately(value: Json) -> Json:
    return value


async def _port_list(sandbox: Sandbox) -> Json:
    tables = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            content = await sandbox.files.read_range(path, 0, MOST_OF_TABLE)
        except PathNotFound:
            continue
        tables += listening_ports(content.decode("ascii", "replace"))
    return {"ports": tables}


async def _changes(sandbox: Sandbox, read: Callable[[], Awaitable[Json]]) -> AsyncIterator[bytes]:
    """Yield what ``read`` returns at first, and then whenever it differs from what was told last."""
    told: Json | None = None
    while sandbox.state == "running":
        try:
            value = await read()
        except SandboxGone:
            return
        if value != told:
            told = value
            yield streams.event(value)
        await asyncio.sleep(POLL)


def _last_sequence(request: Request) -> int:
    text = request.query_params.get("lastSequence") or request.headers.get("last-event-id") or "0"
    try:
        number = int(text)
    except ValueError:
        raise Refused(400, "lastSequence is a whole number") from None
    if abs(number) >= 2**31:
        raise Refused(400, "lastSequence is a number of 32 bits")
    return number


def _size(text: str) -> PtySize:
    cols, _, rows = text.lower().partition("x")
    if not (
        cols.isdecimal() and rows.isdecimal() and 0 < int(cols[:6]) <= 10_000 and 0 < int(rows[:6]) <= 10_000
    ):
        raise Refused(400, "a size is '{cols}x{rows}', for instance '80x24'")
    return PtySize(rows=int(rows), cols=int(cols))


def _user(text: str | None) -> str:
    """Return the user of ``user[:group]``; a group is known only as that of the same user."""
    if text is None:
        return "user"
    user, colon, group = text.partition(":")
    if colon and {user, group} not in ({"user"}, {"1000"}, {"user", "1000"}, {"root"}, {"0"}, {"root", "0"}):
        raise Refused(400, f"the group {group[:40]!r} is not the user's")
    return user
