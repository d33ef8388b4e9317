"""A policy as the proxy applies it: may this sandbox speak with that host, and how closely is it watched."""

from dataclasses import dataclass
from typing import Literal

from cellfork.model.network import NetworkPolicy
from cellfork.runtimes.egress.addresses import Address, is_own, never, refusal
from cellfork.runtimes.egress.indexes import NO_INDEXES, Endpoint, Indexes
from cellfork.runtimes.egress.targets import Target

Look = Literal["tls", "any"]
"""What a tunnel must carry: TLS for the host it was asked for; or anything, and TLS only for that host."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A host may be spoken with.  ``endpoint`` is set where it is a package index of this machine's own configuration."""

    look: Look
    endpoint: Endpoint | None = None


class Denied(Exception):
    """A sandbox may not have what it asked for; the text says why, for people and models."""

    def __init__(self, reason: str, *, brief: str = "", status: int = 403) -> None:
        super().__init__(reason)
        self.brief = brief or reason
        self.status = status


class Rules:
    """Decides about targets and addresses for one policy."""

    def __init__(self, policy: NetworkPolicy, indexes: Indexes = NO_INDEXES) -> None:
        self.policy = policy
        self._rules = policy.rules
        self._endpoints = indexes.endpoints if policy.packages else ()

    def grant(self, target: Target, *, tunnel: bool) -> Grant:
        """Return the grant for a target; raises :class:`Denied`.  No name has been looked up by then."""
        for endpoint in self._endpoints:
            if (endpoint.host, endpoint.port) == (target.host, target.port):
                return _of_index(target, endpoint, tunnel=tunnel)
        if self.policy.mode == "none":
            raise self._not_allowed(target)
        if self.policy.mode == "public":
            return self._grant_public(target, tunnel=tunnel)
        if target.address is not None:
            raise Denied(
                f"{target.host} is an address; this sandbox may reach hosts by name only",
                brief="addresses are not allowed",
            )
        matching = [rule for rule in self._rules if rule.matches(target.host, target.port)]
        if not matching:
            raise self._not_allowed(target)
        if any(rule.port is not None for rule in matching):
            return Grant("tls" if target.port == 443 else "any")
        return _usual(target, tunnel=tunnel)

    def check_address(self, target: Target, address: Address, grant: Grant) -> None:
        """Raise :class:`Denied` unless a connection for ``target`` may go to ``address``."""
        if grant.endpoint is not None:
            if never(address):
                raise Denied(
                    f"{target.host} is at {address}, where no package index may be",
                    brief="address not allowed",
                )
            return
        reason = refusal(address) or ("this machine's own" if is_own(address) else None)
        if reason is not None:
            where = "" if target.address is not None else f"{target.host} is at "
            raise Denied(
                f"{where}{address}, which is out of reach for every sandbox: {reason}",
                brief=f"address not allowed ({reason})",
            )

    def _grant_public(self, target: Target, *, tunnel: bool) -> Grant:
        if target.address is not None:
            self.check_address(target, target.address, Grant("any"))
        return _usual(target, tunnel=tunnel)

    def _not_allowed(self, target: Target) -> Denied:
        return Denied(
            f"{target.host}:{target.port} is not allowed by this sandbox's network policy; allowed: {self.policy.describe()}",
            brief=f"{target.host}:{target.port} is not allowed by the network policy",
        )


def _of_index(target: Target, endpoint: Endpoint, *, tunnel: bool) -> Grant:
    """An index is spoken with as its URL says: TLS in tunnels, or plain requests, which are looked at one by one."""
    if tunnel != (endpoint.scheme == "https"):
        raise Denied(
            f"the package index {target.host}:{target.port} is configured with {endpoint.scheme}, and only that is allowed",
            brief=f"use {endpoint.scheme} with this package index",
        )
    return Grant("tls", endpoint)


def _usual(target: Target, *, tunnel: bool) -> Grant:
    """Without a port in the policy: TLS in tunnels to 443, plain HTTP, request by request, to 80, and nothing else."""
    if target.port == (443 if tunnel else 80):
        return Grant("tls")
    if target.port == 80:
        raise Denied(
            "a tunnel to port 80 is not allowed; send plain HTTP requests to the proxy",
            brief="no tunnel to port 80",
        )
    if target.port == 443:
        raise Denied("plain HTTP to port 443 is not allowed; use https", brief="no plain HTTP to port 443")
    raise Denied(
        f"port {target.port} of {target.host} is not allowed: 80 and 443 are, and what the policy names as host:port",
        brief=f"port {target.port} is not allowed",
    )
