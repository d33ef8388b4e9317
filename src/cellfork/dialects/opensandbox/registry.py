"""What this dialect keeps with a sandbox, and how it finds its sandboxes again.

It lives in ``sandbox.notes["opensandbox"]`` as plain JSON, so it survives the server; this is the only module that
knows its form.
"""

from typing import Final

import msgspec

from cellfork.dialects.keeping import Kept
from cellfork.dialects.opensandbox.errors import not_found
from cellfork.dialects.opensandbox.schema import Rule
from cellfork.engine.engine import Engine
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import NotFound

KEY: Final = "opensandbox"
"""Where in ``sandbox.notes``."""


class Policy(msgspec.Struct, frozen=True, rename="camel"):
    """What a sandbox may reach, in the words of whoever asked for it."""

    default_action: str = "deny"
    egress: tuple[Rule, ...] = ()


class Notes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept with one sandbox.

    ``image``, ``snapshot``, ``platform`` and ``extensions`` are told as they were asked for; ``metadata`` can be changed later.
    ``egress_token`` is asked for on port 18080, ``access_token`` on every port (``None``: whoever knows the id may connect).
    ``policy`` is what is shown of the network policy (``None``: none was asked for).  ``renew`` are the seconds that a request to
    a port gives the sandbox.  ``volumes`` are those to delete with it.
    """

    entrypoint: tuple[str, ...]
    egress_token: str
    access_token: str | None = None
    image: str | None = None
    snapshot: str | None = None
    metadata: dict[str, str] = {}
    platform: dict[str, str] | None = None
    extensions: dict[str, str] = {}
    policy: Policy | None = None
    renew: int | None = None
    volumes: tuple[str, ...] = ()


_KEPT = Kept(KEY, Notes)
as_notes = _KEPT.as_notes
notes_of = _KEPT.of
keep = _KEPT.keep


def find(engine: Engine, id: str, tenant: str | None = None) -> tuple[Sandbox, Notes]:
    """Return a sandbox of this dialect and what is kept with it (``tenant``: of this one alone).

    Raises :class:`Refused` where there is none: also for a sandbox of somebody else, or of another dialect.
    """
    try:
        sandbox = engine.get(id)
    except NotFound:
        raise not_found(id) from None
    notes = notes_of(sandbox)
    if notes is None or (tenant is not None and sandbox.spec.tenant != tenant):
        raise not_found(id)
    return sandbox, notes


def everything(engine: Engine, tenant: str) -> list[tuple[Sandbox, Notes]]:
    """Return a tenant's sandboxes, the newest first."""
    found = [
        (sandbox, notes)
        for sandbox in engine.list()
        if sandbox.spec.tenant == tenant and (notes := notes_of(sandbox)) is not None
    ]
    return sorted(found, key=lambda pair: (pair[0].started_at, pair[0].id), reverse=True)
