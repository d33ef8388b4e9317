"""The life of a sandbox: deadlines, connect, pause and resume, forks, metrics."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from cellfork.dialects.e2b import lifecycle
from cellfork.dialects.e2b.notes import notes_of
from cellfork.model.errors import StartupFailed

from .conftest import Stage, refusal


async def end_at(stage: Stage, id: str) -> float:
    detail = (await stage.client.get(f"/sandboxes/{id}")).json()
    return datetime.fromisoformat(detail["endAt"]).timestamp()


async def state_of(stage: Stage, id: str) -> str | int:
    answer = await stage.client.get(f"/sandboxes/{id}")
    return answer.json()["state"] if answer.status_code == 200 else answer.status_code


@pytest.mark.route("GET /sandboxes/{sandboxID}")
async def test_details_tell_everything(stage: Stage) -> None:
    """The documented fields are there, with what was asked for and what holds."""
    told = await stage.create(
        timeout=60,
        metadata={"a": "1"},
        autoPause=True,
        autoResume={"enabled": True},
        network={"denyOut": ["0.0.0.0/0"], "maskRequestHost": "example.com:${PORT}"},
    )
    detail = (await stage.client.get(f"/sandboxes/{told['sandboxID']}")).json()
    start, end = (datetime.fromisoformat(detail[name]).timestamp() for name in ("startedAt", "endAt"))
    assert end - start == 60
    assert detail["state"] == "running"
    assert detail["metadata"] == {"a": "1"}
    assert detail["lifecycle"] == {"autoResume": True, "onTimeout": "pause"}
    assert detail["network"] == {"denyOut": ["0.0.0.0/0"], "maskRequestHost": "example.com:${PORT}"}
    assert detail["allowInternetAccess"] is False
    assert detail["envdAccessToken"] == told["envdAccessToken"]
    assert detail["volumeMounts"] == []
    assert (detail["cpuCount"], detail["memoryMB"], detail["diskSizeMB"]) == (1, 512, 1024)


@pytest.mark.route("DELETE /sandboxes/{sandboxID}")
async def test_kill_once(stage: Stage) -> None:
    """204 and nothing is left; a second time 404."""
    told = await stage.create()
    path = f"/sandboxes/{told['sandboxID']}"
    answer = await stage.client.delete(path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert stage.guest.killed == ["request"]
    assert refusal(await stage.client.delete(path)) == (
        404,
        f"Sandbox \"{told['sandboxID']}\" doesn't exist or you don't have access to it",
    )


async def test_a_sandbox_ends_at_its_deadline(stage: Stage) -> None:
    """From then on it is 404."""
    told = await stage.create(timeout=60)
    await stage.clock.advance(59)
    assert await state_of(stage, told["sandboxID"]) == "running"
    await stage.clock.advance(1)
    assert await state_of(stage, told["sandboxID"]) == 404


@pytest.mark.route("POST /sandboxes/{sandboxID}/timeout")
async def test_a_timeout_shortens_and_lengthens(stage: Stage) -> None:
    """It counts from now and replaces the deadline either way."""
    told = await stage.create(timeout=60)
    path = f"/sandboxes/{told['sandboxID']}/timeout"
    for seconds in (5, 600):
        assert (await stage.client.post(path, json={"timeout": seconds})).status_code == 204
        assert await end_at(stage, told["sandboxID"]) == stage.clock.monotonic() + seconds


@pytest.mark.parametrize("seconds", [0, -5])
async def test_a_timeout_of_zero_ends_now(stage: Stage, seconds: int) -> None:
    """Zero never means "for ever"."""
    told = await stage.create(timeout=60)
    answer = await stage.client.post(f"/sandboxes/{told['sandboxID']}/timeout", json={"timeout": seconds})
    assert answer.status_code == 204
    assert await state_of(stage, told["sandboxID"]) == 404


@pytest.mark.parametrize("memory", [True, False])
async def test_a_timeout_of_zero_pauses_what_pauses_at_its_end(stage: Stage, memory: bool) -> None:
    """With ``autoPause`` the sandbox sleeps, with its memory or without, as it was created."""
    told = await stage.create(autoPause=True, autoPauseMemory=memory)
    answer = await stage.client.post(f"/sandboxes/{told['sandboxID']}/timeout", json={"timeout": 0})
    assert answer.status_code == 204
    detail = (await stage.client.get(f"/sandboxes/{told['sandboxID']}")).json()
    assert (detail["state"], detail["pauseMode"]) == ("paused", "full" if memory else "filesystem")


@pytest.mark.parametrize("body", [{}, {"timeout": None}, {"timeout": "5"}, {"timeout": 90_000}])
async def test_a_timeout_that_is_none_is_refused(stage: Stage, body: dict) -> None:
    """Missing, of a wrong type, longer than the server lets sandboxes live: 400, and the deadline stays."""
    told = await stage.create(timeout=60)
    before = await end_at(stage, told["sandboxID"])
    answer = await stage.client.post(f"/sandboxes/{told['sandboxID']}/timeout", json=body)
    assert refusal(answer)[0] == 400
    assert await end_at(stage, told["sandboxID"]) == before


@pytest.mark.route("POST /sandboxes/{sandboxID}/refreshes")
async def test_a_refresh_only_extends(stage: Stage) -> None:
    """At least 15 seconds, at most an hour, never less than there was."""
    told = await stage.create(timeout=60)
    id, now = told["sandboxID"], stage.clock.monotonic()
    path = f"/sandboxes/{id}/refreshes"
    assert (await stage.client.post(path, json={"duration": 30})).status_code == 204
    assert await end_at(stage, id) == now + 60
    await stage.client.post(path, json={"duration": 300})
    assert await end_at(stage, id) == now + 300
    await stage.clock.advance(290)
    assert (await stage.client.post(path)).status_code == 204  # no body: 15 seconds
    assert await end_at(stage, id) == now + 305
    assert refusal(await stage.client.post(path, json={"duration": 3601}))[0] == 400


VERSIONS = [
    pytest.param(version, marks=pytest.mark.route(f"POST {version}/sandboxes/{{sandboxID}}/connect"))
    for version in ("", "/v2")
]


@pytest.mark.parametrize("version", VERSIONS)
async def test_connect_never_shortens(stage: Stage, version: str) -> None:
    """On a sandbox that runs it is 200 with the same tokens; a shorter time changes nothing, a longer one extends."""
    told = await stage.create(timeout=300)
    id, before = told["sandboxID"], await end_at(stage, told["sandboxID"])
    path = f"{version}/sandboxes/{id}/connect"
    answer = await stage.client.post(path, json={"timeout": 10})
    assert answer.status_code == 200
    assert answer.json() == told
    assert await end_at(stage, id) == before
    await stage.client.post(path, json={"timeout": 600})
    assert await end_at(stage, id) == before + 300


async def test_connect_v2_needs_no_body(stage: Stage) -> None:
    """Its time is 300 seconds by default; the first version needs one."""
    told = await stage.create(timeout=10)
    bodies: list[dict[str, Any]] = [{"content": b""}, {"json": {}}]
    for body in bodies:
        answer = await stage.client.post(f"/v2/sandboxes/{told['sandboxID']}/connect", **body)
        assert answer.status_code == 200
    assert await end_at(stage, told["sandboxID"]) == stage.clock.monotonic() + 300
    assert refusal(await stage.client.post(f"/sandboxes/{told['sandboxID']}/connect", json={}))[0] == 400


@pytest.mark.route("POST /sandboxes/{sandboxID}/pause")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("memory", [True, False])
async def test_connect_wakes_what_is_paused(stage: Stage, version: str, memory: bool) -> None:
    """A pause is 204, and 409 the second time; a connect then is 201, keeps id and tokens, and gives a new deadline."""
    told = await stage.create(timeout=300)
    id = told["sandboxID"]
    pause = f"/sandboxes/{id}/pause"
    assert (await stage.client.post(pause, json={"memory": memory})).status_code == 204
    assert await state_of(stage, id) == "paused"
    assert refusal(await stage.client.post(pause)) == (
        409,
        f"Error pausing sandbox - sandbox '{id}' is already paused",
    )
    paused_at = stage.clock.monotonic()
    await stage.clock.advance(10_000)
    assert await state_of(stage, id) == "paused"
    assert (
        await end_at(stage, id) == paused_at
    )  # the end of a paused sandbox is when it was paused, as upstream
    answer = await stage.client.post(f"{version}/sandboxes/{id}/connect", json={"timeout": 20})
    assert (answer.status_code, answer.json()) == (201, told)
    assert await state_of(stage, id) == "running"
    assert await end_at(stage, id) == stage.clock.monotonic() + 20


async def test_a_pause_needs_no_body_and_keeps_memory(stage: Stage) -> None:
    """``memory`` is true unless it is false; a body may be empty, ``{}`` or chunked."""

    async def pieces():
        yield b"{}"

    headers = {"content-type": "application/json"}
    bodies: list[dict[str, Any]] = [{}, {"json": {}}, {"json": {"memory": None}}]
    for body in [*bodies, {"content": pieces(), "headers": headers}]:
        told = await stage.create()
        assert (await stage.client.post(f"/sandboxes/{told['sandboxID']}/pause", **body)).status_code == 204
        detail = (await stage.client.get(f"/sandboxes/{told['sandboxID']}")).json()
        assert detail["pauseMode"] == "full"


async def test_a_pause_may_ask_whether_the_sandbox_answers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``requireHealthyGuest`` refuses with 503 where init is silent, and the sandbox runs on."""
    told = await stage.create()
    path = f"/sandboxes/{told['sandboxID']}/pause"
    stage.guest.script["languages"] = lambda guest, header, body: None
    monkeypatch.setattr(lifecycle, "ANSWERS_WITHIN", 0.05)
    assert refusal(await stage.client.post(path, json={"requireHealthyGuest": True}))[0] == 503
    assert await state_of(stage, told["sandboxID"]) == "running"
    del stage.guest.script["languages"]
    assert (await stage.client.post(path, json={"requireHealthyGuest": True})).status_code == 204


