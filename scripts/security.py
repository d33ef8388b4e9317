"""Run the security tests as this user and, where this is root, as an ordinary user as well.

``--record`` writes the account of both runs to ``docs/security-summary.json``; what follows ``--`` goes to pytest.
"""

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SUMMARY = ROOT / "docs" / "security-summary.json"
TESTS = "tests/security"
VARIABLE = "CELLFORK_SECURITY_SUMMARY"


def main() -> int:
    """Run, record, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {SUMMARY.relative_to(ROOT)}")
    parser.add_argument(
        "--only", choices=("root", "ordinary user"), help="one of the runs, where it is possible"
    )
    parser.add_argument("pytest", nargs="*", default=[], help="arguments for pytest")
    options = parser.parse_args()
    codes, accounts = [], {}
    with tempfile.TemporaryDirectory(prefix="cf-security-") as directory:
        Path(directory).chmod(0o777)  # both users write their account here
        for name, run in runs().items():
            if options.only not in {None, name}:
                continue
            account = Path(directory) / f"{name}.json"
            print(f"=== {TESTS} as {name}", flush=True)
            codes.append(run(options.pytest, {VARIABLE: str(account)}))
            if account.exists():
                accounts[name] = json.loads(account.read_text())
    if options.record and not any(codes):
        SUMMARY.write_text(json.dumps(summary(accounts), indent=1, ensure_ascii=False) + "\n")
        print(f"wrote {SUMMARY.relative_to(ROOT)}")
    return max(codes, default=0)


Run = Callable[[list[str], dict[str, str]], int]


def runs() -> dict[str, Run]:
    """Return name of user → how to run the tests as that user."""
    if os.geteuid() != 0:
        return {"ordinary user": run_here}
    sys.path.insert(0, str(ROOT))
    from tests.ordinary import possible

    reason = possible()
    if reason:
        print(f"not run as an ordinary user: {reason}")
        return {"root": run_here}
    return {"root": run_here, "ordinary user": run_as_ordinary_user}


def run_here(arguments: list[str], environ: dict[str, str]) -> int:
    """Run the tests as this user."""
    argv = [sys.executable, "-m", "pytest", TESTS, *arguments]
    return subprocess.run(argv, cwd=ROOT, env={**os.environ, **environ}, check=False).returncode


def run_as_ordinary_user(arguments: list[str], environ: dict[str, str]) -> int:
    """Run the tests as a user made for it."""
    from tests.ordinary import ordinary_user

    with ordinary_user() as user:
        argv = [user.python, "-m", "pytest", TESTS, "-p", "no:cacheprovider", *arguments]
        return user.run(argv, env=environ).returncode


def summary(accounts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the account of all runs: the rows, what was expected, and what held for whom."""
    any_run = next(iter(accounts.values()))
    rows: dict[str, dict[str, Any]] = {}
    for user, account in accounts.items():
        for id, found in account["rows"].items():
            row = rows.setdefault(
                id, {"tries": found["tries"], "must_answer": found["answers"], "verdict": {}}
            )
            row["verdict"][user] = f"{found['verdict']} ({len(found['tests'])} tests)"
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        **{name: any_run[name] for name in ("kernel", "machine", "python")},
        "rows_tested": len(rows),
        "rows": dict(sorted(rows.items())),
        "not_tested": any_run["not_tested"],
    }


if __name__ == "__main__":
    sys.exit(main())
