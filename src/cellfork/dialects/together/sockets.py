"""The WebSocket of an exec: what is typed goes in, what is written comes out."""

import asyncio
import contextlib

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from cellfork.dialects.asgi import name_route, read_json
from cellfork.dialects.together.management import bearer
from cellfork.dialects.together.registry import Sandboxes, scope_of
from cellfork.dialects.together.schema import InputMessage, ResizeMessage
from cellfork.dialects.together.translate import Json
from cellfork.engine.execs import Exec
from cellfork.model.errors import CellforkError, NotFound
from cellfork.model.specs import PtySize

LONGEST_MESSAGE = 1024 * 1024
"""Bytes of one message of a client."""
REFUSED = 4401
"""Code of a close: the token is missing, wrong, or may only read what needs more."""
UNKNOWN = 4404
"""Code of a close: there is no such sandbox or exec."""


class ExecSocket:
    """Serves ``/ws/v1/execs/{id}``.  A token that may only read sees the output and cannot type."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    async def serve(self, socket: WebSocket) -> None:
        """Serve one connection until the client leaves; it stays open after the command's end."""
        name_route(socket.scope, "together", "/ws/v1/execs/{id}")
        try:
            sandbox = self._sandboxes.living(socket.path_params["id"])
            scope = scope_of(sandbox, bearer(socket.headers) or socket.query_params.get("token"))
            if scope is None:
                await socket.close(REFUSED, "the agent's token is missing or wrong")
                return
            exec_ = sandbox.execs.get(socket.path_params["exec"])
        except NotFound as error:
            await socket.close(UNKNOWN, str(error)[:120])
            return
        await socket.accept()
        writing = asyncio.ensure_future(_write(socket, exec_))
        try:
            await _read(socket, exec_, may_type=scope == "admin")
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await writing


async def _write(socket: WebSocket, exec_: Exec) -> None:
    async for item in exec_.stream_output():
        if item.data:
            stream = "stderr" if item.type == "stderr" else "stdout"
            await _send(socket, "output", {"output": item.output, "stream": stream})


async def _read(socket: WebSocket, exec_: Exec, *, may_type: bool) -> None:
    while True:
        try:
            text = await socket.receive_text()
        except (WebSocketDisconnect, KeyError):  # it left, or sent bytes, which this wire has not
            return
        try:
            await _take(text, exec_, may_type=may_type)
        except (msgspec.MsgspecError, CellforkError) as error:
            await _send(socket, "error", {"error": str(error)})


async def _take(text: str, exec_: Exec, *, may_type: bool) -> None:
    if len(text) > LONGEST_MESSAGE:
        raise msgspec.ValidationError("the message is too long")
    message = read_json(text, InputMessage | ResizeMessage)
    if not may_type:
        raise msgspec.ValidationError("this token may only read")
    if isinstance(message, InputMessage):
        await exec_.send_stdin(message.data.input.encode())
    else:
        await exec_.resize(PtySize(rows=message.data.rows, cols=message.data.cols))


async def _send(socket: WebSocket, kind: str, data: Json) -> None:
    await socket.send_text(msgspec.json.encode({"type": kind, "data": data}).decode())
