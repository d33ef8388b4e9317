"""The sync client."""

import io
import threading
import time
from typing import Any

import pytest

from cellfork import (
    CommandFailed,
    Conflict,
    InvalidRequest,
    NotFound,
    OperationTimeout,
    PathNotFound,
    PtySize,
    Sandbox,
    SandboxGone,
    Template,
    Unsupported,
)
from cellfork.model import events
from cellfork.model.limits import Limits
from tests.client.conftest import Place


def test_run_code(sandbox: Sandbox):
    """Text, logs, error, count: E2B's shapes."""
    execution = sandbox.run_code("print a\nwarn b\nshow c\n7")
    assert (execution.text, execution.execution_count) == ("7", 1)
    assert (execution.logs.stdout, execution.logs.stderr) == (["a\n"], ["b\n"])
    assert [result.text for result in execution.results] == ["c", "7"]
    error = sandbox.run_code("raise ValueError no").error
    assert error is not None
    assert error.name == "ValueError"
    assert execution.isolation == "fake"


def test_callbacks_are_called_in_order_in_the_callers_thread(sandbox: Sandbox):
    """Each callback gets its value, in the order of the events, in the thread that called."""
    seen: list = []

    def note(value) -> None:
        assert threading.current_thread() is threading.main_thread()
        seen.append(value)

    execution = sandbox.run_code(
        "print a\nwarn b\nshow c\nraise ValueError no",
        on_stdout=note,
        on_stderr=note,
        on_result=note,
        on_error=note,
    )
    assert [str(value) for value in seen[:2]] == ["a\n", "b\n"]
    assert (seen[0].error, seen[1].error, seen[2].text, seen[3].name) == (False, True, "c", "ValueError")
    assert (execution.status, execution.logs.stdout) == ("error", ["a\n"])


def test_callback_that_raises_stops_the_code(sandbox: Sandbox):
    """The exception is passed on, and the context is free again."""
    with pytest.raises(ZeroDivisionError):
        sandbox.run_code("print a\nhang", on_stdout=lambda message: 1 // 0)
    assert sandbox.run_code("2").text == "2"


def test_input_is_answered_by_a_callback(sandbox: Sandbox):
    """``on_input`` gets the question and returns the answer."""
    execution = sandbox.run_code("input name?", on_input=lambda request: request.prompt + " Ada")
    assert execution.logs.stdout == ["name? Ada"]


def test_stream_code(sandbox: Sandbox):
    """Events as they come, the terminal one last; leaving early stops the code."""
    assert [type(event).__name__ for event in sandbox.stream_code("print a\n7")] == [
        "Started",
        "Stdout",
        "Display",
        "Finished",
    ]
    for event in sandbox.stream_code("print a\nhang"):
        if isinstance(event, events.Stdout):
            break
    assert sandbox.run_code("2").text == "2"


def test_timeout_is_a_value(sandbox: Sandbox):
    """Code that takes too long is interrupted and says so; nothing is raised."""
    execution = sandbox.run_code("print a\nhang", timeout=0.05)
    assert (execution.status, execution.logs.stdout) == ("timed_out", ["a\n"])


def test_contexts(sandbox: Sandbox):
    """Made, listed, used by object and by id, restarted, removed."""
    context = sandbox.create_code_context(cwd="/tmp", envs={"A": "1"})
    assert (context.language, context.cwd, context.envs) == ("python", "/tmp", {"A": "1"})
    assert sandbox.run_code("1", context=context).text == "1"
    assert sandbox.run_code("1", context=context.id).execution_count == 2
    assert sandbox.list_code_contexts() == [context]
    sandbox.restart_code_context(context)
    assert sandbox.run_code("1", context=context).execution_count == 1
    sandbox.remove_code_context(context)
    with pytest.raises(NotFound):
        sandbox.run_code("1", context=context)
    with pytest.raises(InvalidRequest):
        sandbox.run_code("1", context=context, language="python")
    with pytest.raises(InvalidRequest):
        sandbox.run_code("1", context=5)  # type: ignore[arg-type]
    with pytest.raises(Unsupported):
        sandbox.run_code("1", language="cobol")
    assert sandbox.list_code_contexts() == [], "no context of a language that is not there"
    assert {"python", "bash"} <= {*sandbox.list_languages()}


def test_interrupt_from_another_thread(sandbox: Sandbox):
    """What runs can be stopped from elsewhere; stopping nothing is told."""
    assert sandbox.interrupt() is False
    statuses: list[str] = []
    thread = threading.Thread(target=lambda: statuses.append(sandbox.run_code("hang").status))
    thread.start()
    while not sandbox.interrupt():
        time.sleep(0.001)
    thread.join()
    assert statuses == ["interrupted"]


def test_threads_share_a_sandbox(sandbox: Sandbox):
    """Many threads run code at once, and each gets its own answer."""
    answers: dict[int, str | None] = {}

    def work(number: int) -> None:
        for _ in range(20):
            answers[number] = sandbox.run_code(str(number)).text

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: str(number) for number in range(8)}


