"""Small helpers for raw ASGI, shared by all dialects: bodies with bounds, answers in one piece, the abort.

Hot routes speak ASGI themselves; a framework between them and the socket costs more than they do.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from types import UnionType
from typing import Any, TypeVar, overload

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

T = TypeVar("T")

JSON = b"application/json"

_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed the connection before its request was complete: there is nobody to answer."""


class TooLarge(Exception):
    """The body is larger than this route takes.  Whoever does not catch it answers 413."""


class TooSlow(Exception):
    """The client sent nothing for longer than this route waits.  Whoever does not catch it answers 408."""


class Abort(Exception):
    """End the response by closing the connection, without the final chunk.

    A client that reads a stream sees that it is incomplete: the only honest end of a stream whose sandbox
    was killed.  Raised out of the app; the server closes the socket and logs no traceback.
    """


def state(scope: Scope) -> dict[str, Any]:
    """Return what the layers of the server tell each other about one request.

    Known keys: ``sandbox`` (the engine's), ``inside`` (the request came from inside that sandbox), ``tenant``
    (of the key), ``request_id``, ``dialect`` and ``route`` (for logs and metrics; see :func:`name_route`),
    ``body_limit`` and ``body_idle`` (see :func:`allow_body`).
    """
    kept: dict[str, Any] = scope.setdefault("state", {})
    return kept


def name_route(scope: Scope, dialect: str, route: str) -> None:
    """Tell logs and metrics which route this is: a pattern such as ``/sandboxes/{id}``, never a real path.

    Patterns are few; paths carry ids and are without bound.
    """
    kept = state(scope)
    kept["dialect"], kept["route"] = dialect, route


def allow_body(scope: Scope, limit: int | None, idle: float | None = 60.0) -> None:
    """Let this request's body have ``limit`` bytes, and pauses of ``idle`` seconds (``None``: no bound).

    Called before the first piece is read, by routes that stream what they read: uploads, standard input,
    ports of a sandbox.  Where it is not called, the server's bounds for bodies hold.
    """
    kept = state(scope)
    kept["body_limit"], kept["body_idle"] = limit, idle


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this name (in lower case), or ``None``."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def says_json(scope: Scope) -> bool:
    """Tell whether a body says that it is JSON.

    A page in a browser can send any other type to any server without asking it first, so what creates and changes
    something takes no other.
    """
    kind = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


@overload
def read_json(data: bytes | str, kind: type[T]) -> T: ...
@overload
def read_json(data: bytes | str, kind: UnionType) -> Any: ...
def read_json(data: bytes | str, kind: Any) -> Any:
    """Return what JSON says, as a type; nothing at all is an empty object.

    Raises ``msgspec.DecodeError``, and its ``ValidationError``, for whatever cannot be read: also for text that is no
    UTF-8 and for what nests too deeply, which msgspec itself tells in other ways.
    """
    try:
        return msgspec.json.decode(data.strip() or "{}", type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError("JSON is malformed: it is not UTF-8") from error
    except RecursionError as error:
        raise msgspec.DecodeError("JSON is malformed: it nests too deeply") from error


async def stream_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the pieces of a request's body.  Raises :class:`ClientGone`, :class:`TooLarge`, :class:`TooSlow`."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        more = message.get("more_body", False)
        piece = message.get("body", b"")
        if piece:
            yield piece


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the whole body of at most ``limit`` bytes; a larger one is refused before it is buffered.

    Raises :class:`TooLarge`, :class:`TooSlow`, :class:`ClientGone`.
    """
    told = header(scope, b"content-length")
    if told is not None and told.isdecimal() and int(told[:20]) > limit:
        raise TooLarge(f"the body is larger than {limit} bytes")
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")  # nearly every request: one piece
        if len(body) > limit:
            raise TooLarge(f"the body is larger than {limit} bytes")
        return body
    return await _joined(message, receive, limit)


async def _joined(first: Message, receive: Receive, limit: int) -> bytes:
    pending: list[Message] = [first]

    async def next_message() -> Message:
        return pending.pop() if pending else await receive()

    whole = bytearray()
    async for piece in stream_body(next_message):
        whole += piece
        if len(whole) > limit:
            raise TooLarge(f"the body is larger than {limit} bytes")
    return bytes(whole)


async def disconnected(receive: Receive) -> None:
    """Return when the client has closed the connection (or the response is complete)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_body(
    send: Send, status: int, body: bytes = b"", content_type: bytes | None = None, headers: Headers = ()
) -> None:
    """Answer in one piece, with its length.  204 and 304 have no body and no length."""
    lines = list(headers)
    if content_type is not None:
        lines.append((b"content-type", content_type))
    if status not in {204, 304}:
        lines.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, value: Any, headers: Headers = ()) -> None:
    """Answer with a value as JSON.  NaN and infinities become ``null``: they are not JSON."""
    await send_body(send, status, _encode(value), JSON, headers)
