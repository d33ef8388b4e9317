"""What users of E2B's code interpreter rely on, as far as it needs no HTTP: results, logs, errors, contexts, charts.

Written from the documented behaviour, one test for each expectation.  Where cellfork means to differ the test's
docstring says how.
"""

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cellfork import Execution, NotFound, Result, Sandbox
from cellfork.model.charts import (
    BarChart,
    BoxAndWhiskerChart,
    LineChart,
    PieChart,
    ScaleType,
    ScatterChart,
    SuperChart,
)

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def sandbox(create) -> Iterator[Sandbox]:
    with create(envs={"SHARED": "of the sandbox"}) as sandbox:
        yield sandbox


def ok(execution: Execution) -> Execution:
    """Return the execution, after a look that it ran through."""
    assert execution.error is None, execution.error
    return execution


def is_png(text: str | None) -> bool:
    return text is not None and base64.b64decode(text).startswith(PNG)


# ---------------------------------------------------------------------------------------------- code


def test_basic(sandbox: Sandbox):
    """The text of an execution is that of the last expression."""
    assert sandbox.run_code("x =1; x").text == "1"


def test_stdout_is_one_chunk(sandbox: Sandbox):
    """A line that is printed is one string, its newline included."""
    assert sandbox.run_code('print("Hello from e2b")').logs.stdout == ["Hello from e2b\n"]


def test_stderr_is_one_chunk(sandbox: Sandbox):
    """The same for stderr, which is no error."""
    execution = sandbox.run_code('import sys;print("This is an error message", file=sys.stderr)')
    assert (execution.logs.stderr, execution.error) == (["This is an error message\n"], None)


def test_callbacks_are_called_once_each(sandbox: Sandbox):
    """Each stream's callback is called once for one line, with text, time in nanoseconds, and which stream it was."""
    out: list[Any] = []
    err: list[Any] = []
    code = 'import sys;print("out");print("err", file=sys.stderr)'
    before = time.time_ns()
    ok(sandbox.run_code(code, on_stdout=out.append, on_stderr=err.append))
    assert [(m.line, m.error) for m in out + err] == [("out\n", False), ("err\n", True)]
    assert before <= out[0].timestamp <= err[0].timestamp <= time.time_ns()


def test_error(sandbox: Sandbox):
    """An error has its class, its message, its traceback; it reaches the callback as well."""
    seen: list[Any] = []
    error = sandbox.run_code("x = 1\nz", on_error=seen.append).error
    assert error is not None
    assert (error.name, error.value) == ("NameError", "name 'z' is not defined")
    assert "NameError" in error.traceback
    assert json.loads(error.to_json()) == error.to_dict()
    assert seen == [error]


def test_execution_count_counts_failures(sandbox: Sandbox):
    """A run that failed counts."""
    assert sandbox.run_code("1 / 0").execution_count == 1
    assert sandbox.run_code("1").execution_count == 2


def test_state_is_kept(sandbox: Sandbox):
    """Names live from run to run."""
    ok(sandbox.run_code("test_stateful = 1"))
    assert sandbox.run_code("test_stateful+=1; test_stateful").text == "2"


def test_results_in_order(sandbox: Sandbox):
    """Every display is a result of its own, in order, the last expression last; callbacks see the same."""
    seen: list[Result] = []
    code = "from IPython.display import display\ndisplay('a')\nfor i in range(2): display(i)\n'end'"
    execution = ok(sandbox.run_code(code, on_result=seen.append))
    assert [(r.text, r.is_main_result) for r in execution.results] == [
        ("'a'", False), ("0", False), ("1", False), ("'end'", True),
    ]  # fmt: skip
    assert seen == execution.results


def test_streaming_results(sandbox: Sandbox):
    """A figure that is shown and the value after it are two results, in order."""
    code = """
    import matplotlib.pyplot as plt
    plt.plot([1, 2], [1, 2])
    plt.show()
    x = 1
    x
    """
    seen: list[Result] = []
    ok(sandbox.run_code(code, on_result=seen.append))
    assert [(is_png(r.png), r.is_main_result) for r in seen] == [(True, False), (False, True)]
    assert seen[1].text == "1"


def test_a_long_run_is_interrupted(sandbox: Sandbox):
    """After a timeout the context answers again, at once."""
    assert sandbox.run_code("import time; time.sleep(300)", timeout=0.5).status == "timed_out"
    start = time.monotonic()
    assert sandbox.run_code("1 + 1").text == "2"
    assert time.monotonic() - start < 10


