"""Heads of HTTP/1 messages, read strictly: what two programs could read in two ways is refused.  Pure.

Sources: RFC 9110, RFC 9112.
"""

import re
from dataclasses import dataclass, field

MAX_HEAD = 64 * 1024
MAX_FIELDS = 100
MAX_TARGET = 16 * 1024
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]{1,%d}) HTTP/1\.([01])" % MAX_TARGET)
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [\x20-\x7e\x80-\xff\t]{0,1000})?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,200}):[ \t]*((?:[\x21-\x7e\x80-\xff](?:[\x20-\x7e\x80-\xff\t]*[\x21-\x7e\x80-\xff])?)?)[ \t]*")  # fmt: skip
_LENGTH = re.compile(r"[0-9]{1,18}")
_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authorization", "proxy-authenticate", "proxy-authentication-info",
    "te", "trailer", "transfer-encoding", "upgrade", "http2-settings", "expect",
})  # fmt: skip

Fields = list[tuple[str, str]]


class BadHead(ValueError):
    """The head is malformed, ambiguous or too large; ``status`` is the answer to give."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head.  ``fields`` keep their order; their names are in lower case."""

    method: str
    target: str
    minor: int
    fields: Fields = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        """Return the values of all fields of one name."""
        return values_of(self.fields, name)


@dataclass(frozen=True, slots=True)
class Response:
    """A response's head: the status line as it came, the number in it, the fields."""

    line: bytes
    status: int
    fields: Fields


class HeadReader:
    """Finds the end of a head in bytes that come in pieces; looks at each byte about once."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, piece: bytes) -> tuple[bytes, bytes] | None:
        """Return the head and what follows it, ``None`` while the head is incomplete.

        Raises :class:`BadHead` for a line that ends without a carriage return, and beyond 64 KiB.
        """
        data = self._data
        start = max(0, len(data) - 3)
        data += piece
        found = data.find(b"\r\n\r\n", start)
        end = found + 4 if found >= 0 else len(data)
        if end > MAX_HEAD:
            raise BadHead("the head is larger than 64 KiB", 431)
        tail = data[start:end]
        cut = start > 0 and tail.startswith(b"\n")  # its carriage return was looked at before
        if tail.count(b"\n") - cut != tail.count(b"\r\n"):
            raise BadHead("a line of the head does not end with CR LF")
        return (bytes(data[:end]), bytes(data[end:])) if found >= 0 else None


def parse_request(data: bytes) -> Request:
    """Return the request whose head is ``data``; raises :class:`BadHead`."""
    line, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise BadHead("the request line is malformed", 414 if len(line) > MAX_TARGET else 400)
    return Request(match[1].decode(), match[2].decode(), int(match[3]), _fields(lines))


def parse_response(data: bytes) -> Response:
    """Return the response whose head is ``data``; raises :class:`BadHead`."""
    line, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise BadHead("the status line is malformed", 502)
    return Response(line, int(match[1]), _fields(lines))


def body_length(request: Request) -> int | None:
    """Return the bytes of the body; ``None``: it comes in chunks.  Raises :class:`BadHead` where that is not clear."""
    lengths, codings = request.values("content-length"), request.values("transfer-encoding")
    if codings:
        if lengths or request.minor == 0 or [coding.lower() for coding in codings] != ["chunked"]:
            raise BadHead("the length of the body is ambiguous")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or _LENGTH.fullmatch(lengths[0]) is None:
        raise BadHead("the length of the body is ambiguous")
    return int(lengths[0])


def end_to_end(fields: Fields) -> Fields:
    """Return the fields that are meant for the other end."""
    named = {token.strip().lower() for value in values_of(fields, "connection") for token in value.split(",")}
    return [(name, value) for name, value in fields if name not in _HOP_BY_HOP and name not in named]


def values_of(fields: Fields, name: str) -> list[str]:
    """Return the values of all fields of one name."""
    return [value for known, value in fields if known == name]


def encode(line: bytes, fields: Fields) -> bytes:
    """Return the bytes of a head."""
    lines = [line, *(f"{name}: {value}".encode("latin-1") for name, value in fields)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _fields(lines: list[bytes]) -> Fields:
    if len(lines) > MAX_FIELDS:
        raise BadHead(f"the head has more than {MAX_FIELDS} fields", 431)
    fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadHead("a header field is malformed")
        fields.append((match[1].decode("ascii").lower(), match[2].decode("latin-1")))
    return fields
