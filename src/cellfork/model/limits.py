"""Limits: what a sandbox may use."""

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cellfork.model.errors import InvalidRequest

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

_UNITS = {"": 1, "B": 1, "K": KiB, "M": MiB, "G": GiB, "T": 1024 * GiB}
MAX_SIZE = 2**63 - 1
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([BKMGT]?)(?:I?B)?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*(ms|s|m|h)?", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_size(value: int | str) -> int:
    """Return bytes for ``"512M"``, ``"1G"``, ``"64KiB"`` (powers of 1024) or a number of bytes.

    Raises :class:`InvalidRequest` for anything else, for a negative or a zero size and for 8 EiB or more.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidRequest(f"a size is a number of bytes or a string such as '512M', not {value!r:.60}")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise InvalidRequest(f"{value!r:.60} is not a size; write for instance '512M' or '1G'")
        number = float(match[1]) if "." in match[1] else int(match[1])
        value = int(number * _UNITS[match[2].upper()])
    if not 0 < value <= MAX_SIZE:
        raise InvalidRequest("a size must be greater than zero and below 8 EiB")
    return value


def parse_duration(value: float | str) -> float:
    """Return seconds for ``"30s"``, ``"500ms"``, ``"2m"``, ``"1h"`` or a number of seconds.

    Raises :class:`InvalidRequest` for anything else, and for a negative or a zero duration.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidRequest(
            f"a duration is a number of seconds or a string such as '30s', not {value!r:.60}"
        )
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise InvalidRequest(f"{value!r:.60} is not a duration; write for instance '30s' or '2m'")
        value = float(match[1]) * _SECONDS[(match[2] or "s").lower()]
    if not 0 < value <= MAX_SIZE:
        raise InvalidRequest("a duration must be greater than zero and finite")
    return float(value)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use.  Sizes are bytes, or strings such as ``"512M"``.

    ``None`` for ``memory``, ``cpu`` or ``pids`` asks for no limit of that kind; it is the only way
    to run where the host cannot enforce one.
    """

    memory: int | str | None = 512 * MiB
    """Memory of all processes together, tmpfs files included; there is no swap."""
    cpu: float | None = 1.0
    """Cores' worth of CPU time."""
    pids: int | None = 128
    """Processes and threads together."""
    disk: int | str = 1 * GiB
    """Bytes in all writable places together.  Files are kept in memory: of ``memory``, they leave 64 MiB or more
    to processes, so that a full disk is an error of the code and not the end of its interpreter."""
    inodes: int = 262_144
    """Files and directories in all writable places together."""
    open_files: int = 1024
    """Open descriptors of one process."""
    output: int | str = 16 * MiB
    """Bytes of stdout and of stderr, each, that one execution keeps; the rest is counted and dropped."""
    result: int | str = 32 * MiB
    """Bytes of one result (a MIME bundle)."""
    results: int = 1000
    """Results that one execution keeps."""

    def __post_init__(self) -> None:
        for name in ("memory", "disk", "output", "result"):
            value = getattr(self, name)
            if value is not None or name != "memory":
                object.__setattr__(self, name, parse_size(value))
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.cpu is not None and not _is_cpu(self.cpu):
            raise InvalidRequest("cpu is a number of cores from 0.01 to 4096")
        for name, least in (("pids", 8), ("inodes", 64), ("open_files", 64), ("results", 1)):
            value = getattr(self, name)
            if value is None and name == "pids":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31:
                raise InvalidRequest(f"{name} is a whole number of at least {least}")
        if self.memory is not None and self.memory_bytes < 32 * MiB:
            raise InvalidRequest("memory below 32M cannot hold an interpreter")

    @property
    def memory_bytes(self) -> int:
        """The memory limit in bytes; 0 where there is none."""
        return self.memory if isinstance(self.memory, int) else 0

    @property
    def disk_bytes(self) -> int:
        """The disk limit in bytes."""
        return parse_size(self.disk)

    @property
    def output_bytes(self) -> int:
        """The output limit of each stream in bytes."""
        return parse_size(self.output)

    @property
    def result_bytes(self) -> int:
        """The limit of one result in bytes."""
        return parse_size(self.result)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Limits":
        """Build from names and values; an unknown name is an :class:`InvalidRequest`."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InvalidRequest(f"unknown limit {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return replace(cls(), **values)


def _is_cpu(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.01 <= value <= 4096
