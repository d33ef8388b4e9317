"""H and F over every dialect at once: who may do what, with which key and which token; what pages in a browser may do."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellfork.model.limits import MiB
from tests.security.catalogue import row
from tests.security.places import (
    ABSENT,
    KEY,
    OTHER_KEY,
    READERS,
    TOKEN_HEADERS,
    Made,
    Operation,
    Place,
    creation,
    keyed,
    place,
    sockets,
    wanted,
)
from tests.server.conftest import Reply

DIALECTS = ("e2b", "together", "opensandbox")
ORIGIN = "https://app.example.com"
WRONG = {
    "none": None,
    "empty": "",
    "a piece": KEY[:-1],
    "more": f"{KEY}0",
    "another case": KEY.upper(),
    "many": f"{KEY},{KEY}",
    "bytes": "\xff\xfe",
    "long": "a" * 5000,
}
UPGRADE = {
    "connection": "Upgrade", "upgrade": "websocket", "sec_websocket_version": "13", "sec_websocket_key": "AAAAAAAAAAAAAAAAAAAAAA==",
}  # fmt: skip


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[Place]:
    """A server over fake sandboxes: one of each dialect, for each of two tenants."""
    async with place(tmp_path, cors_origins=(ORIGIN,)) as found:
        for dialect in DIALECTS:
            await found.create(dialect, KEY)
            await found.create(dialect, OTHER_KEY)
        yield found


async def ask(fake: Place, operation: Operation, id: str, /, **headers: str) -> Reply:
    body = b"" if operation.method in READERS else b"{}"
    headers = {"content_type": "application/json", "connection": "close", **headers}
    return await (await fake.again()).ask(operation.method, operation.target(id), body, **headers)


def mine(fake: Place, dialect: str, key: str = KEY) -> Made:
    return next(made for made in fake.made if (made.dialect, made.key) == (dialect, key))


# ---------------------------------------------------------------------------------------------------- keys


@row("H10", "401 on every route of every dialect that asks for a key, whatever is sent in its place")
@pytest.mark.parametrize("name", WRONG)
async def test_h10_every_route_of_every_dialect(fake: Place, name: str):
    """What the tables of the dialects list is refused without a key of this server, and nothing is created or ended by trying."""
    asked = [operation for operation in fake.operations() if operation.needs == "key"]
    assert {operation.dialect for operation in asked} == {*DIALECTS}
    assert len(asked) > 130
    for operation in asked:
        wrong = WRONG[name]
        headers = {} if wrong is None else keyed(operation.dialect, wrong)
        reply = await ask(fake, operation, mine(fake, operation.dialect).id, **headers)
        assert reply.status == 401, (operation, reply)
    assert len(fake.services.engine.list()) == len(fake.made)


@row("H10", "401 without the sandbox's token, 403 with one that may only read")
async def test_h10_every_route_into_a_sandbox(fake: Place):
    """What the tables list below a sandbox is refused to whoever has no token, though they have the key of its tenant."""
    inside = [operation for operation in fake.operations() if operation.needs != "key"]
    assert len(inside) > 60
    for operation in inside:
        made = mine(fake, operation.dialect)
        reply = await ask(fake, operation, made.id, **keyed(operation.dialect, KEY))
        assert reply.status == 401, (operation, reply)
        if operation.needs == "admin":
            weaker = await ask(fake, operation, made.id, authorization=f"Bearer {made.secrets['readonly']}")
            assert weaker.status == 403, (operation, weaker)
        if operation.needs == "egress":
            weaker = await ask(fake, operation, made.id, opensandbox_secure_access=made.secrets["sandbox"])
            assert weaker.status == 401, (operation, weaker)


@row("F07", "404, in the same words as for a sandbox that never was")
async def test_f07_a_key_of_somebody_else(fake: Place):
    """A key of another tenant finds no sandbox, in any dialect: not by id, not in a list; the owner's is as it was."""
    for operation in fake.operations():
        if operation.needs != "key" or "{id}" not in operation.path:
            continue
        id = mine(fake, operation.dialect).id
        absent = ABSENT[operation.dialect]
        headers = keyed(operation.dialect, OTHER_KEY)
        foreign, never = [await ask(fake, operation, one, **headers) for one in (id, absent)]
        assert 400 <= foreign.status < 600, (operation, foreign)
        told = foreign.body.replace(id.encode(), b"ID"), never.body.replace(absent.encode(), b"ID")
        assert (foreign.status, told[0]) == (never.status, told[1]), operation
    for dialect in DIALECTS:
        for key in (KEY, OTHER_KEY):
            listed = await fake.wire.ask("GET", wanted(dialect)[0], **keyed(dialect, key))
            assert [made.id for made in fake.made if made.id.encode() in listed.body] == [
                mine(fake, dialect, key).id
            ]
    assert len(fake.services.engine.list()) == len(fake.made)


