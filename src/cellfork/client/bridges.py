"""From the caller's thread or loop into the host's, and back: the only code in which sync and async differ.

Both bridges have the same methods, so that one client source serves both.  ``call`` runs a function or a
coroutine function in the host (``calls`` holds those that differ from transport to transport); ``run`` is the
short way for code without callbacks (no task, one wake-up in each direction); an ``inbox`` takes what the host puts in, and gives it to the caller in batches.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from inspect import isawaitable, iscoroutine
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from cellfork.client import remote
from cellfork.client.host import Host
from cellfork.model.errors import Conflict, UnavailableError
from cellfork.model.execution import Execution
from cellfork.model.specs import ExecuteRequest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from cellfork.engine.executions import RunningExecution
    from cellfork.engine.sandbox import Sandbox as Remote

R = TypeVar("R")
T = TypeVar("T")
Outcome = tuple[Any, BaseException | None]
Undo = Callable[[Any], object]

AsyncHandler = Callable[[T], Awaitable[Any] | Any]
"""A callback of the async client: a function or a coroutine function of one value."""
Handler = Callable[[T], Any]
"""A callback of the sync client: a function of one value."""


# ------------------------------------------------------------------------------------- in the host's loop


class _Call:
    """A call on its way: begins in the host, puts its outcome into an inbox, can be given up.

    ``undo`` takes back a result that came when nobody waited for it any more.
    """

    __slots__ = ("_function", "_given_up", "_put", "_result", "_task", "_undo")

    def __init__(
        self,
        put: Callable[[Outcome], None],
        function: Callable[[], Any],
        undo: Undo | None = None,
    ) -> None:
        self._put = put
        self._function = function
        self._undo = undo
        self._task: asyncio.Future[Any] | None = None
        self._result: Any = None
        self._given_up = False

    def begin(self) -> None:
        try:
            result = self._function()
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, in the other thread
            self._put((None, error))
            return
        if iscoroutine(result):
            import asyncio

            self._task = asyncio.get_running_loop().create_task(result)
            self._task.add_done_callback(self._finish)
        else:
            self._succeed(result)

    def cancel(self) -> None:
        self._given_up = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
        elif self._result is not None:
            self._take_back()

    def _finish(self, task: "asyncio.Future[Any]") -> None:
        if task.cancelled():
            self._put((None, _cut_off()))
        elif (error := task.exception()) is not None:
            self._put((None, error))
        else:
            self._succeed(task.result())

    def _succeed(self, result: Any) -> None:
        self._result = result
        if self._given_up:
            self._take_back()
        self._put((result, None))

    def _take_back(self) -> None:
        if self._undo is not None:
            self._undo(self._result)


class _Run:
    """Code on its way, without callbacks: begins in the host, puts the ended execution into an inbox."""

    __slots__ = ("_arguments", "_given_up", "_put", "_running", "_starting")

    def __init__(self, put: Callable[[Outcome], None], *arguments: Any) -> None:
        self._put = put
        self._arguments = arguments
        self._running: RunningExecution | None = None
        self._starting: asyncio.Task[RunningExecution] | None = None
        self._given_up = False

    def begin(self) -> None:
        remote, context, request, language = self._arguments
        try:
            running = remote.start(context, request, language=language)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, in the other thread
            self._put((None, error))
            return
        if iscoroutine(running):  # a remote one
            import asyncio

            self._starting = asyncio.get_running_loop().create_task(running)
            self._starting.add_done_callback(self._begun)
        else:
            self._follow(running)

    def cancel(self) -> None:
        self._given_up = True
        if self._running is not None:
            self._running.interrupt()

    def _begun(self, starting: "asyncio.Task[RunningExecution]") -> None:
        error = _cut_off() if starting.cancelled() else starting.exception()
        if error is not None:
            self._put((None, error))
        else:
            self._follow(starting.result())

    def _follow(self, running: "RunningExecution") -> None:
        self._running = running
        running.on_end(self._ended)
        if self._given_up:
            running.interrupt()

    def _ended(self, running: "RunningExecution") -> None:
        self._put((running.execution, None))


def _cut_off() -> UnavailableError:
    """Return the error of a call that was cancelled with everything else; who gave one up does not look at it."""
    return UnavailableError("the client was closed before the call had ended")


# ------------------------------------------------------------------------------------ in the caller's hands


class Inbox(Generic[T]):
    """Takes items from the host's thread, and gives them to the caller's in batches."""

    __slots__ = ("_items", "_signal")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._signal = Lock()
        self._signal.acquire()

    def put(self, item: T) -> None:
        """Add an item (in the host's thread, and only there)."""
        self._items.append(item)
        if self._signal.locked():
            self._signal.release()

    def take(self) -> list[T]:
        """Return the items that are there; wait while there is none."""
        while not self._items:
            self._signal.acquire()
        return _drain(self._items)


class AsyncInbox(Generic[T]):
    """Takes items from the host's thread, and gives them to a task of the caller's loop in batches."""

    __slots__ = ("_items", "_loop", "_waiter", "_waking")

    def __init__(self) -> None:
        import asyncio

        self._items: deque[T] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._waking = False

    def put(self, item: T) -> None:
        """Add an item (in the host's thread, and only there)."""
        self._items.append(item)
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # the caller's loop has ended: nobody takes anything any more

    async def take(self) -> list[T]:
        """Return the items that are there; wait while there is none."""
        while not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        return _drain(self._items)

    def _wake(self) -> None:
        self._waking = False
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Work:
    """Work of a caller without a loop: it is done when somebody waits for it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function

    def join(self) -> None:
        """Do the work, unless it was done or cancelled."""
        function, self._function = self._function, None
        if function is not None:
            function()

    def cancel(self) -> None:
        """Do nothing any more."""
        self._function = None


class AsyncWork:
    """Work of a caller with a loop: a task."""

    def __init__(self, work: "Coroutine[Any, Any, Any]") -> None:
        import asyncio

        self._task = asyncio.get_running_loop().create_task(work)

    async def join(self) -> None:
        """Wait for the end of the work; pass on what it raised."""
        import asyncio

        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    def cancel(self) -> None:
        """Do nothing any more."""
        self._task.cancel()


class Iterating:
    """``for item in handle`` means ``for item in handle.events()``."""

    def events(self) -> Iterator[Any]:
        """Iterate over what happens."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return self.events()


class AsyncIterating:
    """``async for item in handle`` means ``async for item in handle.events()``."""

    def events(self) -> AsyncIterator[Any]:
        """Iterate over what happens."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Any]:
        return self.events()


class Bridge:
    """For callers in a thread of their own: calls block."""

    def __init__(self, host: Host, transport: Any = None) -> None:
        self._host = host
        self.transport = transport
        self.calls: Any = remote if transport is None else transport.calls

    def call(
        self, function: Callable[..., Any], /, *args: Any, undo: Undo | None = None, **kwargs: Any
    ) -> Any:
        """Run a function or a coroutine function in the host; return its result.

        ``KeyboardInterrupt`` while waiting gives the call up, and is raised; ``undo`` gets a result that came all the same.
        """
        inbox: Inbox[Outcome] = Inbox()
        return self._finish(_Call(inbox.put, lambda: function(*args, **kwargs), undo), inbox)

    def run(
        self, remote: "Remote", context: str | None, request: ExecuteRequest, language: str | None
    ) -> Execution:
        """Run code to its end.  ``KeyboardInterrupt`` while waiting interrupts the code, and is raised."""
        inbox: Inbox[Outcome] = Inbox()
        return cast("Execution", self._finish(_Run(inbox.put, remote, context, request, language), inbox))

    def tell(self, function: Callable[[], object]) -> None:
        """Run a function in the host, without waiting for it; nothing happens after the host's end."""
        with suppress(Conflict):
            self._host.soon(function)

    def inbox(self) -> Inbox[Any]:
        """Return a new inbox."""
        return Inbox()

    def spawn(self, function: Callable[[], Any]) -> Work:
        """Return work that is done when somebody waits for it."""
        return Work(function)

    def invoke(self, handler: Handler[T], value: T) -> Any:
        """Call a callback."""
        return handler(value)

    def _finish(self, call: _Call | _Run, inbox: Inbox[Outcome]) -> Any:
        self._host.soon(call.begin)
        try:
            result, error = inbox.take()[0]
        except BaseException:
            self.tell(call.cancel)
            raise
        if error is not None:
            raise error
        return result


class AsyncBridge:
    """For callers in an asyncio loop of their own: calls are awaited."""

    def __init__(self, host: Host, transport: Any = None) -> None:
        self._host = host
        self.transport = transport
        self.calls: Any = remote if transport is None else transport.calls

    async def call(
        self, function: Callable[..., Any], /, *args: Any, undo: Undo | None = None, **kwargs: Any
    ) -> Any:
        """Run a function or a coroutine function in the host; return its result.

        Cancelling the wait gives the call up; ``undo`` gets a result that came all the same.
        """
        inbox: AsyncInbox[Outcome] = AsyncInbox()
        return await self._finish(_Call(inbox.put, lambda: function(*args, **kwargs), undo), inbox)

    async def run(
        self, remote: "Remote", context: str | None, request: ExecuteRequest, language: str | None
    ) -> Execution:
        """Run code to its end.  Cancelling the wait interrupts the code."""
        inbox: AsyncInbox[Outcome] = AsyncInbox()
        run = _Run(inbox.put, remote, context, request, language)
        return cast("Execution", await self._finish(run, inbox))

    def tell(self, function: Callable[[], object]) -> None:
        """Run a function in the host, without waiting for it; nothing happens after the host's end."""
        with suppress(Conflict):
            self._host.soon(function)

    def inbox(self) -> AsyncInbox[Any]:
        """Return a new inbox."""
        return AsyncInbox()

    def spawn(self, function: "Callable[[], Coroutine[Any, Any, Any]]") -> AsyncWork:
        """Start a task in the caller's loop."""
        return AsyncWork(function())

    async def invoke(self, handler: AsyncHandler[T], value: T) -> Any:
        """Call a callback; await what it returns where that can be awaited."""
        result = handler(value)
        return await result if isawaitable(result) else result

    async def _finish(self, call: _Call | _Run, inbox: AsyncInbox[Outcome]) -> Any:
        self._host.soon(call.begin)
        try:
            result, error = (await inbox.take())[0]
        except BaseException:
            self.tell(call.cancel)
            raise
        if error is not None:
            raise error
        return result


def _drain(items: deque[T]) -> list[T]:
    batch = []
    while items:
        batch.append(items.popleft())
    return batch
