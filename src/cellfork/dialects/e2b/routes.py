"""The control plane: which handler answers what, who may call, and the form of every answer."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import quote

from cellfork.dialects.asgi import (
    ClientGone,
    Receive,
    Scope,
    Send,
    header,
    name_route,
    read_body,
    says_json,
    send_body,
    send_json,
    state,
)
from cellfork.dialects.base import Services
from cellfork.dialects.e2b import metrics, sandboxes, snapshots, templates, unserved
from cellfork.dialects.e2b.calls import Call, Reply, parse_query
from cellfork.dialects.e2b.errors import Refusal, bad, body_of, is_bug, refusal_of
from cellfork.dialects.e2b.extension.errors import code_header
from cellfork.dialects.e2b.idempotency import Replays
from cellfork.dialects.e2b.router import Found, Router, WrongMethod
from cellfork.dialects.e2b.unserved import Handler
from cellfork.model.limits import MiB

NAME = "e2b"
BODY = 1 * MiB
"""Most of a body that the control plane reads."""

SERVED: Mapping[tuple[str, str], Handler] = MappingProxyType(
    {
        ("POST", "/sandboxes"): sandboxes.create,
        ("POST", "/v2/sandboxes"): sandboxes.create_v2,
        ("GET", "/sandboxes"): sandboxes.list_running,
        ("GET", "/v2/sandboxes"): sandboxes.list_all,
        ("GET", "/sandboxes/metrics"): metrics.of_many,
        ("GET", "/sandboxes/{sandboxID}"): sandboxes.info,
        ("DELETE", "/sandboxes/{sandboxID}"): sandboxes.kill,
        ("GET", "/sandboxes/{sandboxID}/metrics"): metrics.of_one,
        ("POST", "/sandboxes/{sandboxID}/connect"): sandboxes.connect,
        ("POST", "/v2/sandboxes/{sandboxID}/connect"): sandboxes.connect_v2,
        ("POST", "/sandboxes/{sandboxID}/resume"): sandboxes.resume,
        ("POST", "/sandboxes/{sandboxID}/pause"): sandboxes.pause,
        ("POST", "/sandboxes/{sandboxID}/timeout"): sandboxes.set_timeout,
        ("POST", "/sandboxes/{sandboxID}/refreshes"): sandboxes.refresh,
        ("PUT", "/sandboxes/{sandboxID}/network"): sandboxes.update_network,
        ("POST", "/sandboxes/{sandboxID}/fork"): sandboxes.fork,
        ("POST", "/sandboxes/{sandboxID}/snapshots"): snapshots.create,
        ("GET", "/snapshots"): snapshots.list_snapshots,
        ("GET", "/templates"): templates.list_templates,
        ("GET", "/v2/templates"): templates.list_templates_v2,
        ("GET", "/default-templates"): templates.list_templates,
        ("GET", "/templates/{templateID}"): templates.get_template,
        ("DELETE", "/templates/{templateID}"): snapshots.delete_template,
        ("GET", "/templates/{templateID}/tags"): templates.get_tags,
        ("GET", "/templates/aliases/{alias}"): templates.get_alias,
    }
)
"""Method and pattern → handler.  What upstream has besides is in :mod:`cellfork.dialects.e2b.unserved`."""

REPEATABLE = frozenset(
    pattern
    for method, pattern in SERVED
    if method == "POST" and pattern.endswith(("/sandboxes", "/fork", "/snapshots"))
)
"""Patterns that heed an ``Idempotency-Key``: those that make something."""


class ControlApp:
    """E2B's REST API.  An ASGI app for requests that address no sandbox."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._replays: Replays[Reply] = Replays(services.engine.settings.clock)
        refusals = {route: unserved.refuser(why) for route, why in unserved.REASONS.items()}
        self._router: Router[Handler] = Router({**refusals, **SERVED})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.  An error of ours is answered, then raised, so that the server logs it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "this is no WebSocket"})
            return
        try:
            reply = await self._answer(scope, receive)
        except ClientGone:
            return  # nobody is there to be answered
        except Exception as error:
            refusal = refusal_of(error)
            await send_json(send, refusal.status, body_of(refusal), [*refusal.headers, *code_header(error)])
            if is_bug(refusal):
                raise
            return
        if reply.value is None:
            await send_body(send, reply.status, headers=reply.headers)
        else:
            await send_json(send, reply.status, reply.value, reply.headers)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        found = self._find(scope)
        name_route(scope, NAME, found.pattern)
        tenant = self._tenant(scope)
        state(scope)["tenant"] = tenant
        body = b"" if scope["method"] == "GET" else await read_body(scope, receive, BODY)
        _check_type(scope, body)
        query = parse_query(scope["query_string"])
        call = Call(self._services, tenant, found.parameters, query, body)
        key = header(scope, b"idempotency-key")
        if key is None or scope["method"] != "POST" or found.pattern not in REPEATABLE:
            return await found.handler(call)
        asked = f"{found.pattern}\n{sorted(found.parameters.items())}\n".encode() + body
        digest = hashlib.sha256(asked).digest()  # bodies are large, and many answers are kept
        return await self._replays.once(tenant, key, digest, lambda: found.handler(call))

    def _find(self, scope: Scope) -> Found[Handler]:
        try:
            found = self._router.find(scope["method"], _path(scope))
        except WrongMethod as wrong:
            allow = (b"allow", ", ".join(wrong.allowed).encode())
            raise Refusal(405, f"this path takes {wrong}", headers=(allow,)) from None
        if found is None:
            raise Refusal(404, "there is no such path in this API")
        return found

    def _tenant(self, scope: Scope) -> str:
        """Return whose key the request carries.  Raises :class:`Refusal` (401)."""
        presented = header(scope, b"x-api-key")
        tenant = self._services.keys.owner(presented)
        if tenant is not None:
            return tenant
        if presented is not None:
            raise Refusal(401, "Invalid API key: this server does not know it")
        if header(scope, b"authorization") is not None:
            raise Refusal(401, "access tokens are not taken: send an API key of this server as X-API-KEY")
        raise Refusal(401, "API key is missing: send one of this server as X-API-KEY")


def _path(scope: Scope) -> str:
    """Return the path as it was sent, below the prefix under which this app stands."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    return path.removeprefix(quote(scope.get("root_path", "")))


def _check_type(scope: Scope, body: bytes) -> None:
    """Refuse a body that does not say that it is JSON: pages in a browser can send those without being asked first."""
    if body and not says_json(scope):
        raise bad("Error when parsing request: the body has to be application/json")
