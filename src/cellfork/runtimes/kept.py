"""What init tells a new host of a sandbox that was there before it: its kernels and its commands.

Untrusted, like everything from inside: it is read strictly, within bounds, and can only be wrong about its own sandbox.
"""

from dataclasses import dataclass, field
from typing import Any

from cellfork.model.errors import ProtocolViolation
from cellfork.model.limits import MiB
from cellfork.wire.messages import MAX_INT
from cellfork.wire.values import is_shallow, parse, weigh

MOST_KEPT = 10_000
MAX_WEIGHT = 64 * MiB
"""Bytes of memory that all of it may take when it is read."""
MAX_CHANNEL = 2**31 - 1
MAX_LABEL = 4096


@dataclass(frozen=True, slots=True)
class KeptKernel:
    """A kernel: its channel, what the host called its context, what it runs, the number of what it runs next.

    ``over`` says that it has ended and is not replaced yet; ``next_count`` is ``None`` where it is about to.
    """

    channel: int
    label: str
    execution: str | None
    next_count: int | None
    over: bool


@dataclass(frozen=True, slots=True)
class KeptProcess:
    """A command: its number, its pid inside, what it was asked for with, and the end of one that ended lately."""

    number: int
    pid: int
    request: dict[str, Any]
    code: int | None = None
    signal: int | None = None


@dataclass(slots=True)
class Kept:
    """What there was in a sandbox when a new host came, and the highest numbers that were given."""

    kernels: list[KeptKernel] = field(default_factory=list)
    processes: list[KeptProcess] = field(default_factory=list)
    highest_channel: int = 0
    highest_process: int = 0
    _weight: int = 0

    def add(self, kind: str, body: bytes) -> None:
        """Take one report.  Raises :class:`ProtocolViolation` for anything malformed, and for too many."""
        self._weight += weigh(body)
        if len(self.kernels) + len(self.processes) >= MOST_KEPT or self._weight > MAX_WEIGHT:
            raise ProtocolViolation("the guest reports more than there can be")
        values = _read(body)
        if kind == "kernel":
            self.kernels.append(_kernel_of(values))
        else:
            self.processes.append(_process_of(values))

    def end(self, channel: int, process: int) -> None:
        """Take the highest numbers.  Raises :class:`ProtocolViolation` where they are none."""
        if not 0 <= channel < MAX_CHANNEL or not -1 <= process < MAX_INT // 2:
            raise ProtocolViolation("the guest reports numbers that it was never given")
        self.highest_channel = max([channel, *(kernel.channel for kernel in self.kernels)])
        self.highest_process = max([process, 0, *(process.number for process in self.processes)])


def _read(body: bytes) -> dict[str, Any]:
    try:
        values = parse(body.decode("utf-8"), strict=True)
    except (ValueError, RecursionError):
        raise ProtocolViolation("a report that is not JSON") from None
    if not isinstance(values, dict) or not is_shallow(values):
        raise ProtocolViolation("a report that is no object")
    return values


def _kernel_of(values: dict[str, Any]) -> KeptKernel:
    match values:
        case {
            "channel": int() as channel,
            "label": str() as label,
            "execution": str() | None as execution,
            "next_count": int() | None as count,
            "over": bool() as over,
        } if _is_number(channel, 1, MAX_CHANNEL) and len(label) <= MAX_LABEL:
            known = count is None or _is_number(count, 0, MAX_INT)
            if known and len(execution or "") <= MAX_LABEL:
                return KeptKernel(channel, label, execution, count, over)
    raise ProtocolViolation("the report of a kernel is malformed")


def _process_of(values: dict[str, Any]) -> KeptProcess:
    match values:
        case {"process": int() as number, "pid": int() as pid} if _is_number(number, 0, MAX_INT // 2):
            code, signal = values.get("code"), values.get("signal")
            ends = all(value is None or _is_number(value, 0, 255) for value in (code, signal))
            if ends and _is_number(pid, 0, MAX_CHANNEL):
                return KeptProcess(number, pid, values, code, signal)
    raise ProtocolViolation("the report of a command is malformed")


def _is_number(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
