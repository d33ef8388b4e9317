"""The agent of a sandbox: execs with replay, files, directories, watchers, ports, and its two tokens."""

import asyncio
import base64
import json
from typing import Any

Events = list[dict[str, Any]]


async def make_exec(agent, command: str = "sh", args: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    answer = await agent.post("/api/v1/execs", json={"command": command, "args": list(args), **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def events_of(agent, path: str, **headers: str) -> Events:
    """Return all events of a stream, to its end."""
    async with agent.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = (await answer.aread()).decode()
    assert "\r" not in text
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]


async def run(agent, command: str, *args: str, **fields: Any) -> tuple[int, str]:
    """Run a command as the SDK does: create, then stream to the exit code."""
    made = await make_exec(agent, command, args, **fields)
    events = await events_of(agent, f"/api/v1/stream/execs/{made['id']}/io")
    codes = [event["exitCode"] for event in events if "exitCode" in event]
    assert len(codes) == 1
    assert "exitCode" in events[-1]
    return codes[0], "".join(event["output"] for event in events)


# ------------------------------------------------------------------------------------------------ execs


async def test_exec_always_has_an_exit_code(agent) -> None:
    """Output of both streams in the order of arrival, then the exit code: of an end by itself, and by a signal."""
    assert await run(agent, "sh", "-c", "echo one; echo two >&2; exit 3") == (3, "one\ntwo\n")
    assert (await run(agent, "sh", "-c", "kill -9 $$"))[0] == 137


async def test_fields_of_an_exec(agent) -> None:
    """Every required field is there; the exit code is negative while there is none."""
    made = await make_exec(agent, "sleep", ("60",))
    assert {"id", "command", "args", "status", "pid", "pty", "exitCode"} <= made.keys()
    assert (made["command"], made["args"], made["pty"]) == ("sleep", ["60"], False)
    assert (made["status"], made["exitCode"], made["pid"] > 0) == ("RUNNING", -1, True)
    assert (await agent.get(f"/api/v1/execs/{made['id']}")).json() == made
    assert (await agent.get("/api/v1/execs")).json() == {"execs": [made]}


async def test_cwd_and_env(agent) -> None:
    """A directory made through the API is a working directory; variables arrive as they are."""
    await agent.post("/api/v1/directories/%2Fexec-cwd")
    code, output = await run(agent, "sh", "-c", 'pwd; echo "$A"', cwd="/exec-cwd", env={"A": 'it\'s "x"\n'})
    assert code == 0
    assert "/exec-cwd\n" in output
    assert output.endswith('it\'s "x"\n\n')


async def test_autostart_false(agent) -> None:
    """An exec that is not started runs when it is; a start of what runs is nothing, of what has ended a conflict."""
    made = await make_exec(agent, "sh", ("-c", "read x; exit 4"), autostart=False)
    assert (made["status"], made["pid"]) == ("CREATED", 0)
    path = f"/api/v1/execs/{made['id']}"
    for _ in range(2):
        answer = await agent.post(f"{path}/start", json={})
        assert (answer.status_code, answer.json()["status"]) == (200, "RUNNING")
    await agent.post(f"{path}/io", json={"type": "stdin", "input": "go\n"})
    assert (await events_of(agent, f"/api/v1/stream/execs/{made['id']}/io"))[-1]["exitCode"] == 4
    answer = await agent.post(f"{path}/start", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, 409)


async def test_replay(agent) -> None:
    """A late reader gets everything; ``lastSequence`` and ``Last-Event-ID`` leave out what was seen; negative is a tail."""
    made = await make_exec(agent, "sh", ("-c", "for i in 1 2 3; do echo $i; sleep 0.02; done"))
    path = f"/api/v1/stream/execs/{made['id']}/io"
    whole = await events_of(agent, path)
    assert [event["sequence"] for event in whole] == list(range(1, len(whole) + 1))
    assert await events_of(agent, path) == whole
    assert await events_of(agent, f"{path}?lastSequence=2") == whole[2:]
    async with agent.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer:
        text = (await answer.aread()).decode()
    assert text.count("data: ") == len(whole) - 1
    assert "id: 2\n" in text
    polled = await agent.get(f"/api/v1/execs/{made['id']}/io?lastSequence=-1")
    assert polled.json() == whole[-1:]


async def test_malformed_sequences_are_refused(agent) -> None:
    """What is no number of 32 bits is 400."""
    for after in ["x", "1e3", "99999999999999"]:
        made = await make_exec(agent, "true")
        for path in (f"/api/v1/execs/{made['id']}/io", f"/api/v1/stream/execs/{made['id']}/io"):
            assert (await agent.get(f"{path}?lastSequence={after}")).status_code == 400


async def test_sequences_beyond_the_end(agent) -> None:
    """A cursor beyond the end gives nothing, and the stream of what has ended ends."""
    made = await make_exec(agent, "true")
    await events_of(agent, f"/api/v1/stream/execs/{made['id']}/io")
    assert await events_of(agent, f"/api/v1/stream/execs/{made['id']}/io?lastSequence=1000") == []


async def test_stdin_of_the_dead(agent) -> None:
    """Input for what has ended is a conflict; for what does not exist, not found."""
    made = await make_exec(agent, "true")
    await events_of(agent, f"/api/v1/stream/execs/{made['id']}/io")
    body = {"type": "stdin", "input": "x"}
    assert (await agent.post(f"/api/v1/execs/{made['id']}/io", json=body)).status_code == 409
    assert (await agent.post("/api/v1/execs/nothing/io", json=body)).status_code == 404


async def test_terminal(agent) -> None:
    """A PTY is a terminal, its size can be set, and what it shows is stdout."""
    made = await make_exec(agent, "sh", ("-c", "read x; stty size"), pty=True)
    path = f"/api/v1/execs/{made['id']}/io"
    assert (await agent.post(path, json={"type": "resize", "input": "101x33"})).status_code == 200
    await agent.post(path, json={"type": "stdin", "input": "\n"})
    events = await events_of(agent, f"/api/v1/stream/execs/{made['id']}/io")
    assert "33 101" in "".join(event["output"] for event in events)
    assert {event["type"] for event in events} == {"stdout"}


async def test_malformed_sizes_are_refused(agent) -> None:
    """A size is two numbers."""
    for size in ["", "80", "0x24", "80x", "ax b", "99999x1"]:
        made = await make_exec(agent, "cat", (), pty=True)
        answer = await agent.post(f"/api/v1/execs/{made['id']}/io", json={"type": "resize", "input": size})
        assert answer.status_code == 400


async def test_delete_ends_an_exec(agent) -> None:
    """A deleted exec's process is gone, its stream ends without an exit code or with one, and it is not found."""
    made = await make_exec(agent, "sleep", ("60",))
    stream = asyncio.create_task(events_of(agent, f"/api/v1/stream/execs/{made['id']}/io"))
    await asyncio.sleep(0.05)
    assert (await agent.delete(f"/api/v1/execs/{made['id']}")).status_code == 200
    assert [event["exitCode"] for event in await asyncio.wait_for(stream, 5)] == [137]
    answer = await agent.get(f"/api/v1/execs/{made['id']}")
    assert (answer.status_code, answer.json()["code"]) == (404, 404)


async def test_a_killed_sandbox_ends_its_streams(place) -> None:
    """The stream of a command ends, without an exit code, when its sandbox is killed: the SDK raises then."""
    agent = await place.agent(await place.create())
    made = await make_exec(agent, "sleep", ("60",))
    stream = asyncio.create_task(events_of(agent, f"/api/v1/stream/execs/{made['id']}/io"))
    await asyncio.sleep(0.05)
    await place.engine.list()[0].kill()
    assert await asyncio.wait_for(stream, 5) == []


async def test_unknown_users_are_refused(agent) -> None:
    """A user or group that cannot be resolved is 400."""
    for user in ["nobody-such", "user:nogroup", "user:staff"]:
        answer = await agent.post("/api/v1/execs", json={"command": "id", "args": [], "user": user})
        assert answer.status_code == 400


async def test_malformed_execs_are_refused(agent) -> None:
    """Whatever is wrong with the body, the answer is 400 in the agent's form, and nothing runs."""
    for body in [
        b"",
        b"{",
        b"[]",
        b'{"command": "x"}',
        b'{"command": 1, "args": []}',
        b'{"command": "x", "args": [1]}',
        b'{"command": "", "args": []}',
        b'{"command": "a\\u0000b", "args": []}',
    ]:
        answer = await agent.post("/api/v1/execs", content=body)
        assert answer.status_code == 400
        assert answer.json().keys() == {"code", "message"}
        assert (await agent.get("/api/v1/execs")).json() == {"execs": []}


async def test_a_program_that_is_not_there(agent) -> None:
    """A program that does not exist is not found, and leaves no exec behind."""
    answer = await agent.post("/api/v1/execs", json={"command": "/no/such/program", "args": []})
    assert answer.status_code == 404
    assert (await agent.get("/api/v1/execs")).json() == {"execs": []}


async def test_stream_of_the_list(agent) -> None:
    """The list comes at once, and again when it has changed."""
    async with agent.stream("GET", "/api/v1/stream/execs") as answer:
        lines = answer.aiter_lines()
        assert json.loads(await _data(lines)) == {"execs": []}
        made = await make_exec(agent, "sleep", ("60",))
        assert json.loads(await _data(lines))["execs"][0]["id"] == made["id"]


# ------------------------------------------------------------------------------------------------ files


async def test_files_come_back_as_they_were(agent) -> None:
    """Text is text, what is not UTF-8 is base64; the path is the one that was asked for."""
    for content in [b"hello", b"", "héllo ✓\n".encode(), bytes(range(256))]:
        for answer in (
            await agent.post("/api/v1/files/%2Fdata%2Fx.bin", content=content),
            await agent.get("/api/v1/files/%2Fdata%2Fx.bin"),
        ):
            told = answer.json()
            raw = (
                base64.b64decode(told["content"])
                if told["encoding"] == "base64"
                else told["content"].encode()
            )
            assert (told["path"], raw) == ("/data/x.bin", content)


async def test_places(agent) -> None:
    """What begins at the root is in the workspace, except below the directories that a root has."""
    await agent.post("/api/v1/files/%2Fa.txt", content=b"workspace")
    await agent.post("/api/v1/files/%2Ftmp%2Fa.txt", content=b"tmp")
    assert (await run(agent, "cat", "/home/user/a.txt", "/tmp/a.txt"))[1] == "workspacetmp"
    assert (await agent.get("/api/v1/files/%2Fhome%2Fuser%2Fa.txt")).json()["content"] == "workspace"


async def test_no_path_leads_out(agent) -> None:
    """Dot segments and encoded slashes lead to places of the sandbox only, and what it may not read stays unread."""
    for path in [
        "%2F..%2F..%2Fetc%2Fshadow",
        "..%2F..%2Fetc%2Fshadow",
        "%2Fproc%2F1%2Fenviron",
        "%2Fetc%2Fshadow",
    ]:
        answer = await agent.get(f"/api/v1/files/{path}")
        assert answer.status_code in {403, 404}
        assert answer.json().keys() == {"code", "message"}


async def test_malformed_paths_are_refused(agent) -> None:
    """What is no path of a file is refused by every operation; nothing is a server error."""
    for path in ["", "%2F", "%00", "a%00b", "x" * 5000]:
        for method in ("GET", "POST", "DELETE"):
            answer = await agent.request(
                method, f"/api/v1/files/{path}", content=b"x" if method == "POST" else None
            )
            assert 400 <= answer.status_code < 500, (method, answer.text)


async def test_move_and_copy(agent) -> None:
    """Files and directories are moved and copied; a directory is copied only where that was said."""
    await agent.post("/api/v1/files/%2Fd%2Fa", content=b"1")
    moved = await agent.patch("/api/v1/files/%2Fd%2Fa", json={"action": "move", "destination": "/e/b"})
    assert (moved.status_code, moved.json()["from"], moved.json()["to"]) == (200, "/d/a", "/e/b")
    assert (await agent.get("/api/v1/files/%2Fd%2Fa")).status_code == 404
    body = {"action": "copy", "destination": "/f"}
    assert (await agent.patch("/api/v1/files/%2Fe", json=body)).status_code == 400
    assert (await agent.patch("/api/v1/files/%2Fe", json={**body, "recursive": True})).status_code == 200
    assert (await agent.get("/api/v1/files/%2Ff%2Fb")).json()["content"] == "1"
    assert (await agent.patch("/api/v1/files/%2Fnone", json=body)).status_code == 404
    assert (
        await agent.patch("/api/v1/files/%2Fe", json={"action": "link", "destination": "/g"})
    ).status_code == 400


async def test_directories(agent) -> None:
    """They are made with those above them, listed with what is in them, and removed with it."""
    assert (await agent.post("/api/v1/directories/%2Fa%2Fb")).status_code == 201
    await agent.post("/api/v1/files/%2Fa%2Fx.txt", content=b"12")
    listed = (await agent.get("/api/v1/directories/%2Fa")).json()
    files = {file["name"]: (file["isDir"], file["path"]) for file in listed["files"]}
    assert listed["path"] == "/a"
    assert files == {"b": (True, "/a/b"), "x.txt": (False, "/a/x.txt")}
    stat = (await agent.get("/api/v1/file_stat/%2Fa%2Fx.txt")).json()
    assert (stat["size"], stat["isDir"]) == (2, False)
    assert (await agent.delete("/api/v1/files/%2Fa")).status_code == 400
    assert (await agent.delete("/api/v1/directories/%2Fa%2Fx.txt")).status_code == 400
    assert (await agent.delete("/api/v1/directories/%2Fa")).status_code == 200
    assert (await agent.get("/api/v1/directories/%2Fa")).status_code == 404


async def test_watchers(agent) -> None:
    """A watcher says that it is connected, then what happens; ignored names are left out; two slashes are one."""
    await agent.post("/api/v1/directories/%2Fw")
    path = "/api/v1/stream/directories/watcher//w?ignorePatterns=*.log&recursive=true"
    async with agent.stream("GET", path) as answer:
        lines = answer.aiter_lines()
        assert json.loads(await _data(lines))["type"] == "connected"
        await agent.post("/api/v1/files/%2Fw%2Fa.log", content=b"1")
        await agent.post("/api/v1/files/%2Fw%2Fa.txt", content=b"1")
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["paths"] != ["/w/a.txt"]:
            seen.append(json.loads(await _data(lines)))
    assert {"paths", "type", "timestamp"} == seen[-1].keys()
    assert not any(path.endswith(".log") for event in seen for path in event["paths"])


async def test_watching_what_is_not_there(agent) -> None:
    """A directory that does not exist cannot be watched."""
    assert (await agent.get("/api/v1/stream/directories/watcher/%2Fnone")).status_code == 404


# ------------------------------------------------------------------------------------- ports and tokens


async def test_ports(agent) -> None:
    """A port that a program listens on is listed with its address, until it is closed."""
    code = "import socket,time; s=socket.create_server(('127.0.0.1', 4321)); print('up', flush=True); time.sleep(60)"
    made = await make_exec(agent, "python3", ("-c", code))
    async with agent.stream("GET", f"/api/v1/stream/execs/{made['id']}/io") as answer:
        await _data(answer.aiter_lines())
    ports = (await agent.get("/api/v1/ports")).json()["ports"]
    assert {"port": 4321, "address": "127.0.0.1"} in ports
    async with agent.stream("GET", "/api/v1/stream/ports") as answer:
        assert json.loads(await _data(answer.aiter_lines())) == {"ports": ports}


async def test_the_readonly_token(place) -> None:
    """It reads everything and changes nothing: 403 wherever something would be done."""
    told = await place.create()
    agent, reader = await place.agent(told), await place.agent(told, "readonly_token")
    made = await make_exec(agent, "sh", ("-c", "echo x"))
    assert (await events_of(reader, f"/api/v1/stream/execs/{made['id']}/io"))[-1]["exitCode"] == 0
    assert (await reader.get("/api/v1/directories/%2F")).status_code == 200
    for method, path in (
        ("POST", "/api/v1/execs"),
        ("POST", f"/api/v1/execs/{made['id']}/start"),
        ("POST", f"/api/v1/execs/{made['id']}/io"),
        ("DELETE", f"/api/v1/execs/{made['id']}"),
        ("POST", "/api/v1/files/%2Fx"),
        ("PATCH", "/api/v1/files/%2Fx"),
        ("DELETE", "/api/v1/files/%2Fx"),
        ("POST", "/api/v1/directories/%2Fx"),
        ("DELETE", "/api/v1/directories/%2Fx"),
    ):
        answer = await reader.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (403, 403), path


async def test_tokens_are_each_sandbox_s_own(place) -> None:
    """Another sandbox's token, a key of the management API and none at all are 401."""
    one, two = await place.create(), await place.create()
    for token in (two["agent"]["token"], "e2b_" + 40 * "a", None):
        client = await place.new_client(one["agent"]["url"], token)
        answer = await client.get("/api/v1/execs")
        assert (answer.status_code, answer.json()["code"]) == (401, 401)


async def test_tasks_are_not_here(agent) -> None:
    """There are no tasks, and one that is asked for is not found; unknown routes have the agent's form."""
    assert (await agent.get("/api/v1/tasks")).json() == {"tasks": []}
    assert (await agent.get("/api/v1/setup-tasks")).json() == {"setupTasks": []}
    for path in ("/api/v1/tasks/1", "/api/v1/nothing"):
        answer = await agent.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, 404)


async def _data(lines) -> str:
    """Return the next event's data."""
    async with asyncio.timeout(10):
        async for line in lines:
            if line.startswith("data: "):
                return line[6:]
    raise AssertionError("the stream ended")
