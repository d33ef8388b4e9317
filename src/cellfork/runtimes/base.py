"""The seam between the engine and whatever isolates: ``Runtime`` starts sandboxes, ``Guest`` is the handle on one."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from cellfork.model.errors import Missing
from cellfork.model.events import KillReason
from cellfork.model.network import Denial, NetworkPolicy, Traffic
from cellfork.model.specs import SandboxSpec, Template
from cellfork.runtimes.kept import Kept
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

    ``cpu_time`` in seconds, ``memory`` and ``peak_memory`` in bytes, ``oom_kills`` and ``pids`` are counts.  The rest, in bytes
    too, comes with :meth:`Guest.measure` alone: ``cache``, the part of the memory that holds files, and what of the disk is
    used, and is there.
    """

    cpu_time: float | None = None
    memory: int | None = None
    peak_memory: int | None = None
    oom_kills: int = 0
    pids: int | None = None
    cache: int | None = None
    disk: int | None = None
    disk_total: int | None = None


FrameHandler = Callable[[Frame], None]
CloseHandler = Callable[[KillReason | None, str], None]


class Network(Protocol):
    """The way out of a sandbox that has one: its policy, what it was refused, what it has moved."""

    on_change: Callable[[], object] | None
    """Called after the policy was replaced: what is recorded of the sandbox is out of date then."""

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

    @property
    def record(self) -> Mapping[str, Any]:
        """What has to be known of it after a restart, as JSON."""
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

    @property
    def record(self) -> Mapping[str, Any] | None:
        """What its runtime needs to adopt it in another process, as JSON; ``None``: it ends with this one."""
        ...

    def leave(self) -> None:
        """Let it go on without this process, where it has a :attr:`record`; nothing is delivered any more."""
        ...

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

    async def connect(self, port: int) -> socket.socket:
        """Return a TCP connection to the program that listens on ``port`` of the sandbox's own loopback.

        What goes over it never passes init.  Raises :class:`~cellfork.model.errors.PortClosed`,
        :class:`~cellfork.model.errors.LimitExceeded`, :class:`~cellfork.model.errors.Unsupported`,
        :class:`~cellfork.model.errors.OperationTimeout`, :class:`~cellfork.model.errors.SandboxGone`.
        """
        ...

    async def listen(self, port: int, host: str) -> socket.socket:
        """Return a socket that listens inside the sandbox's own network namespace, for the host to accept from.

        Raises :class:`~cellfork.model.errors.Conflict` where a program has the port already, and what
        :meth:`connect` raises.
        """
        ...

    def usage(self) -> Usage:
        """Measure now.  Cheap (some ten microseconds), never blocks, never raises."""
        ...

    def measure(self) -> Usage:
        """Measure everything now: what :meth:`usage` does, cache and disk.  Takes some ten microseconds more."""
        ...

    def reset_peak(self) -> None:
        """Let ``peak_memory`` start again from the present use, where the host can."""
        ...

    @property
    def freezes(self) -> bool:
        """Whether :meth:`freeze` is possible here."""
        ...

    @property
    def keeps_files(self) -> bool:
        """Whether the sandbox has places of its own, whose files can be packed and unpacked elsewhere."""
        ...

    async def freeze(self, *, but_init: bool = False) -> None:
        """Hold every process still and return when they stand; with ``but_init`` init goes on, and nothing else.

        What is held still uses no processor time and can be killed.  Frames that are sent meanwhile wait.  One call at a
        time.  Raises :class:`~cellfork.model.errors.Unsupported` where this is not possible here,
        :class:`~cellfork.model.errors.UnavailableError` where a process does not stop in time; then nothing is held.
        """
        ...

    async def thaw(self) -> None:
        """Let every process go on from where it stands.  Nothing happens where none is held."""
        ...

    async def kill(self, reason: KillReason = "request", message: str = "") -> None:
        """End every process of the sandbox and give everything back.

        Idempotent.  Returns when nothing is left: no process, mount, cgroup, descriptor or file.
        """
        ...


@dataclass(frozen=True, slots=True)
class Stock:
    """The sandboxes of one template that are started ahead for one tenant: how many are to wait, and how many do."""

    size: int = 0
    waiting: int = 0


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

    def stock(self, template: Template, tenant: str) -> Stock:
        """Tell what is started ahead."""
        ...

    async def adopt(self, spec: SandboxSpec, record: Mapping[str, Any], first: int) -> tuple[Guest, Kept]:
        """Take over a sandbox that has outlived its host: ``record`` is what :attr:`Guest.record` was.

        Its requests are numbered from ``first`` on.  Returns what is in it as well.  Raises :class:`CellforkError` where it cannot be
        taken over; then it is ended.  All of them are asked for before :meth:`sweep`, and that before the first :meth:`start`.
        """
        ...

    async def sweep(self) -> None:
        """End whatever a former host has left that was not adopted; nothing happens where none can."""
        ...

    async def leave(self) -> None:
        """Give everything back as :meth:`aclose`, and let those sandboxes go on that have a :attr:`Guest.record`."""
        ...

    async def aclose(self) -> None:
        """Kill every sandbox of this runtime and its zygotes; give everything back."""
        ...
