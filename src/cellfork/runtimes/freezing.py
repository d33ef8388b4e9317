"""The seam for holding a sandbox still: what a runtime offers that can."""

from typing import Protocol

from cellfork.model.errors import Unsupported


class Freezer(Protocol):
    """Holds the processes of one sandbox still.

    One call at a time: whoever holds the sandbox sees to that.
    """

    @property
    def available(self) -> bool:
        """Whether this host can do it."""
        ...

    @property
    def held(self) -> bool:
        """Whether anything is held at this moment."""
        ...

    async def freeze(self, but: int | None = None) -> None:
        """Hold every process still, ``but`` the one with this pid; return when they stand.

        Raises :class:`Unsupported` where the host has no freezer, :class:`UnavailableError` where a process does not stop in
        time: then nothing is held.
        """
        ...

    async def thaw(self) -> None:
        """Let everything go on."""
        ...

    def let_die(self) -> None:
        """Have what is held die, now that it is to be killed."""
        ...


class NoFreezer:
    """There is none: refuses, and says why.  Implements :class:`Freezer`."""

    available = False
    held = False

    def __init__(self, why: str) -> None:
        self._why = why

    async def freeze(self, but: int | None = None) -> None:
        """Refuse."""
        raise Unsupported(self._why)

    async def thaw(self) -> None:
        """Do nothing: nothing is held."""

    def let_die(self) -> None:
        """Do nothing."""
