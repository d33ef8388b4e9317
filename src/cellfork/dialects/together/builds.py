"""Image builds: a Dockerfile and its context come in, a snapshot of files comes out.

A build belongs to a tenant, runs in a sandbox of that tenant, and ends with it.  What a client sends is streamed into the sandbox
and read there.  A build that nobody asks for is ended and forgotten, with its image where no snapshot was made of that.
"""

import asyncio
import contextlib
import posixpath
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from cellfork.dialects import multipart
from cellfork.dialects.base import Services
from cellfork.dialects.images import Images
from cellfork.dialects.statuses import BUG, message_of
from cellfork.dialects.together.building import (
    ARCHIVE,
    PLACE,
    Builder,
    BuildFailed,
    image_of,
    machine,
)
from cellfork.dialects.together.dockerfile import DockerfileError, parse
from cellfork.dialects.together.errors import Refused
from cellfork.dialects.together.schema import CreateSnapshot
from cellfork.dialects.together.translate import Json, uuid_of
from cellfork.engine.background import Background
from cellfork.engine.clock import Timer
from cellfork.engine.exec_log import ExecLog
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.snapshots import Snapshot
from cellfork.model.errors import CellforkError, Conflict, LimitExceeded, NotFound, SandboxGone
from cellfork.model.limits import GiB, KiB, MiB
from cellfork.model.specs import SandboxSpec, Template

Status = Literal["receiving", "running", "succeeded", "failed", "cancelled"]

