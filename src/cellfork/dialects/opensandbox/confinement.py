"""What keeps programs in sandboxes from acting as their clients, where they answer under this server's own address."""

from typing import Final

from cellfork.dialects.asgi import Message, Send
from cellfork.dialects.opensandbox.access import ACCESS_HEADER, EGRESS_HEADER

EXECD_HEADER: Final = "X-EXECD-ACCESS-TOKEN"
API_HEADER: Final = "OPEN-SANDBOX-API-KEY"
HIDDEN: Final = frozenset(
    name.lower().encode() for name in (API_HEADER, ACCESS_HEADER, EGRESS_HEADER, EXECD_HEADER, "Cookie")
)
"""What programs inside are not told: keys and tokens; and cookies, for all sandboxes share this server's origin."""
CONFINED: Final = (
    b"content-security-policy",
    b"sandbox allow-downloads allow-forms allow-modals allow-popups allow-presentation allow-scripts",
)
"""A page of a sandbox is no part of this server's origin: its scripts can ask the server for nothing in its name."""


def confined(send: Send) -> Send:
    """Return a ``send`` for the answer of a program inside."""

    async def send_confined(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], CONFINED]}
        await send(message)

    return send_confined