def test_a_killed_sandbox_ends_its_run(create):
    """Who waits for a run in a sandbox that is killed is told so; E2B raises, cellfork returns what there was until then."""
    with create() as sandbox:
        seen = []

        def kill(message: object) -> None:
            seen.append(message)
            sandbox.kill()

        execution = sandbox.run_code("import time; print('on'); time.sleep(60)", on_stdout=kill)
    assert (execution.status, execution.logs.stdout, len(seen)) == ("killed", ["on\n"], 1)


# --------------------------------------------------------------------------------------- directories


@pytest.mark.parametrize(("language", "code"), [("python", "!pwd"), ("bash", "pwd")])
def test_working_directory(sandbox: Sandbox, language: str, code: str):
    """Code starts in /home/user."""
    assert ok(sandbox.run_code(code, language=language)).logs.stdout == ["/home/user\n"]


@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "import os; print(os.getcwd())"), ("bash", "pwd")],
)
def test_working_directory_of_a_context(sandbox: Sandbox, language: str, code: str):
    """A context starts where it was asked to, and says so: /root as well."""
    context = sandbox.create_code_context(cwd="/root", language=language)
    assert (context.cwd, context.language) == ("/root", language)
    assert ok(sandbox.run_code(code, context=context)).logs.stdout == ["/root\n"]


# ------------------------------------------------------------------------------------------ contexts


def test_contexts_are_apart(sandbox: Sandbox):
    """A name of one context is unknown in another and in the default one."""
    context = sandbox.create_code_context()
    ok(sandbox.run_code("x = 1", context=context))
    for other in (None, sandbox.create_code_context()):
        error = sandbox.run_code("x", context=other).error
        assert error is not None and error.value == "name 'x' is not defined"


def test_contexts_have_defaults(sandbox: Sandbox):
    """Without arguments a context is Python's, in /home/user, with an id."""
    context = sandbox.create_code_context()
    assert (context.language, context.cwd, bool(context.id)) == ("python", "/home/user", True)


@pytest.mark.parametrize("by_id", [False, True], ids=["object", "id"])
def test_removing_a_context(sandbox: Sandbox, by_id: bool):
    """A context is removed by its object or its id; then it is unknown."""
    context = sandbox.create_code_context()
    sandbox.remove_code_context(context.id if by_id else context)
    assert context.id not in [c.id for c in sandbox.list_code_contexts()]
    with pytest.raises(NotFound):
        sandbox.run_code("1", context=context)


@pytest.mark.parametrize("by_id", [False, True], ids=["object", "id"])
def test_restarting_a_context(sandbox: Sandbox, by_id: bool):
    """A restarted context keeps its id and its directory, and forgets its state."""
    context = sandbox.create_code_context(cwd="/tmp")
    ok(sandbox.run_code("x = 1", context=context))
    sandbox.restart_code_context(context.id if by_id else context)
    assert sandbox.run_code("x", context=context).error is not None
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "'/tmp'"


def test_listing_contexts(sandbox: Sandbox):
    """The newest context is the last of the list."""
    for cwd in ("/tmp", "/home/user"):
        context = sandbox.create_code_context(cwd=cwd)
        last = sandbox.list_code_contexts()[-1]
        assert (last.id, last.cwd) == (context.id, cwd)


# ----------------------------------------------------------------------------------------- languages


def test_languages_have_aliases(sandbox: Sandbox):
    """Case and space in a language's name do not matter, and short names work."""
    assert ok(sandbox.run_code("1", language=" Python ")).text == "1"
    assert ok(sandbox.run_code("echo $((1 + 1))", language="sh")).logs.stdout == ["2\n"]


def test_bash(sandbox: Sandbox):
    """Bash is a language like the others; its state is kept apart from Python's."""
    assert ok(sandbox.run_code("echo Hello, World!", language="bash")).logs.stdout == ["Hello, World!\n"]


# ----------------------------------------------------------------------------------------- variables


READ = {"python": "import os; print(os.environ.get('{}'))", "bash": 'echo "${{{}-None}}"'}


@pytest.mark.parametrize("language", READ)
def test_variables_of_the_sandbox(sandbox: Sandbox, language: str):
    """What the sandbox was created with is seen in every language."""
    code = READ[language].format("SHARED")
    assert ok(sandbox.run_code(code, language=language)).logs.stdout == ["of the sandbox\n"]


