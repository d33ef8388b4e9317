"""One sandbox as the proxy knows it: its policy, its password, what it has moved, what it was refused."""

import asyncio
import base64
import binascii
import secrets
import time
from collections import deque
from collections.abc import Callable

from cellfork.model.network import Denial, NetworkPolicy, Traffic
from cellfork.runtimes.egress.indexes import NO_INDEXES, Indexes
from cellfork.runtimes.egress.replies import printable
from cellfork.runtimes.egress.rules import Denied, Grant, Rules
from cellfork.runtimes.egress.targets import Target

USER = "sandbox"
MAX_CONNECTIONS = 64
KEPT_DENIALS = 256
MAX_LOOKUPS = 4
"""At a time, of one sandbox: names that take long to look up shall not keep others waiting."""


class Connection:
    """A live connection of a sandbox: the task that serves it, and what it was granted."""

    __slots__ = ("grant", "target", "task", "tunnel")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.target: Target | None = None
        self.grant: Grant | None = None
        self.tunnel = False


class Account:
    """What one sandbox may do and has done.  Lives in the proxy's event loop."""

    def __init__(self, policy: NetworkPolicy, indexes: Indexes = NO_INDEXES) -> None:
        self.token = secrets.token_hex(16)
        self.indexes = indexes
        self.rules = Rules(policy, indexes)
        self.connections: set[Connection] = set()
        self.lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._denials: deque[Denial] = deque(maxlen=KEPT_DENIALS)
        self._denied = 0
        self._sent = 0
        self._received = 0

    def restore(self, token: str, sent: int, received: int) -> None:
        """Go on as the account of a sandbox that has this password, and has moved so much."""
        self.token, self._sent, self._received = token, sent, received

    @property
    def policy(self) -> NetworkPolicy:
        """What holds now."""
        return self.rules.policy

    def set_policy(self, policy: NetworkPolicy, indexes: Indexes) -> None:
        """Replace the policy; connections that it does not allow end at once, and count as denied."""
        self.indexes = indexes
        self.rules = Rules(policy, indexes)
        for connection in [*self.connections]:
            if not self._still_allowed(connection):
                connection.task.cancel()

    def knows(self, authorization: list[str]) -> bool:
        """Tell whether these values of ``Proxy-Authorization`` are this sandbox's user and password."""
        if len(authorization) != 1:
            return False
        scheme, _, encoded = authorization[0].partition(" ")
        try:
            given = base64.b64decode(encoded.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        return scheme.lower() == "basic" and secrets.compare_digest(given, f"{USER}:{self.token}".encode())

    def deny(self, host: str, port: int, reason: str) -> None:
        """Remember a refusal."""
        self._denied += 1
        self._denials.append(Denial(time.time(), printable(host), port, printable(reason)))

    def denied(self) -> list[Denial]:
        """Return the latest refusals, the oldest first."""
        return [*self._denials]

    def traffic(self) -> Traffic:
        """Return what was moved so far."""
        return Traffic(self._sent, self._received, len(self.connections), self._denied)

    def count_sent(self, size: int) -> None:
        """Count bytes on their way out; :class:`Denied` where they would pass the budget."""
        self._sent += size
        if self._sent > self.policy.upload_bytes:
            self._sent -= size
            raise Denied(
                f"the sandbox may send {self.policy.upload_bytes} bytes in all, and no more",
                brief="upload budget is used up",
            )

    def count_received(self, size: int) -> None:
        """Count bytes on their way in; :class:`Denied` where they would pass the budget."""
        self._received += size
        if self._received > self.policy.download_bytes:
            self._received -= size
            raise Denied(
                f"the sandbox may receive {self.policy.download_bytes} bytes in all, and no more",
                brief="download budget is used up",
            )

    def _still_allowed(self, connection: Connection) -> bool:
        target = connection.target
        if target is None:
            return True  # it has not asked for anything yet, and will be asked by the new rules
        try:
            grant = self.rules.grant(target, tunnel=connection.tunnel)
            if (
                connection.grant is not None
                and connection.grant.endpoint is not None
                and grant.endpoint is None
            ):
                raise Denied(
                    f"{target.host}:{target.port} was a package index, and they are not allowed any more"
                )
        except Denied as denied:
            self.deny(target.host, target.port, str(denied))
            return False
        return True


class Pace:
    """How often something may happen: ``burst`` times at once, ``rate`` times a second in the long run."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._seen = clock()

    def take(self) -> float:
        """Return 0 where it may happen now, else the seconds until it may."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate)
        self._seen = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0
