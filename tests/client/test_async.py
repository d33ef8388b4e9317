"""The async client."""

import asyncio
import threading

import pytest

from cellfork import CommandFailed, SandboxGone
from cellfork.model import events
from tests.client.conftest import Place


async def test_run_code(place: Place):
    """The same as the sync form, awaited."""
    async with await place.create_async() as sandbox:
        execution = await sandbox.run_code("print a\n7")
        assert (execution.text, execution.logs.stdout) == ("7", ["a\n"])
    assert not await sandbox.is_running()


async def test_sync_and_async_callbacks(place: Place):
    """Functions are called, coroutine functions awaited, in the caller's loop and in order."""
    sandbox = await place.create_async()
    loop, seen = asyncio.get_running_loop(), []

    async def later(message) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is loop
        seen.append(message.line)

    await sandbox.run_code(
        "print a\nwarn b\nprint c", on_stdout=later, on_stderr=lambda m: seen.append(m.line)
    )
    assert seen == ["a\n", "b\n", "c\n"]


async def test_gathered_runs_keep_their_answers(place: Place):
    """Many at once in one context run one after the other, and none gets another's answer."""
    sandbox = await place.create_async()
    executions = await asyncio.gather(*(sandbox.run_code(str(number)) for number in range(20)))
    assert [execution.text for execution in executions] == [str(number) for number in range(20)]
    assert [execution.execution_count for execution in executions] == list(range(1, 21))


async def test_cancelling_stops_the_code(place: Place):
    """With and without callbacks, cancelling the task interrupts the code."""
    sandbox = await place.create_async()
    for callback in (None, print):
        task = asyncio.create_task(sandbox.run_code("hang", on_result=callback))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.run_code("2")).text == "2"


async def test_cancelling_a_command_kills_it(place: Place):
    """Nothing runs on that nobody waits for."""
    sandbox = await place.create_async()
    task = asyncio.create_task(sandbox.commands.run("hang"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.05)
    assert place.guest.processes == {}


async def test_stream_code(place: Place):
    """Events as they come; closing the iteration stops the code."""
    sandbox = await place.create_async()
    stream = sandbox.stream_code("print a\nhang")
    async for event in stream:
        if isinstance(event, events.Stdout):
            break
    await stream.aclose()  # type: ignore[attr-defined]
    assert (await sandbox.run_code("2")).text == "2"


async def test_async_input(place: Place):
    """The answer may be awaited."""
    sandbox = await place.create_async()

    async def answer(request: events.InputRequest) -> str:
        await asyncio.sleep(0)
        return "Ada"

    assert (await sandbox.run_code("input name?", on_input=answer)).logs.stdout == ["Ada"]


async def test_background_callbacks_run_in_a_task(place: Place):
    """Callbacks of a background command are called while the caller does something else."""
    sandbox = await place.create_async()
    seen: list[str] = []
    handle = await sandbox.commands.run("print a; hang", background=True, on_stdout=seen.append)
    await asyncio.sleep(0.05)
    assert seen == ["a\n"]
    await handle.disconnect()
    await handle.kill()
    with pytest.raises(CommandFailed):
        await handle.wait()


async def test_handles_iterate(place: Place):
    """``async for`` over a command and over a watched directory."""
    sandbox = await place.create_async()
    handle = await sandbox.commands.run("print a; warn b", background=True)
    assert [item async for item in handle] == [("a\n", None, None), (None, "b\n", None)]
    seen: list[str] = []
    watch = await sandbox.files.watch_dir("d", on_event=lambda event: seen.append(event.name))
    happened = {"op": "watch.event", "watch": 1, "name": "a", "kind": "create"}
    place.happen(place.guest.say, happened)
    await asyncio.sleep(0.05)
    await watch.stop()
    await watch.wait()
    assert seen == ["a"]


async def test_death_wakes_waiters(place: Place):
    """What waits in the caller's loop hears of the end."""
    sandbox = await place.create_async()
    run = asyncio.create_task(sandbox.run_code("hang"))
    command = asyncio.create_task(sandbox.commands.run("hang"))
    await asyncio.sleep(0.05)
    await sandbox.kill()
    assert (await run).status == "killed"
    with pytest.raises(SandboxGone):
        await command


async def test_files(place: Place):
    """Streams in and out."""
    sandbox = await place.create_async()
    await sandbox.files.write("f", iter(["a", b"b"]))  # type: ignore[arg-type]
    stream = await sandbox.files.read("f", "stream")
    assert [piece async for piece in stream] == [b"ab"]
    assert await sandbox.files.read("f") == "ab"


async def test_sandbox_that_nobody_waited_for_is_killed(place: Place):
    """A creation that was given up when the sandbox was there already does not leave it behind."""
    sandbox = await place.create_async()
    taken_back: list[int] = []
    released = threading.Event()

    def slow() -> int:
        released.wait(5)
        return 7

    task = asyncio.create_task(sandbox._bridge.call(slow, undo=taken_back.append))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0)
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await sandbox.is_running()
    await sandbox.get_info()
    assert taken_back == [7]
