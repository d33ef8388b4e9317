"""Metrics of sandboxes: what the engine sampled, in E2B's numbers."""

from cellfork.dialects.e2b import schema
from cellfork.dialects.e2b.calls import Call, Reply
from cellfork.dialects.e2b.errors import Refusal, bad
from cellfork.dialects.e2b.pages import microseconds, rfc3339
from cellfork.dialects.e2b.translate import cpu_count
from cellfork.engine.samples import Sample
from cellfork.engine.sandbox import Sandbox

MOST_SANDBOXES = 100


async def of_one(call: Call) -> Reply:
    """List a sandbox's samples from ``start`` to ``end``, Unix times in seconds, the oldest first."""
    sandbox = call.sandbox().sandbox
    start, end = call.number("start"), call.number("end")
    if start is not None and end is not None and start > end:
        raise bad("start is later than end")
    samples = sandbox.samples(
        start, None if end is None else end + 1
    )  # the second named by `end` belongs to it
    return Reply(200, [metric_of(sandbox, sample) for sample in samples])


async def of_many(call: Call) -> Reply:
    """Tell the latest sample of each of up to 100 sandboxes; those that are not the caller's are left out."""
    ids = [id for value in call.query.get("sandbox_ids", ()) for id in value.split(",") if id]
    if not ids:
        raise bad("the query parameter 'sandbox_ids' is missing")
    if len(ids) > MOST_SANDBOXES:
        raise bad(f"Too many sandboxes requested, maximum is {MOST_SANDBOXES}")
    latest = {}
    for id in ids:
        try:
            sandbox = call.owned(id).sandbox
        except Refusal as refusal:
            if refusal.status != 404:
                raise
            continue
        samples = sandbox.samples()
        if samples:
            latest[sandbox.id] = metric_of(sandbox, samples[-1])
    return Reply(200, schema.Metrics(latest))


def metric_of(sandbox: Sandbox, sample: Sample) -> schema.Metric:
    """Return a sample in E2B's numbers: ``cpuUsedPct`` is of all the sandbox's cores together; ``None`` is not known."""
    return schema.Metric(
        timestamp=rfc3339(microseconds(sample.time)),
        timestamp_unix=int(sample.time),
        cpu_count=cpu_count(sandbox.limits),
        cpu_used_pct=sample.cpu_percent,
        mem_used=sample.memory_used,
        mem_total=sample.memory_total,
        mem_cache=sample.memory_cache,
        disk_used=sample.disk_used,
        disk_total=sample.disk_total,
    )