def test_info_and_metrics(place: Place):
    """What was asked for and what is used."""
    limits = Limits(memory="256M", cpu=0.5)
    sandbox = place.create(
        template=Template(name="t"), timeout=60, limits=limits, metadata={"k": "v"}, envs={"A": "1"}
    )
    info = sandbox.get_info()
    assert (info.template, info.metadata, info.state, info.isolation) == ("t", {"k": "v"}, "running", "fake")
    assert info.end_at is not None
    assert (info.end_at - info.started_at).total_seconds() == pytest.approx(60, abs=1)
    assert place.guest.spec.envs == {"A": "1"}
    (metrics,) = sandbox.get_metrics()
    assert (metrics.cpu_count, metrics.mem_total, metrics.mem_used) == (0.5, 256 * 2**20, 1000)
    sandbox.set_timeout(None)
    assert sandbox.get_info().end_at is None


def test_the_tenant_is_told_outside(embedded: Place):
    """Whom a sandbox belongs to reaches the runtime and ``info``; who names nobody is the embedder itself."""
    sandbox = embedded.create(tenant="key 7")
    assert embedded.guest.spec.tenant == sandbox.info.tenant == "key 7"
    assert embedded.create().get_info().tenant == embedded.create(tenant=None).info.tenant == ""
    with pytest.raises(InvalidRequest, match="tenant"):
        embedded.create(tenant="two\nlines")


def test_limits_default_to_the_templates(place: Place):
    """A template says what its sandboxes may use."""
    sandbox = place.create(template=Template(limits=Limits(memory="64M")))
    assert sandbox.info.limits.memory_bytes == 64 * 2**20


def test_end(place: Place):
    """A ``with`` block kills; a second kill says that there was nothing to kill; every call then says why."""
    with place.create() as sandbox:
        assert sandbox.is_running()
    assert not sandbox.is_running()
    assert sandbox.kill() is False
    assert sandbox.get_info().state == "ended"
    with pytest.raises(SandboxGone) as caught:
        sandbox.run_code("1")
    assert caught.value.reason == "request"
    with pytest.raises(SandboxGone):
        sandbox.files.read("a")


def test_notebook(sandbox: Sandbox):
    """The older spelling is the same call."""
    assert sandbox.notebook.exec_cell("7", timeout=5).text == "7"


def test_commands(sandbox: Sandbox):
    """Foreground: a result, an exception with the output, a timeout that keeps it."""
    done = sandbox.commands.run("print a; warn b", envs={"A": "1"}, cwd="/tmp")
    assert (done.stdout, done.stderr, done.exit_code) == ("a\n", "b\n", 0)
    with pytest.raises(CommandFailed) as failed:
        sandbox.commands.run("print a; exit 3")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "a\n")
    with pytest.raises(OperationTimeout) as late:
        sandbox.commands.run("print a; hang", timeout=0.05)
    assert late.value.stdout == "a\n"  # type: ignore[attr-defined]


