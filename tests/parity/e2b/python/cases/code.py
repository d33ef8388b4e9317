"""Code: executions, contexts, languages, results, errors, and their ends."""

import asyncio
import base64
import time

from harness import ALL, Client, Skipped, case, raises


@case(modes=ALL)
async def result_of_a_cell(client: Client) -> None:
    """The value of the last expression is the main result, and has a text."""
    sandbox = await client.create()
    execution = await sandbox.run_code("x = 1; x + 1")
    assert execution.text == "2"
    assert execution.results[0].is_main_result
    assert execution.error is None
    assert execution.logs.stdout == [] == execution.logs.stderr


@case(modes=ALL)
async def output_and_callbacks(client: Client) -> None:
    """Callbacks get each line, result and error once, in order, and the execution holds all of them."""
    sandbox = await client.create()
    seen: list[tuple[str, str]] = []
    code = "import sys\nprint('one')\nprint('two', file=sys.stderr)\ndisplay(3)\n4/0"
    execution = await sandbox.run_code(
        code,
        on_stdout=lambda message: seen.append(("out", message.line)),
        on_stderr=lambda message: seen.append(("err", message.line)),
        on_result=lambda result: seen.append(("result", result.text)),
        on_error=lambda error: seen.append(("error", error.name)),
    )
    assert seen == [("out", "one\n"), ("err", "two\n"), ("result", "3"), ("error", "ZeroDivisionError")]
    assert execution.logs.stdout == ["one\n"]
    assert execution.logs.stderr == ["two\n"]
    assert execution.error.value == "division by zero"
    assert "ZeroDivisionError" in execution.error.traceback
    assert execution.results[0].is_main_result is False


@case("v2", flavours=("async",), modes=ALL)
async def awaited_callbacks(client: Client) -> None:
    """The asynchronous SDK awaits a callback that is a coroutine function."""
    sandbox = await client.create()
    seen = []

    async def note(message):
        await asyncio.sleep(0)
        seen.append(message.line)

    await sandbox.run_code("print('a')", on_stdout=note)
    assert seen == ["a\n"]


@case(modes=ALL)
async def output_streams(client: Client) -> None:
    """Output arrives while the code runs, not at its end."""
    sandbox = await client.create()
    arrived, loop = asyncio.Event(), asyncio.get_running_loop()
    waits = (
        "import os, time\nprint('now', flush=True)\nend = time.monotonic() + 15\n"
        "while not os.path.exists('/tmp/seen') and time.monotonic() < end: time.sleep(0.01)\nos.path.exists('/tmp/seen')"
    )
    running = asyncio.create_task(
        sandbox.run_code(waits, on_stdout=lambda message: loop.call_soon_threadsafe(arrived.set))
    )
    await asyncio.wait_for(arrived.wait(), 20)
    await sandbox.files.write("/tmp/seen", "")  # only who has seen the line lets the code go on
    assert (await running).text == "True"


@case()
async def state_is_kept(client: Client) -> None:
    """Variables live from one execution to the next, and executions are counted from 1, failed ones too."""
    sandbox = await client.create()
    first = await sandbox.run_code("x = 20; raise ValueError('no')")
    assert (first.execution_count, first.error.name) == (1, "ValueError")
    second = await sandbox.run_code("x + 1")
    assert (second.execution_count, second.text) == (2, "21")


@case(modes=ALL)
async def languages(client: Client) -> None:
    """Bash and JavaScript run by their names, with state of their own; a name is case-blind."""
    sandbox = await client.create()
    bash = await sandbox.run_code("echo $((6*7))", language="bash")
    assert "".join(bash.logs.stdout) == "42\n", bash
    script = await sandbox.run_code("const a = 40; a + 2", language="js")
    assert script.text == "42", script
    script = await sandbox.run_code("console.log(await Promise.resolve(a))", language="JavaScript")
    assert "".join(script.logs.stdout) == "40\n", script
    typed = await sandbox.run_code("const b: number = 5; b", language="ts")
    assert typed.text == "5", typed


