"""Code: its stream, its contexts, how it is stopped."""

import asyncio
import base64
from typing import Any

import pytest

from cellfork.dialects.opensandbox.execd import frames
from tests.dialects.opensandbox.execd.conftest import Client, events_of, failure_of, of, text_of

LANGUAGES = {
    "bash": ("echo hi", "hi"),
    "javascript": ("console.log('hi')", "hi"),
    "typescript": ("const x: number = 1; console.log('hi', x)", "hi 1"),
}


async def create(client: Client, **fields: Any) -> str:
    """Make a context; return its id."""
    answer = await client.ask("POST", "/code/context", fields or {"language": "python"})
    assert answer.status == 200, answer.body
    id = answer.json["id"]
    assert isinstance(id, str)
    return id


async def test_the_stream_of_code(client: Client) -> None:
    """The context's id, a ping, output as it was written, the count, the result, the end: nothing else, in this order."""
    events = await client.code(
        "print('a'); import sys; print('b', file=sys.stderr)\n2 + 2", language="python"
    )
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["init", "ping"]
    assert sorted(kinds[2:4]) == ["stderr", "stdout"]
    assert kinds[4:] == ["execution_count", "result", "execution_complete"]
    assert (text_of(events), text_of(events, "stderr")) == ("a\n", "b\n")
    assert of(events, "execution_count")[0]["execution_count"] == 1
    assert events[-2]["results"] == {"text": "4", "text/plain": "4"}
    assert events[-1]["execution_count"] == 1


async def test_failing_code(client: Client) -> None:
    """A status and the error are the end; there is no completion."""
    events = await client.code("print('first'); nothing", language="python")
    assert [event["type"] for event in events] == ["init", "ping", "stdout", "status", "error"]
    assert events[-2]["text"] == "error"
    error = events[-1]["error"]
    assert error["ename"] == "NameError"
    assert error["evalue"] == "name 'nothing' is not defined"
    assert isinstance(error["traceback"], list)
    assert error["traceback"]


async def test_what_is_displayed_reaches_the_client(client: Client) -> None:
    """Every type of every display is a result, pictures as base64; upstream drops them."""
    picture = base64.b64encode(b"\x89PNG").decode()
    events = await client.code(
        "from IPython.display import HTML, Image, display\n"
        "display(HTML('<b>x</b>'))\n"
        f"display(Image(data={b'x'!r}, format='png'))\n"
        "h = display({'a/b': 'custom'}, raw=True, display_id=True)\n"
        f"h.update({{'image/png': {picture!r}}}, raw=True)",
        language="python",
    )
    results = [event["results"] for event in of(events, "result")]
    assert results[0]["text/html"] == "<b>x</b>"
    assert results[1]["image/png"].strip() == base64.b64encode(b"x").decode()
    assert results[2] == {"a/b": "custom"}
    assert results[3]["image/png"].strip() == picture
    assert not of(events, "execution_count")


async def test_the_default_context_keeps_its_state(client: Client) -> None:
    """Code that names a language alone runs in that language's default context, whose id every stream tells."""
    first = await client.code("x = 10", language="python")
    second = await client.code("print(x + 5)", language="Python")
    assert text_of(second) == "15\n"
    assert first[0]["text"] == second[0]["text"]
    third = await client.code("print(x)", id=first[0]["text"])
    assert text_of(third) == "10\n"


async def test_contexts_are_separate(client: Client) -> None:
    """What one context knows another one does not; the stream tells the id of its context."""
    one, two = await create(client), await create(client)
    assert (await client.code("y = 1", id=one, language="python"))[0]["text"] == one
    assert of(await client.code("y", id=two), "error")[0]["error"]["ename"] == "NameError"
    assert text_of(await client.code("print(y)", id=one)) == "1\n"


