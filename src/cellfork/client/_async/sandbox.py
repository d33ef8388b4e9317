"""``AsyncSandbox``: create a sandbox, run code in it, end it."""

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from cellfork.client import remote
from cellfork.client._async.commands import AsyncCommands, AsyncPty
from cellfork.client._async.execs import AsyncExecs
from cellfork.client._async.files import AsyncFiles
from cellfork.client._async.network import AsyncNetwork
from cellfork.client.bridges import AsyncBridge, AsyncHandler, AsyncInbox
from cellfork.client.handlers import Handlers
from cellfork.client.transport import Transport, choose
from cellfork.client.values import Context, SandboxInfo, SandboxMetrics, SnapshotInfo
from cellfork.client.variants import ByIdToo
from cellfork.model import events
from cellfork.model.errors import CellforkError, InvalidRequest
from cellfork.model.execution import Execution
from cellfork.model.limits import Limits
from cellfork.model.network import NetworkPolicy
from cellfork.model.results import ExecutionError, OutputMessage, Result
from cellfork.model.specs import HOME, ContextSpec, ExecuteRequest, SandboxSpec, Template

if TYPE_CHECKING:
    from cellfork.engine.executions import RunningExecution
    from cellfork.engine.sandbox import Sandbox as Remote

DEFAULT_TIMEOUT = 300.0