@row("H02", "413 before it is buffered: what creates a sandbox is never long")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_h02_bodies_of_every_dialect(fake: Place, dialect: str):
    """A control plane reads a mebibyte and no more, whatever bodies of code and files may have."""
    path, body = wanted(dialect)
    content = json.dumps({**body, "metadata": {"k": "v" * MiB}}).encode()
    for sent in ({"content_length": str(len(content))}, {"transfer_encoding": "chunked"}):
        wire = await fake.again()
        chunked = "transfer_encoding" in sent
        data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content) if chunked else content
        head = {"host": "localhost", "content-type": "application/json", **sent, **keyed(dialect, KEY)}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in head.items())
        await wire.send(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + data)
        assert (await wire.reply()).status == 413, sent
    assert len(fake.services.engine.list()) == len(fake.made)


# -------------------------------------------------------------------------------------------------- tokens

PROBES = {
    ("e2b", "sandbox"): ("POST", "/execute", "49999", ()),
    ("e2b", "traffic"): ("GET", "/health", "49999", ("traffic",)),
    ("together", "readonly"): ("GET", "/together/agents/{id}/api/v1/execs", "", ("readonly", "admin")),
    ("opensandbox", "sandbox"): ("GET", "/sandboxes/{id}/proxy/44772/ping", "", ("sandbox",)),
    ("opensandbox", "egress"): ("GET", "/sandboxes/{id}/proxy/18080/policy", "", ()),
}
"""Dialect and token → a request that needs it, the port that E2B wants to be told, and the tokens that let it in alone."""


def opens(made: Made, which: str) -> dict[str, str]:
    """Return the headers that let a request in: for each probe everything that it asks for."""
    if made.dialect == "together":
        return {"authorization": f"Bearer {made.secrets[which]}"}
    if made.dialect == "opensandbox":
        egress = {"opensandbox_egress_auth": made.secrets["egress"]} if which == "egress" else {}
        return {"opensandbox_secure_access": made.secrets["sandbox"], **egress}
    traffic = {"e2b_traffic_access_token": made.secrets["traffic"]}
    return {**traffic, "x_access_token": made.secrets["sandbox"]} if which == "sandbox" else traffic


def everywhere(token: str) -> dict[str, str]:
    """Return a request's headers with one token in all places where any dialect looks for one."""
    headers = dict.fromkeys((*TOKEN_HEADERS, "x-api-key", "open-sandbox-api-key"), token)
    headers |= {"authorization": f"Bearer {token}", "cookie": f"token={token}"}
    return {name.replace("-", "_"): value for name, value in headers.items()}


@row(
    "F07",
    "no token opens anything but what it was given for: neither another sandbox, nor another port, nor another dialect",
)
async def test_f07_tokens_are_not_mixed_up(fake: Place):
    """Each key and each token of every sandbox is tried at each door of every other, in every header at once."""
    secrets = {(made.id, name): value for made in fake.made for name, value in made.secrets.items()}
    secrets |= {("key", key): key for key in (KEY, OTHER_KEY)}
    assert len(set(secrets.values())) == len(secrets) == 14
    tried = 0
    for made in fake.made:
        for (dialect, which), (method, path, port, alone) in PROBES.items():
            if dialect != made.dialect:
                continue
            named = {"e2b_sandbox_id": made.id, "e2b_sandbox_port": port} if port else {}
            probe = Operation(dialect, method, path)
            allowed = await ask(fake, probe, made.id, **named, **opens(made, which))
            assert allowed.status not in {401, 403}, (made, which, allowed)
            for owner, token in secrets.items():
                if owner not in {(made.id, name) for name in alone}:
                    reply = await ask(fake, probe, made.id, **named, **everywhere(token))
                    assert reply.status in {401, 403}, (made, which, owner, reply)
                    tried += 1
    assert tried > 100


