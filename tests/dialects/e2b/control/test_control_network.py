"""What E2B's network options become, and what is refused."""

from typing import Any

import pytest

from cellfork.dialects.base import Internet
from cellfork.dialects.e2b.errors import Refusal
from cellfork.dialects.e2b.network import EVERYWHERE, reach_of
from cellfork.dialects.e2b.schema import NetworkConfig
from cellfork.model.network import NetworkPolicy

from .conftest import Stage, refusal

NONE, PUBLIC = NetworkPolicy(), NetworkPolicy("public")
PACKAGES = NetworkPolicy("allow", ("packages",))


def reach(internet: Internet, allowed: bool | None, allow: Any = None, deny: Any = None, **more: Any):
    return reach_of(NetworkConfig(allow, deny, **more), allowed=allowed, internet=internet)


@pytest.mark.parametrize("internet, policy", [("none", NONE), ("packages", PACKAGES), ("public", PUBLIC)])
@pytest.mark.parametrize("allowed", [True, None])
def test_internet_access_is_what_the_server_gives(
    internet: Internet, policy: NetworkPolicy, allowed: bool | None
) -> None:
    """Asked for or left out, it is the server's setting; where that is less than the internet, a warning says so."""
    found = reach_of(None, allowed=allowed, internet=internet)
    assert found.policy == policy
    assert bool(found.warnings) == (internet != "public")


@pytest.mark.parametrize("internet", ["none", "packages", "public"])
def test_denied_is_denied(internet: Internet) -> None:
    """``allow_internet_access`` false and all traffic in ``denyOut`` give no way out, without a warning."""
    for found in (reach(internet, allowed=False), reach(internet, None, deny=[EVERYWHERE, "8.8.8.8"])):
        assert found == (NONE, ())


@pytest.mark.parametrize("internet", ["none", "packages", "public"])
def test_hosts_are_allowed_by_name(internet: Internet) -> None:
    """With all traffic denied, the hosts of ``allowOut`` can be reached, whatever the server calls internet."""
    found = reach(internet, None, ["api.example.com", "*.Example.org"], [EVERYWHERE])
    assert found == (NetworkPolicy("allow", ("api.example.com", "*.example.org")), ())


@pytest.mark.parametrize("everything", [EVERYWHERE, "*"])
def test_all_traffic_allowed_goes_before_denied(everything: str) -> None:
    """It means internet access: given where the server gives it, else a refusal."""
    assert reach("public", None, [everything], [EVERYWHERE]).policy == PUBLIC
    for internet in ("none", "packages"):
        with pytest.raises(Refusal, match="cannot be allowed"):
            reach(internet, None, [everything], [EVERYWHERE])


def test_what_cannot_be_reached_anyway_may_be_denied() -> None:
    """Private addresses never can be; without a way out nothing can."""
    assert reach("public", None, deny=["10.0.0.0/8", "169.254.169.254", "fd00::/8"]).policy == PUBLIC
    assert reach("none", None, deny=["8.8.8.8"]).policy == NONE
    assert reach("public", None, allow=["1.1.1.1"]).policy == PUBLIC


@pytest.mark.parametrize(
    "internet, options, part",
    [
        ("public", {"deny": ["8.8.8.8"]}, "cannot be denied one by one"),
        ("packages", {"deny": ["8.8.8.0/24"]}, "cannot be denied one by one"),
        ("public", {"allow": ["1.1.1.1"], "deny": [EVERYWHERE]}, "cannot be allowed one by one"),
        ("none", {"allow": ["1.1.1.1"]}, "cannot be allowed one by one"),
        ("public", {"allow": ["10.0.0.1"]}, "cannot be allowed one by one"),
        ("public", {"allow": ["example.com"]}, "you must include 'ALL_TRAFFIC' in deny out"),
        ("public", {"deny": ["example.com"]}, "invalid denied CIDR example.com"),
        ("public", {"deny": ["0.0.0.0"]}, "invalid denied CIDR 0.0.0.0"),
        ("public", {"deny": ["::/0"]}, "invalid denied CIDR ::/0"),
        ("public", {"allow": ["0.0.0.0"]}, "invalid allowed address 0.0.0.0"),
        ("public", {"rules": {"example.com": [{"transform": {"headers": {"A": "b"}}}]}}, "transforms"),
        ("public", {"egress_proxy": {"address": "proxy:1080"}}, "egress proxy"),
        ("public", {"dns_servers": ["8.8.8.8"]}, "DNS servers"),
        ("public", {"https_ports": [8443]}, "httpsPorts"),
    ],
)
def test_what_cannot_be_honoured_is_refused(internet: Internet, options: dict, part: str) -> None:
    """Never dropped: a 400 that says what to do instead, or upstream's words where it refuses too."""
    with pytest.raises(Refusal) as caught:
        reach(internet, None, **options)
    assert caught.value.status == 400
    assert part in str(caught.value)


