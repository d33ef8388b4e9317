"""The transport to one server."""

import asyncio
import builtins
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cellfork.client.host import Host
from cellfork.client.http import calls
from cellfork.client.http.sandbox import HttpSandbox
from cellfork.client.http.wire import Wire, quoted
from cellfork.client.values import SandboxInfo, SnapshotInfo
from cellfork.dialects.e2b.extension.codec import policy_fields
from cellfork.dialects.e2b.extension.errors import error_of
from cellfork.engine.checks import check_envs, check_seconds
from cellfork.model.errors import (
    CellforkError,
    Conflict,
    InvalidRequest,
    NotFound,
    ProtocolViolation,
    SandboxGone,
    Unsupported,
)
from cellfork.model.limits import Limits
from cellfork.model.specs import SandboxSpec, Template

MOST_ENVS = 128 * 1024
MOST_SNAPSHOTS = 100_000
PREFIX = "/e2b"
"""The dialect's own prefix, which its bare paths do without; planes of sandboxes are addressed by headers, and have none."""


class HttpTransport:
    """Sandboxes of the server at ``url``.  The wire is opened with the first call, in the host's loop."""

    calls: Any = calls

    def __init__(self, url: str, api_key: str | None) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"the url of a server begins with http:// or https://, not {url!r:.200}")
        self.host = Host("cellfork-http")
        self._url = url.rstrip("/").removesuffix(PREFIX)
        self._api_key = api_key
        self._opened: Wire | None = None
        self._closed = False

    @property
    def wire(self) -> Wire:
        """The connections; use them in the host's loop only."""
        if self._closed:
            raise Conflict("the connection to the server was closed")
        if self._opened is None:
            self._opened = Wire(self._url, self._api_key)
        return self._opened

    async def create(self, spec: SandboxSpec) -> HttpSandbox:
        """Create a sandbox (called in the host's loop); where the wait is given up, it is killed as soon as it is there."""
        body = body_of(spec)
        creating = self.wire.spawn(self.wire.call("POST", "/v2/sandboxes", body))
        try:
            answer = await asyncio.shield(creating)
        except asyncio.CancelledError:
            creating.add_done_callback(self._unwanted)
            raise
        return self._made(answer)

    async def connect(self, id: str, timeout: float | None) -> HttpSandbox:
        """Return a sandbox that is there; it lives for at least ``timeout`` seconds more.  A paused one is woken."""
        path = f"/cellfork/sandboxes/{quoted(id)}"
        known = await self._info(path, id)
        if known["state"] == "ended":
            raise NotFound(f"the sandbox {id!r:.80} has ended")
        if timeout is not None or known["state"] == "paused":
            body = {} if timeout is None else {"timeout": _whole(check_seconds(timeout))}
            await self.wire.call("POST", f"/v2/sandboxes/{quoted(id)}/connect", body)
            known = await self._info(path, id)
        return HttpSandbox(self.wire, known)

    async def list(self) -> "list[SandboxInfo]":
        """Return what is known of the caller's sandboxes, the oldest first."""
        told = await self.wire.call("GET", "/cellfork/sandboxes")
        return [HttpSandbox(self.wire, known).info() for known in told["sandboxes"]]

    async def kill(self, id: str) -> bool:
        """End a sandbox; ``False`` where there is none with this id."""
        try:
            await self.wire.call("DELETE", f"/sandboxes/{quoted(id)}")
        except NotFound:
            return False
        return True

    async def snapshot(self, id: str, name: str | None) -> SnapshotInfo:
        """Keep the files of a sandbox as they are now."""
        body = {} if name is None else {"name": name}
        return _snapshot(await self.wire.call("POST", f"/sandboxes/{quoted(id)}/snapshots", body))

    async def snapshots(self, id: str | None) -> "builtins.list[SnapshotInfo]":
        """Return the snapshots of the caller, or of one sandbox, the newest first."""
        query, found = {"limit": "100"} | ({} if id is None else {"sandboxID": id}), []
        while True:
            answer, token = await self.wire.page("/snapshots", query)
            found += [_snapshot(fields) for fields in answer]
            if not token or len(found) >= MOST_SNAPSHOTS:
                return found
            query["nextToken"] = token

    async def delete_snapshot(self, id: str) -> bool:
        """Delete a snapshot; ``False`` where there is none such."""
        try:
            await self.wire.call("DELETE", f"/templates/{quoted(id)}")
        except NotFound:
            return False
        return True

    async def fork(
        self, id: str, count: int, timeout: float | None
    ) -> "builtins.list[HttpSandbox | CellforkError]":
        """Start sandboxes with the files that a sandbox has now; return each, or why it could not be started."""
        seconds = check_seconds(timeout)
        if seconds is None:
            raise Unsupported("copies of a remote sandbox have an end; call set_timeout(None) on each")
        body = {"count": count, "timeout": _whole(seconds)}
        answers = await self.wire.call("POST", f"/sandboxes/{quoted(id)}/fork", body)
        return [await self._copy(answer) for answer in answers]

    async def _copy(self, answer: Mapping[str, Any]) -> "HttpSandbox | CellforkError":
        if "sandbox" not in answer:
            error = answer.get("error") or {}
            return error_of(int(error.get("code", 500)), error)
        try:
            return await self.connect(answer["sandbox"]["sandboxID"], None)
        except CellforkError as error:
            return error

    def close(self) -> None:
        """Close every connection and end the thread; the sandboxes live on.  Idempotent."""
        self.host.close(self._close_wire)

    async def _info(self, path: str, id: str) -> dict[str, Any]:
        try:
            return await self.wire.call("GET", path)  # type: ignore[no-any-return]
        except SandboxGone as error:
            raise NotFound(f"no sandbox {id!r:.80}: {error}") from None

    def _made(self, answer: Mapping[str, Any]) -> HttpSandbox:
        known = answer.get("cellfork")
        if not isinstance(known, dict):
            raise ProtocolViolation(f"{self._url} is no cellfork server: it does not tell what was created")
        return HttpSandbox(self.wire, known)

    def _unwanted(self, creating: "asyncio.Task[Any]") -> None:
        if not creating.cancelled() and creating.exception() is None and not self._closed:
            calls.abandon(self._made(creating.result()))

    async def _close_wire(self) -> None:
        self._closed = True
        if self._opened is not None:
            await self._opened.aclose()


