"""``/execute``: code in, upstream's lines out, in every way that a stream can end."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from cellfork.dialects.asgi import Abort
from cellfork.dialects.e2b.code import execute
from cellfork.testing.fakes import FakeKernel
from tests.dialects.e2b.code.conftest import TOKEN, Plane


async def test_a_value_is_a_count_a_result_and_the_end(plane: Plane):
    """The lines of ``1 + 1`` are exactly upstream's, nothing null in them."""
    answer = await plane.run("two")
    assert (answer.status, answer.complete) == (200, True)
    assert answer.lines == [
        {"type": "number_of_executions", "execution_count": 1},
        {"type": "result", "text": "two", "extra": {}, "is_main_result": True},
        {"type": "end_of_execution"},
    ]


async def test_short_code_is_answered_in_one_write_with_its_length(plane: Plane):
    """What is all there at once leaves at once: one piece of known length, no chunks."""
    answer = await plane.run("print a\nprint b\nvalue")
    assert len(answer.pieces) == 1
    assert answer.headers[b"content-length"] == str(len(answer.body)).encode()


async def test_text_has_its_stream_and_a_time_that_can_be_read(plane: Plane):
    """A line of text is of stdout or stderr, and tells the time of day with its zone, as upstream's does."""
    answer = await plane.run("print out\nwarn err")
    out, err = answer.of("stdout"), answer.of("stderr")
    assert [line["text"] for line in out + err] == ["out\n", "err\n"]
    moment = datetime.fromisoformat(out[0]["timestamp"])
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)


async def test_an_error_of_the_code_is_one_line_before_the_end(plane: Plane):
    """An error has name, value and traceback, always: clients read them without asking."""
    answer = await plane.run("raise ValueError bad")
    assert answer.lines[1:] == [
        {"type": "error", "name": "ValueError", "value": "bad", "traceback": "Traceback: bad"},
        {"type": "end_of_execution"},
    ]


async def test_output_leaves_while_the_code_runs(plane: Plane):
    """The first line does not wait for the end of the cell."""
    exchange = plane.open("POST", "/execute", {"code": "print first\nhang"})
    async with asyncio.timeout(5):
        await exchange.until("first")
    assert not exchange.answer.complete
    exchange.leave()
    await exchange.task


async def test_silence_is_broken_by_keepalives(plane: Plane, monkeypatch: pytest.MonkeyPatch):
    """A cell that says nothing sends a keepalive now and then, also while lines come that upstream has no form for."""
    monkeypatch.setattr(execute, "KEEPALIVE_SECONDS", 0.02)
    exchange = plane.open("POST", "/execute", {"code": "hang"})
    async with asyncio.timeout(5):
        while len(exchange.answer.of("keepalive")) < 3:
            await asyncio.sleep(0.005)
            kernel = plane.guest.kernels.get(1)
            if kernel is not None and kernel.execution:
                kernel.update({"text/plain": "x"}, "d")
    exchange.leave()
    await exchange.task


async def test_a_client_that_goes_away_stops_its_code(plane: Plane):
    """When the connection closes the cell is interrupted, and its context runs the next one with its state."""
    exchange = plane.open("POST", "/execute", {"code": "hang"})
    await asyncio.sleep(0.1)
    exchange.leave()
    async with asyncio.timeout(5):
        await exchange.task
        answer = await plane.run("value")
    assert plane.guest.requests("interrupt")
    assert not plane.guest.requests("terminate")
    assert answer.of("number_of_executions") == [{"type": "number_of_executions", "execution_count": 2}]


async def test_a_client_that_goes_away_while_its_code_waits_takes_it_out_of_the_queue(plane: Plane):
    """Code whose client left before its turn never runs."""
    first = plane.open("POST", "/execute", {"code": "hang"})
    await asyncio.sleep(0.1)
    second = plane.open("POST", "/execute", {"code": "print never"})
    await asyncio.sleep(0.1)
    second.leave()
    await second.task
    first.leave()
    await first.task
    assert not any(frame.body == b"print never" for frame in plane.guest.sent)


