"""The lifecycle API: sandboxes from their creation to their end, their lists, and what is refused."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.dialects.opensandbox.conftest import IDLE, IMAGE
from tests.server.conftest import OTHER_KEY

ROUTES = (
    ("POST", "/sandboxes"),
    ("GET", "/sandboxes"),
    ("GET", "/sandboxes/x"),
    ("DELETE", "/sandboxes/x"),
    ("PATCH", "/sandboxes/x/metadata"),
    ("POST", "/sandboxes/x/pause"),
    ("POST", "/sandboxes/x/resume"),
    ("POST", "/sandboxes/x/renew-expiration"),
    ("GET", "/sandboxes/x/endpoints/44772"),
    ("GET", "/sandboxes/x/networkpolicy"),
    ("PUT", "/sandboxes/x/networkpolicy"),
    ("PATCH", "/sandboxes/x/networkpolicy"),
    ("DELETE", "/sandboxes/x/networkpolicy"),
    ("POST", "/sandboxes/x/snapshots"),
    ("GET", "/sandboxes/x/diagnostics/logs"),
    ("GET", "/snapshots"),
    ("GET", "/snapshots/x"),
    ("DELETE", "/snapshots/x"),
    ("GET", "/pools"),
    ("GET", "/pools/x"),
    ("POST", "/pools"),
    ("POST", "/templates"),
    ("POST", "/metrics/events"),
)

BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/sandboxes/x/renew-expiration"): {"expiresAt": "2999-01-01T00:00:00Z"},
    ("PATCH", "/sandboxes/x/networkpolicy"): [{"action": "allow", "target": "a.example.com"}],
    ("DELETE", "/sandboxes/x/networkpolicy"): ["a.example.com"],
}
"""Bodies that are right; other routes take an empty object, or none."""


def no_nulls(value) -> bool:
    """Tell whether there is no ``null`` in an answer."""
    if isinstance(value, dict):
        return all(map(no_nulls, value.values()))
    return all(map(no_nulls, value)) if isinstance(value, list) else value is not None


async def test_a_sandbox_runs_when_its_creation_answers(place) -> None:
    """The answer is 202 with what is required and no ``null``; details add the image; execd answers at once."""
    answer = await place.ask(metadata={"tag": "a"}, env={"WHO": "me"})
    told = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/sandboxes/{told['id']}"
    assert {"id", "status", "createdAt", "expiresAt", "entrypoint", "metadata"} == told.keys()
    assert (told["status"]["state"], told["entrypoint"], told["metadata"]) == ("Running", IDLE, {"tag": "a"})
    found = (await place.client.get(f"/v1/sandboxes/{told['id']}")).json()
    assert found == {**told, "image": IMAGE}
    assert no_nulls(found)
    assert await place.shell(told["id"], "echo $WHO") == "me"


async def test_both_forms_of_the_paths_answer(place) -> None:
    """``/v1/…`` is this dialect's, and so is everything below ``/opensandbox``, with the version and without; addresses keep the form."""
    id = (await place.create())["id"]
    for base in ("/v1", "/opensandbox/v1", "/opensandbox"):
        assert (await place.client.get(f"{base}/sandboxes/{id}")).json()["id"] == id
    told = (await place.client.get(f"/opensandbox/v1/sandboxes/{id}/endpoints/44772")).json()
    assert told["endpoint"].endswith(f"/opensandbox/sandboxes/{id}/proxy/44772")
    assert (await place.client.get(f"http://{told['endpoint']}/ping")).status_code == 200
    assert (await place.client.get(f"/v1/sandboxes/{id}/proxy/44772/ping")).status_code == 200


async def test_other_paths_stay_with_the_bare_dialect(place) -> None:
    """``/sandboxes`` without the version is E2B's: its error has a number, ours a word."""
    assert (await place.client.get("/sandboxes")).json()["code"] == 401
    assert isinstance((await place.client.get("/v1/nothing")).json()["code"], str)