async def test_memory_that_was_kept_cannot_be_forgone(stage: Stage) -> None:
    """``memory`` false on a sandbox that sleeps with its memory is a clear 400, without it nothing special."""
    told = await stage.create()
    id = told["sandboxID"]
    await stage.client.post(f"/sandboxes/{id}/pause")
    answer = await stage.client.post(f"/v2/sandboxes/{id}/connect", json={"memory": False})
    assert refusal(answer)[0] == 400
    assert await state_of(stage, id) == "paused"
    await stage.client.post(f"/v2/sandboxes/{id}/connect")
    await stage.client.post(f"/sandboxes/{id}/pause", json={"memory": False})
    answer = await stage.client.post(f"/v2/sandboxes/{id}/connect", json={"memory": False})
    assert answer.status_code == 201


async def test_two_that_connect_at_once_both_get_the_sandbox(stage: Stage) -> None:
    """One wakes it (201), the others find it awake (200); none is refused."""
    told = await stage.create()
    path = f"/v2/sandboxes/{told['sandboxID']}/connect"
    for body in ({"memory": False}, {"memory": True}):
        await stage.client.post(f"/sandboxes/{told['sandboxID']}/pause", json=body)
        answers = await asyncio.gather(*(stage.client.post(path) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 201]


async def test_connect_waits_for_a_pause_that_is_under_way(stage: Stage) -> None:
    """Whoever connects while the sandbox is being paused gets it awake."""
    told = await stage.create()
    id = told["sandboxID"]
    pause = asyncio.create_task(stage.client.post(f"/sandboxes/{id}/pause", json={"memory": False}))
    while not stage.sandbox(told).pausing._changing.locked():
        await asyncio.sleep(0)
    answer = await stage.client.post(f"/v2/sandboxes/{id}/connect")
    assert (await pause).status_code == 204
    assert answer.status_code == 201
    assert await state_of(stage, id) == "running"


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("POST", "timeout", {"timeout": 10}, 404),
        ("POST", "refreshes", {"duration": 10}, 404),
        ("POST", "fork", {}, 409),
        ("POST", "snapshots", {}, 409),
        ("PUT", "network", {}, 409),
    ],
)
async def test_what_a_paused_sandbox_cannot_do(
    stage: Stage, method: str, path: str, body: dict, status: int
) -> None:
    """A paused sandbox has no deadline and runs nothing: the refusal says that it is paused."""
    told = await stage.create()
    await stage.client.post(f"/sandboxes/{told['sandboxID']}/pause")
    answer = await stage.client.request(method, f"/sandboxes/{told['sandboxID']}/{path}", json=body)
    code, message = refusal(answer)
    assert code == status
    assert "paused" in message


