"""The management API: ``/v1/sandboxes``, ``/v1/snapshots``, and the builder of images: ``/builds``."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cellfork.dialects.asgi import (
    allow_body,
    header,
    name_route,
    read_body,
    read_json,
    says_json,
    state,
    stream_body,
)
from cellfork.dialects.base import Services
from cellfork.dialects.together import schema
from cellfork.dialects.together.builds import MOST_FORM, Builds
from cellfork.dialects.together.errors import Refused
from cellfork.dialects.together.registry import Sandboxes, new_notes
from cellfork.dialects.together.snapshots import Snapshots
from cellfork.dialects.together.streams import respond
from cellfork.dialects.together.translate import PROJECT, Json, has_tags, uuid_of
from cellfork.engine.sandbox import Sandbox
from cellfork.model.limits import MiB
from cellfork.model.specs import SandboxSpec

T = TypeVar("T")
Handler = Callable[[Request, str], Awaitable[Response]]
"""A handler of a request whose key belongs to a tenant."""
ROUTES: tuple[tuple[str, str, str], ...] = (
    ("POST", "/v1/sandboxes", "create"),
    ("GET", "/v1/sandboxes", "list"),
    ("GET", "/v1/sandboxes/batch", "batch"),
    ("GET", "/v1/sandboxes/{id}", "get"),
    ("POST", "/v1/sandboxes/{id}/wait", "wait"),
    ("POST", "/v1/sandboxes/{id}/terminate", "terminate"),
    ("GET", "/v1/snapshots", "list_snapshots"),
    ("POST", "/v1/snapshots", "create_snapshot"),
    ("GET", "/v1/snapshots/batch", "batch_snapshots"),
    ("GET", "/v1/snapshots/@{alias:path}", "get_alias"),
    ("GET", "/v1/snapshots/{id}", "get_snapshot"),
    ("POST", "/v1/snapshots/{id}/retire", "retire"),
    ("GET", "/v1/snapshots/{id}/aliases", "list_aliases"),
    ("POST", "/v1/snapshots/{id}/aliases", "add_alias"),
    ("DELETE", "/v1/snapshot-aliases/{alias:path}", "remove_alias"),
    ("POST", "/v1/authorize", "authorize"),
    ("POST", "/v1/container-registries/default/credentials", "refuse_registry"),
    ("POST", "/builds", "create_build"),
    ("GET", "/builds/{id}", "get_build"),
    ("GET", "/builds/{id}/logs", "build_logs"),
    ("DELETE", "/builds/{id}", "cancel_build"),
)
"""Method, path and the name of the handler of each route."""
BODY = 1 * MiB
"""Most of a body that this API reads as a whole."""
DEFAULT_PAGE, LARGEST_PAGE = 20, 100
NO_REGISTRY = (
    "there is no registry here to push images to: they are built by the server, from a Dockerfile and its context. "
    "Unset TOGETHER_LOCAL_BUILD"
)


class Management:
    """Serves the management API."""

    def __init__(
        self, services: Services, sandboxes: Sandboxes, snapshots: Snapshots, builds: Builds
    ) -> None:
        self._services = services
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._builds = builds

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes, each with its check of the key."""
        return [
            Route(path, self._guarded(path, getattr(self, name)), methods=[method])
            for method, path, name in ROUTES
        ]

    # ------------------------------------------------------------------------------------- sandboxes

    async def create(self, request: Request, tenant: str) -> Response:
        """Start a sandbox from a snapshot; it runs when this returns."""
        body = await self._body(request, schema.CreateSandbox, wanted=True)
        if body.experimental:
            raise Refused(
                400, f"experimental options are not supported: {', '.join(sorted(body.experimental))[:200]}"
            )
        _check_policy(body.termination_policy)
        wanted = self._snapshots.find(body.snapshot_id, body.snapshot_alias, tenant)
        policy = None if body.termination_policy is None else msgspec.to_builtins(body.termination_policy)
        spec = SandboxSpec(
            template=wanted.template,
            limits=replace(wanted.template.limits, cpu=body.cpu, memory=body.memory_bytes),
            network=self._services.default_network,
            metadata=body.tags,
            timeout=self._life(body.ttl),
            isolation=self._services.isolation,
            tenant=tenant,
            snapshot=wanted.snapshot,
            notes=new_notes(snapshot=wanted.id, ttl=body.ttl, policy=policy),
        )
        with self._services.admission.place(tenant):
            sandbox = await self._services.engine.create(spec)
        return JSONResponse(self._describe(request, sandbox, tenant), 201)

    async def list(self, request: Request, tenant: str) -> Response:
        """List sandboxes, those that ended lately as well."""
        query = request.query_params
        statuses = {*query.getlist("statuses[]"), *query.getlist("statuses")}
        found = [
            value
            for value in self._sandboxes.list(tenant, self._base(request))
            if (not statuses or value["status"] in statuses)
            and query.get("snapshot_id") in {None, value["snapshot_id"]}
            and has_tags(value["tags"], _tags_of(query))
        ]
        return JSONResponse(_page(found, query))

    async def batch(self, request: Request, tenant: str) -> Response:
        """Return the sandboxes with the given ids; unknown ones are left out."""
        ids = _ids_of(request)
        found = [value for value in self._sandboxes.list(tenant, self._base(request)) if value["id"] in ids]
        return JSONResponse(found)

    async def get(self, request: Request, tenant: str) -> Response:
        """Return a sandbox."""
        return JSONResponse(self._sandboxes.get(request.path_params["id"], tenant, self._base(request)))

    async def wait(self, request: Request, tenant: str) -> Response:
        """Return a sandbox when its status is settled, which it is once there is an answer to anything."""
        return await self.get(request, tenant)

    async def terminate(self, request: Request, tenant: str) -> Response:
        """End a sandbox, after a snapshot where its policy or the request asks for one."""
        body = await self._body(request, schema.TerminateSandbox)
        value = self._sandboxes.get(request.path_params["id"], tenant, self._base(request))
        if value["status"] == "terminated":
            return JSONResponse(value)
        sandbox = self._sandboxes.living(value["id"])
        kept = _kept(body, value["termination_policy"])
        if kept is not None:
            await self._snapshots.take(sandbox, kept, tenant)
        await sandbox.kill()
        return JSONResponse(self._describe(request, sandbox, tenant))

    # ------------------------------------------------------------------------------------- snapshots

    async def list_snapshots(self, request: Request, tenant: str) -> Response:
        """List what sandboxes can be created from."""
        query = request.query_params
        without = query.get("exclude_retired", "").lower() == "true"
        found = [
            value
            for value in self._snapshots.list(tenant)
            if has_tags(value["tags"], _tags_of(query)) and not (without and value["retired_at"])
        ]
        return JSONResponse(_page(found, query))

    async def batch_snapshots(self, request: Request, tenant: str) -> Response:
        """Return the snapshots with the given ids; unknown ones are left out."""
        ids = _ids_of(request)
        return JSONResponse([value for value in self._snapshots.list(tenant) if value["id"] in ids])

    async def get_snapshot(self, request: Request, tenant: str) -> Response:
        """Return a snapshot."""
        return JSONResponse(self._snapshots.get(request.path_params["id"], tenant))

    async def get_alias(self, request: Request, tenant: str) -> Response:
        """Return the snapshot that an alias names."""
        return JSONResponse(
            self._snapshots.get(self._snapshots.named(request.path_params["alias"], tenant), tenant)
        )

    async def list_aliases(self, request: Request, tenant: str) -> Response:
        """Return the aliases of a snapshot."""
        return JSONResponse(self._snapshots.aliases(request.path_params["id"], tenant))

    async def add_alias(self, request: Request, tenant: str) -> Response:
        """Let an alias name a snapshot; it names no other then."""
        body = await self._body(request, schema.CreateAlias)
        await self._snapshots.add_alias(request.path_params["id"], body.alias, tenant)
        return Response(status_code=204)

    async def remove_alias(self, request: Request, tenant: str) -> Response:
        """Let an alias name nothing."""
        await self._snapshots.remove_alias(request.path_params["alias"], tenant)
        return Response(status_code=204)

    async def retire(self, request: Request, tenant: str) -> Response:
        """Let no sandbox be created from a snapshot any more, and give its place back."""
        return JSONResponse(await self._snapshots.retire(request.path_params["id"], tenant))

    async def create_snapshot(self, request: Request, tenant: str) -> Response:
        """Make a snapshot of an image: one that was built here, or one that stands for a template."""
        body = await self._body(request, schema.CreateSnapshot)
        return JSONResponse(self._snapshots.get(await self._builds.register(body, tenant), tenant), 201)

    async def refuse_registry(self, _request: Request, _tenant: str) -> Response:
        """Say that nothing can be pushed here, and what to do instead."""
        raise Refused(400, NO_REGISTRY)

    async def authorize(self, request: Request, tenant: str) -> Response:
        """Tell whether the key may use a project: its own, and the one that all keys share."""
        body = await self._body(request, schema.Authorize)
        if body.project_id not in {None, tenant, PROJECT}:
            raise Refused(403, "this key does not belong to that project")
        return Response(status_code=204)

    # ---------------------------------------------------------------------------------------- builds

    async def create_build(self, request: Request, tenant: str) -> Response:
        """Build an image from a Dockerfile and its context; the answer comes when both are there."""
        if "origin" in request.headers and "authorization" not in request.headers:
            raise Refused(
                403, "a page in a browser sends forms without asking first: send the header Authorization"
            )
        most = min(MOST_FORM, self._services.limits.upload)
        told = header(request.scope, b"content-length") or ""
        if told.isdecimal() and int(told[:20]) > most:
            raise Refused(413, f"a build is sent in at most {most:,} bytes")
        allow_body(request.scope, most)
        body = stream_body(request.receive)
        build = await self._builds.submit(tenant, request.headers.get("content-type", ""), body)
        return JSONResponse(build.describe(), 202)

    async def get_build(self, request: Request, tenant: str) -> Response:
        """Return what has become of a build; ``image_ref`` names its image once there is one."""
        return JSONResponse(self._builds.get(request.path_params["id"], tenant).describe())

    async def build_logs(self, request: Request, tenant: str) -> Response:
        """Stream the log of a build from its beginning, or after ``Last-Event-ID``; the last event says how it ended."""
        build = self._builds.get(request.path_params["id"], tenant)
        last = request.headers.get("last-event-id", "0")
        if not (last.isascii() and last.isdecimal() and len(last) < 19):
            raise Refused(400, "Last-Event-ID is the number of an event")
        return respond(self._builds.follow(build, int(last)))

    async def cancel_build(self, request: Request, tenant: str) -> Response:
        """End a build and forget it, with its image where no snapshot was made of that."""
        await self._builds.cancel(request.path_params["id"], tenant)
        return Response(status_code=204)

    # --------------------------------------------------------------------------------------- details

    def _guarded(self, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        @wraps(handler)
        async def guarded(request: Request) -> Response:
            name_route(request.scope, "together", path)
            tenant = self._services.keys.owner(bearer(request.headers))
            if tenant is None:
                raise Refused(401, "the API key is missing or wrong: send 'Authorization: Bearer <key>'")
            return await handler(request, tenant)

        return guarded

    async def _body(self, request: Request, kind: type[T], *, wanted: bool = False) -> T:
        """Return the body, which has to say that it is JSON: pages in a browser send the rest without asking first."""
        data = await read_body(request.scope, request.receive, min(BODY, self._services.limits.body))
        if (data or wanted) and not says_json(request.scope):
            raise Refused(400, "the body has to be application/json")
        return read_json(data, kind)

    def _base(self, request: Request) -> str:
        """Return the URL under which this client reaches the dialect."""
        prefix = state(request.scope).get("prefix", "")
        return f"{request.url.scheme}://{request.url.netloc}{prefix}"

    def _describe(self, request: Request, sandbox: Sandbox, tenant: str) -> Json:
        return self._sandboxes.get(uuid_of(sandbox.id), tenant, self._base(request))

    def _life(self, ttl: int | None) -> float | None:
        most = self._services.limits.max_timeout
        if ttl is None:
            return most
        if most is not None and ttl > most:
            raise Refused(400, f"ttl is at most {most:g} seconds on this server")
        return float(ttl)


def bearer(headers: Mapping[str, str]) -> str | None:
    """Return the token of an ``Authorization: Bearer`` header."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _check_policy(policy: schema.TerminationPolicy | None) -> None:
    if policy is not None and policy.snapshot.memory:
        raise Refused(400, "snapshots hold files only: memory cannot be kept")


def _kept(body: schema.TerminateSandbox, policy: Json | None) -> schema.TerminationSnapshot | None:
    """Return what is to be kept: what the request says, or else what was agreed at the creation."""
    if body.snapshot is not msgspec.UNSET:
        if body.snapshot is not None:
            _check_policy(schema.TerminationPolicy(body.snapshot))
        return body.snapshot
    return None if policy is None else msgspec.convert(policy, schema.TerminationPolicy).snapshot


def _tags_of(query: Any) -> dict[str, str]:
    """Return the wanted tags of a query: ``tags[name]=value``."""
    return {
        key[5:-1]: value
        for key, value in query.multi_items()
        if key.startswith("tags[") and key.endswith("]")
    }


def _ids_of(request: Request) -> set[str]:
    return {*request.query_params.getlist("ids[]"), *request.query_params.getlist("ids")}


def _page(values: Sequence[Json], query: Any) -> Json:
    """Return a page: what follows the item whose id is the cursor."""
    try:
        limit = int(query.get("limit", DEFAULT_PAGE))
    except ValueError:
        limit = 0
    if not 1 <= limit <= LARGEST_PAGE:
        raise Refused(400, f"limit is a number from 1 to {LARGEST_PAGE}")
    start = 0
    if (cursor := query.get("cursor")) is not None:
        positions = [index for index, value in enumerate(values) if value["id"] == cursor]
        if not positions:
            raise Refused(400, "the cursor is unknown")
        start = positions[0] + 1
    data = list(values[start : start + limit])
    more = start + limit < len(values)
    return {"data": data, "next_cursor": data[-1]["id"] if more else None}