async def test_contexts_are_listed_and_removed(client: Client) -> None:
    """All, or those of a language; one by one, or a language at once."""
    one = await create(client)
    two = await create(client, language="bash", cwd="/tmp")
    all_ = (await client.get("/code/contexts")).json
    assert {"id": one, "language": "python"} in all_
    assert {"id": two, "language": "bash"} in all_
    assert (await client.get("/code/contexts", language="sh")).json == [{"id": two, "language": "bash"}]
    assert (await client.get("/code/contexts", language="nothing like this!")).json == []
    assert (await client.get(f"/code/contexts/{one}")).json == {"id": one, "language": "python"}
    removed = await client.ask("DELETE", f"/code/contexts/{one}")
    assert (removed.status, removed.body, removed.headers["content-length"]) == (200, b"", "0")
    assert failure_of(await client.get(f"/code/contexts/{one}")) == (404, "CONTEXT_NOT_FOUND")
    assert failure_of(await client.ask("DELETE", f"/code/contexts/{one}")) == (404, "CONTEXT_NOT_FOUND")
    assert (await client.ask("DELETE", "/code/contexts", language="bash")).status == 200
    assert failure_of(await client.get(f"/code/contexts/{two}"))[0] == 404
    assert failure_of(await client.ask("DELETE", "/code/contexts")) == (400, "MISSING_QUERY")


async def test_a_context_begins_in_its_directory(client: Client) -> None:
    """It is told back, may be named with variables, and has to be there."""
    answer = await client.ask("POST", "/code/context", {"language": "python", "cwd": "$HOME/../../tmp"})
    told = answer.json
    events = await client.code("import os; print(os.getcwd())", **told)
    assert text_of(events) == "/tmp\n"
    other = {"id": told["id"], "cwd": "/home"}
    assert failure_of(await client.ask("POST", "/code", {"code": "1", "context": other}))[0] == 400
    absent = {"language": "python", "cwd": "/absent"}
    assert failure_of(await client.ask("POST", "/code/context", absent)) == (400, "INVALID_REQUEST_BODY")


async def test_code_without_a_language_is_a_command(client: Client) -> None:
    """As the documentation has it: stateless, in a shell."""
    events = events_of(await client.ask("POST", "/code", {"code": "echo 'Hello from shell'; x=1"}))
    assert [event["text"] for event in of(events, "stdout")] == ["Hello from shell"]
    events = await client.code("echo [$x]; pwd", language="command", cwd="/tmp")
    assert [event["text"] for event in of(events, "stdout")] == ["[]", "/tmp"]
    events = await client.code("sleep 100", language="background-command")
    assert events[-1]["type"] == "execution_complete"
    assert (await client.get(f"/command/status/{events[0]['text']}")).json["running"] is True


@pytest.mark.parametrize("language", LANGUAGES)
async def test_other_languages(client: Client, language: str) -> None:
    """Their kernels answer like Python's."""
    if language not in await client.sandbox.languages():
        pytest.skip(f"the template has no {language}")
    code, expected = LANGUAGES[language]
    id = await create(client, language=language)
    events = await client.code(code, id=id, language=language)
    assert text_of(events).strip() == expected
    assert events[-1]["type"] == "execution_complete"


async def test_executions_of_one_context_queue(client: Client) -> None:
    """Upstream says that the session is busy; here each waits for the one before it."""
    id = await create(client)
    codes = [f"import time; time.sleep(0.05); print({number})" for number in range(5)]
    streams = await asyncio.gather(*(client.code(code, id=id) for code in codes))
    assert [text_of(events) for events in streams] == [f"{number}\n" for number in range(5)]
    assert all(events[-1]["type"] == "execution_complete" for events in streams)


async def test_interrupting(client: Client) -> None:
    """The id of the stream stops what runs; the context lives on with its state."""
    await client.code("kept = 1", language="python")
    running = client.begin(
        "POST",
        "/code",
        {"code": "print('runs', flush=True)\nwhile True: pass", "context": {"language": "python"}},
    )
    await running.until("runs")
    id = (await client.code("1", language="bash"))[0]["text"] and running.answer.body.split(b'"text":"')[1]
    interrupted = await client.ask("DELETE", "/code", id=id.split(b'"')[0].decode())
    assert (interrupted.status, interrupted.body) == (200, b"")
    events = events_of(await running.done())
    assert events[-1]["error"]["ename"] == "KeyboardInterrupt"
    assert text_of(await client.code("print(kept)", language="python")) == "1\n"


async def test_interrupting_what_is_idle(client: Client) -> None:
    """A context that runs nothing is no error."""
    id = await create(client)
    assert (await client.ask("DELETE", "/code", id=id)).status == 200