@case(modes=ALL)
async def unknown_language(client: Client) -> None:
    """A language that there is none of is an error that names it."""
    sandbox = await client.create()
    async with raises("SandboxException", containing="klingon"):
        await sandbox.run_code("1", language="klingon")


@case("Sandbox.create_code_context")
async def contexts(client: Client) -> None:
    """A context has a language, a working directory and variables of its own."""
    sandbox = await client.create()
    await sandbox.run_code("shared = 'default'")
    context = await sandbox.create_code_context(cwd="/tmp", language="python")
    assert context.language == "python"
    assert context.cwd == "/tmp"
    assert (await sandbox.run_code("import os; os.getcwd()", context=context)).text == "/tmp"
    assert (await sandbox.run_code("shared", context=context)).error.name == "NameError"
    assert (await sandbox.run_code("shared")).text == "default"


@case("Sandbox.list_code_contexts")
async def contexts_are_listed(client: Client) -> None:
    """Contexts are listed in the order of their making; restarted they forget; removed they are gone."""
    sandbox = await client.create()
    context = await sandbox.create_code_context(cwd="/tmp")
    ids = [each.id for each in await sandbox.list_code_contexts()]
    assert ids[-1] == context.id and len(ids) >= 2
    await sandbox.run_code("x = 1", context=context)
    await sandbox.restart_code_context(context)
    assert (await sandbox.run_code("x", context=context)).error.name == "NameError"
    await sandbox.run_code("x = 1", context=context)
    await sandbox.restart_code_context(context.id)
    assert (await sandbox.run_code("x", context=context)).error.name == "NameError"
    await sandbox.remove_code_context(context.id)
    assert context.id not in [each.id for each in await sandbox.list_code_contexts()]
    async with raises("NotFoundException", containing=context.id):
        await sandbox.run_code("1", context=context)
    async with raises("NotFoundException"):
        await sandbox.restart_code_context(context)
    async with raises("NotFoundException"):
        await sandbox.remove_code_context(context)


@case("Sandbox.create_code_context", modes=ALL)
async def language_or_context(client: Client) -> None:
    """A language and a context at once are refused."""
    sandbox = await client.create()
    context = await sandbox.create_code_context()
    async with raises("Exception", containing="context"):
        await sandbox.run_code("1", language="python", context=context)


@case(modes=ALL)
async def environment(client: Client) -> None:
    """Variables of one execution are data, whatever they hold, and are gone in the next."""
    sandbox = await client.create()
    value = 'it\'s "x"\n${HOME} `id` \\ ü'
    execution = await sandbox.run_code("import os; print(os.environ['V'], end='')", envs={"V": value})
    assert "".join(execution.logs.stdout) == value
    execution = await sandbox.run_code("print(os.environ.get('V'))")
    assert execution.logs.stdout == ["None\n"]
    execution = await sandbox.run_code('printf %s "$V"', language="bash", envs={"V": value})
    assert "".join(execution.logs.stdout) == value, execution


@case()
async def environment_layers(client: Client) -> None:
    """The variables of a call cover those of the sandbox, for that call."""
    sandbox = await client.create(envs={"LAYER": "sandbox"})
    look = "import os; os.environ['LAYER']"
    assert (await sandbox.run_code(look)).text == "sandbox"
    assert (await sandbox.run_code(look, envs={"LAYER": "call"})).text == "call"
    assert (await sandbox.run_code(look)).text == "sandbox"


