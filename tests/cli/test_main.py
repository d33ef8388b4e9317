"""The command as a whole: help, version, usage errors, speed."""

import subprocess
import sys

import pytest
import rich_click as click

from cellfork import __version__
from cellfork.cli.bench import NAMES
from cellfork.cli.benchmarks import languages
from cellfork.cli.benchmarks.rows import ROWS
from cellfork.cli.exits import Exit, exit_of_error
from cellfork.cli.main import COMMANDS, cli
from cellfork.model import errors
from tests.cli.conftest import Invoke


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], *([name, "--help"] for name in COMMANDS)])
def test_help(invoke: Invoke, arguments: list[str]) -> None:
    """Every command has a help page that names the exit codes."""
    outcome = invoke(*arguments)
    assert outcome.code == 0
    assert "Usage" in outcome.out
    assert "Exit codes" in outcome.out


@pytest.mark.parametrize("name", COMMANDS)
def test_everything_is_documented(name: str) -> None:
    """Every command and every option says what it is for."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help
    assert not [p.name for p in command.params if isinstance(p, click.Option) and not p.help]


def test_version(invoke: Invoke) -> None:
    """``--version`` prints the version of the package."""
    assert __version__ in invoke("--version").out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["run"],
        ["run", "a.py", "-c", "1"],
        ["run", "does-not-exist.py"],
        ["run", "-c", "1", "--json", "--llm"],
        ["run", "-c", "1", "--timeout", "soon"],
        ["run", "-c", "1", "--memory", "much"],
        ["run", "-c", "1", "--cpu", "many"],
        ["run", "-c", "1", "-e", "=x"],
        ["run", "-c", "1", "-e", "CELLFORK_SURELY_NOT_SET"],
        ["run", "-c", "1", "--file", "does-not-exist.csv"],
        ["run", "-c", "1", "--isolation", "wishful"],
        ["run", "-c", "1", "--network", ""],
        ["run", "-c", "1", "--network", "10.0.0.1"],
        ["run", "-c", "1", "--max-tokens", "0"],
        ["bench", "--rows", "nonsense"],
        ["bench", "--json", "--markdown"],
    ],
)
def test_wrong_usage(invoke: Invoke, arguments: list[str]) -> None:
    """Wrong usage ends with 2, says what is wrong on stderr, and prints nothing on stdout but help."""
    outcome = invoke(*arguments)
    assert outcome.code == Exit.USAGE
    assert outcome.err or not arguments
    assert "Traceback" not in outcome.err


def test_help_is_quick() -> None:
    """``cellfork --help`` loads neither the client, the engine, Jupyter nor the science stack."""
    heavy = [
        "asyncio",
        "cellfork.client",
        "cellfork.engine",
        "cellfork.render",
        "IPython",
        "numpy",
        "jupyter_client",
    ]
    code = (
        "import sys\n"
        "from cellfork.cli.main import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: print('LOADED', [m for m in {heavy} if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.rstrip().endswith("LOADED []")


@pytest.mark.parametrize(
    "error, code",
    [
        (errors.InvalidRequest("x"), Exit.USAGE),
        (errors.PathNotFound("x"), Exit.USAGE),
        (errors.IsolationUnavailable("x"), Exit.UNAVAILABLE),
        (errors.StartupFailed("x"), Exit.UNAVAILABLE),
        (errors.SandboxGone("x"), Exit.UNAVAILABLE),
        (errors.OperationTimeout("x"), Exit.TIMEOUT),
        (errors.CommandFailed(3), Exit.RAISED),
        (errors.InternalError("x"), Exit.INTERNAL),
    ],
)
def test_exit_codes_of_errors(error: errors.CellforkError, code: Exit) -> None:
    """Every branch of the error tree has its exit code."""
    assert exit_of_error(error) == code


def test_the_rows_of_the_benchmark_are_named() -> None:
    """The names in the help of ``bench`` are the rows that there are."""
    assert (*ROWS, *languages.ROWS) == NAMES