async def test_the_queue_is_first_come_first_served(plane: Plane):
    """Executions of one context run one after the other, in the order of asking."""
    exchanges = [plane.open("POST", "/execute", {"code": f"value{n}"}) for n in range(3)]
    await asyncio.gather(*(exchange.task for exchange in exchanges))
    counts = [exchange.answer.of("number_of_executions")[0]["execution_count"] for exchange in exchanges]
    assert counts == [1, 2, 3]


@pytest.mark.parametrize("code", ["hang", "print first\nhang"])
async def test_a_kill_of_the_sandbox_tears_the_stream(plane: Plane, code: str):
    """When the sandbox is killed under its code the response has begun and is aborted: never a clean end."""
    exchange = plane.open("POST", "/execute", {"code": code})
    await asyncio.sleep(0.1)
    await plane.sandbox.kill()
    with pytest.raises(Abort):
        await exchange.task
    assert exchange.answer.status == 200
    assert not exchange.answer.complete
    assert b"end_of_execution" not in exchange.answer.body


async def test_a_kill_at_the_first_moment_tears_the_stream_too(plane: Plane):
    """Also where nothing was sent yet there is no clean answer."""
    exchange = plane.open("POST", "/execute", {"code": "hang"})
    await asyncio.sleep(0.01)
    await plane.sandbox.kill()
    with pytest.raises(Abort):
        await exchange.task
    assert not exchange.answer.complete


async def test_what_was_written_before_the_kill_still_arrives(plane: Plane):
    """Output that precedes the kill is sent before the connection is closed."""
    exchange = plane.open("POST", "/execute", {"code": "hang"})
    await asyncio.sleep(0.1)
    plane.guest.kernels[1].stdout("last words\n")
    await plane.sandbox.kill()
    with pytest.raises(Abort):
        await exchange.task
    assert [line["text"] for line in exchange.answer.of("stdout")] == ["last words\n"]


@pytest.mark.parametrize(
    "end, value",
    [
        (lambda kernel: kernel.exit(1), "Context was restarted: the kernel exited with code 1"),
        (lambda kernel: kernel.exit(None, 11), "Context was restarted: the kernel was killed by SIGSEGV"),
    ],
)
async def test_a_lost_kernel_is_a_restarted_context(plane: Plane, end, value: str):
    """Where the kernel dies and the sandbox lives the stream ends well, with upstream's error and our reason."""
    exchange = plane.open("POST", "/execute", {"code": "print a\nhang"})
    await asyncio.sleep(0.1)
    end(plane.guest.kernels[1])
    await exchange.task
    error = {"type": "error", "name": "ContextRestarting", "value": value, "traceback": ""}
    assert exchange.answer.lines[-2:] == [error, {"type": "end_of_execution"}]
    assert exchange.answer.complete


async def test_a_restart_under_the_code_is_told_as_upstream_tells_it(plane: Plane):
    """``Context was restarted`` is the whole value where somebody asked for it."""
    context = (await plane.call("POST", "/contexts", {})).json
    exchange = plane.open("POST", "/execute", {"code": "hang", "context_id": context["id"]})
    await asyncio.sleep(0.1)
    assert (await plane.call("POST", f"/contexts/{context['id']}/restart")).status == 200
    await exchange.task
    error = {"type": "error", "name": "ContextRestarting", "value": "Context was restarted", "traceback": ""}
    assert exchange.answer.lines[-2:] == [error, {"type": "end_of_execution"}]


async def test_a_removal_under_the_code_is_told_as_upstream_tells_it(plane: Plane):
    """The stream of a context that is removed ends with ``UnexpectedEndOfExecution``."""
    context = (await plane.call("POST", "/contexts", {})).json
    exchange = plane.open("POST", "/execute", {"code": "hang", "context_id": context["id"]})
    await asyncio.sleep(0.1)
    await plane.call("DELETE", f"/contexts/{context['id']}")
    await exchange.task
    assert [line["name"] for line in exchange.answer.of("error")] == ["UnexpectedEndOfExecution"]
    assert exchange.answer.lines[-1] == {"type": "end_of_execution"}


