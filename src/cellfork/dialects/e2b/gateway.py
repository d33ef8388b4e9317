"""What a request for a sandbox is answered that never gets there, in upstream's words.

E2B's SDKs tell a sandbox that is gone from a port that is closed by the text of the message.
"""

import re
from html import escape
from typing import Any, Final

from cellfork.dialects.asgi import Scope, Send, header, name_route, send_body, send_json
from cellfork.dialects.e2b.addressing import TRAFFIC_HEADER

NOT_FOUND: Final = "The sandbox was not found"
PORT_CLOSED: Final = "The sandbox is running but port is not open"
TOKEN: Final = "e2b-traffic-access-token"  # noqa: S105 - the name of a header
HTML: Final = b"text/html; charset=utf-8"

_PAGE = """<!doctype html>
<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>{status} {message}</title>
<body style="font-family: system-ui; max-width: 40em; margin: 15vh auto; padding: 0 1em">
<h1 style="font-size: 1.3em">{message}</h1><p>{details}</p>
"""
_WANTS_PAGE = re.compile(r"\btext/html\b")


async def not_found(scope: Scope, send: Send, sandbox: str) -> None:
    """Answer for a sandbox that does not exist, has ended, or sleeps."""
    await _answer(scope, send, 502, {"sandboxId": sandbox, "message": NOT_FOUND, "code": 502})


async def port_closed(scope: Scope, send: Send, sandbox: str, port: int) -> None:
    """Answer for a port where no program of the sandbox accepts connections or speaks HTTP."""
    body = {"sandboxId": sandbox, "message": PORT_CLOSED, "port": port, "code": 502}
    await _answer(scope, send, 502, body)


async def forbidden(scope: Scope, send: Send, sandbox: str) -> None:
    """Answer where the traffic token is missing or wrong."""
    why = "is missing" if header(scope, TRAFFIC_HEADER) is None else "is invalid"
    what = f"Token header '{TOKEN}'" if why == "is missing" else f"Provided token in header '{TOKEN}'"
    message = f"Sandbox is secured with traffic access token. {what} {why}"
    await _answer(scope, send, 403, {"sandboxId": sandbox, "message": message, "code": 403})


async def busy(scope: Scope, send: Send, sandbox: str, limit: int) -> None:
    """Answer where there are as many connections to the sandbox's ports as there may be."""
    message = f"The sandbox has too many concurrent incoming connections (limit: {limit})"
    body = {"sandboxId": sandbox, "message": message, "code": 429, "connectionLimit": limit}
    await _answer(scope, send, 429, body)


async def refuse(scope: Scope, send: Send, status: int, message: str) -> None:
    """Answer with an error that is not upstream's, in the dialect's shape."""
    await _answer(scope, send, status, {"code": status, "message": message})


async def _answer(scope: Scope, send: Send, status: int, body: dict[str, Any]) -> None:
    name_route(scope, "e2b", "gateway")
    if scope["type"] == "websocket":
        await _answer_websocket(scope, send, status, body)
    elif _WANTS_PAGE.search(header(scope, b"accept") or ""):
        await send_body(send, status, _page(status, body), HTML)
    else:
        await send_json(send, status, body)


async def _answer_websocket(scope: Scope, send: Send, status: int, body: dict[str, Any]) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    headers = [(b"content-type", HTML)]
    page = _page(status, body)
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": page})


def _page(status: int, body: dict[str, Any]) -> bytes:
    """Return a page for people: it runs nothing and loads nothing."""
    details = [f"Sandbox {body['sandboxId']}"] if body.get("sandboxId") else []
    details += [f"port {body['port']}"] if "port" in body else []
    return _PAGE.format(
        status=status, message=escape(body["message"]), details=escape(", ".join(details))
    ).encode()