class AsyncSandbox:
    """An isolated environment that runs code, with its own files, processes, limits and deadline.

    Made by :meth:`create`; an ``async with`` block kills it at its end.  The shapes are E2B's.  After the end of the
    sandbox every method raises :class:`SandboxGone`, which tells the reason, but for :meth:`kill`,
    :meth:`is_running` and :meth:`get_info`.
    """

    def __init__(self, sandbox: "Remote", bridge: AsyncBridge) -> None:
        self._remote = sandbox
        self._bridge = bridge
        self._spoken: set[str] = set()
        self.commands = AsyncCommands(sandbox, bridge)
        self.execs = AsyncExecs(sandbox, bridge)
        self.files = AsyncFiles(sandbox, bridge)
        self.network = AsyncNetwork(sandbox, bridge)
        self.pty = AsyncPty(sandbox, bridge)
        self.notebook = AsyncNotebook(self)

    # ------------------------------------------------------------------------------------------ life

    @classmethod
    async def create(
        cls,
        template: Template | str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        *,
        snapshot: str | None = None,
        on_timeout: Literal["kill", "pause"] = "kill",
        limits: Limits | None = None,
        network: NetworkPolicy | str | Iterable[str] | Mapping[str, Any] | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        isolation: str = "namespaces",
        tenant: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        transport: Transport | None = None,
    ) -> "AsyncSandbox":
        """Start a sandbox (E2B: ``Sandbox.create``).

        ``timeout`` is its life in seconds (``None``: until it is killed); ``limits`` default to the template's, or the snapshot's;
        ``network`` is ``"none"`` (the default), a list of hosts (:class:`NetworkPolicy`) or ``"public"``.
        ``envs`` hold for every context and command; ``metadata`` is only remembered.  ``isolation`` names the
        runtime: the default or, for code that is trusted, ``"none"``.  ``tenant`` names whom the sandbox belongs
        to, where that is not always the same: sandboxes of different tenants share no zygote, and nothing that
        served one is given to another.  It is not told inside.  ``snapshot`` names one whose files the sandbox starts with;
        ``on_timeout`` says whether the end of its time kills or pauses it.

        ``url`` (or ``CELLFORK_URL``) and ``api_key`` (or ``CELLFORK_API_KEY``) name a cellfork server, where the sandbox
        is made instead: ``template`` is the name of one of the server's then, ``limits`` are at most that template's, and the
        tenant is the key's.  ``transport`` replaces the engine that all sandboxes of this process share.

        Raises :class:`IsolationUnavailable` where this machine lacks something (it says what, and the
        remedy), :class:`StartupFailed`, :class:`InvalidRequest`, :class:`Unsupported` for a ``network`` without isolation, where
        nothing could enforce it, and for what the server does not give, :class:`Unauthorized` for a key that it does not know,
        :class:`LimitExceeded`, and :class:`UnavailableError` where it does not answer.
        """
        transport = transport or choose(url, api_key)
        template = Template(name=template) if isinstance(template, str) else template or Template()
        spec = SandboxSpec(
            template=template,
            limits=limits or template.limits,
            network=NetworkPolicy.of(network),
            envs=dict(envs or {}),
            metadata=dict(metadata or {}),
            timeout=timeout,
            isolation=isolation,
            tenant="" if tenant is None else tenant,
            on_deadline=on_timeout,
            snapshot=snapshot,
        )
        bridge = AsyncBridge(transport.host, transport)
        return cls(await bridge.call(transport.create, spec, undo=transport.calls.abandon), bridge)

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id."""
        return self._remote.id

    @property
    def isolation(self) -> str:
        """Name of the runtime that isolates the sandbox; ``"none"`` means that nothing does."""
        return self._remote.isolation

    @property
    def info(self) -> SandboxInfo:
        """The same as :meth:`get_info` without waiting: of a remote sandbox, what its server told last."""
        return self._bridge.calls.known_info_of(self._remote)  # type: ignore[no-any-return]

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        timeout: float | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        transport: Transport | None = None,
    ) -> "AsyncSandbox":
        """Return a sandbox that is there: of a server, or of this process (E2B: ``Sandbox.connect``).

        It lives for at least ``timeout`` seconds more; a paused one is woken.  Raises :class:`NotFound`.
        """
        transport = transport or choose(url, api_key)
        bridge = AsyncBridge(transport.host, transport)
        return cls(await bridge.call(transport.connect, sandbox_id, timeout), bridge)

    @classmethod
    async def _kill(
        cls,
        sandbox_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        transport: Transport | None = None,
    ) -> bool:
        """End a sandbox by its id; ``False`` where there is none such."""
        transport = transport or choose(url, api_key)
        return await AsyncBridge(transport.host).call(transport.kill, sandbox_id)  # type: ignore[no-any-return]

    async def get_info(self) -> SandboxInfo:
        """Return what is known of the sandbox, after its end as well (E2B: ``get_info``)."""
        return await self._bridge.call(self._bridge.calls.info_of, self._remote)  # type: ignore[no-any-return]

    async def get_metrics(self) -> list[SandboxMetrics]:
        """Measure what the sandbox uses now: a list of one (E2B: ``get_metrics``)."""
        return [await self._bridge.call(self._bridge.calls.metrics_of, self._remote)]

    async def set_timeout(self, timeout: float | None) -> None:
        """Let the sandbox end ``timeout`` seconds from now; 0: now, ``None``: when it is killed (E2B: ``set_timeout``).

        What the end of its time does, killing or pausing it, ``on_timeout`` said when it was created.
        """
        await self._bridge.call(self._remote.set_timeout, timeout)

    async def is_running(self) -> bool:
        """Tell whether the sandbox lives (E2B: ``is_running``)."""
        return await self._bridge.call(self._bridge.calls.is_running, self._remote)  # type: ignore[no-any-return]

    @ByIdToo(_kill)
    async def kill(self) -> bool:
        """End the sandbox: when this returns, nothing of it is left (E2B: ``kill``).

        Returns ``False`` where it had ended before.  What runs in it ends as ``killed``.
        """
        return await self._bridge.call(self._bridge.calls.kill, self._remote)  # type: ignore[no-any-return]

    async def pause(self, keep_memory: bool = True) -> bool:
        """Let the sandbox stand still until :meth:`resume`; it has no deadline meanwhile (E2B: ``pause``).

        What runs goes on later.  Without ``keep_memory`` only the files are kept: what runs is ended.  Returns ``False`` where it
        is paused already.  Raises :class:`Conflict` where it is being paused, resumed or copied, :class:`Unsupported` where the
        host cannot do it, :class:`LimitExceeded` where there is no room for its files.
        """
        return await self._bridge.call(self._bridge.calls.pause, self._remote, keep_memory)  # type: ignore[no-any-return]

    async def resume(self, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Let the paused sandbox go on, to end ``timeout`` seconds from now (``None``: when it is killed).

        Raises :class:`Conflict` where it is not paused.  :meth:`connect` resumes as well.
        """
        await self._bridge.call(self._bridge.calls.resume, self._remote, timeout)

    async def create_snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Keep the files of the sandbox as they are now; it goes on (E2B: ``create_snapshot``).

        ``Sandbox.create(snapshot=…)`` starts sandboxes with them, by the id or by ``name``; where another snapshot has the
        name, that one loses it.  Without a server snapshots end with this process.
        """
        return await self._bridge.call(self._bridge.transport.snapshot, self.sandbox_id, name)  # type: ignore[no-any-return]

    async def fork(
        self, timeout: float | None = DEFAULT_TIMEOUT, count: int = 1
    ) -> "list[AsyncSandbox | CellforkError]":
        """Start ``count`` sandboxes with the files that this one has now (E2B: ``fork``).

        Each lives for ``timeout`` seconds; where one could not be started, the error is in its place.  What runs here is not
        copied, and goes on.
        """
        transport = self._bridge.transport
        copies = await self._bridge.call(transport.fork, self.sandbox_id, count, timeout)
        return [
            copy
            if isinstance(copy, CellforkError)
            else type(self)(copy, AsyncBridge(transport.host, transport))
            for copy in copies
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sandbox_id} {self._remote.state} isolation={self.isolation}>"

    # ------------------------------------------------------------------------------------------ code

    async def run_code(
        self,
        code: str,
        language: str | None = None,
        context: Context | str | None = None,
        on_stdout: AsyncHandler[OutputMessage] | None = None,
        on_stderr: AsyncHandler[OutputMessage] | None = None,
        on_result: AsyncHandler[Result] | None = None,
        on_error: AsyncHandler[ExecutionError] | None = None,
        on_input: AsyncHandler[events.InputRequest] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> Execution:
        """Run code in a context and return what came of it (E2B: ``run_code``).

        Without ``context`` the code runs in the default one of ``language`` (Python), whose state is kept from run to
        run.  A context runs one thing at a time, in the order of asking.  ``envs`` hold for this run.
        ``timeout`` is in seconds from the moment when the code gets its interpreter; then the code is interrupted,
        and ``Execution.status`` is ``timed_out``.  An error of the code is ``Execution.error``, never raised.

        Callbacks are called here, while this call waits, in the order of the events; if one raises, the code is stopped and
        the exception passed on.  ``on_input`` answers ``input()`` by returning text; without it ``input()``
        raises at once in the sandbox.

        Raises :class:`InvalidRequest` (text that cannot be encoded; ``language`` and ``context`` together),
        :class:`Unsupported` (language), :class:`NotFound` (context), :class:`LimitExceeded` (size, queue).
        """
        await self._prepare(language, context)
        request = _request(code, envs, timeout, allow_input=on_input is not None)
        handlers = Handlers(on_stdout, on_stderr, on_result, on_error, on_input)
        if not handlers:
            return await self._bridge.run(self._remote, _id_of(context), request, language)
        inbox, running = await self._start(_id_of(context), request, language)
        stream = self._follow(inbox, running, handlers)
        try:
            async for event in stream:
                call = handlers.for_event(event)
                if call is not None:
                    await self._bridge.invoke(*call)
        finally:
            await stream.aclose()
        return running.execution

    async def stream_code(
        self,
        code: str,
        language: str | None = None,
        context: Context | str | None = None,
        on_input: AsyncHandler[events.InputRequest] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> AsyncIterator[events.Event]:
        """Run code and iterate over its events (:mod:`cellfork.model.events`), the terminal one last.

        Arguments and errors are those of :meth:`run_code`.  Leaving the iteration early stops the code.
        """
        await self._prepare(language, context)
        request = _request(code, envs, timeout, allow_input=on_input is not None)
        handlers = Handlers(None, None, None, None, on_input)
        inbox, running = await self._start(_id_of(context), request, language)
        async for event in self._follow(inbox, running, handlers):
            yield event

    async def _prepare(self, language: str | None, context: Context | str | None) -> None:
        """See, at the first time, that a language is there: what is missing is an error of the call, not of the code."""
        if language is None or context is not None or language in self._spoken:
            return
        await self._bridge.call(self._remote.contexts.prepare, language)
        self._spoken.add(language)

    async def _start(
        self, context: str | None, request: ExecuteRequest, language: str | None
    ) -> "tuple[AsyncInbox[events.Event], RunningExecution]":
        inbox: AsyncInbox[events.Event] = self._bridge.inbox()
        start = partial(self._remote.start, context, request, language=language, on_event=inbox.put)
        return inbox, await self._bridge.call(start, undo=self._bridge.calls.interrupt_running)

    async def _follow(
        self, inbox: AsyncInbox[events.Event], running: "RunningExecution", handlers: Handlers
    ) -> AsyncGenerator[events.Event, None]:
        ended = False
        try:
            while not ended:
                for event in await inbox.take():
                    ended = isinstance(event, events.Terminal)
                    yield event
                    if isinstance(event, events.InputRequest) and handlers.on_input is not None:
                        answer = await self._bridge.invoke(handlers.on_input, event)
                        await self._bridge.call(self._bridge.calls.answer, running, answer)
        finally:
            if not ended:
                self._bridge.tell(running.interrupt)

    async def interrupt(self, context: Context | str | None = None) -> bool:
        """Stop what runs in a context (the default one of Python): interrupt, then terminate, then kill.

        Returns when it has ended; ``False`` where nothing ran.
        """
        return await self._bridge.call(self._bridge.calls.interrupt, self._remote, _id_of(context))  # type: ignore[no-any-return]

    # -------------------------------------------------------------------------------------- contexts

    async def create_code_context(
        self, cwd: str | None = None, language: str | None = None, envs: Mapping[str, str] | None = None
    ) -> Context:
        """Make a context with a working directory and variables of its own (E2B: ``create_code_context``).

        Raises :class:`InvalidRequest` where the directory does not exist, :class:`Unsupported` for an unknown language.
        """
        spec = ContextSpec(language=language or "python", cwd=cwd or HOME, envs=dict(envs or {}))
        return remote.context_of(await self._bridge.call(self._remote.contexts.create, spec))

    async def list_code_contexts(self) -> list[Context]:
        """Return the contexts in the order of their creation (E2B: ``list_code_contexts``)."""
        return [remote.context_of(context) for context in await self._bridge.call(self._remote.contexts.list)]

    async def list_languages(self) -> list[str]:
        """Return the languages that code can be written in here: those that have a kernel in the template.

        Every one is a ``language`` of :meth:`run_code`; ``cellfork languages`` tells how others get installed.
        """
        return await self._bridge.call(self._remote.languages)  # type: ignore[no-any-return]

    async def restart_code_context(self, context: Context | str) -> None:
        """Give a context a new interpreter; its state is lost, its id stays (E2B: ``restart_code_context``).

        What runs or waits in it ends as ``killed``.  Raises :class:`NotFound`.
        """
        await self._bridge.call(self._remote.contexts.restart, _id_of(context))

    async def remove_code_context(self, context: Context | str) -> None:
        """Remove a context and its interpreter (E2B: ``remove_code_context``).

        What runs or waits in it ends as ``killed``.  Raises :class:`NotFound`.
        """
        await self._bridge.call(self._remote.contexts.remove, _id_of(context))

    # ---------------------------------------------------------------------------------- all sandboxes

    @classmethod
    async def list(
        cls, *, url: str | None = None, api_key: str | None = None, transport: Transport | None = None
    ) -> "list[SandboxInfo]":
        """Return what is known of every sandbox that is there, the oldest first (E2B: ``Sandbox.list``, without pages).

        Of a server those of the key's tenant, else those of this process.
        """
        transport = transport or choose(url, api_key)
        return await AsyncBridge(transport.host).call(transport.list)  # type: ignore[no-any-return]

    @classmethod
    async def list_snapshots(
        cls,
        sandbox_id: str | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        transport: Transport | None = None,
    ) -> "builtins.list[SnapshotInfo]":
        """Return every snapshot, or those of one sandbox, the newest first (E2B: ``list_snapshots``, without pages)."""
        transport = transport or choose(url, api_key)
        return await AsyncBridge(transport.host).call(transport.snapshots, sandbox_id)  # type: ignore[no-any-return]

    @classmethod
    async def delete_snapshot(
        cls,
        snapshot_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        transport: Transport | None = None,
    ) -> bool:
        """Delete a snapshot; ``False`` where there is none such (E2B: ``delete_snapshot``)."""
        transport = transport or choose(url, api_key)
        return await AsyncBridge(transport.host).call(transport.delete_snapshot, snapshot_id)  # type: ignore[no-any-return]


class AsyncNotebook:
    """The older E2B spelling: ``sandbox.notebook.exec_cell``."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def exec_cell(self, cell: str, **options: Any) -> Execution:
        """Run code as :meth:`AsyncSandbox.run_code` does, with the same options (E2B before 1.0)."""
        return await self._sandbox.run_code(cell, **options)


def _request(
    code: str, envs: Mapping[str, str] | None, timeout: float | None, *, allow_input: bool
) -> ExecuteRequest:
    return ExecuteRequest(code=code, envs=envs or {}, timeout=timeout, allow_input=allow_input)


def _id_of(context: Context | str | None) -> str | None:
    if context is None or isinstance(context, str):
        return context
    if isinstance(context, Context):
        return context.id
    raise InvalidRequest(f"a context is an id or what create_code_context returned, not {context!r}")