def test_command_callbacks(sandbox: Sandbox):
    """Text is passed on as it comes; one that raises ends the command."""
    seen: list[str] = []
    done = sandbox.commands.run("print a; warn b", on_stdout=seen.append, on_stderr=seen.append)
    assert (seen, done.stdout) == (["a\n", "b\n"], "a\n")
    with pytest.raises(ZeroDivisionError):
        sandbox.commands.run("print a; hang", on_stdout=lambda text: 1 // 0)
    assert sandbox.commands.list() == []


def test_background_commands(place: Place):
    """A handle: listed, written to, iterated, waited for, killed, found again by its pid."""
    commands = place.create().commands
    handle = commands.run("print a; cat", background=True, stdin=True)
    assert [process.pid for process in commands.list()] == [handle.pid]
    handle.send_stdin("b")
    commands.send_stdin(handle.pid, b"c")
    found = commands.connect(handle.pid)
    commands.close_stdin(handle.pid)
    assert list(handle) == [("a\n", None, None), ("b", None, None), ("c", None, None)]
    assert found.wait().stdout == "a\nbc"
    assert handle.wait().exit_code == 0
    assert handle.kill() is False
    hanging = commands.run("hang", background=True, timeout=None)
    assert hanging.exit_code is None
    assert commands.kill(hanging.pid)
    with pytest.raises(CommandFailed) as killed:
        hanging.wait()
    assert (killed.value.exit_code, killed.value.error) == (137, "killed by SIGKILL")
    assert not commands.kill(12345)
    with pytest.raises(NotFound):
        commands.connect(12345)
    with pytest.raises(Conflict, match="stdin=True"):
        commands.send_stdin(commands.run("hang", background=True).pid, "x")


def test_background_callbacks_run_within_wait(sandbox: Sandbox):
    """The sync client has no thread of its own to call back in."""
    seen: list[str] = []
    handle = sandbox.commands.run("print a", background=True, on_stdout=seen.append)
    handle.wait()
    assert seen == ["a\n"]


def test_execs(sandbox: Sandbox):
    """Together's calls: created, started, streamed, read, deleted."""
    result = sandbox.execs.exec("sh", ["-c", "print a; warn b; exit 3"])
    assert (result.exit_code, result.output) == (3, "a\nb\n")
    created = sandbox.execs.create("sh", ["-c", "cat"], autostart=False, pty=True)
    assert (created.status, created.pty, created.pid) == ("CREATED", True, None)
    assert sandbox.execs.start(created.id).status == "RUNNING"
    sandbox.execs.send_stdin(created.id, "x")
    sandbox.execs.resize(created.id, PtySize(3, 4))
    assert sandbox.execs.get_output(created.id).exit_code is None
    assert [item.id for item in sandbox.execs.list()][-1] == created.id
    stream = sandbox.execs.stream_output(created.id)
    assert next(stream).output == "x"
    sandbox.execs.delete(created.id)
    assert [item.exit_code for item in stream] == [137]
    with pytest.raises(NotFound):
        sandbox.execs.get(created.id)


def test_pty(sandbox: Sandbox, place: Place):
    """A terminal's output is bytes."""
    place.guest.script["process.start"] = lambda guest, header, body: {"pid": 55}
    seen: list[bytes] = []
    handle = sandbox.pty.create(PtySize(3, 4), on_data=seen.append)
    number = place.guest.requests("process.start")[0]["process"]
    sandbox.pty.resize(handle.pid, PtySize(5, 6))

    def end(guest, header, body):
        guest.say({"op": "process.output", "process": number, "stream": "pty"}, b"$ ")
        guest.say({"op": "process.exit", "process": number, "code": 137, "signal": 9})
        return {}

    place.guest.script["process.signal"] = end
    assert sandbox.pty.kill(handle.pid)
    with pytest.raises(CommandFailed):
        handle.wait()
    assert seen == [b"$ "]


@pytest.mark.parametrize(
    "make",
    [
        lambda: "text é",
        lambda: b"bytes",
        lambda: io.StringIO("text"),
        lambda: io.BytesIO(b"x" * 3_000_000),
        lambda: ["a", "b"],
        lambda: (piece for piece in [b"a", b"b"]),
    ],
    ids=["str", "bytes", "text file", "file", "list", "generator"],
)
def test_write_takes_many_kinds(sandbox: Sandbox, place: Place, make):
    """Text, bytes, files and iterables of either."""
    data, same = make(), make()
    joined = same.read() if hasattr(same, "read") else same if isinstance(same, str | bytes) else None
    if joined is None:
        pieces = list(same)
        joined = pieces[0][:0].join(pieces)
    sandbox.files.write("f", data)
    content = joined.encode() if isinstance(joined, str) else joined
    assert place.guest.files["f"] == content
    assert sandbox.files.read("f", "bytes") == content
    assert b"".join(sandbox.files.read("f", "stream")) == content


def test_files(sandbox: Sandbox):
    """E2B's calls."""
    files = sandbox.files
    assert [
        entry.size for entry in files.write_files([{"path": "a", "data": "1"}, {"path": "b", "data": b"22"}])
    ] == [
        1,
        2,
    ]
    files.write("a", "2", append=True)
    assert files.read("a") == "12"
    assert [entry.name for entry in files.list(".")] == ["a", "b"]
    assert files.exists("a")
    assert files.get_info("a").type == "file"
    assert files.rename("a", "c").path == "c"
    files.remove("c")
    files.remove("c")
    with pytest.raises(PathNotFound):
        files.remove("c", missing_ok=False)
    assert files.make_dir("d")
    with pytest.raises(PathNotFound):
        files.read("nope")
    for bad in (5, ["a", 5], "\ud800"):
        with pytest.raises(InvalidRequest):
            files.write("x", bad)  # type: ignore[arg-type]
    assert not files.exists("x")
    with pytest.raises(InvalidRequest):
        files.read("b", "yaml")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest):
        files.write_files([{"path": "a"}])


def test_watch(sandbox: Sandbox, place: Place):
    """Events are taken; after the sandbox's end that is told."""
    handle = sandbox.files.watch_dir("d")
    guest = place.guest
    happened = {"op": "watch.event", "watch": 1, "name": "a", "kind": "create"}
    place.happen(guest.say, happened)
    assert [(event.name, event.type) for event in handle.get_new_events()] == [("a", "create")]
    handle.stop()
    assert handle.get_new_events() == []
    other = sandbox.files.watch_dir("d")
    sandbox.kill()
    with pytest.raises(SandboxGone):
        other.get_new_events()


@pytest.mark.parametrize("options", [{"network": "public"}, {"api_key": "k"}], ids=str)
def test_what_cannot_be_is_refused(options: dict[str, Any], embedded: Place):
    """Nothing is ignored in silence: a network that nothing enforces, a key without a server."""
    given: dict[str, Any] = (
        {"transport": embedded.transport, "isolation": "fake"} if "network" in options else {}
    )
    with pytest.raises(Unsupported):
        Sandbox.create(**given, **options)


def test_unknown_isolation(embedded: Place):
    """The known ones are named."""
    with pytest.raises(InvalidRequest, match="known: fake"):
        Sandbox.create(isolation="hope", transport=embedded.transport)
