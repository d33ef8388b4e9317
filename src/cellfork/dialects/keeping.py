"""How a dialect keeps something with a sandbox: its notes, as plain JSON that survives the server; and tokens.

``SandboxSpec.notes`` has one place for each dialect.  Who made a sandbox is told by whose notes it carries::

    _KEPT = Kept("e2b", Notes)
    _KEPT.of(sandbox)  # None: another dialect made the sandbox
"""

import hmac
import secrets
from typing import Any, Final, Generic, TypeVar

import msgspec

from cellfork.engine.sandbox import Sandbox

TOKEN_BYTES: Final = 32

Notes = TypeVar("Notes", bound=msgspec.Struct)


class Kept(Generic[Notes]):
    """Writes and reads the notes of one dialect: ``key`` is their place, ``kind`` their type."""

    def __init__(self, key: str, kind: type[Notes]) -> None:
        self._key = key
        self._kind = kind

    def as_notes(self, notes: Notes) -> dict[str, Any]:
        """Return what ``SandboxSpec.notes`` is to hold."""
        return {self._key: msgspec.to_builtins(notes)}

    def of(self, sandbox: Sandbox) -> Notes | None:
        """Return what is kept with a sandbox; ``None`` where another dialect made it."""
        kept = sandbox.notes.get(self._key)
        return None if kept is None else msgspec.convert(kept, self._kind)

    async def keep(self, sandbox: Sandbox, notes: Notes) -> None:
        """Replace what is kept with a sandbox, durably.  Raises :class:`UnavailableError` where it could not be written."""
        sandbox.notes[self._key] = msgspec.to_builtins(notes)
        await sandbox.save()


def new_token() -> str:
    """Return a token of 256 random bits, as hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


def is_token(token: str, presented: str | None) -> bool:
    """Tell whether a token was presented.  In constant time."""
    return presented is not None and hmac.compare_digest(token.encode(), presented.encode(errors="replace"))
