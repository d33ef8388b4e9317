"""What the client runs in the host's loop, beside the engine's own methods, for embedded sandboxes.

:mod:`cellfork.client.http.calls` has the same functions for remote ones.
"""

from typing import TYPE_CHECKING

from cellfork.client.values import (
    Context,
    ExecInfo,
    ExecResult,
    ProcessInfo,
    SandboxInfo,
    SandboxMetrics,
    utc,
)
from cellfork.engine.values import CommandResult
from cellfork.model.errors import Conflict, NotFound, SandboxPaused, Unsupported
from cellfork.model.network import Denial, NetworkPolicy, Traffic

if TYPE_CHECKING:
    from cellfork.engine.contexts import Context as RemoteContext
    from cellfork.engine.execs import Exec
    from cellfork.engine.executions import RunningExecution
    from cellfork.engine.sandbox import Sandbox as Remote


def context_of(remote: "RemoteContext") -> Context:
    """Return a context as callers see it."""
    return Context(remote.id, remote.language, remote.cwd, dict(remote.envs))


async def interrupt(remote: "Remote", context: str | None) -> bool:
    """Stop what runs in a context, and wait for its end; return whether anything ran."""
    target = remote.contexts.default() if context is None else remote.contexts.get(context)
    running = target.interrupt()
    if running is not None:
        await running.wait()
    return running is not None


def info_of(remote: "Remote") -> SandboxInfo:
    """Return what is known of a sandbox."""
    spec = remote.spec
    return SandboxInfo(
        sandbox_id=remote.id,
        template=spec.template.name,
        metadata=dict(spec.metadata),
        started_at=utc(remote.started_at),
        end_at=utc(remote.deadline) if remote.deadline is not None else None,
        state=remote.state,
        isolation=remote.isolation,
        limits=spec.limits,
        features=dict(remote.guest.info),
        tenant=spec.tenant,
        posture=remote.guest.info.get("posture"),
    )


known_info_of = info_of
"""What is known of a sandbox without asking anybody: of an embedded one that is everything."""


def policy_of(remote: "Remote") -> NetworkPolicy:
    """Return what a sandbox may reach."""
    network = remote.guest.network
    return network.policy if network is not None else NetworkPolicy()


def denied(remote: "Remote") -> list[Denial]:
    """Return what a sandbox asked for and did not get."""
    network = remote.guest.network
    return network.denied() if network is not None else []


def traffic_of(remote: "Remote") -> Traffic:
    """Return what a sandbox has moved."""
    network = remote.guest.network
    return network.traffic() if network is not None else Traffic()


def set_network_policy(remote: "Remote", policy: NetworkPolicy) -> None:
    """Replace the policy of a sandbox; :class:`Unsupported` where it has no way out."""
    remote.check_running()
    network = remote.guest.network
    if network is not None:
        network.set_policy(policy)
    elif policy.mode != "none":
        raise Unsupported(
            "this sandbox was created without a network, and cannot be given one; name a policy in create"
        )


def is_running(remote: "Remote") -> bool:
    """Tell whether a sandbox lives and is awake."""
    return remote.state == "running"


async def kill(remote: "Remote") -> bool:
    """End a sandbox; return whether there was anything to end."""
    lived = remote.state != "ended"
    await remote.kill()
    return lived


async def pause(remote: "Remote", memory: bool) -> bool:
    """Pause a sandbox; ``False`` where it is paused already."""
    try:
        await remote.pause(memory)
    except SandboxPaused:
        return False
    return True


async def resume(remote: "Remote", timeout: float | None) -> None:
    """Let a paused sandbox go on."""
    await remote.resume(timeout)


def abandon(remote: "Remote") -> None:
    """End a sandbox whose creation was given up when it was there already."""
    remote.end_soon("request", "nobody waited for the sandbox")


def answer(running: "RunningExecution", text: str) -> None:
    """Answer a question; where the execution ended meanwhile, the answer comes too late and is dropped."""
    if not running.ended:
        running.provide_input(text)


def metrics_of(remote: "Remote") -> SandboxMetrics:
    """Measure a sandbox; :class:`SandboxGone` after its end."""
    remote.check_running()
    usage, limits = remote.usage(), remote.limits
    return SandboxMetrics(
        timestamp=utc(remote.settings.clock.time_ns() / 1e9),
        cpu_count=limits.cpu,
        cpu_time=usage.cpu_time,
        mem_used=usage.memory,
        mem_peak=usage.peak_memory,
        mem_total=limits.memory_bytes or None,
        processes=usage.pids,
    )


def interrupt_running(running: "RunningExecution") -> None:
    """Stop code whose start nobody waited for."""
    running.interrupt()


def kill_exec(exec_: "Exec") -> None:
    """Kill a command whose start nobody waited for."""
    exec_.kill()


def processes_of(remote: "Remote") -> list[ProcessInfo]:
    """Return the commands that run."""
    return [
        ProcessInfo(exec_.pid or 0, exec_.spec.argv[0], exec_.spec.argv[1:], exec_.spec.envs, exec_.spec.cwd)
        for exec_ in remote.execs.list()
        if exec_.status == "RUNNING"
    ]


async def result_of(remote: "Remote", exec_: "Exec") -> CommandResult:
    """Wait for a command's end, and return its result or raise what it stands for."""
    from cellfork.engine.commands import result_of as result  # the engine is loaded when it is used

    await exec_.wait()
    return result(exec_)


async def end_process(remote: "Remote", pid: int) -> bool:
    """Kill the command that runs as ``pid``; return whether one did."""
    try:
        exec_ = remote.execs.by_pid(pid)
    except NotFound:
        return False
    return await exec_.end()


async def send_stdin(remote: "Remote", pid: int, data: bytes, eof: bool) -> None:
    """Write to the input of the command that runs as ``pid``."""
    exec_ = remote.execs.by_pid(pid)
    if not (exec_.spec.stdin or exec_.spec.pty):
        raise Conflict(f"the command {pid} was started without stdin; start it with stdin=True")
    await exec_.send_stdin(data, eof=eof)


def exec_info(exec_: "Exec") -> ExecInfo:
    """Return an exec as callers see it."""
    command, *args = exec_.spec.argv
    pty = exec_.spec.pty is not None
    return ExecInfo(
        exec_.id, command, tuple(args), exec_.status, exec_.pid or None, pty, exec_.exit_code, exec_.spec.user
    )


def exec_output(exec_: "Exec") -> ExecResult:
    """Return what an exec has written so far."""
    return ExecResult(exec_.exit_code, exec_.log.text("stdout", "stderr", "pty"))
