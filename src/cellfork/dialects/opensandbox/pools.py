"""Pools are the templates of this server: each has the sandboxes that wait for whoever asks next.

They can be looked at and named in ``extensions.poolRef``; how many wait is a setting of the server.  The form of the answers is that of
``server/opensandbox_server/api/schema.py`` of OpenSandbox: its specification names pools, and leaves their routes out.
"""

from hashlib import sha256
from typing import Final

from cellfork.dialects.base import Services
from cellfork.dialects.opensandbox import errors, registry
from cellfork.dialects.opensandbox.errors import Refused
from cellfork.dialects.opensandbox.translate import Json
from cellfork.model.specs import Template

REFERENCE: Final = "poolRef"
"""Which of a request's extensions names a pool."""
UNBOUNDED: Final = 2**31 - 1
"""What is told where a server has no bound: the form asks for a number, and upstream's are of 32 bits."""


def listed(services: Services, tenant: str) -> Json:
    """Return all pools, as a tenant has them."""
    return {"items": [found(services, tenant, name) for name in services.templates.names()]}


def found(services: Services, tenant: str, name: str) -> Json:
    """Return the pool of this name or alias.  Raises :class:`Refused`."""
    template = services.templates.find(name)
    if template is None:
        raise Refused(404, errors.NO_POOL, f"Pool {name[:80]!r} not found.")
    stock = services.engine.stock(template, tenant, services.isolation)
    allocated = _allocated(services, tenant, template)
    bound = services.admission.most
    return {
        "name": template.name,
        "capacitySpec": {
            "bufferMin": stock.size,
            "bufferMax": stock.size,
            "poolMin": stock.size,
            "poolMax": UNBOUNDED if bound is None else bound,
        },
        "status": {
            "total": allocated + stock.waiting,
            "allocated": allocated,
            "available": stock.waiting,
            "revision": sha256(repr(template).encode()).hexdigest()[:12],
        },
    }


def _allocated(services: Services, tenant: str, template: Template) -> int:
    names = [notes.extensions.get(REFERENCE) for _, notes in registry.everything(services.engine, tenant)]
    return sum(name is not None and services.templates.find(name) == template for name in names)
