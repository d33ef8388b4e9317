"""Sandboxes to attack, ways to ask questions inside, and the account of the catalogue at the end of a run."""

import json
import os
import platform
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfork import CommandFailed, Limits, Sandbox
from cellfork.engine.values import CommandResult
from tests.security.catalogue import NOT_TESTED, ROWS

Ask = Callable[[str], Any]

LIMITS = Limits(memory="256M", cpu=1.0, pids=40, disk="32M", inodes=2000)
ROW = "catalogue row"
SUMMARY = "CELLFORK_SECURITY_SUMMARY"
"""Names a file; the account of the run is written there as JSON."""


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(limits=LIMITS) as sandbox:
        yield sandbox


@pytest.fixture
def neighbour() -> Iterator[Sandbox]:
    with Sandbox.create(limits=LIMITS) as sandbox:
        yield sandbox


def ask(sandbox: Sandbox, code: str, timeout: float = 30) -> Any:
    """Run ``code``, which assigns ``answer``, and return the answer as JSON carries it."""
    program = f"{textwrap.dedent(code)}\nimport json\nprint('ANSWER' + json.dumps(answer))"
    execution = sandbox.run_code(program, timeout=timeout)
    assert execution.error is None, execution.error
    (line,) = [line for line in "".join(execution.logs.stdout).splitlines() if line.startswith("ANSWER")]
    return json.loads(line.removeprefix("ANSWER"))


def shell(sandbox: Sandbox, script: str, timeout: float = 30) -> CommandResult:
    """Run ``script`` with bash inside; return what came of it, whatever its exit code is."""
    try:
        return sandbox.commands.run(textwrap.dedent(script), timeout=timeout)
    except CommandFailed as failed:
        return CommandResult(failed.stdout, failed.stderr, failed.exit_code, failed.error)


@pytest.fixture(autouse=True)
def _name_rows(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Let the report of a test carry the rows of the catalogue that it stands for."""
    for marker in request.node.iter_markers("row"):
        record_property(ROW, list(marker.args))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which rows hold, which do not, and why the others are not tested; write the same as JSON where asked."""
    account = account_of(terminalreporter)
    if not account:
        return
    verdicts = [found["verdict"] for found in account.values()]
    terminalreporter.section("abuse catalogue")
    terminalreporter.line(
        f"{verdicts.count('holds')} rows hold, {len(verdicts) - verdicts.count('holds')} do not, "
        f"{len(ROWS) - len(verdicts)} of {len(ROWS)} were not tested in this run"
    )
    for id, found in sorted(account.items()):
        if found["verdict"] != "holds":
            terminalreporter.line(f"{id} {found['verdict']}: {ROWS[id]}")
    for reason in sorted(set(NOT_TESTED.values())):
        rows = " ".join(id for id in NOT_TESTED if NOT_TESTED[id] == reason)
        terminalreporter.line(f"not tested: {rows}: {reason}")
    if os.environ.get(SUMMARY):
        Path(os.environ[SUMMARY]).write_text(
            json.dumps(facts_of_run(account), indent=1, ensure_ascii=False) + "\n"
        )


def account_of(reporter: pytest.TerminalReporter) -> dict[str, dict[str, Any]]:
    """Return row → verdict, expected answers and tests, for the rows that this run has touched."""
    account: dict[str, dict[str, Any]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in reporter.getreports(outcome):
            for name, value in getattr(report, "user_properties", ()):
                if name == ROW:
                    _note(account, value, report.nodeid, outcome)
    return account


def _note(account: dict[str, dict[str, Any]], marked: Any, test: str, outcome: str) -> None:
    id, answer = marked
    found = account.setdefault(id, {"verdict": "holds", "answers": [], "tests": []})
    if answer not in found["answers"]:
        found["answers"].append(answer)
    if test not in found["tests"]:
        found["tests"].append(test)
    if outcome in {"failed", "error"}:
        found["verdict"] = "DOES NOT HOLD"
    elif outcome == "skipped" and found["verdict"] == "holds":
        found["verdict"] = "skipped in part"


def facts_of_run(account: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what a reader of the account needs to know of the run."""
    return {
        "user": "root" if os.geteuid() == 0 else "ordinary user",
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "rows": {id: {"tries": ROWS[id], **account[id]} for id in sorted(account)},
        "not_tested": dict(NOT_TESTED),
    }
