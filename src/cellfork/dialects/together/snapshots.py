"""What sandboxes are created from: the server's templates, and snapshots of sandboxes."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from cellfork.dialects.base import Templates
from cellfork.dialects.images import Images
from cellfork.dialects.together.errors import Refused
from cellfork.dialects.together.schema import TerminationSnapshot
from cellfork.dialects.together.translate import PROJECT, Json, iso, uuid_of
from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.snapshots import Snapshot
from cellfork.model.errors import NotFound
from cellfork.model.specs import Template

DEFAULT_ID: Final = "00000000-0000-0000-0000-000000000001"
"""The id that always names the default template: something for ``TOGETHER_SNAPSHOT_ID``."""
KEPT = 1000
"""Retired snapshots that can still be asked for."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a sandbox is to be created from: a template, and a snapshot's id where it is to start with its files."""

    id: str
    template: Template
    snapshot: str | None = None


class Snapshots:
    """Templates and snapshots by UUID and alias.  A template is a snapshot that nobody can retire.

    All methods belong to the engine's event loop.
    """

    def __init__(self, engine: Engine, templates: Templates, images: Images) -> None:
        self._engine = engine
        self._templates = templates
        self._images = images
        self._retired: OrderedDict[str, tuple[str, Json]] = OrderedDict()

    def find(self, id: str | None, alias: str | None, tenant: str) -> Source:
        """Return what a request names; it has to name one.  Raises :class:`Refused`, :class:`NotFound`.

        An id that names nothing here may stand for a template, as an image does: programs carry ids of elsewhere.
        """
        if (id is None) == (alias is None):
            raise Refused(400, "one of snapshot_id and snapshot_alias is required, not both")
        wanted = id if id is not None else self.named(alias or "", tenant)
        if wanted in self._retired:
            raise Refused(400, "the snapshot is retired")
        template = self._template(wanted)
        if template is not None:
            return Source(wanted, template)
        try:
            snapshot = self._snapshot(wanted, tenant)
        except NotFound:
            template = self._images.find(wanted)
            if template is None:
                raise
            return Source(wanted, template)
        return Source(wanted, snapshot.template, snapshot.id)

    def get(self, id: str, tenant: str) -> Json:
        """Return a snapshot; :class:`NotFound` where there is none."""
        if self._template(id) is not None:
            return _describe_template(id)
        owner, value = self._retired.get(id, (None, {}))
        return value if owner == tenant else _describe(self._snapshot(id, tenant))

    def named(self, alias: str, tenant: str) -> str:
        """Return the UUID of what an alias names: a snapshot or, by its name, a template."""
        for snapshot in self._engine.snapshots(name=alias, tenant=tenant):
            return uuid_of(snapshot.id)
        template = self._templates.find(alias)
        if template is None:
            raise NotFound("Snapshot not found")
        return _template_id(template.name, self._templates)

    def aliases(self, id: str, tenant: str) -> list[Json]:
        """Return the aliases of a snapshot or template."""
        template = self._template(id)
        if template is not None:
            names = [template.name, *self._templates.aliases(template.name)]
        else:
            names = list(self._snapshot(id, tenant).names)
        return [{"alias": name, "snapshot_id": id} for name in names]

    async def take(self, sandbox: Sandbox, wanted: TerminationSnapshot, tenant: str) -> str:
        """Keep the files of a sandbox; return the UUID.  Its first alias is ``sandbox:<id>``."""
        if wanted.ttl is not None or wanted.tags:
            raise Refused(400, "snapshots of terminated sandboxes have neither ttl nor tags here")
        snapshot = await self._engine.snapshot(sandbox.id, f"sandbox:{uuid_of(sandbox.id)}")
        for alias in wanted.aliases:
            await self.add_alias(uuid_of(snapshot.id), alias, tenant)
        return uuid_of(snapshot.id)

    async def add_alias(self, id: str, alias: str, tenant: str) -> None:
        """Let an alias name a snapshot, and no other one.  Raises :class:`NotFound`, :class:`InvalidRequest`."""
        if self._templates.find(alias) is not None or self._template(id) is not None:
            raise Refused(400, "the names of templates are the server's")
        snapshot = self._snapshot(id, tenant)
        if alias not in snapshot.names:
            await self._engine.name_snapshot(snapshot.id, (*snapshot.names, alias), tenant)

    async def remove_alias(self, alias: str, tenant: str) -> None:
        """Let an alias name nothing.  Raises :class:`NotFound`."""
        if self._templates.find(alias) is not None:
            raise Refused(400, "the names of templates are the server's")
        for snapshot in self._engine.snapshots(name=alias, tenant=tenant):
            names = tuple(name for name in snapshot.names if name != alias)
            await self._engine.name_snapshot(snapshot.id, names, tenant)
            return
        raise NotFound("Snapshot alias not found")

    async def retire(self, id: str, tenant: str) -> Json:
        """Delete a snapshot, and remember that it was there; nothing more where that was done."""
        if id not in self._retired:
            if self._template(id) is not None:
                raise Refused(400, "a template cannot be retired")
            snapshot = self._snapshot(id, tenant)
            await self._engine.delete_snapshot(snapshot.id, tenant)
            now = iso(self._engine.settings.clock.time_ns() / 1e9)
            self._retired[id] = tenant, {**_describe(snapshot), "retired_at": now, "updated_at": now}
            while len(self._retired) > KEPT:
                self._retired.popitem(last=False)
        return self.get(id, tenant)

    def list(self, tenant: str) -> list[Json]:
        """Return everything that a tenant can or could create sandboxes from, the newest first."""
        retired = [value for owner, value in self._retired.values() if owner == tenant]
        taken = [_describe(snapshot) for snapshot in self._engine.snapshots(tenant=tenant)]
        found = sorted(retired + taken, key=lambda value: (value["created_at"], value["id"]), reverse=True)
        return [*found, *(_describe_template(id) for id in self._template_ids())]

    def _snapshot(self, id: str, tenant: str) -> Snapshot:
        for snapshot in self._engine.snapshots(tenant=tenant):
            if uuid_of(snapshot.id) == id.lower():
                return snapshot
        raise NotFound("Snapshot not found")

    def _template(self, id: str) -> Template | None:
        name = self._template_ids().get(id.lower())
        return None if name is None else self._templates.find(name)

    def _template_ids(self) -> dict[str, str]:
        return {_template_id(name, self._templates): name for name in self._templates.names()}


def _template_id(name: str, templates: Templates) -> str:
    return DEFAULT_ID if name == templates.names()[0] else uuid_of(f"template:{name}")


def _describe(snapshot: Snapshot) -> Json:
    created = iso(snapshot.created_at)
    return {
        **_common(uuid_of(snapshot.id)),
        "byte_size": snapshot.size,
        "created_at": created,
        "updated_at": created,
    }


def _describe_template(id: str) -> Json:
    created = iso(0)
    return {**_common(id), "byte_size": 0, "created_at": created, "updated_at": created}


def _common(id: str) -> Json:
    return {
        "id": id,
        "organization_id": None,
        "project_id": PROJECT,
        "tags": {},
        "ttl": None,
        "memory": False,
        "retired_at": None,
    }
