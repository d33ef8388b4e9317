"""Why sandboxes ended: told to a client that was elsewhere when its sandbox did."""

from collections import OrderedDict
from typing import Any, NamedTuple

from cellfork.dialects.e2b.extension.operations import info_of
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import SandboxGone

MOST = 1000
"""Endings that are remembered."""


class Ending(NamedTuple):
    """What was known of a sandbox when it ended, and why it did."""

    tenant: str
    info: dict[str, Any]
    message: str
    reason: str


class Endings:
    """Remembers the newest endings of the sandboxes that it watches.  Belongs to one event loop."""

    def __init__(self) -> None:
        self._watched: set[str] = set()
        self._ended: OrderedDict[str, Ending] = OrderedDict()

    def watch(self, sandbox: Sandbox) -> None:
        """Remember why this sandbox ends, when it does.  Idempotent."""
        if sandbox.id not in self._watched:
            self._watched.add(sandbox.id)
            sandbox.on_end(lambda: self._note(sandbox))

    def error(self, tenant: str, id: str) -> SandboxGone | None:
        """Return the error that tells why a sandbox of this tenant is gone; ``None`` where nothing is known of it."""
        ending = self._of(tenant, id)
        return None if ending is None else SandboxGone(ending.message, ending.reason)

    def info(self, tenant: str, id: str) -> dict[str, Any] | None:
        """Return what was known of a sandbox of this tenant when it ended; ``None`` where it did not, or long ago."""
        ending = self._of(tenant, id)
        return None if ending is None else ending.info

    def _of(self, tenant: str, id: str) -> Ending | None:
        ending = self._ended.get(id)
        return ending if ending is not None and ending.tenant == tenant else None

    def _note(self, sandbox: Sandbox) -> None:
        self._watched.discard(sandbox.id)
        error = sandbox.gone()
        self._ended[sandbox.id] = Ending(sandbox.spec.tenant, info_of(sandbox), str(error), error.reason)
        while len(self._ended) > MOST:
            self._ended.popitem(last=False)
