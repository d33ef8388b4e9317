"""``POST /code``: code in, a stream of events out.

A client that goes away leaves its code running, as upstream does; ``DELETE /code`` stops it.
"""

import asyncio

from cellfork.dialects.asgi import Abort, Receive, Send
from cellfork.dialects.opensandbox.execd import frames
from cellfork.dialects.streaming import Follower
from cellfork.engine.contexts import Context
from cellfork.engine.executions import RunningExecution
from cellfork.engine.sandbox import Sandbox
from cellfork.model import events
from cellfork.model.specs import ExecuteRequest

FIRST_SECONDS = 0.05
"""How long code that is silent may run before the response begins, and its client is watched."""


async def stream(sandbox: Sandbox, context: Context, code: str, receive: Receive, send: Send) -> None:
    """Run code and answer with its events.

    Raises what the engine refuses, before anything is sent, and :class:`Abort` where the sandbox ended under the code.
    """
    follower = Follower()
    running = sandbox.start(context, ExecuteRequest(code, timeout=None), on_event=follower.put)
    try:
        await follower.wait(FIRST_SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": frames.STREAM_HEADERS})
        follower.watch(receive)
        await _follow(sandbox, context, running, follower, send)
    finally:
        follower.close()


async def _follow(
    sandbox: Sandbox, context: Context, running: RunningExecution, follower: Follower, send: Send
) -> None:
    clock = asyncio.get_running_loop()
    pieces = [frames.init(context.id)]
    silent_until = clock.time() + frames.PING_SECONDS
    while not follower.gone:
        batch = follower.take(running.since)
        last = batch[-1] if batch and isinstance(batch[-1], events.Terminal) else None
        pieces += _pieces(batch, running)
        if last is not None and _is_torn(last, sandbox):
            await _write(send, pieces)
            raise Abort
        if last is not None:
            end = frames.of_end(last, context.language, running.execution.execution_count)
            await send({"type": "http.response.body", "body": b"".join([*pieces, end])})
            return
        if clock.time() >= silent_until:
            pieces.append(frames.ping())
        if pieces:
            await _write(send, pieces)
            silent_until = clock.time() + frames.PING_SECONDS
        pieces = []
        await follower.wait(silent_until - clock.time())


def _pieces(batch: list[events.Event], running: RunningExecution) -> list[bytes]:
    pieces = []
    for event in batch:
        if isinstance(event, events.Display) and event.is_main_result:
            pieces.append(
                frames.frame(
                    "execution_count", event.timestamp, execution_count=running.execution.execution_count or 0
                )
            )
        pieces.append(frames.of_event(event))
    return [piece for piece in pieces if piece]


def _is_torn(event: events.Terminal, sandbox: Sandbox) -> bool:
    """Tell whether an execution ended because its sandbox did."""
    return not isinstance(event, events.Finished | events.Failed) and sandbox.state == "ended"


async def _write(send: Send, pieces: list[bytes]) -> None:
    await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": True})