@pytest.mark.parametrize("language", READ)
def test_variables_of_a_run(sandbox: Sandbox, language: str):
    """What a run is given is seen by it alone, whatever is in it."""
    code = READ[language].format("FOO")
    value = 'it\'s "quoted" $HOME `x` ü'
    shown = ok(sandbox.run_code(code, language=language, envs={"FOO": value})).logs.stdout
    assert shown == [value + "\n"]
    assert ok(sandbox.run_code(code, language=language)).logs.stdout == ["None\n"]


@pytest.mark.parametrize("language", READ)
def test_variables_overwritten_and_reset(sandbox: Sandbox, language: str):
    """A run may see another value of a variable of the sandbox, which has its own again afterwards."""
    code = READ[language].format("SHARED")
    assert ok(sandbox.run_code(code, language=language, envs={"SHARED": "own"})).logs.stdout == ["own\n"]
    assert ok(sandbox.run_code(code, language=language)).logs.stdout == ["of the sandbox\n"]


# ------------------------------------------------------------------------------------------- formats


def test_latex_alone(sandbox: Sandbox):
    """A raw display has the formats that it was given, and no others."""
    code = "from IPython.display import display\ndisplay({'text/latex': r'\\text{CPI}'}, raw=True)"
    (result,) = ok(sandbox.run_code(code)).results
    assert (result.formats(), result.latex) == (["latex"], "\\text{CPI}")


def test_custom_repr(sandbox: Sandbox):
    """The text of an object of one's own is what its ``__repr__`` says."""
    code = "class T:\n    def __repr__(self): return 'custom'\nT()"
    assert ok(sandbox.run_code(code)).text == "custom"


def test_data_frame(sandbox: Sandbox):
    """A data frame has its columns as ``data``, with times in ISO format, beside text and HTML."""
    code = """
    import pandas as pd
    pd.DataFrame({
        "col1": [1, 2],
        "col2": ["a", "b"],
        "col3": pd.to_datetime(["2020-01-01", "2020-01-02"]),
    })
    """
    (result,) = ok(sandbox.run_code(code)).results
    assert result.data == {
        "col1": [1, 2],
        "col2": ["a", "b"],
        "col3": ["2020-01-01T00:00:00", "2020-01-02T00:00:00"],
    }
    assert {"text", "html", "data"} <= set(result.formats())


@pytest.mark.parametrize("value", ["[1, 'a', None]", "{'a': [1.5, True]}"])
def test_lists_and_dicts_are_json(sandbox: Sandbox, value: str):
    """A list or dict has its value as ``json``."""
    assert ok(sandbox.run_code(value)).results[0].json == eval(value)


def test_plot(sandbox: Sandbox):
    """A figure is PNG and text, with its chart; nothing is left over in ``extra``."""
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6])\nplt.show()"
    (result,) = ok(sandbox.run_code(code)).results
    assert is_png(result.png)
    assert result.text is not None and result.text.startswith("<Figure size")
    assert not result.extra


@pytest.mark.parametrize("show", ["image.show()", "display(image)", "image"])
def test_images(sandbox: Sandbox, show: str):
    """A PIL image is PNG, shown, displayed or as the value."""
    code = f"from PIL import Image\nimage = Image.new('RGB', (60, 30), color='red')\n{show}"
    (result,) = ok(sandbox.run_code(code)).results
    assert is_png(result.png)


def test_saved_images_can_be_fetched(sandbox: Sandbox):
    """An image that is saved is a file that the run made; E2B displays it as well, cellfork where it is asked to."""
    code = "from PIL import Image\nImage.new('RGB', (60, 30), color='red').save('test.png')"
    execution = ok(sandbox.run_code(code))
    (made,) = execution.artifacts
    assert (execution.results, made.path, made.mime) == ([], "/home/user/test.png", "image/png")
    assert sandbox.files.read(made.path, format="bytes").startswith(PNG)


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("Image.new('RGB', (60, 30), color='red').save('test.png')", 1),
        ("image = Image.new('RGB', (60, 30)); image.save('a.png'); image.save('b.jpg', quality=50)", 2),
        ("import io; Image.new('RGB', (60, 30)).save(io.BytesIO(), 'PNG')", 0),
        ("import matplotlib.pyplot as plt; plt.plot([1]); plt.savefig('p.png'); plt.close()", 1),
    ],
)
def test_saved_images_are_displayed_where_asked(create, code: str, count: int):
    """With one variable set, an image that is saved under a name is displayed as well, as in E2B."""
    with create(envs={"CELLFORK_DISPLAY_SAVED_IMAGES": "1"}) as sandbox:
        for context in (None, sandbox.create_code_context()):
            results = ok(sandbox.run_code("from PIL import Image\n" + code, context=context)).results
            assert [is_png(result.png) for result in results] == [True] * count


