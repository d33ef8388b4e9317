"""OpenSandbox's network policy in terms of ours: an ordered list of rules → hosts that are allowed.

Upstream filters names with a default and exceptions; cellfork's one way out is a proxy that knows hosts that are allowed, and never
leads to private addresses.  What rules ask for and such a list cannot say is refused, never dropped.

A sandbox for which no policy was asked has what "internet access" means on this server, as in the other dialects; upstream
would let it reach anything.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from cellfork.dialects.base import Internet, policy_for
from cellfork.dialects.opensandbox.errors import invalid
from cellfork.dialects.opensandbox.registry import Policy
from cellfork.dialects.opensandbox.schema import NetworkPolicy as Asked
from cellfork.dialects.opensandbox.schema import Rule
from cellfork.engine.sandbox import Sandbox
from cellfork.model.network import NetworkPolicy

NOWHERE: Final = "nothing.invalid"
"""Stands for an empty list: no host ever has a name below ``invalid`` (RFC 6761).  So a sandbox that may reach nothing has a way
out all the same, which can be opened later."""
MOST_RULES: Final = 256
ALLOW: Final = "allow"
DENY: Final = "deny"


def policy_of(asked: Asked | None, internet: Internet) -> tuple[NetworkPolicy, Policy | None]:
    """Return what is to hold, and what is kept to be shown.  Raises :class:`Refused`."""
    if asked is None or asked.is_empty:
        return policy_for(internet), None
    shown = Policy(asked.default_action or DENY, tuple(asked.egress or ()))
    return effective(shown, internet), shown


def effective(policy: Policy, internet: Internet) -> NetworkPolicy:
    """Return what a policy means here.  Raises :class:`Refused` where it cannot be had."""
    if len(policy.egress) > MOST_RULES:
        raise invalid(f"a network policy has at most {MOST_RULES} rules")
    if policy.default_action == ALLOW:
        return _open(policy.egress, internet)
    hosts = _allowed(policy.egress)
    return NetworkPolicy("allow", tuple(hosts) or (NOWHERE,))


def shown(sandbox: Sandbox, policy: Policy | None) -> Policy:
    """Return the policy of a sandbox in upstream's words, also where none was asked for."""
    if policy is not None:
        return policy
    network = sandbox.guest.network
    if network is None:
        return Policy(DENY)
    if network.policy.mode == "public":
        return Policy(ALLOW)
    return Policy(DENY, tuple(Rule(ALLOW, host) for host in network.policy.hosts if host != NOWHERE))


def merged(policy: Policy, rules: Iterable[Rule]) -> Policy:
    """Return a policy with other rules before its own; what it says of their targets is void, and so is a second rule for one."""
    first: dict[str, Rule] = {}
    for rule in rules:
        first.setdefault(_key(rule.target), rule)
    kept = [rule for rule in policy.egress if _key(rule.target) not in first]
    return Policy(policy.default_action, (*first.values(), *kept))


def without(policy: Policy, targets: Iterable[str]) -> Policy:
    """Return a policy without the rules for some targets."""
    gone = {_key(target) for target in targets}
    return Policy(
        policy.default_action, tuple(rule for rule in policy.egress if _key(rule.target) not in gone)
    )


def apply(sandbox: Sandbox, policy: NetworkPolicy) -> None:
    """Replace what a running sandbox may reach.  Raises :class:`Refused` for one that was created without a way out."""
    sandbox.check_running()
    network = sandbox.guest.network
    if network is not None:
        network.set_policy(policy)
    elif policy.hosts != (NOWHERE,):
        raise invalid(
            "this sandbox was created without a way out, and cannot be given one; create it with a networkPolicy"
        )


def mode_of(policy: Policy) -> str:
    """Return what upstream calls a policy."""
    if policy.default_action == ALLOW and not policy.egress:
        return "allow_all"
    return "deny_all" if policy.default_action == DENY else "enforcing"


def _open(rules: Sequence[Rule], internet: Internet) -> NetworkPolicy:
    if internet != "public":
        raise invalid(
            f"defaultAction 'allow' is not to be had: this server's setting `internet` is {internet!r}; "
            "use 'deny' and allow the hosts that are needed"
        )
    if any(rule.action == DENY for rule in rules):
        raise invalid("hosts cannot be denied one by one; use defaultAction 'deny' and allow hosts by name")
    return NetworkPolicy("public")


def _allowed(rules: Sequence[Rule]) -> list[str]:
    """Return the hosts that rules allow where anything else is denied: the first rule that fits decides.

    Raises :class:`Refused` where a host would have to be left out of ``*.name``.
    """
    allowed: list[str] = []
    denied: list[str] = []
    for rule in rules:
        target = _key(rule.target)
        if rule.action == DENY:
            denied.append(target)
        elif not any(_covers(other, target) for other in denied):
            narrower = next((other for other in denied if _covers(target, other)), None)
            if narrower is not None:
                raise invalid(
                    f"{rule.target!r} cannot be allowed but for {narrower!r}: name the hosts instead"
                )
            allowed.append(target)
    return [*dict.fromkeys(allowed)]


def _covers(wide: str, narrow: str) -> bool:
    """Tell whether a target takes in another one: ``*.name`` is everything below ``name``, not the name itself."""
    if wide == narrow:
        return True
    return wide.startswith("*.") and narrow.removeprefix("*.").endswith(wide[1:])


def _key(target: str) -> str:
    return target.strip().lower().rstrip(".")