def body_of(spec: SandboxSpec) -> dict[str, Any]:
    """Return the request for a sandbox: E2B's fields for what they can say, ``cellfork`` for the rest.

    Raises :class:`Unsupported` for what a server decides alone: the tenant is the key's, templates are its own.
    """
    if spec.tenant:
        raise Unsupported("the tenant of a remote sandbox is that of the api_key; leave tenant out")
    _check_template(spec.template)
    own: dict[str, Any] = {
        "network": policy_fields(spec.network),
        "isolation": spec.isolation,
        "timeout": check_seconds(spec.timeout),
    }
    if spec.limits != Limits():
        own["limits"] = spec.limits.to_dict()
    body: dict[str, Any] = {
        "templateID": spec.snapshot or spec.template.name,
        "envVars": check_envs(spec.envs, MOST_ENVS),
        "metadata": dict(spec.metadata),
        "cellfork": own,
    }
    if spec.on_deadline == "pause":
        body["autoPause"], body["autoPauseMemory"] = True, spec.pause_memory
    return body


def _snapshot(fields: Mapping[str, Any]) -> SnapshotInfo:
    try:
        return SnapshotInfo(fields["snapshotID"], tuple(fields["names"]))
    except (KeyError, TypeError) as error:
        raise ProtocolViolation(f"the server told of a snapshot what cannot be: {error!r}") from None


def _check_template(template: Template) -> None:
    own = Template(name=template.name, limits=template.limits)
    different = [
        field.name for field in fields(Template) if getattr(template, field.name) != getattr(own, field.name)
    ]
    if different:
        raise Unsupported(
            f"templates of a remote sandbox are the server's: name one, without {', '.join(different)} of your own"
        )


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds))
