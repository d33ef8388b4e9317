"""The bridge's end of the Jupyter protocol: signed messages over ZeroMQ sockets in a private directory.

Source: "Messaging in Jupyter", version 5.3.  ``jupyter_client`` signs, checks and dates the messages.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import zmq
from jupyter_client.session import Session

from cellfork.guest.jupyter.places import SCHEME, Places

KINDS = {"shell": zmq.DEALER, "iopub": zmq.SUB, "stdin": zmq.DEALER, "control": zmq.DEALER}
MAX_MESSAGE = 96 * 1024 * 1024
TRY_AGAIN = 20
"""Milliseconds between two tries to reach a kernel that does not listen yet."""
MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError)
"""What a message raises that was made to look like one."""

Message = dict[str, Any]


class Connection:
    """Sockets to one kernel."""

    def __init__(self, places: Places) -> None:
        key = places.key.encode()
        self.session = Session(key=key, signature_scheme=SCHEME, username="cellfork")
        self._context = zmq.Context()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        for name, kind in KINDS.items():
            self.sockets[name] = self._open(kind)
            self.sockets[name].connect(places.url(name))

    def send(self, channel: str, kind: str, content: Mapping[str, Any]) -> str:
        """Send a message; return its id."""
        message = self.session.send(self.sockets[channel], kind, dict(content))
        return str(message["header"]["msg_id"])

    def receive(self, channel: str) -> Iterator[Message]:
        """Yield the messages that are there; what is not signed with the key, or malformed, is dropped."""
        while True:
            try:
                parts = self.sockets[channel].recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = self._checked(parts)
            if message is not None:
                yield message

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def _checked(self, parts: list[bytes]) -> Message | None:
        try:
            _identities, rest = self.session.feed_identities(parts)
            message: Message = self.session.deserialize(rest)
        except MALFORMED:
            return None
        proper = (
            all(isinstance(message.get(part), dict) for part in ("header", "parent_header", "content"))
            and isinstance(message["header"].get("msg_type"), str)
        )  # fmt: skip
        return message if proper else None

    def _open(self, kind: int) -> "zmq.Socket[bytes]":
        opened: zmq.Socket[bytes] = self._context.socket(kind)
        opened.linger = 0
        opened.reconnect_ivl = TRY_AGAIN
        opened.maxmsgsize = MAX_MESSAGE
        if kind == zmq.SUB:
            opened.rcvhwm = 0  # a kernel drops what its subscriber has no room for
            opened.subscribe(b"")
        else:
            opened.identity = self.session.bsession
        return opened