@row("F07", "a sandbox is found by the dialect that made it alone")
async def test_f07_dialects_do_not_find_each_others_sandboxes(fake: Place):
    """What another dialect made, for the same key, is not there: no door without its locks leads into a sandbox."""
    engine = fake.services.engine
    own = {sandbox.id: [*sandbox.notes] for sandbox in engine.list()}
    assert sorted(name for (name,) in own.values()) == sorted(2 * DIALECTS)
    for id, (dialect,) in own.items():
        if dialect != "opensandbox":
            for port in (44772, 18080, 8000):
                reply = await fake.wire.ask("GET", f"/sandboxes/{id}/proxy/{port}/ping")
                assert reply.status == 404, (dialect, port, reply)
            reply = await fake.wire.ask("GET", f"/v1/sandboxes/{id}", open_sandbox_api_key=KEY)
            assert reply.status == 404
        if dialect != "e2b":
            for port in (49983, 49999, 8000):
                reply = await fake.wire.ask("GET", "/health", e2b_sandbox_id=id, e2b_sandbox_port=str(port))
                assert reply.status == 502, (dialect, port, reply)
                assert "not found" in reply.json["message"]
            assert (await fake.wire.ask("GET", f"/sandboxes/{id}", x_api_key=KEY)).status == 404


@row(
    "F06",
    "ids have 128 random bits or more, tokens 256; the same answer for what is somebody else's and what never was",
)
async def test_f06_nothing_can_be_guessed(fake: Place):
    """Ids and tokens of a thousand sandboxes share no beginning that would help to guess the next."""
    found: dict[str, list[str]] = {}
    for _ in range(60):
        for dialect in DIALECTS:
            made = await fake.create(dialect)
            found.setdefault(f"{dialect} id", []).append(made.id)
            for name, value in made.secrets.items():
                found.setdefault(f"{dialect} {name}", []).append(value)
    for what, values in found.items():
        assert len(set(values)) == len(values), what
        random = [value.removeprefix("i0000") for value in values]
        least = 26 if what.endswith("id") else 43
        assert min(map(len, random)) >= least, what
        assert len({value[:8] for value in random}) > 55, (
            what
        )  # 8 characters of 16 or more: no two begin alike


@row(
    "H08",
    "the same words for every wrong token, whether the sandbox exists or not where its id is no secret of the caller's",
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_h08_wrong_keys_tell_nothing(fake: Place, dialect: str):
    """An answer to a wrong key tells neither how near it was nor whether a sandbox is there."""
    path = wanted(dialect)[0].replace("/v2/", "/")
    replies = [
        await fake.wire.ask("GET", f"{path}/{id}", **keyed(dialect, key))
        for id in (mine(fake, dialect).id, ABSENT[dialect])
        for key in (KEY[:-1], KEY[:-1] + "b", "x" * 44)
    ]
    assert {(reply.status, reply.body) for reply in replies} == {(401, replies[0].body)}


@row("H09", "absent from every line of the log and from every error")
async def test_h09_no_dialect_logs_tokens(fake: Place):
    """Whatever is asked, with tokens in headers and in addresses: the log at its finest level has none, nor a path."""
    for made in fake.made:
        for token in (*made.secrets.values(), made.key):
            for path in (
                f"/canary/{token}?token={token}",
                *(f"{one}?token={token}" for one in sockets(made)),
            ):
                for headers in ({}, everywhere(token), {**UPGRADE, "cookie": token}):
                    reply = await (await fake.again()).ask("GET", path, **headers)
                    assert token.encode() not in reply.body
    text = fake.server.log.text
    assert text.count('"request"') > 50
    for made in fake.made:
        for secret in (*made.secrets.values(), made.key, "canary"):
            assert secret not in text


# --------------------------------------------------------------------------------------------------- pages


@row(
    "H11",
    "no Access-Control-Allow-Origin from any control plane, unless the origin is exactly one of those named",
)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", f"{ORIGIN}.evil.example", "http://app.example.com"]
)
async def test_h11_foreign_origins_of_every_dialect(fake: Place, dialect: str, origin: str):
    """A page of an origin that was not named reads nothing, and is granted nothing in advance."""
    path = wanted(dialect)[0]
    for method, extra in (("GET", {}), ("OPTIONS", {"access_control_request_method": "POST"})):
        reply = await fake.wire.ask(method, path, origin=origin, **keyed(dialect, KEY), **extra)
        assert "access-control-allow-origin" not in reply.headers
        named = await fake.wire.ask(method, path, origin=ORIGIN, **keyed(dialect, KEY), **extra)
        assert named.headers["access-control-allow-origin"] == ORIGIN


