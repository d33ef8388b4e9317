"""Debug addressing: fixed ports of this machine that stand for one sandbox, for clients with ``E2B_DEBUG=true``.

Such clients create nothing.  They take ``http://localhost:49983`` and ``:49999`` for the ports of a sandbox named
``debug_sandbox_id``, and send no token.  The sandbox is made when it is first asked for, lives on while it is used,
and another one takes its place when it has ended.  Whoever can connect to loopback can use it; pages in a browser
cannot, because any page could otherwise run code here.
"""

import asyncio
from typing import Final

from cellfork.dialects.asgi import ASGIApp, Receive, Scope, Send, header
from cellfork.dialects.base import Services
from cellfork.dialects.e2b import gateway, network, schema
from cellfork.dialects.e2b.addressing import CODE_PORT, ENVD_PORT
from cellfork.dialects.e2b.dialect import E2B
from cellfork.dialects.e2b.errors import refusal_of
from cellfork.dialects.e2b.lifecycle import wake
from cellfork.dialects.e2b.notes import Notes, as_notes
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError, StartupFailed
from cellfork.model.specs import SandboxSpec

ID: Final = "debug_sandbox_id"
API_PORT: Final = 3000
HOST: Final = "127.0.0.1"
TENANT: Final = ""
"""The tenant of keys without a name, so that such a key sees the sandbox in the API too."""
TEMPLATE = "code-interpreter-v1"

Listener = tuple[str, int, ASGIApp]


class Debug:
    """The listeners of debug addressing, and the sandbox behind them."""

    def __init__(self, services: Services, dialect: E2B) -> None:
        self._services = services
        self._dialect = dialect
        self._making = asyncio.Lock()
        self._sandbox: Sandbox | None = None

    def listeners(self) -> list[Listener]:
        """Return host, port and app of each."""
        return [
            (HOST, API_PORT, self._api),
            (HOST, ENVD_PORT, self._plane(ENVD_PORT)),
            (HOST, CODE_PORT, self._plane(CODE_PORT)),
        ]

    async def sandbox(self) -> Sandbox:
        """Return the sandbox, made now where there is none.  Raises what :meth:`Engine.create` raises."""
        seconds = self._services.limits.default_timeout
        async with self._making:
            if self._sandbox is not None and self._sandbox.state != "ended":
                await wake(self._sandbox, seconds)
            else:
                with self._services.admission.place(TENANT):
                    self._sandbox = await self._services.engine.create(self._spec(seconds))
            return self._sandbox

    def _spec(self, seconds: float) -> SandboxSpec:
        templates = self._services.templates
        name = TEMPLATE if templates.find(TEMPLATE) is not None else templates.names()[0]
        template = templates.find(name)
        if template is None:
            raise StartupFailed(f"the template {name!r} is gone")
        asked = schema.NewSandbox(template_id=name)
        reach = network.reach_of(
            asked.network, allowed=asked.allow_internet_access, internet=self._services.internet
        )
        notes = Notes(template=name, timeout=int(seconds), warnings=reach.warnings)
        return SandboxSpec(
            template=template,
            limits=template.limits,
            network=reach.policy,
            timeout=seconds,
            isolation=self._services.isolation,
            tenant=TENANT,
            notes=as_notes(notes),
        )

    def _plane(self, port: int) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if await _refused(scope, send):
                return
            try:
                sandbox = await self.sandbox()
            except CellforkError as error:
                refusal = refusal_of(error)
                await gateway.refuse(scope, send, refusal.status, str(refusal))
                return
            await self._dialect.plane(sandbox, port)(scope, receive, send)

        return app

    async def _api(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the control plane, where the sandbox has the id that debug clients give it."""
        if await _refused(scope, send):
            return
        if f"/{ID}" in scope["path"]:
            try:
                told = f"/{(await self.sandbox()).id}"
            except CellforkError as error:
                refusal = refusal_of(error)
                await gateway.refuse(scope, send, refusal.status, str(refusal))
                return
            scope["path"] = scope["path"].replace(f"/{ID}", told)
            if scope.get("raw_path"):
                scope["raw_path"] = scope["raw_path"].replace(f"/{ID}".encode(), told.encode())
        await self._dialect.app()(scope, receive, send)


async def _refused(scope: Scope, send: Send) -> bool:
    """Refuse what a page in a browser sends: there is no token that it would have to know."""
    if header(scope, b"origin") is None:
        return False
    await gateway.refuse(scope, send, 403, "pages in a browser may not use the debug listeners")
    return True
