"""Commands and sessions: their streams, their state, their logs, how they are stopped."""

import asyncio
import re
import shlex
import time
from typing import Any

from cellfork.dialects.opensandbox.execd.routes import ExecdApp
from cellfork.model.limits import Limits
from tests.dialects.opensandbox.execd.conftest import Client, events_of, failure_of, make_client, of, text_of
from tests.templates import IN_TMP


def lines_of(events: list[dict[str, Any]], kind: str = "stdout") -> list[str]:
    return [event["text"] for event in of(events, kind)]


async def session(client: Client, **fields: Any) -> str:
    """Make a session; return its id."""
    answer = await client.ask("POST", "/session", fields or ())
    assert answer.status == 200, answer.body
    id = answer.json["session_id"]
    assert isinstance(id, str)
    return id


async def run_in(client: Client, id: str, command: str, **fields: Any) -> list[dict[str, Any]]:
    return events_of(await client.ask("POST", f"/session/{id}/run", {"command": command, **fields}))


async def ended(client: Client, id: str) -> dict[str, Any]:
    """Return the status of a command when it has ended."""
    async with asyncio.timeout(10):
        while (status := (await client.get(f"/command/status/{id}")).json)["running"]:
            await asyncio.sleep(0.02)
    return dict(status)


# ------------------------------------------------------------------------------------------- foreground


async def test_the_stream_of_a_command(client: Client) -> None:
    """A line is an event without its end, an empty one is a newline; complete or failed is the last one, never both."""
    events = await client.run("printf 'a\\n\\nb'; echo c >&2")
    assert lines_of(events) == ["a", "\n", "b"]
    assert lines_of(events, "stderr") == ["c"]
    assert events[-1]["type"] == "execution_complete"
    assert not of(events, "error")


async def test_failing_commands(client: Client) -> None:
    """The error tells the exit code as text, and how it ended in Go's words; a signal is −1."""
    for command, value, how in (
        ("exit 7", "7", "exit status 7"),
        ("kill -9 $$", "-1", "signal: killed"),
        ("kill -SEGV $$", "-1", "signal: segmentation fault"),
        ("nothing-like-this", "127", "exit status 127"),
    ):
        events = await client.run(command)
        assert events[-1]["error"] == {"ename": "CommandExecError", "evalue": value, "traceback": [how]}
        assert not of(events, "execution_complete")


async def test_there_is_no_tail(client: Client) -> None:
    """The stream ends with its command; upstream waits a second."""
    await client.run("true")
    start = time.monotonic()
    for _ in range(5):
        await client.run("true")
    assert time.monotonic() - start < 2.5


async def test_arguments_without_a_shell(client: Client) -> None:
    """``argv`` is passed as it is; a program that is not there is an error of the command, after its id."""
    events = events_of(await client.ask("POST", "/command", {"argv": ["printf", "%s\\n", "$HOME *"]}))
    assert lines_of(events) == ["$HOME *"]
    events = events_of(await client.ask("POST", "/command", {"argv": ["/nothing/like/this"]}))
    assert events[-1]["error"]["ename"] == "CommandExecError"
    assert events[-1]["error"]["evalue"] == "127"


async def test_directory_and_variables(client: Client) -> None:
    """They hold for one command; a directory may be named with ``~`` and variables, its own ones too."""
    events = await client.run("pwd; echo $A", cwd="/tmp", envs={"A": "b c"})
    assert lines_of(events) == ["/tmp", "b c"]
    assert lines_of(await client.run("pwd; echo [$A]")) == ["/home/user", "[]"]
    assert lines_of(await client.run("pwd", cwd="${PLACE}", envs={"PLACE": "/usr"})) == ["/usr"]
    assert lines_of(await client.run("pwd", cwd="~")) == ["/home/user"]


async def test_variables_that_outlive_a_command(client: Client) -> None:
    """A line in the file that ``EXECD_ENVS`` names, which is how the SDKs' ``set_env`` works, is there for what comes."""
    line = shlex.quote("NAME='it is $HERE'")
    await client.run(f'mkdir -p "$(dirname "$EXECD_ENVS")"; printf "%s\\n" {line} >> "$EXECD_ENVS"')
    assert lines_of(await client.run("echo $NAME")) == ["it is $HERE"]
    assert lines_of(await client.run("echo $NAME", envs={"NAME": "other"})) == ["other"]
    assert lines_of(await run_in(client, await session(client), "echo $NAME")) == ["it is $HERE"]


