"""Network policies: an ordered list of rules in terms of hosts that are allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.dialects.opensandbox.errors import Refused
from cellfork.dialects.opensandbox.network import ALLOW, DENY, NOWHERE, effective, merged, policy_of, without
from cellfork.dialects.opensandbox.registry import Policy
from cellfork.dialects.opensandbox.schema import NetworkPolicy, Rule
from cellfork.model.network import NetworkPolicy as Held
from tests.dialects.opensandbox.conftest import Place

LABELS = st.sampled_from(["a", "b", "c"])
NAMES = st.builds(lambda labels: ".".join([*labels, "example", "com"]), st.lists(LABELS, max_size=3))
TARGETS = st.one_of(NAMES, NAMES.map(lambda name: f"*.{name}"))
RULES = st.lists(st.builds(Rule, st.sampled_from([ALLOW, DENY]), TARGETS), max_size=6)


def rules(*texts: str) -> tuple[Rule, ...]:
    """Return rules: ``+host`` allows, ``-host`` denies."""
    return tuple(Rule(ALLOW if text[0] == "+" else DENY, text[1:]) for text in texts)


def fits(target: str, host: str) -> bool:
    """Tell whether a target is meant for a host, as upstream reads it."""
    return target == host or (target.startswith("*.") and host.endswith(target[1:]))


def upstream(policy: Policy, host: str) -> bool:
    """Tell whether upstream would allow a host: the first rule that fits decides."""
    action = next((rule.action for rule in policy.egress if fits(rule.target, host)), policy.default_action)
    return action == ALLOW


def has_a_hole(egress: list[Rule]) -> bool:
    """Tell whether some name below a domain is denied before the domain is allowed."""
    return any(
        rule.action == ALLOW
        and earlier.action == DENY
        and fits(rule.target, earlier.target.removeprefix("*."))
        for number, rule in enumerate(egress)
        for earlier in egress[:number]
    )


@given(RULES, NAMES)
def test_what_is_allowed_is_what_upstream_allows(egress, host) -> None:
    """Whatever the rules are: they are refused, or allow exactly the hosts that upstream's first match does."""
    policy = Policy(DENY, tuple(egress))
    try:
        held = effective(policy, "none")
    except Refused:
        assert has_a_hole(egress)
        return
    assert any(fits(allowed, host) for allowed in held.hosts) == upstream(policy, host)


@pytest.mark.parametrize(
    ("egress", "hosts"),
    [
        ((), (NOWHERE,)),
        (("+a.example.com",), ("a.example.com",)),
        (("+A.Example.COM.",), ("a.example.com",)),
        (("-a.example.com",), (NOWHERE,)),
        (("-*.example.com", "+a.example.com"), (NOWHERE,)),
        (("+a.example.com", "-*.example.com"), ("a.example.com",)),
        (("+*.example.com", "-a.example.com"), ("*.example.com",)),
    ],
)
def test_hosts_of_rules(egress, hosts) -> None:
    """What is denied by default needs no rule; an empty list is a way out that leads nowhere, so that it can be opened."""
    assert effective(Policy(DENY, rules(*egress)), "none") == Held("allow", hosts)


def test_what_a_list_of_hosts_cannot_say_is_refused() -> None:
    """All but one name below a domain; all but one host; all hosts where this server does not allow them."""
    for policy, internet in (
        (Policy(DENY, rules("-a.example.com", "+*.example.com")), "public"),
        (Policy(ALLOW, rules("-a.example.com")), "public"),
        (Policy(ALLOW), "none"),
        (Policy(ALLOW), "packages"),
    ):
        with pytest.raises(Refused):
            effective(policy, internet)  # type: ignore[arg-type]
    assert effective(Policy(ALLOW), "public") == Held("public")


def test_where_nothing_is_asked_the_server_decides() -> None:
    """No policy, and one that says nothing, are what internet access means on this server."""
    for asked in (None, NetworkPolicy()):
        assert policy_of(asked, "none") == (Held(), None)
        assert policy_of(asked, "packages") == (Held("allow", ("packages",)), None)
        assert policy_of(asked, "public") == (Held("public"), None)


