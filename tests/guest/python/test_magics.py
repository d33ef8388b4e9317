"""Magics and shell commands."""

import sys
import time

import pytest

from tests.guest.python.harness import KiB, Session


def test_shell_commands(session: Session):
    """``!cmd`` writes through, sets ``_exit_code``, knows Python's variables, and pipes."""
    ran = session.run("name = 'wörld'\n!echo hello $name {1 + 1} | tr a-z A-Z; exit 3")
    assert ran.ok().stdout == "HELLO WöRLD 2\n"
    assert session.run("_exit_code").text == "3"
    assert session.run("!kill -9 $$").ok().order == []
    assert session.run("_exit_code").text == "-9"


def test_captured_shell_commands(session: Session):
    """``x = !cmd`` gives IPython's list of lines, ``!!cmd`` displays it."""
    assert (
        session.run("x = !printf 'a\\nb\\n'; echo err >&2\nx, x.s, type(x).__name__").text
        == "(['a', 'b', 'err'], 'a b err', 'SList')"
    )
    assert session.run("!!echo hi").text == "['hi']"
    assert session.run("get_ipython().getoutput('echo a', split=False).strip()").text == "'a'"


def test_commands_in_the_background(session: Session):
    """A command may be left running."""
    started = time.monotonic()
    session.run("!sleep 5 > /dev/null 2>&1 &").ok()
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("magic", ["%%bash", "%%sh", "%%script bash", "%%script /bin/sh -e"])
def test_scripts(session: Session, magic: str):
    """Script cells write through, in order, and leave no thread behind."""
    ran = session.run(f"{magic}\necho out\necho err >&2\necho out2").ok()
    assert (ran.stdout, ran.stderr) == ("out\nout2\n", "err\n")
    assert session.run("import threading; threading.active_count()").text == "1"


def test_scripts_that_fail(session: Session):
    """A script's exit code other than 0 raises ``CalledProcessError``, unless told not to."""
    ran = session.run("%%bash\necho a\nexit 3")
    assert (
        ran.error["name"] == "CalledProcessError"
        and "exit status 3" in ran.error["value"]
        and ran.stdout == "a\n"
    )
    session.run("%%bash --no-raise-error\nexit 3").ok()
    assert "Couldn't find program: 'no-such-program'" in session.run("%%script no-such-program\nx").stdout


def test_scripts_into_variables(session: Session):
    """``--out`` and ``--err`` put a script's output into variables."""
    session.run("%%bash --out o --err e\necho 1\necho 2 >&2").ok()
    assert session.run("o, e").text == r"('1\n', '2\n')"


def test_other_interpreters(session: Session):
    """``%%python`` and ``%%perl`` run their interpreters."""
    assert session.run(f"%%script {sys.executable}\nprint(6 * 7)").stdout == "42\n"
    assert session.run("%%python3\nprint('py')").ok().stdout == "py\n"


def test_a_large_script(session: Session):
    """A script larger than a pipe, which writes while it reads, does not hang."""
    ran = session.run("%%script cat\n" + ("x" * 99 + "\n") * 20_000).ok()
    assert len(ran.stdout) >= 2_000_000 - 1


def test_pip(session: Session):
    """``%pip`` runs the pip of the kernel's own interpreter."""
    ran = session.run("%pip --version").ok()
    assert ran.stdout.startswith("pip ") and "python" in ran.stdout


def test_timing(session: Session):
    """``%time``, ``%%time`` and ``%timeit`` print; ``%timeit -o`` returns."""
    assert "Wall time" in session.run("%time sum(range(10))").stdout
    assert "Wall time" in session.run("%%time\nx = 1").stdout
    assert "per loop" in session.run("%timeit -n 2 -r 2 1 + 1").stdout
    assert "TimeitResult" in (session.run("%timeit -o -q -n 1 -r 1 1").text or "")


def test_directories_and_files(session: Session, tmp_path):
    """``%cd``, ``%mkdir``, ``%ls``, ``%pwd``, ``%%writefile``, ``%run``, ``%load``, ``%less`` work on files."""
    session.run("%mkdir sub\n%cd sub").ok()
    assert session.run("%pwd").text == repr(str(tmp_path / "sub"))
    assert session.run("%%writefile a.py\nprint('ran')\nvalue = 3").stdout == "Writing a.py\n"
    assert session.run("%run a.py").stdout == "ran\n"
    assert session.run("value").text == "3"
    assert "a.py" in session.run("%ls").stdout
    assert "value = 3" in session.run("%less a.py").displays[0]["text/plain"]
    assert "value = 3" in session.run("%load a.py").displays[0]["text/plain"]
    assert "value = 3" in session.run("%pycat a.py").displays[0]["text/plain"]
    assert session.run("%cd -q ..\n%pwd").text == repr(str(tmp_path))


def test_names(session: Session):
    """``%who``, ``%whos``, ``%env``, ``%reset``, ``%xdel``, ``%psearch`` work."""
    session.run("a, b = 1, 'x'")
    assert session.run("%who").stdout.split() == ["a", "b"]
    assert "Variable" in session.run("%whos").stdout
    assert session.run("%env NEW=5").stdout == "env: NEW=5\n"
    assert session.run("!echo $NEW").stdout == "5\n"
    session.run("%reset -f").ok()
    assert session.run("'a' in globals()").text == "False"


def test_extensions(session: Session, tmp_path):
    """``%load_ext autoreload`` reloads modules that changed."""
    (tmp_path / "changing.py").write_text("def f(): return 1\n")
    session.run("%load_ext autoreload\n%autoreload 2\nimport changing").ok()
    assert session.run("changing.f()").text == "1"
    (tmp_path / "changing.py").write_text("def f(): return 22\n")
    assert session.run("changing.f()").text == "22"


def test_own_magics_and_aliases(session: Session):
    """Magics and aliases that the user registers work."""
    session.run(
        "from IPython.core.magic import register_line_magic, register_cell_magic\n@register_line_magic\ndef twice(line): return line * 2\n@register_cell_magic\ndef upper(line, cell): print(cell.upper(), end='')"
    )
    assert session.run("%twice ab").text == "'abab'"
    assert session.run("%%upper\nabc").stdout == "ABC\n"
    session.run("%alias greet echo hello")
    assert session.run("greet you").stdout == "hello you\n"


def test_store(session: Session):
    """``%store`` keeps values in the profile directory, which is made when it is needed."""
    session.run("kept = [1, 2]\n%store kept").ok()
    session.run("del kept\n%store -r kept").ok()
    assert session.run("kept").text == "[1, 2]"


def test_listing_and_help(session: Session):
    """``%lsmagic``, ``%quickref``, ``%magic`` and ``??`` display what a notebook's pager would show."""
    assert "%%timeit" in str(session.run("%lsmagic").displays)
    assert len(session.run("%quickref").ok().displays[0]["text/plain"]) > KiB
    session.run("def documented():\n    'Some text'\n    return 1")
    text = session.run("documented??").ok().displays[0]["text/plain"]
    assert "return 1" in text and "\x1b" not in text


def test_editing_and_macros(session: Session):
    """``%edit`` refuses, ``%macro`` and ``%rerun`` replay cells."""
    assert session.run("%edit").error["name"] == "UsageError"
    session.run("n = 1")
    session.run("n = n + 1")
    session.run("%macro again 3")
    session.run("again").ok()
    assert session.run("n").text == "3"


def test_profilers(session: Session):
    """``%prun`` displays its statistics."""
    ran = session.run("%prun -q -D out.prof sum(range(10))")
    assert ran.end["status"] == "ok"
    assert "function calls" in str(session.run("%prun sum(range(10))").displays)
