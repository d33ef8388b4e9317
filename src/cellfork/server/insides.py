"""HTTP on connections that come from inside sandboxes: the same bounds, no names to check, no requests in the log."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from uvicorn.server import ServerState

from cellfork.dialects.asgi import ASGIApp
from cellfork.dialects.base import Speaker
from cellfork.server.edge import Edge, bounds_of
from cellfork.server.exchange import Settled
from cellfork.server.hosts import Hosts
from cellfork.server.metrics import Metrics
from cellfork.server.protocol import speaker
from cellfork.server.settings import Settings

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def speaks_inside(
    settings: Settings, metrics: Metrics, logger: "FilteringBoundLogger", settled: Settled
) -> Callable[[ASGIApp], Speaker]:
    """Return what makes, for an app, the protocol of each connection from inside a sandbox."""
    shared = ServerState()

    def speaks(app: ASGIApp) -> Speaker:
        anybody = Hosts(["*"], loopback=True)
        edge = Edge(
            app, hosts=anybody, bounds=bounds_of(settings), metrics=metrics, logger=logger, settled=settled
        )
        return speaker(edge, settings, shared, websockets=False)

    return speaks
