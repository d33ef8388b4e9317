"""Ranges of host ids: one for each zygote, and a part of it for each of its sandboxes.

The ranges lie far above the ids of users and of /etc/subuid.  A range is chosen at random, because other
programs on this machine may choose as well; two zygotes of one runtime never have the same.
"""

import secrets
from collections.abc import Callable

FIRST_HOST_ID = 1 << 29
IDS_PER_ZYGOTE = 1 << 21
ID_SLOTS = ((1 << 32) - FIRST_HOST_ID) // IDS_PER_ZYGOTE - 1

Alive = Callable[[], bool]


def host_ids(slot: int | None = None) -> list[int]:
    """Return first and count of the range in ``slot`` (``None``: in any) for one zygote."""
    slot = secrets.randbelow(ID_SLOTS) if slot is None else slot
    return [FIRST_HOST_ID + slot * IDS_PER_ZYGOTE, IDS_PER_ZYGOTE]


class Slots:
    """Which ranges the zygotes of one runtime have."""

    def __init__(self) -> None:
        self._held: dict[int, Alive] = {}

    def take(self) -> int:
        """Return a slot that no living zygote has; it is held until :meth:`give` is told by whom."""
        self._held = {slot: alive for slot, alive in self._held.items() if alive()}
        free = [slot for slot in range(ID_SLOTS) if slot not in self._held]
        slot = secrets.choice(free)
        self._held[slot] = lambda: True
        return slot

    def give(self, slot: int, alive: Alive) -> None:
        """Let whatever ``alive`` asks about hold ``slot`` for as long as it lives."""
        self._held[slot] = alive