def test_a_saved_figure_is_not_lost(sandbox: Sandbox):
    """The CAMEL case: a figure that is saved and shown is a result *and* a file, never an empty string."""
    code = """
import matplotlib.pyplot as plt
plt.plot([1, 2, 3], [4, 5, 6])
plt.savefig("plot.png")
plt.show()"""
    execution = ok(sandbox.run_code(code))
    (result,) = execution.results
    (made,) = execution.artifacts
    assert is_png(result._repr_png_())
    assert isinstance(result.chart, LineChart)
    assert sandbox.files.read(made.path, format="bytes").startswith(PNG)
    view = execution.to_llm(max_tokens=200_000).text
    assert "data:image/png;base64," in view


# -------------------------------------------------------------------------------------- E2B's classes


FORMATS = [
    "text",
    "html",
    "markdown",
    "svg",
    "png",
    "jpeg",
    "pdf",
    "latex",
    "json",
    "javascript",
    "data",
    "chart",
]


def test_formats_are_in_order(sandbox: Sandbox):
    """``formats()`` lists E2B's names in E2B's order, then what is in ``extra``."""
    bundle: dict[str, Any] = dict.fromkeys(FORMATS[:10], "x") | {
        "data": {"a": [1]}, "chart": {"type": "bar", "title": None, "elements": []},
    }  # fmt: skip
    assert Result(**bundle, extra={"a/b": 1}).formats() == [*FORMATS, "a/b"]


def test_what_is_empty_is_there():
    """E2B leaves empty values out of ``formats()``; cellfork keeps them: an empty list is a result."""
    assert Result(text="[]", json=[]).formats() == ["text", "json"]


def test_result_as_text():
    """A result reads as its text, else as its formats."""
    assert str(Result(text="1")) == "Result(1)"
    assert str(Result(png="x", svg="y")) == "Result(Formats: svg, png)"


def test_result_as_a_mapping():
    """A result gives each of its attributes by name; an absent one is ``None``."""
    result = Result(text="1", is_main_result=True)
    assert (result["text"], result["png"], result["is_main_result"]) == ("1", None, True)


@pytest.mark.parametrize(
    "name", ["html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript"]
)
def test_repr_methods(name: str):
    """Every ``_repr_*_`` method returns its format, ``None`` where that is absent."""
    fields: dict[str, Any] = {name: "x"}
    assert getattr(Result(**fields), f"_repr_{name}_")() == "x"
    assert getattr(Result(text="1"), f"_repr_{name}_")() is None


def test_execution_as_json(sandbox: Sandbox):
    """``to_json`` holds results with their formats, logs and error; E2B nests the latter two as text, cellfork as objects."""
    code = "from IPython.display import HTML, display\ndisplay(HTML('<b>'))\nprint('a')\n1/0"
    value = json.loads(sandbox.run_code(code).to_json())
    assert value["results"][0]["html"] == "<b>"
    assert value["logs"] == {"stdout": ["a\n"], "stderr": []}
    assert value["error"]["name"] == "ZeroDivisionError"


# -------------------------------------------------------------------------------------------- charts


def chart_of(sandbox: Sandbox, code: str) -> Any:
    """Return the chart of the one figure that ``code`` shows."""
    (result,) = ok(sandbox.run_code("import matplotlib.pyplot as plt\n" + code + "\nplt.show()")).results
    return result.chart


def test_bar_chart(sandbox: Sandbox):
    """Bars have labels, a group and values."""
    chart = chart_of(
        sandbox,
        "plt.bar(['Author A', 'Author B', 'Author C', 'Author D'], [100, 200, 300, 400], label='Books Sold')\n"
        "plt.xlabel('Authors')\nplt.ylabel('Books Sold')\nplt.title('Book Sales by Authors')",
    )
    assert isinstance(chart, BarChart)
    assert (chart.title, chart.x_label, chart.y_label) == ("Book Sales by Authors", "Authors", "Books Sold")
    assert (chart.x_unit, chart.y_unit) == (None, None)
    assert [(bar.label, bar.group, bar.value) for bar in chart.elements] == [
        (f"Author {letter}", "Books Sold", value)
        for letter, value in zip("ABCD", (100, 200, 300, 400), strict=True)
    ]


