"""What has ended can still be asked for, within bounds."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Keepable(Protocol):
    """Something with an id that holds some memory."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def kept_bytes(self) -> int:
        """Roughly the memory that it holds."""
        ...


T = TypeVar("T", bound=Keepable)


class Retained(Generic[T]):
    """Live things by id, and the newest of those that ended: at most ``count``, holding at most ``size`` bytes."""

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size
        self._items: dict[str, T] = {}
        self._ended: deque[tuple[str, int]] = deque()
        self._held = 0

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def add(self, id: str, item: T) -> None:
        """Keep a live thing."""
        self._items[id] = item

    def get(self, id: str) -> T | None:
        """Return a thing that is kept."""
        return self._items.get(id)

    def forget(self, id: str) -> None:
        """Keep a thing no longer."""
        self._items.pop(id, None)

    def ended(self, item: T) -> None:
        """Note that a thing ended; forget the oldest that did, where there are too many."""
        size = item.kept_bytes
        self._ended.append((item.id, size))
        self._held += size
        while self._ended and (len(self._ended) > self._count or self._held > self._size):
            oldest, held = self._ended.popleft()
            self._held -= held
            self._items.pop(oldest, None)
