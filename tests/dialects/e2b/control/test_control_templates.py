"""Templates and snapshots: what a sandbox can be made from."""

import asyncio
from urllib.parse import quote

import pytest

from cellfork.dialects.e2b.notes import notes_of
from cellfork.model.limits import Limits
from cellfork.model.specs import SandboxSpec

from .conftest import Stage, refusal

# ------------------------------------------------------------------------------------------------ templates


@pytest.mark.route("GET /templates")
@pytest.mark.route("GET /default-templates")
@pytest.mark.route("GET /v2/templates")
async def test_templates_are_listed(stage: Stage) -> None:
    """All three lists show this server's templates with every documented field; the second version has pages."""
    for path in ("/templates", "/default-templates", "/v2/templates"):
        told = (await stage.client.get(path)).json()
        by_id = {template["templateID"]: template for template in told}
        assert set(by_id) == {"default", "Large.One"}
        large = by_id["Large.One"]
        assert (large["cpuCount"], large["memoryMB"], large["diskSizeMB"]) == (3, 2048, 1024)
        assert by_id["default"]["aliases"] == ["code-interpreter-v1", "base"]
        assert by_id["default"]["names"] == ["default", "code-interpreter-v1", "base"]
        assert by_id["default"]["buildID"] != large["buildID"]
        assert {"createdBy", "lastSpawnedAt", "spawnCount", "buildStatus", "public"} <= set(large)
    first = await stage.client.get("/v2/templates?limit=1")
    second = await stage.client.get(f"/v2/templates?limit=1&nextToken={first.headers['x-next-token']}")
    assert "x-next-token" not in second.headers
    assert {page.json()[0]["templateID"] for page in (first, second)} == {"default", "Large.One"}


@pytest.mark.route("GET /templates/{templateID}")
@pytest.mark.route("GET /templates/{templateID}/tags")
@pytest.mark.route("GET /templates/aliases/{alias}")
async def test_a_template_by_any_of_its_names(stage: Stage) -> None:
    """Its one build is ready and the same everywhere; its one tag is ``default``."""
    for name in ("default", "base", "code-interpreter-v1", "base:default"):
        told = (await stage.client.get(f"/templates/{quote(name, safe='')}")).json()
        assert told["templateID"] == "default"
        (build,) = told["builds"]
        assert build["status"] == "ready"
        (tag,) = (await stage.client.get(f"/templates/{name}/tags")).json()
        assert (tag["tag"], tag["buildID"]) == ("default", build["buildID"])
        alias = await stage.client.get(f"/templates/aliases/{name}")
        assert alias.json() == {"templateID": "default", "public": True}


@pytest.mark.parametrize(
    "path", ["/templates/x", "/templates/x/tags", "/templates/aliases/x", "/templates/aliases/base:v1"]
)
async def test_a_template_that_is_not_there(stage: Stage, path: str) -> None:
    """404, which SDKs read as "does not exist"."""
    assert refusal(await stage.client.get(path))[0] == 404


async def test_what_cannot_be_a_name(stage: Stage) -> None:
    """400."""
    for name in ("a%20b", "%2F", "a%2Fb%2Fc", ":", "a:", "%00"):
        assert refusal(await stage.client.get(f"/templates/aliases/{name}"))[0] == 400


async def test_a_template_of_the_settings_stays(stage: Stage) -> None:
    """It cannot be deleted through the API, by none of its names."""
    for name in ("default", "base", "base:default"):
        code, message = refusal(await stage.client.delete(f"/templates/{name}"))
        assert code == 400
        assert "settings" in message
    assert len((await stage.client.get("/templates")).json()) == 2


# ------------------------------------------------------------------------------------------------ snapshots


