"""``/metrics`` of envd: what a sandbox uses, as it was sampled last."""

import time
from typing import Any

from cellfork.dialects.e2b.metrics import metric_of
from cellfork.engine.sandbox import Sandbox
from cellfork.model.limits import MiB


def metrics_of(sandbox: Sandbox) -> dict[str, Any]:
    """Return the newest sample in envd's words; nothing but the time where there is none yet."""
    samples = sandbox.samples()
    if not samples:
        return {"ts": int(time.time())}
    metric = metric_of(sandbox, samples[-1])
    return {
        "ts": metric.timestamp_unix,
        "cpu_count": metric.cpu_count,
        "cpu_used_pct": None if metric.cpu_used_pct is None else round(metric.cpu_used_pct, 2),
        "mem_total": metric.mem_total,
        "mem_used": metric.mem_used,
        "mem_cache": metric.mem_cache,
        "mem_total_mib": _mebibytes(metric.mem_total),
        "mem_used_mib": _mebibytes(metric.mem_used),
        "disk_used": metric.disk_used,
        "disk_total": metric.disk_total,
    }


def _mebibytes(size: int | None) -> int | None:
    return None if size is None else size // MiB
