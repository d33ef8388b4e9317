"""Whatever a client sends: an error of its own, in the shape that clients read, and nothing left running."""

import itertools
import random
from typing import Any

import pytest

from tests.dialects.opensandbox.execd.conftest import Client, failure_of
from tests.templates import IN_TMP

VALUES: list[Any] = [
    None, True, 0, -1, 2**64, 1e308, "", " ", "\0", "\x7f", "é", "../..", "/etc/passwd", "/" * 300, "x" * 5000, "$A", "${",
    "~", "~root", "%2e%2e", "-rf", "$(id)", [], [None], [[]], {}, {"": ""}, {"id": {}}, [{"src": "a"}], {"/tmp/a": None},
    {"/tmp/a": {"mode": 1e3}}, {"/tmp/a": {"old": 1, "new": []}},
]  # fmt: skip
FIELDS: dict[str, list[str]] = {
    "/code": ["code", "context", "unknown"],
    "/code/context": ["language", "cwd"],
    "/command": ["command", "argv", "cwd", "background", "timeout", "uid", "gid", "envs"],
    "/session": ["cwd"],
    "/session/x/run": ["command", "cwd", "timeout"],
    "/pty": ["cwd", "command"],
    "/files/permissions": ["/tmp/a", "owner"],
    "/files/mv": ["src", "dest"],
    "/files/replace": ["/tmp/a"],
    "/directories": ["/tmp/a"],
    "/v1/isolated/session": ["workspace"],
}
RAW = [
    b"",
    b" ",
    b"{",
    b"[",
    b"nul",
    b'{"code":',
    b"\xff\xfe",
    b'"\\ud800"',
    b'{"code":"\\ud800"}',
    b"[" * 100_000,
    b"1" * 5000,
]
QUERIES = [
    "",
    "=",
    "&&&",
    "path",
    "path=",
    "path=%00",
    "path=%ff%fe",
    "path=%2e%2e%2f",
    "path=/tmp&path=",
    "id=%00",
    "id=../x",
    "language=%00",
    "cursor=-1&path=x",
    "cursor=9999999999999999999999",
    "depth=abc&path=/tmp",
    "offset=0&path=/etc/passwd",
    "pattern=[&path=/tmp",
    "pattern=" + "{a,b}" * 50 + "&path=/tmp",
    "verbose=maybe",
]
READING = [
    "/files/info",
    "/files/search",
    "/files/download",
    "/directories/list",
    "/code/contexts",
    "/command/x/logs",
]

REMOVING = ["/files", "/directories", "/code", "/command", "/code/contexts"]


async def check(client: Client, method: str, target: str, body: Any = ()) -> None:
    """Ask, and accept an answer, or an error in its shape."""
    answer = await client.ask(method, target, body)
    told = (method, target, str(body)[:80], answer.status, answer.body[:200])
    assert answer.complete, told
    assert answer.status < 500 or answer.status == 501, told
    if answer.status >= 400:
        failure_of(answer)


@pytest.mark.parametrize("target", FIELDS)
async def test_wrong_values(client: Client, target: str) -> None:
    """Every value in every field, alone and beside others that are right or wrong."""
    names = FIELDS[target]
    for name, value in itertools.product(names, VALUES):
        await check(client, "POST", target, [{name: value}] if target == "/files/mv" else {name: value})
    for value in VALUES:
        await check(client, "POST", target, [value] if isinstance(value, list) else [[value]])
    chance = random.Random(target)
    harmless = [value for value in VALUES if value not in ("~", "~root")]
    for _ in range(60):
        body = {name: chance.choice(harmless) for name in names if chance.random() < 0.7}
        await check(client, "POST", target, [body] if target == "/files/mv" else body)


async def test_what_is_no_json(client: Client) -> None:
    """Neither text that is none, nor nesting without end, nor bytes."""
    for target, body in itertools.product([*FIELDS, "/files/upload"], RAW):
        await check(client, "POST", target, [body])


async def test_wrong_queries(client: Client) -> None:
    """Missing, twice, encoded, beyond every bound: for what reads and for what removes."""
    for target, query in itertools.product(READING, QUERIES):
        await check(client, "GET", f"{target}?{query}")
    for target, query in itertools.product(REMOVING, QUERIES):
        await check(client, "DELETE", f"{target}?{query}")


async def test_nothing_is_left(client: Client) -> None:
    """Refused requests leave no command, no context, no file behind."""
    commands: list[Any] = [{"command": "x", "uid": 5}, {"argv": []}, {"command": "x", "cwd": "/absent"}]
    for body in commands:
        await check(client, "POST", "/command", body)
    await check(client, "POST", "/code", {"code": "1", "context": {"language": "klingon"}})
    await check(client, "POST", "/code/context", {"language": "klingon"})
    assert client.sandbox.execs.list() == []
    assert client.sandbox.contexts.list() == []
    left = (await client.get("/directories/list", path="/tmp", depth=3)).json
    assert {entry["path"].split("/")[2] for entry in left} == IN_TMP
