"""Idempotency keys: a request that is sent again gets the answer of the first one, and does nothing.

Answers are kept in memory, for a day at most and a bounded number of each caller; a restart of the server forgets them.  Only
successes are kept: whatever was refused may be tried again.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cellfork.dialects.e2b.errors import OTHER_BODY, Refusal, bad
from cellfork.engine.clock import Clock

SECONDS = 24 * 3600.0
MOST = 1000
"""How long, and how many of one caller."""
_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,255}")

T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    request: bytes
    until: float
    answer: "asyncio.Future[tuple[T] | None]"  # None: there is none, try yourself


class Replays(Generic[T]):
    """The answers that were given to keys, and those that are being made."""

    def __init__(self, clock: Clock, most: int = MOST, seconds: float = SECONDS) -> None:
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._callers: dict[str, OrderedDict[str, _Entry[T]]] = {}

    async def once(self, caller: str, key: str, request: bytes, make: Callable[[], Awaitable[T]]) -> T:
        """Return what ``make`` returns, or returned when this caller sent this key first; whoever comes meanwhile waits.

        ``request`` tells what is asked for: another one under the same key is a :class:`Refusal` (422).  Where ``make`` raises,
        the key is free again.
        """
        if _KEY.fullmatch(key) is None:
            raise bad(
                "an Idempotency-Key has 1 to 255 letters, digits, hyphens, dots, colons and underscores"
            )
        while (entry := self._known(caller, key)) is not None:
            if entry.request != request:
                raise Refusal(422, "this Idempotency-Key was used with another request", OTHER_BODY)
            answer = await asyncio.shield(entry.answer)
            if answer is not None:
                return answer[0]
        return await self._make(caller, key, request, make)

    async def _make(self, caller: str, key: str, request: bytes, make: Callable[[], Awaitable[T]]) -> T:
        future: asyncio.Future[tuple[T] | None] = asyncio.get_running_loop().create_future()
        kept = self._callers.setdefault(caller, OrderedDict())
        entry = kept[key] = _Entry(request, self._clock.monotonic() + self._seconds, future)
        answer: tuple[T] | None = None
        try:
            answer = (await make(),)
        finally:
            future.set_result(answer)
            if answer is None and kept.get(key) is entry:
                del kept[key]
        self._bound(kept)
        return answer[0]

    def _known(self, caller: str, key: str) -> _Entry[T] | None:
        kept = self._callers.get(caller)
        entry = kept.get(key) if kept is not None else None
        if kept is None or entry is None:
            return None
        if entry.answer.done() and entry.until < self._clock.monotonic():
            del kept[key]
            return None
        return entry

    def _bound(self, kept: OrderedDict[str, _Entry[T]]) -> None:
        """Forget the oldest answers of a caller; what is being made stays."""
        for key in [key for key, entry in kept.items() if entry.answer.done()][
            : max(0, len(kept) - self._most)
        ]:
            del kept[key]
