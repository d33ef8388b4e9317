# Generated from client/_async/network.py by scripts/unasync.py; do not edit.
"""``sandbox.network``: what a sandbox may reach, what it was refused, how much it has moved."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cellfork.client.bridges import Bridge
from cellfork.model.network import Denial, NetworkPolicy, Traffic

if TYPE_CHECKING:
    from cellfork.engine.sandbox import Sandbox as Remote


class Network:
    """The way out of a sandbox."""

    def __init__(self, sandbox: "Remote", bridge: Bridge) -> None:
        self._sandbox = sandbox
        self._bridge = bridge

    @property
    def policy(self) -> NetworkPolicy:
        """What the sandbox may reach now."""
        return self._bridge.calls.policy_of(self._sandbox)  # type: ignore[no-any-return]

    def denied(self) -> list[Denial]:
        """Return the latest 256 requests that were refused, the oldest first: when, which host and port, why.

        Readable after the sandbox's end as well.
        """
        return self._bridge.call(self._bridge.calls.denied, self._sandbox)  # type: ignore[no-any-return]

    def traffic(self) -> Traffic:
        """Return how many bytes were sent and received, how many connections are open, how much was refused."""
        return self._bridge.call(self._bridge.calls.traffic_of, self._sandbox)  # type: ignore[no-any-return]

    def set_policy(self, policy: NetworkPolicy | str | Iterable[str] | Mapping[str, Any] | None) -> None:
        """Replace the policy at once.  Connections that the new one does not allow end; what was counted stays counted.
        Variables that were set inside (proxy, package indexes) stay as they are.

        Raises :class:`InvalidRequest`, :class:`SandboxGone`, and :class:`Unsupported` for a sandbox that was created
        without a network: it has no way out that could be opened later.
        """
        self._bridge.call(self._bridge.calls.set_network_policy, self._sandbox, NetworkPolicy.of(policy))
