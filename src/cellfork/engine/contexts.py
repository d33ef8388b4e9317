"""Contexts: each owns one kernel at a time and runs one execution at a time, in the order of asking."""

import asyncio
import signal
from collections import deque
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Protocol

from cellfork.engine.checks import encoded
from cellfork.engine.executions import RunningExecution
from cellfork.engine.recorder import Header
from cellfork.engine.requests import ErrorFactory, Requests
from cellfork.engine.settings import Settings
from cellfork.model import events
from cellfork.model.errors import CellforkError, InternalError, LimitExceeded, NotFound, StartupFailed
from cellfork.model.ids import new_id
from cellfork.model.limits import Limits
from cellfork.model.specs import ContextSpec
from cellfork.runtimes.base import Guest


class Host(Protocol):
    """What a context needs of its sandbox."""

    guest: Guest
    settings: Settings
    requests: Requests
    dropped_frames: int

    @property
    def limits(self) -> Limits:
        """The sandbox's limits."""
        ...

    def check_running(self) -> None:
        """Raise :class:`SandboxPaused` in a pause, :class:`SandboxGone` after the end."""
        ...

    def send(self, header: Header, body: bytes = b"", channel: int = 0) -> None:
        """Send a frame to the guest."""
        ...

    def save(self) -> Awaitable[None]:
        """Keep what has changed, where that is kept; whoever awaits knows that it is."""
        ...

    def attach_channel(self, context: "Context", channel: int | None = None) -> int:
        """Return a new channel whose frames go to ``context``, or the one that it had."""
        ...

    def detach_channel(self, channel: int) -> None:
        """Forget a channel."""
        ...

    def end_soon(self, reason: events.KillReason, message: str) -> None:
        """Kill the sandbox, without waiting for it."""
        ...


class Kernel:
    """One life of a context's interpreter.  Its channel is never used again."""

    __slots__ = ("channel", "leaving", "next_count", "started", "timer")

    def __init__(self, channel: int, started: asyncio.Future[Header]) -> None:
        self.channel = channel
        self.started = started
        self.next_count = 1
        self.leaving = False
        self.timer: Any = None