@case(modes=ALL)
async def figure(client: Client) -> None:
    """A matplotlib figure is a PNG and a chart with its points, labels and title."""
    sandbox = await client.create()
    execution = await sandbox.run_code(
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 2, 3], [4, 5, 6], label='rise')\n"
        "plt.xlabel('Time (s)'); plt.ylabel('Way (m)'); plt.title('Walk')\nplt.show()"
    )
    assert execution.error is None, execution.error
    result = execution.results[0]
    assert base64.b64decode(result.png).startswith(b"\x89PNG")
    assert "chart" in result.formats()
    chart = result.chart
    assert (chart.type.value, chart.title) == ("line", "Walk")
    assert (chart.x_label, chart.x_unit, chart.y_unit) == ("Time (s)", "s", "m")
    assert chart.elements[0].label == "rise"
    assert [tuple(point) for point in chart.elements[0].points] == [(1, 4), (2, 5), (3, 6)]


@case(modes=ALL)
async def chart_kinds(client: Client) -> None:
    """Each kind of chart is known by its name, and two axes make a superchart."""
    sandbox = await client.create()
    draw = {
        "scatter": "plt.scatter([1, 2], [3, 4])",
        "bar": "plt.bar(['a', 'b'], [1, 2])",
        "pie": "plt.pie([1, 3], labels=['a', 'b'])",
        "box_and_whisker": "plt.boxplot([[1, 2, 3, 4, 5], [10, 12, 14, 16, 30, 18]], patch_artist=True)",
        "superchart": "_, axes = plt.subplots(1, 2); axes[0].plot([1]); axes[1].bar(['a'], [1])",
        "unknown": "plt.imshow([[1, 2], [3, 4]])",
    }
    for kind, code in draw.items():
        execution = await sandbox.run_code(f"import matplotlib.pyplot as plt\n{code}\nplt.show()")
        assert execution.error is None, execution.error
        assert execution.results[0].chart.type.value == kind, kind


@case(modes=ALL)
async def data_frame(client: Client) -> None:
    """A data frame is HTML, text and its data by column."""
    sandbox = await client.create()
    execution = await sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})")
    result = execution.results[0]
    assert result.data["a"] == [1, 2]
    assert "<table" in result.html
    assert {"text", "html", "data"} <= set(result.formats())


@case(modes=ALL)
async def displayed(client: Client) -> None:
    """Markup is a result of its kind, alone; JSON is a value; what has no name of its own is extra."""
    sandbox = await client.create()
    execution = await sandbox.run_code(
        "from IPython.display import HTML, JSON, Latex, Markdown, SVG, Javascript, display\n"
        "display(HTML('<b>h</b>')); display(Markdown('*m*')); display(Latex('$x$'))\n"
        "display(JSON({'a': [1]})); display(Javascript('1'))\n"
        "display({'application/x-mine': 'm'}, raw=True)"
    )
    assert execution.error is None, execution.error
    html, markdown, latex, json, javascript, extra = execution.results
    assert (html.html, markdown.markdown, latex.latex) == ("<b>h</b>", "*m*", "$x$")
    assert json.json == {"a": [1]}
    assert javascript.javascript == "1"
    assert extra.extra == {"application/x-mine": "m"}
    assert not any(each.is_main_result for each in execution.results)


@case(modes=ALL)
async def syntax_error(client: Client) -> None:
    """Code that does not parse is an error of the code, not of the request."""
    sandbox = await client.create()
    execution = await sandbox.run_code("1 +")
    assert execution.error.name == "SyntaxError"
    assert execution.error.value and execution.error.traceback


@case(modes=ALL)
async def timeout_interrupts(client: Client) -> None:
    """A client that gives up interrupts its code; the context answers again, with its variables."""
    sandbox = await client.create()
    await sandbox.run_code("before = 1; import time")
    started = time.monotonic()
    async with raises("TimeoutException"):
        await sandbox.run_code("time.sleep(300)", timeout=1.5)
    assert (await sandbox.run_code("before", timeout=20)).text == "1"
    assert time.monotonic() - started < 15


@case(flavours=("async",), modes=ALL)
async def cancelling_interrupts(client: Client) -> None:
    """A cancelled execution is interrupted; the context answers again."""
    sandbox = await client.create()
    await sandbox.run_code("import time; mark = 5")
    running = asyncio.create_task(sandbox.run_code("time.sleep(300)"))
    await asyncio.sleep(0.5)
    running.cancel()
    assert (await sandbox.run_code("mark", timeout=20)).text == "5"


