"""The public names of the package."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import cellfork
from cellfork.model import errors

PUBLIC = [
    "Accounting",
    "Artifact",
    "AsyncSandbox",
    "BarChart",
    "BarData",
    "BoxAndWhiskerChart",
    "BoxAndWhiskerData",
    "CellforkError",
    "Chart",
    "Chart2D",
    "ChartType",
    "CommandFailed",
    "Conflict",
    "Denial",
    "DirectoryNotEmpty",
    "Execution",
    "ExecutionError",
    "FileError",
    "InternalError",
    "InvalidRequest",
    "IsADirectory",
    "IsolationUnavailable",
    "LimitExceeded",
    "Limits",
    "LineChart",
    "Logs",
    "Missing",
    "NetworkPolicy",
    "NoSpace",
    "NotADirectory",
    "NotAFile",
    "NotFound",
    "OperationTimeout",
    "OutputMessage",
    "PathExists",
    "PathNotFound",
    "PathNotPermitted",
    "PieChart",
    "PieData",
    "PointChart",
    "PointData",
    "PortClosed",
    "PostureMismatch",
    "ProtocolViolation",
    "PtySize",
    "Result",
    "Sandbox",
    "SandboxGone",
    "SandboxPaused",
    "ScaleType",
    "ScatterChart",
    "StartupFailed",
    "SuperChart",
    "Template",
    "Traffic",
    "Unauthorized",
    "UnavailableError",
    "Unsupported",
    "UsageError",
    "__version__",
]
SOURCE = Path(cellfork.__file__).parents[1]

LOADED_BY_IMPORT = """
import sys
before = set(sys.modules)
import cellfork
print(*sorted(set(sys.modules) - before))
"""


def test_public_names_are_pinned():
    """A public name is added or removed on purpose: here and in the package at once."""
    assert cellfork.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC
    assert dir(cellfork) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves(name: str):
    """What is listed exists, and knows the name it is public under."""
    value = getattr(cellfork, name)
    assert getattr(value, "__name__", name) == name


def test_every_error_is_public():
    """Whoever can meet an error can also name it."""
    classes = {
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.CellforkError)
    }
    assert classes <= set(PUBLIC)


def test_unknown_name_is_an_attribute_error():
    """A misspelt name fails as in any other module."""
    with pytest.raises(AttributeError, match="module 'cellfork' has no attribute 'Sandbok'"):
        _ = cellfork.Sandbok


def test_import_loads_nothing_but_the_standard_library():
    """``import cellfork`` works, and stays quick, where only the standard library is installed."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.append({str(SOURCE)!r})\n" + LOADED_BY_IMPORT,
    ]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    roots = {name.partition(".")[0] for name in loaded}
    assert "cellfork" in roots
    assert roots - {"cellfork"} <= sys.stdlib_module_names
    assert [name for name in loaded if name.startswith("cellfork.")] == []


def test_version_is_the_distributions():
    """The package and its metadata tell the same version."""
    metadata = (SOURCE.parent / "pyproject.toml").read_text()
    assert f'\nversion = "{cellfork.__version__}"\n' in metadata
