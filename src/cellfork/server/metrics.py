"""What the server counts, for Prometheus.  Labels are of closed sets: no path, id or key ever becomes one."""

from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cellfork import __version__

if TYPE_CHECKING:
    from cellfork.engine.engine import Engine
    from cellfork.model.execution import Execution

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "WEBSOCKET"}
)
MOST_ROUTES = 500
OTHER = "other"
FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
"""Buckets in seconds: a line of code takes one millisecond, a report minutes."""


class Metrics:
    """The counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "cellfork_requests",
            "Requests that were answered.",
            ["dialect", "method", "route", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "cellfork_request_seconds",
            "Seconds from a request's headers to the end of its answer.",
            ["dialect", "route"],
            buckets=FAST,
            registry=self.registry,
        )
        self._aborted = Counter(
            "cellfork_requests_aborted",
            "Answers that were given up before they were complete.",
            registry=self.registry,
        )
        self.active = Gauge(
            "cellfork_requests_active", "Requests that are being answered.", registry=self.registry
        )
        self.creates = Histogram(
            "cellfork_sandbox_create_seconds",
            "Seconds to start a sandbox.",
            buckets=FAST,
            registry=self.registry,
        )
        self.create_failures = Counter(
            "cellfork_sandbox_create_failures", "Sandboxes that did not start.", registry=self.registry
        )
        self._executions = Counter(
            "cellfork_executions",
            "Executions that ended, by how they ended.",
            ["status"],
            registry=self.registry,
        )
        self._execution_seconds = Histogram(
            "cellfork_execution_seconds",
            "Seconds that code ran.",
            buckets=FAST,
            registry=self.registry,
        )
        Gauge("cellfork_build_info", "The version that runs.", ["version"], registry=self.registry).labels(
            __version__
        ).set(1)
        self._routes: set[tuple[str, str]] = set()
        self._children: dict[tuple[str, str, str, int], tuple[Counter, Histogram]] = {}

    def watch(self, engine: "Engine") -> None:
        """Tell of the sandboxes of an engine."""
        self.registry.register(_Sandboxes(engine))

    def answered(
        self, dialect: str, method: str, route: str, status: int, seconds: float, *, aborted: bool
    ) -> None:
        """Count one request."""
        key = (dialect, method, route, status)
        children = self._children.get(key) or self._new_children(key)
        children[0].inc()
        children[1].observe(seconds)
        if aborted:
            self._aborted.inc()

    def executed(self, execution: "Execution") -> None:
        """Count one execution that has ended."""
        self._executions.labels(execution.status).inc()
        self._execution_seconds.observe(execution.accounting.wall_time)

    def page(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _new_children(self, key: tuple[str, str, str, int]) -> tuple[Counter, Histogram]:
        dialect, method, route, status = key
        method = method if method in METHODS else OTHER
        if (dialect, route) not in self._routes:
            if len(self._routes) >= MOST_ROUTES:
                dialect = route = OTHER
            self._routes.add((dialect, route))
        children = (
            self._requests.labels(dialect, method, route, str(status)),
            self._seconds.labels(dialect, route),
        )
        if len(self._children) < 20 * MOST_ROUTES:
            self._children[key] = children
        return children


class _Sandboxes(Collector):
    """Looks at the engine when it is asked."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("cellfork_sandboxes", "Sandboxes that live.", labels=["state"])
        states: Tally[str] = Tally(sandbox.state for sandbox in self._engine.list())
        for state in ("running", "paused"):
            family.add_metric([state], states.get(state, 0))
        yield family
