"""The events of one execution: a closed union, totally ordered by ``seq``.

``Started · (Stdout | Stderr | Display | Update | Clear | InputRequest)* ·`` exactly one of
``Finished | Failed | Interrupted | TimedOut | Killed | Lost``, always last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellfork.model.artifacts import Artifact
from cellfork.model.results import ExecutionError

Step = Literal["interrupt", "terminate", "kill"]
"""A step of the escalation that stops code: SIGINT, end of the kernel, end of the sandbox."""

KillReason = Literal["memory", "deadline", "request", "owner", "protocol", "posture", "limit"]
"""Why something was killed: out of memory, the sandbox's deadline, a caller's request, its owner's end, …"""


@dataclass(frozen=True, slots=True)
class Accounting:
    """What one execution used, measured by the host.

    ``wall_time`` and ``cpu_time`` are seconds, ``peak_memory`` bytes of the whole sandbox (``None``
    where the host cannot tell), ``output_bytes`` what was produced, kept or not.  ``posture`` is the hash of the
    locks that the host saw on the sandbox before anything ran in it (``None``: without isolation).
    """

    wall_time: float = 0.0
    cpu_time: float | None = None
    peak_memory: int | None = None
    output_bytes: int = 0
    truncated: bool = False
    posture: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event has: its place in the order, and Unix time in nanoseconds."""

    seq: int = 0
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The code was handed to the kernel; its number in the context's history."""

    execution_count: int | None


@dataclass(frozen=True, slots=True)
class Stdout(Event):
    """Text that was written to standard output."""

    text: str


@dataclass(frozen=True, slots=True)
class Stderr(Event):
    """Text that was written to standard error."""

    text: str


@dataclass(frozen=True, slots=True)
class Display(Event):
    """A MIME bundle: a display call, or the value of the last expression (``is_main_result``).

    ``data`` maps MIME types to ``str`` (text), ``bytes`` (images, PDF) or JSON values.
    """

    data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    is_main_result: bool = False


@dataclass(frozen=True, slots=True)
class Update(Event):
    """New content for every display with this ``display_id``."""

    data: Mapping[str, Any]
    display_id: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clear(Event):
    """Output so far is to be cleared: at once, or (``wait``) when new output comes."""

    wait: bool = False


@dataclass(frozen=True, slots=True)
class InputRequest(Event):
    """The code waits in ``input()``; ``password`` asks not to echo."""

    prompt: str
    password: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal(Event):
    """What every last event has.

    ``artifacts`` are the files that the code made or changed; ``artifacts_truncated`` says that there may be more.
    """

    execution_count: int | None = None
    accounting: Accounting = field(default_factory=Accounting)
    artifacts: tuple[Artifact, ...] = ()
    artifacts_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Finished(Terminal):
    """The code ran to its end."""


@dataclass(frozen=True, slots=True)
class Failed(Terminal):
    """The code raised, did not compile, or exited with an error."""

    error: ExecutionError


@dataclass(frozen=True, slots=True)
class Interrupted(Terminal):
    """The code was stopped on request; ``step`` says how far the escalation had to go."""

    error: ExecutionError
    step: Step = "interrupt"


@dataclass(frozen=True, slots=True)
class TimedOut(Terminal):
    """The code's time ran out; ``step`` says how far the escalation had to go."""

    timeout: float
    step: Step = "interrupt"


@dataclass(frozen=True, slots=True)
class Killed(Terminal):
    """The kernel or its sandbox was killed by the host or by a limit."""

    reason: KillReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Lost(Terminal):
    """The kernel ended by itself before the code did: ``os._exit``, a crash, a broken connection."""

    message: str


AnyEvent = (
    Started
    | Stdout
    | Stderr
    | Display
    | Update
    | Clear
    | InputRequest
    | Finished
    | Failed
    | Interrupted
    | TimedOut
    | Killed
    | Lost
)
