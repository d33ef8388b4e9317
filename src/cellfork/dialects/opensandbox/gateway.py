"""``/sandboxes/{id}/proxy/{port}/…``: the ports of a sandbox.

44772 is execd and 18080 the network policy, which the server answers itself; every other port is whatever program listens on it.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from cellfork.dialects.asgi import (
    ASGIApp,
    Receive,
    Scope,
    Send,
    header,
    name_route,
    send_json,
    state,
)
from cellfork.dialects.base import Services
from cellfork.dialects.inside import Doors
from cellfork.dialects.keeping import is_token
from cellfork.dialects.opensandbox import errors, registry
from cellfork.dialects.opensandbox.access import ACCESS_HEADER, EGRESS_HEADER, may_enter
from cellfork.dialects.opensandbox.confinement import HIDDEN, confined
from cellfork.dialects.opensandbox.egress import EgressApp
from cellfork.dialects.opensandbox.errors import Refused
from cellfork.dialects.opensandbox.execd.routes import ExecdApp
from cellfork.dialects.opensandbox.registry import Notes
from cellfork.dialects.ports import BadAnswer, PortProxy, Target
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError, PortClosed

EXECD_PORT: Final = 44772
EGRESS_PORT: Final = 18080
KERNELS_PORT: Final = 44771
"""Where upstream's image has a Jupyter server; its packages look whether something listens there before they run code."""
LEAST_GAIN = 10.0
"""Seconds that a renewal has to gain: not every request is to be written down."""

_PATH = re.compile(r"(?:/v1)?/sandboxes/([a-z0-9]{1,128})/proxy/([0-9]{1,5})(/.*)?", re.DOTALL)


class Place(NamedTuple):
    """A port of a sandbox, and the path there, as it was sent."""

    sandbox: str
    port: int
    path: str


class Gateway:
    """Lets requests into sandboxes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._planes: Mapping[int, ASGIApp] = {
            EXECD_PORT: ExecdApp(services),
            EGRESS_PORT: EgressApp(services),
        }
        self._proxy = PortProxy()
        speaks = services.speaks
        self._doors = None if speaks is None else Doors((KERNELS_PORT, EXECD_PORT), speaks(self._inside))

    def start(self) -> None:
        """Serve the adopted sandboxes inside as well."""
        for sandbox in self._services.engine.list():
            if (
                self._doors is not None
                and sandbox.state == "running"
                and registry.notes_of(sandbox) is not None
            ):
                self._doors.open(sandbox)

    async def aclose(self) -> None:
        """Close every connection from inside a sandbox."""
        if self._doors is not None:
            await self._doors.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request whose path is one of a port."""
        name_route(scope, "opensandbox", "/sandboxes/{id}/proxy/{port}")
        try:
            place = place_of(scope)
            sandbox = self._enter(scope, place)
            _strip(scope, place)
            if self._doors is not None and self._doors.open(sandbox):
                await asyncio.sleep(0)  # asked for before whatever this request starts inside
            plane = self._planes.get(place.port)
            if plane is None:
                await self._forward(scope, receive, send, sandbox, place.port)
            else:
                await plane(scope, receive, send)
        except (Refused, CellforkError) as error:
            await refuse(scope, send, *errors.read(error))

    def _enter(self, scope: Scope, place: Place) -> Sandbox:
        """Return the sandbox of a request that may enter it.  Raises :class:`Refused`, :class:`SandboxPaused`."""
        sandbox, notes = registry.find(self._services.engine, place.sandbox)
        presented = header(scope, ACCESS_HEADER.lower().encode())
        if not may_enter(notes.access_token, presented, place.port, self._now()):
            raise Refused(401, errors.UNAUTHORIZED, f"this sandbox asks for {ACCESS_HEADER}")
        if place.port == EGRESS_PORT and not is_token(
            notes.egress_token, header(scope, EGRESS_HEADER.lower().encode())
        ):
            raise Refused(401, errors.UNAUTHORIZED, f"port {EGRESS_PORT} asks for {EGRESS_HEADER}")
        sandbox.check_running()
        self._renew(sandbox, notes)
        state(scope)["sandbox"] = sandbox
        return sandbox

    def _renew(self, sandbox: Sandbox, notes: Notes) -> None:
        """Give a sandbox that lives by its requests more time."""
        if notes.renew is None or sandbox.deadline is None:
            return
        most = self._services.limits.max_timeout
        seconds = float(notes.renew) if most is None else min(float(notes.renew), most)
        if self._now() + seconds - sandbox.deadline >= LEAST_GAIN:
            sandbox.set_timeout(seconds)

    def _now(self) -> float:
        return self._services.engine.settings.clock.time_ns() / 1e9

    async def _inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a program inside a sandbox: execd, where it expects that, and nothing where it expects kernels."""
        name_route(scope, "opensandbox", "inside")
        kept = state(scope)
        sandbox: Sandbox = kept["sandbox"]
        try:
            sandbox.check_running()
            if kept["port"] != EXECD_PORT:
                raise Refused(
                    404, errors.UNKNOWN, f"no Jupyter server is here; execd is on port {EXECD_PORT}"
                )
            await self._planes[EXECD_PORT](scope, receive, send)
        except (Refused, CellforkError) as error:
            await refuse(scope, send, *errors.read(error))

    async def _forward(self, scope: Scope, receive: Receive, send: Send, sandbox: Sandbox, port: int) -> None:
        target = Target(sandbox, port, None, HIDDEN)
        try:
            await self._proxy.forward(scope, receive, confined(send), target)
        except (PortClosed, BadAnswer) as error:
            raise Refused(
                502, errors.UNKNOWN, f"Could not connect to port {port} of the sandbox: {error}"
            ) from error


def is_port(path: str) -> bool:
    """Tell whether a path is one of a port of a sandbox."""
    return _PATH.fullmatch(path) is not None


def place_of(scope: Scope) -> Place:
    """Return what a request is for, as it was sent: an encoded slash is no slash.  Raises :class:`Refused`."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else scope["path"]
    match = _PATH.fullmatch(path)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise Refused(404, errors.NOT_FOUND, "no port of a sandbox is at this path")
    return Place(match[1], int(match[2]), match[3] or "/")


async def refuse(scope: Scope, send: Send, status: int, body: dict[str, Any]) -> None:
    """Answer a request that gets nowhere; a WebSocket as well, where the server can say why."""
    if scope["type"] == "http":
        await send_json(send, status, body)
    elif "websocket.http.response" in scope.get("extensions", {}):
        headers = [(b"content-type", b"application/json")]
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": msgspec.json.encode(body)})
    else:
        await send({"type": "websocket.close"})


def _strip(scope: Scope, place: Place) -> None:
    """Let whoever answers see the path behind the port."""
    scope["raw_path"] = place.path.encode("latin-1")
    scope["path"] = unquote_to_bytes(place.path).decode("utf-8", "replace")
