"""Snapshots: the files of a sandbox as they were at one moment, under an id, for other sandboxes to start with."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cellfork.engine.archives import Archives
from cellfork.engine.records import NoRecords, Records
from cellfork.model.errors import InvalidRequest, NotFound
from cellfork.model.limits import Limits
from cellfork.model.specs import Template

KIND = "snapshot"
"""The kind of their records."""
MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of a snapshot.

    ``names`` are those that it can be found by, besides its id; ``created_at`` is Unix time in seconds, ``size`` the bytes
    that it takes on the host.  ``template`` and ``limits`` are those of the sandbox ``sandbox_id`` that it was made of,
    ``tenant`` whom it belongs to: nobody else can see or use it.
    """

    id: str
    names: tuple[str, ...]
    created_at: float
    sandbox_id: str
    template: Template
    limits: Limits
    isolation: str
    tenant: str
    size: int
    archive: str


class Snapshots:
    """The snapshots of one engine, the oldest first.  All methods belong to its event loop."""

    def __init__(self, archives: Archives, records: Records | None = None) -> None:
        self._archives = archives
        self._records = records or NoRecords()
        self._all: dict[str, Snapshot] = {}

    async def load(self) -> None:
        """Find the snapshots that an earlier engine made; those whose archive is gone are forgotten."""
        for id, record in (await self._records.load(KIND)).items():
            try:
                snapshot = snapshot_of(record)
                self._archives.size(snapshot.archive)
            except (NotFound, KeyError, TypeError, ValueError, InvalidRequest):
                await self._records.delete(KIND, id)
            else:
                self._all[id] = snapshot

    async def add(self, snapshot: Snapshot) -> Snapshot:
        """Keep a snapshot.  A name that another one of the tenant has is this one's from now on.

        Raises :class:`UnavailableError` where that could not be written down.
        """
        await self._records.put(KIND, snapshot.id, record_of(snapshot))
        self._all[snapshot.id] = snapshot
        for name in snapshot.names:
            for other in self.list(name=name, tenant=snapshot.tenant):
                if other.id != snapshot.id:
                    await self._rename(other, tuple(known for known in other.names if known != name))
        return snapshot

    def list(
        self, *, sandbox_id: str | None = None, name: str | None = None, tenant: str | None = None
    ) -> list[Snapshot]:
        """Return snapshots, the newest first: of a sandbox, with a name, of a tenant (``None``: of any)."""
        return [
            snapshot
            for snapshot in reversed(self._all.values())
            if (sandbox_id is None or snapshot.sandbox_id == sandbox_id)
            and (name is None or name in snapshot.names)
            and (tenant is None or snapshot.tenant == tenant)
        ]

    def get(self, id: str, tenant: str | None = None) -> Snapshot:
        """Return the snapshot with an id or a name; :class:`NotFound` where the tenant has none such."""
        snapshot = self._all.get(id)
        if snapshot is not None and tenant in {None, snapshot.tenant}:
            return snapshot
        for named in self.list(name=id, tenant=tenant):
            return named
        raise NotFound(f"no snapshot {str(id)[:80]!r}")

    async def name(self, id: str, names: Iterable[str], tenant: str | None = None) -> Snapshot:
        """Give a snapshot other names, which are no other one's then.  Raises :class:`NotFound`, :class:`InvalidRequest`."""
        checked = dict.fromkeys(name for given in names for name in check_name(given))
        return await self.add(replace(self.get(id, tenant), names=tuple(checked)))

    async def delete(self, id: str, tenant: str | None = None) -> None:
        """Delete a snapshot; sandboxes that were started with it keep what they have.  Raises :class:`NotFound`."""
        snapshot = self.get(id, tenant)
        del self._all[snapshot.id]
        try:
            await self._records.delete(KIND, snapshot.id)
        finally:
            await self._archives.discard(snapshot.archive)

    async def take_back(self, snapshot: Snapshot) -> None:
        """Forget a snapshot that could not be added, or that nobody waits for any more, however far that was."""
        self._all.pop(snapshot.id, None)
        self._records.delete(KIND, snapshot.id)  # after what was put: changes are made in their order
        await self._archives.discard(snapshot.archive)

    @property
    def archives(self) -> Iterable[str]:
        """The archives that belong to snapshots."""
        return [snapshot.archive for snapshot in self._all.values()]

    async def _rename(self, snapshot: Snapshot, names: tuple[str, ...]) -> None:
        renamed = snapshot_of({**record_of(snapshot), "names": names})
        await self._records.put(KIND, snapshot.id, record_of(renamed))
        self._all[snapshot.id] = renamed


def check_name(name: str | None) -> tuple[str, ...]:
    """Return the names of a new snapshot; :class:`InvalidRequest` for what cannot be one."""
    if name is None:
        return ()
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidRequest(f"a snapshot is named by 1 to {MAX_NAME} printable characters")
    return (name,)


def record_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON."""
    return asdict(snapshot)


def snapshot_of(record: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot that a record tells of.  Raises ``KeyError``, ``TypeError``, :class:`InvalidRequest`."""
    template = dict(record["template"])
    template |= {
        "preload": tuple(template["preload"]),
        "languages": tuple(template["languages"]),
        "limits": Limits.from_dict(template["limits"]),
    }
    known = {
        **record,
        "names": tuple(record["names"]),
        "template": Template(**template),
        "limits": Limits.from_dict(record["limits"]),
    }
    return Snapshot(**known)
