"""What execd has beside one sandbox's own code and files: its ports, and sandboxes within the sandbox, of which there are none."""

from typing import Final
from urllib.parse import quote

from cellfork.dialects.asgi import Receive, Scope, Send, name_route, send_body
from cellfork.dialects.opensandbox.confinement import HIDDEN, confined
from cellfork.dialects.opensandbox.execd import errors, sockets
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.ports import PortProxy, Target
from cellfork.model.errors import CellforkError, InvalidRequest, UnavailableError, UsageError

PREFIX: Final = "/proxy/"
TEXT: Final = b"text/plain; charset=utf-8"
NO_ISOLATION: Final = (
    "isolated sessions are not available: this sandbox is isolated as a whole; create another sandbox for code that is to be "
    "kept apart"
)


class Ports:
    """``/proxy/{port}/…``: any program that listens in the sandbox."""

    def __init__(self) -> None:
        self._proxy = PortProxy()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request or a WebSocket on; what cannot be reached is a plain 502, as upstream tells it."""
        name_route(scope, "opensandbox", PREFIX + "{port}")
        port, slash, rest = scope["path"].removeprefix(PREFIX).partition("/")
        sandbox = scope["state"]["sandbox"]
        if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
            await _tell(scope, send, 400, "port is required")
            return
        inner = {**scope, "path": slash + rest or "/", "raw_path": _rest_of(scope, rest)}
        try:
            target = Target(sandbox, int(port), hidden=HIDDEN)
            await self._proxy.forward(inner, receive, confined(send), target)
        except (UnavailableError, UsageError) as error:
            await _tell(scope, send, _status(error), "Bad Gateway" if _status(error) == 502 else str(error))


class Isolated:
    """``/v1/isolated/…``: told as a machine without bubblewrap tells it."""

    def routes(self) -> Routes:
        """Return what is served."""
        return (
            Route("GET", "/v1/isolated/capabilities", self.capabilities),
            Route("GET", "/v1/isolated/sessions", self.list),
            Route("POST", "/v1/isolated/session", self.refuse),
        )

    async def capabilities(self, call: Call) -> None:
        """Tell that there is nothing."""
        await call.answer({"available": False, "message": NO_ISOLATION})

    async def list(self, call: Call) -> None:
        """List no sessions."""
        await call.answer({"sessions": []})

    async def refuse(self, _call: Call) -> None:
        """Make none."""
        raise errors.Refused(501, errors.NOT_SUPPORTED, NO_ISOLATION)


def _rest_of(scope: Scope, rest: str) -> bytes:
    """Return the path behind the port, as the client wrote it."""
    raw: bytes = scope.get("raw_path") or b""
    if raw.startswith(PREFIX.encode()):
        return b"/" + raw[len(PREFIX) :].partition(b"/")[2]
    return quote("/" + rest).encode("ascii")


def _status(error: CellforkError) -> int:
    return 400 if isinstance(error, InvalidRequest) else 502


async def _tell(scope: Scope, send: Send, status: int, message: str) -> None:
    if scope["type"] == "websocket":
        await sockets.refuse(scope, send, status, {"code": errors.RUNTIME_ERROR, "message": message})
    else:
        await send_body(send, status, message.encode(), TEXT)
