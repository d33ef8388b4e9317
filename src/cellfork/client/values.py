"""What the client hands out: plain values, the same for the sync and the async form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from cellfork.model.limits import Limits


@dataclass(frozen=True, slots=True)
class Context:
    """A stateful namespace with an interpreter of its own (E2B: ``Context``)."""

    id: str
    language: str
    cwd: str
    envs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What is known of a sandbox (E2B: ``SandboxInfo``).

    ``end_at`` is the deadline (``None``: it lives until it is killed), ``isolation`` the runtime, ``features``
    what that runtime enforces, by name, ``tenant`` whom it belongs to (``""``: the program that embeds cellfork),
    ``posture`` the SHA-256 of the locks that the host saw on it before anything ran (``None``: without isolation);
    sandboxes of one template with equal limits have equal ones.
    """

    sandbox_id: str
    template: str
    metadata: Mapping[str, str]
    started_at: datetime
    end_at: datetime | None
    state: Literal["running", "paused", "ended"]
    isolation: str
    limits: Limits
    features: Mapping[str, Any]
    tenant: str = ""
    posture: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """The files of a sandbox, kept (E2B: ``SnapshotInfo``): its id, and the names by which it is found as well."""

    snapshot_id: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxMetrics:
    """What a sandbox uses at one moment (E2B: ``SandboxMetrics``), measured by the host.

    ``cpu_time`` is in seconds since the start, ``mem_used``, ``mem_peak`` and ``mem_total`` in bytes, ``processes`` a count,
    ``cpu_count`` the limit in cores.  ``None`` where the host cannot tell, or where there is no limit.
    """

    timestamp: datetime
    cpu_count: float | None
    cpu_time: float | None
    mem_used: int | None
    mem_peak: int | None
    mem_total: int | None
    processes: int | None


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A command that runs (E2B: ``ProcessInfo``)."""

    pid: int
    cmd: str
    args: tuple[str, ...]
    envs: Mapping[str, str]
    cwd: str


@dataclass(frozen=True, slots=True)
class ExecInfo:
    """A command as Together shows it (``ExecItem``).

    ``status`` is ``CREATED``, ``RUNNING``, ``EXITED`` (by itself) or ``STOPPED``; ``pid`` is ``None`` before the start,
    ``exit_code`` before the end and where nobody knows it.
    """

    id: str
    command: str
    args: tuple[str, ...]
    status: Literal["CREATED", "RUNNING", "EXITED", "STOPPED"]
    pid: int | None
    pty: bool
    exit_code: int | None
    user: str


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command wrote, both streams in the order of arrival, and its exit code (``None``: it has none yet)."""

    exit_code: int | None
    output: str


def utc(seconds: float) -> datetime:
    """Return the time of day of a Unix time."""
    return datetime.fromtimestamp(seconds, UTC)
