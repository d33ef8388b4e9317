"""What a dialect is, and what it is given."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from cellfork.dialects.asgi import ASGIApp, Scope
from cellfork.engine.engine import Engine
from cellfork.model.errors import LimitExceeded
from cellfork.model.hosts import PACKAGES
from cellfork.model.limits import MiB
from cellfork.model.network import NetworkPolicy
from cellfork.model.specs import Template

Internet = Literal["none", "packages", "public"]
"""What "internet access" means on this server: nothing, the package indexes, any public host."""

Speaker = Callable[[dict[str, Any]], asyncio.Protocol]
"""Makes the protocol of one connection; the requests that come over it find a copy of the dict in ``scope["state"]``."""

SandboxApp = ASGIApp
"""An ASGI app of one plane of a sandbox.  The sandbox is in ``scope["state"]["sandbox"]``;
``scope["state"]["inside"]`` is true where the request came from inside it."""


def policy_for(internet: Internet) -> NetworkPolicy:
    """Return what a sandbox may reach that has internet access on a server where this is what it means."""
    if internet == "packages":
        return NetworkPolicy("allow", (PACKAGES,))
    return NetworkPolicy(internet)


class Keys(Protocol):
    """Who may call.  One set of keys serves all dialects; each takes them from its own header."""

    def owner(self, presented: str | None) -> str | None:
        """Return the tenant whose key this is, or ``None``: not allowed.

        The name may be empty (the tenant without a name), so compare with ``is None``.  Takes the same time
        for every wrong key.  ``presented`` is ``None`` where the request carries no key: allowed only where
        the server runs without keys.
        """


class Templates(Protocol):
    """What sandboxes can start from, by name or alias."""

    def find(self, name: str) -> Template | None:
        """Return the template of this name or alias, or ``None``."""

    def names(self) -> list[str]:
        """Return the names of the templates (aliases left out), the default one first."""

    def aliases(self, name: str) -> list[str]:
        """Return the other names of a template."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds that every dialect keeps.  Sizes are bytes, durations seconds."""

    body: int = 40 * MiB
    """Most of a body that is read as a whole (JSON, code)."""
    upload: int = 10 * 1024 * MiB
    """Most of a body that is streamed into a sandbox."""
    default_timeout: float = 300.0
    """Life of a sandbox whose creator names none."""
    max_timeout: float | None = 24 * 3600.0
    """Longest life that may be asked for at once (``None``: any)."""


class Admission:
    """Counts the sandboxes of the server and of each tenant, those included that are being created.

    ``most`` and ``most_per_tenant`` are how many may live at once (``None``: any number).
    """

    def __init__(self, engine: Engine, most: int | None = None, most_per_tenant: int | None = None) -> None:
        self._engine = engine
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._coming: list[str] = []

    @property
    def most(self) -> int | None:
        """How many sandboxes a tenant may have at once, where that is bounded."""
        bounds = [bound for bound in (self._most, self._most_per_tenant) if bound is not None]
        return min(bounds, default=None)

    @contextmanager
    def place(self, tenant: str, count: int = 1) -> Iterator[None]:
        """Hold places for ``count`` sandboxes while they are created.  Raises :class:`LimitExceeded`."""
        live = [sandbox.spec.tenant for sandbox in self._engine.list()] + self._coming
        if self._most is not None and len(live) + count > self._most:
            raise LimitExceeded(f"this server holds at most {self._most} sandboxes at once")
        if self._most_per_tenant is not None and live.count(tenant) + count > self._most_per_tenant:
            raise LimitExceeded(f"this key may have at most {self._most_per_tenant} sandboxes at once")
        coming = [tenant] * count
        self._coming += coming
        try:
            yield
        finally:
            for name in coming:
                self._coming.remove(name)


@dataclass(frozen=True, slots=True)
class Services:
    """What a dialect gets from the composition root.

    ``domain`` is the wildcard domain under which ``{port}-{id}.{domain}`` reaches ports of sandboxes, with
    its port where that is not the scheme's own; ``None``: clients use headers.  ``internet`` is what a request
    for internet access gives.  ``isolation`` is how sandboxes are isolated (``SandboxSpec.isolation``).  ``images`` maps patterns
    of container images to names of templates, for clients that name images.  ``host_volumes`` are the directories that sandboxes may
    mount, with what is below them; ``volumes`` is where named volumes are kept (``None``: nowhere).
    ``speaks`` returns what speaks HTTP for an app on connections that come from inside sandboxes, with the server's
    own bounds; ``None``: nothing is served there.
    """

    engine: Engine
    keys: Keys
    templates: Templates
    admission: Admission
    limits: RequestLimits = RequestLimits()
    domain: str | None = None
    internet: Internet = "none"
    isolation: str = "namespaces"
    images: Mapping[str, str] = field(default_factory=dict)
    host_volumes: tuple[str, ...] = ()
    volumes: str | None = None
    speaks: Callable[[ASGIApp], Speaker] | None = None

    @property
    def default_network(self) -> NetworkPolicy:
        """What a sandbox may reach whose creator says nothing of it: what "internet access" means on this server."""
        return policy_for(self.internet)


class Dialect(Protocol):
    """One API family.  Made with :class:`Services`, by the composition root alone."""

    name: ClassVar[str]
    """Its folder, its prefix (``/e2b``) and its label in metrics."""
    openapi: ClassVar[Path | None]
    """The static specification of what it serves: OpenAPI 3.1, as JSON (the standard library reads no YAML)."""

    def owns(self, scope: Scope) -> bool:
        """Whether a request is this dialect's by its headers or its host name, whatever its path.

        Asked for every request before anything of the server's own (``/health``, ``/metrics``, ``/docs``) is
        matched, so that a path of a sandbox's plane is never mistaken for one of the server's.  Cheap.
        """

    def app(self) -> ASGIApp:
        """Return the app that takes every request of this dialect, ``http`` and ``websocket``."""

    async def start(self) -> None:
        """Begin to serve; the engine holds the sandboxes that it adopted."""

    async def aclose(self) -> None:
        """Give back what the dialect holds.  Idempotent."""