async def test_resources_become_limits(place) -> None:
    """Quantities are those of Kubernetes; what is left out is the template's."""
    await place.create(
        resourceLimits={"cpu": "500m", "memory": "300Mi", "ephemeral-storage": "32Mi", "gpu": "0"}
    )
    limits = place.engine.list()[0].limits
    assert (limits.cpu, limits.memory_bytes, limits.disk_bytes) == (0.5, 300 * 2**20, 32 * 2**20)
    await place.create(resourceLimits=...)
    assert place.engine.list()[1].limits == place.engine.list()[1].spec.template.limits


@pytest.mark.parametrize(
    "fields",
    [
        {"image": ...},
        {"image": IMAGE, "snapshotId": "x"},
        {"image": IMAGE, "templateId": "default"},
        {"image": {"uri": ""}},
        {"image": {"uri": "nobody/knows:it"}},
        {"image": {"uri": "python:2.7"}},
        {"image": ..., "templateId": "nothing"},
        {"image": ..., "extensions": {"poolRef": "nothing"}},
        {"entrypoint": ...},
        {"entrypoint": []},
        {"entrypoint": [""]},
        {"entrypoint": ["/no/such/program"]},
        {"timeout": 59},
        {"timeout": "300"},
        {"timeout": 86401},
        {"resourceLimits": {"gpu": "1"}},
        {"resourceLimits": {"memory": "1"}},
        {"resourceLimits": {"memory": "many"}},
        {"resourceLimits": {"memory": "-1Gi"}},
        {"resourceLimits": {"cpu": "0"}},
        {"resourceLimits": {"cpu": "9" * 30}},
        {"resourceLimits": {"something": "1"}},
        {"resourceRequests": {"cpu": "1"}},
        {"env": {"A=B": "1"}},
        {"env": {"A": 1}},
        {"metadata": {"opensandbox.io/x": "1"}},
        {"metadata": {"no label": "1"}},
        {"metadata": {"Bad_Prefix/x": "1"}},
        {"metadata": {"x": "ä"}},
        {"metadata": {"x": "1\n"}},
        {"platform": {"os": "windows", "arch": "amd64"}},
        {"networkPolicy": {"defaultAction": "maybe"}},
        {"networkPolicy": {"defaultAction": "allow"}},
        {"networkPolicy": {"egress": [{"action": "allow", "target": "10.0.0.1"}]}},
        {"networkPolicy": {"egress": [{"action": "allow", "target": "no host"}]}},
        {"credentialProxy": {"enabled": True}},
        {"lifecycle": {"preStart": {"command": ["true"]}}},
        {"extensions": {"access.renew.extend.seconds": "299"}},
        {"extensions": {"access.renew.extend.seconds": "9" * 400}},
    ],
)
async def test_what_is_malformed_or_not_to_be_had_is_refused(place, fields) -> None:
    """It is 400 with a code and a message, and nothing is left running."""
    answer = await place.ask(**fields)
    assert answer.status_code == 400, answer.text
    assert answer.json().keys() == {"code", "message"}
    assert place.engine.list() == []


async def test_what_is_no_json_object_is_refused(place) -> None:
    """Whatever the bytes are, the answer is 400 in the API's own form."""
    for path in ("/v1/sandboxes", "/v1/sandboxes/x/renew-expiration", "/v1/metrics/events"):
        for body in [b"{", b"[]", b"\xff", b'"x"', b"nul", b"[" * 100_000]:
            answer = await place.client.post(path, content=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "SANDBOX::INVALID_PARAMETER"), body[
                :9
            ]


async def test_an_unknown_image_names_what_there_is(place) -> None:
    """The refusal names the templates and the images, those of the server's owner first."""
    message = (await place.ask(image={"uri": "who/knows:1"})).json()["message"]
    assert (
        message.index("'default'")
        < message.index("'mine/*'")
        < message.index("'opensandbox/code-interpreter:*'")
    )


