"""One thread with one event loop, in which everything of the engine lives; callers live in theirs."""

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from cellfork.model.errors import Conflict, StartupFailed

if TYPE_CHECKING:
    import asyncio

Call = Callable[[], object]
CLOSE_SECONDS = 10.0
"""How long the end of a program waits for everything to be given back."""
PARTING_SECONDS = 0.5
"""How long calls that are on their way at the end have to end by themselves, with what they have to say."""


class Host:
    """A daemon thread that runs an event loop.  It starts with the first call and ends with :meth:`close`.

    :meth:`soon` hands over a call from any thread: one list append and, where the loop sleeps, one byte
    through its self-pipe.  A call that was handed over begins, and ends before the loop does: no caller waits for ever.
    """

    def __init__(self, name: str = "cellfork-host") -> None:
        self._name = name
        self._lock = threading.RLock()  # a finalizer may hand over a call while its thread does
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over: str = ""

    def soon(self, call: Call) -> None:
        """Make a call in the host's loop.  Raises :class:`Conflict` after the end, and in a forked child."""
        with self._lock:
            if self._over:
                raise Conflict(self._over)
            (self._loop or self._start()).call_soon_threadsafe(call)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run ``last()`` in the loop, end the calls that are on their way, then the loop and the thread.  Idempotent."""
        with self._lock:
            if self._over:
                return
            self._over = "cellfork's host thread has ended: the program is ending"
            loop, thread = self._loop, self._thread
            if loop is None or thread is None or not thread.is_alive():
                return
            loop.call_soon_threadsafe(lambda: _end(loop, last))
        thread.join(CLOSE_SECONDS)

    def abandon(self) -> None:
        """Forget the thread: this is a forked child, which has only a copy of its memory."""
        self._over = "this sandbox belongs to the parent process; create one in the child"
        self._lock = threading.RLock()

    def _start(self) -> "asyncio.AbstractEventLoop":
        """Start the loop, and return it; to be called once, with the lock."""
        import asyncio

        try:
            loop = asyncio.new_event_loop()
        except OSError as error:
            raise StartupFailed(f"cellfork's host has no event loop: {error}") from error
        thread = threading.Thread(target=_serve, args=(loop,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            loop.close()
            raise StartupFailed(f"cellfork's host has no thread: {error}") from error
        self._loop, self._thread = loop, thread
        return loop


def _serve(loop: "asyncio.AbstractEventLoop") -> None:
    import asyncio

    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _end(loop: "asyncio.AbstractEventLoop", last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    async def run() -> None:
        try:
            if last is not None:
                await last()
        finally:
            await _end_calls()
            loop.stop()

    task = loop.create_task(run())
    task.add_done_callback(lambda done: done.exception())


async def _end_calls() -> None:
    """Let every task end, cancel those that do not: somebody in another thread may wait for one."""
    import asyncio

    own = asyncio.current_task()
    if others := asyncio.all_tasks() - {own}:
        await asyncio.wait(others, timeout=PARTING_SECONDS)
    if others := asyncio.all_tasks() - {own}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=PARTING_SECONDS)
