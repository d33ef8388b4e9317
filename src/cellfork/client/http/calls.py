"""What the client runs in the host's loop for remote sandboxes; :mod:`cellfork.client.remote` has the same for embedded ones."""

from typing import TYPE_CHECKING

from cellfork.client.http.execs import HttpExec
from cellfork.client.http.executions import HttpExecution
from cellfork.client.http.sandbox import HttpSandbox
from cellfork.client.values import ExecResult, ProcessInfo, SandboxInfo, SandboxMetrics, utc
from cellfork.dialects.e2b.extension.codec import policy_fields, read_policy
from cellfork.model.errors import Conflict, NotFound
from cellfork.model.network import Denial, NetworkPolicy, Traffic

if TYPE_CHECKING:
    from cellfork.engine.values import CommandResult


async def interrupt(remote: HttpSandbox, context: str | None) -> bool:
    """Stop what runs in a context, and wait for its end; return whether anything ran."""
    return (await remote.do("interrupt", context=context))["ran"]  # type: ignore[no-any-return]


async def info_of(remote: HttpSandbox) -> SandboxInfo:
    """Return what is known of a sandbox."""
    return await remote.refresh()


def known_info_of(remote: HttpSandbox) -> SandboxInfo:
    """Return what the server told last of a sandbox."""
    return remote.info()


def policy_of(remote: HttpSandbox) -> NetworkPolicy:
    """Return what a sandbox may reach, as far as this client knows."""
    return remote.policy


async def denied(remote: HttpSandbox) -> list[Denial]:
    """Return what a sandbox asked for and did not get."""
    return [Denial(*fields) for fields in (await remote.do("network.get"))["denied"]]


async def traffic_of(remote: HttpSandbox) -> Traffic:
    """Return what a sandbox has moved."""
    traffic = (await remote.do("network.get"))["traffic"]
    return Traffic() if traffic is None else Traffic(*traffic)


async def set_network_policy(remote: HttpSandbox, policy: NetworkPolicy) -> None:
    """Replace the policy of a sandbox."""
    remote.policy = read_policy((await remote.do("network.set", **policy_fields(policy)))["policy"])


async def is_running(remote: HttpSandbox) -> bool:
    """Tell whether a sandbox lives and is awake."""
    return (await remote.refresh()).state == "running"


async def kill(remote: HttpSandbox) -> bool:
    """End a sandbox; return whether there was anything to end."""
    return await remote.kill()


async def pause(remote: HttpSandbox, memory: bool) -> bool:
    """Pause a sandbox; ``False`` where it is paused already."""
    return await remote.pause(memory)


async def resume(remote: HttpSandbox, timeout: float | None) -> None:
    """Let a paused sandbox go on."""
    await remote.resume(timeout)


def abandon(remote: HttpSandbox) -> None:
    """End a sandbox whose creation was given up when it was there already."""
    remote.wire.spawn(remote.kill())


async def answer(running: HttpExecution, text: str) -> None:
    """Answer a question; where the execution ended meanwhile, the answer comes too late and is dropped."""
    await running.answer(text)


async def metrics_of(remote: HttpSandbox) -> SandboxMetrics:
    """Measure a sandbox."""
    told = await remote.do("metrics")
    return SandboxMetrics(**{**told, "timestamp": utc(told["timestamp"])})


def interrupt_running(running: HttpExecution) -> None:
    """Stop code whose start nobody waited for."""
    running.interrupt()


def kill_exec(exec_: HttpExec) -> None:
    """Kill a command whose start nobody waited for."""
    exec_.kill()


async def processes_of(remote: HttpSandbox) -> list[ProcessInfo]:
    """Return the commands that run."""
    return [
        ProcessInfo(exec_.pid or 0, exec_.spec.argv[0], exec_.spec.argv[1:], exec_.spec.envs, exec_.spec.cwd)
        for exec_ in await remote.execs.list()
        if exec_.status == "RUNNING"
    ]


async def result_of(remote: HttpSandbox, exec_: HttpExec) -> "CommandResult":
    """Wait for a command's end, and return its result or raise what it stands for."""
    return await exec_.result()


async def end_process(remote: HttpSandbox, pid: int) -> bool:
    """Kill the command that runs as ``pid``; return whether one did."""
    try:
        exec_ = await remote.execs.by_pid(pid)
    except NotFound:
        return False
    return await exec_.end()


async def send_stdin(remote: HttpSandbox, pid: int, data: bytes, eof: bool) -> None:
    """Write to the input of the command that runs as ``pid``."""
    exec_ = await remote.execs.by_pid(pid)
    if not (exec_.spec.stdin or exec_.spec.pty):
        raise Conflict(f"the command {pid} was started without stdin; start it with stdin=True")
    await exec_.send_stdin(data, eof=eof)


async def exec_output(exec_: HttpExec) -> ExecResult:
    """Return what an exec has written so far."""
    items = await exec_.output(0, wait=False)
    return ExecResult(exec_.exit_code, "".join(item.output for item in items))