def test_merging() -> None:
    """New rules come first; the first of them for a target is the one that counts, and replaces the old ones; removing is idempotent."""
    policy = Policy(DENY, rules("+a.example.com", "+b.example.com"))
    changed = merged(policy, rules("-a.example.com", "+c.example.com", "+A.example.com"))
    assert changed.egress == rules("-a.example.com", "+c.example.com", "+b.example.com")
    assert without(changed, ["c.example.com", "nothing", "C.EXAMPLE.COM"]).egress == rules(
        "-a.example.com", "+b.example.com"
    )
    assert without(changed, ["nothing"]) == changed


async def held_by(place: Place) -> Held | None:
    network = place.engine.list()[0].guest.network
    return None if network is None else network.policy


async def test_the_policy_of_a_sandbox(place) -> None:
    """What was asked for is shown in its own words and held; a change holds at once, on both planes."""
    asked = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "a.example.com"}]}
    id = (await place.create(networkPolicy=asked))["id"]
    url, headers = await place.endpoint(id, 18080)
    told = (await place.client.get(f"{url}/policy", headers=headers)).json()
    assert (told["status"], told["mode"], told["policy"]) == ("ok", "deny_all", asked)
    assert await held_by(place) == Held("allow", ("a.example.com",))
    patch = [{"action": "allow", "target": "*.b.example.com"}]
    assert (await place.client.patch(f"{url}/policy", json=patch, headers=headers)).status_code == 200
    assert await held_by(place) == Held("allow", ("*.b.example.com", "a.example.com"))
    told = (await place.client.get(f"/v1/sandboxes/{id}/networkpolicy")).json()
    assert told["policy"]["egress"] == [*patch, *asked["egress"]]
    answer = await place.client.request(
        "DELETE", f"{url}/policy", json=["a.example.com", "no"], headers=headers
    )
    assert answer.status_code == 200
    assert await held_by(place) == Held("allow", ("*.b.example.com",))
    answer = await place.client.put(f"/v1/sandboxes/{id}/networkpolicy", json=asked)
    assert answer.json()["policy"] == asked
    assert await held_by(place) == Held("allow", ("a.example.com",))
    assert (await place.client.post(f"{url}/policy", headers=headers)).json()["mode"] == "deny_all"
    assert await held_by(place) == Held("allow", (NOWHERE,))


async def test_a_policy_that_cannot_be_had_changes_nothing(place) -> None:
    """Bad bodies and impossible rules are 400 as text, and what held holds still."""
    id = (await place.create(networkPolicy={"defaultAction": "deny"}))["id"]
    url, headers = await place.endpoint(id, 18080)
    for method, body in (
        ("PATCH", b""), ("PATCH", b"[]"), ("PATCH", b"{"), ("PATCH", b'[{"action": "maybe", "target": "a"}]'),
        ("PATCH", b'[{"action": "allow", "target": "127.0.0.1"}]'), ("PATCH", b'[{"action": "allow", "target": ""}]'),
        ("DELETE", b"[]"), ("DELETE", b"[1]"), ("PUT", b'{"defaultAction": "allow"}'), ("POST", b"\xff"),
        ("PATCH", b"[" + b",".join(b'{"action":"allow","target":"h%d.example.com"}' % n for n in range(300)) + b"]"),
    ):  # fmt: skip
        answer = await place.client.request(method, f"{url}/policy", content=body, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8"), (
            body
        )
        assert await held_by(place) == Held("allow", (NOWHERE,))
    assert (await place.client.options(f"{url}/policy", headers=headers)).status_code == 405
    assert (await place.client.get(f"{url}/nothing", headers=headers)).status_code == 404
    assert (await place.client.get(f"{url}/healthz", headers=headers)).status_code == 200
    assert (await place.client.get(f"{url}/credential-vault", headers=headers)).status_code == 404
    assert (await place.client.post(f"{url}/credential-vault", json={}, headers=headers)).status_code == 412


async def test_a_sandbox_without_a_way_out_gets_none(place) -> None:
    """Where no policy was asked for and the server gives none, nothing can be opened later; the policy shown says so."""
    id = (await place.create())["id"]
    url, headers = await place.endpoint(id, 18080)
    assert (await place.client.get(f"{url}/policy", headers=headers)).json()["policy"] == {
        "defaultAction": "deny",
        "egress": [],
    }
    patch = [{"action": "allow", "target": "a.example.com"}]
    assert (await place.client.patch(f"{url}/policy", json=patch, headers=headers)).status_code == 400
    assert await held_by(place) is None
