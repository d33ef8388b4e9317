"""The engine of a server: the engine, and what is counted about it."""

from collections.abc import Mapping
from time import perf_counter

from cellfork.engine.engine import Engine
from cellfork.engine.records import Records
from cellfork.engine.settings import Settings as EngineSettings
from cellfork.model.specs import SandboxSpec
from cellfork.runtimes.base import Guest, Runtime
from cellfork.server.metrics import Metrics


class MeasuredEngine(Engine):
    """An engine that tells how long its sandboxes take to start."""

    def __init__(
        self,
        runtimes: Mapping[str, Runtime],
        settings: EngineSettings,
        records: Records | None,
        metrics: Metrics,
    ) -> None:
        super().__init__(runtimes, settings, records)
        self._metrics = metrics

    async def start_guest(self, spec: SandboxSpec) -> Guest:
        """Start a guest, as :meth:`Engine.start_guest` does: for a new sandbox, a fork or one that is resumed."""
        started = perf_counter()
        try:
            guest = await super().start_guest(spec)
        except Exception:
            self._metrics.create_failures.inc()
            raise
        self._metrics.creates.observe(perf_counter() - started)
        return guest
