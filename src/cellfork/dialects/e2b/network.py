"""What E2B's network options mean here: a policy, or a refusal that says why not.

E2B filters addresses; cellfork's one way out is a proxy that allows hosts by name and never leads to private addresses.  What the
options ask for and the proxy cannot do is refused, never dropped.  "Internet access", which E2B's SDKs ask for by default,
is what the server's owner says it is (``Services.internet``); where that is less than any public host, the answer carries a warning.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any, NamedTuple

from cellfork.dialects.base import Internet, policy_for
from cellfork.dialects.e2b.errors import bad
from cellfork.dialects.e2b.schema import NetworkConfig, NetworkUpdate
from cellfork.engine.sandbox import Sandbox
from cellfork.model.network import NetworkPolicy

EVERYWHERE = "0.0.0.0/0"
ANY_NAME = "*"
NOTHING = NetworkPolicy()

NEEDS_DENY_ALL = "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all other traffic."
BY_NAME = "addresses cannot be allowed one by one: a sandbox has one way out, a proxy that allows hosts by name; name the hosts in allowOut"
NO_DENIALS = "addresses cannot be denied one by one; deny all traffic ('0.0.0.0/0' in denyOut) and name the allowed hosts in allowOut"

_WARNINGS: dict[Internet, str] = {
    "none": "no internet access: this server gives none (its setting `internet` is 'none'); hosts named in network.allowOut are allowed",
    "packages": "no internet access but for this server's package indexes (its setting `internet` is 'packages')",
}


class Reach(NamedTuple):
    """What a sandbox is going to reach, and what was asked for and is not given."""

    policy: NetworkPolicy
    warnings: tuple[str, ...] = ()


def reach_of(
    config: NetworkConfig | NetworkUpdate | None, *, allowed: bool | None, internet: Internet
) -> Reach:
    """Return the policy for network options and ``allow_internet_access``.  Raises :class:`Refusal` (400)."""
    if config is not None:
        _refuse_what_is_not_there(config)
    allow, deny = (config.allow_out or [], config.deny_out or []) if config is not None else ([], [])
    for entry in deny:
        if not _is_specified(entry):
            raise bad(f"invalid denied CIDR {entry[:80]}")
    names = [entry for entry in allow if _network(entry) is None]
    addresses = [entry for entry in allow if _network(entry) is not None]
    for entry in addresses:
        if not _is_specified(entry):
            raise bad(f"invalid allowed address {entry[:80]}")
    if names and EVERYWHERE not in deny:
        raise bad(NEEDS_DENY_ALL)
    if allowed is False or EVERYWHERE in deny:
        return Reach(_closed(names, addresses, internet))
    return _open(addresses, deny, internet)


def told(config: NetworkConfig | NetworkUpdate | None) -> dict[str, Any]:
    """Return the options that details repeat, as they were given."""
    if config is None:
        return {}
    fields: dict[str, Any] = {"allowOut": config.allow_out, "denyOut": config.deny_out}
    if isinstance(config, NetworkConfig):
        fields |= {
            "allowPublicTraffic": config.allow_public_traffic,
            "maskRequestHost": config.mask_request_host,
        }
    return {name: value for name, value in fields.items() if value is not None}


def policy_of(sandbox: Sandbox) -> NetworkPolicy:
    """Return what a sandbox may reach now."""
    network = sandbox.guest.network
    return network.policy if network is not None else NOTHING


def apply(sandbox: Sandbox, policy: NetworkPolicy) -> None:
    """Replace what a running sandbox may reach.

    Raises :class:`Refusal` (400) for a sandbox that was created without a way out: it has none that could be opened.
    """
    network = sandbox.guest.network
    if network is not None:
        network.set_policy(policy)
    elif policy.mode != "none":
        raise bad(
            "this sandbox was created without a way out, and cannot be given one; create it with the hosts"
            " that it may need in network.allowOut, then narrow that"
        )


def _closed(names: Sequence[str], addresses: Sequence[str], internet: Internet) -> NetworkPolicy:
    """Return the policy where everything is denied but for what is allowed: allowed goes before denied."""
    if EVERYWHERE in addresses or ANY_NAME in names:
        if internet != "public":
            raise bad(f"all traffic cannot be allowed: {_WARNINGS[internet]}")
        return NetworkPolicy("public")
    if addresses:
        raise bad(BY_NAME)
    return NetworkPolicy("allow", tuple(names)) if names else NOTHING


def _open(addresses: Sequence[str], deny: Sequence[str], internet: Internet) -> Reach:
    """Return the policy where internet access is asked for, with exceptions."""
    if any(not _is_public(entry) for entry in addresses) or (addresses and internet != "public"):
        raise bad(BY_NAME)
    if internet != "none" and any(_is_public(entry) for entry in deny):
        raise bad(NO_DENIALS)
    warnings = (_WARNINGS[internet],) if internet in _WARNINGS else ()
    return Reach(policy_for(internet), warnings)


def _refuse_what_is_not_there(config: NetworkConfig | NetworkUpdate) -> None:
    if config.rules:
        raise bad(
            "network rules (transforms) are not available: the proxy never looks inside TLS; send headers from the code instead"
        )
    if config.egress_proxy is not None:
        raise bad("an egress proxy cannot be chosen: sandboxes leave through this server's own proxy")
    if config.dns_servers:
        raise bad("DNS servers cannot be chosen: names are resolved by this server, outside the sandbox")
    if isinstance(config, NetworkConfig) and config.https_ports:
        raise bad(
            "httpsPorts is not available: serve plain HTTP inside; the sandbox's addresses are this server's"
        )


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _is_specified(entry: str) -> bool:
    network = _network(entry)
    return entry == EVERYWHERE or (network is not None and not network.network_address.is_unspecified)


def _is_public(entry: str) -> bool:
    """Tell whether some of these addresses can be reached at all: private ones never can."""
    network = _network(entry)
    return network is not None and not (
        network.is_private or network.is_loopback or network.is_link_local or network.is_multicast
    )
