"""The dialect as the server mounts it: whatever comes below ``/together`` is Together's."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from cellfork.dialects.asgi import ASGIApp, Receive, Scope, Send
from cellfork.dialects.base import Services
from cellfork.dialects.images import Images
from cellfork.dialects.together.agent import Agent
from cellfork.dialects.together.builds import Builds
from cellfork.dialects.together.errors import HANDLED, answer_agent, answer_management
from cellfork.dialects.together.management import Management
from cellfork.dialects.together.registry import Sandboxes
from cellfork.dialects.together.snapshots import Snapshots


class Together:
    """Together's two APIs: management at ``/together/v1``, an agent for each sandbox at ``/together/agents/{id}``."""

    name: ClassVar[str] = "together"
    openapi: ClassVar[Path | None] = Path(__file__).with_name("openapi.json")

    def __init__(self, services: Services) -> None:
        sandboxes = Sandboxes(services.engine)
        images = Images(services.images, services.templates)
        snapshots = Snapshots(services.engine, services.templates, images)
        self._builds = Builds(services)
        management = Management(services, sandboxes, snapshots, self._builds)
        self._management = _app(management.routes(), answer_management)
        self._agent = _app(Agent(services, sandboxes).routes(), answer_agent)

    def owns(self, scope: Scope) -> bool:
        """Own nothing but what has the prefix."""
        return False

    def app(self) -> ASGIApp:
        """Return the app that takes every request of this dialect."""
        return self._serve

    async def start(self) -> None:
        """Begin to serve: what an earlier server was building is ended."""
        self._builds.end_strays()

    async def aclose(self) -> None:
        """End what is being built.  Idempotent."""
        await self._builds.aclose()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._agent if scope["path"].startswith("/agents/") else self._management
        await app(scope, receive, send)


def _app(
    routes: Sequence[BaseRoute], answer: Callable[[Request, Exception], Awaitable[Response]]
) -> Starlette:
    """Return an app that answers every error with ``answer``, unknown routes and wrong methods as well."""
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(HANDLED, answer))
    app.router.redirect_slashes = False
    return app
