"""What has ended is kept within bounds."""

from dataclasses import dataclass

from cellfork.engine.retention import Retained


@dataclass
class Item:
    id: str
    kept_bytes: int = 1


def test_live_things_are_always_kept():
    """Only what has ended is forgotten, the oldest first."""
    kept: Retained[Item] = Retained(2, 100)
    items = [Item(str(number)) for number in range(5)]
    for item in items:
        kept.add(item.id, item)
    for item in items[1:]:
        kept.ended(item)
    assert [item.id for item in kept] == ["0", "3", "4"]


def test_bytes_are_bounded():
    """Large ones push out older ones, even themselves."""
    kept: Retained[Item] = Retained(10, 100)
    for item in (Item("a", 60), Item("b", 60), Item("c", 500)):
        kept.add(item.id, item)
        kept.ended(item)
    assert list(kept) == []
    assert kept.get("c") is None