async def test_a_directory_instead_of_that_file(client: Client) -> None:
    """Whatever is there, commands run."""
    await client.run('mkdir -p "$EXECD_ENVS"')
    assert lines_of(await client.run("echo here")) == ["here"]


async def test_users(client: Client) -> None:
    """There is one user; root is a name of it, anybody else is refused rather than pretended."""
    for ids in ({"uid": 0}, {"uid": 1000, "gid": 1000}, {"uid": 0, "gid": 0}):
        assert lines_of(await client.run("id -u", **ids)) == ["1000"]
    for ids in ({"uid": 33}, {"uid": 1000, "gid": 33}, {"uid": 65534, "gid": 65534}):
        answer = await client.ask("POST", "/command", {"command": "id", **ids})
        assert failure_of(answer) == (400, "NOT_SUPPORTED")


async def test_a_timeout(client: Client) -> None:
    """Milliseconds; what was written before is there, and the command ends as if killed."""
    events = await client.run("echo before; sleep 60", timeout=300)
    assert lines_of(events) == ["before"]
    assert events[-1]["error"]["evalue"] == "-1"
    assert events[-1]["error"]["traceback"][0].startswith("signal: ")


async def test_much_output(client: Client) -> None:
    """Every line of both streams arrives, whole and in order, up to long ones."""
    events = await client.run(
        "for n in $(seq 1 512); do printf '%04d%04092d\\n' $n 0; printf '%04d\\n' $n >&2; done; printf tail"
    )
    lines = lines_of(events)
    assert [line[:4] for line in lines[:-1]] == [f"{number:04}" for number in range(1, 513)]
    assert {len(line) for line in lines[:-1]} == {4096}
    assert lines[-1] == "tail"
    assert lines_of(events, "stderr") == [f"{number:04}" for number in range(1, 513)]
    long = await client.run("head -c 300000 /dev/zero | tr '\\0' x")
    assert [len(line) for line in lines_of(long)] == [300_000]


async def test_a_client_that_leaves(client: Client) -> None:
    """Its command runs on."""
    running = client.begin("POST", "/command", {"command": "echo runs; sleep 0.3; echo done > /tmp/done"})
    await running.until("runs")
    id = re.search(rb'"text":"([a-z0-9]+)"', running.answer.body)
    assert id is not None
    running.leave()
    await running.done()
    assert (await ended(client, id[1].decode()))["exit_code"] == 0
    assert lines_of(await client.run("cat /tmp/done")) == ["done"]


async def test_interrupting(client: Client) -> None:
    """The stream ends with an error, and soon; a second time there is nothing to interrupt."""
    running = client.begin("POST", "/command", {"command": "echo runs; sleep 60"})
    await running.until("runs")
    id = running.answer.body.split(b'"text":"')[1].split(b'"')[0].decode()
    assert (await client.ask("DELETE", "/command", id=id)).status == 200
    events = events_of(await running.done())
    assert events[-1]["error"]["traceback"] == ["signal: terminated"]
    assert failure_of(await client.ask("DELETE", "/command", id=id)) == (409, "RUNTIME_ERROR")
    status = (await client.get(f"/command/status/{id}")).json
    assert (status["running"], status["exit_code"], status["error"]) == (False, -1, "signal: terminated")


async def test_a_sandbox_that_ends(client: Client) -> None:
    """The stream is torn."""
    running = client.begin("POST", "/command", {"command": "echo runs; sleep 60"})
    await running.until("runs")
    await client.sandbox.kill()
    assert not (await running.done()).complete
    assert running.aborted


# ------------------------------------------------------------------------------------------- background


async def test_a_background_command(client: Client) -> None:
    """Its stream ends at once; its state is there from then on, its output by a cursor of bytes."""
    id = await client.background("echo one; sleep 0.3; echo two >&2; exit 3", cwd="/tmp")
    status = (await client.get(f"/command/status/{id}")).json
    assert (status["id"], status["running"]) == (id, True)
    assert status["content"].startswith("echo one")
    assert "exit_code" not in status
    status = await ended(client, id)
    assert status["exit_code"] == 3
    assert status["error"] == "exit status 3"
    assert status["started_at"] < status["finished_at"]
    logs = await client.get(f"/command/{id}/logs")
    assert (logs.body, logs.headers["execd-commands-tail-cursor"]) == (b"one\ntwo\n", "8")
    assert logs.headers["content-type"].startswith("text/plain")
    assert (await client.get(f"/command/{id}/logs", cursor=4)).body == b"two\n"
    behind = await client.get(f"/command/{id}/logs", cursor=10**9)
    assert (behind.body, behind.headers["execd-commands-tail-cursor"]) == (b"", str(10**9))


