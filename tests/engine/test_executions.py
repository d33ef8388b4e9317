"""Executions: order of events, one terminal event in every ending, bounds, replay."""

import asyncio

import pytest

from cellfork.model import events
from cellfork.model.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, Unsupported
from cellfork.model.execution import fold
from cellfork.model.limits import Limits
from cellfork.model.specs import ExecuteRequest
from cellfork.runtimes.base import Usage
from cellfork.testing.fakes import settle
from tests.engine.conftest import Stage, recorded, spec

ENDINGS = [
    ("1", events.Finished),
    ("raise ValueError no", events.Failed),
    ("exit 3", events.Lost),
]


def names(found) -> list[str]:
    return [type(event).__name__ for event in found]


async def test_events_come_in_order_and_numbered(stage: Stage):
    """Started first, the terminal event last, numbers without a gap, text and results in the order of arrival."""
    running = await stage.start("print a\nwarn b\nshow c\nprint d\n7")
    found = await recorded(running)
    assert names(found) == ["Started", "Stdout", "Stderr", "Display", "Stdout", "Display", "Finished"]
    assert [event.seq for event in found] == list(range(1, 8))
    assert running.execution.text == "7"
    assert running.execution.logs.stdout == ["a\n", "d\n"]


@pytest.mark.parametrize(("code", "kind"), ENDINGS)
async def test_every_ending_has_exactly_one_terminal_event(stage: Stage, code: str, kind: type):
    """However code ends, there is one terminal event and it is the last."""
    found = await recorded(await stage.start("print before\n" + code))
    terminal = [event for event in found if isinstance(event, events.Terminal)]
    assert len(terminal) == 1
    assert isinstance(found[-1], kind)
    assert fold(found).logs.stdout == ["before\n"]


async def test_fold_of_the_events_is_the_execution(stage: Stage):
    """Who follows the events knows what the engine knows."""
    running = await stage.start("print a\nshow b\n7")
    execution = await running.wait()
    folded = fold(await recorded(running))
    assert (folded.results, folded.logs, folded.status) == (execution.results, execution.logs, "ok")


async def test_late_and_several_subscribers_get_everything(stage: Stage):
    """Events are replayed from the start, or from a number on, as often as somebody asks."""
    running = await stage.start("print a\n7")
    everything = await recorded(running)
    assert await recorded(running) == everything
    assert [event async for event in running.events(after=2)] == everything[2:]


async def test_subscribers_follow_while_it_runs(stage: Stage):
    """A subscriber gets what was and then what comes."""
    running = await stage.start("print a\nhang")
    follower = asyncio.create_task(recorded(running))
    await settle()
    running.interrupt()
    assert names(await follower) == ["Started", "Stdout", "Interrupted"]


async def test_error_is_a_value(stage: Stage):
    """Code that fails is an error of the execution, with name, value and traceback."""
    execution = await stage.run("raise ValueError no way")
    assert (execution.status, execution.error.name, execution.error.value) == (
        "error",
        "ValueError",
        "no way",
    )
    assert execution.error.traceback == "Traceback: no way"


async def test_kernel_exit_is_lost_with_the_code(stage: Stage):
    """A kernel that ends under the code is ``lost``, and the message says how."""
    execution = await stage.run("exit 3")
    assert (execution.status, execution.error.value) == ("lost", "the kernel exited with code 3")


async def test_kernel_exit_after_an_oom_kill_is_memory(stage: Stage):
    """When the host saw an OOM kill since the start, the execution was killed for memory."""
    running = await stage.start("hang")
    stage.guest.measured = Usage(oom_kills=1)
    stage.guest.kernels[1].exit(None, 9)
    execution = await running.wait()
    assert execution.terminal.reason == "memory"


async def test_interrupted_by_nobody_is_the_codes_own_error(stage: Stage):
    """``raise KeyboardInterrupt`` in the code is a failure, as nobody interrupted it."""
    running = await stage.start("hang")
    stage.guest.kernels[1].done("interrupted", "KeyboardInterrupt")
    assert (await running.wait()).status == "error"


async def test_execution_counts_follow_the_kernel(stage: Stage):
    """The number is told at the start, grows, and begins anew with a new kernel."""
    counts = [(await stage.run(code)).execution_count for code in ("1", "raise E x", "2", "exit 0", "3")]
    assert counts == [1, 2, 3, 4, 1]


async def test_accounting_is_measured_by_the_host(stage: Stage):
    """Wall time from the clock, CPU time as the difference, the peak, and the bytes that were written."""
    stage.guest.measured = Usage(cpu_time=10.0)
    running = await stage.start("print abc\nhang")
    await stage.clock.advance(1.5)
    stage.guest.measured = Usage(cpu_time=10.25, peak_memory=77)
    running.interrupt()
    accounting = (await running.wait()).accounting
    assert (accounting.wall_time, accounting.cpu_time, accounting.peak_memory) == (1.5, 0.25, 77)
    assert (accounting.output_bytes, accounting.truncated) == (4, False)