@pytest.mark.parametrize(
    "uri",
    [
        "opensandbox/code-interpreter",
        "opensandbox/code-interpreter:v1.0.2",
        "registry.example.com:5000/opensandbox/code-interpreter:latest",
        "docker.io/library/python:3.12-slim",
        "python:3",
        "mine/own@sha256:" + 64 * "0",
    ],
)
async def test_known_images(place, uri) -> None:
    """The images of the examples, and those of the server's table, stand for templates, however they are spelled."""
    await place.create(image={"uri": uri, "auth": {"username": "a", "password": "secret"}})
    assert place.engine.list()[0].spec.template.name == "default"
    assert "secret" not in str(place.engine.list()[0].notes)


async def test_a_pool_is_a_template(place) -> None:
    """``poolRef`` names a template by name or alias; image, entrypoint and resources may be left out."""
    told = await place.create(image=..., entrypoint=..., resourceLimits=..., extensions={"poolRef": "also"})
    assert told["extensions"] == {"poolRef": "also"}
    assert (told["entrypoint"], place.engine.list()[0].spec.template.name) == (IDLE, "default")


async def test_pools_are_listed(place) -> None:
    """Each template is one, by name and by alias; where nothing waits and nothing was asked for, all numbers say so."""
    listed = (await place.client.get("/v1/pools")).json()["items"]
    assert [one["name"] for one in listed] == ["default"]
    assert listed[0]["capacitySpec"] == {"bufferMin": 0, "bufferMax": 0, "poolMin": 0, "poolMax": 1000}
    revision = listed[0]["status"].pop("revision")
    assert listed[0]["status"] == {"total": 0, "allocated": 0, "available": 0}
    found = await place.client.get("/v1/pools/also")
    assert (found.json()["name"], found.json()["status"]["revision"]) == ("default", revision)
    unknown = await place.client.get("/v1/pools/nothing")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "KUBERNETES::POOL_NOT_FOUND")


@pytest.mark.parametrize("path", ["POST /v1/pools", "PUT /v1/pools/default", "DELETE /v1/pools/default"])
async def test_pools_are_changed_by_the_owner_of_the_server(place, path) -> None:
    """A change is refused with what to do instead."""
    method, _, target = path.partition(" ")
    answer = await place.client.request(method, target)
    assert (answer.status_code, answer.json()["code"]) == (405, "KUBERNETES::POOL_NOT_SUPPORTED")
    assert answer.headers["allow"] == "GET, HEAD"
    assert "poolRef" in answer.json()["message"]


@pytest.mark.parametrize("pool", [1])
async def test_a_sandbox_of_a_pool_has_waited(place, pool) -> None:
    """The pool tells what waits and what was given out, to each key its own; what waits is given out."""

    async def status(client=place.client) -> tuple[int, int, int]:
        told = (await client.get("/v1/pools/default")).json()["status"]
        return told["total"], told["allocated"], told["available"]

    async def create() -> int:
        told = await place.create(image=..., resourceLimits=..., extensions={"poolRef": "default"})
        return place.engine.get(told["id"]).guest.info["pid"]

    async def filled() -> None:
        while (await status())[2] != pool:
            await asyncio.sleep(0.01)

    await create()
    await asyncio.wait_for(filled(), 20)
    assert await status() == (2, 1, 1)
    shelves = place.engine.runtime_of(place.engine.list()[0].spec)._pool._shelves
    waiting = {guest.info["pid"] for shelf in shelves.values() for guest in shelf._ready}
    assert await create() in waiting
    await asyncio.wait_for(filled(), 20)
    assert await status() == (3, 2, 1)
    other = await place.new_client(OTHER_KEY)
    assert await status(other) == (0, 0, 0)


async def test_the_entrypoint_runs(place) -> None:
    """It gets the sandbox's environment; its end is not the sandbox's."""
    told = await place.create(entrypoint=["sh", "-c", "echo $A > /tmp/a"], env={"A": "it's"})
    for _ in range(100):
        if "it's" in (text := await place.shell(told["id"], "cat /tmp/a")):
            break
        await asyncio.sleep(0.02)
    assert text == "it's"


