"""What is particular to one language: values of R, names of Java's errors, memory, Deno's ways to print."""

from collections.abc import Iterator

import pytest

from cellfork import Execution, Limits, Sandbox

MEMORY = "768M"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(limits=Limits(memory=MEMORY)) as sandbox:
        for language in {"r", "java", "javascript", "typescript"} & {*sandbox.list_languages()}:
            sandbox.run_code("1", language=language)  # so that no test starts what the others go on using
        yield sandbox


def run(sandbox: Sandbox, language: str, code: str, **options) -> Execution:
    if language not in sandbox.list_languages():
        pytest.skip(f"{language} is not installed here: see `cellfork languages`")
    return sandbox.run_code(code, language=language, timeout=60, **options)


# ---------------------------------------------------------------------------------------------------------- R


@pytest.mark.parametrize(
    "code, mains",
    [
        ("1; 2", [False, True]),
        ("1; invisible(2)", [True]),
        ("1; cat('text')", [False]),
        ("1\nstop('no')", [False]),
        ("plot(1:3)", [False]),
        ("1; plot(1:3)", [False, False]),
        ("IRdisplay::display_html('<b>x</b>')", [False]),
        ("IRdisplay::display_html('<b>x</b>'); 1", [False, True]),
        ("data.frame(a = 1:2)", [True]),
    ],
)
def test_the_main_result_of_r(sandbox, code, mains):
    """The last visible value is the main result where nothing was shown or raised after it; displays and plots are none."""
    execution = run(sandbox, "r", code)
    assert [result.is_main_result for result in execution.results] == mains
    assert all("cellfork" not in str(result.metadata) for result in execution.results)


def test_the_order_of_what_r_says(sandbox):
    """Values and text come in the order in which they were made; what another process prints comes within its cell."""
    code = "cat('a\\n'); 1; cat('b\\n'); system('echo c; sleep 0.2'); cat('d\\n'); 2"
    execution = run(sandbox, "r", code)
    text = "".join(execution.logs.stdout)
    assert sorted(text.split()) == ["a", "b", "c", "d"]
    assert text.replace("c\n", "") == "a\nb\nd\n"
    assert execution.text == "[1] 2"


def test_r_tells_values_in_all_their_forms(sandbox):
    """A data frame comes as text, HTML, Markdown and LaTeX; a plot as a picture."""
    frame = run(sandbox, "r", "data.frame(a = 1:2)").results[0]
    assert frame.html is not None and "<table" in frame.html
    assert frame.markdown is not None and frame.latex is not None
    assert run(sandbox, "r", "plot(1:3)").results[0].png is not None


def test_a_vector_that_does_not_fit(sandbox):
    """R refuses what would not fit into the sandbox, and lives on."""
    execution = run(sandbox, "r", "x <- numeric(2e8)")
    assert execution.error is not None
    assert "memory" in execution.error.value
    assert run(sandbox, "r", "1 + 1").text == "[1] 2"


# -------------------------------------------------------------------------------------------------------- Java


@pytest.mark.parametrize(
    "code, name, value",
    [
        ('throw new IllegalStateException("a, b");', "IllegalStateException", "a, b"),
        ("Object o = null; o.toString();", "NullPointerException", "Cannot invoke"),
        ("int[] a = new int[1]; a[2] = 1;", "ArrayIndexOutOfBoundsException", "Index 2"),
        ("class Own extends Exception { Own() { super(); } }\nthrow new Own();", "Own", "null"),
        ("nothing()", "CompilationException", ""),
        ("int x = ", "IncompleteSourceException", ""),
    ],
)
def test_the_names_of_javas_errors(sandbox, code, name, value):
    """An error has the simple name of its class and its own message."""
    error = run(sandbox, "java", code).error
    assert error is not None
    assert error.name == name
    assert value in error.value


def test_javas_properties_hold_the_variables_of_the_sandbox(sandbox):
    """Variables are system properties as well; what the JVM itself has by that name stays."""
    assert run(sandbox, "java", 'System.getProperty("CELLFORK_SANDBOX")').text == "1"
    assert run(sandbox, "java", 'System.getProperty("java.version") != null').text == "true"


def test_javas_variables_of_an_execution(sandbox):
    """They are environment variables and system properties, and those of processes whose environment is asked for."""
    code = """
    var b = new ProcessBuilder("printenv", "CELLFORK_X"); b.environment();
    System.getProperty("CELLFORK_X") + new String(b.start().getInputStream().readAllBytes());
    """
    assert run(sandbox, "java", code, envs={"CELLFORK_X": "x"}).text == "xx\n"
    assert run(sandbox, "java", 'System.getProperty("CELLFORK_X")').text in {None, "null"}


def test_a_heap_that_is_full():
    """Java's heap is full before the sandbox's memory is: an error of the code, not the end of its kernel."""
    with Sandbox.create(limits=Limits(memory="512M")) as sandbox:
        code = "var l = new ArrayList<long[]>(); while (true) l.add(new long[1 << 20]);"
        execution = run(sandbox, "java", code)
        assert execution.error is not None
        assert execution.error.name == "OutOfMemoryError"
        assert run(sandbox, "java", "l = null; 1 + 1").text == "2"


# -------------------------------------------------------------------------------------------------------- Deno


@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_every_way_to_print(sandbox, language):
    """What ``process`` and ``Deno`` write arrives as what the console writes does, in order and within its cell."""
    code = """
    process.stdout.write("a\\n"); console.log("b"); Deno.stdout.writeSync(new TextEncoder().encode("c\\n"));
    await Deno.stdout.write(new TextEncoder().encode("d\\n")); process.stderr.write("e\\n");
    """
    for _ in range(5):
        execution = run(sandbox, language, code)
        assert "".join(execution.logs.stdout) == "a\nb\nc\nd\n"
        assert "".join(execution.logs.stderr) == "e\n"


def test_results_belong_to_their_cell(sandbox):
    """However short cells are, each one's result is its own."""
    texts = [run(sandbox, "javascript", f"{number}").text for number in range(30)]
    assert texts == [str(number) for number in range(30)]


def test_modules_of_the_standard_library(sandbox):
    """Node's modules are there without a network, at the top level and in any order."""
    code = 'import path from "node:path";\nawait Promise.resolve(path.join("a", "b"))'
    assert run(sandbox, "typescript", code).text == '"a/b"'


def test_plain_text(sandbox):
    """Values carry no colours, and errors neither."""
    execution = run(sandbox, "javascript", "({a: 1, b: ['x']})")
    assert execution.text == '{ a: 1, b: [ "x" ] }'