NOTES: Final = "together-build"
"""Under this name the notes of a build's sandbox say whose it is; one without its build is ended."""
OWN: Final = "cellfork/"
"""What the names of images begin with that were built here."""
MOST_RUNNING: Final = 8
MOST_OF_ONE: Final = 4
"""Builds of one tenant at once."""
KEPT_OF_ONE: Final = 16
"""Builds of one tenant that can be asked for, those that have ended as well."""
BUILD_SECONDS: Final = 3600.0
FORGOTTEN_AFTER: Final = 300.0
"""Seconds after which a build that nobody asks for is ended and forgotten."""
LOG_BYTES: Final = 1 * MiB
MOST_CONTEXT: Final = 1 * GiB
MOST_FORM: Final = MOST_CONTEXT + 4 * MiB
"""Bytes of a whole form."""
MAX_FIELD: Final = 64 * KiB
MAX_PARTS: Final = 32
MAX_NAME: Final = 200
CANCELLED: Final = "the build was cancelled"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?")
_ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})
_KNOWN: Final = {"image_name", "dockerfile", "build_args"}
_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "nydus_convert": "what is kept are files, not layers",
    "cache_key": "every step is carried out anew",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built: the image's whole name, the path of the Dockerfile in the context, values for ``ARG``."""

    image: str
    dockerfile: str
    arguments: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class Build:
    """One build.  ``snapshot`` is the id of what was built; ``is_kept`` tells that a snapshot was made of that."""

    tenant: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: Status = "receiving"
    image: str | None = None
    error: str | None = None
    snapshot: str | None = None
    is_kept: bool = False
    sandbox: Sandbox | None = None
    log: ExecLog = field(default_factory=lambda: ExecLog(LOG_BYTES))
    task: asyncio.Task[None] | None = None
    readers: int = 0
    timer: Timer | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended, however."""
        return self.status in _ENDED

    def describe(self) -> Json:
        """Return a build as clients see it."""
        return {
            "build_id": self.id,
            "status": self.status,
            "image_ref": self.image if self.status == "succeeded" else None,
            "error": self.error,
        }


class Builds:
    """The builds of a server.  All methods belong to the engine's event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._engine = services.engine
        self._images = Images(services.images, services.templates)
        self._all: dict[str, Build] = {}
        self._background = Background()

    # ------------------------------------------------------------------------------------ for requests

    async def submit(self, tenant: str, content_type: str, body: AsyncIterator[bytes]) -> Build:
        """Take a form with a context, and begin to build; return as soon as everything is there.

        Raises :class:`Refused`, :class:`InvalidRequest`, :class:`LimitExceeded` for what is wrong with it, and what
        :meth:`Engine.create` raises.  Nothing is left where it raises, or is cancelled.
        """
        if multipart.parameters(content_type)[0] != "multipart/form-data":
            raise Refused(400, "a build is sent as multipart/form-data")
        boundary = multipart.boundary_of(content_type)
        build = self._add(tenant)
        try:
            build.sandbox = await self._start(tenant, self._default())
            fields = await _receive(multipart.pieces(body, boundary), build.sandbox)
            order = _order_of(fields)
            if build.id not in self._all:
                raise Conflict("the server ends")
        except BaseException:
            await self._drop(build)
            raise
        build.status, build.image = "running", order.image
        build.task = asyncio.get_running_loop().create_task(self._work(build, order))
        self._watch(build)
        return build

    def get(self, id: str, tenant: str) -> Build:
        """Return a build; :class:`NotFound` where the tenant has none with this id."""
        build = self._all.get(id)
        if build is None or build.tenant != tenant or build.status == "receiving":
            raise NotFound("Build not found")
        self._watch(build)
        return build

    async def follow(self, build: Build, after: int) -> AsyncIterator[bytes]:
        """Yield the lines of a build's log after number ``after`` as server-sent events, to the end, which says how it ended."""
        build.readers += 1
        self._watch(build)
        try:
            async for item in build.log.follow(after):
                yield b"id: %d\ndata: %b\n\n" % (item.sequence, item.data.replace(b"\n", b""))
            end = {"done": True} if build.status == "succeeded" else {"error": build.error}
            yield b"data: " + msgspec.json.encode(end) + b"\n\n"
        finally:
            build.readers -= 1
            self._watch(build)

    async def cancel(self, id: str, tenant: str) -> None:
        """End a build and forget it, with its image where no snapshot was made of that.  Raises :class:`NotFound`."""
        await self._drop(self.get(id, tenant))

    async def register(self, body: CreateSnapshot, tenant: str) -> str:
        """Make a snapshot of an image: one that was built here, or one that stands for a template.  Return its UUID.

        Raises :class:`Refused`, and what :meth:`Engine.create` and :meth:`Engine.snapshot` raise.
        """
        if body.ttl is not None or body.tags:
            raise Refused(400, "snapshots have neither ttl nor tags here")
        if body.architecture not in {None, machine()}:
            raise Refused(400, f"this server's architecture is {machine()!r}, not {body.architecture!r:.40}")
        built = self._built(body.image, tenant)
        if built is not None:
            for build in self._all.values():
                build.is_kept |= build.snapshot == built.id
            return uuid_of(built.id)
        template = self._images.find(body.image)
        if template is None:
            raise Refused(400, self._images.unknown(body.image))
        sandbox = await self._start(tenant, template)
        try:
            return uuid_of((await self._engine.snapshot(sandbox.id)).id)
        finally:
            await asyncio.shield(sandbox.kill())

    # ------------------------------------------------------------------------------------ for the server

    def end_strays(self) -> None:
        """End the sandboxes of builds that an earlier server had: nobody waits for them."""
        for sandbox in self._engine.list():
            if NOTES in sandbox.notes:
                sandbox.end_soon("owner", "its build ended with the server before this one")

    async def aclose(self) -> None:
        """End every build.  Idempotent."""
        for build in [*self._all.values()]:
            await self._drop(build)
        await self._background.join()

    # ------------------------------------------------------------------------------------------- the work

    async def _work(self, build: Build, order: Order) -> None:
        """Build, and say in the build what came of it; never raises anything but the cancellation."""
        status: Status = "failed"
        error: str | None = BUG
        try:
            snapshot = await self._build(build, order)
            status, error, build.snapshot = "succeeded", None, snapshot.id
            self._say(build, f"built {order.image}: {snapshot.size:,} bytes")
        except (BuildFailed, DockerfileError) as failure:
            error = str(failure)
        except SandboxGone as failure:
            error = f"the sandbox of the build ended: {failure}"
        except CellforkError as failure:
            error = message_of(failure)
        except asyncio.CancelledError:
            status, error = "cancelled", CANCELLED
            raise
        finally:
            await self._end_sandbox(build)
            self._end(build, status, error)

    def _end(self, build: Build, status: Status, error: str | None) -> None:
        build.status, build.error = status, error
        build.log.end(self._engine.settings.clock.time_ns(), None)

    async def _build(self, build: Build, order: Order) -> Snapshot:
        for note in order.notes:
            self._say(build, f"note: {note}")
        builder = await self._unpacked(build, order)
        plan = parse(await builder.dockerfile(order.dockerfile))
        for note in plan.notes:
            self._say(build, f"note: {note}")
        image = image_of(plan, order.arguments)
        self._say(build, f"FROM {image[:200]}")
        if await self._move(build, image):
            builder = await self._unpacked(build, order)
        sandbox = self._sandbox(build)
        if sandbox.spec.snapshot is None:
            self._say(
                build, f"note: {image[:200]} is the template {sandbox.spec.template.name!r} of this server"
            )
        await sandbox.files.remove(ARCHIVE)
        await builder.carry_out(plan)
        await builder.tidy()
        return await self._engine.snapshot(sandbox.id, order.image)

    async def _unpacked(self, build: Build, order: Order) -> Builder:
        builder = Builder(self._sandbox(build), order.arguments, lambda line: self._say(build, line))
        await builder.unpack()
        return builder

    async def _move(self, build: Build, image: str) -> bool:
        """See that the build's sandbox is one of this image; return whether it is another one now, with the context."""
        snapshot = self._built(image, build.tenant)
        template = snapshot.template if snapshot is not None else self._images.find(image)
        if template is None:
            raise BuildFailed(self._images.unknown(image))
        old = self._sandbox(build)
        if snapshot is None and template == old.spec.template:
            return False
        new = await self._start(build.tenant, template, snapshot.id if snapshot else None)
        build.sandbox = new
        try:
            upload = await new.files.open_upload(ARCHIVE)
            async for piece in old.files.stream(ARCHIVE):
                await upload.write(piece)
            await upload.commit()
        finally:
            await asyncio.shield(old.kill())
        return True

    async def _start(self, tenant: str, template: Template, snapshot: str | None = None) -> Sandbox:
        most = self._services.limits.max_timeout
        spec = SandboxSpec(
            template=template,
            limits=template.limits,
            network=self._services.default_network,
            timeout=BUILD_SECONDS if most is None else min(most, BUILD_SECONDS),
            isolation=self._services.isolation,
            tenant=tenant,
            notes={NOTES: True},
            snapshot=snapshot,
        )
        with self._services.admission.place(tenant):
            return await self._engine.create(spec)

    # -------------------------------------------------------------------------------------------- the table

    def _add(self, tenant: str) -> Build:
        running = [build for build in self._all.values() if not build.ended]
        if len(running) >= MOST_RUNNING:
            raise LimitExceeded(f"this server builds at most {MOST_RUNNING} images at once")
        if sum(build.tenant == tenant for build in running) >= MOST_OF_ONE:
            raise LimitExceeded(f"this key may build at most {MOST_OF_ONE} images at once")
        self._make_room(tenant)
        build = Build(tenant)
        self._all[build.id] = build
        return build

    def _make_room(self, tenant: str) -> None:
        """Forget the oldest builds of a tenant that have ended and that nobody reads, where there are too many."""
        kept = [build for build in self._all.values() if build.tenant == tenant]
        over = len(kept) + 1 - KEPT_OF_ONE
        if over <= 0:
            return
        oldest = [build for build in kept if build.ended and not build.readers][:over]
        if len(oldest) < over:
            raise LimitExceeded(f"this key has {KEPT_OF_ONE} builds that run or are being read; end some")
        for build in oldest:
            self._all.pop(build.id)
            self._forget(build)

    def _watch(self, build: Build) -> None:
        """Count the time in which nobody asks for a build, from now on."""
        if build.timer is not None:
            build.timer.cancel()
            build.timer = None
        if not build.readers and self._all.get(build.id) is build:
            build.timer = self._engine.settings.clock.later(FORGOTTEN_AFTER, lambda: self._forget(build))

    def _forget(self, build: Build) -> None:
        self._background.spawn(self._drop(build))

    async def _drop(self, build: Build) -> None:
        """End a build and forget it; nothing of it is left but a snapshot that was made of its image."""
        self._all.pop(build.id, None)
        if build.timer is not None:
            build.timer.cancel()
        if build.task is not None:
            build.task.cancel()
            await asyncio.wait({build.task})
        await self._end_sandbox(build)
        if not build.ended:  # it was cancelled before it had begun
            self._end(build, "cancelled", CANCELLED)
        if build.snapshot is not None and not build.is_kept:
            await self._discard(build.snapshot, build)

    async def _discard(self, snapshot: str, build: Build) -> None:
        with contextlib.suppress(NotFound):
            found = self._engine.find_snapshot(snapshot, build.tenant)
            if set(found.names) <= {build.image}:
                await self._engine.delete_snapshot(snapshot, build.tenant)

    async def _end_sandbox(self, build: Build) -> None:
        sandbox, build.sandbox = build.sandbox, None
        if sandbox is not None:
            await asyncio.shield(sandbox.kill())

    def _built(self, image: str, tenant: str) -> Snapshot | None:
        """Return the newest image of this name that was built here, for this tenant."""
        found = self._engine.snapshots(name=_whole(image), tenant=tenant) if image.startswith(OWN) else ()
        return next(iter(found), None)

    def _sandbox(self, build: Build) -> Sandbox:
        if build.sandbox is None:
            raise SandboxGone("it was ended")
        return build.sandbox

    def _default(self) -> Template:
        template = self._services.templates.find(self._services.templates.names()[0])
        if template is None:
            raise NotFound("this server has no template")
        return template

    def _say(self, build: Build, line: str) -> None:
        """Add a line to a build's log."""
        text = " ".join(line.splitlines()) or " "
        build.log.add("stdout", text.encode("utf-8", "replace"), self._engine.settings.clock.time_ns())


