"""The dialect as the server mounts it: ``/v1/…``, ``/sandboxes/{id}/proxy/{port}/…``, and everything below ``/opensandbox``."""

from pathlib import Path
from typing import ClassVar

from starlette.applications import Starlette

from cellfork.dialects.asgi import ASGIApp, Receive, Scope, Send
from cellfork.dialects.base import Services
from cellfork.dialects.opensandbox.errors import HANDLED, answer
from cellfork.dialects.opensandbox.gateway import Gateway, is_port, refuse
from cellfork.dialects.opensandbox.lifecycle import Lifecycle


class OpenSandbox:
    """Implements :class:`cellfork.dialects.base.Dialect`."""

    name: ClassVar[str] = "opensandbox"
    openapi: ClassVar[Path | None] = Path(__file__).with_name("openapi.json")

    def __init__(self, services: Services) -> None:
        self._gateway = Gateway(services)
        self._lifecycle = Lifecycle(services)
        self._api = Starlette(
            routes=self._lifecycle.routes(), exception_handlers=dict.fromkeys(HANDLED, answer)
        )
        self._api.router.redirect_slashes = False

    def owns(self, scope: Scope) -> bool:
        """Own nothing by headers or host names."""
        return False

    def app(self) -> ASGIApp:
        """Return the app that takes every request of this dialect."""
        return self._serve

    async def start(self) -> None:
        """Begin to serve, the adopted sandboxes inside as well."""
        await self._lifecycle.start()
        self._gateway.start()

    async def aclose(self) -> None:
        """Close every connection from inside a sandbox."""
        await self._gateway.aclose()
        await self._lifecycle.aclose()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_port(scope["path"]):
            await self._gateway(scope, receive, send)
        elif scope["type"] == "http":
            await self._api(scope, receive, send)
        else:
            await refuse(scope, send, 404, {"code": "NOT_FOUND", "message": "no WebSocket is served here"})
