"""The E2B dialect: finds out what a request is for, and passes it to the control plane or a port of a sandbox."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from cellfork.dialects.asgi import ASGIApp, Receive, Scope, Send, header, name_route, state
from cellfork.dialects.base import Services
from cellfork.dialects.e2b import gateway
from cellfork.dialects.e2b.addressing import (
    CODE_PORT,
    ENVD_PORT,
    HIDDEN,
    TRAFFIC_HEADER,
    Address,
    Addressing,
    BadAddress,
    signed_for,
)
from cellfork.dialects.e2b.code.routes import CodeApp
from cellfork.dialects.e2b.envd.routes import EnvdApp
from cellfork.dialects.e2b.extension.routes import PREFIX as EXTENSION
from cellfork.dialects.e2b.extension.routes import ExtensionApp
from cellfork.dialects.e2b.lifecycle import wake
from cellfork.dialects.e2b.notes import Notes, notes_of
from cellfork.dialects.e2b.routes import ControlApp
from cellfork.dialects.e2b.translate import pause_mode
from cellfork.dialects.inside import Doors
from cellfork.dialects.ports import BadAnswer, PortProxy, Target
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OperationTimeout,
    PortClosed,
    SandboxGone,
    Unsupported,
)


class E2B:
    """Implements :class:`cellfork.dialects.base.Dialect`."""

    name: ClassVar[str] = "e2b"
    openapi: ClassVar[Path | None] = Path(__file__).with_name("openapi.json")

    def __init__(self, services: Services) -> None:
        self._services = services
        self._addressing = Addressing(services.domain)
        self._control = ControlApp(services)
        self._extension = ExtensionApp(services)
        self._planes: Mapping[int, ASGIApp] = {ENVD_PORT: EnvdApp(services), CODE_PORT: CodeApp(services)}
        self._proxy = PortProxy()
        self._waking: dict[str, asyncio.Lock] = {}
        speaks = services.speaks
        self._doors = None if speaks is None else Doors(tuple(self._planes), speaks(self._inside))

    def owns(self, scope: Scope) -> bool:
        """Whether a request names a sandbox by its headers or its host name."""
        return self._addressing.owns(scope)

    def app(self) -> ASGIApp:
        """Return the app that takes every request of this dialect."""
        return self._answer

    async def start(self) -> None:
        """Serve the adopted sandboxes inside as well."""
        if self._doors is not None:
            for sandbox in self._services.engine.list():
                if sandbox.state == "running" and notes_of(sandbox) is not None:
                    self._doors.open(sandbox)

    async def aclose(self) -> None:
        """Close every connection from inside a sandbox."""
        await self._extension.aclose()
        if self._doors is not None:
            await self._doors.aclose()

    def plane(self, sandbox: Sandbox, port: int) -> ASGIApp:
        """Return the app that answers as ``port`` of a sandbox, whatever address a request names (for debug listeners)."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self._enter(scope, receive, send, sandbox, port)

        return app

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            address = self._addressing.address_of(scope) or signed_for(scope, self._services.engine.list())
        except BadAddress as error:
            await gateway.refuse(scope, send, 400, str(error))
            return
        if address is not None:
            await self._to_sandbox(scope, receive, send, address)
        elif scope["type"] == "http" and scope["path"].startswith(EXTENSION):
            await self._extension(scope, receive, send)
        elif scope["type"] == "http":
            await self._control(scope, receive, send)
        else:
            await gateway.refuse(scope, send, 404, "no WebSocket is served here")

    async def _to_sandbox(self, scope: Scope, receive: Receive, send: Send, address: Address) -> None:
        try:
            sandbox = self._services.engine.get(address.sandbox)
        except NotFound:
            await gateway.not_found(scope, send, address.sandbox)
            return
        await self._enter(scope, receive, send, sandbox, address.port)

    async def _enter(self, scope: Scope, receive: Receive, send: Send, sandbox: Sandbox, port: int) -> None:
        """Let a request from outside into a sandbox, where it may; wake the sandbox, where it is to be woken."""
        notes = notes_of(sandbox)
        if notes is None:  # another dialect made it
            await gateway.not_found(scope, send, sandbox.id)
            return
        if port != ENVD_PORT and not notes.may_pass(header(scope, TRAFFIC_HEADER)):
            await gateway.forbidden(scope, send, sandbox.id)
            return
        if sandbox.state != "running" and not await self._woken(sandbox, notes):
            await gateway.not_found(scope, send, sandbox.id)
            return
        if self._doors is not None and self._doors.open(sandbox):
            await asyncio.sleep(0)  # asked for before whatever this request starts inside
        state(scope)["sandbox"] = sandbox
        plane = self._planes.get(port)
        if plane is None:
            await self._forward(scope, receive, send, sandbox, port, notes)
        elif scope["type"] == "http":
            await plane(scope, receive, send)
        else:
            await gateway.refuse(scope, send, 404, "no WebSocket is served here")

    async def _woken(self, sandbox: Sandbox, notes: Notes) -> bool:
        """Wake a paused sandbox that wakes by traffic; requests that come meanwhile wait for the same."""
        if sandbox.state != "paused" or not notes.auto_resume or pause_mode(sandbox) == "filesystem":
            return (
                False  # what kept its files alone loses what ran: only who asks for it wakes it, as upstream
            )
        lock = self._waking.setdefault(sandbox.id, asyncio.Lock())
        try:
            async with lock:
                await wake(sandbox, notes.timeout)
        except CellforkError:
            return False
        finally:
            if not lock.locked():
                self._waking.pop(sandbox.id, None)
        return True

    async def _forward(
        self, scope: Scope, receive: Receive, send: Send, sandbox: Sandbox, port: int, notes: Notes
    ) -> None:
        name_route(scope, self.name, "port")
        host = None if notes.mask_host is None else notes.mask_host.replace("${PORT}", str(port)).encode()
        try:
            await self._proxy.forward(scope, receive, send, Target(sandbox, port, host, HIDDEN))
        except (PortClosed, BadAnswer):
            await gateway.port_closed(scope, send, sandbox.id, port)
        except (SandboxGone, Conflict):  # it ended, or was paused, meanwhile
            await gateway.not_found(scope, send, sandbox.id)
        except LimitExceeded:
            await gateway.busy(scope, send, sandbox.id, self._proxy.most_connections)
        except (InvalidRequest, Unsupported) as error:
            await gateway.refuse(scope, send, 400, str(error))
        except OperationTimeout as error:
            await gateway.refuse(scope, send, 504, str(error))

    async def _inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a program inside a sandbox, on a port where the server listens there."""
        kept = state(scope)
        sandbox: Sandbox = kept["sandbox"]
        if scope["type"] != "http":
            await gateway.refuse(scope, send, 404, "no WebSocket is served here")
        elif sandbox.state != "running":
            await gateway.not_found(scope, send, sandbox.id)
        else:
            await self._planes[kept["port"]](scope, receive, send)
