"""Heads of requests and answers that are passed on between a client and a program in a sandbox.

What belongs to one connection alone is left out, what two programs could read in two ways is refused.
Sources: RFC 9110 §7.6, RFC 9112 §6.
"""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from cellfork.dialects.asgi import Scope

Field = tuple[bytes, bytes]

HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization",
    b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
})  # fmt: skip
"""Fields of one connection, like all that its ``Connection`` field names."""
FORWARDED = frozenset(
    {b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto", b"forwarded"}
)
"""What a client says of these is not passed on: the server says it itself."""

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


class BadField(ValueError):
    """The name or the value of a field is none."""


def end_to_end(fields: Iterable[Field]) -> list[Field]:
    """Return the fields that are meant for the other end, their names in lower case.  Raises :class:`BadField`."""
    lowered = [(name.lower(), value) for name, value in fields]
    named = {token for name, value in lowered if name == b"connection" for token in _tokens(value)}
    kept = [field for field in lowered if field[0] not in HOP_BY_HOP and field[0] not in named]
    for name, value in kept:
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise BadField(f"the field {name[:80].decode('latin-1')!r} is malformed")
    return kept


def forwarded(scope: Scope) -> Iterator[Field]:
    """Yield what tells a program where a request came from: the address of the client, the host, the scheme."""
    client = scope.get("client")
    if client is not None:
        yield b"x-forwarded-for", str(client[0]).encode("latin-1", "replace")
    host = values_of(scope["headers"], b"host")
    if host:
        yield b"x-forwarded-host", host[0]
    secure = scope["scheme"] in {"https", "wss"}
    yield b"x-forwarded-proto", b"https" if secure else b"http"


def target_of(scope: Scope) -> bytes:
    """Return the path and the query as the client sent them."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


def canonical(name: bytes) -> bytes:
    """Return a field's name as most programs write it (``Content-Type``): some look for no other form of it."""
    return b"-".join(part.capitalize() for part in name.split(b"-"))


def values_of(fields: Iterable[Field], name: bytes) -> list[bytes]:
    """Return the values of all fields of one name, which is in lower case."""
    return [value for known, value in fields if known.lower() == name]


def _tokens(value: bytes) -> Iterator[bytes]:
    return (token.strip().lower() for token in value.split(b","))
