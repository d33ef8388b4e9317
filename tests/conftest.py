"""What every test gets: a temporary directory of its process's own, a leak check, skips that are explained."""

import os
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from cellfork.testing.leaks import Snapshot, find_leaks, mark

TEMPORARY = pytest.StashKey[str]()
KNOWN = "known difference"
"""Property of a test (``record_property``) that the summary shows: see tests/parity."""


def pytest_configure(config: pytest.Config) -> None:
    """Give this process (each xdist worker is one) a temporary directory of its own.

    Files left there can then only be this process's.  The path is short: Unix sockets need that.
    """
    directory = tempfile.mkdtemp(prefix="cf-test-")
    os.environ.setdefault("CELLFORK_PREFORK", "0")  # what is made ahead would look like a leak
    config.stash[TEMPORARY] = directory
    mark()
    os.environ["TMPDIR"] = tempfile.tempdir = directory


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the temporary directory of this process, however deep the trees are that tests made there."""
    subprocess.run(["rm", "-rf", "--", config.stash[TEMPORARY]], check=False)


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio, which the engine is written for."""
    return "asyncio"


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, descriptor, mount, cgroup or temporary file behind."""
    if request.node.get_closest_marker("leaks"):
        yield
        return
    before = Snapshot.take()
    yield
    leaks = find_leaks(before)
    if leaks:
        pytest.fail(f"left behind:\n{leaks}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what is no failure and must not be passed over in silence: skipped tests, known differences."""
    _print_section(
        terminalreporter, "skipped, and why", [_skipped(r) for r in terminalreporter.getreports("skipped")]
    )
    told = [
        line
        for r in terminalreporter.getreports("passed")
        for name, line in r.user_properties
        if name == KNOWN
    ]
    _print_section(terminalreporter, "known differences from Jupyter", sorted(map(str, set(told))))


def _print_section(reporter: pytest.TerminalReporter, title: str, lines: list[str]) -> None:
    if lines:
        reporter.section(title)
    for line in lines:
        reporter.line(line)


def _skipped(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"{report.nodeid}: {reason.removeprefix('Skipped: ')}"
