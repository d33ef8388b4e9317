"""Content encodings: which one an answer gets, and bodies that come compressed.  Only gzip is understood, as upstream."""

import contextlib
import zlib
from collections.abc import AsyncIterator

from cellfork.dialects.asgi import TooLarge
from cellfork.dialects.e2b.envd.errors import Refusal
from cellfork.model.errors import InvalidRequest

GZIP = 16 + zlib.MAX_WBITS
PIECE = 1024 * 1024
"""Bytes that are decompressed at once."""
MAX_MEMBERS = 10_000


def accepted(header: str | None, *, identity_only: bool = False) -> str:
    """Return ``gzip`` or ``identity``, whichever ``Accept-Encoding`` likes best.  Raises :class:`Refusal` (406)."""
    weights = _weights(header or "")
    no_identity = weights.get("identity", 1.0 if weights.get("*", 1.0) else 0.0) == 0
    if identity_only:
        if no_identity:
            raise Refusal(406, "identity encoding not acceptable for Range or conditional request")
        return "identity"
    for name, weight in sorted(weights.items(), key=lambda pair: -pair[1]):
        if weight and name in {"gzip", "identity"}:
            return name
        if weight and name == "*":
            return "gzip" if no_identity else "identity"
    if no_identity:
        raise Refusal(406, "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]")
    return "identity"


def _weights(header: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in header.split(",")[:64]:
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                with contextlib.suppress(ValueError):
                    weight = float(parameter[2:])
        if name:
            found.setdefault(name, weight)
    return found


def check_content_encoding(header: str | None) -> bool:
    """Tell whether a body is compressed.  Raises :class:`Refusal` (400) for what is not understood."""
    name = (header or "").partition(";")[0].strip().lower()
    if name in {"", "identity"}:
        return False
    if name == "gzip":
        return True
    raise Refusal(
        400,
        f"error decompressing request body: unsupported Content-Encoding: {header}, supported: [gzip]",
    )


async def decompressed(body: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """Yield a gzip body in the clear, at most a mebibyte at once: whoever takes it decides how fast it grows.

    Raises :class:`InvalidRequest` for what is not gzip or ends too early, :class:`TooLarge` above ``limit`` bytes.
    """
    stream = zlib.decompressobj(GZIP)
    members, total = 1, 0
    async for data in body:
        rest, more = data, True
        while rest or more:
            if stream.eof and rest:
                members += 1
                if members > MAX_MEMBERS:
                    raise InvalidRequest("error decompressing request body: too many gzip members")
                stream = zlib.decompressobj(GZIP)
            try:
                piece = stream.decompress(rest, PIECE)
            except zlib.error as error:
                message = "error decompressing request body: gzip: invalid header or data"
                raise InvalidRequest(message) from error
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            more = len(piece) == PIECE and not stream.eof  # it may hold back what it has read already
            total += len(piece)
            if total > limit:
                raise TooLarge(f"the body is larger than {limit} bytes")
            if piece:
                yield piece
    if not stream.eof:
        raise InvalidRequest("error decompressing request body: unexpected EOF")


class Compressor:
    """Makes gzip of what is handed to it."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(level=1, wbits=GZIP)

    def add(self, data: bytes) -> bytes:
        """Return what is to be sent for ``data``, perhaps nothing yet."""
        return self._stream.compress(data)

    def end(self) -> bytes:
        """Return the rest."""
        return self._stream.flush()
