"""Where a client's sandboxes live: embedded in this process, or behind a server's URL."""

import atexit
import builtins
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from cellfork.client import remote
from cellfork.client.host import Host
from cellfork.client.values import SnapshotInfo
from cellfork.model.errors import InvalidRequest, NotFound, Unsupported
from cellfork.model.specs import SandboxSpec

if TYPE_CHECKING:
    from cellfork.client.values import SandboxInfo
    from cellfork.engine.engine import Engine
    from cellfork.engine.sandbox import Sandbox as Remote
    from cellfork.engine.settings import Settings
    from cellfork.engine.snapshots import Snapshot
    from cellfork.runtimes.base import Runtime

URL_VARIABLE = "CELLFORK_URL"
KEY_VARIABLE = "CELLFORK_API_KEY"


class Transport(Protocol):
    """Makes sandboxes and finds them.  What it returns is used in the loop of its host only; its coroutines are run there.

    ``calls`` holds the functions of :mod:`cellfork.client.remote` for its sandboxes.
    """

    host: Host
    calls: Any

    async def create(self, spec: SandboxSpec) -> Any:
        """Start a sandbox."""
        ...

    async def connect(self, id: str, timeout: float | None) -> Any:
        """Return a sandbox that is there; it lives for at least ``timeout`` seconds more.  Raises :class:`NotFound`."""
        ...

    async def list(self) -> "list[SandboxInfo]":
        """Return what is known of the sandboxes that are there, the oldest first."""
        ...

    async def kill(self, id: str) -> bool:
        """End a sandbox; ``False`` where there is none with this id."""
        ...

    async def snapshot(self, id: str, name: str | None) -> "SnapshotInfo":
        """Keep the files of a sandbox as they are now."""
        ...

    async def snapshots(self, id: str | None) -> "builtins.list[SnapshotInfo]":
        """Return the snapshots, or those of one sandbox, the newest first."""
        ...

    async def delete_snapshot(self, id: str) -> bool:
        """Delete a snapshot; ``False`` where there is none such."""
        ...

    async def fork(self, id: str, count: int, timeout: float | None) -> "builtins.list[Any]":
        """Start sandboxes with the files that a sandbox has now; return each, or why it could not be started."""
        ...


class EmbeddedTransport:
    """An engine in this process, in a thread of its own.

    The runtimes are made when they are used first; ``runtimes`` puts others in their place.
    """

    calls: Any = remote

    def __init__(
        self, runtimes: "Mapping[str, Runtime] | None" = None, settings: "Settings | None" = None
    ) -> None:
        self.host = Host()
        self._runtimes = runtimes
        self._settings = settings
        self._engine: Engine | None = None

    async def create(self, spec: SandboxSpec) -> "Remote":
        """Start a sandbox (called in the host's loop).  With a snapshot, limits that are the template's are the snapshot's."""
        if spec.snapshot is not None and spec.limits == spec.template.limits:
            spec = replace(spec, limits=self.engine.find_snapshot(spec.snapshot, spec.tenant).limits)
        return await self.engine.create(spec)

    async def connect(self, id: str, timeout: float | None) -> "Remote":
        """Return a sandbox of this process; it lives for at least ``timeout`` seconds more.  A paused one is woken."""
        found = self.engine.get(id)
        if found.state == "paused":
            await found.resume(**({} if timeout is None else {"timeout": timeout}))
        elif timeout is not None and found.deadline is not None:
            left = found.deadline - found.settings.clock.time_ns() / 1e9
            if left < timeout:
                found.set_timeout(timeout)
        return found

    async def list(self) -> "list[SandboxInfo]":
        """Return what is known of the sandboxes of this process, the oldest first."""
        return [remote.info_of(sandbox) for sandbox in self.engine.list()]

    async def kill(self, id: str) -> bool:
        """End a sandbox; ``False`` where there is none with this id."""
        try:
            await self.engine.kill(id)
        except NotFound:
            return False
        return True

    async def snapshot(self, id: str, name: str | None) -> "SnapshotInfo":
        """Keep the files of a sandbox as they are now."""
        return _info(await self.engine.snapshot(id, name))

    async def snapshots(self, id: str | None) -> "builtins.list[SnapshotInfo]":
        """Return the snapshots of this process, or those of one sandbox, the newest first."""
        return [_info(snapshot) for snapshot in self.engine.snapshots(sandbox_id=id)]

    async def delete_snapshot(self, id: str) -> bool:
        """Delete a snapshot; ``False`` where there is none such."""
        try:
            await self.engine.delete_snapshot(id)
        except NotFound:
            return False
        return True

    async def fork(self, id: str, count: int, timeout: float | None) -> "builtins.list[Any]":
        """Start sandboxes with the files that a sandbox has now; return each, or why it could not be started."""
        return [*await self.engine.fork(id, count, timeout)]

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


def _info(snapshot: "Snapshot") -> "SnapshotInfo":
    return SnapshotInfo(snapshot.id, snapshot.names)


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


@cache
def served(url: str, api_key: str | None) -> Transport:
    """Return the transport that all sandboxes of one server and key share in this process.

    It is closed when the program ends; its sandboxes live on.  A forked child gets one of its own.
    """
    from cellfork.client.http.transport import HttpTransport  # with it comes an HTTP client

    transport = HttpTransport(url, api_key)
    atexit.register(transport.close)
    os.register_at_fork(after_in_child=transport.host.abandon)
    os.register_at_fork(after_in_child=served.cache_clear)
    return transport


def choose(url: str | None = None, api_key: str | None = None) -> Transport:
    """Return the transport for ``url`` (or ``CELLFORK_URL``) and ``api_key`` (or ``CELLFORK_API_KEY``).

    No url means embedded; then an ``api_key`` is :class:`Unsupported`, there is no server to log in to.
    """
    wanted = url or os.environ.get(URL_VARIABLE)
    if wanted:
        return served(wanted, _checked(api_key or _first(os.environ.get(KEY_VARIABLE))))
    if api_key is not None:
        raise Unsupported("an api_key needs a url: embedded sandboxes have no server to log in to")
    return embedded()


def _first(keys: str | None) -> str | None:
    """Return a key of the variable that a server takes its own from: ``key``, or ``tenant:key,tenant:key``."""
    first = (keys or "").partition(",")[0].strip()
    return first.partition(":")[2] or first or None


def _checked(key: str | None) -> str | None:
    if key is None or (isinstance(key, str) and key.isascii() and key.isprintable()):
        return key
    raise InvalidRequest("an api_key is printable ASCII text")
