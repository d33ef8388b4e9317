"""The extension, as bytes on the wire: who may call, what is malformed, what stays bounded."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cellfork.dialects.e2b.extension import operations
from cellfork.dialects.e2b.extension.operations import Operations
from cellfork.testing.fakes import FakeGuest, FakeRuntime
from tests.served import KEY, OTHER_KEY, Served, served


@dataclass
class Caller:
    """A client with a key, and a sandbox that was created with it."""

    server: Served
    runtime: FakeRuntime
    http: httpx2.Client
    id: str
    token: str

    @property
    def guest(self) -> FakeGuest:
        return self.runtime.guests[0]

    def path(self, rest: str = "") -> str:
        return f"/cellfork/sandboxes/{self.id}{rest}"

    def do(self, operation: str, body: Any = None, **options: Any) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self.http.post(self.path(f"/{operation}"), content=content, **options)

    def run(self, code: str, **own: Any) -> list[dict[str, Any]]:
        headers = {"e2b-sandbox-id": self.id, "e2b-sandbox-port": "49999", "x-access-token": self.token}
        answer = self.http.post("/execute", json={"code": code, "cellfork": own}, headers=headers)
        return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def caller() -> Iterator[Caller]:
    runtime = FakeRuntime()
    with served({"fake": runtime}, body_limit=200_000) as server, httpx2.Client(base_url=server.url) as http:
        http.headers["x-api-key"] = KEY
        made = http.post("/v2/sandboxes", json={"templateID": "t", "cellfork": {}}).json()
        yield Caller(server, runtime, http, made["sandboxID"], made["envdAccessToken"])


def every_operation() -> list[str]:
    class Nobody:
        class engine:
            class settings:
                clock = None

    return sorted(Operations(Nobody()).by_name)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ who may


@pytest.mark.parametrize("key", [None, "wrong", OTHER_KEY], ids=["no key", "wrong key", "another's"])
def test_every_operation_asks_for_the_tenants_key(caller: Caller, key: str | None):
    """Without the key 401, with another tenant's the sandbox is not there; nothing reaches the guest."""
    before = len(caller.guest.sent)
    del caller.http.headers["x-api-key"]
    headers = {"x-api-key": key} if key else {}
    for operation in every_operation():
        answer = caller.do(operation, headers=headers)
        assert answer.status_code == (410 if key == OTHER_KEY else 401), operation
        assert answer.json()["error"] == ("sandbox_gone" if key == OTHER_KEY else "unauthorized")
    assert len(caller.guest.sent) == before


@pytest.mark.parametrize(
    "method, rest", [("GET", ""), ("GET", "/files?path=x"), ("PUT", "/files?path=x"), ("PUT", "/uploads/1")]
)
def test_every_other_path_asks_for_it_too(caller: Caller, method: str, rest: str):
    """Info, files and uploads are the tenant's as well."""
    answer = httpx2.request(method, caller.server.url + caller.path(rest))
    assert answer.status_code == 401
    assert httpx2.get(caller.server.url + "/cellfork/sandboxes").status_code == 401


def test_the_sandboxs_token_is_no_key(caller: Caller):
    """What a program inside may know opens nothing here, whichever header it comes in."""
    for name in ("x-api-key", "x-access-token", "authorization"):
        answer = httpx2.post(
            caller.server.url + caller.path("/info"), headers={name: caller.token}, content=b"{}"
        )
        assert answer.status_code == 401


def test_a_plane_of_a_sandbox_has_no_extension(caller: Caller):
    """Addressed as a port of a sandbox, as programs inside see it, the paths are not there."""
    headers = {"e2b-sandbox-id": caller.id, "e2b-sandbox-port": "49999"}
    answer = caller.http.post(caller.path("/network.set"), json={"mode": "public"}, headers=headers)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_tokens_are_told_to_the_tenant_alone_and_not_in_lists(caller: Caller):
    """Info has the token that code needs; the list of all has none."""
    assert caller.http.get(caller.path()).json()["envd_access_token"] == caller.token
    assert caller.token not in caller.http.get("/cellfork/sandboxes").text
    assert "pid" not in caller.http.get(caller.path()).json()["features"]


# --------------------------------------------------------------------------------------------- malformed


