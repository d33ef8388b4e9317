"""What can be written into a file, as pieces of bytes."""

from collections.abc import Iterable, Iterator
from typing import IO, Any

from cellfork.model.errors import InvalidRequest

PIECE = 1024 * 1024
Data = str | bytes | IO[str] | IO[bytes] | Iterable[str] | Iterable[bytes]
"""Text, bytes, a file object of either, or an iterable of either."""


def pieces_of(data: Data) -> Iterator[bytes]:
    """Yield the bytes of anything that can be written.

    Raises :class:`InvalidRequest` for anything else, and for text with lone surrogates.
    """
    if isinstance(data, str | bytes | bytearray | memoryview):
        yield as_bytes(data)
    elif hasattr(data, "read"):
        while piece := data.read(PIECE):
            yield as_bytes(piece)
    elif isinstance(data, Iterable):
        for piece in data:
            yield as_bytes(piece)
    else:
        raise InvalidRequest(
            f"cannot write {type(data).__name__}: give text, bytes, a file or an iterable of them"
        )


def as_bytes(piece: Any) -> bytes:
    """Return text or bytes as bytes; :class:`InvalidRequest` for anything else, and for lone surrogates."""
    if isinstance(piece, str):
        try:
            return piece.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text holds a lone surrogate at {error.start}") from None
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise InvalidRequest(f"cannot write a piece that is {type(piece).__name__}")
