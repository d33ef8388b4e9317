"""The WebSocket of an exec."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.dialects.together.test_agent import make_exec


@asynccontextmanager
async def opened(
    told: dict[str, Any], exec_: dict[str, Any], token: str | None = "token"
) -> AsyncIterator[Any]:
    """Open the WebSocket of an exec, the token in the query."""
    secret = told["agent"].get(token, token) if token else ""
    url = f"{told['agent']['url'].replace('http', 'ws', 1)}/ws/v1/execs/{exec_['id']}?token={secret}"
    async with connect(url) as socket:
        yield socket


async def until(socket, text: str) -> str:
    """Return the output up to the point at which ``text`` is in it."""
    seen = ""
    async with asyncio.timeout(10):
        while text not in seen:
            message = json.loads(await socket.recv())
            assert message["type"] == "output", message
            seen += message["data"]["output"]
    return seen


async def test_typing(place) -> None:
    """What is typed arrives, what is written comes with its stream, and the size of the terminal is set."""
    told = await place.create()
    made = await make_exec(
        await place.agent(told), "sh", ("-c", "read x; stty size; echo got $x; sleep 60"), pty=True
    )
    async with opened(told, made) as socket:
        await socket.send(json.dumps({"type": "resize", "data": {"cols": 90, "rows": 30}}))
        await socket.send(json.dumps({"type": "input", "data": {"input": "hello\n"}}))
        assert "30 90" in await until(socket, "got hello")


async def test_two_on_one_terminal(place) -> None:
    """Both see everything, from the beginning; both may type."""
    told = await place.create()
    made = await make_exec(await place.agent(told), "sh", ("-c", "echo ready; cat"), pty=True)
    async with opened(told, made) as one:
        await until(one, "ready")
        async with opened(told, made) as two:
            await until(two, "ready")
            await two.send(json.dumps({"type": "input", "data": {"input": "from two\n"}}))
            await until(one, "from two")
            await one.send(json.dumps({"type": "input", "data": {"input": "from one\n"}}))
            await until(two, "from one")


async def test_malformed_messages_are_answered(place) -> None:
    """Whatever is sent, the answer is an error message, and the connection goes on."""
    for message in [
        "",
        "{",
        "[]",
        '{"type": "x"}',
        '{"type": "input"}',
        '{"type": "input", "data": {"input": 1}}',
        '{"type": "resize", "data": {"cols": 0, "rows": 1}}',
        '"' + "x" * 100,
    ]:
        told = await place.create()
        made = await make_exec(await place.agent(told), "cat")
        async with opened(told, made) as socket:
            await socket.send(message)
            assert json.loads(await socket.recv())["type"] == "error"
            await socket.send(json.dumps({"type": "input", "data": {"input": "still here\n"}}))
            await until(socket, "still here")


async def test_the_readonly_token_sees_and_does_not_type(place) -> None:
    """Output comes; input is an error."""
    told = await place.create()
    made = await make_exec(await place.agent(told), "sh", ("-c", "echo shown; cat"))
    async with opened(told, made, "readonly_token") as socket:
        await until(socket, "shown")
        await socket.send(json.dumps({"type": "input", "data": {"input": "x"}}))
        assert "only read" in json.loads(await socket.recv())["data"]["error"]


async def test_a_wrong_token_is_refused(place) -> None:
    """The handshake fails."""
    for token in [None, "wrong"]:
        told = await place.create()
        made = await make_exec(await place.agent(told), "cat")
        with pytest.raises(InvalidStatus):
            async with opened(told, made, token):
                pass


async def test_an_unknown_exec_is_refused(place) -> None:
    """The handshake fails."""
    told = await place.create()
    with pytest.raises(InvalidStatus):
        async with opened(told, {"id": "nothing"}):
            pass
