"""Decisions drawn from bytes, so that one target serves every kind of fuzzer."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads decisions from ``data``; when it is used up, every decision is the first possible one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def __bool__(self) -> bool:
        """Tell whether anything is left."""
        return self._position < len(self._data)

    def byte(self) -> int:
        """Return a number from 0 to 255."""
        position, self._position = self._position, self._position + 1
        return self._data[position] if position < len(self._data) else 0

    def pick(self, values: Sequence[T]) -> T:
        """Return one of at most 256 values."""
        return values[self.byte() % len(values)]

    def chance(self, parts: int) -> bool:
        """Return ``True`` once in ``parts`` times."""
        return self.byte() % parts == parts - 1

    def piece(self, most: int = 64) -> bytes:
        """Return up to ``most`` bytes."""
        size = min(self.byte() % (most + 1), max(0, len(self._data) - self._position))
        piece = self._data[self._position : self._position + size]
        self._position += size
        return piece

    def rest(self) -> bytes:
        """Return all that is left."""
        piece, self._position = self._data[self._position :], len(self._data)
        return piece