async def test_the_cursor_counts_what_was_dropped(client: Client) -> None:
    """Where more was written than is kept, a reader that keeps up misses nothing, and one that comes late is told."""
    small = await make_client(client.engine, limits=Limits(memory="256M", disk="32M", output=400_000))
    id = await small.background("seq 1 200000")
    await ended(small, id)
    whole = b"".join(b"%d\n" % number for number in range(1, 200_001))
    logs = await small.get(f"/command/{id}/logs")
    assert int(logs.headers["execd-commands-tail-cursor"]) == len(whole)
    assert b"dropped" in logs.body
    for near in (100, 1, 0):
        tail = await small.get(f"/command/{id}/logs", cursor=len(whole) - near)
        assert tail.body == whole[len(whole) - near :]
        assert int(tail.headers["execd-commands-tail-cursor"]) == len(whole)


async def test_a_timeout_in_the_background(client: Client) -> None:
    """It ends the command as well."""
    status = await ended(client, await client.background("sleep 60", timeout=100))
    assert status["exit_code"] == -1


async def test_interrupting_in_the_background(client: Client) -> None:
    """By the same route."""
    id = await client.background("sleep 60")
    assert (await client.ask("DELETE", "/command", id=id)).status == 200
    assert (await ended(client, id))["exit_code"] == -1


async def test_unknown_commands(client: Client) -> None:
    """404, in the shape that clients read; foreground output is not kept for asking."""
    for id in ("nothing", "x" * 3000, "..", "%2e%2e"):
        assert failure_of(await client.get(f"/command/status/{id}")) == (404, "INVALID_REQUEST_BODY")
        assert failure_of(await client.get(f"/command/{id}/logs")) == (404, "INVALID_REQUEST_BODY")
    id = (await client.run("true"))[0]["text"]
    assert (await client.get(f"/command/status/{id}")).json["exit_code"] == 0
    assert failure_of(await client.get(f"/command/{id}/logs"))[0] == 400


BAD: list[Any] = [
    {},
    {"command": ""},
    {"command": "  "},
    {"command": 1},
    {"command": "x", "argv": ["x"]},
    {"argv": []},
    {"argv": [""]},
    {"argv": ["x", 1]},
    {"command": "x", "cwd": "/absent"},
    {"command": "x", "cwd": "/etc/passwd"},
    {"command": "x", "cwd": "$NOTHING"},
    {"command": "x", "cwd": "a\0b"},
    {"command": "x", "cwd": "x" * 10_000},
    {"command": "a\0b"},
    {"command": "x", "timeout": 0},
    {"command": "x", "timeout": -1},
    {"command": "x", "timeout": 1.5},
    {"command": "x", "timeout": 10**30},
    {"command": "x", "gid": 0},
    {"command": "x", "uid": -1},
    {"command": "x", "envs": {"A": 1}},
    {"command": "x", "envs": {"A=B": "1"}},
    {"command": "x", "envs": {"": "1"}},
    {"command": "x", "envs": {"A": "\0"}},
    {"command": "x", "background": "yes"},
    [],
]


async def test_malformed_commands(client: Client) -> None:
    """400, and nothing runs."""
    for body in BAD:
        assert failure_of(await client.ask("POST", "/command", body))[0] == 400, body
    assert client.sandbox.execs.list() == []


# --------------------------------------------------------------------------------------------- sessions


async def test_a_session_keeps_what_is_exported(client: Client) -> None:
    """The directory and exported variables survive, whatever the end of a run was; ``exit`` ends the run alone."""
    id = await session(client, cwd="/tmp/work/here")
    assert lines_of(await run_in(client, id, "pwd; export A='x\ny'; B=2; cd /usr")) == ["/tmp/work/here"]
    events = await run_in(client, id, 'pwd; echo "$A[$B]"; exit 7')
    assert lines_of(events) == ["/usr", "x", "y[]"]
    assert events[-1]["error"]["evalue"] == "7"
    assert lines_of(await run_in(client, id, "pwd", cwd="/tmp")) == ["/tmp"]
    assert lines_of(await run_in(client, id, "pwd; echo $#")) == ["/tmp", "0"]
    assert lines_of(await run_in(client, id, "unset A; rmdir /tmp/work/here")) == []
    assert lines_of(await run_in(client, id, "echo [$A]")) == ["[]"]


