"""Which sandboxes a list is asked for."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote_plus

from cellfork.dialects.base import Services
from cellfork.dialects.e2b.calls import Call, Owned
from cellfork.dialects.e2b.errors import Refusal, bad
from cellfork.dialects.e2b.pages import microseconds, parse_time
from cellfork.dialects.e2b.templates import find_template, parse_name

STATES = ("running", "paused")


class Filter(NamedTuple):
    """What a sandbox has to be.  ``started_after`` is a Unix time in microseconds; ``template`` ``""`` matches nothing."""

    states: Sequence[str] = STATES
    metadata: Mapping[str, str] = {}
    started_after: int = 0
    template: str | None = None

    def takes(self, owned: Owned) -> bool:
        """Tell whether a sandbox belongs into the list."""
        sandbox, notes = owned
        return (
            sandbox.state in self.states
            and self.metadata.items() <= sandbox.spec.metadata.items()
            and microseconds(sandbox.started_at) >= self.started_after
            and (self.template is None or notes.template == self.template)
        )


def parse_filter(call: Call) -> Filter:
    """Return the filter of a query.  Raises :class:`Refusal` (400)."""
    return Filter(
        _states(call.query.get("state", ())),
        parse_metadata(call.one("metadata")),
        _started_after(call.one("startedAfter")),
        _template(call.services, call.one("template")),
    )


def parse_metadata(text: str | None) -> dict[str, str]:
    """Read ``key=value&key=value``.

    Each key and value is percent-encoded, and so is the whole, before the query that carries it is: clients of E2B encode three times,
    and programs that encode less are understood as well.
    """
    if text is None:
        return {}
    wanted = {}
    for pair in unquote_plus(text).split("&"):
        key, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise bad("Error parsing metadata: invalid key value pair in query")
        wanted[unquote_plus(key)] = unquote_plus(value)
    return wanted


def _states(values: Sequence[str]) -> Sequence[str]:
    """Return the states of ``state=running,paused``, which may also be written as several parameters."""
    wanted = [state for value in values for state in value.split(",") if state]
    for state in wanted:
        if state not in STATES:
            raise bad(f"Invalid state parameter: unknown state {state[:40]!r}; known: {', '.join(STATES)}")
    return wanted or STATES


def _started_after(text: str | None) -> int:
    if text is None:
        return 0
    try:
        return parse_time(text.replace(" ", "+"))  # a "+" of an offset that nobody encoded is a space here
    except (ValueError, OverflowError):
        raise bad("Invalid startedAfter parameter: not a time as RFC 3339 writes it") from None


def _template(services: Services, text: str | None) -> str | None:
    """Return the id of a template or snapshot by any of its names; ``""`` where there is none: the list is empty then."""
    if text is None:
        return None
    if ":" in text:
        raise bad("Invalid template: tags are not supported here because sandboxes are not tag-scoped")
    try:
        return find_template(services, text).name
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        return parse_name(text).identifier  # perhaps a snapshot's
