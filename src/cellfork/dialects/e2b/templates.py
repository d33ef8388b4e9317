"""Templates by name, alias, or the id of a snapshot: what a sandbox can be made from."""

import re
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

from cellfork.dialects.base import Services
from cellfork.dialects.e2b import schema
from cellfork.dialects.e2b.calls import Call, Reply
from cellfork.dialects.e2b.errors import Refusal, bad
from cellfork.dialects.e2b.pages import Page, Place, microseconds, rfc3339
from cellfork.dialects.e2b.translate import Source, cpu_count, disk_mb, memory_mb
from cellfork.model.specs import Template

DEFAULT_TAG = "default"
_WORD = re.compile(r"[a-z0-9_-]+")
_TAG = re.compile(r"[a-z0-9_.-]+")
_BUILDS = uuid.UUID("7c6f7f0e-6a0d-4d35-9d5e-3f7f1f0c2b11")


class Name(NamedTuple):
    """``alias`` or ``namespace/alias``, with a tag where one was written."""

    identifier: str
    tag: str | None = None


def parse_name(text: str, what: str = "template reference") -> Name:
    """Read ``[namespace/]alias[:tag]``, in lower case.  Raises :class:`Refusal` (400)."""
    identifier, colon, tag = text.strip().lower().partition(":")
    words = identifier.split("/")
    if len(words) > 2 or not all(map(_WORD.fullmatch, words)) or (colon and not _TAG.fullmatch(tag)):
        raise bad(f"Invalid {what}: {text[:80]!r} is not of the form name or name:tag")
    return Name(identifier, tag if colon else None)


def find_template(services: Services, text: str) -> Template:
    """Return the template of a name or an alias, which may carry the tag ``default``.

    Raises :class:`Refusal`: 400 for what cannot be a name, 404 where there is none.
    """
    exact = services.templates.find(text)  # names of this server's may hold more than E2B's can
    if exact is not None:
        return exact
    name = parse_name(text)
    template = services.templates.find(name.identifier)
    if template is None:
        raise no_template(services, name.identifier)
    if name.tag not in {None, DEFAULT_TAG}:
        raise Refusal(404, f"tag '{name.tag}' does not exist for template '{name.identifier}'")
    return template


def no_template(services: Services, identifier: str) -> Refusal:
    """Return the answer for a template that does not exist; it names those that do."""
    known = ", ".join(services.templates.names())
    return Refusal(404, f"template '{identifier[:80]}' not found; this server has: {known}")


def source_of(services: Services, text: str) -> Source:
    """Return what a sandbox is made from that names a template; its alias is the one that was used, else the first."""
    template = find_template(services, text)
    names = _names(services, template)
    used = text.strip().lower().partition(":")[0]
    alias = used if used in names[1:] else (*names[1:], template.name)[0]
    return Source(template, template.limits, template.name, alias)


def build_id(template: Template) -> str:
    """Return the id of a template's one build: always the same for one name."""
    return str(uuid.uuid5(_BUILDS, template.name))


# ------------------------------------------------------------------------------------------------ handlers


async def list_templates(call: Call) -> Reply:
    """List this server's templates."""
    return Reply(200, [_told(call.services, template) for template in _all(call.services)])


async def list_templates_v2(call: Call) -> Reply:
    """List this server's templates in pages, the newest first."""
    page = Page.asked(call.one("limit"), call.one("nextToken"))
    shown, token = page.cut(_all(call.services), lambda template: Place(_made(template), template.name))
    told = [_told(call.services, template) for template in shown]
    return Reply(200, told, [(b"x-next-token", token.encode())] if token else ())


async def get_template(call: Call) -> Reply:
    """Tell a template with its one build."""
    template = find_template(call.services, call.parameters["templateID"])
    made = rfc3339(_made(template))
    build = schema.TemplateBuild(
        build_id=build_id(template),
        status="ready",
        created_at=made,
        updated_at=made,
        finished_at=made,
        cpu_count=cpu_count(template.limits),
        memory_mb=memory_mb(template.limits),
        disk_size_mb=disk_mb(template.limits),
        envd_version=schema.ENVD_VERSION,
    )
    told = schema.TemplateWithBuilds(
        template_id=template.name,
        public=True,
        aliases=call.services.templates.aliases(template.name),
        names=_names(call.services, template),
        created_at=made,
        updated_at=made,
        last_spawned_at=None,
        spawn_count=0,
        builds=[build],
    )
    return Reply(200, told)


async def get_alias(call: Call) -> Reply:
    """Tell which template an alias stands for."""
    template = find_template(call.services, call.parameters["alias"])
    return Reply(200, schema.TemplateAlias(template.name, public=True))


async def get_tags(call: Call) -> Reply:
    """List the tags of a template: there is one."""
    template = find_template(call.services, call.parameters["templateID"])
    return Reply(200, [schema.TemplateTag(DEFAULT_TAG, build_id(template), rfc3339(_made(template)))])


def _told(services: Services, template: Template) -> schema.Template:
    made = rfc3339(_made(template))
    return schema.Template(
        template_id=template.name,
        build_id=build_id(template),
        cpu_count=cpu_count(template.limits),
        memory_mb=memory_mb(template.limits),
        disk_size_mb=disk_mb(template.limits),
        public=True,
        aliases=services.templates.aliases(template.name),
        names=_names(services, template),
        created_at=made,
        updated_at=made,
        created_by=None,
        last_spawned_at=None,
        spawn_count=0,
        build_count=1,
        envd_version=schema.ENVD_VERSION,
        build_status="ready",
    )


def _names(services: Services, template: Template) -> list[str]:
    return [template.name, *services.templates.aliases(template.name)]


def _all(services: Services) -> list[Template]:
    found = [services.templates.find(name) for name in services.templates.names()]
    return [template for template in found if template is not None]


def _made(template: Template) -> int:
    """Return when a template was made, as far as there is such a time: that of its interpreter, in microseconds."""
    try:
        made = Path(template.interpreter or sys.executable).stat().st_mtime
    except OSError:
        made = 0.0
    return microseconds(made)
