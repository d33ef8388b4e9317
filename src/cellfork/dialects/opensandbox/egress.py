"""Port 18080 of a sandbox: its network policy, as upstream's egress sidecar shows it.

Source: ``specs/egress-api.yaml`` of OpenSandbox.  Errors are plain text there.
"""

from typing import Any, Final

import msgspec

from cellfork.dialects.asgi import (
    Receive,
    Scope,
    Send,
    name_route,
    read_body,
    read_json,
    send_body,
    send_json,
    state,
)
from cellfork.dialects.base import Internet, Services
from cellfork.dialects.opensandbox import errors, network, registry, schema
from cellfork.dialects.opensandbox.registry import Notes, Policy
from cellfork.engine.sandbox import Sandbox

TEXT: Final = b"text/plain; charset=utf-8"
ENFORCEMENT: Final = "proxy"
"""How a policy is held: one way out, a proxy outside of the sandbox."""
NO_VAULT: Final = "credential vault is not available: the proxy never looks inside TLS"


def status(policy: Policy, *, with_policy: bool = False, reason: str | None = None) -> dict[str, Any]:
    """Return what a client is told of a policy."""
    told: dict[str, Any] = {
        "status": "ok",
        "mode": network.mode_of(policy),
        "enforcementMode": ENFORCEMENT,
    }
    if reason is not None:
        told["reason"] = reason
    if with_policy:
        told["policy"] = msgspec.to_builtins(policy)
    return told


async def change(sandbox: Sandbox, notes: Notes, policy: Policy, internet: Internet) -> None:
    """Let a policy hold from now on.  Raises :class:`Refused` where it cannot be had; then the old one holds."""
    network.apply(sandbox, network.effective(policy, internet))
    await registry.keep(sandbox, msgspec.structs.replace(notes, policy=policy))


class EgressApp:
    """Serves the policy of the sandbox in ``scope["state"]["sandbox"]``; who may come in was decided before."""

    def __init__(self, services: Services) -> None:
        self._limit = services.limits.body
        self._internet = services.internet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self._answer(scope, receive, send)
        except errors.HANDLED as error:
            code, body = errors.read(error)
            await send_body(send, code, body["message"].encode(errors="replace"), TEXT)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        name_route(scope, "opensandbox", "egress")
        if path == "/healthz":
            await send_body(send, 200, b"ok", TEXT)
        elif path == "/credential-vault" or path.startswith("/credential-vault/"):
            missing = scope["method"] in {"GET", "HEAD"}
            await send_body(send, 404 if missing else 412, NO_VAULT.encode(), TEXT)
        elif path == "/policy":
            await self._policy(scope, receive, send)
        else:
            await send_body(send, 404, b"not found", TEXT)

    async def _policy(self, scope: Scope, receive: Receive, send: Send) -> None:
        sandbox: Sandbox = state(scope)["sandbox"]
        notes = registry.notes_of(sandbox)
        if notes is None:
            raise errors.not_found(sandbox.id)
        current, method = network.shown(sandbox, notes.policy), scope["method"]
        if method in {"GET", "HEAD"}:
            await send_json(send, 200, status(current, with_policy=True))
            return
        if method not in {"POST", "PUT", "PATCH", "DELETE"}:
            allowed = [(b"allow", b"GET, POST, PUT, PATCH, DELETE")]
            await send_body(send, 405, b"method not allowed", TEXT, allowed)
            return
        body = (await read_body(scope, receive, self._limit)).strip()
        policy = _changed(method, body, current)
        if policy == current:
            await send_json(send, 200, status(current, reason="nothing changed"))
            return
        await change(sandbox, notes, policy, self._internet)
        await send_json(send, 200, status(policy))


def _changed(method: str, body: bytes, current: Policy) -> Policy:
    """Return the policy after a request.  Raises ``msgspec.MsgspecError``, :class:`Refused`."""
    if method in {"POST", "PUT"}:
        asked = read_json(body, schema.NetworkPolicy | None)
        if asked is None:
            return Policy()
        return Policy(asked.default_action or network.DENY, tuple(asked.egress or ()))
    if method == "PATCH":
        rules = read_json(body, list[schema.Rule])
        if not rules:
            raise errors.invalid("invalid patch rules: empty array")
        return network.merged(current, rules)
    targets = read_json(body, list[schema.Target])
    if not targets:
        raise errors.invalid("invalid delete targets: empty array")
    return network.without(current, targets)
