"""What this dialect keeps with a sandbox: its tokens and what its creator asked for.

It lives in ``sandbox.notes["e2b"]`` as plain JSON, so it survives the server; this is the only module that knows its form::

    notes = notes_of(sandbox)  # None: another dialect made the sandbox
    await keep(sandbox, replace(notes, warnings=()))
"""

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cellfork.dialects.keeping import Kept, is_token, new_token

KEY: Final = "e2b"
"""Where in ``sandbox.notes``."""


class Notes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept with one sandbox.

    ``template`` is what it was made from, as clients are told: a template's name or a snapshot's id.
    ``envd_token`` is asked for by ports 49983 and 49999 (``None``: they are open to whoever knows the id), ``traffic_token`` by every
    port but 49983 (``None``: public).  ``mask_host`` replaces the ``Host`` of what is forwarded, ``${PORT}`` in it the port.
    ``timeout`` is the life in seconds that was asked for at first: traffic resumes for as long.  ``network`` is the part of the
    request that details repeat, ``warnings`` what of it could not be given.
    """

    template: str
    alias: str | None = None
    envd_token: str | None = None
    traffic_token: str | None = None
    mask_host: str | None = None
    timeout: int = 300
    auto_pause: bool = False
    auto_pause_memory: bool = True
    auto_resume: bool = False
    network: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()

    def may_enter(self, presented: str | None) -> bool:
        """Tell whether a request with this ``X-Access-Token`` may use the sandbox.  In constant time."""
        return self.envd_token is None or is_token(self.envd_token, presented)

    def may_pass(self, presented: str | None) -> bool:
        """Tell whether a request with this ``E2B-Traffic-Access-Token`` may reach a port.  In constant time."""
        return self.traffic_token is None or is_token(self.traffic_token, presented)

    def with_new_tokens(self) -> "Notes":
        """Return the same with other tokens, where there are any: for a copy of the sandbox."""
        return replace(
            self, envd_token=self.envd_token and new_token(), traffic_token=self.traffic_token and new_token()
        )


_KEPT = Kept(KEY, Notes)
as_notes = _KEPT.as_notes
notes_of = _KEPT.of
keep = _KEPT.keep
