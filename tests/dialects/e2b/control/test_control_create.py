"""Sandboxes that clients of E2B create: what the engine is asked for, what they are told."""

import asyncio

import pytest

from cellfork.dialects.base import Admission
from cellfork.dialects.e2b.notes import notes_of
from cellfork.model.errors import IsolationUnavailable, Missing, StartupFailed

from .conftest import Stage, refusal

V1 = {
    "templateID": "code-interpreter-v1",
    "timeout": 60,
    "secure": True,
    "allow_internet_access": True,
    "metadata": {"a b": "c/d"},
    "envVars": {"X": "it's"},
}
"""What the Python SDK 2.45 sends."""


@pytest.mark.route("POST /sandboxes")
async def test_the_first_version_creates_what_was_asked_for(stage: Stage) -> None:
    """Template, life, variables and metadata of a v1 body reach the engine; the answer has the documented fields."""
    answer = await stage.client.post("/sandboxes", json=V1)
    assert answer.status_code == 201
    told, sandbox = answer.json(), stage.engine.list()[0]
    assert sandbox.spec.template.name == told["templateID"] == "default"
    assert (sandbox.spec.timeout, sandbox.spec.tenant) == (60, "one")
    assert sandbox.spec.envs["X"] == "it's"
    assert dict(sandbox.spec.metadata) == {"a b": "c/d"}
    assert told["sandboxID"] == sandbox.id
    assert told["alias"] == "code-interpreter-v1"
    assert told["envdVersion"] == "0.6.13"
    assert told["clientID"]
    assert len(told["envdAccessToken"]) == 64
    assert "trafficAccessToken" not in told


@pytest.mark.route("POST /v2/sandboxes")
async def test_the_second_version_is_always_secure(stage: Stage) -> None:
    """A v2 sandbox has an envd token though nobody asked, lives 300 seconds, and its token opens it."""
    told = await stage.create()
    notes = notes_of(stage.sandbox(told))
    assert notes is not None
    assert stage.sandbox(told).spec.timeout == 300
    assert notes.may_enter(told["envdAccessToken"])
    assert not notes.may_enter(None)
    assert not notes.may_enter("")
    assert not notes.may_enter("ä" * 64)


async def test_a_v1_sandbox_is_open_unless_it_is_secure(stage: Stage) -> None:
    """Without ``secure`` there is no token, and none is asked for; its life is 15 seconds."""
    answer = await stage.client.post("/sandboxes", json={"templateID": "base"})
    sandbox = stage.engine.list()[0]
    notes = notes_of(sandbox)
    assert "envdAccessToken" not in answer.json()
    assert notes is not None
    assert notes.may_enter(None)
    assert sandbox.spec.timeout == 15


async def test_two_sandboxes_never_share_a_token(stage: Stage) -> None:
    """Tokens are drawn for each sandbox."""
    told = [await stage.create(network={"allowPublicTraffic": False}) for _ in range(2)]
    tokens = {one[name] for one in told for name in ("envdAccessToken", "trafficAccessToken")}
    assert len(tokens) == 4


async def test_traffic_without_a_token_can_be_refused(stage: Stage) -> None:
    """``allowPublicTraffic`` false gives a traffic token, and v1 refuses it without ``secure`` in upstream's words."""
    told = await stage.create(network={"allowPublicTraffic": False})
    notes = notes_of(stage.sandbox(told))
    assert notes is not None
    assert notes.may_pass(told["trafficAccessToken"])
    assert not notes.may_pass(None)
    body = {"templateID": "base", "network": {"allowPublicTraffic": False}}
    assert refusal(await stage.client.post("/sandboxes", json=body)) == (
        400,
        "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.",
    )


async def test_null_means_absent(stage: Stage) -> None:
    """SDKs send ``null`` for what was not given; unknown fields are passed over."""
    fields = ("timeout", "autoPause", "network", "metadata", "envVars", "mcp", "iam", "volumeMounts", "new")
    told = await stage.create(**dict.fromkeys(fields))
    assert stage.sandbox(told).spec.timeout == 300


