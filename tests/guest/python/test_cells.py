"""Cells mean what they mean in a notebook."""

import pytest

from tests.guest.python.harness import Session


def test_the_last_expression_is_the_main_result(session: Session):
    """The value of the last expression is displayed as the main result; earlier values are not."""
    ran = session.run("1\n2 + 2").ok()
    assert ran.text == "4"
    assert len(ran.displays) == 1


@pytest.mark.parametrize("code", ["x = 1", "None", "1;", "print('a')", "1; # quiet", "def f(): pass"])
def test_no_value_no_result(session: Session, code: str):
    """A statement, ``None`` and an expression that ends in a semicolon have no result."""
    assert session.run(code).ok().result is None


def test_names_outlive_the_cell(session: Session):
    """What a cell defines is there in the next, and nothing of the warm-up is."""
    names = session.run("[n for n in list(globals()) if not n.startswith('_')]").ok().text
    assert eval(names or "") == ["In", "Out", "get_ipython", "exit", "quit", "open"]
    session.run("x = 41").ok()
    assert session.run("x + 1").ok().text == "42"


def test_counts(session: Session):
    """Cells are numbered from 1; blank and silent ones do not count; errors do."""
    ends = [session.run(code).end for code in ("1", "  \n", "1/0", "2")]
    assert [(end["count"], end["next_count"]) for end in ends] == [(1, 2), (None, 2), (2, 3), (3, 4)]
    silent = session.run("3", silent=True)
    assert (silent.end["count"], silent.end["next_count"], silent.result) == (None, 4, None)
    assert session.run("In, len(In)").text == "(['', '1', '1/0', '2', 'In, len(In)'], 5)"


def test_history_variables(session: Session):
    """``_``, ``__``, ``_1``, ``Out``, ``In``, ``_i`` hold what they hold in IPython."""
    session.run("10")
    session.run("20")
    assert session.run("(_, __, _1, Out[2], In[1], _i)").text == "(20, 10, 10, 20, '10', '20')"
    assert session.run("%history").stdout.splitlines()[:2] == ["10", "20"]


def test_blank_code(session: Session):
    """Blank code ends at once, without error or result."""
    ran = session.run("\n \n").ok()
    assert ran.order == []


def test_main_module(session: Session):
    """The user's module is ``__main__``, so classes made in a cell can be pickled and forked."""
    session.run("class A:\n    x = 1\nimport pickle").ok()
    assert (
        session.run("pickle.loads(pickle.dumps(A())).x, __name__, A.__module__").text
        == "(1, '__main__', '__main__')"
    )


def test_working_directory_and_path(session: Session, tmp_path):
    """The kernel is in the directory it was started in, PWD says so, and modules there can be imported."""
    (tmp_path / "neighbour.py").write_text("value = 'imported'\n")
    ran = session.run("import os\nprint(os.getcwd(), os.environ['PWD'])")
    assert ran.stdout.split() == [str(tmp_path), str(tmp_path)]
    assert session.run("import neighbour\nneighbour.value").text == "'imported'"


def test_environment_of_the_context_and_of_a_cell(session: Session):
    """A cell's variables hold for it only, whatever is in them, and are restored afterwards."""
    session.run("import os; os.environ['B'] = 'before'").ok()
    ran = session.run(
        "[os.environ[n] for n in ('A', 'B', 'FROM_START')]", envs={"A": "it's $x\n'''", "B": "new"}
    )
    assert ran.text == repr(["it's $x\n'''", "new", "it's"])
    assert session.run("os.environ.get('A'), os.environ['B']").text == "(None, 'before')"
    assert "it's in the shell" in session.run("!echo $A in the shell", envs={"A": "it's"}).stdout


def test_settings_outlive_the_cell(session: Session):
    """Settings kept in context variables (decimal's precision) last, with and without an event loop."""
    session.run("import decimal; decimal.getcontext().prec = 5").ok()
    assert session.run("decimal.Decimal(1) / 3").text == "Decimal('0.33333')"
    session.run("await __import__('asyncio').sleep(0)\ndecimal.getcontext().prec = 3").ok()
    assert session.run("decimal.Decimal(1) / 3").text == "Decimal('0.333')"


def test_future_imports_last(session: Session):
    """A ``__future__`` import holds for the cells after it."""
    session.run("from __future__ import annotations").ok()
    assert session.run("def f(x: no_such_name): pass\nf.__annotations__").text == "{'x': 'no_such_name'}"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("%pwd", None),
        ("pwd", None),
        (">>> 1 + 1", "2"),
        ("In [3]: 2 + 2", "4"),
        ("    x = 5\n    x", "5"),
        ("x = %env HOME\ntype(x).__name__", "'str'"),
        ("'100%' + '!' + '?'", "'100%!?'"),
        ("/len 'ab'", "2"),
        ("7 % 4", "3"),
    ],
)
def test_input_syntax(session: Session, code: str, text: str | None):
    """IPython's input transformations apply: magics with and without %, prompts, indentation, escapes."""
    ran = session.run(code).ok()
    assert ran.text == text if text is not None else ran.text


def test_user_transformers(session: Session):
    """Input transformations and AST transformers that the user adds are applied."""
    session.run(
        "ip = get_ipython()\nip.input_transformers_post.append(lambda lines: [l.replace('twelve', '12') for l in lines])"
    )
    assert session.run("twelve + 1").text == "13"


def test_interactivity_all(session: Session):
    """With ``ast_node_interactivity = 'all'``, every value is displayed, in order with what is written between."""
    session.run("import os\nget_ipython().ast_node_interactivity = 'all'")
    ran = session.run("1\n_n = os.write(1, b'between')\n2")
    assert ran.order == [("display", "1"), ("stdout", "between"), ("display", "2")]


def test_help_is_displayed(session: Session):
    """``object?`` is displayed as text, as a notebook shows its pager."""
    ran = session.run("len?").ok()
    assert "Return the number of items" in ran.displays[0]["text/plain"]


def test_a_large_cell(session: Session):
    """A cell of some megabytes runs."""
    code = "x = '" + "a" * (5 * 1024 * 1024) + "'\nlen(x)"
    assert session.run(code).ok().text == str(5 * 1024 * 1024)


def test_exec_and_eval_see_the_users_names(session: Session):
    """``exec``, ``eval``, comprehensions and functions share the module's names."""
    assert session.run("y = 2\nexec('z = y * 2')\n[z + y for _ in range(1)], eval('z')").text == "([6], 4)"
