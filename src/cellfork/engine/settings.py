"""What an engine's owner may choose: the clock, how patient stopping is, how much is kept."""

from collections.abc import Callable
from dataclasses import dataclass, field

from cellfork.engine.clock import Clock, SystemClock
from cellfork.model.execution import Execution
from cellfork.model.limits import GiB, MiB


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an engine.  Durations are seconds, sizes bytes."""

    clock: Clock = field(default_factory=SystemClock)
    node_token: str = "0000"  # noqa: S105 - it names a machine
    """Four characters in every sandbox id: where the sandbox lives."""
    grace: float = 2.0
    """How long each step of stopping code or a command is given before the next one."""
    start_timeout: float = 30.0
    """How long a kernel may take to start."""
    queue: int = 1000
    """Executions that may wait in one context."""
    code: int = 32 * MiB
    """Bytes of code that one request may carry."""
    envs: int = 128 * 1024
    """Bytes of environment variables that one request may carry, as JSON."""
    kept_executions: int = 100
    """Ended executions of one sandbox that can still be asked for."""
    kept_execs: int = 1000
    """Ended execs of one sandbox that can still be asked for."""
    kept_bytes: int = 64 * MiB
    """Bytes of output that ended executions, and ended execs, of one sandbox hold together."""
    paused: float | None = None
    """How long a sandbox may be paused before it is killed (``None``: for ever)."""
    archives: str | None = None
    """Directory of snapshots and of the files of paused sandboxes (``None``: a temporary one that goes with the engine)."""
    archive_bytes: int = 32 * GiB
    """Bytes that all of them may take together."""
    whole_file: int = 512 * MiB
    """Largest file that is read in one piece; a larger one has to be streamed."""
    on_execution: Callable[[Execution], None] | None = None
    """Called with every execution that has ended, in the engine's loop; it must not raise."""
