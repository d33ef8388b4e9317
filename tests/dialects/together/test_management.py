"""The management API: sandboxes and snapshots, their life, their lists, and what is refused."""

import uuid

from cellfork.dialects.together.snapshots import DEFAULT_ID
from tests.dialects.together.conftest import served
from tests.server.conftest import OTHER_KEY

REQUIRED = {
    "id", "organization_id", "project_id", "snapshot_id", "cpu", "memory_bytes", "agent", "ttl", "tags", "termination_policy",
    "status", "status_reason", "created_at", "started_at", "resized_at", "recovery_at", "terminated_at", "updated_at",
}  # fmt: skip


async def test_a_sandbox_runs_when_its_creation_answers(place) -> None:
    """All eighteen fields are there, the ids are UUIDs, and the agent can be reached."""
    told = await place.create(tags={"who": "me"}, ttl=60)
    assert set(told) == REQUIRED
    assert str(uuid.UUID(told["id"])) == told["id"]
    assert str(uuid.UUID(told["snapshot_id"])) == told["snapshot_id"]
    assert (told["status"], told["tags"], told["ttl"]) == ("running", {"who": "me"}, 60)
    agent = await place.agent(told)
    assert (await agent.get("/api/v1/execs")).json() == {"execs": []}


async def test_resources_are_those_that_were_asked_for(place) -> None:
    """``cpu`` and ``memory_bytes`` become the sandbox's limits, and are told back."""
    told = await place.create(cpu=0.5, memory_bytes=300_000_000)
    assert (told["cpu"], told["memory_bytes"]) == (0.5, 300_000_000)
    limits = place.engine.list()[0].limits
    assert (limits.cpu, limits.memory_bytes) == (0.5, 300_000_000)