@row("H12", "421")
async def test_h12_foreign_names_for_every_dialect(fake: Place):
    """On loopback no dialect, and no port of a sandbox, is answered under a name that a page could have pointed at us."""
    box = mine(fake, "opensandbox")
    paths = [wanted(dialect)[0] for dialect in DIALECTS] + [
        f"/sandboxes/{box.id}/proxy/{n}/" for n in (44772, 8000)
    ]
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "evil.example:8080",
    ):
        for path in paths:
            assert (await fake.wire.ask("GET", path, host=host, **everywhere(KEY))).status == 421
        refused = await (await fake.again()).ask("GET", sockets(box)[0], host=host, **UPGRADE)
        assert refused.status == 403


@row("H13", "400: what does not say that it is JSON is not read, by any dialect")
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_h13_no_dialect_takes_forms(tmp_path: Path, dialect: str, type: str):
    """What a page can send without asking first creates nothing, even where the server asks for no key."""
    async with place(tmp_path, api_key=(), anonymous=True) as open_to_all:
        path, body = wanted(dialect)
        for content in (json.dumps(body).encode(), b"{}", b" ", b""):
            headers = {"content_type": type} if type else {}
            wire = await open_to_all.again()
            reply = await wire.ask("POST", path, content, origin="https://evil.example", **headers)
            assert 400 <= reply.status < 500, (content, reply)
        assert open_to_all.services.engine.list() == []
        assert (await creation(open_to_all.wire, dialect, "any")).status < 300


@row("H13", "403: a form with a build in it is taken from programs, and from pages that have a key")
async def test_h13_pages_build_nothing(tmp_path: Path):
    """A build comes as a form, which pages can send anywhere: where no key is asked for, theirs are refused."""
    body = b'--b\r\ncontent-disposition: form-data; name="image_name"\r\n\r\napp\r\n--b--\r\n'
    async with place(tmp_path, api_key=(), anonymous=True, cors_origins=(ORIGIN,)) as open_to_all:
        for origin in ("https://evil.example", "null", ORIGIN):
            wire = await open_to_all.again()
            reply = await wire.ask(
                "POST",
                "/together/builds",
                body,
                content_type="multipart/form-data; boundary=b",
                origin=origin,
            )
            assert reply.status == 403, (origin, reply)
        program = await open_to_all.again()
        reply = await program.ask(
            "POST", "/together/builds", body, content_type="multipart/form-data; boundary=b"
        )
        assert reply.status != 403
        assert open_to_all.services.engine.list() == []


@row("H14", "refused before the handshake, as a request without the token is")
async def test_h14_websockets_ask_for_tokens(fake: Place):
    """A page knows no token, and without one no WebSocket of any dialect is opened, whatever it says of its origin."""
    asked = [path for made in fake.made for path in sockets(made)]
    assert len(asked) == 6
    wrong = mine(fake, "together", OTHER_KEY).secrets["admin"]
    for path in asked:
        for headers in (
            {},
            {"origin": "https://evil.example"},
            {"origin": ORIGIN, "cookie": f"token={KEY}"},
            {"authorization": f"Bearer {wrong[:-1]}"},
        ):
            reply = await (await fake.again()).ask("GET", f"{path}?token={wrong[:-1]}", **UPGRADE, **headers)
            assert reply.status in {401, 403}, (path, reply)


@row("H19", "401 or 404: no spelling of a path gets past a key or a token")
async def test_h19_other_spellings_of_every_dialect(fake: Place):
    """Encoded slashes and dots, doubled slashes, other cases and prefixes of prefixes lead to nothing that needs a key."""
    box, agent = mine(fake, "opensandbox"), mine(fake, "together")
    execd, policy = f"/sandboxes/{box.id}/proxy/44772", f"/sandboxes/{box.id}/proxy/18080/policy"
    paths = [
        "//v1/sandboxes", "/./v1/sandboxes", "/V1/sandboxes", "/v1%2fsandboxes", "/%76%31/sandboxes", "/v1/sandboxes/", "/health/../v1/sandboxes",
        "/together//v1/sandboxes", "/together/v1/sandboxes/", "/together%2fv1/sandboxes", "/Together/v1/sandboxes", "/together/together/v1/sandboxes",
        "/e2b/together/v1/sandboxes", "/opensandbox/v1/v1/sandboxes", "/opensandbox//sandboxes", "/together/agents/../v1/sandboxes",
        f"{execd}/%2e%2e/18080/policy", f"{execd}/../18080/policy", f"{execd}%2f..%2f18080/policy", f"{execd}/proxy/18080/policy", f"/{policy}",
        policy.replace("18080", "018080"), policy.replace("18080", "+18080"), policy.replace("18080", "18080%20"), policy.replace("18080", "83616"),
        policy.replace("/proxy", "%2fproxy"), policy.replace(box.id, box.id.upper()), f"/opensandbox{policy}", f"/v1{policy}", f"/v1/v1{policy}",
        f"/together/agents/{agent.id}%2fapi/v1/execs", f"/together/agents/{agent.id}/../{agent.id}/api/v1/execs", f"/together/agents//{agent.id}/api/v1/execs",
        f"/together/agents/{agent.id}/api/v1/files/..%2f..%2fexecs", f"/agents/{agent.id}/api/v1/execs",
    ]  # fmt: skip
    for path in paths:
        reply = await (await fake.again()).ask("GET", path)
        assert reply.status in {400, 401, 404}, (path, reply)
        weaker = await (await fake.again()).ask("GET", path, opensandbox_secure_access=box.secrets["sandbox"])
        assert b"defaultAction" not in weaker.body, (path, weaker)


