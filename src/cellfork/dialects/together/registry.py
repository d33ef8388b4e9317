"""Which sandboxes and snapshots this dialect knows: their UUIDs, their tokens, what is remembered of those that ended."""

from collections import OrderedDict
from typing import Any

from cellfork.dialects.keeping import is_token, new_token
from cellfork.dialects.together.translate import PROJECT, STATUS_REASONS, Json, iso, uuid_of
from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import NotFound

NOTES = "together"
"""Under this name a sandbox's notes hold what the dialect keeps with it."""
KEPT = 1000
"""Sandboxes that have ended and can still be asked for."""
AGENT_VERSION = "1.0.0"


class Sandboxes:
    """The sandboxes of this dialect, living and ended, by UUID.  All methods belong to the engine's event loop.

    ``url`` of an agent is ``{base}/agents/{uuid}``; the base is that of the request that asks.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: OrderedDict[str, Sandbox] = OrderedDict()
        self._ended: OrderedDict[str, tuple[str, Json]] = OrderedDict()

    def living(self, id: str) -> Sandbox:
        """Return a sandbox that lives, by its UUID; :class:`NotFound` otherwise."""
        self._refresh()
        sandbox = self._known.get(id)
        if sandbox is None:
            raise NotFound("Sandbox not found")
        return sandbox

    def list(self, tenant: str, base: str) -> list[Json]:
        """Return everything that is known of a tenant's sandboxes, the newest first."""
        self._refresh()
        ended = [value for owner, value in self._ended.values() if owner == tenant]
        living = [
            self._describe(sandbox, base) for sandbox in self._known.values() if sandbox.spec.tenant == tenant
        ]
        return sorted(ended + living, key=lambda value: (value["created_at"], value["id"]), reverse=True)

    def get(self, id: str, tenant: str, base: str) -> Json:
        """Return what is known of a sandbox, living or ended; :class:`NotFound` otherwise."""
        self._refresh()
        sandbox = self._known.get(id)
        if sandbox is not None and sandbox.spec.tenant == tenant:
            return self._describe(sandbox, base)
        owner, value = self._ended.get(id, (None, {}))
        if owner != tenant:
            raise NotFound("Sandbox not found")
        return value

    def _refresh(self) -> None:
        """Take up what was adopted, and remember what has ended."""
        for sandbox in self._engine.list():
            if NOTES in sandbox.notes:
                self._known.setdefault(uuid_of(sandbox.id), sandbox)
        for id, sandbox in [*self._known.items()]:
            if sandbox.state == "ended":
                del self._known[id]
                self._ended[id] = sandbox.spec.tenant, self._describe(sandbox, "")
        while len(self._ended) > KEPT:
            self._ended.popitem(last=False)

    def _describe(self, sandbox: Sandbox, base: str) -> Json:
        notes, id = sandbox.notes[NOTES], uuid_of(sandbox.id)
        alive = sandbox.state != "ended"
        now = iso(sandbox.settings.clock.time_ns() / 1e9)
        limits = sandbox.limits
        reason = "cold_started" if alive else STATUS_REASONS.get(sandbox.end_reason or "", "crashed")
        return {
            "id": id,
            "organization_id": None,
            "project_id": sandbox.spec.tenant or PROJECT,
            "snapshot_id": notes["snapshot"],
            "cpu": limits.cpu or 0,
            "memory_bytes": limits.memory_bytes,
            "agent": {
                "version": AGENT_VERSION,
                "token": notes["agent"] if alive else None,
                "readonly_token": notes["readonly"] if alive else None,
                "url": f"{base}/agents/{id}" if alive else None,
            },
            "ttl": notes["ttl"],
            "tags": dict(sandbox.spec.metadata),
            "termination_policy": notes["policy"],
            "status": "running" if alive else "terminated",
            "status_reason": reason,
            "created_at": iso(sandbox.started_at),
            "started_at": iso(sandbox.started_at),
            "resized_at": None,
            "recovery_at": None,
            "terminated_at": None if alive else now,
            "updated_at": iso(sandbox.started_at) if alive else now,
        }


def new_notes(**values: Any) -> Json:
    """Return what is kept with a new sandbox: its tokens, and ``values``."""
    tokens = {"agent": new_token(), "readonly": new_token()}
    return {NOTES: {**tokens, **values}}


def scope_of(sandbox: Sandbox, presented: str | None) -> str | None:
    """Return what a token allows: ``"admin"``, ``"readonly"``, or ``None``.  Compares in constant time."""
    notes = sandbox.notes[NOTES]
    found = None
    for scope, name in (("readonly", "readonly"), ("admin", "agent")):
        if is_token(notes[name], presented):
            found = scope
    return found
