"""The routes of envd: RPCs of processes and files, ``/files``, ``/envs``, ``/metrics``, ``/health``.  Raw ASGI."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from cellfork.dialects.asgi import (
    Abort,
    ASGIApp,
    ClientGone,
    Receive,
    Scope,
    Send,
    TooLarge,
    TooSlow,
    allow_body,
    header,
    name_route,
    send_body,
    send_json,
    state,
    stream_body,
)
from cellfork.dialects.base import Services
from cellfork.dialects.e2b.envd.access import DEFAULT_USER, USERS, check_file_access, resolve
from cellfork.dialects.e2b.envd.codecs import CODECS, MAX_MESSAGE
from cellfork.dialects.e2b.envd.downloads import Wanted, download
from cellfork.dialects.e2b.envd.encodings import check_content_encoding, decompressed
from cellfork.dialects.e2b.envd.errors import (
    GONE,
    INTERNAL_ROUTE,
    UNAUTHORIZED,
    Errors,
    Refusal,
    refusal_of,
)
from cellfork.dialects.e2b.envd.filesystem import Filesystem
from cellfork.dialects.e2b.envd.guards import Answer, Gone, explaining, send_not_found
from cellfork.dialects.e2b.envd.measures import metrics_of
from cellfork.dialects.e2b.envd.processes import Processes
from cellfork.dialects.e2b.envd.stubs.filesystem_connect import FilesystemASGIApplication
from cellfork.dialects.e2b.envd.stubs.process_connect import ProcessASGIApplication
from cellfork.dialects.e2b.envd.uploads import Request, metadata_of, upload
from cellfork.dialects.e2b.notes import Notes, notes_of
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError

PORT = 49983
INTERNAL = frozenset(
    {"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade", "/files/compose"}
)
"""Routes of upstream's envd that its proxy lets nobody reach."""
OPEN_INSIDE = frozenset({"/envs", "/metrics"})
"""What a program of the sandbox may ask without the token: it knows the answers anyway."""
NO_SNIFFING = ((b"x-content-type-options", b"nosniff"),)
CONTENT_TYPES = (
    "application/json",
    "application/proto",
    "application/connect+json",
    "application/connect+proto",
)
"""Of the Connect protocol; gRPC needs trailers, which HTTP/1.1 servers do not send."""
STREAMED = "/process.Process/StreamInput"

Handler = Callable[["EnvdApp", "Call"], Awaitable[None]]