async def test_without_a_timeout_there_is_no_end(place) -> None:
    """``expiresAt`` is left out, and a renewal is 409."""
    for timeout in (None, ...):
        told = await place.create(timeout=timeout)
        assert "expiresAt" not in told
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        answer = await place.client.post(
            f"/v1/sandboxes/{told['id']}/renew-expiration", json={"expiresAt": later}
        )
        assert answer.status_code == 409


async def test_renewal(place) -> None:
    """Any spelling of a time to come is taken, earlier or later; the past, nonsense and too much are 400."""
    path = f"/v1/sandboxes/{(await place.create())['id']}/renew-expiration"
    for spelled in (
        "%Y-%m-%dT%H:%M:%S.%fZ",
        "%Y-%m-%dT%H:%M:%S.123456789Z",
        "%Y-%m-%dT%H:%M:%S+00:00",
        "%Y-%m-%dT%H:%M:%S",
    ):
        wanted = datetime.now(UTC) + timedelta(minutes=2)
        told = (await place.client.post(path, json={"expiresAt": wanted.strftime(spelled)})).json()
        assert abs(datetime.fromisoformat(told["expiresAt"]) - wanted) < timedelta(seconds=1.5)
    for text in (
        "2020-01-01T00:00:00Z",
        "tomorrow",
        "",
        "9999-12-31T23:59:59Z",
        "2" * 64,
        "0001-01-01T00:00:00+23:59",
    ):
        assert (await place.client.post(path, json={"expiresAt": text})).status_code == 400, text


async def test_pause_and_resume(place) -> None:
    """A paused sandbox says so, refuses what needs it to run, and goes on where it was; twice is 409."""
    id = (await place.create())["id"]
    path = f"/v1/sandboxes/{id}"
    assert (await place.client.post(f"{path}/resume")).json()["code"] == "DOCKER::SANDBOX_NOT_PAUSED"
    assert (await place.client.post(f"{path}/pause")).status_code == 202
    told = (await place.client.get(path)).json()
    assert told["status"]["state"] == "Paused"
    assert "expiresAt" not in told
    url, _headers = await place.endpoint(id, 44772)
    for answer in (
        await place.client.post(f"{path}/pause"),
        await place.client.get(f"{url}/ping"),
        await place.client.post(f"{path}/snapshots"),
        await place.client.post(f"{path}/renew-expiration", json={"expiresAt": "2999-01-01T00:00:00Z"}),
    ):
        assert answer.status_code in {400, 409}, answer.text
    assert (await place.client.post(f"{path}/resume")).status_code == 202
    assert (await place.client.get(path)).json()["status"]["state"] == "Running"
    assert (await place.client.get(f"{url}/ping")).status_code == 200