async def test_a_paused_sandbox_can_be_killed(stage: Stage) -> None:
    """With its memory and without; nothing is left."""
    for memory in (True, False):
        told = await stage.create()
        await stage.client.post(f"/sandboxes/{told['sandboxID']}/pause", json={"memory": memory})
        assert (await stage.client.delete(f"/sandboxes/{told['sandboxID']}")).status_code == 204
        assert await state_of(stage, told["sandboxID"]) == 404


@pytest.mark.parametrize("memory", [True, False])
async def test_auto_pause(stage: Stage, memory: bool) -> None:
    """At its deadline the sandbox is paused, not killed, the way it was created for."""
    told = await stage.create(timeout=60, autoPause=True, autoPauseMemory=memory)
    await stage.clock.advance(61)
    while await state_of(stage, told["sandboxID"]) == "running":
        await asyncio.sleep(0.01)  # its files are written in a thread
    detail = (await stage.client.get(f"/sandboxes/{told['sandboxID']}")).json()
    assert (detail["state"], detail["pauseMode"]) == ("paused", "full" if memory else "filesystem")


@pytest.mark.route("POST /sandboxes/{sandboxID}/resume")
async def test_resume(stage: Stage) -> None:
    """201 on a paused sandbox, with a deadline; 409 on one that runs; what cannot be changed then is refused."""
    told = await stage.create()
    path = f"/sandboxes/{told['sandboxID']}/resume"
    assert refusal(await stage.client.post(path, json={"timeout": 30}))[0] == 409
    await stage.client.post(f"/sandboxes/{told['sandboxID']}/pause")
    assert refusal(await stage.client.post(path, json={"autoPause": True}))[0] == 400
    answer = await stage.client.post(path, json={"timeout": 30, "autoPause": False})
    assert (answer.status_code, answer.json()) == (201, told)
    assert await end_at(stage, told["sandboxID"]) == stage.clock.monotonic() + 30