async def test_utf8_is_decoded_across_pieces(stage: Stage):
    """A character that was cut in two arrives whole; bytes that are none are replaced."""
    running = await stage.start("hang")
    kernel = stage.guest.kernels[1]
    for piece in ("é".encode()[:1], "é".encode()[1:], b"\xff", "€".encode()[:2]):
        kernel.stdout(piece)
        await settle()
    kernel.done()
    execution = await running.wait()
    assert execution.logs.stdout == ["é", "\ufffd", "\ufffd"]


async def test_pieces_that_arrive_together_are_one_event(stage: Stage):
    """A flood of tiny pieces does not become a flood of events."""
    running = await stage.start("hang")
    kernel = stage.guest.kernels[1]
    for _ in range(1000):
        kernel.stdout("x")
    kernel.done()
    assert names(await recorded(running)) == ["Started", "Stdout", "Finished"]


async def test_dropped_bytes_become_a_marker(stage: Stage):
    """What the guest dropped is told in the text and in the accounting."""
    running = await stage.start("hang")
    kernel = stage.guest.kernels[1]
    kernel.stdout("head")
    kernel.stdout("tail", dropped=10_485_760)
    kernel.done()
    execution = await running.wait()
    assert "".join(execution.logs.stdout) == "head\n… 10,485,760 bytes of stdout dropped …\ntail"
    assert execution.accounting.truncated
    assert execution.accounting.output_bytes == 10_485_768


async def test_host_bounds_output_of_a_guest_that_does_not(stage: Stage):
    """A guest that ignores the limit is cut by the host, with a marker."""
    sandbox = await stage.engine.create(spec(limits=Limits(output="64K"), timeout=None))
    running = sandbox.start(None, ExecuteRequest("hang"))
    await settle()
    kernel = stage.runtime.guests[1].kernels[1]
    for _ in range(20):
        kernel.stdout(b"x" * 65536)
        kernel.stderr(b"y" * 65536)
    kernel.done()
    execution = await running.wait()
    text = "".join(execution.logs.stdout)
    assert 65536 <= len(text) <= 65536 * 6
    assert text.endswith("bytes of stdout dropped …\n")
    assert execution.accounting.truncated


async def test_host_bounds_results(stage: Stage):
    """Too many results, and results that are too large, are counted and dropped; the main one is kept."""
    sandbox = await stage.engine.create(spec(limits=Limits(results=3, result="1M"), timeout=None))
    running = sandbox.start(None, ExecuteRequest("hang"))
    await settle()
    kernel = stage.runtime.guests[1].kernels[1]
    kernel.display({"text/plain": "x" * 2_000_000})
    for index in range(5):
        kernel.display({"text/plain": str(index)})
    kernel.display({"text/plain": "main"}, main=True)
    kernel.done()
    execution = await running.wait()
    assert [result.text for result in execution.results] == ["0", "1", "2", "main"]
    assert execution.logs.stderr == ["\n… 3 results dropped …\n"]
    assert execution.accounting.truncated


async def test_all_results_together_are_bounded(stage: Stage):
    """Many results just below the limit do not fill the host's memory."""
    sandbox = await stage.engine.create(spec(limits=Limits(result="1M"), timeout=None))
    running = sandbox.start(None, ExecuteRequest("hang"))
    await settle()
    kernel = stage.runtime.guests[1].kernels[1]
    for index in range(100):
        kernel.display({"text/plain": "x" * 1_000_000}, display_id=f"d{index}")
        kernel.update({"text/plain": "small"}, f"d{index}")
    kernel.done()
    execution = await running.wait()
    assert len(execution.results) < 10
    assert running.kept_bytes < 10_000_000


async def test_updates_and_clears_do_not_pile_up(stage: Stage):
    """A progress bar that updates for ever keeps its newest content only; so does a loop that clears."""
    running = await stage.start("hang")
    kernel = stage.guest.kernels[1]
    kernel.display({"text/plain": "0"}, display_id="bar")
    for index in range(1000):
        kernel.update({"text/plain": str(index)}, "bar")
    assert len(running._recorder.log.since(0)) == 3
    for index in range(1000):
        kernel.say("clear", execution=kernel.execution, wait=True)
        kernel.stdout(f"step {index}")
        await settle()
    assert len(running._recorder.log.since(0)) <= 4
    kernel.done()
    execution = await running.wait()
    assert (execution.results, execution.logs.stdout) == ([], ["step 999"])
    assert fold(await recorded(running)).logs.stdout == ["step 999"]


async def test_fifo_in_a_context(stage: Stage):
    """One at a time, in the order of asking."""
    runs = [stage.run(code) for code in ("print a\n1", "raise E x", "print c\n3")]
    order = [execution.status for execution in await asyncio.gather(*runs)]
    assert order == ["ok", "error", "ok"]
    assert [frame.body for frame in stage.guest.sent if frame.header["op"] == "execute"] == [
        b"print a\n1",
        b"raise E x",
        b"print c\n3",
    ]


