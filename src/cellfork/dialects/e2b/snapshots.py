"""Snapshots: the files of a sandbox, kept; whatever names a template can name one."""

from typing import NamedTuple

from cellfork.dialects.e2b import schema
from cellfork.dialects.e2b.calls import Call, Reply, short_id
from cellfork.dialects.e2b.errors import Refusal, bad
from cellfork.dialects.e2b.pages import Page, Place, microseconds
from cellfork.dialects.e2b.templates import DEFAULT_TAG, Name, parse_name
from cellfork.dialects.e2b.templates import source_of as template_source
from cellfork.dialects.e2b.translate import Source
from cellfork.engine.snapshots import Snapshot
from cellfork.model.errors import NotFound


class Kept(NamedTuple):
    """A snapshot of the caller's, and its name, which always has a tag."""

    snapshot: Snapshot
    name: Name | None

    @property
    def told(self) -> str:
        """The id that clients are told, which names exactly this one."""
        name = self.name or Name(self.snapshot.id, DEFAULT_TAG)
        return f"{name.identifier}:{name.tag}"

    def is_called(self, name: Name) -> bool:
        """Tell whether a name means this snapshot; one without a tag means every tag."""
        mine = self.name or Name(self.snapshot.id, DEFAULT_TAG)
        by_id = name.identifier == self.snapshot.id
        return by_id or (name.identifier == mine.identifier and name.tag in {None, mine.tag})


def source_of(call: Call, text: str) -> Source:
    """Return what a sandbox is made from: a template of this server, or a snapshot of the caller's.

    Raises :class:`Refusal`: 404 where there is neither, 400 for what names nothing.
    """
    try:
        return template_source(call.services, text)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        name = parse_name(text)
        kept = _newest(kept_of(call), name._replace(tag=name.tag or DEFAULT_TAG))
        if kept is None:
            raise
    snapshot = kept.snapshot
    alias = kept.name.identifier if kept.name is not None else None
    return Source(snapshot.template, snapshot.limits, kept.told, alias, snapshot.id)


def kept_of(call: Call) -> list[Kept]:
    """Return the caller's snapshots."""
    mine = call.services.engine.snapshots(tenant=call.tenant)
    return [Kept(snapshot, _name_of(snapshot)) for snapshot in mine]


async def create(call: Call) -> Reply:
    """Keep the files of a sandbox, which runs on; a name and tag that exist pass to the new snapshot."""
    owned, body = call.sandbox(), call.parse(schema.NewSnapshot, optional=True)
    name = _new_name(call, body.name) if body.name is not None else None
    if owned.sandbox.state == "paused":
        raise Refusal(409, f"Sandbox '{owned.sandbox.id}' cannot be snapshotted while in 'paused' state")
    older = [kept for kept in kept_of(call) if name is not None and kept.name == name]
    snapshot = await call.services.engine.snapshot(owned.sandbox.id, name and f"{name.identifier}:{name.tag}")
    for kept in older:
        await _delete(call, kept)  # nobody could name it any more
    return Reply(201, _info(Kept(snapshot, name)))


async def list_snapshots(call: Call) -> Reply:
    """List the caller's snapshots in pages, the newest first, by sandbox and name."""
    page = Page.asked(call.one("limit"), call.one("nextToken"))
    sandbox_id, name = call.one("sandboxID"), call.one("name")
    found = kept_of(call)
    if sandbox_id is not None:
        short = short_id(sandbox_id)
        found = [kept for kept in found if kept.snapshot.sandbox_id == short]
    if name is not None:
        wanted = parse_name(name, "name")
        found = [kept for kept in found if kept.is_called(wanted)]
    shown, token = page.cut(found, _place)
    return Reply(200, list(map(_info, shown)), [(b"x-next-token", token.encode())] if token else ())


async def delete_template(call: Call) -> Reply:
    """Delete a snapshot; a name without a tag deletes all of its tags.  Templates of the server stay."""
    text = call.parameters["templateID"]
    if call.services.templates.find(text.partition(":")[0]) is not None:
        raise bad(f"template '{text[:80]}' is one of this server's settings; remove it there")
    name = parse_name(text, "template ID")
    found = [kept for kept in kept_of(call) if kept.is_called(name)]
    if not found:
        raise Refusal(404, f"template '{name.identifier[:80]}' not found")
    for kept in found:
        await _delete(call, kept)
    return Reply(204)


async def _delete(call: Call, kept: Kept) -> None:
    try:
        await call.services.engine.delete_snapshot(kept.snapshot.id, call.tenant)
    except NotFound:
        pass  # somebody else was faster


def _new_name(call: Call, text: str) -> Name:
    name = parse_name(text, "name")
    if "/" in name.identifier:
        raise bad("Invalid name: this server has no namespaces")
    if call.services.templates.find(name.identifier) is not None:
        raise bad(f"Invalid name: '{name.identifier}' is a template of this server")
    return name._replace(tag=name.tag or DEFAULT_TAG)


def _name_of(snapshot: Snapshot) -> Name | None:
    """Return the name that this dialect gave a snapshot.  Another dialect's may be none that E2B could write."""
    for name in snapshot.names:
        try:
            return parse_name(name)
        except Refusal:
            continue
    return None


def _newest(found: list[Kept], name: Name) -> Kept | None:
    called = [kept for kept in found if kept.is_called(name)]
    return max(called, key=_place, default=None)


def _info(kept: Kept) -> schema.SnapshotInfo:
    return schema.SnapshotInfo(kept.told, [kept.name.identifier] if kept.name is not None else [])


def _place(kept: Kept) -> Place:
    return Place(microseconds(kept.snapshot.created_at), kept.snapshot.id)
