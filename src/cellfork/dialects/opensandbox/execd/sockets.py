"""The WebSocket of a terminal: bytes in both directions, a word of JSON for everything else.

Binary messages begin with a byte that tells what they are.  One client has the terminal at a time; another one is refused, or
takes it over where it asks for that.  Source: ``components/execd/PTY.md`` of OpenSandbox.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

import msgspec

from cellfork.dialects import asgi
from cellfork.dialects.asgi import Receive, Scope, Send
from cellfork.dialects.opensandbox.execd import schema
from cellfork.dialects.opensandbox.execd.calls import Call
from cellfork.dialects.opensandbox.execd.errors import Refused
from cellfork.dialects.opensandbox.execd.following import exec_code
from cellfork.dialects.opensandbox.execd.terminals import SIGNALS, Mode, Replay, Terminal
from cellfork.engine.execs import Exec
from cellfork.model.errors import CellforkError
from cellfork.model.specs import PtySize

STDIN, STDOUT, STDERR, REPLAY = b"\x00", b"\x01", b"\x02", b"\x03"
ALREADY_CONNECTED: Final = "ALREADY_CONNECTED"
START_FAILED: Final = "START_FAILED"
SESSION_GONE: Final = "SESSION_GONE"
STDIN_FAILED: Final = "STDIN_WRITE_FAILED"
INVALID_FRAME: Final = "INVALID_FRAME"
TAKEN_OVER: Final = "TAKEN_OVER"
TAKEN_OVER_CODE: Final = 4001
GONE_CODE: Final = 1001
LARGEST_SIZE: Final = 2**16 - 1
MOST_TYPED: Final = 256
"""Messages of input that wait for a shell."""


async def serve(call: Call, terminal: Terminal) -> None:
    """Serve one client until it leaves, the shell ends, or somebody else takes the terminal over.

    Raises :class:`Refused` before the connection is accepted.
    """
    await call.receive()  # websocket.connect
    if terminal.evict is not None and call.value("takeover") != "1":
        problem = f"another client is already connected to pty session {terminal.id}"
        raise Refused(409, ALREADY_CONNECTED, problem)
    since = int(text) if (text := call.value("since")[:18]).isascii() and text.isdecimal() else 0
    mode: Mode = "pipe" if call.value("pty") == "0" else "pty"
    await _Connection(terminal, call.receive, call.send).run(mode, since)


async def refuse(scope: Scope, send: Send, status: int, body: dict[str, str]) -> None:
    """Answer a handshake with an error, where the server can show one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": msgspec.json.encode(body)})


class _Connection:
    """One client of a terminal."""

    def __init__(self, terminal: Terminal, receive: Receive, send: Send) -> None:
        self._terminal = terminal
        self._receive = receive
        self._send = send
        self._evicted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue(MOST_TYPED)

    async def run(self, mode: Mode, since: int) -> None:
        """Serve the client to its end."""
        terminal = self._terminal
        terminal.evict = terminal.evict or self._evict
        try:
            await self._send({"type": "websocket.accept"})
            if terminal.evict != self._evict:  # only now: a handshake that fails takes nothing over
                if terminal.evict is not None:
                    terminal.evict()
                terminal.evict = self._evict
            await self._start(mode, since)
        finally:
            if terminal.evict == self._evict:
                terminal.evict = None

    async def _start(self, mode: Mode, since: int) -> None:
        before = self._terminal.exec
        replay = self._terminal.replay(since)
        try:
            exec_ = await self._terminal.start(mode)
        except CellforkError as error:
            await self._say(type="error", code=START_FAILED, error=str(error))
            await self._close(GONE_CODE, START_FAILED)
        else:
            # A shell that was started for this client has said nothing that somebody else could have missed.
            await self._serve(exec_, replay if exec_ is before else replace(replay, sequence=0))

    async def _serve(self, exec_: Exec, replay: Replay) -> None:
        tasks = [
            asyncio.ensure_future(self._write(exec_, replay)),
            asyncio.ensure_future(self._listen(exec_)),
            asyncio.ensure_future(self._feed(exec_)),
        ]
        try:
            await asyncio.wait([*tasks, self._evicted], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._evicted.done():
            removed = self._terminal.closed
            await self._close(GONE_CODE if removed else TAKEN_OVER_CODE, "" if removed else TAKEN_OVER)

    def _evict(self) -> None:
        if not self._evicted.done():
            self._evicted.set_result(None)

    # --------------------------------------------------------------------------------- to the client

    async def _write(self, exec_: Exec, replay: Replay) -> None:
        """Send what was written before this client came, then what comes, then the end."""
        terminal, sequence = self._terminal, replay.sequence
        if replay.data:
            await self._send_bytes(REPLAY + replay.offset.to_bytes(8, "big") + replay.data)
        await self._say(type="connected", session_id=terminal.id, mode=terminal.mode)
        while batch := await exec_.log.batch(sequence):
            sequence = batch[-1].sequence
            for item in batch:
                if item.data:
                    await self._send_bytes((STDERR if item.type == "stderr" else STDOUT) + item.data)
        if exec_.exit_code is None:
            await self._say(type="error", code=SESSION_GONE, error=str(exec_.gone()))
            await self._close(GONE_CODE, SESSION_GONE)
            return
        await self._say(type="exit", exit_code=exec_code(exec_))
        await self._close(1000, "process exited")

    async def _send_bytes(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": data})

    async def _say(self, **fields: Any) -> None:
        await self._send({"type": "websocket.send", "text": msgspec.json.encode(fields).decode()})

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(Exception):  # it may have left
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    # ------------------------------------------------------------------------------- from the client

    async def _listen(self, exec_: Exec) -> None:
        """Take what the client says until it leaves."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            data, text = message.get("bytes"), message.get("text")
            if data and data[:1] == STDIN:
                await self._type(data[1:])
            elif text is not None:
                await self._take(exec_, text)

    async def _take(self, exec_: Exec, text: str) -> None:
        try:
            message = asgi.read_json(text, schema.PtyMessage)
        except msgspec.MsgspecError as error:
            await self._say(type="error", code=INVALID_FRAME, error=str(error))
            return
        match message.type:
            case "stdin":
                await self._type(message.data.encode("utf-8", "replace"))
            case "signal" if message.signal in SIGNALS:
                await self._try(exec_.send_signal(SIGNALS[message.signal]), INVALID_FRAME)
            case "resize" if _is_size(message.rows) and _is_size(message.cols):
                await self._try(exec_.resize(PtySize(message.rows, message.cols)), INVALID_FRAME)
            case "ping":
                await self._say(type="pong")
            case _:
                problem = f"the frame {message.type[:40]!r} is unknown or malformed"
                await self._say(type="error", code=INVALID_FRAME, error=problem)

    async def _type(self, data: bytes) -> None:
        """Take what is typed.  A shell that does not read must not keep signals waiting, so it goes by a queue."""
        try:
            self._typed.put_nowait(data)
        except asyncio.QueueFull:
            await self._say(type="error", code=STDIN_FAILED, error="the shell does not read its input")

    async def _feed(self, exec_: Exec) -> None:
        while True:
            await self._try(exec_.send_stdin(await self._typed.get()), STDIN_FAILED)

    async def _try(self, work: Awaitable[None], code: str) -> None:
        try:
            await work
        except CellforkError as error:
            await self._say(type="error", code=code, error=str(error))


def _is_size(number: int) -> bool:
    return 0 < number <= LARGEST_SIZE
