"""Processes: what is told of them word for word, who ends them and who does not."""

import asyncio
from base64 import b64encode

from tests.dialects.e2b.envd.conftest import Client, end_of, output


def text(data: str) -> str:
    return b64encode(data.encode()).decode()


def running(answer) -> list[int]:
    return [process["pid"] for process in answer.json.get("processes", [])]


async def test_start_tells_the_pid_the_output_and_the_end_in_this_order(client: Client):
    """The first event is the start, the last one the end; then the stream says that it is complete."""
    answer = await client.run("echo out; echo err >&2")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/connect+json"
    kinds = [next(iter(message["event"])) for message in answer.messages]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert set(kinds[1:-1]) == {"data"}
    assert answer.messages[0]["event"]["start"]["pid"] > 1
    assert (output(answer), output(answer, "stderr")) == (b"out\n", b"err\n")
    assert end_of(answer) == {"exited": True, "status": "exit status 0"}
    assert answer.end == {}
    assert answer.complete


async def test_how_a_process_ended(client: Client):
    """Exit codes are told as they are; a signal is exit code -1, with its name in Go's words."""
    assert end_of(await client.run("exit 3")) == {
        "exitCode": 3,
        "exited": True,
        "status": "exit status 3",
        "error": "exit status 3",
    }
    assert end_of(await client.run("kill -9 $$")) == {
        "exitCode": -1,
        "status": "signal: killed",
        "error": "signal: killed",
    }
    assert end_of(await client.run("kill -TERM $$"))["status"] == "signal: terminated"


async def test_environment_and_directory(client: Client):
    """A process starts at home with the sandbox's variables, the request's over them; ``~`` and relative paths work."""
    answer = await client.run('echo "$HOME $USER $LOGNAME $A"; pwd', envs={"A": "it's"}, cwd="~/../user")
    assert output(answer) == b"/home/user user user it's\n/home/user\n"
    answer = await client.run("pwd", cwd="/tmp")
    assert output(answer) == b"/tmp\n"


async def test_a_directory_that_is_not_there(client: Client):
    """The refusal names the directory, and is told apart from that of a program."""
    answer = await client.run("true", cwd="/nowhere")
    assert answer.error == ("invalid_argument", "cwd '/nowhere' does not exist")
    answer = await client.stream("Process/Start", {"process": {"cmd": "no-such-program"}}).done()
    code, message = answer.error
    assert code == "invalid_argument"
    assert message.startswith("error starting process 'no-such-program': ")


async def test_users(client: Client):
    """There are user and root; anybody else is unauthenticated, in upstream's words."""
    client.user = "root"
    answer = await client.run('echo "$HOME $USER $(id -u)"; pwd; cd; touch here && ls -A | grep here')
    assert output(answer) == b"/root root 1000\n/root\nhere\n"
    client.user = "root123"
    answer = await client.run("true")
    assert answer.error == ("unauthenticated", "invalid username: 'root123'")
    listed = await client.call("Filesystem/Stat", {"path": "x"})
    assert (listed.status, *listed.error) == (401, "unauthenticated", "invalid username: 'root123'")


async def test_what_is_no_user_header_is_no_user(client: Client):
    """A header that names nobody means the default user."""
    for header in ("Basic !!!", "Basic", "Bearer dXNlcjo=", "Basic dXNlcg==", "Basic \u00fc", ""):
        exchange = client.stream("Process/Start", {"process": {"cmd": "whoami"}}, authorization=header)
        assert output(await exchange.done()) == b"user\n", header


async def test_sudo_runs_what_follows(client: Client):
    """``sudo`` is there, runs what follows with root's home, and gives no right."""
    answer = await client.run('sudo -n -E A=1 sh -c "echo \\$HOME \\$A; id -u"; sudo -u nobody true; echo $?')
    assert output(answer) == b"/root 1\n1000\n1\n"
    assert output(answer, "stderr") == b"sudo: unknown user nobody\n"


async def test_a_client_that_goes_away_leaves_its_process(client: Client):
    """A disconnect ends the stream and not the process, which others can follow."""
    exchange, pid = await client.start("sleep 0.3; echo later; exit 5")
    exchange.leave()
    await exchange.done()
    assert pid in running(await client.call("Process/List"))
    answer = await client.stream("Process/Connect", {"process": {"pid": pid}}).done()
    assert answer.messages[0] == {"event": {"start": {"pid": pid}}}
    assert output(answer) == b"later\n"
    assert end_of(answer)["exitCode"] == 5


