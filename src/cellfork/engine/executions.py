"""One run of code: queued, running, ended.  Exactly one terminal event, always last."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Literal, Protocol

from cellfork.engine.artifacts import read_artifacts
from cellfork.engine.clock import Timer
from cellfork.engine.recorder import Header, Recorder
from cellfork.engine.settings import Settings
from cellfork.engine.stopping import Cause, Stoppable, Stopper
from cellfork.model.artifacts import Artifact
from cellfork.model.errors import Conflict, ProtocolViolation
from cellfork.model.events import (
    Accounting,
    Event,
    Failed,
    Finished,
    Interrupted,
    Killed,
    KillReason,
    Lost,
    Terminal,
    TimedOut,
)
from cellfork.model.execution import Execution
from cellfork.model.results import ExecutionError
from cellfork.model.specs import ExecuteRequest
from cellfork.runtimes.base import Guest, Usage
from cellfork.wire.bundles import cut_bundle

PATHLESS_BYTES = 512
"""Roughly the memory of an artifact, its path left aside."""

State = Literal["queued", "running", "ended"]
EndHandler = Callable[["RunningExecution"], object]


class Owner(Stoppable, Protocol):
    """What an execution asks of the context that runs it."""

    guest: Guest
    settings: Settings

    def withdraw(self, execution: "RunningExecution") -> None:
        """Take an execution out of the queue."""
        ...

    def send_input(self, execution: "RunningExecution", text: str) -> None:
        """Send an answer to the kernel."""
        ...


class RunningExecution:
    """The handle on one execution: watch it, wait for it, stop it, answer it.

    ``execution`` is the fold of the events so far.  ``state`` is ``queued``, ``running`` or ``ended``.  An
    execution that ends while it is still queued has a terminal event only.
    """

    __slots__ = (
        "__weakref__",
        "_artifacts",
        "_asked",
        "_before",
        "_count",
        "_handlers",
        "_owner",
        "_recorder",
        "_started",
        "_stopper",
        "_timer",
        "code",
        "envs",
        "id",
        "request",
        "state",
        "timeout",
    )

    def __init__(
        self,
        owner: Owner,
        recorder: Recorder,
        request: ExecuteRequest,
        *,
        code: bytes,
        envs: dict[str, str],
        timeout: float | None,
    ) -> None:
        self.id = recorder.execution.id
        self.request = request
        self.code = code
        self.envs = envs
        self.timeout = timeout
        self.state: State = "queued"
        self._owner = owner
        self._recorder = recorder
        self._handlers: list[EndHandler] = []
        self._stopper: Stopper | None = None
        self._timer: Timer | None = None
        self._asked = False
        self._artifacts: tuple[tuple[Artifact, ...], bool] | None = None
        self._count: int | None = None
        self._started = 0.0
        self._before = Usage()

    # ---------------------------------------------------------------------------------- for callers

    @property
    def execution(self) -> Execution:
        """The fold of the events so far."""
        return self._recorder.execution

    @property
    def ended(self) -> bool:
        """Whether the terminal event is there."""
        return self.state == "ended"

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Iterate over the events after number ``after``: those that were, then those that come, to the last.

        What a later event made void (cleared output, superseded updates) is left out.  Several may
        iterate at once, each at its own pace.
        """
        return self._recorder.log.follow(after)

    def since(self, after: int) -> list[Event]:
        """Return the events so far after number ``after``; what later ones made void is left out."""
        return self._recorder.log.since(after)

    async def wait(self) -> Execution:
        """Return the execution when it has ended.  Cancelling the wait leaves the code running."""
        await self._recorder.log.wait_closed()
        return self.execution

    def on_end(self, handler: EndHandler) -> None:
        """Call ``handler`` with this object when the execution has ended (at once where it has)."""
        if self.ended:
            handler(self)
        else:
            self._handlers.append(handler)

    def interrupt(self) -> None:
        """Stop the code: interrupt, then terminate the kernel, then kill the sandbox.  Idempotent."""
        self._stop("request")

    def provide_input(self, text: str) -> None:
        """Answer the ``InputRequest`` that waits; :class:`Conflict` where none does."""
        if not self._asked:
            raise Conflict("the execution does not wait for input")
        self._owner.send_input(self, text)
        self._asked = False

    @property
    def kept_bytes(self) -> int:
        """Roughly the memory that the output takes."""
        artifacts = self._artifacts[0] if self._artifacts else ()
        return self._recorder.kept_bytes + sum(PATHLESS_BYTES + 4 * len(made.path) for made in artifacts)

    # ------------------------------------------------------------------------------- for the context

    def begin(self, count: int, ready: asyncio.Future[Any] | None = None) -> None:
        """Note that the code was just handed over as number ``count`` of the history.

        Its time runs from when the kernel is ``ready`` (default: now).
        """
        settings, guest = self._owner.settings, self._owner.guest
        self.state = "running"
        self.code = b""
        self._count = count
        self._started = settings.clock.monotonic()
        self._recorder.started(count)
        if ready is None or ready.done():
            self._start_timer()
        else:
            ready.add_done_callback(self._start_timer)
        guest.reset_peak()
        self._before = guest.usage()

    def on_frame(self, header: Header, body: bytes) -> bool:
        """Take a frame that carries this execution's id; return whether it was expected."""
        recorder = self._recorder
        match header["op"]:
            case "stdout":
                recorder.text(recorder.stdout, header, body)
            case "stderr":
                recorder.text(recorder.stderr, header, body)
            case "display":
                recorder.display(header, body)
            case "update":
                recorder.update(header, body)
            case "clear":
                recorder.clear(header)
            case "input_request":
                return self._on_input_request(header)
            case "artifacts":
                return self._on_artifacts(header, body)
            case _:
                return False
        return True

    def on_done(self, header: Header, body: bytes) -> None:
        """End as the kernel says.  Raises :class:`ProtocolViolation` for a malformed error."""
        status = header["status"]
        error = None if status == "ok" else _error_of(header, body)
        if header["count"] is not None:
            self._count = header["count"]
        stopper = self._stopper
        if stopper is not None and stopper.cause == "timeout":
            self._end_stopped(stopper)
        elif error is None:
            self.end(Finished)
        elif status == "interrupted" and stopper is not None:
            self.end(Interrupted, error, stopper.step)
        else:
            self.end(Failed, error)

    def on_kernel_exit(self, message: str) -> None:
        """End because the kernel did; ``message`` says how."""
        stopper = self._stopper
        terminated = stopper is not None and stopper.step != "interrupt"
        if not terminated and self._owner.guest.usage().oom_kills > self._before.oom_kills:
            self.end(Killed, "memory", "the kernel was killed because the sandbox's memory was full")
        elif stopper is not None:
            self._end_stopped(stopper)
        else:
            self.end(Lost, message)

    def on_sandbox_end(self, reason: KillReason | None, message: str) -> None:
        """End because the sandbox did."""
        if self._stopper is not None and self._stopper.step == "kill":
            self._end_stopped(self._stopper)
        elif reason is None:
            self.end(Lost, message)
        else:
            self.end(Killed, reason, message)

    def end(self, kind: type[Terminal], *values: Any) -> None:
        """End with a terminal event; what comes later is ignored."""
        if self.ended:
            return
        self._cancel_timers()
        self._recorder.finish_text()
        accounting = self._accounting()
        self.state = "ended"
        artifacts, truncated = self._artifacts or ((), False)
        self._recorder.finish(
            kind,
            *values,
            execution_count=self._count,
            accounting=accounting,
            artifacts=artifacts,
            artifacts_truncated=truncated,
        )
        handlers, self._handlers = self._handlers, []
        for handler in handlers:
            handler(self)

    # -------------------------------------------------------------------------------------- details

    def _start_timer(self, _ready: object = None) -> None:
        if self.timeout is not None and not self.ended:
            self._timer = self._owner.settings.clock.later(self.timeout, partial(self._stop, "timeout"))

    def _stop(self, cause: Cause) -> None:
        if self.ended or self._stopper is not None:
            return
        if self.state == "queued":
            self._owner.withdraw(self)
            error = ExecutionError("KeyboardInterrupt", "the execution was stopped before it began")
            self.end(Interrupted, error)
            return
        settings = self._owner.settings
        self._stopper = Stopper(self._owner, cause, settings.clock, settings.grace)
        self._stopper.start()

    def _end_stopped(self, stopper: Stopper) -> None:
        if stopper.cause == "timeout":
            self.end(TimedOut, self.timeout, stopper.step)
        else:
            message = "the code did not react to the interrupt; its kernel was ended and starts anew"
            self.end(Interrupted, ExecutionError("KeyboardInterrupt", message), stopper.step)

    def _on_input_request(self, header: Header) -> bool:
        if self._asked or not self.request.allow_input:
            return False
        self._asked = True
        self._recorder.input_request(header)
        return True

    def _on_artifacts(self, header: Header, body: bytes) -> bool:
        if self._artifacts is not None:
            return False
        self._artifacts = read_artifacts(body), header["truncated"]
        return True

    def _cancel_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._stopper is not None:
            self._stopper.cancel()

    def _accounting(self) -> Accounting:
        posture = self._owner.guest.info.get("posture")
        if self.state == "queued":
            return Accounting(posture=posture)
        before, now = self._before, self._owner.guest.usage()
        return Accounting(
            wall_time=self._owner.settings.clock.monotonic() - self._started,
            cpu_time=_difference(before.cpu_time, now.cpu_time),
            peak_memory=now.peak_memory,
            output_bytes=self._recorder.produced,
            truncated=self._recorder.truncated,
            posture=posture,
        )


async def run_to_end(running: RunningExecution) -> Execution:
    """Wait for an execution; where the wait is cancelled, stop the code."""
    try:
        return await running.wait()
    except asyncio.CancelledError:
        running.interrupt()
        raise


def _error_of(header: Header, body: bytes) -> ExecutionError:
    parts = cut_bundle(header["parts"], body)
    if any(part.kind != "s" for part in parts):
        raise ProtocolViolation("the parts of an error are not text")
    texts = {part.mime: part.read() for part in parts}
    value, traceback = texts.get("value", ""), texts.get("traceback", "")
    return ExecutionError(header["name"] or "Exception", value, traceback)


def _difference(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)
