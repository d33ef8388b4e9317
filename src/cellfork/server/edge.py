"""The outermost app: what holds for every request, whatever answers it.

One plain ASGI callable and no framework: it is on the way of every line that a running cell prints.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from cellfork.dialects.asgi import (
    Abort,
    ASGIApp,
    ClientGone,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    TooLarge,
    TooSlow,
    send_json,
    state,
)
from cellfork.server.exchange import Exchange, Settled, request_id
from cellfork.server.hosts import Hosts
from cellfork.server.metrics import Metrics
from cellfork.server.origins import Origins, granted, is_preflight
from cellfork.server.protocol import ABORT
from cellfork.server.settings import Settings

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

MISDIRECTED = 421
SWITCHED, REFUSED = 101, 403
"""Statuses of a WebSocket's handshake, as its client sees them."""
POLICY_VIOLATION = 1008
WEBSOCKET = "WEBSOCKET"
UNSEEN = frozenset({"/health", "/livez", "/readyz", "/metrics"})
"""Routes that are asked for every few seconds; their success is logged at debug level only, as is whatever programs
inside sandboxes ask: they must not fill the log."""


class Bounds(NamedTuple):
    """Bounds of a request's body: bytes, and seconds of silence."""

    body: int
    idle: float


def bounds_of(settings: Settings) -> Bounds:
    """Return the bounds of bodies that a server's settings ask for."""
    return Bounds(settings.body_limit, settings.body_timeout)


class Edge:
    """Checks the host, answers browsers' preflights, bounds bodies, logs and counts; then lets ``app`` answer.

    ``settled`` is awaited before an answer begins.
    ``owned`` tells whether a request is for a sandbox, by its headers or its host name: those have a policy
    about origins of their own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Hosts,
        bounds: Bounds,
        metrics: Metrics,
        logger: "FilteringBoundLogger",
        settled: Settled,
        origins: Origins | None = None,
        owned: Callable[[Scope], bool] = lambda scope: False,
        headers: Headers = (),
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins or Origins(())
        self._bounds = bounds
        self._settled = settled
        self._metrics = metrics
        self._logger = logger
        self._owned = owned
        self._headers = list(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, *self._bounds, self._settled)
        exchange.headers += self._headers
        self._metrics.active.inc()
        try:
            await self._guarded(scope, exchange)
        finally:
            self._metrics.active.dec()
            self._told(scope, exchange)

    async def _guarded(self, scope: Scope, exchange: Exchange) -> None:
        """Answer, whatever the app raises; nothing of it is told but an id."""
        try:
            await self._answered(scope, exchange)
        except ClientGone:
            self._abort(scope)
        except Abort:
            if not self._abort(scope):
                raise
        except TooLarge as error:
            if not await exchange.refuse(413, str(error)):
                self._abort(scope)
        except TooSlow as error:
            if not await exchange.refuse(408, str(error)):
                self._abort(scope)
        except asyncio.CancelledError:
            if not self._abort(scope):
                raise
        except Exception:
            self._logger.exception("failed", **_named(scope))
            message = f"internal error; the server's log tells more under {exchange.request_id}"
            if not await exchange.refuse(500, message):
                self._abort(scope)

    async def _answered(self, scope: Scope, exchange: Exchange) -> None:
        if not self._hosts.answers(scope):
            state(scope)["route"] = "refused"
            await send_json(
                exchange.send,
                MISDIRECTED,
                {"code": MISDIRECTED, "message": "this server does not answer to this Host header"},
            )
            return
        origin = self._origins.allowed(scope)
        if origin is not None:
            if is_preflight(scope) and not self._owned(scope):
                state(scope)["route"] = "preflight"
                await self._origins.preflight(scope, exchange.send, origin)
                return
            exchange.headers += granted(origin)
        await self._app(scope, exchange.receive, exchange.send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept = state(scope)
        kept["request_id"] = request_id(scope)
        if not self._hosts.answers(scope):
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        status, started = REFUSED, perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.accept":
                status = SWITCHED
                await self._settled()
            await send(message)

        self._metrics.active.inc()
        try:
            await self._app(scope, receive, sending)
        except ClientGone:
            pass
        except Exception:
            self._logger.exception("failed", **_named(scope))
            raise
        finally:
            self._metrics.active.dec()
            seconds = perf_counter() - started
            named = _named(scope)
            self._metrics.answered(
                named["dialect"], WEBSOCKET, named["route"], status, seconds, aborted=False
            )
            self._logger.info("request", status=status, ms=round(seconds * 1000, 2), **named)

    def _abort(self, scope: Scope) -> bool:
        """Close the connection without completing the answer; return whether the server can do that."""
        close = scope.get("extensions", {}).get(ABORT)
        if close is not None:
            close()
        return close is not None

    def _told(self, scope: Scope, exchange: Exchange) -> None:
        """Log and count one request that is over."""
        kept, seconds = scope["state"], exchange.seconds
        route, dialect = kept.get("route", "other"), kept.get("dialect", "server")
        aborted = not exchange.complete
        self._metrics.answered(dialect, scope["method"], route, exchange.status, seconds, aborted=aborted)
        quiet = kept.get("inside") or (route in UNSEEN and exchange.status < 400)
        log = self._logger.debug if quiet else self._logger.info
        ended = {"aborted": True} if aborted else {}
        log("request", status=exchange.status, ms=round(seconds * 1000, 2), **_named(scope), **ended)


def _named(scope: Scope) -> dict[str, Any]:
    """Return what names a request in the log: never its path, which may carry anything, nor its query."""
    kept = scope["state"]
    named = {
        "method": scope.get("method", WEBSOCKET),
        "route": kept.get("route", "other"),
        "dialect": kept.get("dialect", "server"),
        "sandbox": getattr(kept.get("sandbox"), "id", None),
        "request_id": kept.get("request_id"),
    }
    return {name: value for name, value in named.items() if value is not None}
