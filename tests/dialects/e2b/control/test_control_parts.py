"""The parts of the control plane by themselves: routes, keys that were seen, the specification."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.dialects.e2b.errors import refusal_of
from cellfork.dialects.e2b.idempotency import Replays
from cellfork.dialects.e2b.router import Found, Router, WrongMethod
from cellfork.dialects.e2b.routes import SERVED
from cellfork.model import errors
from cellfork.testing.fakes import FakeClock

from .conftest import Stage

ROOT = Path(__file__).parents[4]


def words(*routes: str) -> Router:
    return Router({tuple(route.split()): (lambda route=route: route) for route in routes})  # type: ignore[misc]


def find(router: Router, path: str) -> Found:
    found = router.find("GET", path)
    assert found is not None
    return found


def test_a_word_goes_before_a_name() -> None:
    """``/a/b`` is not an ``{x}``, whatever the order of the table."""
    for routes in (("GET /a/{x}", "GET /a/b"), ("GET /a/b", "GET /a/{x}")):
        router = words(*routes)
        assert find(router, "/a/b").pattern == "/a/b"
        assert find(router, "/a/c").parameters == {"x": "c"}


def test_a_percent_encoded_slash_does_not_end_a_segment() -> None:
    """Ids of templates may hold one."""
    assert find(words("GET /a/{x}"), "/a/b%2Fc%3Ad").parameters == {"x": "b/c:d"}


def test_an_empty_segment_is_no_name() -> None:
    """``/a/`` is another path than ``/a/{x}``."""
    assert words("GET /a/{x}").find("GET", "/a/") is None


def test_a_wrong_method_is_told_apart() -> None:
    """From a path that does not exist."""
    with pytest.raises(WrongMethod) as caught:
        words("GET /a", "POST /a").find("PUT", "/a")
    assert caught.value.allowed == ["GET", "POST"]


@given(st.text(max_size=200))
def test_any_path_is_found_or_not(path: str) -> None:
    """Nothing raises but a wrong method."""
    router = words(*(f"{method} {pattern}" for method, pattern in SERVED))
    found = router.find("GET", f"/{path}")
    assert found is None or found.pattern


@pytest.mark.parametrize(
    "error",
    [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.CellforkError)
    ],
)
def test_every_error_has_a_status(error: type[errors.CellforkError]) -> None:
    """No error of the engine is an unexplained 500, but bugs and the abstract root."""
    made = error.__new__(error)
    Exception.__init__(made, "why")
    status = refusal_of(made).status
    ours = {errors.CellforkError, errors.InternalError, errors.CommandFailed}
    assert (status == 500) == (error in ours or issubclass(error, errors.IsolationUnavailable))
    assert 400 <= status <= 507


async def test_answers_that_are_kept_are_bounded() -> None:
    """The oldest are forgotten; what is being made never is."""
    replays: Replays[int] = Replays(FakeClock(), most=3)
    calls: list[int] = []

    async def make() -> int:
        calls.append(len(calls))
        return calls[-1]

    for number in range(5):
        await replays.once("one", f"k{number}", b"", make)
    assert await replays.once("one", "k4", b"", make) == 4
    assert await replays.once("one", "k0", b"", make) == 5


def test_the_specification_is_what_the_code_says() -> None:
    """``openapi.json`` is generated; it may not be older than the routes."""
    command = [sys.executable, str(ROOT / "scripts" / "e2b_openapi.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0


def test_every_route_of_upstream_is_accounted_for() -> None:
    """Each is served and tested, or refused with a reason."""
    command = [sys.executable, str(ROOT / "scripts" / "e2b_coverage.py"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_answers_have_the_form_that_is_specified(stage: Stage) -> None:
    """What is sent matches the schemas of the specification, which schemathesis and clients rely on."""
    spec = json.loads((ROOT / "src/cellfork/dialects/e2b/openapi.json").read_text())

    def check(answer, method: str, pattern: str) -> None:
        responses = spec["paths"][pattern][method]["responses"]
        form = responses[str(answer.status_code)]["content"]["application/json"]["schema"]
        jsonschema_rs.validate({**form, "components": spec["components"]}, answer.json())

    told = await stage.create(autoPause=True, metadata={"a": "b"}, network={"allowPublicTraffic": False})
    await stage.clock.advance(0.1)
    id = told["sandboxID"]
    again = await stage.client.post(f"/v2/sandboxes/{id}/connect")
    check(again, "post", "/v2/sandboxes/{sandboxID}/connect")
    for pattern in (
        "/sandboxes",
        "/v2/sandboxes",
        "/sandboxes/{sandboxID}",
        "/sandboxes/{sandboxID}/metrics",
        "/templates",
        "/snapshots",
    ):
        check(await stage.client.get(pattern.replace("{sandboxID}", id)), "get", pattern)
    check(await stage.client.get("/templates/base"), "get", "/templates/{templateID}")
    check(await stage.client.get("/sandboxes/i0000none"), "get", "/sandboxes/{sandboxID}")
    check(await stage.client.post(f"/sandboxes/{id}/fork"), "post", "/sandboxes/{sandboxID}/fork")
