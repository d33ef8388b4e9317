"""Where a client's sandboxes live: embedded in this process now, behind a server's URL later."""

import atexit
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Protocol

from cellfork.client.host import Host
from cellfork.model.errors import Unsupported
from cellfork.model.specs import SandboxSpec

if TYPE_CHECKING:
    from cellfork.engine.engine import Engine
    from cellfork.engine.sandbox import Sandbox as Remote
    from cellfork.engine.settings import Settings
    from cellfork.runtimes.base import Runtime

URL_VARIABLE = "CELLFORK_URL"


class Transport(Protocol):
    """Makes sandboxes.  What it returns is used in the loop of its host only."""

    host: Host

    async def create(self, spec: SandboxSpec) -> "Remote":
        """Start a sandbox (called in the host's loop)."""
        ...


class EmbeddedTransport:
    """An engine in this process, in a thread of its own.

    The runtimes are made when they are used first; ``runtimes`` puts others in their place.
    """

    def __init__(
        self, runtimes: "Mapping[str, Runtime] | None" = None, settings: "Settings | None" = None
    ) -> None:
        self.host = Host()
        self._runtimes = runtimes
        self._settings = settings
        self._engine: Engine | None = None

    async def create(self, spec: SandboxSpec) -> "Remote":
        """Start a sandbox (called in the host's loop)."""
        return await self.engine.create(spec)

    @property
    def engine(self) -> "Engine":
        """The engine; use it in the host's loop only."""
        if self._engine is None:
            from cellfork.engine.engine import Engine
            from cellfork.engine.runtimes import LazyRuntimes

            self._engine = Engine(self._runtimes or LazyRuntimes(), self._settings)
        return self._engine

    def close(self) -> None:
        """Kill every sandbox and end the thread.  Idempotent."""
        self.host.close(self._close_engine)

    async def _close_engine(self) -> None:
        if self._engine is not None:
            await self._engine.aclose()


@cache
def embedded() -> EmbeddedTransport:
    """Return the transport that all embedded sandboxes of this process share.

    It is closed when the program ends.  A forked child gets one of its own.
    """
    transport = EmbeddedTransport()
    atexit.register(transport.close)
    os.register_at_fork(after_in_child=transport.host.abandon)
    os.register_at_fork(after_in_child=embedded.cache_clear)
    return transport


def choose(url: str | None = None, api_key: str | None = None) -> Transport:
    """Return the transport for ``url`` (or ``CELLFORK_URL``); neither means embedded.

    Raises :class:`Unsupported` for a remote one: it comes with the server.
    """
    wanted = url or os.environ.get(URL_VARIABLE)
    if wanted:
        source = "url" if url else URL_VARIABLE
        raise Unsupported(
            f"{source}={wanted!r}: remote sandboxes come with the cellfork server, which is not part of this "
            "version; leave it out to run sandboxes embedded in this process"
        )
    if api_key is not None:
        raise Unsupported("an api_key needs a url: embedded sandboxes have no server to log in to")
    return embedded()
