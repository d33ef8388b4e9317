"""Errors are told as class, message and IPython's traceback; nothing that the code does loses the kernel."""

import pytest

from tests.guest.python.harness import KiB, Session


def test_an_exception(session: Session):
    """An exception gives its class, its message and a traceback without colours that names cell and line."""
    session.run("def inner(x):\n    return 1 / x")
    ran = session.run("a = 1\ninner(0)")
    assert ran.end["status"] == "error"
    assert ran.error["name"] == "ZeroDivisionError"
    assert ran.error["value"] == "division by zero"
    trace = ran.error["traceback"]
    assert "Cell In[2], line 2" in trace and "Cell In[1], line 2" in trace and "----> 2 inner(0)" in trace
    assert "\x1b" not in trace and "cellfork" not in trace
    assert ran.order == []


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        ("undefined", "NameError", "name 'undefined' is not defined"),
        ("def f(:", "SyntaxError", "invalid syntax"),
        ("if True:\nx = 1", "IndentationError", "expected an indented block"),
        ("x = 1\x00", "", "null"),
        ("raise ValueError()", "ValueError", ""),
        ("raise KeyError('k')", "KeyError", "'k'"),
        ("import sys; sys.exit(3)", "SystemExit", "3"),
        ("raise SystemExit", "SystemExit", ""),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("import no_such_thing", "ModuleNotFoundError", "No module named 'no_such_thing'"),
        ("return 1", "SyntaxError", "'return' outside function"),
        ("%no_such_magic", "UsageError", "Line magic function `%no_such_magic` not found."),
        ("%%no_such_cell\nx", "UsageError", "Cell magic `%%no_such_cell` not found."),
        ("assert 1 == 2, 'message é'", "AssertionError", "message é"),
        ("class Own(Exception): pass\nraise Own('x' * 100_000)", "Own", "x" * 100_000),
        ("raise BaseException('base')", "BaseException", "base"),
        ("raise GeneratorExit", "GeneratorExit", ""),
        ("def f(): f()\nf()", "RecursionError", "maximum recursion depth"),
        ("x = " + "(" * 300 + ")" * 300, "SyntaxError", "too many nested parentheses"),
        ("x = " + "-" * 200_000 + "1", "", ""),
        ("'\\N{no such}'", "SyntaxError", "unicode error"),
    ],
)
def test_kinds_of_errors(session: Session, code: str, name: str, value: str):
    """Every kind of error is told, and the next cell runs."""
    ran = session.run(code)
    assert ran.end["status"] == ("interrupted" if name == "KeyboardInterrupt" else "error"), ran.end
    assert ran.error["name"] == name or not name
    assert value in ran.error["value"]
    assert ran.error["traceback"] or name == "SystemExit"
    assert session.run("6 * 7").text == "42"


def test_output_before_the_error_is_kept(session: Session):
    """What was written and displayed before the error stays before it."""
    assert session.run("print('a'); display(1); 1/0").order == [("stdout", "a\n"), ("display", "1")]


def test_chained_and_grouped_exceptions(session: Session):
    """Causes and the members of groups are in the traceback."""
    trace = session.run("try:\n    1/0\nexcept Exception as e:\n    raise ValueError('second') from e").error[
        "traceback"
    ]
    assert "ZeroDivisionError" in trace and "direct cause" in trace and "ValueError: second" in trace
    error = session.run("raise ExceptionGroup('several', [ValueError('one'), TypeError('two')])").error
    assert error["name"] == "ExceptionGroup"
    assert "interactiveshell" not in error["traceback"]
    assert "ValueError: one" in error["traceback"] and "TypeError: two" in error["traceback"]


@pytest.mark.parametrize(
    "code",
    [
        "class E(Exception):\n    def __str__(self): raise RuntimeError('in str')\nraise E()",
        "class E(Exception):\n    def __repr__(self): raise RuntimeError('in repr')\nraise E(1)",
        "class E(Exception):\n    def __str__(self): return 5\nraise E()",
        "class E(Exception):\n    def __str__(self): 1/0\n    __repr__ = __str__\nraise E()",
        "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E()",
        "class E(Exception):\n    @property\n    def args(self): 1/0\nraise E()",
    ],
)
def test_exceptions_that_cannot_be_told(session: Session, code: str):
    """An exception whose text raises is an error like any other."""
    ran = session.run(code)
    assert ran.end["status"] == "error" and ran.error["name"] in {"E", "SystemExit"}, (ran.end, ran.error)
    assert isinstance(ran.error["value"], str)
    assert session.run("1").text == "1"