@pytest.mark.parametrize(
    "fields, part",
    [
        ({"templateID": 1}, "templateID"),
        ({"templateID": None}, "templateID"),
        ({"timeout": "60"}, "timeout"),
        ({"timeout": 1.5}, "timeout"),
        ({"timeout": 2**40}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": "x" * 70_000}}, "metadata takes at most"),
        ({"envVars": {"a": None}}, "envVars"),
        ({"envVars": {"A=B": "1"}}, "environment variable"),
        ({"envVars": {"A": "x" * 200_000}}, "at most"),
        ({"autoResume": {}}, "enabled"),
        ({"network": {"allowOut": "a"}}, "allowOut"),
        ({"network": {"maskRequestHost": "a b"}}, "mask request host is not valid"),
        ({"network": {"maskRequestHost": "a\r\nX: 1"}}, "mask request host is not valid"),
        ({"timeout": 0}, "Timeout must be greater than 0"),
        ({"timeout": 90_000}, "Timeout cannot be greater than 24 hours"),
        ({"autoPauseMemory": False}, "autoPauseMemory=false only applies when autoPause is true."),
        (
            {"autoPauseMemory": False, "autoPause": True, "autoResume": {"enabled": True}},
            "cannot be combined with autoResume",
        ),
        ({"iam": {"tokens": {"aws": {"audience": "a", "tokenType": "JWT-SVID"}}}}, "IAM"),
        ({"volumeMounts": [{"name": "a", "path": "/a"}]}, "Volume mounts are not enabled"),
        ({"templateID": "a b"}, "Invalid template reference"),
        ({"templateID": ":tag"}, "Invalid template reference"),
        ({"templateID": "base:"}, "Invalid template reference"),
    ],
)
async def test_what_is_wrong_is_refused(stage: Stage, fields: dict, part: str) -> None:
    """A wrong type, a value out of range, and what this server cannot honour are 400 and create nothing."""
    code, message = refusal(await stage.client.post("/v2/sandboxes", json={"templateID": "base", **fields}))
    assert code == 400
    assert part in message
    assert stage.runtime.guests == []


@pytest.mark.parametrize("template", ["nothing", "base:v2", "team/base"])
async def test_an_unknown_template_is_not_found(stage: Stage, template: str) -> None:
    """A template, tag or namespace that this server lacks is 404."""
    code, _ = refusal(await stage.client.post("/v2/sandboxes", json={"templateID": template}))
    assert code == 404


@pytest.mark.parametrize("template", ["default", "base", "base:default", "BASE", " base "])
async def test_a_template_has_many_names(stage: Stage, template: str) -> None:
    """Name, alias, the tag ``default``, any case and surrounding space mean the template; its id is its name."""
    assert (await stage.create(templateID=template))["templateID"] == "default"


async def test_a_template_brings_its_limits(stage: Stage) -> None:
    """A sandbox has its template's limits, which details tell in E2B's units: whole cores, MiB."""
    told = await stage.create(templateID="Large.One")
    detail = (await stage.client.get(f"/sandboxes/{told['sandboxID']}")).json()
    assert (detail["cpuCount"], detail["memoryMB"], detail["diskSizeMB"]) == (3, 2048, 1024)
    assert detail["limits"]["cpu"] == 2.5


async def test_mcp_is_taken_with_a_warning(stage: Stage) -> None:
    """The gateway is started by the client, in the sandbox: the server takes the field and says that it does nothing with it."""
    told = await stage.create(mcp={"server": {}})
    assert any("mcp" in warning for warning in told["warnings"])


async def test_the_answer_names_the_domain(stage: Stage) -> None:
    """Where the server has a wildcard domain, clients are told."""
    client = stage.client_of("key-of-one", domain="sandbox.localhost:8080")
    assert (await stage.create(client))["domain"] == "sandbox.localhost:8080"
    assert "domain" not in await stage.create()


async def test_no_place_is_429(stage: Stage) -> None:
    """A full server says so with 429, and a place that is free again can be used."""
    client = stage.client_of("key-of-one", admission=Admission(stage.engine, most=1))
    told = await stage.create(client)
    answer = await client.post("/v2/sandboxes", json={"templateID": "base"})
    assert refusal(answer) == (429, "this server holds at most 1 sandboxes at once")
    await client.delete(f"/sandboxes/{told['sandboxID']}")
    await stage.create(client)


@pytest.mark.parametrize(
    "error, status, error_code, retry",
    [
        (StartupFailed("no process left"), 503, "sandbox_create_failed", None),
        (
            IsolationUnavailable("no namespaces", (Missing("userns", "why", "fix"),)),
            500,
            "sandbox_create_refused",
            "false",
        ),
    ],
)
async def test_a_sandbox_that_does_not_start(
    stage: Stage, error: Exception, status: int, error_code: str, retry: str | None
) -> None:
    """A start that may work next time is 503, one that never will is 500 and not tried again by SDKs."""

    def fail(guest) -> None:
        raise error

    stage.runtime.on_start = fail
    answer = await stage.client.post("/v2/sandboxes", json={"templateID": "base"})
    code, message = refusal(answer)
    assert (code, answer.json()["error_code"], answer.headers.get("should-retry")) == (
        status,
        error_code,
        retry,
    )
    assert str(error) in message


async def test_a_bug_tells_nothing_of_our_insides(stage: Stage) -> None:
    """An error that nobody foresaw is a 500 of the dialect's form without the error's text."""

    def fail(guest) -> None:
        raise KeyError("secret")

    stage.runtime.on_start = fail
    code, message = refusal(await stage.client.post("/v2/sandboxes", json={"templateID": "base"}))
    assert code == 500
    assert "secret" not in message


# ------------------------------------------------------------------------------------------------ idempotency


async def test_the_same_key_gives_the_same_sandbox(stage: Stage) -> None:
    """A request that is sent again under its key creates nothing and gets the first answer."""
    headers = {"Idempotency-Key": "abc-1"}
    body = {"templateID": "base"}
    first = await stage.client.post("/v2/sandboxes", json=body, headers=headers)
    again = await stage.client.post("/v2/sandboxes", json=body, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    assert len(stage.engine.list()) == 1


async def test_another_body_under_the_same_key_is_refused(stage: Stage) -> None:
    """422 with upstream's error code; another caller's keys are its own."""
    headers = {"Idempotency-Key": "abc-1"}
    await stage.client.post("/v2/sandboxes", json={"templateID": "base"}, headers=headers)
    answer = await stage.client.post("/v2/sandboxes", json={"templateID": "default"}, headers=headers)
    assert refusal(answer)[0] == 422
    assert answer.json()["error_code"] == "idempotency_request_mismatch"
    other = stage.client_of("key-of-two")
    answer = await other.post("/v2/sandboxes", json={"templateID": "default"}, headers=headers)
    assert answer.status_code == 201


async def test_concurrent_requests_with_one_key_wait(stage: Stage) -> None:
    """Of twenty that come at once, one creates and all get its answer."""
    headers = {"Idempotency-Key": "abc-1"}
    posts = [
        stage.client.post("/v2/sandboxes", json={"templateID": "base"}, headers=headers) for _ in range(20)
    ]
    answers = await asyncio.gather(*posts)
    assert {answer.text for answer in answers} == {answers[0].text}
    assert len(stage.engine.list()) == 1


async def test_a_refused_request_may_be_tried_again_under_its_key(stage: Stage) -> None:
    """Only successes are kept."""

    def fail(guest) -> None:
        raise StartupFailed("not now")

    headers = {"Idempotency-Key": "abc-1"}
    stage.runtime.on_start = fail
    posts = [
        stage.client.post("/v2/sandboxes", json={"templateID": "base"}, headers=headers) for _ in range(3)
    ]
    assert [answer.status_code for answer in await asyncio.gather(*posts)] == [503] * 3
    stage.runtime.on_start = None
    answer = await stage.client.post("/v2/sandboxes", json={"templateID": "base"}, headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "a/b"])
async def test_a_malformed_key_is_refused(stage: Stage, key: str) -> None:
    """A key has 1 to 255 plain characters."""
    headers = {"Idempotency-Key": key}
    answer = await stage.client.post("/v2/sandboxes", json={"templateID": "base"}, headers=headers)
    assert refusal(answer)[0] == 400


async def test_keys_are_forgotten_after_a_day(stage: Stage) -> None:
    """Memory is bounded in time: the key is free again."""
    headers = {"Idempotency-Key": "abc-1"}
    body = {"templateID": "base", "timeout": 86_400}
    first = await stage.client.post("/v2/sandboxes", json=body, headers=headers)
    await stage.clock.advance(86_401)
    again = await stage.client.post("/v2/sandboxes", json=body, headers=headers)
    assert first.json()["sandboxID"] != again.json()["sandboxID"]