@row(
    "H16",
    "what the server decides cannot be sent: unknown fields do nothing, known ones are refused or stay within bounds",
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_h16_no_dialect_lets_clients_choose_what_isolates(fake: Place, dialect: str):
    """Isolation, tenant, interpreter, notes, ids and tokens are the server's, in every dialect."""
    forged = {
        "isolation": "none", "tenant": "other", "interpreter": "/bin/sh", "uid": 0, "notes": {"e2b": {}, "opensandbox": {}, "together": {}},
        "id": "chosen", "sandboxID": "chosen", "agent": {"token": "chosen"}, "envdAccessToken": "chosen", "access_token": "chosen", "accessToken": "chosen",
        "project_id": "other", "organization_id": "other", "runtimeClass": "none", "labels": {"privileged": "true"}, "mounts": ["/"], "privileged": True,
    }  # fmt: skip
    made = await creation(fake.wire, dialect, KEY, **forged)
    assert made.status < 300 or made.status == 400, made
    assert b"chosen" not in made.body
    for sandbox in fake.services.engine.list():
        assert (sandbox.spec.isolation, sandbox.spec.template.interpreter) == ("fake", None)
        assert sandbox.spec.tenant in {"", "other"}
        assert len(sandbox.notes) == 1
        assert "chosen" not in json.dumps(sandbox.notes)
    owners = [sandbox.spec.tenant for sandbox in fake.services.engine.list() if [*sandbox.notes] == [dialect]]
    assert owners.count("other") == 1  # the one that its own key made


@row("H16", "400, in words: a directory of the host is not a client's to choose")
@pytest.mark.parametrize(
    "fields",
    [
        {"volumes": [{"name": "v", "mountPath": "/host", "host": {"path": "/"}}]},
        {"volumes": [{"name": "v", "mountPath": "/host", "host": {"path": "/etc"}, "readOnly": True}]},
        {"volumes": [{"name": "v", "mountPath": "/proc", "pvc": {"claimName": "x"}}]},
        {"volumes": [{"name": "v", "mountPath": "/x", "pvc": {"claimName": "../../etc"}}]},
        {"volumes": [{"name": "v", "mountPath": "/x", "pvc": {"claimName": "x"}, "subPath": "../.."}]},
        {"credentialProxy": {"enabled": True}},
        {"lifecycle": {"postStart": {"exec": ["id"]}}},
        {"extensions": {"poolRef": "../../etc"}},
        {"snapshotId": "../../etc/passwd"},
    ],
)
async def test_h16_what_would_reach_the_host_is_refused(fake: Place, fields: dict[str, object]):
    """Host paths, credentials, hooks and names that look like paths make no sandbox."""
    count = len(fake.services.engine.list())
    made = await creation(fake.wire, "opensandbox", KEY, **fields)
    assert made.status in {400, 404}, made
    assert len(fake.services.engine.list()) == count


@row(
    "F07",
    "a directory of one's own under the same name; of the host only what its owner allowed, compared by whole names",
)
async def test_f07_volumes_belong_to_tenants(tmp_path: Path):
    """Two tenants that name the same volume get two; no spelling of a path leads beside the directories that are allowed."""
    allowed = tmp_path / "allowed"
    for name in ("allowed", "allowed-evil", "volumes"):
        (tmp_path / name).mkdir(mode=0o700)
    settings: dict[str, Any] = {"host_volumes": (allowed,), "volumes": tmp_path / "volumes"}
    async with place(tmp_path / "state", **settings) as fake:

        async def mount(key: str, **backend: object) -> Reply:
            volume = {"name": "v", "mountPath": "/data", **backend}
            return await creation(fake.wire, "opensandbox", key, volumes=[volume])

        for key in (KEY, OTHER_KEY):
            assert (await mount(key, pvc={"claimName": "shared"})).status == 202
        roots = {
            (sandbox.spec.tenant, f"{v.root}/{v.below}")
            for sandbox in fake.services.engine.list()
            for v in sandbox.spec.volumes
        }
        assert len({path for _tenant, path in roots}) == 2
        assert all(Path(path).is_relative_to(tmp_path / "volumes") for _tenant, path in roots)
        assert (await mount(OTHER_KEY, pvc={"claimName": "mine", "createIfNotExists": False})).status == 400
        for path in (
            "/",
            "/etc",
            f"{allowed}-evil",
            f"{allowed}/../allowed-evil",
            f"{allowed}/.",
            f"/{allowed}",
            f"{allowed}/x/../..",
            f"{allowed}\u0000x",
            "allowed",
            str(tmp_path),
        ):
            assert (await mount(KEY, host={"path": path})).status == 400, path
        for below in ("..", "../other", "a/../..", "/etc", "a//b", "a/./b", "a\u0000b"):
            assert (await mount(KEY, host={"path": str(allowed)}, subPath=below)).status == 400, below
            assert (await mount(KEY, pvc={"claimName": "shared"}, subPath=below)).status == 400, below
        for claim in ("..", ".", "a/b", "../_default", ".shared.sandbox", "A", "a\n", ""):
            assert (await mount(KEY, pvc={"claimName": claim})).status == 400, claim
        assert len(fake.services.engine.list()) == 2


GARBAGE = [
    b"{", b"null", b"[]", b'"x"', b"1", b"\xff\xfe", b"{}" * 100, b'{"cpu": 1e400}', b'{"memory_bytes": -1}', b'{"ttl": 1e99}', b"[" * 20_000, b'{"a":' * 5000,
    b'{"snapshot_id": 5}', b'{"snapshot_id": "\\u0000"}', b'{"image": {"uri": "\\u0000"}, "entrypoint": ["x"]}', b'{"templateId": "default", "timeout": 1e30}',
    b'{"templateId": "default", "env": {"A=B": "\\u0000"}}', b'{"templateId": "default", "resourceLimits": {"memory": "1e400", "cpu": "-1"}}',
    b'{"command": "\\u0000", "args": []}', b'{"command": "x", "args": [1]}', b'{"expiresAt": "9999-99-99"}', b'{"expiresAt": "' + b"9" * 60 + b'"}',
    b'{"defaultAction": "allow", "egress": [{"action": "allow", "target": "' + b"a." * 120 + b'"}]}', b'[{"action": "allow", "target": "*"}]', b'["*"]',
    b'{"action": "move", "destination": "\\ud800"}', b'{"code": 5}', b'{"type": "stdin", "input": 5}', b'{"\\ud800": "x"}', b"9" * 5000, b'{"templateId": "\xff"}', b'{"command": "\xff", "args": []}', b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
]  # fmt: skip


@row("H20", "4xx of the dialect's own, never an internal error, and nothing of the machine")
@pytest.mark.parametrize("dialect", ["together", "opensandbox"])
async def test_h20_garbage_to_every_route(fake: Place, dialect: str):
    """Whatever is sent to whatever route, with every key and token that it asks for, the server does not fail."""
    made = mine(fake, dialect)
    for operation in fake.operations():
        if operation.dialect != dialect or operation.method in READERS:
            continue
        which = operation.needs if operation.needs in made.secrets else "sandbox"
        headers = keyed(dialect, KEY) if operation.needs == "key" else opens(made, which)
        for body in GARBAGE:
            wire = await fake.again()
            reply = await wire.ask(
                operation.method, operation.target(ABSENT[dialect] if "terminate" in operation.path or operation.method == "DELETE" else made.id),
                body, content_type="application/json", connection="close", **headers,
            )  # fmt: skip
            assert reply.status != 500, (operation, body[:40], reply)
            for word in (b"Traceback", b".py", b"site-packages", b"uvicorn"):
                assert word not in reply.body, (operation, body[:40], reply)
            wire.close()
    assert "Traceback" not in fake.server.log.text