@case()
async def kill_during_a_run(client: Client) -> None:
    """An execution whose sandbox is killed fails and says so; it never ends as if it had succeeded."""
    sandbox = await client.create()
    other = await client.Sandbox.connect(sandbox.sandbox_id)
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(
        sandbox.run_code(
            "import time\nprint('on', flush=True)\ntime.sleep(60)",
            on_stdout=lambda message: loop.call_soon_threadsafe(started.set),
        )
    )
    await asyncio.wait_for(started.wait(), 20)
    await other.kill()
    named = ("TimeoutException",) if client.has("v2") else ("Exception",)
    async with raises(*named):
        await asyncio.wait_for(running, 20)


@case()
async def concurrent_runs(client: Client) -> None:
    """Executions of one context queue, those of several contexts run side by side."""
    sandbox = await client.create()
    client.require("Sandbox.create_code_context")
    contexts = [await sandbox.create_code_context() for _ in range(2)]
    meets = (
        "import os, time\nopen('/tmp/%s', 'w').close()\nend = time.monotonic() + 15\n"
        "while not os.path.exists('/tmp/%s') and time.monotonic() < end: time.sleep(0.01)\nos.path.exists('/tmp/%s')"
    )
    codes = [meets % names for names in (("one", "other", "other"), ("other", "one", "one"))]
    meetings = [sandbox.run_code(code, context=each) for code, each in zip(codes, contexts, strict=True)]
    assert [each.text for each in await asyncio.gather(*meetings)] == ["True", "True"]
    texts = await asyncio.gather(*(sandbox.run_code(f"{n}") for n in range(5)))
    assert [each.text for each in texts] == ["0", "1", "2", "3", "4"]
    assert sorted(each.execution_count for each in texts) == [1, 2, 3, 4, 5]


@case(modes=ALL)
async def much_output(client: Client) -> None:
    """Megabytes of output arrive whole and in order."""
    sandbox = await client.create()
    execution = await sandbox.run_code("for i in range(100_000): print(i, 'x' * 20)")
    lines = "".join(execution.logs.stdout).splitlines()
    assert len(lines) == 100_000
    assert lines[99_999].startswith("99999 ")


@case(modes=ALL)
async def a_long_line(client: Client) -> None:
    """One line of four megabytes arrives whole."""
    sandbox = await client.create()
    execution = await sandbox.run_code("print('y' * 4_000_000)")
    assert len("".join(execution.logs.stdout)) == 4_000_001


@case(modes=ALL)
async def input_is_refused(client: Client) -> None:
    """Code that asks for input gets an error instead of waiting for ever."""
    sandbox = await client.create()
    execution = await sandbox.run_code("input()", timeout=20)
    assert execution.error.name == "StdinNotImplementedError"


@case()
async def a_dying_kernel(client: Client) -> None:
    """A kernel that dies is an error of its execution, and the context works again."""
    sandbox = await client.create()
    execution = await sandbox.run_code("import os; os._exit(3)", timeout=30)
    assert execution.error is not None
    assert (await sandbox.run_code("1 + 1", timeout=30)).text == "2"


@case(modes=ALL)
async def serialised(client: Client) -> None:
    """An execution can be turned into JSON by the SDK's own means."""
    sandbox = await client.create()
    execution = await sandbox.run_code("print('x'); [1, 2]")
    assert '"[1, 2]"' in execution.to_json()


@case(modes=ALL)
async def from_inside(client: Client) -> None:
    """The code server answers inside the sandbox, at the address that upstream's programs use there."""
    if client.mode == "debug":
        raise Skipped("the sandbox of the debug mode shares the addresses of the host")
    sandbox = await client.create()
    done = await sandbox.commands.run("curl -s -o /dev/null -w '%{http_code}' http://0.0.0.0:49999/health")
    assert done.stdout == "200"
