"""The stream of a command that runs: its lines as they come, then how it ended."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Mapping

from cellfork.dialects.asgi import Abort, Receive, Send, disconnected
from cellfork.dialects.opensandbox.execd import frames
from cellfork.dialects.opensandbox.execd.lines import Lines
from cellfork.engine.execs import Exec
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.values import ExecOutput

_GO_SIGNALS: Mapping[int, str] = {
    signal.SIGKILL: "killed",
    signal.SIGTERM: "terminated",
    signal.SIGINT: "interrupt",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGHUP: "hangup",
    signal.SIGPIPE: "broken pipe",
}


async def follow(sandbox: Sandbox, exec_: Exec, receive: Receive, send: Send) -> None:
    """Answer with the lines of a command and how it ended.

    Raises :class:`Abort` where the sandbox ended under it.
    """
    start = asyncio.get_running_loop().time()
    await send({"type": "http.response.start", "status": 200, "headers": frames.STREAM_HEADERS})
    await _write(send, frames.init(exec_.id))
    gone = asyncio.ensure_future(_gone(receive))
    try:
        async for piece in _pieces(exec_, gone):
            await _write(send, piece)
        if gone.done():
            return
    finally:
        gone.cancel()
    if exec_.exit_code is None and sandbox.state == "ended":
        raise Abort
    seconds = asyncio.get_running_loop().time() - start
    await _finish(send, ending(exec_, seconds))


def ending(exec_: Exec, seconds: float) -> bytes:
    """Return the last event of a command: it is complete, or it failed, never both."""
    code = exec_code(exec_)
    if code == 0:
        return frames.complete(seconds)
    return frames.error(frames.COMMAND_FAILED, str(code), [how_it_ended(exec_)])


def exec_code(exec_: Exec) -> int:
    """Return the exit code as Go counts it: −1 for a signal."""
    return -1 if exec_.exit_code is None or exec_.signal is not None or exec_.timed_out else exec_.exit_code


def how_it_ended(exec_: Exec) -> str:
    """Return how a command ended, in Go's words."""
    if exec_.signal is None and exec_.exit_code is not None and not exec_.timed_out:
        return f"exit status {exec_.exit_code}"
    number = exec_.signal or signal.SIGKILL
    try:
        return f"signal: {_GO_SIGNALS.get(number) or signal.Signals(number).name}"
    except ValueError:
        return f"signal: {number}"


async def _pieces(exec_: Exec, gone: "asyncio.Future[None]") -> AsyncIterator[bytes]:
    """Yield the lines of a command as they come, and pings, until it ends or the client is gone."""
    cutters = {"stdout": Lines(frames.LONGEST_LINE), "stderr": Lines(frames.LONGEST_LINE)}
    sequence = 0
    while True:
        coming = asyncio.ensure_future(exec_.log.batch(sequence))
        try:
            await asyncio.wait(  # type: ignore[type-var]  # a future is a future
                {coming, gone}, timeout=frames.PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if gone.done():
                return
            if not coming.done():
                yield frames.ping()
                continue
            batch = coming.result()
        finally:
            coming.cancel()
        if not batch:
            break
        sequence = batch[-1].sequence
        yield b"".join(_lines(item, cutters) for item in batch)
    for stream, cutter in cutters.items():
        for line in cutter.end():
            yield frames.frame(stream, text=line)


def _lines(item: ExecOutput, cutters: Mapping[str, Lines]) -> bytes:
    stream = "stderr" if item.type == "stderr" else "stdout"
    return b"".join(
        frames.frame(stream, item.timestamp, text=line) for line in cutters[stream].take(item.output)
    )


async def _gone(receive: Receive) -> None:
    with contextlib.suppress(Exception):
        await disconnected(receive)


async def _write(send: Send, piece: bytes) -> None:
    if piece:
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _finish(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece})