async def _receive(parts: AsyncIterator[multipart.Piece], sandbox: Sandbox) -> dict[str, str]:
    """Read a form: the context goes into the sandbox, the fields are returned.  Raises :class:`Refused`."""
    fields: dict[str, bytearray] = {}
    name, count, room = "", 0, MOST_CONTEXT
    await sandbox.files.make_dir(PLACE)
    upload = await sandbox.files.open_upload(ARCHIVE)
    async for piece in parts:
        if isinstance(piece, multipart.Part):
            name, count = piece.name, count + 1
            if name in fields or count > MAX_PARTS:
                raise Refused(
                    400, f"the form has the field {name[:80]!r} twice, or more than {MAX_PARTS} fields"
                )
            fields[name] = bytearray()
        elif isinstance(piece, multipart.End):
            name = ""
        elif name == "context":
            room -= len(piece)
            if room < 0:
                raise Refused(413, f"a context has at most {MOST_CONTEXT:,} bytes")
            await upload.write(piece)
        else:
            fields[name] += piece
            if len(fields[name]) > MAX_FIELD:
                raise Refused(400, f"the field {name[:80]!r} is longer than {MAX_FIELD:,} bytes")
    if "context" not in fields or room == MOST_CONTEXT:
        raise Refused(400, "the form has no file 'context': an archive (tar.gz) with the Dockerfile")
    await upload.commit()
    return {name: value.decode("utf-8", "replace") for name, value in fields.items() if name != "context"}


def _order_of(fields: Mapping[str, str]) -> Order:
    """Return what the fields of a form ask for.  Raises :class:`Refused`."""
    name = fields.get("image_name", "")
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise Refused(400, f"image_name is a name such as 'app:1', of at most {MAX_NAME} characters")
    path = posixpath.normpath(fields.get("dockerfile") or "Dockerfile")
    if path.startswith(("/", "..")) or path == "." or "\0" in path:
        raise Refused(400, "dockerfile is a path in the context")
    try:
        arguments = msgspec.json.decode(fields.get("build_args") or "{}", type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise Refused(400, f"build_args is a JSON object of texts: {error}") from None
    if any(
        "\0" in text or "=" in key or not key for key, value in arguments.items() for text in (key, value)
    ):
        raise Refused(400, "build_args are names and values of variables")
    notes = [
        f"{key[:80]!r} has no effect: {_WITHOUT_EFFECT.get(key, 'this server does not know it')}"
        for key in fields
        if key not in _KNOWN and fields[key] not in {"", "false"}
    ]
    return Order(_whole(OWN + name), path, arguments, tuple(notes))


def _whole(image: str) -> str:
    """Return the name of an image with its tag."""
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"