async def test_malformed_requests_are_refused(place) -> None:
    """Wrong types, numbers out of range and what cannot be honoured are 400, and nothing is created."""
    for body in [
        {},
        {"snapshot_id": DEFAULT_ID, "snapshot_alias": "default"},
        {"snapshot_id": DEFAULT_ID, "cpu": 0},
        {"snapshot_id": DEFAULT_ID, "cpu": "1"},
        {"snapshot_id": DEFAULT_ID, "memory_bytes": 1},
        {"snapshot_id": DEFAULT_ID, "ttl": 0},
        {"snapshot_id": DEFAULT_ID, "ttl": 10**9},
        {"snapshot_id": DEFAULT_ID, "tags": {"a": 1}},
        {"snapshot_id": DEFAULT_ID, "experimental": {"network_policy": {}}},
        {"snapshot_id": DEFAULT_ID, "termination_policy": {"snapshot": {"memory": True}}},
    ]:
        answer = await place.client.post("/v1/sandboxes", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json().keys() == {"code", "message", "errors"}
        assert place.engine.list() == []


async def test_what_is_no_json_object_is_refused(place) -> None:
    """Whatever the bytes are, the answer is 400 in the API's own form."""
    for body in [b"{", b"[]", b"\xff", b'"x"', b"nul"]:
        answer = await place.client.post("/v1/sandboxes", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_unknown_snapshots_are_not_found(place) -> None:
    """An id or alias that names nothing is 404."""
    for body in ({"snapshot_id": str(uuid.uuid4())}, {"snapshot_alias": "nothing"}):
        answer = await place.client.post("/v1/sandboxes", json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_ids_of_elsewhere_may_stand_for_a_template() -> None:
    """An id that the server's owner maps to a template gives it, as an image's name does; it is told back as it was asked for."""
    id = str(uuid.uuid4())
    async with served(state=None, images=((f"{id}*", "default"),)) as place:
        assert (await place.create(snapshot_id=id))["snapshot_id"] == id


async def test_every_route_asks_for_the_key(place) -> None:
    """Without the right key every route is 401, and says how a key is sent."""
    for token in [None, "wrong", OTHER_KEY + "x"]:
        client = await place.new_client(f"{place.url}/together", token)
        id = str(uuid.uuid4())
        for method, path in (
            ("POST", "/v1/sandboxes"),
            ("GET", "/v1/sandboxes"),
            ("GET", "/v1/sandboxes/batch"),
            ("GET", f"/v1/sandboxes/{id}"),
            ("POST", f"/v1/sandboxes/{id}/wait"),
            ("POST", f"/v1/sandboxes/{id}/terminate"),
            ("GET", "/v1/snapshots"),
            ("POST", "/v1/snapshots"),
            ("GET", f"/v1/snapshots/{id}"),
            ("GET", "/v1/snapshots/@default"),
            ("POST", f"/v1/snapshots/{id}/retire"),
            ("POST", f"/v1/snapshots/{id}/aliases"),
            ("DELETE", "/v1/snapshot-aliases/x"),
            ("POST", "/v1/authorize"),
            ("POST", "/builds"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), path


async def test_tenants_see_only_their_own(place) -> None:
    """Another key's sandbox is not found, not listed, and cannot be ended."""
    told = await place.create()
    other = await place.new_client(f"{place.url}/together", OTHER_KEY)
    assert (await other.get(f"/v1/sandboxes/{told['id']}")).status_code == 404
    assert (await other.post(f"/v1/sandboxes/{told['id']}/terminate")).status_code == 404
    assert (await other.get("/v1/sandboxes")).json() == {"data": [], "next_cursor": None}
    assert (await place.client.get(f"/v1/sandboxes/{told['id']}")).json()["status"] == "running"


async def test_termination(place) -> None:
    """A terminated sandbox can still be asked for, has no agent any more, and is terminated once."""
    told = await place.create()
    path = f"/v1/sandboxes/{told['id']}"
    for _ in range(2):
        answer = await place.client.post(f"{path}/terminate", json={})
        assert (answer.status_code, answer.json()["status"]) == (200, "terminated")
    after = (await place.client.post(f"{path}/wait")).json()
    assert after["status_reason"] == "termination_requested"
    assert after["agent"]["url"] is after["agent"]["token"] is None
    assert (await (await place.agent(told)).get("/api/v1/execs")).status_code == 404


async def test_the_time_to_live_ends_a_sandbox(place) -> None:
    """After ``ttl`` seconds the status is terminated, and the reason says so."""
    told = await place.create(ttl=1)
    sandbox = place.engine.list()[0]
    sandbox.set_timeout(0.01)
    while sandbox.state == "running":
        await _breathe()
    after = (await place.client.get(f"/v1/sandboxes/{told['id']}")).json()
    assert (after["status"], after["status_reason"]) == ("terminated", "autoterminated")


async def test_pages(place) -> None:
    """A cursor leads on without gaps and duplicates; the last page has none; filters hold."""
    made = {(await place.create(tags={"n": str(n), "of": "pages"}))["id"] for n in range(3)}
    asked = {"limit": 2, "tags[of]": "pages"}
    first = (await place.client.get("/v1/sandboxes", params=asked)).json()
    cursor = {"cursor": first["next_cursor"]}
    rest = (await place.client.get("/v1/sandboxes", params={**asked, **cursor})).json()
    assert len(first["data"]) == 2
    assert rest["next_cursor"] is None
    assert {value["id"] for value in first["data"] + rest["data"]} == made
    found = (await place.client.get("/v1/sandboxes?tags[of]=pages&tags[n]=1&statuses[]=running")).json()[
        "data"
    ]
    assert [value["tags"]["n"] for value in found] == ["1"]
    assert (await place.client.get("/v1/sandboxes?tags[of]=pages&statuses[]=terminated")).json()["data"] == []
    ids = [("ids[]", value["id"]) for value in first["data"]]
    assert len((await place.client.get("/v1/sandboxes/batch", params=ids)).json()) == 2


async def test_malformed_pages_are_refused(place) -> None:
    """A limit out of range and an unknown cursor are 400."""
    for query in ["limit=0", "limit=101", "limit=x", "cursor=nothing"]:
        for path in ("/v1/sandboxes", "/v1/snapshots"):
            assert (await place.client.get(f"{path}?{query}")).status_code == 400


async def test_snapshot_at_the_end(place) -> None:
    """The policy keeps the files under an alias; sandboxes are created from it; retired it is usable no more."""
    policy = {"snapshot": {"aliases": ["work"]}}
    told = await place.create(termination_policy=policy)
    agent = await place.agent(told)
    await agent.post("/api/v1/files/%2Fnote.txt", content=b"kept")
    assert (await place.client.post(f"/v1/sandboxes/{told['id']}/terminate")).json()["status"] == "terminated"

    snapshot = (await place.client.get("/v1/snapshots/@work")).json()
    assert snapshot["byte_size"] > 0
    assert (await place.client.get(f"/v1/snapshots/@sandbox:{told['id']}")).json()["id"] == snapshot["id"]
    copy = await place.create(snapshot_id=None, snapshot_alias="work")
    assert copy["snapshot_id"] == snapshot["id"]
    content = await (await place.agent(copy)).get("/api/v1/files/%2Fnote.txt")
    assert content.json()["content"] == "kept"

    retired = (await place.client.post(f"/v1/snapshots/{snapshot['id']}/retire")).json()
    assert retired["retired_at"] is not None
    answer = await place.client.post("/v1/sandboxes", json={"snapshot_id": snapshot["id"]})
    assert (answer.status_code, "retired" in answer.text) == (400, True)
    listed = (await place.client.get("/v1/snapshots?exclude_retired=true")).json()["data"]
    assert snapshot["id"] not in {value["id"] for value in listed}


async def test_a_request_overrides_the_policy(place) -> None:
    """``snapshot: null`` keeps nothing, whatever was agreed."""
    told = await place.create(termination_policy={"snapshot": {"aliases": ["work"]}})
    await place.client.post(f"/v1/sandboxes/{told['id']}/terminate", json={"snapshot": None})
    assert (await place.client.get("/v1/snapshots/@work")).status_code == 404


async def test_aliases(place) -> None:
    """An alias names one snapshot at a time, can be taken away, and a template's name is nobody's to take."""
    ids = []
    for _ in range(2):
        told = await place.create()
        await place.client.post(f"/v1/sandboxes/{told['id']}/terminate", json={"snapshot": {}})
        ids.append((await place.client.get(f"/v1/snapshots/@sandbox:{told['id']}")).json()["id"])
    for id in ids:
        answer = await place.client.post(f"/v1/snapshots/{id}/aliases", json={"alias": "current"})
        assert answer.status_code == 204
    assert (await place.client.get("/v1/snapshots/@current")).json()["id"] == ids[1]
    names = [value["alias"] for value in (await place.client.get(f"/v1/snapshots/{ids[0]}/aliases")).json()]
    assert "current" not in names
    assert (await place.client.delete("/v1/snapshot-aliases/current")).status_code == 204
    assert (await place.client.delete("/v1/snapshot-aliases/current")).status_code == 404
    answer = await place.client.post(f"/v1/snapshots/{ids[0]}/aliases", json={"alias": "default"})
    assert answer.status_code == 400


async def test_templates_are_snapshots(place) -> None:
    """The default template has a fixed id and its own name; it cannot be retired."""
    assert (await place.client.get("/v1/snapshots/@default")).json()["id"] == DEFAULT_ID
    assert DEFAULT_ID in {value["id"] for value in (await place.client.get("/v1/snapshots")).json()["data"]}
    assert (await place.client.post(f"/v1/snapshots/{DEFAULT_ID}/retire")).status_code == 400


async def test_what_is_not_there_says_so(place) -> None:
    """A registry is 400 with a remedy; an unknown route is 404 and a wrong method 405, in the same form."""
    answer = await place.client.post("/v1/container-registries/default/credentials")
    assert (answer.status_code, "TOGETHER_LOCAL_BUILD" in answer.json()["message"]) == (400, True)
    for method, path, status in (("GET", "/v1/nothing", 404), ("PUT", "/v1/sandboxes", 405)):
        answer = await place.client.request(method, path)
        assert answer.status_code == status
        assert answer.json().keys() == {"code", "message", "errors"}


async def test_projects(place) -> None:
    """A key is authorized for its own project, and no other."""
    assert (await place.client.post("/v1/authorize", json={"project_id": "cellfork"})).status_code == 204
    assert (await place.client.post("/v1/authorize", json={"project_id": "others"})).status_code == 403
    assert (await place.client.post("/v1/authorize", json={"project_id": []})).status_code == 400


async def test_no_token_is_logged(place) -> None:
    """Neither keys nor agents' tokens are in the log, whether they come by header or query."""
    told = await place.create()
    token = told["agent"]["token"]
    client = await place.new_client(told["agent"]["url"], None)
    assert (await client.get(f"/api/v1/execs?token={token}")).status_code == 200
    assert "/api/v1/execs" in place.log.text
    for secret in (token, told["agent"]["readonly_token"]):
        assert secret not in place.log.text


async def _breathe() -> None:
    import asyncio

    await asyncio.sleep(0.01)