def test_a_result_that_cannot_be_told(session: Session):
    """A value whose ``__repr__`` raises fails the cell, as does a display; the rest of the cell goes on."""
    session.run("class Bad:\n    def __repr__(self): raise ValueError('no repr')")
    ran = session.run("Bad()")
    assert (ran.error["name"], ran.error["value"]) == ("ValueError", "no repr")
    ran = session.run("display(Bad())\nprint('on')")
    assert ran.error["name"] == "ValueError" and ran.stdout == "on\n"
    ran = session.run("display(Bad())\n1/0")
    assert ran.error["name"] == "ZeroDivisionError" and "no repr" in ran.stderr


def test_long_tracebacks_are_cut(session: Session):
    """A traceback keeps its beginning and end; the message is whole."""
    ran = session.run("raise ValueError('v' * 2_000_000)")
    assert len(ran.error["value"]) == 2_000_000
    assert len(ran.error["traceback"]) < 260 * KiB


def test_system_exit_hint(session: Session):
    """``sys.exit`` leaves the kernel running and hints at ``exit``, as in Jupyter."""
    ran = session.run("import sys; sys.exit('bye')")
    assert "To exit: use 'exit'" in ran.stderr
    assert "SystemExit: bye" in ran.error["traceback"]


@pytest.mark.parametrize("code", ["exit()", "quit()", "exit", "get_ipython().ask_exit()"])
def test_exit(session: Session, code: str):
    """``exit`` ends the cell well, then the process with code 0."""
    session.run("import atexit; atexit.register(lambda: open('left', 'w').close())")
    session.run(code).ok()
    end = session.next().header
    assert end == {"op": "kernel_exit", "code": 0, "signal": None, "execution": None}


def test_exit_handlers_run(session: Session, tmp_path):
    """The user's exit handlers run on ``exit``."""
    session.run("import atexit; atexit.register(lambda: open('left', 'w').close())")
    session.run("exit")
    session.next()
    assert (tmp_path / "left").exists()


def test_tracebacks_touch_few_modules(session: Session):
    """A first traceback does not copy the memory of every module: formatting it stays below a megabyte or two."""
    read = "def _dirty():\n    return next(int(l.split()[1]) for l in open('/proc/self/smaps_rollup') if l.startswith('Private_Dirty'))"
    session.run(read)
    session.run("_before = _dirty()")
    session.run("1/0")
    assert int(session.run("_dirty() - _before").text or "") < 5_000


def test_failing_callbacks(session: Session):
    """A callback of the user's that fails is told as the error of every cell, and the cell itself goes on."""
    session.run("get_ipython().events.register('post_run_cell', lambda r: 1/0)")
    ran = session.run("'done'")
    assert ran.text == "'done'" and ran.error["name"] == "ZeroDivisionError"


def test_very_deep_tracebacks(session: Session):
    """The traceback of a hundred thousand frames is told in seconds."""
    ran = session.run("import sys\nsys.setrecursionlimit(100_000)\ndef f(n): return f(n + 1)\nf(0)")
    assert ran.error["name"] == "RecursionError"
    assert len(ran.error["traceback"]) < 10 * KiB


def test_traceback_magic(session: Session):
    """``%tb`` shows the last traceback again, ``%xmode`` changes its form."""
    session.run("1/0")
    assert "ZeroDivisionError" in session.run("%tb").error["traceback"]
    session.run("%xmode Minimal")
    assert session.run("1/0").error["traceback"].strip() == "ZeroDivisionError: division by zero"


def test_post_mortem_does_not_hang(session: Session):
    """A debugger asks for input, and ends at once where nobody answers."""
    ran = session.run("breakpoint()")
    assert ran.end["op"] == "done"
    assert session.run("1").text == "1"
