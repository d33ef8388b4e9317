"""A small blind mutator, for where no coverage-guided fuzzer is installed."""

from collections.abc import Iterator
from random import Random

MAGIC = (
    b"\x00",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x1b",
    b'"',
    b"\\ud800",
    b"[",
    b"{",
    b"1e400",
    b"NaN",
    b"\r\n",
)
MOST = 600


def mutations(seeds: list[bytes], random: Random) -> Iterator[bytes]:
    """Yield every seed, then changed ones for ever; the same for the same ``random``."""
    yield b""
    yield from seeds
    while True:
        data = bytearray(random.choice(seeds))
        for _ in range(random.randint(1, 6)):
            _change(data, seeds, random)
        yield bytes(data[:MOST])


def _change(data: bytearray, seeds: list[bytes], random: Random) -> None:
    at = random.randint(0, len(data))
    end = min(len(data), at + random.randint(0, 8))
    match random.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << random.randrange(8)
        case 1 if at < len(data):
            data[at] = random.randrange(256)
        case 2:
            del data[at:end]
        case 3:
            data[at:end] = random.choice(MAGIC)
        case 4:
            data[at:at] = random.randbytes(random.randint(1, 8))
        case 5:
            other = random.choice(seeds)
            data[at:] = other[random.randint(0, len(other)) :]
        case _:
            data[at:at] = data[at:end]