MALFORMED = [
    b"{",
    b"[]",
    b"null",
    b'{"surprise": 1}',
    b"\xff",
    b"[" * 50_000,
    b'{"id": 5, "path": 5, "handle": "x"}',
]


def test_a_malformed_body_is_the_callers_fault(caller: Caller):
    """Every operation refuses what is not its body, unknown fields as well; none of it is an error of ours."""
    for operation in every_operation():
        for body in MALFORMED:
            answer = caller.do(operation, body)
            assert answer.status_code == 400, (operation, body[:40])
            assert answer.json()["error"] == "invalid_request"


def test_an_unknown_operation_is_not_found(caller: Caller):
    """404 in the dialect's shape."""
    for operation in ("nope", "info.x", "contexts", "INFO", "uploads/1/x"):
        answer = caller.do(operation)
        assert answer.status_code == 404, operation
        assert answer.json()["code"] == 404


def test_another_method_is_refused(caller: Caller):
    """Operations are POST, info is GET, files GET and PUT."""
    for method, rest, allow in (
        ("GET", "/info", "POST"),
        ("POST", "", "GET"),
        ("DELETE", "/files?path=x", "GET, PUT"),
        ("POST", "/uploads/1", "PUT"),
    ):
        answer = caller.http.request(method, caller.path(rest))
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)
        assert answer.json()["code"] == 405


def test_a_malformed_query_is_the_callers_fault(caller: Caller):
    """Paths and modes that cannot be are refused before anything is written."""
    modes = [f"path=a&mode={mode}" for mode in ("9", "-1", "77777", "1_0", "٣")]
    for query in ("", "path=a&path=b", *modes, "x=" + "y" * 20_000, "path=%ff", "path=a%00b"):
        answer = caller.http.put(caller.path(f"/files?{query}"), content=b"x")
        assert 400 <= answer.status_code < 500, query
    assert caller.http.get(caller.path("/files?path=a&offset=-1&length=5")).status_code == 400
    assert caller.http.get(caller.path("/files?path=a&offset=0&length=99999999")).status_code == 400
    assert not caller.guest.files


def test_a_body_that_is_too_large_is_refused(caller: Caller):
    """The server's bound holds for operations; files are streamed, and have their own."""
    assert caller.do("execs.stdin", {"id": "x", "data": "A" * 400_000}).status_code == 413
    assert caller.http.put(caller.path("/files?path=big"), content=b"x" * 3_000_000).status_code == 200
    assert len(caller.guest.files["big"]) == 3_000_000


WISHES: list[dict[str, Any]] = [
    {"surprise": 1},
    {"limits": {"memory": "lots"}},
    {"limits": {"nope": 1}},
    {"limits": []},
    {"network": {"mode": "all"}},
    {"network": {"mode": "allow", "hosts": []}},
    {"network": {"mode": "allow", "hosts": ["127.0.0.1"]}},
    {"network": {"mode": "none", "upload": -1}},
    {"timeout": 0},
    {"timeout": -5},
    {"timeout": "x"},
    {"isolation": "none"},
]


def test_wishes_that_cannot_be_are_refused(caller: Caller):
    """A field of ``cellfork`` in a creation is honoured or an error; no sandbox is made then."""
    for wishes in WISHES:
        answer = caller.http.post("/v2/sandboxes", json={"templateID": "t", "cellfork": wishes})
        assert 400 <= answer.status_code < 500, wishes
        assert answer.json()["code"] == answer.status_code
    assert len(caller.runtime.guests) == 1


def test_e2bs_own_errors_name_our_code(caller: Caller):
    """Answers of E2B's paths carry the code of the error in a header, beside E2B's body."""
    answer = caller.http.post("/v2/sandboxes", json={"templateID": "t", "cellfork": {"isolation": "x"}})
    assert answer.headers["cellfork-error"] == "unsupported"
    headers = {"e2b-sandbox-id": caller.id, "e2b-sandbox-port": "49999", "x-access-token": caller.token}
    answer = caller.http.post("/execute", json={"code": "1", "context_id": "nope"}, headers=headers)
    assert (answer.status_code, answer.headers["cellfork-error"]) == (404, "not_found")


# ---------------------------------------------------------------------------------------------- handles


