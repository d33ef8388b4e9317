"""What the server answers itself: whether it lives, what it counted, what it serves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cellfork import __version__
from cellfork.dialects.asgi import (
    JSON,
    Headers,
    Receive,
    Scope,
    Send,
    header,
    name_route,
    send_body,
    send_json,
)
from cellfork.dialects.base import Dialect, Keys
from cellfork.server.metrics import CONTENT_TYPE, Metrics

NAME = "server"
READABLE = frozenset({"GET", "HEAD"})
PAGE_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
"""A page of the server loads nothing from elsewhere and is shown in no frame."""


class Page(NamedTuple):
    """One answer: status, body, type and further headers."""

    body: bytes
    content_type: bytes = JSON
    status: int = 200
    headers: Headers = ()


class Route(NamedTuple):
    """One path that the server answers; ``public`` ones ask for no key."""

    answer: Callable[[], Page]
    public: bool


class Site:
    """The routes of the server itself.  ``ready`` tells whether the first sandbox would start fast."""

    def __init__(
        self, dialects: Sequence[Dialect], keys: Keys, metrics: Metrics, ready: Callable[[], bool]
    ) -> None:
        self._keys = keys
        self._ready = ready
        specifications = {
            f"/openapi/{dialect.name}.json": dialect.openapi
            for dialect in dialects
            if dialect.openapi is not None
        }
        own = msgspec.json.encode(_own_specification(specifications))
        self.routes: Mapping[str, Route] = {
            "/health": Route(_alive, public=True),
            "/livez": Route(_alive, public=True),
            "/readyz": Route(self._readiness, public=True),
            "/metrics": Route(lambda: Page(metrics.page(), CONTENT_TYPE), public=False),
            "/docs": Route(lambda: _static("docs.html", b"text/html; charset=utf-8"), public=True),
            "/docs.js": Route(lambda: _static("docs.js", b"text/javascript; charset=utf-8"), public=True),
            "/openapi.json": Route(lambda: Page(own, headers=PAGE_HEADERS), public=True),
            **{path: Route(_specification(file), public=True) for path, file in specifications.items()},
        }

    def has(self, path: str) -> bool:
        """Whether the server answers this path."""
        return path in self.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request for a path that :meth:`has`."""
        path = scope["path"]
        route = self.routes[path]
        name_route(scope, NAME, path)
        if scope["method"] not in READABLE:
            await _refuse(send, 405, "this path is only read", (b"allow", b"GET, HEAD"))
        elif not route.public and self._keys.owner(presented_key(scope)) is None:
            await _refuse(send, 401, "give an API key: X-API-Key, or Authorization: Bearer")
        else:
            page = route.answer()
            await send_body(send, page.status, page.body, page.content_type, page.headers)

    def _readiness(self) -> Page:
        if self._ready():
            return Page(b'{"status":"ready"}')
        return Page(b'{"status":"starting"}', status=503, headers=((b"retry-after", b"1"),))


def presented_key(scope: Scope) -> str | None:
    """Return the key of a request to the server itself: ``X-API-Key``, or ``Authorization: Bearer``."""
    key = header(scope, b"x-api-key")
    if key is not None:
        return key
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _alive() -> Page:
    return Page(msgspec.json.encode({"status": "ok", "version": __version__}))


def _static(name: str, content_type: bytes) -> Page:
    return Page(
        files("cellfork.server").joinpath("static", name).read_bytes(), content_type, headers=PAGE_HEADERS
    )


def _specification(file: Path) -> Callable[[], Page]:
    return lambda: Page(file.read_bytes(), headers=PAGE_HEADERS)


def _own_specification(others: Iterable[str]) -> dict[str, Any]:
    """Return the specification of the server's own routes, with those of the dialects' specifications."""
    told: dict[str, Any] = msgspec.json.decode(_static("openapi.json", JSON).body)
    told["info"]["version"] = __version__
    answer = told["paths"]["/openapi.json"]["get"]
    for path in others:
        name = path.removeprefix("/openapi/").removesuffix(".json")
        told["paths"][path] = {
            "get": {**answer, "operationId": f"openapi_{name}", "summary": f"What the dialect {name} serves"}
        }
    return told


async def _refuse(send: Send, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
    await send_json(send, status, {"code": status, "message": message}, headers)
