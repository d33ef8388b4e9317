"""One request to the control plane, as its handlers see it, and what they return."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from cellfork.dialects.asgi import Headers
from cellfork.dialects.base import Services
from cellfork.dialects.e2b.errors import bad, missing
from cellfork.dialects.e2b.notes import Notes, notes_of
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import NotFound

MOST_PARAMETERS = 64
MOST_ID = 128

T = TypeVar("T")


class Reply(NamedTuple):
    """An answer: its status, its value (``None``: no body) and headers."""

    status: int
    value: Any = None
    headers: Headers = ()


class Owned(NamedTuple):
    """A sandbox of the caller, with what this dialect keeps with it."""

    sandbox: Sandbox
    notes: Notes


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose caller is known.  ``body`` is whole, and within its bound."""

    services: Services
    tenant: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: bytes = b""

    def parse(self, kind: type[T], *, optional: bool = False) -> T:
        """Return the body as a ``kind``; an empty one as ``{}`` where it is ``optional``.  Raises :class:`Refusal` (400)."""
        try:
            return msgspec.json.decode(self.body or b"{}" if optional else self.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad(f"Error when parsing request: {error}") from None

    def one(self, name: str) -> str | None:
        """Return a query parameter, ``None`` where it is absent.  Raises :class:`Refusal` (400) where it is there twice."""
        values = self.query.get(name, ())
        if len(values) > 1:
            raise bad(f"the query parameter {name!r} is there {len(values)} times")
        return values[0] if values else None

    def number(self, name: str) -> int | None:
        """Return a query parameter that is a whole number, not negative."""
        text = self.one(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal()) or len(text) > 18:
            raise bad(f"the query parameter {name!r} is a whole number")
        return int(text)

    def sandbox(self) -> Owned:
        """Return the sandbox of the path.  Raises :class:`Refusal`: 404 where it is not the caller's, 400 for what is no id."""
        return self.owned(self.parameters["sandboxID"])

    def owned(self, id: str) -> Owned:
        """Return a sandbox of the caller by its id."""
        try:
            sandbox = self.services.engine.get(short_id(id))
        except NotFound:
            raise missing(id) from None
        notes = notes_of(sandbox) if sandbox.spec.tenant == self.tenant else None
        if notes is None or sandbox.state == "ended":
            raise missing(id)
        return Owned(sandbox, notes)

    def sandboxes(self) -> list[Owned]:
        """Return the caller's sandboxes that this dialect made, running and paused ones."""
        mine = [sandbox for sandbox in self.services.engine.list() if sandbox.spec.tenant == self.tenant]
        return [Owned(sandbox, notes) for sandbox in mine if (notes := notes_of(sandbox)) is not None]


def parse_query(query: bytes) -> dict[str, list[str]]:
    """Return the parameters of a query, each with its values in order.  Raises :class:`Refusal` (400) for too many."""
    found: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_PARAMETERS
        ):
            found.setdefault(name, []).append(value)
    except ValueError:
        raise bad(f"a query has at most {MOST_PARAMETERS} parameters") from None
    return found


def short_id(text: str) -> str:
    """Return the id of a sandbox without the machine's that old clients append (``id-client``).  Raises :class:`Refusal` (400)."""
    id, _, client = text.partition("-")
    if (
        "-" in client
        or not id
        or len(text) > MOST_ID
        or not (id.isascii() and id.isalnum() and id == id.lower())
    ):
        raise bad("Invalid sandbox ID")
    return id