class Context:
    """A stateful namespace in one language.

    A kernel that ended, however it did, is replaced when the next execution is handed over; that one
    finds an empty namespace.
    """

    def __init__(self, host: Host, spec: ContextSpec) -> None:
        self.id = new_id()
        self.spec = spec
        self.guest = host.guest
        self.settings = host.settings
        self._host = host
        self._kernel: Kernel | None = None
        self._queue: deque[RunningExecution] = deque()
        self._running: RunningExecution | None = None
        self._over: ErrorFactory | None = None

    # ---------------------------------------------------------------------------------- for callers

    @property
    def language(self) -> str:
        """Name of the language."""
        return self.spec.language

    @property
    def cwd(self) -> str:
        """The working directory in which the kernel starts."""
        return self.spec.cwd

    @property
    def envs(self) -> Mapping[str, str]:
        """Environment variables of the kernel, besides the sandbox's."""
        return self.spec.envs

    @property
    def running(self) -> RunningExecution | None:
        """The execution that has the kernel now."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many executions wait."""
        return len(self._queue)

    def submit(self, execution: RunningExecution) -> None:
        """Run an execution when those before it have ended.

        Raises :class:`LimitExceeded` where too many wait, :class:`NotFound` after :meth:`remove`.
        """
        self._check_open()
        if len(self._queue) >= self.settings.queue:
            raise LimitExceeded(f"{len(self._queue):,} executions wait in this context already")
        self._queue.append(execution)
        self._pump()

    def interrupt(self) -> RunningExecution | None:
        """Stop what runs now; return its handle, or ``None`` where nothing ran."""
        running = self._running
        if running is not None:
            running.interrupt()
        return running

    async def start(self) -> None:
        """Have a kernel; raise what init says where it cannot be started."""
        self._check_open()
        kernel = self._kernel or self._start_kernel()
        try:
            await asyncio.shield(kernel.started)
        except CellforkError as error:
            raise _reason(error) from None

    async def restart(self) -> None:
        """Replace the kernel.  What runs and what waits ends as ``Killed``."""
        self._check_open()
        self._stop("the context was restarted")
        await self.start()

    def remove(self) -> None:
        """Stop the kernel for good.  What runs and what waits ends as ``Killed``."""
        self._over = lambda: NotFound(f"the context {self.id} was removed")
        self._stop("the context was removed")

    def restore(self, channel: int, next_count: int | None, running: RunningExecution | None) -> None:
        """Have the kernel that this context had before this process, and what it runs."""
        started: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        started.set_result({})
        self._kernel = Kernel(self._host.attach_channel(self, channel), started)
        self._kernel.timer = self.settings.clock.later(0, _nothing)
        self._running = running
        if running is None or next_count is None:
            self._on_idle(self._kernel, next_count)
        else:
            self._kernel.next_count = next_count

    # -------------------------------------------------------------------------------- for executions

    def withdraw(self, execution: RunningExecution) -> None:
        """Take an execution out of the queue."""
        if execution in self._queue:
            self._queue.remove(execution)

    def send_input(self, execution: RunningExecution, text: str) -> None:
        """Send the answer to a question of the code that runs."""
        body = encoded(text, "input", self.settings.code)
        if self._kernel is not None:
            self._host.send({"op": "input", "execution": execution.id}, body, self._kernel.channel)

    def send_interrupt(self) -> None:
        """Send SIGINT to the kernel's process group."""
        if self._kernel is not None:
            self._host.requests.tell("interrupt", context=self._kernel.channel)

    def send_terminate(self) -> None:
        """Kill the kernel."""
        if self._kernel is not None:
            number = int(signal.SIGKILL)
            self._host.requests.tell("terminate", context=self._kernel.channel, signal=number)

    def kill_sandbox(self) -> None:
        """Kill the sandbox: its kernel could not be ended."""
        self._host.end_soon("limit", "code could not be stopped in any other way")

    # ---------------------------------------------------------------------------------- for the host

    def on_frame(self, channel: int, header: Header, body: bytes) -> None:
        """Take a frame of one of this context's channels.

        Only the running execution can be affected; whatever else the frame names is dropped and counted.
        Raises :class:`ProtocolViolation`.
        """
        running, op = self._running, header["op"]
        if self._kernel is None or channel != self._kernel.channel:
            self._host.dropped_frames += 1
        elif op == "kernel_exit":
            self._on_kernel_exit(_exit_message(header))
        elif running is None or header["execution"] != running.id:
            self._host.dropped_frames += 1
        elif op == "done":
            running.on_done(header, body)
            self._running = None
            self._on_idle(self._kernel, header["next_count"])
        elif not running.on_frame(header, body):
            self._host.dropped_frames += 1

    def on_sandbox_end(self, reason: events.KillReason | None, message: str, error: ErrorFactory) -> None:
        """End everything: the sandbox is gone.

        Its kernels are not told.  They end with it, all at once: were they told before, and this process killed before
        the sandbox is, the next one would take over a sandbox that is whole but for its variables.
        """
        self._over = self._over or error
        self._forget_kernel()
        for execution in self._take_all():
            execution.on_sandbox_end(reason, message)

    # -------------------------------------------------------------------------------------- details

    def _check_open(self) -> None:
        if self._over is not None:
            raise self._over()

    def _on_idle(self, kernel: Kernel, next_count: int | None) -> None:
        """Hand over what waits; where the kernel leaves (``exit()``), to the next one, when this one has ended."""
        if next_count is None:
            kernel.leaving = True
            kernel.timer = self.settings.clock.later(
                self.settings.grace, partial(self._on_kernel_exit, "the kernel did not leave")
            )
        else:
            kernel.next_count = next_count
            self._pump()

    def _pump(self) -> None:
        if (
            self._running is not None
            or not self._queue
            or (self._kernel is not None and self._kernel.leaving)
        ):
            return
        kernel = self._kernel or self._start_kernel()
        execution = self._running = self._queue.popleft()
        limits, request = self._host.limits, execution.request
        header = {
            "op": "execute",
            "execution": execution.id,
            "envs": execution.envs,
            "stdin": request.allow_input,
            "output": limits.output_bytes,
            "result": limits.result_bytes,
            "silent": False,
        }
        try:
            self._host.send(header, execution.code, kernel.channel)
        except CellforkError:
            return  # the sandbox has ended; the close that follows ends the execution
        execution.begin(kernel.next_count, kernel.started)

    def _start_kernel(self) -> Kernel:
        """Ask for a kernel.  Code may be sent at once: init takes one frame after the other."""
        host, spec = self._host, self.spec
        channel = host.attach_channel(self)
        started = host.requests.send(
            "context.start",
            context=channel,
            language=spec.language,
            cwd=spec.cwd,
            envs=dict(spec.envs),
            label=self.id,
        )
        self._kernel = kernel = Kernel(channel, started)
        kernel.timer = self.settings.clock.later(
            self.settings.start_timeout, partial(self._on_start_timeout, kernel)
        )
        started.add_done_callback(partial(self._on_started, kernel))
        return kernel

    def _on_started(self, kernel: Kernel, started: asyncio.Future[Header]) -> None:
        kernel.timer.cancel()
        error = None if started.cancelled() else started.exception()
        if error is not None and self._kernel is kernel:
            self._on_kernel_exit(f"the kernel did not start: {error}")

    def _on_start_timeout(self, kernel: Kernel) -> None:
        if not kernel.started.done():
            seconds = self.settings.start_timeout
            kernel.started.set_exception(StartupFailed(f"the kernel did not start within {seconds:g} s"))

    def _on_kernel_exit(self, message: str) -> None:
        running, self._running = self._running, None
        self._stop_kernel()
        if running is not None:
            running.on_kernel_exit(message)
        self._pump()

    def _stop_kernel(self) -> None:
        kernel = self._forget_kernel()
        if kernel is not None:
            self._host.requests.tell("context.stop", context=kernel.channel)

    def _forget_kernel(self) -> Kernel | None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.timer.cancel()
            self._host.detach_channel(kernel.channel)
        return kernel

    def _stop(self, message: str) -> None:
        for execution in self._take_all():
            execution.end(events.Killed, "request", message)
        self._stop_kernel()

    def _take_all(self) -> list[RunningExecution]:
        taken = [self._running] if self._running is not None else []
        taken += self._queue
        self._queue.clear()
        self._running = None
        return taken


def _nothing() -> None:
    """Be a timer that nobody waits for."""


def _exit_message(header: Header) -> str:
    number = header["signal"]
    if number is None:
        return f"the kernel exited with code {header['code']}"
    try:
        return f"the kernel was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"the kernel was killed by signal {number}"


def _reason(error: CellforkError) -> CellforkError:
    if isinstance(error, InternalError):
        return StartupFailed(f"the kernel did not start: {error}")
    return error