async def test_the_end(place) -> None:
    """A deleted sandbox is gone for every route, and so is one whose time is over."""
    for end in ("delete", "time"):
        id = (await place.create())["id"]
        sandbox = place.engine.get(id)
        if end == "delete":
            assert (await place.client.delete(f"/v1/sandboxes/{id}")).status_code == 204
        else:
            sandbox.set_timeout(0.01)
            while sandbox.state != "ended":
                await asyncio.sleep(0.01)
        for method, path in ROUTES[2:15]:
            body = BODIES.get((method, path), {})
            answer = await place.client.request(method, f"/v1{path.replace('/x', f'/{id}')}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (404, "DOCKER::SANDBOX_NOT_FOUND"), path
        assert (await place.client.get(f"/sandboxes/{id}/proxy/44772/ping")).status_code == 404


async def test_every_route_asks_for_the_key(place) -> None:
    """Without a key it is 401 and missing, with a wrong one 401 and invalid; the right one in another header is none."""
    for key, code in (
        (None, "MISSING_API_KEY"),
        ("wrong", "INVALID_API_KEY"),
        (OTHER_KEY + "x", "INVALID_API_KEY"),
    ):
        client = await place.new_client(key)
        for method, path in ROUTES:
            answer = await client.request(method, f"/v1{path}", headers={"X-API-Key": OTHER_KEY})
            assert (answer.status_code, answer.json()["code"]) == (401, code), path


async def test_tenants_see_only_their_own(place) -> None:
    """Another key's sandboxes and snapshots are not found, not listed, and stay as they are."""
    id = (await place.create())["id"]
    snapshot = (await place.client.post(f"/v1/sandboxes/{id}/snapshots")).json()["id"]
    other = await place.new_client(OTHER_KEY)
    assert (await other.get("/v1/sandboxes")).json()["items"] == []
    assert (await other.get("/v1/snapshots")).json()["items"] == []
    for method, path in (("GET", f"/sandboxes/{id}"), ("DELETE", f"/sandboxes/{id}"), ("GET", f"/sandboxes/{id}/endpoints/1"),
                         ("POST", f"/sandboxes/{id}/pause"), ("GET", f"/snapshots/{snapshot}"), ("DELETE", f"/snapshots/{snapshot}")):  # fmt: skip
        assert (await other.request(method, f"/v1{path}")).status_code == 404
    body = {"snapshotId": snapshot, "resourceLimits": {}}
    assert (await other.post("/v1/sandboxes", json=body)).status_code == 404
    assert (await place.client.get(f"/v1/sandboxes/{id}")).json()["status"]["state"] == "Running"


async def test_sandboxes_of_another_dialect_are_not_found(place) -> None:
    """What E2B's clients made is theirs."""
    headers = {"X-API-Key": place.client.headers["OPEN-SANDBOX-API-KEY"]}
    made = await place.client.post("/sandboxes", json={"templateID": "default"}, headers=headers)
    id = made.json()["sandboxID"]
    assert (await place.client.get(f"/v1/sandboxes/{id}")).status_code == 404
    assert (await place.client.get(f"/sandboxes/{id}/proxy/44772/ping")).status_code == 404
    assert (await place.client.get("/v1/sandboxes")).json()["items"] == []


async def test_lists(place) -> None:
    """States are alternatives, metadata adds up, pages have at most 200 items, the newest come first."""
    ids = [(await place.create(metadata={"all": "1", "n": str(n)}))["id"] for n in range(3)]
    await place.client.post(f"/v1/sandboxes/{ids[0]}/pause")

    async def listed(query: str) -> list[str]:
        return [item["id"] for item in (await place.client.get(f"/v1/sandboxes?{query}")).json()["items"]]

    assert await listed("") == ids[::-1]
    assert await listed("state=Paused") == ids[:1]
    assert await listed("state=Paused&state=Running") == ids[::-1]
    assert await listed("state=Nothing") == []
    assert await listed("metadata=all%3D1%26n%3D2") == ids[2:]
    assert await listed("metadata=all%3D1%26n%3D9") == []
    assert await listed("page=2&pageSize=2") == ids[:1]
    assert await listed("page=9") == []
    told = (await place.client.get("/v1/sandboxes?page=1&pageSize=2")).json()["pagination"]
    assert told == {"page": 1, "pageSize": 2, "totalItems": 3, "totalPages": 2, "hasNextPage": True}
    for query in (
        "page=0",
        "page=x",
        "page=-1",
        "pageSize=0",
        "pageSize=201",
        "page=" + "9" * 20,
        "metadata=broken",
        "page=%00",
    ):
        assert (await place.client.get(f"/v1/sandboxes?{query}")).status_code == 400, query


async def test_metadata(place) -> None:
    """A merge patch adds, replaces and removes; a bad key or value changes nothing."""
    id = (await place.create(metadata={"a": "1", "b": "2"}))["id"]
    path = f"/v1/sandboxes/{id}/metadata"
    told = (await place.client.patch(path, json={"a": None, "c": "3", "d": None})).json()
    assert (told["metadata"], told["image"]) == ({"b": "2", "c": "3"}, IMAGE)
    wrong: tuple[Any, ...] = (
        {"opensandbox.io/a": "1"},
        {"opensandbox.io/a": None},
        {"x": "a b"},
        {"x": 1},
        [],
    )
    for body in wrong:
        assert (await place.client.patch(path, json=body)).status_code == 400
    assert (await place.client.get("/v1/sandboxes?metadata=c%3D3")).json()["items"][0]["metadata"] == told[
        "metadata"
    ]


async def test_request_ids_come_back(place) -> None:
    """Every answer has the id that its request came with, or one of its own."""
    for headers, path in (
        ({"X-Request-ID": "mine-1"}, "/v1/sandboxes"),
        ({"X-Request-ID": "mine-1"}, "/v1/sandboxes/no/endpoints/1"),
    ):
        assert (await place.client.get(path, headers=headers)).headers["x-request-id"] == "mine-1"
    assert (await place.client.get("/v1/sandboxes/no")).headers["x-request-id"]


async def test_snapshots(place) -> None:
    """A snapshot is complete when it is told, is found by its sandbox and its name, and starts sandboxes."""
    id = (await place.create())["id"]
    await place.shell(id, "echo kept > /home/user/kept")
    answer = await place.client.post(f"/v1/sandboxes/{id}/snapshots", json={"name": "first"})
    told = answer.json()
    assert (answer.status_code, told["status"]["state"], told["sandboxId"], told["name"]) == (
        202,
        "Ready",
        id,
        "first",
    )
    for query in (f"sandboxId={id}", "name=first", "state=Ready", "state=Ready&state=Failed", ""):
        assert (await place.client.get(f"/v1/snapshots?{query}")).json()["items"] == [told], query
    for query in ("sandboxId=x", "name=x", "state=Creating"):
        assert (await place.client.get(f"/v1/snapshots?{query}")).json()["items"] == []
    body = {"snapshotId": told["id"], "timeout": 60}
    copy = (await place.client.post("/v1/sandboxes", json=body)).json()
    assert copy["entrypoint"] == IDLE
    assert (await place.client.get(f"/v1/sandboxes/{copy['id']}")).json()["snapshotId"] == told["id"]
    assert await place.shell(copy["id"], "cat /home/user/kept") == "kept"
    assert (await place.client.delete(f"/v1/snapshots/{told['id']}")).status_code == 204
    for answer in (
        await place.client.delete(f"/v1/snapshots/{told['id']}"),
        await place.client.get(f"/v1/snapshots/{told['id']}"),
        await place.client.post("/v1/sandboxes", json=body),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "SNAPSHOT::NOT_FOUND")
    for wrong in ({"name": ""}, {"name": 1}, {"other": 1}):
        assert (await place.client.post(f"/v1/sandboxes/{id}/snapshots", json=wrong)).status_code == 400


async def test_what_is_not_served_says_so(place) -> None:
    """Templates and diagnostics are 501; unknown routes 404, wrong methods 405; what packages tell of themselves is taken."""
    id = (await place.create())["id"]
    for path in (
        "/v1/templates",
        "/v1/templates/x",
        f"/v1/sandboxes/{id}/diagnostics/events?scope=container",
    ):
        assert (await place.client.get(path)).status_code == 501
    assert (await place.client.get("/v1/nothing")).json()["code"] == "NOT_FOUND"
    wrong = await place.client.put("/v1/sandboxes")
    assert wrong.status_code == 405
    assert {*wrong.headers["allow"].split(", ")} == {"GET", "HEAD", "POST"}
    event = {"eventType": "sandbox.create", "createDurationMs": 1, "success": True}
    assert (await place.client.post("/v1/metrics/events", json=event)).status_code == 204


async def test_a_request_gives_time_where_that_was_asked_for(place) -> None:
    """With ``access.renew.extend.seconds`` a request to a port sets the end that far away, never nearer."""
    told = await place.create(timeout=60, extensions={"access.renew.extend.seconds": "300"})
    sandbox = place.engine.get(told["id"])
    await place.shell(told["id"], "true")
    assert 290 < sandbox.deadline - time.time() < 301
    sandbox.set_timeout(1000)
    await place.shell(told["id"], "true")
    assert sandbox.deadline - time.time() > 990
    plain = await place.create(timeout=60)
    await place.shell(plain["id"], "true")
    assert place.engine.get(plain["id"]).deadline - time.time() < 61
