"""Between an app and its server: an answer about a sandbox that has ended never looks complete.

E2B's SDKs tell a killed sandbox from a command that ended by the way in which a stream stops: an aborted connection, then a
``/health`` that answers 502.  So whatever an app wants to send after the sandbox's end is not sent.
"""

from connectrpc.errors import ConnectError

from cellfork.dialects.asgi import Abort, Message, Receive, Send, TooLarge, TooSlow, send_json
from cellfork.dialects.e2b.envd.errors import SANDBOX_NOT_FOUND, connect_error
from cellfork.engine.sandbox import Sandbox


class Gone(Exception):
    """The sandbox ended, or was paused, before the answer began."""


class Answer:
    """The ``send`` of one request.  Raises :class:`Gone` or :class:`Abort` in place of sending for a sandbox that is gone."""

    def __init__(self, sandbox: Sandbox, send: Send) -> None:
        self._sandbox = sandbox
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        """Send a message.  A stream that has begun outlasts a pause: what it tells of goes on after it."""
        if self._sandbox.state == "ended" or (self._sandbox.state == "paused" and not self.started):
            self.gone()
        self.started = True
        await self._send(message)

    def gone(self) -> None:
        """Stop the answer: what was sent of it must not look like all of it."""
        raise Abort if self.started else Gone


def explaining(receive: Receive) -> Receive:
    """Return a ``receive`` whose refusals of a body are errors of Connect."""

    async def receive_or_explain() -> Message:
        try:
            return await receive()
        except (TooLarge, TooSlow) as error:
            raise _explained(error) from error

    return receive_or_explain


async def send_not_found(send: Send, id: str) -> None:
    """Answer for a sandbox that is not there: 502, in upstream's words."""
    await send_json(send, 502, {"sandboxId": id, "message": SANDBOX_NOT_FOUND, "code": 502})


def _explained(error: Exception) -> ConnectError:
    return connect_error(error)
