"""The lifecycle API: ``/v1/sandboxes``, ``/v1/snapshots`` and what belongs to them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cellfork.dialects.asgi import name_route, read_body, read_json, says_json, state
from cellfork.dialects.base import Services
from cellfork.dialects.opensandbox import (
    creation,
    egress,
    errors,
    network,
    pools,
    registry,
    schema,
    translate,
)
from cellfork.dialects.opensandbox.access import ACCESS_HEADER, EGRESS_HEADER, signed
from cellfork.dialects.opensandbox.errors import Refused, invalid
from cellfork.dialects.opensandbox.registry import Notes, Policy
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import NotFound
from cellfork.model.limits import MiB

T = TypeVar("T")
Handler = Callable[[Request, str], Awaitable[Response]]
"""A handler of a request whose key belongs to a tenant."""
Endpoint = Callable[[Request], Awaitable[Response]]
KEY_HEADER: Final = "OPEN-SANDBOX-API-KEY"
EGRESS_PORT: Final = 18080
BODY: Final = 1 * MiB
"""Most of a body that this API reads."""

ROUTES: Final[Sequence[tuple[str, str, str]]] = (
    ("POST", "/sandboxes", "create"),
    ("GET", "/sandboxes", "list"),
    ("GET", "/sandboxes/{id}", "get"),
    ("DELETE", "/sandboxes/{id}", "delete"),
    ("PATCH", "/sandboxes/{id}/metadata", "patch_metadata"),
    ("POST", "/sandboxes/{id}/pause", "pause"),
    ("POST", "/sandboxes/{id}/resume", "resume"),
    ("POST", "/sandboxes/{id}/renew-expiration", "renew"),
    ("GET", "/sandboxes/{id}/endpoints/{port}", "endpoint"),
    ("GET", "/sandboxes/{id}/networkpolicy", "get_policy"),
    ("PUT", "/sandboxes/{id}/networkpolicy", "put_policy"),
    ("PATCH", "/sandboxes/{id}/networkpolicy", "patch_policy"),
    ("DELETE", "/sandboxes/{id}/networkpolicy", "delete_policy"),
    ("POST", "/sandboxes/{id}/snapshots", "snapshot"),
    ("GET", "/snapshots", "list_snapshots"),
    ("GET", "/snapshots/{id}", "get_snapshot"),
    ("DELETE", "/snapshots/{id}", "delete_snapshot"),
    ("GET", "/sandboxes/{id}/diagnostics/{what}", "refuse_diagnostics"),
    ("POST", "/pools", "refuse_pools"),
    ("GET", "/pools", "list_pools"),
    ("GET", "/pools/{name}", "get_pool"),
    ("PUT", "/pools/{name}", "refuse_pools"),
    ("DELETE", "/pools/{name}", "refuse_pools"),
    ("POST", "/templates", "refuse_templates"),
    ("GET", "/templates", "refuse_templates"),
    ("GET", "/templates/{id}", "refuse_templates"),
    ("DELETE", "/templates/{id}", "refuse_templates"),
    ("POST", "/metrics/events", "take_event"),
)
"""Method, path below ``/v1``, and the method of :class:`Lifecycle` that answers."""

NO_POOLS = (
    "pools are not managed over the API: they are the templates of this server, and how many sandboxes wait is one of its settings. "
    "Name a template in extensions.poolRef, or ask the server's owner for one"
)
NO_DIAGNOSTICS = "The stable Diagnostics API is not implemented by this server."
NO_TEMPLATES = "templates are settings of this server; its owner adds them"


class Lifecycle:
    """Serves the lifecycle API."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._engine = services.engine
        self._creation = creation.Creation(services)

    async def start(self) -> None:
        """Take care of what was adopted."""
        await self._creation.start()

    async def aclose(self) -> None:
        """Wait for what nobody waits for."""
        await self._creation.aclose()

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes, each with its check of the key, with and without the version."""
        handlers: dict[str, dict[str, Endpoint]] = {}
        for method, path, name in ROUTES:
            handlers.setdefault(path, {})[method] = self._guarded(path, getattr(self, name))
        return [
            Route(f"{version}{path}", _by_method(found), methods=[*found])
            for path, found in handlers.items()
            for version in ("/v1", "")
        ]

    # ------------------------------------------------------------------------------------- sandboxes

    async def create(self, request: Request, tenant: str) -> Response:
        """Create a sandbox; it runs when this answers."""
        body = await self._body(request, schema.CreateSandbox)
        sandbox, notes = await self._creation.create(body, tenant)
        where = f"{state(request.scope).get('prefix', '')}/v1/sandboxes/{sandbox.id}"
        return JSONResponse(translate.created(sandbox, notes), 202, {"Location": where})

    async def list(self, request: Request, tenant: str) -> Response:
        """List sandboxes, the newest first: by states (any of them) and metadata (all of it), in pages."""
        query = request.query_params
        states = {*query.getlist("state")}
        wanted = translate.wanted_metadata(query.get("metadata"))
        found = [
            (sandbox, notes)
            for sandbox, notes in registry.everything(self._engine, tenant)
            if (not states or translate.state_of(sandbox) in states)
            and translate.has_metadata(notes.metadata, wanted)
        ]
        chosen, told = translate.page(found, query)
        return JSONResponse({"items": [translate.described(*one) for one in chosen], "pagination": told})

    async def get(self, request: Request, tenant: str) -> Response:
        """Return a sandbox."""
        return JSONResponse(translate.described(*self._find(request, tenant)))

    async def delete(self, request: Request, tenant: str) -> Response:
        """End a sandbox; nothing of it is left when this answers."""
        sandbox, _notes = self._find(request, tenant)
        await sandbox.kill()
        return Response(status_code=204)

    async def patch_metadata(self, request: Request, tenant: str) -> Response:
        """Add, replace and (``null``) remove metadata."""
        patch = await self._body(request, schema.MetadataPatch)
        sandbox, notes = self._find(request, tenant)
        added = {key: value for key, value in patch.items() if value is not None}
        translate.check_labels({**dict.fromkeys(patch, ""), **added})
        metadata = {key: value for key, value in notes.metadata.items() if key not in patch} | added
        notes = replace(notes, metadata=metadata)
        await registry.keep(sandbox, notes)
        return JSONResponse(translate.described(sandbox, notes))

    async def pause(self, request: Request, tenant: str) -> Response:
        """Hold a sandbox still, with everything that runs in it."""
        sandbox, _notes = self._find(request, tenant)
        if sandbox.state == "paused":
            raise Refused(409, errors.NOT_RUNNING, f"Sandbox {sandbox.id} is not in a running state.")
        await sandbox.pause()
        return Response(status_code=202)

    async def resume(self, request: Request, tenant: str) -> Response:
        """Let a paused sandbox go on, for as long as it was created for."""
        sandbox, _notes = self._find(request, tenant)
        if sandbox.state == "running":
            raise Refused(409, errors.NOT_PAUSED, f"Sandbox {sandbox.id} is not in a paused state.")
        await sandbox.resume()
        return Response(status_code=202)

    async def renew(self, request: Request, tenant: str) -> Response:
        """Let a sandbox end at another time."""
        body = await self._body(request, schema.Renew)
        sandbox, _notes = self._find(request, tenant)
        seconds = translate.moment(body.expires_at) - self._now()
        if seconds <= 0:
            raise Refused(400, errors.INVALID_EXPIRATION, "New expiration time must be in the future.")
        most = self._services.limits.max_timeout
        if most is not None and seconds > most:
            raise invalid(f"a sandbox may live for {most:g} seconds from now at most on this server")
        sandbox.check_running()
        if sandbox.deadline is None:
            message = f"Sandbox {sandbox.id} does not have automatic expiration enabled."
            raise Refused(409, errors.INVALID_EXPIRATION, message)
        sandbox.set_timeout(seconds)
        return JSONResponse({"expiresAt": translate.iso(sandbox.deadline)})

    async def endpoint(self, request: Request, tenant: str) -> Response:
        """Tell where a port of a sandbox is reached, and with which headers.

        The way is the same with and without ``use_server_proxy``: it leads through this server.
        """
        sandbox, notes = self._find(request, tenant)
        port = _port(request.path_params["port"])
        expires = _expires(request.query_params)
        prefix = state(request.scope).get("prefix", "")
        told: translate.Json = {
            "endpoint": f"{request.url.netloc}{prefix}/sandboxes/{sandbox.id}/proxy/{port}"
        }
        headers = self._headers(notes, port, expires)
        if headers:
            told["headers"] = headers
        return JSONResponse(told)

    def _headers(self, notes: Notes, port: int, expires: int | None) -> dict[str, str]:
        headers = {EGRESS_HEADER: notes.egress_token} if port == EGRESS_PORT else {}
        if expires is not None:
            if notes.access_token is None:
                raise invalid("`expires` needs a sandbox that was created with secureAccess")
            if expires <= self._now():
                raise invalid("`expires` is in the past")
            headers[ACCESS_HEADER] = signed(notes.access_token, port, expires)
        elif notes.access_token is not None:
            headers[ACCESS_HEADER] = notes.access_token
        return headers

    # ------------------------------------------------------------------------------------ the way out

    async def get_policy(self, request: Request, tenant: str) -> Response:
        """Return what a sandbox may reach."""
        sandbox, notes = self._find(request, tenant)
        return JSONResponse(egress.status(network.shown(sandbox, notes.policy), with_policy=True))

    async def put_policy(self, request: Request, tenant: str) -> Response:
        """Replace what a sandbox may reach."""
        asked = await self._body(request, schema.NetworkPolicy)
        sandbox, notes = self._find(request, tenant)
        policy = Policy(asked.default_action or network.DENY, tuple(asked.egress or ()))
        return await self._changed(sandbox, notes, policy)

    async def patch_policy(self, request: Request, tenant: str) -> Response:
        """Put rules before those that there are."""
        rules = await self._body(request, list[schema.Rule])
        sandbox, notes = self._find(request, tenant)
        return await self._changed(
            sandbox, notes, network.merged(network.shown(sandbox, notes.policy), rules)
        )

    async def delete_policy(self, request: Request, tenant: str) -> Response:
        """Remove the rules for some targets."""
        targets = await self._body(request, list[schema.Target])
        sandbox, notes = self._find(request, tenant)
        return await self._changed(
            sandbox, notes, network.without(network.shown(sandbox, notes.policy), targets)
        )

    async def _changed(self, sandbox: Sandbox, notes: Notes, policy: Policy) -> Response:
        await egress.change(sandbox, notes, policy, self._services.internet)
        return JSONResponse(egress.status(policy, with_policy=True))

    # ------------------------------------------------------------------------------------- snapshots

    async def snapshot(self, request: Request, tenant: str) -> Response:
        """Keep the files of a sandbox; they are kept when this answers."""
        body = await self._body(request, schema.CreateSnapshot)
        sandbox, _notes = self._find(request, tenant)
        if sandbox.state != "running":
            raise Refused(409, errors.SOURCE_STATE, f"Sandbox {sandbox.id} must be Running.")
        made = await self._engine.snapshot(sandbox.id, body.name)
        where = f"{state(request.scope).get('prefix', '')}/v1/snapshots/{made.id}"
        return JSONResponse(translate.snapshot(made), 202, {"Location": where})

    async def list_snapshots(self, request: Request, tenant: str) -> Response:
        """List snapshots, the newest first: of a sandbox, by name, by states, in pages."""
        query = request.query_params
        states = {*query.getlist("state")}
        found = self._engine.snapshots(
            sandbox_id=query.get("sandboxId"), name=query.get("name"), tenant=tenant
        )
        chosen, told = translate.page(found if not states or translate.READY in states else [], query)
        return JSONResponse({"items": [translate.snapshot(one) for one in chosen], "pagination": told})

    async def get_snapshot(self, request: Request, tenant: str) -> Response:
        """Return a snapshot."""
        return JSONResponse(translate.snapshot(self._find_snapshot(request, tenant)))

    async def delete_snapshot(self, request: Request, tenant: str) -> Response:
        """Delete a snapshot; what was started with it goes on."""
        await self._engine.delete_snapshot(self._find_snapshot(request, tenant).id, tenant)
        return Response(status_code=204)

    # ----------------------------------------------------------------------------------------- pools

    async def list_pools(self, _request: Request, tenant: str) -> Response:
        """List the pools: the templates, each with the sandboxes that wait."""
        return JSONResponse(pools.listed(self._services, tenant))

    async def get_pool(self, request: Request, tenant: str) -> Response:
        """Return a pool."""
        return JSONResponse(pools.found(self._services, tenant, request.path_params["name"]))

    # ---------------------------------------------------------------------------- what is not served

    async def refuse_pools(self, _request: Request, _tenant: str) -> Response:
        """Say that pools are not changed here."""
        return JSONResponse({"code": errors.NO_POOLS, "message": NO_POOLS}, 405, {"Allow": "GET, HEAD"})

    async def refuse_templates(self, _request: Request, _tenant: str) -> Response:
        """Say that templates are not built here."""
        raise Refused(501, errors.UNSUPPORTED, NO_TEMPLATES)

    async def refuse_diagnostics(self, request: Request, tenant: str) -> Response:
        """Say what upstream's own server says."""
        self._find(request, tenant)
        raise Refused(501, errors.NO_DIAGNOSTICS, NO_DIAGNOSTICS)

    async def take_event(self, request: Request, _tenant: str) -> Response:
        """Take what packages tell of how long things took for them; the server measures for itself."""
        await self._body(request, dict[str, Any])
        return Response(status_code=204)

    # --------------------------------------------------------------------------------------- details

    def _guarded(self, path: str, handler: Handler) -> Endpoint:
        @wraps(handler)
        async def guarded(request: Request) -> Response:
            name_route(request.scope, "opensandbox", f"/v1{path}")
            presented = request.headers.get(KEY_HEADER)
            tenant = self._services.keys.owner(presented or None)
            if tenant is None:
                code, what = (errors.WRONG_KEY, "invalid") if presented else (errors.NO_KEY, "missing")
                raise Refused(
                    401,
                    code,
                    f"Authentication credentials are {what}. Provide API key via {KEY_HEADER} header.",
                )
            return await handler(request, tenant)

        return guarded

    async def _body(self, request: Request, kind: type[T]) -> T:
        """Return the body, which has to say that it is JSON: pages in a browser send the rest without asking first."""
        data = await read_body(request.scope, request.receive, min(BODY, self._services.limits.body))
        if data and not says_json(request.scope):
            raise invalid("the body has to be application/json")
        return read_json(data, kind)

    def _find(self, request: Request, tenant: str) -> tuple[Sandbox, Notes]:
        return registry.find(self._engine, request.path_params["id"], tenant)

    def _find_snapshot(self, request: Request, tenant: str) -> Any:
        id = request.path_params["id"]
        try:
            return self._engine.find_snapshot(id, tenant)
        except NotFound:
            raise Refused(404, errors.NO_SNAPSHOT, f"Snapshot {id[:80]} not found.") from None

    def _now(self) -> float:
        return self._engine.settings.clock.time_ns() / 1e9


def _by_method(handlers: Mapping[str, Endpoint]) -> Endpoint:
    """One route for each path: so a method that it does not take is told with all that it takes."""

    async def handle(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return handle


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise Refused(400, errors.INVALID_PORT, "Port must be between 1 and 65535.")
    return int(text)


def _expires(query: Mapping[str, str]) -> int | None:
    text = query.get("expires")
    if text is None:
        return None
    if query.get("use_server_proxy", "false").lower() in {"true", "1"}:
        raise invalid("`expires` cannot be combined with `use_server_proxy`")
    if not (text.isascii() and text.isdecimal()) or len(text) > 20:
        raise invalid("`expires` is a Unix time in seconds")
    return int(text)
