"""``POST /sandboxes``: from a request to a sandbox that runs."""

from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from cellfork.dialects.base import Services
from cellfork.dialects.images import Images
from cellfork.dialects.keeping import new_token
from cellfork.dialects.opensandbox import errors, network, pools, registry, schema, translate
from cellfork.dialects.opensandbox.errors import Refused, invalid
from cellfork.dialects.opensandbox.registry import Notes
from cellfork.dialects.opensandbox.volumes import Volumes
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import CellforkError, NotFound
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecSpec, SandboxSpec, Template

RENEW: Final = "access.renew.extend.seconds"
SHORTEST_RENEWAL, LONGEST_RENEWAL = 300, 86400
LAUNCHERS: Final = frozenset(
    {"/opt/code-interpreter/code-interpreter.sh", "/opt/opensandbox/code-interpreter.sh"}
)
"""What starts the interpreters of upstream's image: here they are there from the beginning."""


class Source(NamedTuple):
    """What a sandbox is to be created from; ``limits`` are used where a request names none."""

    template: Template
    limits: Limits
    image: str | None = None
    snapshot: str | None = None


class Creation:
    """Creates sandboxes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._images = Images(services.images, services.templates)
        self._volumes = Volumes(services.engine, services.host_volumes, services.volumes)

    async def start(self) -> None:
        """Delete what belongs to sandboxes that are gone; watch over those that were adopted."""
        await self._volumes.start()
        for sandbox in self._services.engine.list():
            notes = registry.notes_of(sandbox)
            if notes is not None:
                self._volumes.watch(sandbox, notes.volumes)

    async def aclose(self) -> None:
        """Wait until what is being deleted is gone."""
        await self._volumes.aclose()

    async def create(self, body: schema.CreateSandbox, tenant: str) -> tuple[Sandbox, Notes]:
        """Create a sandbox.

        Raises :class:`Refused` for what is malformed or cannot be had, and what :meth:`Engine.create` raises.
        """
        _refuse_what_is_not_there(body)
        source = self._source(body, tenant)
        policy, shown = network.policy_of(body.network_policy, self._services.internet)
        metadata = body.metadata or {}
        translate.check_labels(metadata)
        extensions = body.extensions or {}
        notes = Notes(
            entrypoint=_entrypoint(body, source),
            egress_token=new_token(),
            access_token=new_token() if body.secure_access else None,
            image=source.image,
            snapshot=source.snapshot,
            metadata=metadata,
            platform=translate.check_platform(body.platform),
            extensions=extensions,
            policy=shown,
            renew=_renewal(extensions),
        )
        spec = SandboxSpec(
            template=source.template,
            limits=translate.limits_of(body.resource_limits, source.limits),
            network=policy,
            envs=body.env or {},
            metadata=metadata,
            timeout=self._life(body.timeout),
            isolation=self._services.isolation,
            tenant=tenant,
            snapshot=source.snapshot,
        )
        volumes, made = await self._volumes.find(body.volumes or [], tenant)  # last: it may make some
        notes = msgspec.structs.replace(notes, volumes=tuple(made))
        spec = replace(spec, volumes=tuple(volumes), notes=registry.as_notes(notes))
        try:
            with self._services.admission.place(tenant):
                sandbox = await self._services.engine.create(spec)
        except BaseException:
            await self._volumes.discard(tenant, made)
            raise
        await self._volumes.own(sandbox, made)
        await _start(sandbox, notes.entrypoint)
        return sandbox, notes

    def _source(self, body: schema.CreateSandbox, tenant: str) -> Source:
        """Return what a request names; it has to name one thing."""
        pool = (body.extensions or {}).get(pools.REFERENCE)
        image = None if body.image is None else body.image.uri
        if body.snapshot_id is not None and pool is None:
            return self._snapshot(body.snapshot_id, tenant)
        if pool is not None:
            template = self._template(pool, pools.REFERENCE)
        elif image is None:
            template = self._template(body.template_id or "", "templateId")
        else:
            template = self._image(image)
        return Source(template, template.limits, image)

    def _image(self, uri: str) -> Template:
        template = self._images.find(uri)
        if template is None:
            raise invalid(self._images.unknown(uri))
        return template

    def _template(self, name: str, what: str) -> Template:
        template = self._services.templates.find(name)
        if template is None:
            known = ", ".join(map(repr, self._services.templates.names()[:20]))
            raise invalid(f"{what} {name[:200]!r} is no template of this server; they are {known}")
        return template

    def _snapshot(self, id: str, tenant: str) -> Source:
        try:
            found = self._services.engine.find_snapshot(id, tenant)
        except NotFound:
            raise Refused(404, errors.NO_SNAPSHOT, f"Snapshot {id[:80]} not found.") from None
        return Source(found.template, found.limits, snapshot=found.id)

    def _life(self, timeout: int | None) -> float | None:
        """Return the seconds of a sandbox's life; one without a timeout lives until it is deleted, as upstream."""
        most = self._services.limits.max_timeout
        if timeout is not None and most is not None and timeout > most:
            raise invalid(f"timeout is at most {most:g} seconds on this server")
        return None if timeout is None else float(timeout)


def _refuse_what_is_not_there(body: schema.CreateSandbox) -> None:
    pool = pools.REFERENCE in (body.extensions or {})
    sources = [
        body.image is not None and not pool,
        body.snapshot_id is not None,
        body.template_id is not None,
        pool,
    ]
    if sources.count(True) != 1:
        raise invalid("exactly one of image, snapshotId, templateId and extensions.poolRef is required")
    if body.credential_proxy is not None and body.credential_proxy.enabled:
        raise invalid("credentialProxy is not available: the proxy never looks inside TLS")
    if body.lifecycle:
        raise invalid("lifecycle hooks are not available; start what has to run with a command")
    if body.resource_requests:
        raise invalid("resourceRequests are not available: nothing is reserved ahead; use resourceLimits")


def _entrypoint(body: schema.CreateSandbox, source: Source) -> tuple[str, ...]:
    if (
        body.entrypoint is None
        and source.image is not None
        and pools.REFERENCE not in (body.extensions or {})
    ):
        raise Refused(400, errors.INVALID_ENTRYPOINT, "entrypoint is required with an image")
    if body.entrypoint is not None and not (body.entrypoint and body.entrypoint[0]):
        raise Refused(400, errors.INVALID_ENTRYPOINT, "Entrypoint must contain at least one command.")
    return tuple(body.entrypoint or translate.IDLE)


def _renewal(extensions: dict[str, str]) -> int | None:
    text = extensions.get(RENEW)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 6:
        raise invalid(f"extensions[{RENEW!r}] is a number of seconds")
    if not SHORTEST_RENEWAL <= int(text) <= LONGEST_RENEWAL:
        raise invalid(f"extensions[{RENEW!r}] is from {SHORTEST_RENEWAL} to {LONGEST_RENEWAL} seconds")
    return int(text)


async def _start(sandbox: Sandbox, entrypoint: tuple[str, ...]) -> None:
    """Start the main process, where there is one.  One that cannot be started is the end of its sandbox, and :class:`Refused`."""
    if entrypoint == translate.IDLE or entrypoint[0] in LAUNCHERS:
        return
    try:
        await sandbox.execs.create(ExecSpec(entrypoint))
    except CellforkError as error:
        await sandbox.kill()
        raise Refused(400, errors.INVALID_ENTRYPOINT, f"the entrypoint cannot be started: {error}") from error
