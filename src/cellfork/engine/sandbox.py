"""A sandbox on the host's side: its guest, its contexts, its deadline, its end."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal

from cellfork.engine.background import Background
from cellfork.engine.checks import check_envs, check_seconds, encoded
from cellfork.engine.clock import Timer
from cellfork.engine.commands import Commands
from cellfork.engine.context_table import Contexts
from cellfork.engine.contexts import Context
from cellfork.engine.execs import Execs
from cellfork.engine.executions import RunningExecution, run_to_end
from cellfork.engine.files import Files
from cellfork.engine.holding import Outbox, PausableClock
from cellfork.engine.languages import ready_languages
from cellfork.engine.pausing import Keeper, Pausing
from cellfork.engine.ports import Stream, check_port
from cellfork.engine.recorder import Listener, Recorder
from cellfork.engine.records import DONE
from cellfork.engine.requests import Requests
from cellfork.engine.retention import Retained
from cellfork.engine.samples import History, Sample
from cellfork.engine.settings import Settings
from cellfork.engine.watches import Watches
from cellfork.model import events
from cellfork.model.errors import InvalidRequest, NotFound, ProtocolViolation, SandboxGone, SandboxPaused
from cellfork.model.execution import Execution
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecuteRequest, SandboxSpec
from cellfork.runtimes.base import Guest, Usage
from cellfork.runtimes.listening import Listener as PortListener
from cellfork.wire.frames import Frame

if TYPE_CHECKING:
    from cellfork.engine.adoption import Past

State = Literal["running", "paused", "ended"]
EndHandler = Callable[["Sandbox"], None]


class Sandbox:
    """One started sandbox.  All methods belong to the engine's event loop.

    ``contexts``, ``execs``, ``commands``, ``files`` and ``watches`` are its parts; ``notes`` belong to the dialect that made it.  ``state`` is ``running``, ``paused`` or ``ended``;
    in a pause whatever needs the sandbox raises :class:`SandboxPaused`, after the end every call raises :class:`SandboxGone`, which carries the reason.  ``started_at`` and
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
        keeper: Keeper | None = None,
        past: "Past | None" = None,
    ) -> None:
        """``past`` is what it was, where it has outlived another engine."""
        self.id = id
        self.spec = spec
        self.guest = guest
        self.clock = PausableClock(settings.clock)
        self.settings = replace(settings, clock=self.clock)
        self.notes = dict(spec.notes)
        self.state: State = "running"
        self.started_at = settings.clock.time_ns() / 1e9
        self.deadline: float | None = None
        self.dropped_frames = 0
        self.end_reason: events.KillReason | None = None
        self.end_message = ""
        self.outbox = Outbox(guest.send)
        self.requests = Requests(self.send)
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
        self._end_handlers: list[Callable[[], object]] = []
        self._restart_handlers: list[Callable[[], object]] = []
        self._wall_clock = settings.clock
        self._deadline_timer: Timer | None = None
        self._background = background
        self._keeper = keeper
        self.life = 0
        """How many engines it has had before this one."""
        self.pausing = Pausing(self, keeper, settings.clock)
        self.history = History(self.clock.monotonic())
        if past is not None:
            past.restore(self)
        self._attach(guest)
        if past is None:
            self._set_deadline(check_seconds(spec.timeout))
        elif past.record["deadline"] is not None:
            self._set_deadline(max(0.0, past.record["deadline"] - self._wall_clock.time_ns() / 1e9))

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
        if settings.on_execution is not None:
            tell = settings.on_execution
            running.on_end(lambda ended: tell(ended.execution))
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
        execution = await run_to_end(self.start(context, request, language=language, on_event=on_event))
        if self._keeper is not None:
            # The context may be new: its variables are to be found again after a restart.
            await self._keeper.settled()
        return execution

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
        """Let the sandbox end ``seconds`` from now; ``None``: when it is killed, 0: now, as its deadline would."""
        now = seconds == 0 and not isinstance(seconds, bool)
        seconds = 0.0 if now else check_seconds(seconds)
        self.check_running()
        self._set_deadline(seconds)
        if now:
            self._on_deadline()
        self.save()

    def _set_deadline(self, seconds: float | None) -> None:
        self.void_deadline()
        if seconds is not None:
            clock = self._wall_clock
            self.deadline = clock.time_ns() / 1e9 + seconds
            self._deadline_timer = clock.later(seconds, self._on_deadline)

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and self._wall_clock.time_ns() / 1e9 >= self.deadline - 0.001

    def void_deadline(self) -> None:
        """Let the sandbox live until it is killed, or until it gets a new deadline."""
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self.deadline = None

    async def pause(self, memory: bool = True) -> None:
        """Let everything in the sandbox stand still until :meth:`resume`; it has no deadline meanwhile.

        With ``memory`` its processes stay as they are: what runs goes on later, and the time between does not count.
        Without, only its files are kept: its processes are ended, and what runs ends as ``Killed``.

        Raises :class:`SandboxPaused` where it is paused, :class:`Conflict` where it is being paused, resumed or copied at this
        moment, :class:`Unsupported` where the host cannot do it, :class:`LimitExceeded` where there is no room for its
        files, :class:`UnavailableError`, :class:`SandboxGone`.  Then it goes on.
        """
        await self.pausing.pause(memory)

    async def resume(self, timeout: float | EllipsisType | None = ...) -> None:
        """Let the sandbox go on, to end ``timeout`` seconds from now (``None``: when it is killed; default: as created).

        Raises :class:`Conflict` where it is not paused, or is being resumed, :class:`SandboxGone`, and what starting a
        sandbox raises where it was paused without its memory; then it stays paused.
        """
        await self.pausing.resume(timeout)

    def on_restart(self, handler: Callable[[], object]) -> None:
        """Call ``handler`` whenever the sandbox goes on with new processes: what listened in it does so no more.

        It must not raise.
        """
        self._restart_handlers.append(handler)

    def save(self) -> Awaitable[None]:
        """Keep ``notes``, deadline, network policy and contexts as they are now, where sandboxes outlive their engine.

        Whoever awaits it knows that they are kept; it raises :class:`UnavailableError` where they could not be.
        """
        return self._keeper.save(self) if self._keeper is not None else DONE

    def leave(self) -> None:
        """Let it go on without this engine, for another one to adopt; here it has ended."""
        self.guest.leave()
        self._on_end = lambda _sandbox: None
        self.pausing.leave()
        self._end("owner", "the server has ended; the sandbox waits for the next one")

    def usage(self) -> Usage:
        """Measure what the sandbox uses."""
        return self.guest.usage()

    def samples(self, start: float | None = None, end: float | None = None) -> list[Sample]:
        """Return what the sandbox used, from ``start`` to ``end`` (Unix times in seconds), the oldest first.

        There is one sample at the beginning of its life and another every few seconds; the older they are, the more
        time is between them.
        """
        if not self.history and self.state == "running":
            self.history.take(self)
        return self.history.between(start, end)

    async def languages(self) -> list[str]:
        """Return the languages that have a kernel in the sandbox's template."""
        return ready_languages(await self.requests.send("languages"))

    async def connect(self, port: int) -> Stream:
        """Connect to the program that listens on ``port`` of the sandbox's own loopback.

        Raises :class:`PortClosed`, :class:`InvalidRequest`, :class:`LimitExceeded` (too many are being made),
        :class:`Unsupported` (no network of its own), :class:`SandboxGone`.
        """
        self.check_running()
        return Stream(await self.guest.connect(check_port(port)))

    async def listen(self, port: int, host: str = "0.0.0.0") -> PortListener:  # noqa: S104 - all of a sandbox
        """Listen on a port inside the sandbox, for its own programs to connect to the host.

        Raises :class:`Conflict` where a program listens there already, else what :meth:`connect` raises.
        """
        self.check_running()
        return PortListener(await self.guest.listen(check_port(port), host))

    def on_end(self, handler: Callable[[], object]) -> None:
        """Call ``handler`` once when the sandbox ends, at once where it has.  It must not raise."""
        if self.state == "ended":
            handler()
        else:
            self._end_handlers.append(handler)

    async def kill(
        self, reason: events.KillReason = "request", message: str = "the sandbox was killed"
    ) -> None:
        """End everything; return when nothing is left.  Idempotent."""
        self._end(reason, message)
        await self.guest.kill(reason, message)

    def end_soon(self, reason: events.KillReason, message: str) -> None:
        """Kill the sandbox, without waiting for it."""
        if self.state != "ended":
            self._end(reason, message)
            self._give_back(reason, message)

    def check_running(self) -> None:
        """Raise :class:`SandboxPaused` in a pause, :class:`SandboxGone` after the end."""
        if self.state == "paused":
            raise self.paused()
        if self.state != "running":
            raise self.gone()

    def paused(self) -> SandboxPaused:
        """Return the error for whatever needs a sandbox that runs."""
        return SandboxPaused(f"the sandbox {self.id} is paused; resume it first")

    def gone(self) -> SandboxGone:
        """Return the error that tells why the sandbox, or what ran in it, is gone."""
        if self.state != "ended":
            return SandboxGone("what ran in the sandbox ended: it was paused without its memory", "request")
        return SandboxGone(self.end_message or "the sandbox ended", self.end_reason or "lost")

    # --------------------------------------------------------------------------------- for its parts

    def send(self, header: dict[str, Any], body: bytes = b"", channel: int = 0) -> None:
        """Send a frame to the guest; while the sandbox is held still, when it goes on."""
        self.outbox.send(header, body, channel)

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that nobody waits for, before the engine is closed.  It must not raise."""
        self._background.spawn(work)

    def end_what_runs(self, message: str) -> None:
        """End every context, exec and watch: their processes are gone, the sandbox is not."""
        self.contexts.on_sandbox_end("request", message, self.gone)
        self.execs.on_sandbox_end()
        self.watches.on_sandbox_end()
        self.requests.fail_all(self.gone)
        self._channels.clear()
        self.requests = Requests(self.send)
        self.contexts = Contexts(self)

    def replace_guest(self, guest: Guest) -> None:
        """Go on with another guest, in which nothing runs yet."""
        self.guest = guest
        self.outbox.redirect(guest.send)
        self.requests = Requests(self.send)
        self.contexts = Contexts(self)
        self.history.restart()
        self._attach(guest)
        for handler in self._restart_handlers:
            handler()

    def _attach(self, guest: Guest) -> None:
        self._oom_kills = guest.usage().oom_kills
        if guest.network is not None:
            guest.network.on_change = self.save
        guest.attach(self._on_frame, partial(self._on_close, guest))

    def _on_deadline(self) -> None:
        if self.spec.on_deadline == "pause":
            self._background.spawn(self.pausing.pause_at_deadline())
        else:
            self.end_soon("deadline", "the sandbox reached its deadline")

    def number_from(self, request: int, channel: int, execution: int) -> None:
        """Give new requests, channels and executions numbers above these: the others were given by another engine."""
        self.requests = Requests(self.send, request)
        self._last_channel, self._last_execution = channel, execution

    def keep(self, running: RunningExecution) -> None:
        """Let an execution be asked for that began before this engine."""
        self._executions.add(running.id, running)
        running.on_end(self._executions.ended)

    def attach_channel(self, context: Context, channel: int | None = None) -> int:
        """Return a new channel whose frames go to ``context``, or the one that it had."""
        if channel is None:
            channel = self._last_channel = self._last_channel + 1
        self._channels[channel] = context
        return channel

    def detach_channel(self, channel: int) -> None:
        """Forget a channel; its frames are dropped from now on."""
        self._channels.pop(channel, None)

    # --------------------------------------------------------------------------------- for the guest

    def _on_frame(self, frame: Frame) -> None:
        if self.state == "ended":
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

    def _on_close(self, guest: Guest, reason: events.KillReason | None, message: str) -> None:
        if self.state == "ended" or guest is not self.guest:
            return
        if reason is None and self.guest.usage().oom_kills > self._oom_kills:
            reason, message = "memory", "the sandbox's memory was full"
        self._end(reason, message or "the sandbox ended by itself")
        self._give_back(reason or "request", message)

    def _end(self, reason: events.KillReason | None, message: str) -> None:
        """Tell everybody who waits for something of this sandbox.  Exactly once."""
        if self.state == "ended":
            return
        self.state = "ended"
        self.end_reason, self.end_message = reason, message
        self.void_deadline()
        self.pausing.on_sandbox_end()
        self.contexts.on_sandbox_end(reason, message, self.gone)
        self.execs.on_sandbox_end()
        self.watches.on_sandbox_end()
        self.requests.fail_all(self.gone)
        for handler in self._end_handlers:
            handler()
        self._on_end(self)

    def _give_back(self, reason: events.KillReason, message: str) -> None:
        self._background.spawn(self.guest.kill(reason, message))