async def test_next_waits_for_the_terminal_event(stage: Stage):
    """The kernel gets the next code only when the one before has ended."""
    first = await stage.start("hang")
    second = await stage.start("2")
    assert (second.state, len(stage.guest.requests("execute"))) == ("queued", 1)
    first.interrupt()
    assert (await second.wait()).text == "2"


async def test_queue_is_bounded(stage: Stage):
    """More than the queue holds is refused, and what waits is unharmed."""
    first = await stage.start("hang")
    waiting = [await stage.start(str(index)) for index in range(5)]
    with pytest.raises(LimitExceeded):
        await stage.start("one too many")
    first.interrupt()
    assert [(await running.wait()).text for running in waiting] == ["0", "1", "2", "3", "4"]


async def test_queued_execution_can_be_withdrawn(stage: Stage):
    """Stopping what waits ends it at once, with a terminal event alone, and it never runs."""
    first = await stage.start("hang")
    second = await stage.start("print never")
    second.interrupt()
    assert names(await recorded(second)) == ["Interrupted"]
    first.interrupt()
    await first.wait()
    assert len(stage.guest.requests("execute")) == 1


async def test_cancelled_run_stops_the_code(stage: Stage):
    """Cancelling the task that awaits ``run`` interrupts the code, and the context stays usable."""
    task = asyncio.create_task(stage.run("hang"))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await stage.run("2")).text == "2"


async def test_listener_gets_every_event_at_once(stage: Stage):
    """The synchronous hook sees what the log sees, in the same order."""
    seen: list[events.Event] = []
    running = await stage.start("print a\n7", on_event=seen.append)
    await running.wait()
    assert seen == await recorded(running)


async def test_input_is_asked_for_and_answered(stage: Stage):
    """``input()`` becomes a request; the answer goes to the kernel; without a question it is a conflict."""
    running = await stage.start("input name?", allow_input=True)
    assert [event.prompt for event in running._recorder.log.since(1)] == ["name?"]
    running.provide_input("Ada")
    with pytest.raises(Conflict):
        running.provide_input("again")
    assert (await running.wait()).logs.stdout == ["Ada"]


async def test_input_request_is_dropped_where_nobody_answers(stage: Stage):
    """A question that was not allowed never reaches the client."""
    running = await stage.start("input name?")
    stage.guest.kernels[1].done()
    assert names(await recorded(running)) == ["Started", "Finished"]
    assert stage.sandbox.dropped_frames == 1


async def test_envs_and_limits_travel_as_data(stage: Stage):
    """Variables are a field of the frame, never part of the code; the bounds go with them."""
    await stage.run("1", envs={"A": "it's"})
    (header,) = stage.guest.requests("execute")
    assert header["envs"] == {"A": "it's"}
    assert (header["output"], header["result"], header["stdin"]) == (16 * 2**20, 32 * 2**20, False)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ExecuteRequest("x" * (33 * 2**20)), LimitExceeded),
        (ExecuteRequest("\ud800"), InvalidRequest),
        (ExecuteRequest("1", envs={"A": "\ud800"}), InvalidRequest),
        (ExecuteRequest("1", envs={"A=B": "x"}), InvalidRequest),
        (ExecuteRequest("1", envs={"": "x"}), InvalidRequest),
        (ExecuteRequest("1", envs={"A": "x\0"}), InvalidRequest),
        (ExecuteRequest("1", envs={"A": 1}), InvalidRequest),  # type: ignore[dict-item]
        (ExecuteRequest("1", envs={"A": "x" * 200_000}), LimitExceeded),
        (ExecuteRequest("1", timeout=-1), InvalidRequest),
        (ExecuteRequest("1", timeout=float("nan")), InvalidRequest),
        (ExecuteRequest(None), InvalidRequest),  # type: ignore[arg-type]
    ],
    ids=lambda value: getattr(value, "__name__", None) or "case",
)
async def test_malformed_requests_are_typed_errors(stage: Stage, request_, error):
    """What cannot be run is refused before anything is sent."""
    with pytest.raises(error):
        stage.sandbox.start(None, request_)
    assert stage.guest.requests("execute") == []


async def test_language_and_context_errors(stage: Stage):
    """What is no language's name is refused, naming the known ones; so are unknown contexts, and both at once."""
    with pytest.raises(Unsupported, match="known: bash, go, java"):
        stage.sandbox.start(None, ExecuteRequest("1"), language="not a language")
    with pytest.raises(NotFound):
        stage.sandbox.start("nope", ExecuteRequest("1"))
    context = await stage.sandbox.contexts.create()
    with pytest.raises(InvalidRequest):
        stage.sandbox.start(context, ExecuteRequest("1"), language="python")
    execution = await stage.sandbox.run(None, ExecuteRequest("1"), language="  PY ")
    assert execution.status == "ok"


async def test_ended_executions_are_found_for_a_while(stage: Stage):
    """An execution can be asked for by its id after its end, until many others have ended."""
    first = await stage.start("1")
    assert stage.sandbox.execution(first.id) is first
    for _ in range(stage.engine.settings.kept_executions):
        await stage.run("1")
    with pytest.raises(NotFound):
        stage.sandbox.execution(first.id)