async def test_connect_subscribes_from_now_on(client: Client):
    """What was written before is not told again; several may follow one process."""
    exchange, pid = await client.start("echo early; read x; echo $x", stdin=True)
    await exchange.until(text("early\n"))
    others = [client.stream("Process/Connect", {"process": {"pid": pid}}) for _ in range(2)]
    for other in others:
        await other.until('"start"')
    sent = await client.call("Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": text("go\n")}})
    assert (sent.status, sent.json) == (200, {})
    for other in others:
        assert output(await other.done()) == b"go\n"
    assert output(await exchange.done()) == b"early\ngo\n"


async def test_the_end_is_kept_for_late_clients(client: Client):
    """Whoever connects after the end is told how it was, by pid and by tag; the output is not told again."""
    answer = await client.run("echo x; exit 7", tag="job")
    pid = answer.messages[0]["event"]["start"]["pid"]
    for selector in ({"pid": pid}, {"tag": "job"}):
        late = await client.stream("Process/Connect", {"process": selector}).done()
        assert [next(iter(message["event"])) for message in late.messages] == ["start", "end"]
        assert end_of(late)["exitCode"] == 7


async def test_the_deadline_of_a_start_kills_its_process(client: Client):
    """``Connect-Timeout-Ms`` ends the process, and the client hears of the deadline and not of the kill."""
    exchange, pid = await client.start("sleep 60", headers={"connect_timeout_ms": "300"})
    answer = await exchange.done()
    assert answer.error[0] == "deadline_exceeded"
    assert "end" not in answer.messages[-1]["event"]
    late = await client.stream("Process/Connect", {"process": {"pid": pid}}).done()
    assert end_of(late)["status"] == "signal: killed"


async def test_the_deadline_holds_when_the_client_has_gone(client: Client):
    """The deadline belongs to the process and not to the connection."""
    exchange, pid = await client.start("sleep 60", headers={"connect_timeout_ms": "400"})
    exchange.leave()
    await exchange.done()
    late = await client.stream("Process/Connect", {"process": {"pid": pid}}).done()
    assert end_of(late)["status"] == "signal: killed"


async def test_no_deadline(client: Client):
    """A timeout of 0 is none."""
    exchange, _pid = await client.start("sleep 0.1; echo done", headers={"connect_timeout_ms": "0"})
    assert output(await exchange.done()) == b"done\n"


async def test_keepalive(client: Client):
    """A stream that has nothing to say says so, at the interval of the request's header."""
    exchange, _pid = await client.start("sleep 1.3; echo x", headers={"keepalive_ping_interval": "1"})
    answer = await exchange.done()
    kinds = [next(iter(message["event"])) for message in answer.messages]
    assert kinds == ["start", "keepalive", "data", "end"]


