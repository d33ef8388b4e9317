"""The life of a sandbox, as this dialect's callers steer it: how long, asleep and awake again."""

import asyncio

from cellfork.dialects.e2b.calls import Owned
from cellfork.dialects.e2b.errors import GUEST_SILENT, Refusal
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import Conflict, OperationTimeout, SandboxGone, SandboxPaused

ANSWERS_WITHIN = 5.0
"""How long a sandbox may take to answer before a pause that asks for its health, in seconds."""
RACES = 3
"""How often somebody else may pause a sandbox that is being woken, and wake one that is being paused."""


def time_left(sandbox: Sandbox) -> float | None:
    """Return the seconds until a sandbox's deadline; ``None``: it has none."""
    if sandbox.deadline is None:
        return None
    return sandbox.deadline - sandbox.settings.clock.time_ns() / 1e9


def extend(sandbox: Sandbox, seconds: float) -> None:
    """Let a running sandbox live for at least ``seconds`` more.  Never shortens."""
    left = time_left(sandbox)
    if left is not None and left < seconds:
        sandbox.set_timeout(seconds)


async def end_now(owned: Owned) -> None:
    """Do what a deadline does: pause, where that was asked for, else kill."""
    sandbox, notes = owned
    if notes.auto_pause:
        await sandbox.pause(memory=notes.auto_pause_memory)
    else:
        await sandbox.kill("deadline", "the sandbox reached its deadline")


async def wake(sandbox: Sandbox, seconds: float) -> bool:
    """Let a sandbox run for at least ``seconds``; return whether this call woke it.

    Where it is being paused, resumed or copied at this moment, that is waited for.  Raises :class:`Conflict` where others
    change it all the time, and what :meth:`Sandbox.resume` raises.
    """
    for _ in range(RACES):
        await sandbox.pausing.settled()
        if sandbox.state == "running":
            extend(sandbox, seconds)
            return False
        try:
            await sandbox.resume(timeout=seconds)
        except SandboxPaused:
            raise
        except Conflict:
            continue  # somebody else was faster
        return True
    raise Conflict(f"Sandbox '{sandbox.id}' is being paused and resumed by others all the time")


async def check_health(sandbox: Sandbox) -> None:
    """Raise :class:`Refusal` (503) where a sandbox does not answer."""
    try:
        await asyncio.wait_for(sandbox.languages(), ANSWERS_WITHIN)
    except (TimeoutError, OperationTimeout, SandboxGone):
        raise Refusal(
            503, f"Sandbox '{sandbox.id}' does not answer; it was not paused", GUEST_SILENT
        ) from None
