"""Who may call the control plane, and the form of what it refuses."""

import json
from typing import Any

import pytest

from cellfork.dialects.e2b.routes import BODY, SERVED
from cellfork.dialects.e2b.unserved import REASONS
from cellfork.model.specs import SandboxSpec

from .conftest import Stage, refusal

ROUTES = sorted({**REASONS, **SERVED})


def path_of(pattern: str) -> str:
    return pattern.replace("{sandboxID}", "i0000abc").replace("{", "").replace("}", "")


@pytest.mark.parametrize("method, pattern", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [{}, {"X-API-KEY": "wrong"}, {"Authorization": "Bearer key-of-one"}],
    ids=["none", "wrong", "bearer"],
)
async def test_every_route_asks_for_a_key(stage: Stage, method: str, pattern: str, headers: dict) -> None:
    """Without a key, with a wrong one and with an access token every route is 401, before it looks at anything."""
    answer = await stage.client_of(None).request(method, path_of(pattern), headers=headers)
    code, message = refusal(answer)
    assert code == 401
    assert "key-of-one" not in message
    assert ("access tokens are not taken" in message) == ("Authorization" in headers)


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/sandboxes/{id}"),
        ("DELETE", "/sandboxes/{id}"),
        ("GET", "/sandboxes/{id}/metrics"),
        ("POST", "/sandboxes/{id}/connect"),
        ("POST", "/v2/sandboxes/{id}/connect"),
        ("POST", "/sandboxes/{id}/timeout"),
        ("POST", "/sandboxes/{id}/refreshes"),
        ("POST", "/sandboxes/{id}/resume"),
        ("POST", "/sandboxes/{id}/pause"),
        ("POST", "/sandboxes/{id}/fork"),
        ("POST", "/sandboxes/{id}/snapshots"),
        ("PUT", "/sandboxes/{id}/network"),
    ],
)
async def test_a_tenant_sees_only_its_own(stage: Stage, method: str, path: str) -> None:
    """A sandbox of another key is as absent as one that never was, in every route, and stays untouched."""
    told = await stage.create()
    other = stage.client_of("key-of-two")
    body: dict[str, Any] = {} if method in {"GET", "DELETE"} else {"json": {"timeout": 10}}
    answers = [
        await other.request(method, path.replace("{id}", id), **body)
        for id in (told["sandboxID"], "i0000none")
    ]
    messages = [refusal(answer)[1] for answer in answers]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert messages[0].replace(told["sandboxID"], "i0000none") == messages[1]
    assert stage.sandbox(told).state == "running"
    assert (await other.get("/v2/sandboxes")).json() == []
    assert (await other.get("/sandboxes")).json() == []
    metrics = await other.get(f"/sandboxes/metrics?sandbox_ids={told['sandboxID']}")
    assert metrics.json() == {"sandboxes": {}}


async def test_sandboxes_of_other_dialects_are_not_this_one_s(stage: Stage) -> None:
    """What was created without this dialect's tokens is neither listed nor reached through it."""
    sandbox = await stage.engine.create(SandboxSpec(tenant="one"))
    assert await stage.ids() == []
    assert (await stage.client.get(f"/sandboxes/{sandbox.id}")).status_code == 404


@pytest.mark.parametrize("id", ["A", "i-a-b", "-", "-x", "i_", "%2e%2e", "i%00", "x" * 200, "ä", "i%2Fa"])
async def test_what_is_no_id_is_refused(stage: Stage, id: str) -> None:
    """Ids are lower-case letters and digits; anything else is 400 in upstream's words."""
    assert refusal(await stage.client.get(f"/sandboxes/{id}")) == (400, "Invalid sandbox ID")


async def test_an_id_may_carry_the_machine_s(stage: Stage) -> None:
    """Clients of old append ``-clientID``."""
    told = await stage.create()
    answer = await stage.client.get(f"/sandboxes/{told['sandboxID']}-{told['clientID']}")
    assert answer.json()["sandboxID"] == told["sandboxID"]


@pytest.mark.parametrize(
    "path", ["/", "/none", "/sandboxes/", "/sandboxes//metrics", "/v2", "/sandboxes/a/b/c", "/a" * 99]
)
async def test_an_unknown_path_is_not_found(stage: Stage, path: str) -> None:
    """404 in the dialect's own form, with a key and without."""
    for client in (stage.client, stage.client_of(None)):
        assert refusal(await client.get(path))[0] == 404


async def test_a_known_path_names_its_methods(stage: Stage) -> None:
    """405 lists what the path takes."""
    answer = await stage.client.request("PATCH", "/v2/sandboxes")
    assert refusal(answer)[0] == 405
    assert answer.headers["allow"] == "GET, POST"


@pytest.mark.parametrize("method, pattern", sorted(REASONS))
async def test_what_is_not_served_says_why(stage: Stage, method: str, pattern: str) -> None:
    """Every route of upstream's that is not served is a 400 with a sentence that says what to do instead."""
    code, message = refusal(await stage.client.request(method, path_of(pattern)))
    assert code == 400
    assert message == REASONS[method, pattern]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'"x"',
        b"\xff",
        b'{"templateID": "\xff"}',
        b"[" * 100_000,
        b'{"templateID":"\\ud800"}',
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(stage: Stage, body: bytes) -> None:
    """400, whatever it is; never an error of the server."""
    headers = {"content-type": "application/json"}
    code, _ = refusal(await stage.client.post("/v2/sandboxes", content=body, headers=headers))
    assert code == 400


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_says_that_it_is_json(stage: Stage, kind: str) -> None:
    """Pages may send other types across origins without being asked first; they get nothing done."""
    headers = {"content-type": kind}
    body = json.dumps({"templateID": "base"}).encode()
    assert refusal(await stage.client.post("/v2/sandboxes", content=body, headers=headers))[0] == 400
    assert stage.engine.list() == []


async def test_a_body_comes_in_pieces(stage: Stage) -> None:
    """The JavaScript SDK sends chunked bodies: any cut is taken."""

    async def pieces():
        for byte in json.dumps({"templateID": "base"}).encode():
            yield bytes([byte])

    headers = {"content-type": "application/json; charset=utf-8"}
    answer = await stage.client.post("/v2/sandboxes", content=pieces(), headers=headers)
    assert answer.status_code == 201


async def test_a_body_is_bounded(stage: Stage) -> None:
    """One byte more than the bound is 413, told ahead or not."""
    body = b'{"templateID": "base"' + b" " * BODY + b"}"

    async def pieces():
        yield body

    headers = {"content-type": "application/json"}
    for content in (body, pieces()):
        assert refusal(await stage.client.post("/v2/sandboxes", content=content, headers=headers))[0] == 413


async def test_a_query_is_bounded(stage: Stage) -> None:
    """Too many parameters, and one that should be there once and is there twice, are 400."""
    assert refusal(await stage.client.get("/v2/sandboxes?" + "a=1&" * 100))[0] == 400
    assert refusal(await stage.client.get("/v2/sandboxes?limit=1&limit=2"))[0] == 400