def test_uploads_of_one_sandbox_are_bounded(caller: Caller):
    """Who opens and never closes meets a limit; a handle of another sandbox is none."""
    for _ in range(operations.MOST_UPLOADS):
        assert caller.do("uploads.open", {"path": "f"}).status_code == 200
    answer = caller.do("uploads.open", {"path": "f"})
    assert (answer.status_code, answer.json()["error"]) == (429, "limit_exceeded")
    other = caller.http.post("/v2/sandboxes", json={"templateID": "t", "cellfork": {}}).json()["sandboxID"]
    path = f"/cellfork/sandboxes/{other}/uploads"
    assert caller.http.put(f"{path}/1", content=b"x").status_code == 404
    assert caller.http.post(f"{path}.commit", json={"handle": 1}).status_code == 404


def test_a_handle_is_used_once(caller: Caller):
    """What was committed or given up is closed."""
    handle = caller.do("uploads.open", {"path": "f"}).json()["handle"]
    assert caller.http.put(caller.path(f"/uploads/{handle}"), content=b"abc").json() == {}
    assert caller.do("uploads.commit", {"handle": handle}).json()["size"] == 3
    assert caller.do("uploads.commit", {"handle": handle}).status_code == 404
    assert caller.do("uploads.abort", {"handle": handle}).status_code == 404


def test_waiting_ends_by_itself(caller: Caller, monkeypatch: pytest.MonkeyPatch):
    """An operation that waits says after a while that nothing has happened: a dead client holds nothing for ever."""
    monkeypatch.setattr(operations, "POLL_SECONDS", 0.05)
    exec_ = caller.do("execs.create", {"command": "hang"}).json()
    begun = time.monotonic()
    assert caller.do("execs.output", {"id": exec_["id"], "wait": True}).json()["items"] == []
    assert "result" not in caller.do("execs.result", {"id": exec_["id"]}).json()
    watch = caller.do("watches.start", {"path": "d"}).json()["handle"]
    assert caller.do("watches.wait", {"handle": watch}).json() == {"events": []}
    assert time.monotonic() - begun < 5


# ----------------------------------------------------------------------------------------------- events


def test_the_stream_of_events_tells_everything(caller: Caller):
    """With ``cellfork`` in its body, ``/execute`` answers with the id, then every event with number and time."""
    lines = caller.run("print a\nshow b\nraise E bad")
    assert [line["type"] for line in lines] == ["execution", "started", "stdout", "display", "failed"]
    assert [line["seq"] for line in lines[1:]] == [1, 2, 3, 4]
    assert lines[-1]["error"] == {"name": "E", "value": "bad", "traceback": "Traceback: bad"}
    assert lines[-1]["accounting"]["output_bytes"] == 2
    assert all(line["timestamp"] > 10**18 for line in lines[1:])


def test_the_time_of_code_is_bounded_where_asked(caller: Caller):
    """``timeout`` stops the code, and its end says so."""
    assert [line["type"] for line in caller.run("hang", timeout=0.05)][-1] == "timed_out"


def test_the_end_of_the_sandbox_is_an_event_for_our_client(caller: Caller):
    """What upstream's clients can only be told by a torn stream is told here: killed, and why."""
    caller.server.run(lambda: caller.server.engine.get(caller.id).set_timeout(0.1))
    last = caller.run("hang")[-1]
    assert (last["type"], last["reason"]) == ("killed", "deadline")


def test_malformed_options_are_refused(caller: Caller):
    """They are ours, so they are exact."""
    headers = {"e2b-sandbox-id": caller.id, "e2b-sandbox-port": "49999", "x-access-token": caller.token}
    own: Any
    for own in ({"timeout": 0}, {"timeout": -1}, {"input": 1}, {"surprise": 1}, []):
        answer = caller.http.post("/execute", json={"code": "1", "cellfork": own}, headers=headers)
        assert answer.status_code == 422, own


def test_every_operation_is_documented():
    """The page on remote sandboxes names each, and none that is not there."""
    page = (Path(__file__).resolve().parents[4] / "docs/remote.md").read_text()
    told = {
        word for row in re.findall(r"^\| `POST …/(.*?)` \|", page, re.MULTILINE) for word in row.split("`, `")
    }
    assert told == set(every_operation())