async def test_signals(client: Client):
    """SIGTERM and SIGKILL are sent to the process and what it started; after a kill nothing of it is left."""
    _exchange, pid = await client.start("trap 'echo bye; exit 4' TERM; while :; do sleep 0.01; done")
    _exchange.leave()
    follower = client.stream("Process/Connect", {"process": {"pid": pid}})
    await follower.until('"start"')
    await asyncio.sleep(0.2)
    told = await client.call("Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGTERM"})
    assert told.json == {}
    assert end_of(await follower.done())["exitCode"] == 4

    exchange, pid = await client.start("sleep 60 & wait")
    await client.call("Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
    assert end_of(await exchange.done())["status"] == "signal: killed"
    assert end_of(await client.run(f"kill -0 {pid}"))["exitCode"] == 1
    assert running(await client.call("Process/List")) == []


async def test_processes_that_do_not_run(client: Client):
    """Unknown processes are not found, by pid and by tag; other signals and no selector are refused."""
    selector = {"process": {"pid": 999999}}
    for name, message in (
        ("Process/SendSignal", selector | {"signal": "SIGNAL_SIGKILL"}),
        ("Process/SendInput", selector | {"input": {"stdin": ""}}),
        ("Process/CloseStdin", selector),
        ("Process/Update", selector),
    ):
        answer = await client.call(name, message)
        assert (answer.status, *answer.error) == (404, "not_found", "process with pid 999999 not found")
    answer = await client.stream("Process/Connect", {"process": {"tag": "x"}}).done()
    assert answer.error == ("not_found", "process with tag x not found")
    answer = await client.call("Process/CloseStdin", {})
    assert answer.error[0] == "unimplemented"
    exchange, pid = await client.start("sleep 60")
    answer = await client.call("Process/SendSignal", {"process": {"pid": pid}})
    assert answer.error[0] == "unimplemented"
    exchange.leave()


async def test_list(client: Client):
    """A list tells what was started, with its tag; what has ended is not in it."""
    exchange, pid = await client.start("sleep 60", tag="t", cwd="/tmp", envs={"A": "1"})
    await client.run("true")
    config = {"cmd": "/bin/bash", "args": ["-l", "-c", "sleep 60"], "envs": {"A": "1"}, "cwd": "/tmp"}
    answer = await client.call("Process/List")
    assert answer.json == {"processes": [{"config": config, "pid": pid, "tag": "t"}]}
    exchange.leave()


async def test_standard_input(client: Client):
    """Input goes in as it is sent and ends when it is closed; an absent ``stdin`` means that there is one."""
    start = {"process": {"cmd": "cat"}}
    exchange = client.stream("Process/Start", start)
    await exchange.until('"start"')
    process = {"process": exchange.answer.messages[0]["event"]["start"]}
    await client.call("Process/SendInput", process | {"input": {"stdin": text("a")}})
    await client.call("Process/SendInput", process | {"input": {"stdin": text("b\u00e9")}})
    assert (await client.call("Process/CloseStdin", process)).json == {}
    answer = await exchange.done()
    assert output(answer) == "abé".encode()
    assert end_of(answer)["status"] == "exit status 0"


async def test_input_where_there_is_none(client: Client):
    """Without a standard input, or a terminal, writing there is an error in upstream's words."""
    exchange, pid = await client.start("sleep 60")
    process = {"process": {"pid": pid}}
    answer = await client.call("Process/SendInput", process | {"input": {"stdin": text("a")}})
    assert answer.error == ("failed_precondition", "error writing to stdin: stdin not enabled or closed")
    answer = await client.call("Process/SendInput", process | {"input": {"pty": text("a")}})
    assert answer.error[1].startswith("error writing to tty: tty not assigned to process")
    answer = await client.call("Process/SendInput", process)
    assert answer.error[0] == "unimplemented"
    answer = await client.call("Process/Update", process | {"pty": {"size": {"cols": 1, "rows": 1}}})
    assert answer.error == ("failed_precondition", "error resizing tty: tty not assigned to process")
    exchange.leave()


async def test_closed_input(client: Client):
    """Closing twice is as good as once; writing afterwards is an error."""
    exchange, pid = await client.start("cat; sleep 60", stdin=True)
    process = {"process": {"pid": pid}}
    for _ in range(2):
        assert (await client.call("Process/CloseStdin", process)).status == 200
    answer = await client.call("Process/SendInput", process | {"input": {"stdin": text("a")}})
    assert answer.error == ("failed_precondition", "error writing to stdin: stdin not enabled or closed")
    exchange.leave()


async def test_stream_input(client: Client):
    """One stream of input is written in its order; the first message names the process."""
    exchange, pid = await client.start("head -c 12", stdin=True)
    messages = [
        {"start": {"process": {"pid": pid}}},
        {"data": {"input": {"stdin": text("one ")}}},
        {"keepalive": {}},
        {"data": {"input": {"stdin": text("two ")}}},
        {"data": {"input": {"stdin": text("end\n")}}},
    ]
    answer = await client.stream("Process/StreamInput", *messages).done()
    assert (answer.messages, answer.end) == ([{}], {})
    assert output(await exchange.done()) == b"one two end\n"
    answer = await client.stream("Process/StreamInput", messages[1]).done()
    assert answer.error == ("invalid_argument", "the first message names the process")
    answer = await client.stream("Process/StreamInput", {}).done()
    assert answer.error[0] == "unimplemented"


async def test_terminal(client: Client):
    """A terminal has the size that is asked for and gets another one when told; input is what is typed."""
    start = {
        "process": {"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": {"TERM": "xterm"}},
        "pty": {"size": {"cols": 91, "rows": 17}},
    }
    exchange = client.stream("Process/Start", start)
    await exchange.until('"start"')
    process = {"process": exchange.answer.messages[0]["event"]["start"]}
    typed = process | {"input": {"pty": text("stty size\n")}}
    assert (await client.call("Process/SendInput", typed)).status == 200
    while b"17 91" not in output(exchange.answer, "pty"):
        await asyncio.sleep(0.01)
    resized = await client.call("Process/Update", process | {"pty": {"size": {"cols": 120, "rows": 40}}})
    assert resized.json == {}
    await client.call("Process/SendInput", process | {"input": {"pty": text("stty size; exit\n")}})
    answer = await exchange.done()
    assert b"40 120" in output(answer, "pty")
    assert end_of(answer)["status"] == "exit status 0"


async def test_terminals_refuse_what_is_no_input_of_theirs(client: Client):
    """Standard input of a terminal cannot be written or closed apart from it, and its size has bounds."""
    exchange = client.stream("Process/Start", {"process": {"cmd": "cat"}, "pty": {}})
    await exchange.until('"start"')
    process = {"process": exchange.answer.messages[0]["event"]["start"]}
    answer = await client.call("Process/SendInput", process | {"input": {"stdin": text("a")}})
    assert answer.error[1].startswith("error writing to stdin: tty assigned to process")
    answer = await client.call("Process/CloseStdin", process)
    assert "send Ctrl+D (0x04) instead" in answer.error[1]
    answer = await client.call("Process/Update", process | {"pty": {"size": {"cols": 70000, "rows": 1}}})
    assert answer.error[0] == "invalid_argument"
    exchange.leave()


async def test_broken_characters_arrive(client: Client):
    """Bytes that are no UTF-8 arrive as they are, also at the end."""
    answer = await client.run(r"printf '%8191s\xe2' | tr ' ' a; printf '\xff\x00'")
    assert output(answer) == b"a" * 8191 + b"\xe2\xff\x00"


async def test_much_output_is_whole(client: Client):
    """A client that reads gets everything, in its order."""
    answer = await client.run("seq 1 200000")
    assert output(answer) == b"".join(b"%d\n" % number for number in range(1, 200001))


async def test_the_binary_codec(client: Client):
    """The same calls work with Protocol Buffers in binary."""
    from cellfork.dialects.e2b.envd.stubs import process_pb as pb
    from tests.dialects.e2b.envd.conftest import envelopes, path_of

    message = pb.StartRequest(process=pb.ProcessConfig(cmd="echo", args=["hi"])).to_binary()
    body = b"\0" + len(message).to_bytes(4, "big") + message
    headers = {"content-type": "application/connect+proto", "connect-protocol-version": "1"}
    answer = await client.ask("POST", path_of("Process/Start"), body, headers)
    events = [
        pb.StartResponse.from_binary(data).event for flags, data in envelopes(answer.body) if flags == 0
    ]
    assert [event.event.field for event in events if event and event.event] == ["start", "data", "end"]


async def test_killing_the_sandbox_aborts_streams(client: Client):
    """No stream of a killed sandbox looks complete, and every later request is answered 502."""
    exchange, _pid = await client.start("echo before; sleep 60")
    await exchange.until(text("before\n"))
    waiting = client.begin(
        "POST", "/files?path=x", [b"a", b"b"] * 100_000, {"content-type": "application/octet-stream"}
    )
    watch = client.stream("Filesystem/WatchDir", {"path": "/tmp"})
    await watch.until('"start"')
    await client.sandbox.kill()
    for stream in (exchange, watch):
        answer = await stream.done()
        assert stream.aborted
        assert not answer.complete
        assert b'"end"' not in answer.body
    gone = {"sandboxId": client.sandbox.id, "message": "The sandbox was not found", "code": 502}
    assert ((await waiting.done()).status, waiting.answer.json) == (502, gone)
    for method, target in (("GET", "/health"), ("GET", "/files?path=x"), ("POST", "/process.Process/List")):
        answer = await client.ask(method, target, b"{}", {"content-type": "application/json"})
        assert (answer.status, answer.json) == (502, gone)


async def test_a_call_under_way_when_the_sandbox_ends(client: Client):
    """A call that the sandbox's end interrupts is answered as for a sandbox that is not there."""
    exchange, pid = await client.start("sleep 60", stdin=True)
    full = {"process": {"pid": pid}, "input": {"stdin": text("x" * 1_000_000)}}
    writing = asyncio.create_task(client.call("Process/SendInput", full))
    await asyncio.sleep(0.1)
    assert not writing.done()
    await client.sandbox.kill()
    assert (await writing).status == 502
    await exchange.done()


async def test_a_stream_outlasts_a_pause(client: Client):
    """In a pause every new request is answered 502, and what a stream tells of goes on after it."""
    exchange, pid = await client.start("read line; echo $line", stdin=True)
    await client.sandbox.pause()
    for method, target in (("GET", "/health"), ("POST", "/process.Process/List"), ("GET", "/files?path=x")):
        answer = await client.ask(method, target, b"{}", {"content-type": "application/json"})
        assert (answer.status, answer.json["message"]) == (502, "The sandbox was not found")
    await client.sandbox.resume()
    sent = {"process": {"pid": pid}, "input": {"stdin": text("after\n")}}
    assert (await client.call("Process/SendInput", sent)).status == 200
    assert output(await exchange.done()) == b"after\n"


async def test_a_pause_without_memory_ends_streams(client: Client):
    """Processes that a pause ends have no exit code, so their streams end with an error and not with an end event."""
    exchange, _pid = await client.start("sleep 60")
    await client.ask("POST", "/files?path=kept", b"1", {"content-type": "application/octet-stream"})
    await client.sandbox.pause(memory=False)
    answer = await exchange.done()
    assert exchange.aborted or answer.error[0] == "unavailable"
    assert b'"end"' not in answer.body
    await client.sandbox.resume()
    assert (await client.ask("GET", "/files?path=kept")).body == b"1"