async def test_huge_output_is_many_lines_of_bounded_size(plane: Plane):
    """No line is longer than a client reads at ease, and nothing is lost at the cuts."""

    def run(kernel: FakeKernel, code: str) -> None:
        kernel.stdout("x" * 500_000 + "\n" + "y" * 100_000 + "é" * 70_000)
        kernel.done()

    plane.guest.run = run
    answer = await plane.run("")
    texts = [line["text"] for line in answer.of("stdout")]
    assert "".join(texts) == "x" * 500_000 + "\n" + "y" * 100_000 + "é" * 70_000
    assert len(texts) > 8
    assert max(map(len, texts)) <= 64 * 1024
    assert all(len(piece) < 1024 * 1024 for piece in answer.pieces)


async def test_a_slow_reader_holds_little_memory_and_misses_nothing_that_counts(plane: Plane):
    """While a client does not read, what waits for it is bounded; what was not cleared meanwhile it gets."""
    exchange = plane.open("POST", "/execute", {"code": "hang"}, reading=False)
    await asyncio.sleep(0.1)
    kernel = plane.guest.kernels[1]
    for number in range(100):
        kernel.stdout(f"{number} " + "x" * 100_000 + "\n")
        kernel.say("clear", execution=kernel.execution, wait=False)
    kernel.stdout("kept\n")
    kernel.done()
    await asyncio.sleep(0.05)
    exchange.reading.set()
    await exchange.task
    texts = [line["text"] for line in exchange.answer.of("stdout")]
    assert texts[-1] == "kept\n"
    assert sum(map(len, texts)) < 6 * 1024 * 1024
    assert exchange.answer.lines[-1] == {"type": "end_of_execution"}


async def test_a_reader_that_keeps_up_gets_what_is_cleared_later(plane: Plane):
    """Upstream's wire knows no clearing: everything that was written is sent."""

    def run(kernel: FakeKernel, code: str) -> None:
        kernel.stdout("one\n")
        kernel.say("clear", execution=kernel.execution, wait=False)
        kernel.stdout("two\n")
        kernel.done()

    plane.guest.run = run
    answer = await plane.run("")
    assert [line["text"] for line in answer.of("stdout")] == ["one\n", "two\n"]


# ------------------------------------------------------------------------------------------- requests


async def test_variables_travel_as_data(plane: Plane):
    """Names and values reach the kernel beside the code, quotes and all."""
    await plane.run("x", env_vars={"A": 'it\'s "q" \\ \n'})
    header = next(frame.header for frame in plane.guest.sent if frame.header["op"] == "execute")
    assert header["envs"] == {"A": 'it\'s "q" \\ \n'}
    assert header["stdin"] is False


async def test_nulls_mean_not_given(plane: Plane):
    """The Python SDK sends explicit nulls, JavaScript's leaves the fields out: both run in Python's default context."""
    first = await plane.run("x", context_id=None, language=None, env_vars=None)
    second = await plane.run("x", context_id="", language="")
    assert [answer.of("number_of_executions")[0]["execution_count"] for answer in (first, second)] == [1, 2]


@pytest.mark.parametrize(
    "name, language", [("js", "javascript"), (" TS ", "typescript"), ("R", "r"), ("bash", "bash")]
)
async def test_languages_have_default_contexts_of_their_own(plane: Plane, name: str, language: str):
    """A language is found by its name or alias, whatever the case, and keeps its context from run to run."""
    await plane.run("x", language=name)
    answer = await plane.run("x", language=name)
    assert answer.of("number_of_executions")[0]["execution_count"] == 2
    assert [header["language"] for header in plane.guest.requests("context.start")] == [language]