def test_line_chart(sandbox: Sandbox):
    """Lines have points; an axis of dates says so, units come out of the labels."""
    code = """
import datetime, numpy as np
dates = [datetime.date(2023, 9, 1) + datetime.timedelta(seconds=0, days=i) for i in range(100)]
plt.plot(dates, np.sin(np.linspace(0, 10, 100)), label='sin(x)')
plt.plot(dates, np.cos(np.linspace(0, 10, 100)), label='cos(x)')
plt.xlabel("Time (s)")
plt.ylabel("Amplitude (Hz)")
plt.title('Plot of sin(x) and cos(x)')"""
    chart = chart_of(sandbox, code)
    assert isinstance(chart, LineChart)
    assert (chart.x_label, chart.x_unit, chart.y_unit) == ("Time (s)", "s", "Hz")
    assert (chart.x_scale, chart.y_scale) == (ScaleType.DATETIME, ScaleType.LINEAR)
    assert [(line.label, len(line.points)) for line in chart.elements] == [("sin(x)", 100), ("cos(x)", 100)]


def test_scatter_chart(sandbox: Sandbox):
    """Scattered points keep their labels and their order."""
    chart = chart_of(
        sandbox, "plt.scatter([1, 2, 3], [3, 1, 2], label='Dataset 1'); plt.scatter([4], [5], label='2')"
    )
    assert isinstance(chart, ScatterChart)
    assert [(e.label, [tuple(p) for p in e.points]) for e in chart.elements] == [
        ("Dataset 1", [(1, 3), (2, 1), (3, 2)]), ("2", [(4, 5)]),
    ]  # fmt: skip


def test_log_chart(sandbox: Sandbox):
    """A logarithmic axis says so."""
    chart = chart_of(sandbox, "plt.plot([1, 2, 3], [1, 10, 100])\nplt.yscale('log')")
    assert (chart.x_scale, chart.y_scale) == (ScaleType.LINEAR, ScaleType.LOG)


def test_categorical_chart(sandbox: Sandbox):
    """An axis of words is categorical, in indented code as well."""
    code = "    import matplotlib.pyplot as plt\n    plt.plot([1, 2, 3], ['a', 'b', 'c'])\n    plt.show()"
    chart = ok(sandbox.run_code(code)).results[0].chart
    assert isinstance(chart, LineChart)
    assert (chart.x_scale, chart.y_scale) == (ScaleType.LINEAR, ScaleType.CATEGORICAL)


def test_pie_chart(sandbox: Sandbox):
    """Wedges have labels, angles in degrees, a radius."""
    chart = chart_of(sandbox, "plt.pie([90, 10], labels=['Yes', 'No'], startangle=90)\nplt.title('Answers')")
    assert isinstance(chart, PieChart)
    assert [(e.label, e.angle, e.radius) for e in chart.elements] == [("Yes", 324, 1), ("No", 36, 1)]


def test_box_chart(sandbox: Sandbox):
    """Boxes have quartiles, whiskers and outliers."""
    code = "plt.boxplot([[85, 90, 78, 92, 88], [84, 86, 92, 76, 90]], patch_artist=True)"
    chart = chart_of(sandbox, code)
    assert isinstance(chart, BoxAndWhiskerChart)
    assert [(e.first_quartile, e.median, e.third_quartile) for e in chart.elements] == [
        (85, 88, 90),
        (84, 86, 90),
    ]


def test_super_chart(sandbox: Sandbox):
    """A figure with several axes is a chart of charts with their own titles."""
    code = """
import numpy as np
figure, axes = plt.subplots(1, 2)
axes[0].plot(np.arange(100)); axes[0].set_title('left')
axes[1].scatter(range(5), range(5)); axes[1].set_title('right')
figure.suptitle('Multiple Charts Example')"""
    chart = chart_of(sandbox, code)
    assert isinstance(chart, SuperChart)
    assert (chart.title, [c.title for c in chart.elements]) == ("Multiple Charts Example", ["left", "right"])
    line, scatter = chart.elements
    assert isinstance(line, LineChart) and len(line.elements[0].points) == 100
    assert isinstance(scatter, ScatterChart) and len(scatter.elements[0].points) == 5


def test_blank_figure(sandbox: Sandbox):
    """A figure with nothing in it has no chart."""
    (result,) = ok(sandbox.run_code("import matplotlib.pyplot as plt\nplt.figure()")).results[-1:]
    assert result.chart is None


def test_charts_as_json(sandbox: Sandbox):
    """What a chart does not have is ``null`` in JSON, not absent."""
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    chart = json.loads(ok(sandbox.run_code(code)).to_json())["results"][0]["chart"]
    assert (chart["type"], chart["title"], chart["x_unit"], chart["y_label"]) == ("line", None, None, None)
