"""Go: the kernel suite, and what is Go's own."""

import textwrap
from collections.abc import Iterator

import pytest

from cellfork import Execution, Sandbox
from cellfork.client import Context
from cellfork.guest import languages
from cellfork.guest.go import kernel as go_kernel
from cellfork.testing import dialects
from cellfork.testing.kernel_suite import KernelSuite


class TestGo(KernelSuite):
    dialect = dialects.GO


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create() as sandbox:
        if "go" not in sandbox.list_languages():
            pytest.skip("go is not installed here: see `cellfork languages`")
        yield sandbox


@pytest.fixture
def go(sandbox: Sandbox) -> Iterator["Session"]:
    context = sandbox.create_code_context(language="go")
    yield Session(sandbox, context)
    sandbox.remove_code_context(context)


class Session:
    def __init__(self, sandbox: Sandbox, context: Context) -> None:
        self.sandbox, self.context = sandbox, context

    def run(self, code: str) -> Execution:
        return self.sandbox.run_code(textwrap.dedent(code), context=self.context, timeout=30)

    def out(self, code: str) -> str:
        execution = self.run(code)
        assert execution.error is None, execution.error
        return "".join(execution.logs.stdout)

    def text(self, code: str) -> str | None:
        execution = self.run(code)
        assert execution.error is None, execution.error
        return execution.text


def test_declarations_may_be_repeated(go: Session) -> None:
    """A later cell may declare a variable, a function or a type anew, with another type."""
    assert go.text("x := 1\nx") == "1"
    assert go.text('x := "two"\nx') == '"two"'
    go.run("func f() int { return 1 }")
    go.run("func f() int { return 2 }")
    assert go.text("f()") == "2"
    go.run("type Point struct{ X int }")
    assert go.text("type Point struct{ Name string }\nPoint{`a`}") == "{Name:a}"


def test_imports_stand_anywhere_and_may_be_left_out(go: Session) -> None:
    """Packages are imported in any cell, twice if need be, or found by their name."""
    assert go.text('fmt.Println("first")\nimport "strings"\nstrings.ToUpper("a")') == '"A"'
    assert go.text('import (\n"strings"\n"math"\n)\nmath.Sqrt(16)') == "4"
    assert go.text('json.Valid([]byte("{}"))') == "true"


def test_main_is_run_by_the_cell_that_has_it(go: Session) -> None:
    """``func main``, a whole program and ``%%`` are run once; what follows ``%%`` is main's body."""
    assert go.out('func main() { fmt.Println("once") }') == "once\n"
    assert go.out("y := 3") == ""
    assert (
        go.out('package main\nimport "fmt"\nfunc main() {\n\tfmt.Println("program", y)\n}') == "program 3\n"
    )
    assert go.out('%%\ndefer fmt.Println("last")\nfmt.Println("first")') == "first\nlast\n"
    assert go.out("y++") == ""


def test_methods_interfaces_and_generics(go: Session) -> None:
    """Types with methods, interfaces and generic functions live on from cell to cell."""
    go.run("type Shape interface{ Area() int }\ntype Square struct{ Side int }")
    go.run("func (s Square) Area() int { return s.Side * s.Side }")
    assert go.text("var shape Shape = Square{3}\nshape.Area()") == "9"
    go.run("func twice[T any](value T) []T { return []T{value, value} }")
    assert go.text("twice(4)") == "[4 4]"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("undefinedName", "1: undefined: undefinedName"),
        ("a := 1\n\nb := a +", "4: expected operand"),
        ("return", "1: return and defer belong into a function"),
    ],
)
def test_code_that_does_not_compile(go: Session, code: str, value: str) -> None:
    """What does not compile is a CompileError that tells the line of the cell."""
    error = go.run(code).error
    assert error is not None
    assert error.name == "CompileError"
    assert error.value.startswith(value)
    assert error.traceback.startswith(f"cell:{value}")


def test_panic(go: Session) -> None:
    """A panic tells its value and the lines that functions were at; the state is kept."""
    error = go.run(
        'keep := 7\nfunc inner() { panic(fmt.Errorf("deep")) }\n\nfunc outer() { inner() }\nouter()'
    ).error
    assert error is not None
    assert (error.name, error.value) == ("panic", "deep")
    assert error.traceback.splitlines()[0] == "panic: deep"
    assert "cell:2: main.inner(...)" in error.traceback
    assert go.text("keep") == "7"


def test_results(go: Session) -> None:
    """The last expression is the result; a call that returns nothing, or prints, has none."""
    assert go.text("[]string{`a`}") == "[a]"
    assert go.text("errors.New(`e`)") == "e"
    assert go.text("time.Duration(1500) * time.Millisecond") == "1.5s"
    for code in ("fmt.Println(1)", "func none() {}\nnone()", "z := 1", "time.Sleep(1)", "func() {}()"):
        assert go.run(code).results == [], code


def test_rich_displays(go: Session) -> None:
    """The package cellfork shows HTML and pictures; an image as a value is one; GoNB's names work as well."""
    html, picture = go.run('cellfork.HTML("<b>x</b>")\nimage.NewGray(image.Rect(0, 0, 2, 2))').results
    assert html.html == "<b>x</b>"
    assert picture.png is not None
    assert picture.is_main_result
    shown = go.run('import "github.com/janpfeifer/gonb/gonbui"\ngonbui.DisplayMarkdown("# h")').results
    assert [result.markdown for result in shown] == ["# h"]


def test_goroutines_outlive_their_cell(go: Session) -> None:
    """A goroutine goes on after its cell, and is ended by the interrupt of a later one at the latest."""
    go.run("count := 0\ngo func() { for { count++; time.Sleep(time.Millisecond) } }()")
    assert int(go.out("time.Sleep(100 * time.Millisecond)\nfmt.Println(count)")) > 3


@pytest.mark.parametrize("code", ["os.Exit(3)", "go func() { panic(1) }()\ntime.Sleep(time.Second)"])
def test_ends_of_the_program(go: Session, code: str) -> None:
    """``os.Exit`` and a panic that nobody can catch end the kernel, as what they are."""
    execution = go.run(f"x := 1\n{code}")
    assert execution.status == "lost"
    assert execution.error is not None
    assert "exited with code" in execution.error.value
    assert go.run("x").status == "error"


def test_recursion_without_end(go: Session) -> None:
    """It ends the kernel before it has taken the sandbox's memory."""
    assert go.run("func deep(n int) int { return deep(n+1) + 1 }\ndeep(0)").status == "lost"
    assert go.text("1 + 1") == "2"


def test_directory_is_kept(go: Session) -> None:
    """``os.Chdir`` holds for later cells."""
    go.run('os.Chdir("/tmp")')
    assert go.out("wd, _ := os.Getwd()\nfmt.Println(wd)") == "/tmp\n"


def test_gonb_comes_first(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where GoNB's kernelspec is installed, it is the kernel of Go."""
    place = tmp_path / "kernels" / "gonb"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(
        '{"argv": ["gonb", "--kernel", "{connection_file}"], "language": "go", "display_name": "Go (gonb)"}'
    )
    own = tmp_path / "bin"
    own.mkdir()
    for name in ("cellfork-go", "gonb"):
        (own / name).write_text("#!/bin/sh\n")
        (own / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(own))
    monkeypatch.delenv("JUPYTER_PATH", raising=False)
    assert languages.body_of("go") is go_kernel.run
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    body = languages.body_of("go")
    assert body is not go_kernel.run
    assert body.args[0].name == "gonb"  # type: ignore[attr-defined]
    assert languages.announces(body)
