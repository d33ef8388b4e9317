"""Routes and who may use them: everything but ``/health`` asks for the token, internal routes do not exist."""

import json

from cellfork.dialects.e2b.envd.routes import INTERNAL, ROUTES, RPCS
from cellfork.dialects.e2b.envd.stubs import filesystem_pb, process_pb
from cellfork.engine.engine import Engine
from cellfork.engine.runtimes import LazyRuntimes
from tests.dialects.e2b.envd.conftest import Client, make_client, output

UNAUTHORIZED = {
    "code": 401,
    "message": "unauthorized access, please provide a valid access token or method signing if supported",
}
JSON = {"content-type": "application/json"}


def test_every_rpc_is_known():
    """The table of the RPCs is that of the .proto files."""
    services = [*process_pb.desc().services, *filesystem_pb.desc().services]
    assert {
        f"/{service.type_name}/{method.name}" for service in services for method in service.methods
    } == RPCS


async def test_every_route_asks_for_the_token(client: Client):
    """Without the token, or with another one, nothing is told and nothing done; ``/health`` is for everybody."""
    targets = [("POST", path) for path in sorted(RPCS)]
    targets += [(method, path) for path, methods in ROUTES.items() for method in methods if path != "/health"]
    for token in (None, "", "wrong", "\u00fc"):
        client.token = token
        for method, path in targets:
            answer = await client.ask(method, path, b"{}", JSON)
            assert answer.status == 401, (path, answer)
            assert path == "/files" or answer.json == UNAUTHORIZED
        assert (await client.ask("GET", "/health")).status == 204


async def test_an_open_sandbox_asks_for_nothing():
    """A sandbox that was created without a token is open to whoever knows its id."""
    engine = Engine(LazyRuntimes())
    try:
        client = await make_client(engine, token=None, envs={"A": "it's"})
        assert output(await client.run("echo $A")) == b"it's\n"
        assert (await client.ask("GET", "/envs")).json == {"A": "it's"}
    finally:
        await engine.aclose()


async def test_from_inside(client: Client):
    """Programs of the sandbox may ask what they know anyway without the token, and nothing else."""
    client.token, client.inside = None, True
    assert (await client.ask("GET", "/envs")).json == {}
    assert (await client.ask("GET", "/metrics")).status == 200
    assert (await client.call("Process/List")).status == 401
    assert (await client.ask("GET", "/files?path=x")).status == 401


async def test_metrics(client: Client):
    """Metrics have the names of upstream and are numbers, or null where the host cannot tell."""
    answer = await client.ask("GET", "/metrics")
    assert answer.status == 200
    metrics = answer.json
    assert {
        "ts",
        "cpu_count",
        "cpu_used_pct",
        "mem_total",
        "mem_used",
        "mem_cache",
        "disk_used",
        "disk_total",
    } <= set(metrics)
    assert metrics["mem_total"] == 256 << 20
    assert metrics["mem_total_mib"] == 256


async def test_internal_and_unknown_routes(client: Client):
    """What upstream's proxy lets nobody reach does not exist here either; unknown paths have an error of their own."""
    for path in sorted(INTERNAL):
        answer = await client.ask("POST", path, b"{}", JSON)
        assert (answer.status, answer.json["code"]) == (404, 404)
        assert answer.json["message"].startswith("This endpoint is reserved")
    for path in (
        "/",
        "/nothing",
        "/process.Process",
        "/process.Process/Nothing",
        "/process.Process/List/x",
        "/files/x",
    ):
        answer = await client.ask("POST", path, b"{}", JSON)
        assert answer.status == 404, path
    for method, path in (("POST", "/health"), ("DELETE", "/files"), ("HEAD", "/envs")):
        answer = await client.ask(method, path)
        assert answer.status == 405
        assert answer.headers["allow"]


async def test_another_dialects_sandbox_is_not_there(client: Client):
    """A sandbox without notes of this dialect is not found: nobody was given a token for it."""
    client.sandbox.notes.clear()
    answer = await client.ask("GET", "/files?path=x")
    assert (answer.status, answer.json["message"]) == (502, "The sandbox was not found")


NO_MESSAGES = [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"path": 1}', b'{"path": {"a": []}}', b"[" * 100_000,
     b'{"x":' * 50_000, b'{"path": "\\ud800"}', b'{"path": "a", "path": "b"}', b"1e400", b'{"depth": -1}']  # fmt: skip


async def test_bodies_that_are_no_messages(client: Client):
    """Whatever a body holds, the answer is of the 400s, or what the message means; never of the 500s."""
    for body in NO_MESSAGES:
        for path in (
            "/filesystem.Filesystem/Stat",
            "/process.Process/List",
            "/filesystem.Filesystem/ListDir",
        ):
            answer = await client.ask("POST", path, body, JSON)
            assert answer.status < 500, (body, answer)
        framed = b"\0" + len(body).to_bytes(4, "big") + body
        answer = await client.ask(
            "POST", "/process.Process/Start", framed, {"content-type": "application/connect+json"}
        )
        assert answer.status < 500
        assert answer.error[0] in {"invalid_argument", "unimplemented"}, body


async def test_frames_that_are_none(client: Client):
    """Streams that are cut, too long, or compressed although nobody agreed on it, are the client's error."""
    headers = {"content-type": "application/connect+json"}
    for frame in (b"\0\xff\xff\xff\xff", b"\0\0\0\0\5{}", b"\1\0\0\0\2{}", b"\x02\0\0\0\2{}", b"\0"):
        answer = await client.ask("POST", "/process.Process/Start", frame, headers)
        assert answer.status < 500
        # The protocol demands "internal" of a message that is compressed although nobody said how.
        code = answer.end["error"]["code"]
        assert code in {"invalid_argument", "unimplemented", "resource_exhausted", "internal"}, frame
        assert (code == "internal") == (frame[0] == 1)


async def test_headers_that_are_wrong(client: Client):
    """Content types, deadlines and encodings that nobody understands are refused, not guessed."""
    for headers in (
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/grpc"},
        {"content-type": ";"},
    ):
        answer = await client.ask("POST", "/filesystem.Filesystem/Stat", b"{}", headers)
        assert 400 <= answer.status < 500, (headers, answer)
    for value in ("x", "-1", "99999999999"):
        answer = await client.ask(
            "POST", "/filesystem.Filesystem/Stat", b"{}", JSON | {"connect-timeout-ms": value}
        )
        assert answer.status == 400, (value, answer)
    answer = await client.ask(
        "POST", "/filesystem.Filesystem/Stat", b"{}", JSON | {"content-encoding": "gzip"}
    )
    assert json.loads(answer.body)["code"] in {"unimplemented", "invalid_argument"}
    answer = await client.ask("GET", "/files?path=%ff%fe")
    assert 400 <= answer.status < 500


async def test_unknown_fields_are_ignored(client: Client):
    """Newer clients may say more than is known here."""
    answer = await client.call("Filesystem/Stat", {"path": "/tmp", "brandNew": {"a": [1]}})
    assert answer.status == 200