def test_what_asks_for_nothing_is_taken() -> None:
    """Empty lists and ``null`` of the options that are not there."""
    assert reach("none", None, [], [], rules={}, dns_servers=[], https_ports=[]).policy == NONE


async def test_a_bad_name_is_refused(stage: Stage) -> None:
    """What is no host name is a 400 of the policy's own."""
    network = {"allowOut": ["exa mple.com"], "denyOut": [EVERYWHERE]}
    body = {"templateID": "base", "network": network}
    assert refusal(await stage.client.post("/v2/sandboxes", json=body))[0] == 400


async def test_the_answer_shows_what_was_not_given(stage: Stage) -> None:
    """Old SDKs ask for internet access by default; the answer and the details carry the warning, and what holds."""
    told = await stage.create(allow_internet_access=True)
    detail = (await stage.client.get(f"/sandboxes/{told['sandboxID']}")).json()
    assert told["warnings"] == detail["warnings"]
    assert "no internet access" in told["warnings"][0]
    assert detail["allowInternetAccess"] is False
    assert detail["networkAccess"] == "nothing"
    assert "warnings" not in await stage.create(allow_internet_access=False)


@pytest.mark.route("PUT /sandboxes/{sandboxID}/network")
async def test_an_update_replaces_what_held(stage: Stage, network_stage: Any) -> None:
    """What is left out is cleared; details show the new options; ``maskRequestHost`` stays."""
    options = {"allowOut": ["a.example"], "denyOut": [EVERYWHERE], "maskRequestHost": "m.example"}
    told = await stage.create(network=options)
    path = f"/sandboxes/{told['sandboxID']}"
    update = {"allowOut": ["b.example"], "denyOut": [EVERYWHERE]}
    assert (await stage.client.put(f"{path}/network", json=update)).status_code == 204
    detail = (await stage.client.get(path)).json()
    assert detail["network"] == {**update, "maskRequestHost": "m.example"}
    assert detail["networkAccess"] == "b.example"
    assert network_stage.policies == [NetworkPolicy("allow", ("b.example",))]
    assert (await stage.client.put(f"{path}/network", json={})).status_code == 204
    detail = (await stage.client.get(path)).json()
    assert detail["networkAccess"] == "nothing"
    assert "no internet access" in detail["warnings"][0]


async def test_a_way_out_cannot_be_made_later(stage: Stage) -> None:
    """A sandbox that was created without one takes updates that give none, and refuses others."""
    told = await stage.create(allow_internet_access=False)
    path = f"/sandboxes/{told['sandboxID']}/network"
    for body in ({}, {"denyOut": ["8.8.8.8"]}, {"allow_internet_access": False}):
        assert (await stage.client.put(path, json=body)).status_code == 204
    body = {"allowOut": ["a.example"], "denyOut": [EVERYWHERE]}
    code, message = refusal(await stage.client.put(path, json=body))
    assert code == 400
    assert "created without a way out" in message


@pytest.fixture
def network_stage(stage: Stage) -> Any:
    """Give sandboxes with a policy a way out that remembers what it was set to."""
    from cellfork.model.network import Denial, Traffic

    class FakeNetwork:
        def __init__(self, policy: NetworkPolicy) -> None:
            self.policy = policy
            self.policies: list[NetworkPolicy] = []

        def set_policy(self, policy: NetworkPolicy) -> None:
            self.policy = policy
            self.policies.append(policy)

        def denied(self) -> list[Denial]:
            return []

        def traffic(self) -> Traffic:
            return Traffic()

    class Recorder:
        made: Any = None

        @property
        def policies(self) -> list[NetworkPolicy]:
            return self.made.policies

    recorder = Recorder()

    def connect(guest) -> None:
        if guest.spec.network.mode != "none":
            recorder.made = guest.network = FakeNetwork(guest.spec.network)

    stage.runtime.on_start = connect
    return recorder
