"""An execution on a server: its events as they come, folded here."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from cellfork.client.http.wire import Json, Stream
from cellfork.dialects.e2b.extension.codec import read_event
from cellfork.model import events
from cellfork.model.errors import CellforkError, ProtocolViolation
from cellfork.model.execution import Execution

if TYPE_CHECKING:
    from cellfork.client.http.sandbox import HttpSandbox

Listener = Callable[[events.Event], object]
EndHandler = Callable[["HttpExecution"], object]
SILENT = frozenset({"keepalive"})


class HttpExecution:
    """The handle on one execution.  ``execution`` is the fold of the events so far.

    It ends with exactly one terminal event: the server's or, where the connection breaks, ``Lost``.  Closing the connection
    stops the code.
    """

    def __init__(self, sandbox: "HttpSandbox", stream: Stream, id: str, listener: Listener | None) -> None:
        self.id = id
        self.execution = Execution(isolation=sandbox.isolation, id=id)
        self._sandbox = sandbox
        self._stream = stream
        self._listener = listener
        self._handlers: list[EndHandler] = []
        self._interrupted = False
        self._seq = 0

    @classmethod
    async def begin(
        cls, sandbox: "HttpSandbox", stream: Stream, listener: Listener | None
    ) -> "HttpExecution":
        """Wait for the execution's id, then follow its events."""
        lines = stream.lines()
        try:
            first: Json = await anext(lines, {})
            if first.get("type") != "execution" or not isinstance(first.get("id"), str):
                raise ProtocolViolation("the stream of an execution does not begin with its id")
        except BaseException:
            await stream.aclose()
            raise
        running = cls(sandbox, stream, first["id"], listener)
        sandbox.wire.spawn(running._follow(lines))
        return running

    @property
    def ended(self) -> bool:
        """Whether the terminal event is there."""
        return self.execution.terminal is not None

    def on_end(self, handler: EndHandler) -> None:
        """Call ``handler`` with this object when the execution has ended (at once where it has)."""
        if self.ended:
            handler(self)
        else:
            self._handlers.append(handler)

    def interrupt(self) -> None:
        """Stop the code; its end comes as an event.  Idempotent."""
        if not self.ended and not self._interrupted:
            self._interrupted = True
            self._sandbox.tell("executions.interrupt", id=self.id)

    async def answer(self, text: str) -> None:
        """Answer a question; where the execution ended meanwhile, the answer is dropped."""
        if not self.ended:
            await self._sandbox.do("executions.input", id=self.id, text=text)

    async def _follow(self, lines: AsyncIterator[Json]) -> None:
        message = "the server ended the stream before the code ended"
        try:
            async for line in lines:
                if line.get("type") not in SILENT:
                    self._take(read_event(line))
        except CellforkError as error:
            message = f"the connection to the server was lost: {error}"
        finally:
            with contextlib.suppress(Exception):
                await self._stream.aclose()
            if not self.ended:
                self._take(events.Lost(message, seq=self._seq + 1))

    def _take(self, event: events.Event) -> None:
        self._seq = event.seq
        self.execution.apply(event)
        if self._listener is not None:
            self._listener(event)
        if self.ended:
            handlers, self._handlers = self._handlers, []
            for handler in handlers:
                handler(self)