# ------------------------------------------------------------------------------------------------ forks


@pytest.mark.route("POST /sandboxes/{sandboxID}/fork")
async def test_forks_are_sandboxes_of_their_own(stage: Stage) -> None:
    """Each has an id and tokens of its own, the source's template and metadata, and the time that was asked for."""
    told = await stage.create(metadata={"a": "1"}, network={"allowPublicTraffic": False})
    answer = await stage.client.post(f"/sandboxes/{told['sandboxID']}/fork", json={"count": 2, "timeout": 60})
    assert answer.status_code == 201
    forks = [result["sandbox"] for result in answer.json()]
    everything = [told, *forks]
    for name in ("sandboxID", "envdAccessToken", "trafficAccessToken"):
        assert len({one[name] for one in everything}) == 3
    for fork in forks:
        sandbox = stage.sandbox(fork)
        notes = notes_of(sandbox)
        assert notes is not None
        assert notes.may_enter(fork["envdAccessToken"])
        assert not notes.may_enter(told["envdAccessToken"])
        assert sandbox.spec.metadata == {"a": "1"}
        assert await end_at(stage, fork["sandboxID"]) == stage.clock.monotonic() + 60
    assert await state_of(stage, told["sandboxID"]) == "running"


async def test_a_fork_needs_no_body(stage: Stage) -> None:
    """One copy for 15 seconds."""
    told = await stage.create()
    answer = await stage.client.post(f"/sandboxes/{told['sandboxID']}/fork")
    (result,) = answer.json()
    assert await end_at(stage, result["sandbox"]["sandboxID"]) == stage.clock.monotonic() + 15