async def snapshot(stage: Stage, told: dict, **body) -> dict:
    answer = await stage.client.post(f"/sandboxes/{told['sandboxID']}/snapshots", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def listed(stage: Stage, query: str = "") -> list[str]:
    answer = await stage.client.get(f"/snapshots{query}")
    assert answer.status_code == 200, answer.text
    return [entry["snapshotID"] for entry in answer.json()]


@pytest.mark.route("POST /sandboxes/{sandboxID}/snapshots")
@pytest.mark.route("DELETE /templates/{templateID}")
async def test_a_snapshot_is_a_template(stage: Stage) -> None:
    """Its id creates sandboxes with its template and limits, until it is deleted, which works once."""
    source = await stage.create(templateID="Large.One")
    made = await snapshot(stage, source)
    assert made["names"] == []
    told = await stage.create(templateID=made["snapshotID"])
    sandbox = stage.sandbox(told)
    assert told["templateID"] == made["snapshotID"]
    assert sandbox.spec.template.name == "Large.One"
    assert sandbox.limits == Limits(memory="2G", cpu=2.5)
    assert stage.sandbox(source).state == "running"
    path = f"/templates/{quote(made['snapshotID'], safe='')}"
    assert (await stage.client.delete(path)).status_code == 204
    assert refusal(await stage.client.delete(path))[0] == 404
    answer = await stage.client.post("/v2/sandboxes", json={"templateID": made["snapshotID"]})
    assert refusal(answer)[0] == 404
    assert sandbox.state == "running"


async def test_a_snapshot_needs_no_body(stage: Stage) -> None:
    """It has no name then, and its id alone names it, with its tag and without."""
    source = await stage.create()
    answer = await stage.client.post(f"/sandboxes/{source['sandboxID']}/snapshots")
    id = answer.json()["snapshotID"]
    assert id.endswith(":default")
    for name in (id, id.removesuffix(":default")):
        await stage.create(templateID=name)


async def test_a_snapshot_with_a_name(stage: Stage) -> None:
    """The id that clients get is the name with its tag; ``default`` where none is written."""
    source = await stage.create()
    made = await snapshot(stage, source, name="Mine")
    assert made == {"snapshotID": "mine:default", "names": ["mine"]}
    tagged = await snapshot(stage, source, name="mine:v2")
    assert tagged == {"snapshotID": "mine:v2", "names": ["mine"]}
    for name, alias in (("mine", "mine"), ("mine:default", "mine"), ("mine:v2", "mine")):
        assert (await stage.create(templateID=name))["alias"] == alias
    answer = await stage.client.post("/v2/sandboxes", json={"templateID": "mine:v3"})
    assert refusal(answer)[0] == 404


async def test_a_name_passes_to_the_newer_snapshot(stage: Stage) -> None:
    """The same name and tag mean the newest; the older one, which nothing names any more, is gone."""
    source = await stage.create()
    await snapshot(stage, source, name="mine")
    await stage.clock.advance(1)
    await snapshot(stage, source, name="mine")
    assert await listed(stage) == ["mine:default"]
    assert len(stage.engine.snapshots()) == 1


@pytest.mark.parametrize("name", ["", " ", "a b", "a:", ":a", "team/mine", "base", "default", "x" * 600, "ä"])
async def test_a_name_that_is_none_is_refused(stage: Stage, name: str) -> None:
    """Malformed names, namespaces, and those of this server's templates are 400, and nothing is kept."""
    source = await stage.create()
    answer = await stage.client.post(f"/sandboxes/{source['sandboxID']}/snapshots", json={"name": name})
    assert refusal(answer)[0] == 400
    assert stage.engine.snapshots() == []


@pytest.mark.route("GET /snapshots")
async def test_snapshots_are_listed(stage: Stage) -> None:
    """The newest first, in pages, by sandbox and by name, with a tag or any."""
    one, two = await stage.create(), await stage.create()
    ids = []
    for source, body in ((one, {}), (one, {"name": "mine:v1"}), (two, {"name": "mine:v2"})):
        ids.append((await snapshot(stage, source, **body))["snapshotID"])
        await stage.clock.advance(1)
    assert await listed(stage) == ids[::-1]
    assert await listed(stage, f"?sandboxID={one['sandboxID']}") == [ids[1], ids[0]]
    assert await listed(stage, "?sandboxID=i0000none") == []
    assert await listed(stage, "?name=mine") == [ids[2], ids[1]]
    assert await listed(stage, "?name=mine:v1") == [ids[1]]
    assert await listed(stage, f"?name={ids[0]}") == [ids[0]]
    assert await listed(stage, "?name=mine:default") == []
    assert await listed(stage, "?name=other") == []
    first = await stage.client.get("/snapshots?limit=2")
    assert await listed(stage, f"?limit=2&nextToken={first.headers['x-next-token']}") == [ids[0]]
    assert refusal(await stage.client.get("/snapshots?nextToken=x"))[0] == 400
    assert refusal(await stage.client.get("/snapshots?name=a%20b"))[0] == 400


async def test_a_name_without_a_tag_deletes_all_tags(stage: Stage) -> None:
    """With a tag it deletes that one alone."""
    source = await stage.create()
    for name in ("mine:v1", "mine:v2", "mine:v3", "other"):
        await snapshot(stage, source, name=name)
    assert (await stage.client.delete("/templates/mine%3Av1")).status_code == 204
    assert set(await listed(stage)) == {"mine:v2", "mine:v3", "other:default"}
    assert (await stage.client.delete("/templates/mine")).status_code == 204
    assert await listed(stage) == ["other:default"]


async def test_snapshots_of_others_are_not_there(stage: Stage) -> None:
    """Another key neither lists, nor starts from, nor deletes them, and has its own under the same name."""
    made = await snapshot(stage, await stage.create(), name="mine")
    other = stage.client_of("key-of-two")
    assert (await other.get("/snapshots")).json() == []
    for id in (made["snapshotID"], stage.engine.snapshots()[0].id):
        assert refusal(await other.post("/v2/sandboxes", json={"templateID": id}))[0] == 404
        assert refusal(await other.delete(f"/templates/{quote(id)}"))[0] == 404
    theirs = await stage.create(other)
    await other.post(f"/sandboxes/{theirs['sandboxID']}/snapshots", json={"name": "mine"})
    assert await listed(stage) == ["mine:default"]
    assert len(stage.engine.snapshots()) == 2


async def test_a_snapshot_that_another_dialect_named(stage: Stage) -> None:
    """A name that E2B could not write is none here; the id is."""
    sandbox = await stage.engine.create(SandboxSpec(tenant="one"))
    made = await stage.engine.snapshot(sandbox.id, "A name of its own")
    assert await listed(stage) == [f"{made.id}:default"]
    told = await stage.create(templateID=made.id)
    notes = notes_of(stage.sandbox(told))
    assert notes is not None
    assert notes.template == f"{made.id}:default"


async def test_the_same_key_makes_one_snapshot(stage: Stage) -> None:
    """Snapshots and forks heed the idempotency key too."""
    source = await stage.create()
    headers = {"Idempotency-Key": "k"}
    path = f"/sandboxes/{source['sandboxID']}"
    answers = [await stage.client.post(f"{path}/snapshots", json={}, headers=headers) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert len(stage.engine.snapshots()) == 1
    headers = {"Idempotency-Key": "l"}
    posts = [stage.client.post(f"{path}/fork", headers=headers) for _ in range(3)]
    assert len({answer.text for answer in await asyncio.gather(*posts)}) == 1
    assert len(stage.engine.list()) == 2
