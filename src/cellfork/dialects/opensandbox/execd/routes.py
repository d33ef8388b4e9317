"""execd of one sandbox: which request goes where.

``/code`` and ``/command`` are hot, so this is ASGI without a framework.  The sandbox, already found and awake, is in
``scope["state"]["sandbox"]``; who may come in was decided by whoever found it.
"""

import re
from collections.abc import Iterable
from typing import Final

from cellfork.dialects import asgi
from cellfork.dialects.asgi import Abort, ClientGone, Receive, Scope, Send
from cellfork.dialects.base import Services
from cellfork.dialects.opensandbox.execd import elsewhere, errors, sockets
from cellfork.dialects.opensandbox.execd.calls import Area, Call, Handler, Route, Routes
from cellfork.dialects.opensandbox.execd.changing import Changing
from cellfork.dialects.opensandbox.execd.commands import USERS, Commands
from cellfork.dialects.opensandbox.execd.contexts import Contexts
from cellfork.dialects.opensandbox.execd.downloads import Downloads
from cellfork.dialects.opensandbox.execd.looking import Looking
from cellfork.dialects.opensandbox.execd.metrics import Metrics
from cellfork.dialects.opensandbox.execd.sessions import Sessions
from cellfork.dialects.opensandbox.execd.terminals import Terminals
from cellfork.dialects.opensandbox.execd.uploads import Uploads

DIALECT: Final = "opensandbox"
IDENTITY: Final = re.compile(r"/v1/filesystem/([0-9]{1,10})/([0-9]{1,10})(?=/)")
"""What a path begins with where files are to be touched with the rights of a user and a group."""
_SOCKET = re.compile(r"/pty/([^/]+)/ws")


class ExecdApp:
    """Serves execd of the sandbox in the request's scope, HTTP and WebSocket."""

    def __init__(self, services: Services) -> None:
        self._limit = services.limits.body
        self._terminals = Terminals()
        self._ports = elsewhere.Ports()
        commands, sessions = Commands(), Sessions()
        files: list[Area] = [Looking(), Changing(), Uploads(services.limits.upload), Downloads()]
        self._files = _Table([area.routes() for area in files])
        others: list[Area] = [Contexts(commands, sessions), commands, sessions, self._terminals, Metrics()]
        ping = Route("GET", "/ping", _ping)
        isolated = elsewhere.Isolated().routes()
        self._all = _Table([[ping], *(area.routes() for area in [*others, *files]), isolated])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path: str = scope["path"]
        if path.startswith(elsewhere.PREFIX):
            await self._ports.serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
        elif path.startswith("/v1/filesystem/"):
            await self._serve_files_as(scope, receive, send)
        else:
            await self._answer(self._all, path, Call(scope, receive, send, {}, self._limit))

    async def _answer(self, table: "_Table", path: str, call: Call) -> None:
        method: str = call.scope["method"]
        route, parts = table.find(method, path)
        if route is None:
            asgi.name_route(call.scope, DIALECT, "unknown")
            status = 405 if table.has(path) else 404
            body = {"code": errors.NOT_SUPPORTED, "message": f"no route {method} {path[:200]}"}
            await asgi.send_json(call.send, status, body)
            return
        asgi.name_route(call.scope, DIALECT, route.path)
        call.parts = parts
        await _handled(route.handler, call)

    async def _serve_files_as(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve files for one user and one group: there is one user, and root is another name of it."""
        call = Call(scope, receive, send, {}, self._limit)
        match = IDENTITY.match(scope["path"])
        if match is None:
            await self._answer(self._files, scope["path"], call)
        elif {int(match[1]), int(match[2])} <= USERS:
            await self._answer(self._files, scope["path"][match.end() :], call)
        else:
            problem = "every file in this sandbox belongs to user and group 1000; ask as them, or as 0"
            await _refuse(call, errors.unsupported(problem))

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        asgi.name_route(scope, DIALECT, "/pty/{id}/ws")
        call = Call(scope, receive, send, {}, self._limit)
        match = _SOCKET.fullmatch(scope["path"])
        try:
            if match is None:
                raise errors.Refused(404, errors.NOT_SUPPORTED, "no WebSocket is served here")
            await sockets.serve(call, self._terminals.get(call.sandbox, match[1]))
        except errors.Refused as error:
            await sockets.refuse(scope, send, *errors.read(error))


class _Table:
    """Finds routes: most by their whole path, the others by a pattern."""

    def __init__(self, routes: Iterable[Routes]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, Route]] = {}
        patterns: dict[str, re.Pattern[str]] = {}
        for route in (route for area in routes for route in area):
            if "{" in route.path:
                pattern = patterns.setdefault(route.path, _pattern(route.path))
                self._patterns.setdefault(pattern, {})[route.method] = route
            else:
                self._exact.setdefault(route.path, {})[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route | None, dict[str, str]]:
        """Return what answers a request, and the parts of its path."""
        methods = self._exact.get(path)
        if methods is not None:
            return methods.get(method), {}
        for pattern, found in self._patterns.items():
            match = pattern.fullmatch(path)
            if match is not None and method in found:
                return found[method], match.groupdict()
        return None, {}

    def has(self, path: str) -> bool:
        """Tell whether a path is served, by whatever method."""
        return path in self._exact or any(pattern.fullmatch(path) for pattern in self._patterns)


async def _ping(call: Call) -> None:
    """Tell that execd is there."""
    await call.answer()


async def _handled(handler: Handler, call: Call) -> None:
    """Answer, with an error where the handler raises one; after the answer has begun, only its end can be told."""
    started = _Started(call.send)
    call.send = started
    try:
        await handler(call)
    except (Abort, ClientGone):
        raise
    except Exception as error:
        if started.started:
            raise
        await _refuse(call, error)
        if errors.read(error)[0] == 500:
            raise


async def _refuse(call: Call, error: Exception) -> None:
    status, body = errors.read(error)
    await asgi.send_json(call.send, status, body)


class _Started:
    """The ``send`` of one request, which remembers whether the answer has begun."""

    __slots__ = ("_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: asgi.Message) -> None:
        """Send a message."""
        self.started = True
        await self._send(message)


def _pattern(path: str) -> re.Pattern[str]:
    """Return what matches a path whose ``{id}`` is any one part of it."""
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path), re.DOTALL)
