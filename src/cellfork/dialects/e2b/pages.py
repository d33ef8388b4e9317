"""Lists in pages: sorted by time, cut by a cursor that survives what begins and ends between two pages."""

import base64
import binascii
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from cellfork.dialects.e2b.errors import bad

MOST = 100
"""Entries of a page, and of one that names no limit."""

T = TypeVar("T")


class Place(NamedTuple):
    """Where in a list something stands: a Unix time in microseconds, then its id."""

    time: int
    id: str


class Page(NamedTuple):
    """Which part of a list is asked for: as many as ``limit`` after ``after``, the newest first unless ``ascending``."""

    limit: int = MOST
    ascending: bool = False
    after: Place | None = None

    def cut(self, items: Iterable[T], place: Callable[[T], Place]) -> tuple[list[T], str | None]:
        """Return this page of ``items``, and the cursor of the next one (``None``: this is the last).

        Of equal times the smaller id comes first, in an ascending list last.
        """
        placed = sorted(
            ((place(item), item) for item in items),
            key=lambda pair: (-pair[0].time, pair[0].id),
            reverse=self.ascending,
        )
        if self.after is not None:
            placed = [pair for pair in placed if self._is_after(pair[0], self.after)]
        page = placed[: self.limit]
        more = len(placed) > len(page)
        return [item for _, item in page], self._cursor(page[-1][0]) if more else None

    @classmethod
    def asked(cls, limit: str | None, token: str | None, order: str | None = None) -> "Page":
        """Return the page that a query asks for.  Raises :class:`Refusal` (400) for anything malformed."""
        if order not in {None, "asc", "desc"}:
            raise bad(f"Invalid order parameter: unknown order {str(order)[:40]!r}")
        ascending = order == "asc"
        number = MOST if limit is None else _number(limit)
        if not 1 <= number <= MOST:
            raise bad(f"limit is a number from 1 to {MOST}")
        return cls(number, ascending, _place_of(token, ascending=ascending) if token else None)

    def _is_after(self, place: Place, other: Place) -> bool:
        if place.time != other.time:
            return (place.time > other.time) == self.ascending
        return (place.id < other.id) if self.ascending else (place.id > other.id)

    def _cursor(self, place: Place) -> str:
        parts = [rfc3339(place.time), place.id, *(["asc"] if self.ascending else [])]
        return base64.urlsafe_b64encode("__".join(parts).encode()).decode()


def microseconds(seconds: float) -> int:
    """Return a Unix time in microseconds, the precision at which times are compared."""
    return round(seconds * 1_000_000)


def rfc3339(time: int) -> str:
    """Return a Unix time in microseconds as text."""
    moment = datetime.fromtimestamp(time // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time % 1_000_000:06d}Z"


def parse_time(text: str) -> int:
    """Return the Unix time in microseconds of an RFC 3339 text.  Raises :class:`ValueError`."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs its offset")
    whole = moment.replace(microsecond=0).timestamp()
    return int(whole) * 1_000_000 + moment.microsecond


def _number(text: str) -> int:
    """Return a small whole number; 0 for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0


def _place_of(token: str, *, ascending: bool) -> Place:
    try:
        time, id, *order = base64.b64decode(token, altchars=b"-_", validate=True).decode().split("__")
        place = Place(parse_time(time), id)
    except (ValueError, binascii.Error, OverflowError):
        raise bad("Invalid next token") from None
    if order != (["asc"] if ascending else []):
        raise bad("Invalid next token: it belongs to the other order")
    return place
