"""One request to execd: where it came from, what it asks, how it is answered."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qs

from cellfork.dialects import asgi
from cellfork.dialects.asgi import Headers, Receive, Scope, Send
from cellfork.dialects.opensandbox.execd import errors
from cellfork.engine.sandbox import Sandbox

LONGEST_NUMBER: Final = 18
"""Digits of a number in a query."""

T = TypeVar("T")


class Call:
    """One request: its sandbox, the parts of its path, its query, its body and where the answer goes.

    ``limit`` is how many bytes of a body are read as a whole.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, parts: Mapping[str, str], limit: int
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.parts = parts
        self.sandbox: Sandbox = scope["state"]["sandbox"]
        self.limit = limit

    @cached_property
    def query(self) -> Mapping[str, list[str]]:
        """The values of the query, by name."""
        text: str = self.scope.get("query_string", b"").decode("latin-1")
        return parse_qs(text, keep_blank_values=True, errors="replace") if text else {}

    async def body(self, kind: type[T]) -> T:
        """Return the body; nothing at all is an empty object."""
        data = await asgi.read_body(self.scope, self.receive, self.limit)
        return asgi.read_json(data, kind)

    def value(self, name: str) -> str:
        """Return a value of the query, ``""`` where there is none."""
        return self.query.get(name, [""])[0]

    def wanted(self, name: str) -> str:
        """Return a value of the query.  Raises :class:`Refused` where it is missing."""
        value = self.value(name)
        if not value:
            raise errors.Refused(400, errors.MISSING_QUERY, f"missing query parameter '{name}'")
        return value

    def number(self, name: str, default: int, least: int) -> int:
        """Return a whole number of the query, of at least ``least``.  Raises :class:`Refused`."""
        text = self.value(name)
        if not text:
            return default
        if not (text.isascii() and text.isdecimal()) or len(text) > LONGEST_NUMBER or int(text) < least:
            raise errors.Refused(400, errors.INVALID_BODY, f"invalid query parameter '{name}': {text[:80]}")
        return int(text)

    async def answer(self, value: object = None, status: int = 200, headers: Headers = ()) -> None:
        """Answer with JSON, or with an empty body."""
        if value is None:
            await asgi.send_body(self.send, status, headers=headers)
        else:
            await asgi.send_json(self.send, status, value, headers)


Handler = Callable[[Call], Awaitable[None]]


class Route(NamedTuple):
    """What answers a method on a path, whose ``{names}`` stand for any one part."""

    method: str
    path: str
    handler: Handler


Routes = Iterable[Route]


class Area(Protocol):
    """A part of execd."""

    def routes(self) -> Routes:
        """Return what it serves."""
        ...
