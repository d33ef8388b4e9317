"""``/contexts``, ``/health`` and what every route has: methods, CORS, unknown paths."""

import pytest

from cellfork.model.errors import InvalidRequest, StartupFailed
from tests.dialects.e2b.code.conftest import Plane


async def test_health_is_ok(plane: Plane):
    """200 and the JSON text ``"OK"``."""
    answer = await plane.call("GET", "/health")
    assert (answer.status, answer.json) == (200, "OK")


async def test_the_default_contexts_come_first_and_need_no_kernel(plane: Plane):
    """Python and JavaScript are in the list before anything ran, and nothing was started for that."""
    await plane.call("POST", "/contexts", {})
    created = (await plane.call("POST", "/contexts", {"language": "bash"})).json
    told = (await plane.call("GET", "/contexts")).json
    assert [context["language"] for context in told] == ["python", "javascript", "python", "bash"]
    assert told[-1] == created
    assert len(plane.guest.requests("context.start")) == 2
    assert set(told[0]) == {"id", "language", "cwd"}


async def test_the_listed_default_context_is_the_one_that_code_runs_in(plane: Plane):
    """Its id addresses the same namespace as no id does."""
    default = (await plane.call("GET", "/contexts")).json[0]
    await plane.run("x")
    answer = await plane.run("x", context_id=default["id"])
    assert answer.of("number_of_executions")[0]["execution_count"] == 2


async def test_a_language_that_the_template_lacks_has_no_default_context(plane: Plane):
    """What cannot run is not listed."""
    plane.guest.script["languages"] = lambda *_: {"ready": ["python", "bash"]}
    told = (await plane.call("GET", "/contexts")).json
    assert [context["language"] for context in told] == ["python"]


@pytest.mark.parametrize(
    "body, language, cwd",
    [
        ({}, "python", "/home/user"),
        ({"language": None, "cwd": None}, "python", "/home/user"),
        ({"language": "JS", "cwd": "/tmp"}, "javascript", "/tmp"),
        ({"language": "", "cwd": ""}, "python", "/home/user"),
    ],
)
async def test_a_created_context_tells_what_it_is(plane: Plane, body, language: str, cwd: str):
    """Language and directory are echoed, the language by its proper name."""
    answer = await plane.call("POST", "/contexts", body)
    assert answer.status == 200
    assert (answer.json["language"], answer.json["cwd"]) == (language, cwd)
    assert plane.guest.requests("context.start")[0]["cwd"] == cwd


@pytest.mark.parametrize(
    "error, status, text",
    [
        (InvalidRequest("/nope: no such directory"), 400, b"Failed to set working directory: /nope"),
        (StartupFailed("no memory"), 500, b"Failed to create context: no memory"),
    ],
)
async def test_a_context_that_cannot_be_made_is_told_and_leaves_nothing(
    plane: Plane, error, status: int, text: bytes
):
    """The text begins as upstream's does; no context stays in the list."""

    def refuse(*_):
        raise error

    plane.guest.script["context.start"] = refuse
    answer = await plane.call("POST", "/contexts", {"cwd": "/nope"})
    assert answer.status == status
    assert answer.body.startswith(text)
    assert plane.sandbox.contexts.list() == []


async def test_an_unknown_language_has_no_context(plane: Plane):
    """It is the caller's mistake, told in upstream's words."""
    answer = await plane.call("POST", "/contexts", {"language": "cobol"})
    assert (answer.status, answer.body[:25]) == (400, b"Failed to create context:")


async def test_restart_keeps_the_id_and_loses_the_state(plane: Plane):
    """200 with ``null``; the next code is number one again."""
    id = (await plane.call("POST", "/contexts", {})).json["id"]
    await plane.run("x", context_id=id)
    answer = await plane.call("POST", f"/contexts/{id}/restart")
    assert (answer.status, answer.json) == (200, None)
    assert (await plane.run("x", context_id=id)).of("number_of_executions")[0]["execution_count"] == 1


async def test_a_removed_context_is_gone(plane: Plane):
    """200 with ``null``, then 404 everywhere."""
    id = (await plane.call("POST", "/contexts", {})).json["id"]
    answer = await plane.call("DELETE", f"/contexts/{id}")
    assert (answer.status, answer.json) == (200, None)
    assert id not in [context["id"] for context in (await plane.call("GET", "/contexts")).json]
    for method, path in (("DELETE", f"/contexts/{id}"), ("POST", f"/contexts/{id}/restart")):
        answer = await plane.call(method, path)
        assert (answer.status, answer.body) == (404, f"Context {id} not found".encode())


async def test_a_removed_default_context_is_replaced(plane: Plane):
    """Code without a context still runs, in a new one."""
    await plane.run("x")
    await plane.call("DELETE", f"/contexts/{plane.sandbox.contexts.list()[0].id}")
    assert (await plane.run("x")).of("number_of_executions")[0]["execution_count"] == 1


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"cwd": 1}', b'{"language": []}', b'{"cwd": "a\\u0000b"}']
)
async def test_a_malformed_context_is_the_callers_fault(plane: Plane, body: bytes):
    """A 4xx, and nothing is made."""
    assert 400 <= (await plane.call("POST", "/contexts", body)).status < 500
    assert plane.sandbox.contexts.list() == []


# ------------------------------------------------------------------------------------------ every route


@pytest.mark.parametrize(
    "path", ["/", "/execute/", "/nope", "/contexts/", "/contexts/a/b", "/contexts/a/restart/x"]
)
async def test_an_unknown_path_is_404_as_json(plane: Plane, path: str):
    """The plane answers what it does not know itself: no other plane's shape."""
    answer = await plane.call("GET", path)
    assert (answer.status, answer.json) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    "method, path, allow",
    [("GET", "/execute", b"POST"), ("PUT", "/contexts", b"GET, POST"), ("GET", "/contexts/a", b"DELETE")],
)
async def test_another_method_is_405_and_names_those_that_are(
    plane: Plane, method: str, path: str, allow: bytes
):
    """RFC 9110 asks for the list."""
    answer = await plane.call(method, path)
    assert (answer.status, answer.headers[b"allow"]) == (405, allow)


async def test_any_page_may_call(plane: Plane):
    """Every answer to a request with an origin is open to all origins, without credentials; preflights are answered."""
    answer = await plane.call("GET", "/health", origin="https://app.example")
    assert answer.headers[b"access-control-allow-origin"] == b"*"
    assert b"access-control-allow-credentials" not in answer.headers
    preflight = await plane.call(
        "OPTIONS",
        "/execute",
        origin="https://app.example",
        access_control_request_method="POST",
        access_control_request_headers="x-access-token,e2b-sandbox-id",
    )
    assert preflight.status == 200
    assert preflight.headers[b"access-control-allow-headers"] == b"x-access-token,e2b-sandbox-id"
    assert b"access-control-allow-origin" not in (await plane.call("GET", "/health")).headers


async def test_the_route_is_named_for_logs_without_ids(plane: Plane):
    """Labels of metrics are patterns: an id in them would be without bound."""
    state: dict[str, object] = {"sandbox": plane.sandbox}
    scope = {"type": "http", "method": "DELETE", "path": "/contexts/secret", "headers": [], "state": state}

    async def send(_message) -> None: ...

    await plane.app(scope, None, send)  # type: ignore[arg-type]
    assert state["route"] == "/contexts/{id}"
