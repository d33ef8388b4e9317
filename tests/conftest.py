"""What every test gets: a temporary directory of its process's own, a leak check, skips that are explained."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from cellfork.testing.leaks import Snapshot, find_leaks

TEMPORARY = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this process (each xdist worker is one) a temporary directory of its own.

    Files left there can then only be this process's.  The path is short: Unix sockets need that.
    """
    directory = tempfile.mkdtemp(prefix="cf-test-")
    config.stash[TEMPORARY] = directory
    os.environ["TMPDIR"] = tempfile.tempdir = directory


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the temporary directory of this process."""
    shutil.rmtree(config.stash.get(TEMPORARY, ""), ignore_errors=True)


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
    """Print every skipped test with its reason: none is skipped in silence."""
    skipped = terminalreporter.getreports("skipped")
    if not skipped:
        return
    terminalreporter.section("skipped, and why")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