@pytest.mark.parametrize(
    "body, message",
    [
        ({"count": 0}, "Count must be at least 1"),
        ({"count": -1}, "Count must be at least 1"),
        ({"count": 101}, "Count cannot be greater than 100"),
        ({"count": 1.5}, "count"),
        ({"timeout": 0}, "Timeout must be greater than 0"),
    ],
)
async def test_a_fork_that_makes_no_sense_is_refused(stage: Stage, body: dict, message: str) -> None:
    """400 in upstream's words."""
    told = await stage.create()
    code, said = refusal(await stage.client.post(f"/sandboxes/{told['sandboxID']}/fork", json=body))
    assert code == 400
    assert message in said


async def test_a_fork_that_fails_does_so_alone(stage: Stage) -> None:
    """Each result carries its copy or its error."""
    told = await stage.create()
    started = []

    def fail_the_second(guest) -> None:
        started.append(guest)
        if len(started) == 2:
            raise StartupFailed("no process left")

    stage.runtime.on_start = fail_the_second
    answer = await stage.client.post(f"/sandboxes/{told['sandboxID']}/fork", json={"count": 3})
    results = answer.json()
    assert [sorted(result) for result in results].count(["sandbox"]) == 2
    (failed,) = [result["error"] for result in results if "error" in result]
    assert failed == {"code": 503, "message": "no process left", "error_code": "sandbox_create_failed"}


# ------------------------------------------------------------------------------------------------ metrics


@pytest.mark.route("GET /sandboxes/{sandboxID}/metrics")
async def test_metrics_are_there_at_once(stage: Stage) -> None:
    """A new sandbox has a sample with every documented field; a window of the past has none."""
    told = await stage.create()
    await stage.clock.advance(0.1)
    path = f"/sandboxes/{told['sandboxID']}/metrics"
    metric = (await stage.client.get(path)).json()[0]
    assert set(metric) == {
        "timestamp",
        "timestampUnix",
        "cpuCount",
        "cpuUsedPct",
        "memUsed",
        "memTotal",
        "memCache",
        "diskUsed",
        "diskTotal",
    }
    assert metric["memTotal"] == 512 * 1024 * 1024
    now = int(stage.clock.monotonic())
    assert (await stage.client.get(f"{path}?start={now}&end={now}")).json() == [metric]
    assert (await stage.client.get(f"{path}?start={now - 200}&end={now - 100}")).json() == []


@pytest.mark.parametrize("query", ["start=x", "end=-1", "start=1.5", "start=9&end=1", "start=" + "9" * 30])
async def test_a_window_that_is_none_is_refused(stage: Stage, query: str) -> None:
    """Bounds are whole seconds, and in order."""
    told = await stage.create()
    assert refusal(await stage.client.get(f"/sandboxes/{told['sandboxID']}/metrics?{query}"))[0] == 400


@pytest.mark.route("GET /sandboxes/metrics")
async def test_metrics_of_many(stage: Stage) -> None:
    """The latest sample of each; what does not exist is left out; at most 100."""
    ids = [(await stage.create())["sandboxID"] for _ in range(2)]
    await stage.clock.advance(0.1)
    answer = await stage.client.get(f"/sandboxes/metrics?sandbox_ids={','.join(ids)},i0000none")
    assert set(answer.json()["sandboxes"]) == set(ids)
    assert refusal(await stage.client.get("/sandboxes/metrics"))[0] == 400
    many = ",".join(f"i{number}" for number in range(101))
    assert refusal(await stage.client.get(f"/sandboxes/metrics?sandbox_ids={many}")) == (
        400,
        "Too many sandboxes requested, maximum is 100",
    )