async def test_an_unknown_language_is_refused_in_upstreams_words(plane: Plane):
    """Nothing runs, no context stays behind, the text is what clients show."""
    answer = await plane.run("x", language="cobol")
    assert answer.status == 400
    assert answer.body.startswith(b"Failed to create context: ")
    assert plane.sandbox.contexts.list() == []


async def test_context_and_language_together_are_refused(plane: Plane):
    """400 with upstream's text."""
    answer = await plane.run("x", context_id="c", language="python")
    assert (answer.status, answer.body) == (400, b"Only one of context_id or language can be provided")


async def test_an_unknown_context_is_not_found(plane: Plane):
    """404 with upstream's text; what was sent is not echoed at length."""
    answer = await plane.run("x", context_id="nope")
    assert (answer.status, answer.body) == (404, b"Context nope not found")
    assert len((await plane.run("x", context_id="n" * 10_000)).body) < 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"code": 1}',
        b"{}",
        b'{"code": "x", "env_vars": {"A": 1}}',
        b'{"code": "x", "env_vars": []}',
        b'{"code": "x", "context_id": 5}',
        b'{"code":"\xed\xa0\x80"}',
        b"[" * 100_000,
    ],
)
async def test_a_malformed_body_is_the_callers_fault(plane: Plane, body: bytes):
    """What is no request of the right shape is a 4xx, and nothing runs."""
    answer = await plane.call("POST", "/execute", body)
    assert 400 <= answer.status < 500
    assert answer.complete
    assert not plane.guest.sent


@pytest.mark.parametrize("field", [{"code": "\ud800"}, {"env_vars": {"A=B": "x"}}, {"env_vars": {"A": "\0"}}])
async def test_text_that_cannot_be_passed_on_is_the_callers_fault(plane: Plane, field):
    """Lone surrogates and impossible variables are refused before anything is sent."""
    answer = await plane.call("POST", "/execute", {"code": "x", **field})
    assert 400 <= answer.status < 500


async def test_code_that_is_too_long_is_413(plane: Plane):
    """The engine's bound on code is an answer with a reason, not an error of ours."""
    answer = await plane.run("x" * 150_000)
    assert answer.status == 413
    assert b"100,000" in answer.body


async def test_a_full_queue_is_429(plane: Plane):
    """Too many executions that wait are told apart from too much code: trying later helps."""
    exchanges = [plane.open("POST", "/execute", {"code": "hang"}) for _ in range(4)]
    await asyncio.sleep(0.1)
    answer = await plane.run("x")
    assert answer.status == 429
    for exchange in reversed(exchanges):
        exchange.leave()
    await asyncio.gather(*(exchange.task for exchange in exchanges))


async def test_a_sandbox_that_is_gone_is_502_in_upstreams_words(plane: Plane):
    """Clients tell the end of a sandbox by this text."""
    await plane.sandbox.kill()
    answer = await plane.run("x")
    assert answer.status == 502
    assert answer.json == {"sandboxId": plane.sandbox.id, "message": "The sandbox was not found", "code": 502}


# ---------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "tök"])
async def test_a_secure_sandbox_runs_code_for_its_token_alone(secure: Plane, token: str | None):
    """Without the token, and with another, nothing runs; the text is envd's."""
    headers = {} if token is None else {"x_access_token": token}
    answer = await secure.call("POST", "/execute", {"code": "x"}, **headers)
    assert answer.status == 401
    assert answer.json["code"] == 401
    assert not secure.guest.sent


async def test_the_token_opens_and_from_inside_none_is_asked_for(secure: Plane):
    """Programs inside the sandbox are in it already."""
    assert (await secure.call("POST", "/execute", {"code": "x"}, x_access_token=TOKEN)).status == 200
    assert (await secure.call("POST", "/execute", {"code": "x"}, inside=True)).status == 200


async def test_contexts_ask_for_no_token_as_upstreams_clients_send_none(secure: Plane):
    """Only ``/execute`` carries ``X-Access-Token``; the traffic token guards the rest, before this app."""
    assert (await secure.call("GET", "/contexts")).status == 200
