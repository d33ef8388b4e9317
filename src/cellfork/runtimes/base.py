"""The seam between the engine and whatever isolates: ``Runtime`` starts sandboxes, ``Guest`` is the handle on one."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from cellfork.model.errors import Missing
from cellfork.model.events import KillReason
from cellfork.model.network import Denial, NetworkPolicy, Traffic
from cellfork.model.specs import SandboxSpec
from cellfork.wire.frames import Frame


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """One limit that a runtime ran into on purpose.

    ``limit`` is the field of :class:`~cellfork.model.limits.Limits` that asks for it, ``""`` where it always holds;
    ``name`` says what was limited, ``how`` it was hit, ``answer`` what came of it; ``holds`` whether that was right.
    """

    limit: str
    name: str
    how: str
    answer: str
    holds: bool


@dataclass(frozen=True, slots=True)
class LimitTest:
    """What came of hitting every limit: the checks, when (Unix time) and for how long (seconds), whether remembered."""

    checks: tuple[LimitCheck, ...]
    tested_at: float
    seconds: float
    remembered: bool = False


@dataclass(frozen=True, slots=True)
class RuntimeReport:
    """Whether a runtime can run here, what is missing otherwise, what it found (name → finding), which limits it hit."""

    name: str
    available: bool
    missing: tuple[Missing, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    limits: LimitTest | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox has used so far, measured from outside.  ``None`` where the host cannot tell.

    ``cpu_time`` in seconds, ``memory`` and ``peak_memory`` in bytes, ``oom_kills`` and ``pids`` are counts.
    """

    cpu_time: float | None = None
    memory: int | None = None
    peak_memory: int | None = None
    oom_kills: int = 0
    pids: int | None = None


FrameHandler = Callable[[Frame], None]
CloseHandler = Callable[[KillReason | None, str], None]


class Network(Protocol):
    """The way out of a sandbox that has one: its policy, what it was refused, what it has moved."""

    @property
    def policy(self) -> NetworkPolicy:
        """What holds now."""
        ...

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Replace the policy at once; live connections that the new one does not allow end."""
        ...

    def denied(self) -> list[Denial]:
        """Return the latest refusals, the oldest first."""
        ...

    def traffic(self) -> Traffic:
        """Return what was moved so far."""
        ...

    def open(self, listener: socket.socket) -> None:
        """Begin to accept connections; the socket belongs to the network from now on."""
        ...

    def close(self) -> None:
        """Accept nothing any more and end every connection.  Idempotent."""
        ...

    async def aclose(self) -> None:
        """Close, and wait until nothing is left."""
        ...


class Guest(Protocol):
    """The host's handle on a started sandbox: one connection to its init process.

    Frames are delivered in the event loop of the runtime that started it, already checked by
    :func:`cellfork.wire.messages.check_from_guest`.  The first frame the handler gets is whatever follows
    ``ready``.
    """

    isolation: str
    """Name of the runtime, told in every answer."""
    info: Mapping[str, Any]
    """What is known of the start: pid, what is enforced."""
    network: Network | None
    """The way out; ``None`` where there is none."""

    def attach(self, on_frame: FrameHandler, on_close: CloseHandler) -> None:
        """Deliver frames to ``on_frame`` and, exactly once, the end to ``on_close(reason, message)``.

        ``reason`` is ``None`` when the guest ended by itself.  Called once, by the engine, right after the start.
        """
        ...

    def send(self, header: dict[str, Any], body: bytes = b"", channel: int = 0) -> None:
        """Send one frame.  Raises :class:`cellfork.model.errors.SandboxGone` after the end."""
        ...

    async def drain(self) -> None:
        """Wait until what was sent has mostly left (for large uploads)."""
        ...

    def usage(self) -> Usage:
        """Measure now.  Cheap (some ten microseconds), never blocks, never raises."""
        ...

    def reset_peak(self) -> None:
        """Let ``peak_memory`` start again from the present use, where the host can."""
        ...

    async def kill(self, reason: KillReason = "request", message: str = "") -> None:
        """End every process of the sandbox and give everything back.

        Idempotent.  Returns when nothing is left: no process, mount, cgroup, descriptor or file.
        """
        ...


class Runtime(Protocol):
    """Starts sandboxes in one way of isolating them."""

    name: ClassVar[str]

    async def probe(self, *, fresh: bool = False) -> RuntimeReport:
        """Tell whether sandboxes can be started here; exercise what is claimed, do not guess from versions.

        ``fresh``: do not rely on what was found earlier.
        """
        ...

    async def start(self, spec: SandboxSpec) -> Guest:
        """Start a sandbox.

        Raises :class:`~cellfork.model.errors.IsolationUnavailable` where the host lacks something,
        :class:`~cellfork.model.errors.StartupFailed` where the guest did not come up.
        """
        ...

    async def aclose(self) -> None:
        """Kill every sandbox of this runtime and its zygotes; give everything back."""
        ...