async def test_a_session_merges_its_streams(client: Client) -> None:
    """As upstream: what goes to stderr is told as stdout, in its order."""
    id = await session(client)
    events = await run_in(client, id, "echo a; echo b >&2; echo c")
    assert lines_of(events) == ["a", "b", "c"]
    assert not of(events, "stderr")


async def test_runs_of_a_session_wait_for_one_another(client: Client) -> None:
    """Each finds what the one before it left, also where its client has left."""
    id = await session(client)
    first = client.begin("POST", f"/session/{id}/run", {"command": "echo runs; sleep 0.3; export A=1"})
    await first.until("runs")
    first.leave()
    streams = await asyncio.gather(*(run_in(client, id, "echo $A; export A=$((A + 1))") for _ in range(3)))
    assert [text_of(events) for events in streams] == ["1", "2", "3"]


async def test_a_session_whose_time_is_over(client: Client) -> None:
    """The run ends, the session does not; 0 is no bound."""
    id = await session(client)
    assert (await run_in(client, id, "sleep 60", timeout=200))[-1]["type"] == "error"
    assert lines_of(await run_in(client, id, "echo on", timeout=0)) == ["on"]


async def test_removed_and_unknown_sessions(client: Client) -> None:
    """404; what a session kept is gone with it."""
    id = await session(client)
    assert (await client.ask("DELETE", f"/session/{id}")).status == 200
    assert {*lines_of(await client.run("ls -A /tmp"))} == IN_TMP
    for unknown in (id, "nothing", "..", "x" * 100):
        gone = await client.ask("POST", f"/session/{unknown}/run", {"command": "true"})
        assert failure_of(gone) == (404, "CONTEXT_NOT_FOUND")
        assert failure_of(await client.ask("DELETE", f"/session/{unknown}")) == (404, "CONTEXT_NOT_FOUND")
    interrupted = await session(client)
    assert (await client.ask("DELETE", "/code", id=interrupted)).status == 200
    assert failure_of(await client.ask("DELETE", f"/session/{interrupted}"))[0] == 404


async def test_removing_a_session_that_runs(client: Client) -> None:
    """What runs is ended, what waits for it is refused, nothing is left."""
    id = await session(client)
    running = client.begin("POST", f"/session/{id}/run", {"command": "echo runs; sleep 60"})
    await running.until("runs")
    waiting = client.begin("POST", f"/session/{id}/run", {"command": "echo never"})
    await asyncio.sleep(0.05)
    assert (await client.ask("DELETE", f"/session/{id}")).status == 200
    assert events_of(await running.done())[-1]["type"] == "error"
    assert failure_of(await waiting.done()) == (404, "CONTEXT_NOT_FOUND")
    assert {*lines_of(await client.run("ls -A /tmp; pgrep sleep"))} == IN_TMP


async def test_another_server_finds_what_was_there(client: Client) -> None:
    """Sessions and commands are the sandbox's: a server that takes it over knows them."""
    id = await session(client, cwd="/tmp")
    await run_in(client, id, "export A=1")
    command = await client.background("echo there; sleep 60")
    other = Client(ExecdApp(client.services), client.sandbox, client.engine, client.services)
    assert lines_of(await run_in(other, id, "echo $A; pwd")) == ["1", "/tmp"]
    assert (await other.get(f"/command/status/{command}")).json["running"] is True
    assert (await other.get(f"/command/{command}/logs")).body == b"there\n"
    assert (await other.ask("DELETE", f"/session/{id}")).status == 200


async def test_malformed_sessions(client: Client) -> None:
    """400 for what cannot be."""
    id = await session(client)
    runs: list[Any] = [
        {"command": ""},
        {},
        {"command": "x", "cwd": "/absent"},
        {"command": "x", "timeout": -1},
        [],
    ]
    for body in runs:
        assert failure_of(await client.ask("POST", f"/session/{id}/run", body))[0] == 400
    sessions: list[Any] = [{"cwd": 1}, {"cwd": "/etc/passwd"}, {"cwd": "a\0b"}, [1]]
    for body in sessions:
        assert failure_of(await client.ask("POST", "/session", body))[0] in {400, 409}


async def test_a_session_survives_what_is_done_to_it(client: Client) -> None:
    """A program may spoil what is kept: a run begins at home then, without variables."""
    id = await session(client)
    await run_in(client, id, "export A=1; rm -rf /tmp/.session-*/env; mkdir /tmp/gone; cd /tmp/gone")
    await client.run("rmdir /tmp/gone; for d in /tmp/.session-*; do echo 'syntax (' > $d/env; done")
    events = await run_in(client, id, "echo still")
    assert events[-1]["type"] in {"error", "execution_complete"}
