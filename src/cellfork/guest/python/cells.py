"""Running cells: plainly, or inside an asyncio loop once the code has to do with one.

A notebook's kernel always runs inside a loop.  Here a loop exists from the first cell on that mentions
``async`` or ``await``; then cells run in it, and tasks go on between cells.
"""

import contextvars
import socket
import sys
import threading
import traceback
from typing import Any


class Cells:
    """Runs cells in a shell, all in one ``contextvars`` context, so that a cell's settings outlive it."""

    def __init__(self, shell: Any, connection: socket.socket) -> None:
        self._shell = shell
        self._connection = connection
        self._context = contextvars.copy_context()
        self._loop: Any = None

    def run(self, code: str, *, silent: bool) -> Any:
        """Run ``code`` and return IPython's ``ExecutionResult``.  Raises only what escapes from IPython."""
        loop = self._loop_for(code)
        if loop is None:
            return self._context.run(self._shell.run_cell, code, store_history=not silent, silent=silent)
        return self._run_in(loop, code, silent)

    def wait(self) -> None:
        """Return when init has sent something; let the loop's tasks go on until then.

        Returns at once where no loop has anything to do: the caller's blocking read is cheaper.
        """
        while (loop := self._live_loop()) is not None and not _is_quiet(loop):
            if self._run_until_readable(loop):
                return

    def _loop_for(self, code: str) -> Any:
        loop = self._live_loop()
        if loop is None and ("await" in code or "async" in code):
            import asyncio

            from IPython.core.async_helpers import get_asyncio_loop

            loop = self._loop = get_asyncio_loop()
            asyncio.set_event_loop(loop)
        return loop

    def _live_loop(self) -> Any:
        loop = self._loop
        return None if loop is None or loop.is_closed() else loop

    def _run_in(self, loop: Any, code: str, silent: bool) -> Any:
        task = loop.create_task(self._cell(code, silent), context=self._context)
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            if task.done():
                raise
            task.cancel()  # the signal came while the loop was waiting: end the cell where it waits
            return loop.run_until_complete(task)

    async def _cell(self, code: str, silent: bool) -> Any:
        """Run a cell as ipykernel does: in this very task where it awaits, as a plain call otherwise."""
        from IPython.core.async_helpers import _asyncio_runner

        shell = self._shell
        failure: Any = None
        try:
            transformed = shell.transform_cell(code)
        except Exception:  # noqa: BLE001 - the user's own transformers; shown as the cell's error
            transformed, failure = code, sys.exc_info()
        prepared = {"transformed_cell": transformed, "preprocessing_exc_tuple": failure}
        if shell.loop_runner is not _asyncio_runner or not shell.should_run_async(code, **prepared):
            return shell.run_cell(code, store_history=not silent, silent=silent)
        result = None
        try:
            result = await shell.run_cell_async(code, store_history=not silent, silent=silent, **prepared)
        finally:
            shell.events.trigger("post_execute")
            if not silent:
                shell.events.trigger("post_run_cell", result)
        return result

    def _run_until_readable(self, loop: Any) -> bool:
        readable = False

        def stop() -> None:
            nonlocal readable
            readable = True
            loop.stop()

        fd = self._connection.fileno()
        try:
            loop.add_reader(fd, stop)
            loop.run_forever()
        except BaseException:  # noqa: BLE001 - a task's SystemExit or KeyboardInterrupt must not end the kernel
            traceback.print_exc()
        finally:
            if not loop.is_closed():
                loop.remove_reader(fd)
        return readable


def _is_quiet(loop: Any) -> bool:
    """Tell whether nothing can happen in ``loop`` by itself: no callback, no timer, no descriptor, no thread."""
    try:
        descriptors = len(loop._selector.get_map())
        return not loop._ready and not loop._scheduled and descriptors <= 1 and threading.active_count() == 1
    except AttributeError:  # not asyncio's own loop
        return False
