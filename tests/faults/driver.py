"""What fault tests need: run something bad in bounded time and memory, then see that all goes on."""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cellfork import Execution, Sandbox
from cellfork.model.events import Interrupted, TimedOut

MiB = 1024 * 1024
STATUS = "/proc/self/status"


def assert_usable(sandbox: Sandbox, context: str | None = None) -> None:
    """The context takes code again, and answers it."""
    execution = sandbox.run_code("40 + 2", context=context, timeout=20)
    assert (execution.status, execution.text) == ("ok", "42"), execution


def stopped_by(execution: Execution) -> str:
    """The step that ended an execution that was stopped."""
    assert isinstance(execution.terminal, TimedOut | Interrupted), execution
    return execution.terminal.step


def stdout(execution: Execution) -> str:
    return "".join(execution.logs.stdout)


def stderr(execution: Execution) -> str:
    return "".join(execution.logs.stderr)


def failure(execution: Execution) -> str:
    """The class of the error that the code raised; fails where something else happened."""
    assert execution.status == "error", execution
    assert execution.error is not None
    return execution.error.name


def files(sandbox: Sandbox, operation: str, *args: Any) -> Any:
    """Call an operation of the engine's files of a sandbox."""
    return sandbox._bridge.call(getattr(sandbox._remote.files, operation), *args)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """The block ends in time.  Bounds are far above what is usual: the machine may be busy."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took <= seconds, f"took {took:.1f} s, at most {seconds:g} s are allowed"


@contextmanager
def host_memory_within(size: int) -> Iterator[None]:
    """The peak of this process's memory grows by at most ``size`` bytes meanwhile."""
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM starts again from VmRSS
    before = _status("VmRSS")
    yield
    growth = _status("VmHWM") - before
    assert growth <= size, f"the host grew by {growth / MiB:.0f} MiB, at most {size / MiB:.0f} are allowed"


def host_pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _status(name: str) -> int:
    with open(STATUS) as file:
        line = next(line for line in file if line.startswith(name + ":"))
    return int(line.split()[1]) * 1024
