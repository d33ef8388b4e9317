"""WebSockets between a client and a program in a sandbox: the server ends both, and passes messages on.

The client's side is ASGI, the program's side is spoken here.  Messages are bounded; pings are answered by each side for itself.
Source: RFC 6455.
"""

import asyncio
from contextlib import suppress

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from cellfork.dialects.asgi import Message, Receive, Scope, Send
from cellfork.dialects.heads import BadField, Field, end_to_end, target_of
from cellfork.engine.ports import Stream

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of a message, in either direction."""
HANDSHAKE_SECONDS = 30.0
FAREWELL_SECONDS = 5.0
"""How long a program may take to answer that the connection ends."""

BAD_GATEWAY = 1014
_HANDSHAKE = frozenset({
    b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
    b"sec-websocket-accept", b"content-length",
})  # fmt: skip

_OWN = ("Upgrade", "Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol")


class NoHandshake(Exception):
    """The program does not speak WebSocket."""


async def relay(receive: Receive, send: Send, stream: Stream, scope: Scope, head: list[Field]) -> None:
    """Pass messages on until one side ends the connection.

    Raises :class:`NoHandshake` and ``OSError`` before the client was answered.
    """
    program = _Program(stream)
    await receive()  # websocket.connect
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            answer = await program.shake_hands(scope, head)
    except TimeoutError as error:
        raise NoHandshake("no answer to the handshake") from error
    fields = _answer_fields(answer)
    if answer.status_code != 101:
        await _refuse(send, scope, answer, fields)
        return
    await send({"type": "websocket.accept", "subprotocol": program.subprotocol, "headers": fields})
    await _run(program, receive, send)


async def _run(program: "_Program", receive: Receive, send: Send) -> None:
    """Run both directions until one ends, then end the other."""
    to_program = asyncio.create_task(_to_program(program, receive))
    to_client = asyncio.create_task(_to_client(program, send))
    done, _running = await asyncio.wait({to_program, to_client}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if to_program in done and to_client not in done:
            with suppress(TimeoutError):  # the client has left: let the program hear why
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await program.closed()
    finally:
        for task in (to_program, to_client):
            task.cancel()
        await asyncio.gather(to_program, to_client, return_exceptions=True)


async def _to_program(program: "_Program", receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            await program.leave(message.get("code") or 1005, message.get("reason") or "")
            return
        text = message.get("text")
        await program.say(text if text is not None else message["bytes"])


async def _to_client(program: "_Program", send: Send) -> None:
    try:
        while (message := await program.hear()) is not None:
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except (OSError, WebSocketException, UnicodeDecodeError):
        await send({"type": "websocket.close", "code": BAD_GATEWAY, "reason": "the program broke off"})
    else:
        code, reason = program.farewell
        await send({"type": "websocket.close", "code": code, "reason": reason})
    finally:
        program.over.set()


async def _refuse(send: Send, scope: Scope, answer: Response, fields: list[Field]) -> None:
    """Let the client see the answer with which a program refused, where the server can show one."""
    if not 200 <= answer.status_code <= 599:
        raise NoHandshake(f"status {answer.status_code}")
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    start: Message = {"type": "websocket.http.response.start", "status": answer.status_code}
    await send({**start, "headers": fields})
    await send({"type": "websocket.http.response.body", "body": bytes(answer.body or b"")})


def _answer_fields(answer: Response) -> list[Field]:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
    try:
        return [field for field in end_to_end(raw) if field[0] not in _HANDSHAKE]
    except BadField as error:
        raise NoHandshake(str(error)) from error


class _Program:
    """The program's end of the connection."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._writing = asyncio.Lock()
        self._message = bytearray()
        self._heard: list[Frame] = []
        self._kind = Opcode.BINARY
        self.over = asyncio.Event()

    @property
    def subprotocol(self) -> str | None:
        """What both sides agreed on."""
        return self._protocol.subprotocol

    @property
    def farewell(self) -> tuple[int, str]:
        """The code and the reason with which the program ended the connection."""
        close = self._protocol.close_rcvd
        if close is None:
            return BAD_GATEWAY, "the program broke off"
        return (1000 if close.code == 1005 else close.code), close.reason

    async def shake_hands(self, scope: Scope, head: list[Field]) -> Response:
        """Ask the program for a WebSocket and return its answer.  Raises :class:`NoHandshake`."""
        self._protocol = ClientProtocol(
            WebSocketURI(secure=False, host="localhost", port=80, path="/", query=""),
            subprotocols=scope.get("subprotocols") or None,
            max_size=MAX_MESSAGE,
        )
        asked = self._protocol.connect()
        fields = Headers()
        for name, value in head:
            if name not in _HANDSHAKE:
                fields[name.decode("ascii")] = value.decode("latin-1")
        for own in _OWN:
            if own in asked.headers:
                fields[own] = asked.headers[own]
        self._protocol.send_request(Request(target_of(scope).decode("ascii"), fields))
        await self._flush()
        while not (events := await self._listen()):
            pass
        answer, *rest = events
        if not isinstance(answer, Response) or not self._answer_is_right(answer):
            raise NoHandshake("the program answered with something else")
        self._heard += [event for event in rest if isinstance(event, Frame)]
        return answer

    def _answer_is_right(self, answer: Response) -> bool:
        return answer.status_code != 101 or self._protocol.handshake_exc is None

    async def say(self, message: str | bytes) -> None:
        """Send a message."""
        if self._protocol.state is not State.OPEN:
            return
        if isinstance(message, str):
            self._protocol.send_text(message.encode())
        else:
            self._protocol.send_binary(message)
        await self._flush()

    async def leave(self, code: int, reason: str) -> None:
        """End the connection from our side."""
        if self._protocol.state is not State.OPEN:
            return
        if code in {1005, 1006}:  # the client said no code, or nothing at all
            self._protocol.send_close(None if code == 1005 else 1001)
        else:
            self._protocol.send_close(code, reason)
        await self._flush()

    async def closed(self) -> None:
        """Wait until the program has ended its side too."""
        await self.over.wait()

    async def hear(self) -> str | bytes | None:
        """Return the next message, ``None`` where the program ends the connection.  Raises ``OSError``."""
        while True:
            while self._heard:
                frame = self._heard.pop(0)
                if frame.opcode is Opcode.CLOSE:
                    return None
                message = self._assemble(frame)
                if message is not None:
                    return message
            self._heard += [event for event in await self._listen() if isinstance(event, Frame)]

    def _assemble(self, frame: Frame) -> str | bytes | None:
        if frame.opcode in {Opcode.TEXT, Opcode.BINARY}:
            self._kind = frame.opcode
        elif frame.opcode is not Opcode.CONT:
            return None
        self._message += frame.data
        if not frame.fin:
            return None
        whole, self._message = bytes(self._message), bytearray()
        return whole.decode() if self._kind is Opcode.TEXT else whole

    async def _listen(self) -> list[object]:
        """Return what comes next; raises ``OSError`` at the end, and what the library says of broken frames."""
        data = await self._stream.receive()
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        events: list[object] = list(self._protocol.events_received())
        await self._flush()
        if not events and self._protocol.parser_exc is not None:
            raise ConnectionAbortedError(str(self._protocol.parser_exc))
        if not events and not data:
            raise ConnectionResetError("the program closed the connection")
        return events

    async def _flush(self) -> None:
        async with self._writing:
            data = b"".join(self._protocol.data_to_send())
            if data:
                await self._stream.send(data)