class Call:
    """One request to one sandbox."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept = state(scope)
        self.scope = scope
        self.receive = receive
        self.sandbox: Sandbox = kept["sandbox"]
        self.inside = bool(kept.get("inside"))
        self.answer = Answer(self.sandbox, send)
        self.path: str = scope["path"]
        self.method: str = scope["method"]

    def header(self, name: bytes) -> str | None:
        """Return a header of the request."""
        return header(self.scope, name)

    def query(self) -> dict[str, str]:
        """Return the parameters of the query, of each the first.  Raises :class:`Refusal` (400)."""
        try:
            text = self.scope.get("query_string", b"").decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=64, errors="strict")
        except ValueError as error:
            raise Refusal(400, "the query is malformed") from error
        return dict(reversed(pairs))


class EnvdApp:
    """The app of one plane of every sandbox: which one is in ``scope["state"]["sandbox"]``."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._apps: dict[str, Mapping[str, ASGIApp]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
            return
        call = Call(scope, receive, send)
        try:
            await self._serve(call)
        except (Gone, *GONE):
            if call.answer.started:
                raise Abort from None
            await send_not_found(send, call.sandbox.id)
        except (Refusal, CellforkError, TooLarge, TooSlow) as error:
            if call.answer.started:
                raise Abort from error
            await _refuse(call.answer, refusal_of(error))

    async def _serve(self, call: Call) -> None:
        notes = notes_of(call.sandbox)
        if notes is None or call.sandbox.state != "running":
            call.answer.gone()
            return
        handlers = ROUTES.get(call.path)
        if handlers is not None:
            await self._serve_route(call, notes, handlers)
        elif call.path in INTERNAL:
            name_route(call.scope, "e2b", "envd internal")
            body = {"message": INTERNAL_ROUTE, "path": call.path, "code": 404}
            await send_json(call.answer, 404, body)
        else:
            await self._serve_rpc(call, notes)

    async def _serve_route(self, call: Call, notes: Notes, handlers: Mapping[str, Handler]) -> None:
        name_route(call.scope, "e2b", f"envd {call.path}")
        handler = handlers.get(call.method)
        if handler is None:
            allow = ", ".join(handlers).encode("ascii")
            await send_body(call.answer, 405, headers=[(b"allow", allow)])
            return
        if call.path not in {"/health", "/files"} and not (call.inside and call.path in OPEN_INSIDE):
            _check_token(call, notes)
        await handler(self, call)

    async def _serve_rpc(self, call: Call, notes: Notes) -> None:
        _check_token(call, notes)
        service = call.path.split("/")[1] if call.path.count("/") == 2 else ""
        app = self._apps_of(call.sandbox).get(service)
        if app is None:
            name_route(call.scope, "e2b", "envd unknown")
            await _refuse(call.answer, Refusal(404, f"path {call.path[:200]} not found"))
            return
        name_route(call.scope, "e2b", f"envd {call.path if call.path in RPCS else service}")
        if call.method != "POST":
            await send_body(call.answer, 405, headers=[(b"allow", b"POST")])
            return
        kind = (call.header(b"content-type") or "").partition(";")[0].strip().lower()
        if kind not in CONTENT_TYPES:
            accepted = ", ".join(CONTENT_TYPES).encode("ascii")
            await send_body(call.answer, 415, headers=[(b"accept-post", accepted)])
            return
        if call.path == STREAMED:
            allow_body(call.scope, self.services.limits.upload, None)
        scope = {**call.scope, "headers": _rpc_headers(call.scope["headers"])}
        await app(scope, explaining(call.receive), call.answer)

    def _apps_of(self, sandbox: Sandbox) -> Mapping[str, ASGIApp]:
        apps = self._apps.get(sandbox.id)
        if apps is None:
            options: dict[str, Any] = {
                "interceptors": [Errors()],
                "read_max_bytes": min(self.services.limits.body, MAX_MESSAGE),
                "compressions": (),
                "codecs": CODECS,
            }
            apps = self._apps[sandbox.id] = {
                "process.Process": ProcessASGIApplication(Processes(sandbox), **options),
                "filesystem.Filesystem": FilesystemASGIApplication(Filesystem(sandbox), **options),
            }
            sandbox.on_end(lambda: self._apps.pop(sandbox.id, None))
        return apps

    # --------------------------------------------------------------------------------------- routes

    async def health(self, call: Call) -> None:
        """Say that the sandbox is there."""
        await send_body(call.answer, 204, headers=[(b"cache-control", b"no-store")])

    async def envs(self, call: Call) -> None:
        """Tell the environment variables that the sandbox was created with."""
        await send_json(call.answer, 200, dict(call.sandbox.spec.envs), [(b"cache-control", b"no-store")])

    async def metrics(self, call: Call) -> None:
        """Tell what the sandbox uses now."""
        body = metrics_of(call.sandbox)
        await send_json(call.answer, 200, body, [(b"cache-control", b"no-store")])

    async def read_file(self, call: Call) -> None:
        """Send a file."""
        query = call.query()
        user = _file_user(call, query, "read")
        wanted = Wanted(
            range=call.header(b"range"),
            if_range=call.header(b"if-range"),
            if_modified_since=call.header(b"if-modified-since"),
            accept_encoding=call.header(b"accept-encoding"),
        )
        path = resolve(query.get("path") or "~", user)
        await download(call.sandbox.files, path, wanted, call.answer)

    async def write_files(self, call: Call) -> None:
        """Write files."""
        query = call.query()
        user = _file_user(call, query, "write")
        limit = self.services.limits.upload
        allow_body(call.scope, limit)
        length = call.header(b"content-length")
        request = Request(
            user,
            query.get("path"),
            call.header(b"content-type") or "",
            metadata_of(call.scope["headers"]),
            int(length) if length is not None and length.isdecimal() and len(length) < 19 else None,
        )
        body = stream_body(call.receive)
        if check_content_encoding(call.header(b"content-encoding")):
            body = decompressed(body, limit)
        try:
            written = await upload(call.sandbox.files, request, body)
        except ClientGone:
            raise Abort from None
        await send_json(call.answer, 200, written)


RPC_HEADERS = frozenset(
    {
        b"accept-encoding",
        b"authorization",
        b"connect-accept-encoding",
        b"connect-content-encoding",
        b"connect-protocol-version",
        b"connect-timeout-ms",
        b"content-encoding",
        b"content-type",
        b"keepalive-ping-interval",
    }
)
NO_TIMEOUT = (b"connect-timeout-ms", b"0")
"""Means that there is none."""
RPCS = frozenset(
    f"/{service}/{method}"
    for service, methods in {
        "process.Process": "List Connect Start Update StreamInput SendInput SendSignal CloseStdin",
        "filesystem.Filesystem": "Stat MakeDir Move ListDir Remove WatchDir CreateWatcher GetWatcherEvents RemoveWatcher",
    }.items()
    for method in methods.split()
)
ROUTES: Mapping[str, Mapping[str, Handler]] = {
    "/health": {"GET": EnvdApp.health},
    "/envs": {"GET": EnvdApp.envs},
    "/metrics": {"GET": EnvdApp.metrics},
    "/files": {"GET": EnvdApp.read_file, "POST": EnvdApp.write_files},
}


def _rpc_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that RPCs look at, as the UTF-8 that their library expects; others may hold any bytes."""
    return [
        (name, value if value.isascii() else value.decode("latin-1").encode())
        for name, value in headers
        if name in RPC_HEADERS and (name, value) != NO_TIMEOUT
    ]


def _check_token(call: Call, notes: Notes) -> None:
    if not notes.may_enter(call.header(b"x-access-token")):
        raise Refusal(401, UNAUTHORIZED)


def _file_user(call: Call, query: Mapping[str, str], operation: Any) -> str:
    """Return the user for whom a request reads or writes a file.  Raises :class:`Refusal` (401)."""
    notes = notes_of(call.sandbox)
    if notes is None:
        raise Gone
    check_file_access(notes, call.header(b"x-access-token"), query, operation, time.time())
    user = query.get("username", DEFAULT_USER)
    if user not in USERS:
        name = user[:80]
        raise Refusal(401, f"error looking up user '{name}': user: unknown user {name}")
    return user


async def _refuse(send: Send, refusal: Refusal) -> None:
    await send_json(send, refusal.status, {"code": refusal.status, "message": str(refusal)}, NO_SNIFFING)
