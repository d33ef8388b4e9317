"""Cross-origin requests: pages of the origins that were named may call, no other page may.

No key is ever in a cookie, so credentials are not allowed, and a page of a foreign origin can at most send what
is refused.
"""

import re
from collections.abc import Iterable

from cellfork.dialects.asgi import Scope, Send, header, send_body

METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
EXPOSED = b"x-request-id, x-next-token, x-total-running, retry-after"
SECONDS = b"600"
_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_LONGEST = 2048


class Origins:
    """The origins whose pages may call, compared exactly."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._allowed = frozenset(origin.encode() for origin in origins)

    def allowed(self, scope: Scope) -> bytes | None:
        """Return the origin of a request where its page may call."""
        if not self._allowed:
            return None
        origin = header(scope, b"origin")
        found = origin.encode("latin-1") if origin is not None else None
        return found if found in self._allowed else None

    async def preflight(self, scope: Scope, send: Send, origin: bytes) -> None:
        """Answer what a browser asks before a page's request."""
        asked = header(scope, b"access-control-request-headers") or ""
        headers = [
            *granted(origin),
            (b"access-control-allow-methods", METHODS),
            (b"access-control-max-age", SECONDS),
        ]
        if len(asked) <= _LONGEST and _NAMES.fullmatch(asked):
            headers.append((b"access-control-allow-headers", asked.encode("latin-1")))
        await send_body(send, 204, headers=headers)


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks whether a page may send a request."""
    return scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") is not None


def granted(origin: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that let a page of ``origin`` read an answer."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"origin"),
    ]