async def test_a_client_that_leaves(client: Client) -> None:
    """Its code runs on, as upstream has it."""
    running = client.begin(
        "POST",
        "/code",
        {
            "code": "print('runs', flush=True)\nimport time; time.sleep(0.3); done = 1",
            "context": {"language": "python"},
        },
    )
    await running.until("runs")
    running.leave()
    await running.done()
    assert text_of(await client.code("print(done)", language="python")) == "1\n"


async def test_silence_is_filled_with_pings(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy between does not close the connection."""
    monkeypatch.setattr(frames, "PING_SECONDS", 0.05)
    events = await client.code("import time; time.sleep(0.5)", language="python")
    assert len(of(events, "ping")) > 3
    assert events[-1]["type"] == "execution_complete"


async def test_a_sandbox_that_ends(client: Client) -> None:
    """The stream is torn: it must not look complete."""
    running = client.begin(
        "POST",
        "/code",
        {"code": "print('runs', flush=True)\nwhile True: pass", "context": {"language": "python"}},
    )
    await running.until("runs")
    await client.sandbox.kill()
    answer = await running.done()
    assert running.aborted
    assert not answer.complete
    assert (
        failure_of(await client.ask("POST", "/code", {"code": "1", "context": {"language": "python"}}))[0]
        == 410
    )


async def test_a_kernel_that_ends(client: Client) -> None:
    """It is an error of the code; the context gets another kernel."""
    events = await client.code("import os; os._exit(3)", language="python")
    assert of(events, "error")[0]["error"]["ename"] == "KernelLost"
    assert text_of(await client.code("print('again')", language="python")) == "again\n"


BAD = [
    ({}, 400, "INVALID_REQUEST_BODY"),
    ({"code": ""}, 400, "INVALID_REQUEST_BODY"),
    ({"code": 1}, 400, "INVALID_REQUEST_BODY"),
    ({"code": "1", "context": 1}, 400, "INVALID_REQUEST_BODY"),
    ({"code": "1", "context": {"id": 7}}, 400, "INVALID_REQUEST_BODY"),
    ({"code": "1", "context": {"language": "klingon"}}, 400, "NOT_SUPPORTED"),
    ({"code": "1", "context": {"language": "\x00"}}, 400, "NOT_SUPPORTED"),
    ({"code": "1", "context": {"language": "sql"}}, 400, "NOT_SUPPORTED"),
    ({"code": "1", "context": {"id": "session-123", "language": "python"}}, 404, "CONTEXT_NOT_FOUND"),
    ({"code": "1", "context": {"id": "../../x"}}, 404, "CONTEXT_NOT_FOUND"),
    ([], 400, "INVALID_REQUEST_BODY"),
    ("x", 400, "INVALID_REQUEST_BODY"),
]


async def test_malformed_requests(client: Client) -> None:
    """Each is an error of the client's, in the shape that every client reads; nothing runs."""
    for body, status, code in BAD:
        assert failure_of(await client.ask("POST", "/code", body)) == (status, code), body
    assert client.sandbox.contexts.list() == []


async def test_a_context_is_of_one_language(client: Client) -> None:
    """A request that says another one is wrong about something."""
    id = await create(client)
    body = {"code": "1", "context": {"id": id, "language": "bash"}}
    assert failure_of(await client.ask("POST", "/code", body)) == (400, "INVALID_REQUEST_BODY")


async def test_unknown_ids_cannot_be_interrupted(client: Client) -> None:
    """404, with both fields that clients look for."""
    for path in ("/code", "/command"):
        for id in ("nothing", "../x", "%00", "x" * 5000):
            assert failure_of(await client.ask("DELETE", path, id=id)) == (404, "RUNTIME_ERROR")
        assert failure_of(await client.ask("DELETE", path)) == (400, "MISSING_QUERY")


async def test_contexts_that_cannot_be(client: Client) -> None:
    """Neither without a language, nor of one that is not there."""
    for body in ({}, {"language": ""}, {"language": None}):
        assert failure_of(await client.ask("POST", "/code/context", body)) == (400, "INVALID_REQUEST_BODY")
    for language in ("klingon", "sql", "a b", "../x"):
        failed = await client.ask("POST", "/code/context", {"language": language})
        assert failure_of(failed) == (400, "NOT_SUPPORTED"), language
    assert (await client.get("/code/contexts")).json == []
