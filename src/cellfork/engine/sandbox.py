"""A sandbox on the host's side: its guest, its contexts, its deadline, its end."""

from collections.abc import Callable
from typing import Any, Literal

from cellfork.engine.background import Background
from cellfork.engine.checks import check_envs, check_seconds, encoded
from cellfork.engine.clock import Timer
from cellfork.engine.commands import Commands
from cellfork.engine.context_table import Contexts
from cellfork.engine.contexts import Context
from cellfork.engine.execs import Execs
from cellfork.engine.executions import RunningExecution, run_to_end
from cellfork.engine.files import Files
from cellfork.engine.languages import ready_languages
from cellfork.engine.recorder import Listener, Recorder
from cellfork.engine.requests import Requests
from cellfork.engine.retention import Retained
from cellfork.engine.settings import Settings
from cellfork.engine.watches import Watches
from cellfork.model import events
from cellfork.model.errors import InvalidRequest, NotFound, ProtocolViolation, SandboxGone
from cellfork.model.execution import Execution
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecuteRequest, SandboxSpec
from cellfork.runtimes.base import Guest, Usage
from cellfork.wire.frames import Frame

State = Literal["running", "ended"]
EndHandler = Callable[["Sandbox"], None]


class Sandbox:
    """One started sandbox.  All methods belong to the engine's event loop.

    ``contexts``, ``execs``, ``commands``, ``files`` and ``watches`` are its parts.  ``state`` is ``running`` or ``ended``;
    after the end every call raises :class:`SandboxGone`, which carries the reason.  ``started_at`` and
    ``deadline`` are Unix times in seconds.
    """

    def __init__(
        self,
        id: str,
        spec: SandboxSpec,
        guest: Guest,
        settings: Settings,
        on_end: EndHandler,
        background: Background,
    ) -> None:
        self.id = id
        self.spec = spec
        self.guest = guest
        self.settings = settings
        self.state: State = "running"
        self.started_at = settings.clock.time_ns() / 1e9
        self.deadline: float | None = None
        self.dropped_frames = 0
        self.end_reason: events.KillReason | None = None
        self.end_message = ""
        self.requests = Requests(guest.send)
        self.contexts = Contexts(self)
        self.execs = Execs(self)
        self.commands = Commands(self.execs)
        self.files = Files(self)
        self.watches = Watches(self)
        self._channels: dict[int, Context] = {}
        self._last_channel = 0
        self._last_execution = 0
        self._executions: Retained[RunningExecution] = Retained(settings.kept_executions, settings.kept_bytes)
        self._on_end = on_end
        self._deadline_timer: Timer | None = None
        self._background = background
        self._oom_kills = guest.usage().oom_kills
        guest.attach(self._on_frame, self._on_close)
        self.set_timeout(spec.timeout)

    @property
    def isolation(self) -> str:
        """Name of the runtime that isolates this sandbox."""
        return self.guest.isolation

    @property
    def limits(self) -> Limits:
        """What the sandbox may use."""
        return self.spec.limits

    # ------------------------------------------------------------------------------------ executions

    def start(
        self,
        context: Context | str | None,
        request: ExecuteRequest,
        *,
        language: str | None = None,
        on_event: Listener | None = None,
    ) -> RunningExecution:
        """Queue code in a context (its id, or ``None``: the default one of ``language``); return its handle.

        ``on_event`` is called with every event at once, in the engine's loop; it must not raise.  The
        timeout of the request counts from the hand-over to the kernel.

        Raises :class:`InvalidRequest` (malformed text, both context and language), :class:`Unsupported`
        (language), :class:`NotFound` (context), :class:`LimitExceeded` (code, variables, queue),
        :class:`SandboxGone`.
        """
        self.check_running()
        target = self._target(context, language)
        settings = self.settings
        code = encoded(request.code, "code", settings.code)
        envs = check_envs(request.envs, settings.envs)
        timeout = check_seconds(request.timeout)
        self._last_execution += 1
        execution = Execution(isolation=self.guest.isolation, id=f"{target.id}x{self._last_execution}")
        recorder = Recorder(execution, self.spec.limits, settings.clock, on_event)
        running = RunningExecution(target, recorder, request, code=code, envs=envs, timeout=timeout)
        target.submit(running)
        self._executions.add(running.id, running)
        running.on_end(self._executions.ended)
        return running

    async def run(
        self,
        context: Context | str | None,
        request: ExecuteRequest,
        *,
        language: str | None = None,
        on_event: Listener | None = None,
    ) -> Execution:
        """Run code and return the ended execution (see :meth:`start`).

        Where the awaiting task is cancelled, the code is stopped.
        """
        return await run_to_end(self.start(context, request, language=language, on_event=on_event))

    def execution(self, id: str) -> RunningExecution:
        """Return the handle of an execution that runs, waits or ended recently; :class:`NotFound` otherwise."""
        running = self._executions.get(id)
        if running is None:
            raise NotFound(f"no execution {str(id)[:80]!r}")
        return running

    def _target(self, context: Context | str | None, language: str | None) -> Context:
        if context is None:
            return self.contexts.default(language)
        if language is not None:
            raise InvalidRequest("give a context or a language, not both: a context has a language already")
        return self.contexts.get(context) if isinstance(context, str) else context

    # ------------------------------------------------------------------------------------------ life

    def set_timeout(self, seconds: float | None) -> None:
        """Let the sandbox end ``seconds`` from now (``None``: when it is killed)."""
        seconds = check_seconds(seconds)
        self.check_running()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self.deadline = None
        if seconds is not None:
            clock = self.settings.clock
            self.deadline = clock.time_ns() / 1e9 + seconds
            self._deadline_timer = clock.later(
                seconds, lambda: self.end_soon("deadline", "the sandbox reached its deadline")
            )

    def usage(self) -> Usage:
        """Measure what the sandbox uses."""
        return self.guest.usage()

    async def languages(self) -> list[str]:
        """Return the languages that have a kernel in the sandbox's template."""
        return ready_languages(await self.requests.send("languages"))

    async def kill(
        self, reason: events.KillReason = "request", message: str = "the sandbox was killed"
    ) -> None:
        """End everything; return when nothing is left.  Idempotent."""
        self._end(reason, message)
        await self.guest.kill(reason, message)

    def end_soon(self, reason: events.KillReason, message: str) -> None:
        """Kill the sandbox, without waiting for it."""
        if self.state == "running":
            self._end(reason, message)
            self._give_back(reason, message)

    def check_running(self) -> None:
        """Raise :class:`SandboxGone` after the end."""
        if self.state != "running":
            raise self.gone()

    def gone(self) -> SandboxGone:
        """Return the error that tells why the sandbox is gone."""
        return SandboxGone(self.end_message or "the sandbox ended", self.end_reason or "lost")

    # --------------------------------------------------------------------------------- for its parts

    def attach_channel(self, context: Context) -> int:
        """Return a new channel whose frames go to ``context``."""
        self._last_channel += 1
        self._channels[self._last_channel] = context
        return self._last_channel

    def detach_channel(self, channel: int) -> None:
        """Forget a channel; its frames are dropped from now on."""
        self._channels.pop(channel, None)

    # --------------------------------------------------------------------------------- for the guest

    def _on_frame(self, frame: Frame) -> None:
        if self.state != "running":
            return
        channel, header, body = frame
        try:
            if channel:
                context = self._channels.get(channel)
                if context is not None:
                    context.on_frame(channel, header, body)
                else:
                    self.dropped_frames += 1
            else:
                self._on_init_frame(header, body)
        except ProtocolViolation as error:
            self.end_soon("protocol", str(error))

    def _on_init_frame(self, header: dict[str, Any], body: bytes) -> None:
        match header["op"]:
            case "reply":
                self.requests.on_reply(header)
            case "chunk":
                self.requests.on_chunk(header["id"], body)
            case "process.output":
                self.execs.on_output(header, body)
            case "process.exit":
                self.execs.on_exit(header)
            case "watch.event":
                self.watches.on_event(header)
            case _:
                raise ProtocolViolation(f"unexpected message {header['op'][:40]!r}")

    def _on_close(self, reason: events.KillReason | None, message: str) -> None:
        if self.state != "running":
            return
        if reason is None and self.guest.usage().oom_kills > self._oom_kills:
            reason, message = "memory", "the sandbox's memory was full"
        self._end(reason, message or "the sandbox ended by itself")
        self._give_back(reason or "request", message)

    def _end(self, reason: events.KillReason | None, message: str) -> None:
        """Tell everybody who waits for something of this sandbox.  Exactly once."""
        if self.state != "running":
            return
        self.state = "ended"
        self.end_reason, self.end_message = reason, message
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self.contexts.on_sandbox_end(reason, message, self.gone)
        self.execs.on_sandbox_end()
        self.watches.on_sandbox_end()
        self.requests.fail_all(self.gone)
        self._on_end(self)

    def _give_back(self, reason: events.KillReason, message: str) -> None:
        self._background.spawn(self.guest.kill(reason, message))
