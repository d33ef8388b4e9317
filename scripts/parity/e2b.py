"""Run the cases of tests/parity/e2b with E2B's own packages, each generation in an environment of its own.

Environments are made under build/parity, from PyPI and npm, and kept until their packages change.  Every run
gets a server of its own, which its client finds by two URLs, by names under a domain over TLS, or by the fixed
ports of E2B_DEBUG.  What a run printed, and its server, is in build/parity/logs.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.parity.environments import BUILD, lacks_node
from scripts.parity.serving import ROOT, Served, run, serve, serve_names
from tests.parity.e2b.environments import ENVIRONMENTS, Environment

CASES = ROOT / "tests/parity/e2b"
TIMEOUT = 900.0
"""Seconds that one run may take."""

NODE = 20
"""The oldest Node.js of E2B's packages."""

SERVERS: dict[str, Callable[[Path], AbstractContextManager[Served]]] = {
    "url": serve,
    "domain": serve_names,
    "debug": lambda directory: serve(directory, "--e2b-debug"),
}


def command(environment: Environment, place: Path, mode: str, flavour: str, report: Path) -> list[str]:
    """Return how the cases are run."""
    options = ["--mode", mode, "--report", str(report)]
    if environment.is_python:
        return [str(place), str(CASES / "python"), "--flavour", flavour, *options]
    return ["node", str(CASES / "javascript/main.mjs"), str(place), *options]


def variables(served: Served, mode: str) -> dict[str, str]:
    """Return what leads a client to the server in a mode."""
    return dict({"url": served.by_url, "domain": served.by_domain, "debug": served.by_debug}[mode])


def run_one(environment: Environment, place: Path, kind: str) -> dict[str, Any]:
    """Run the cases once; returns the report, of one failure where there is none."""
    mode, _, flavour = kind.partition("-")
    logs = BUILD / "logs" / f"{environment.name}-{kind}"
    logs.mkdir(parents=True, exist_ok=True)
    report = logs / "report.json"
    report.unlink(missing_ok=True)
    with SERVERS[mode](logs) as served:
        arguments = command(environment, place, mode, flavour, report)
        code = run(arguments, logs, variables(served, mode), logs / "client.log", TIMEOUT)
    if not report.exists():
        tail = (logs / "client.log").read_text()[-3000:]
        outcome = {"case": "the run", "outcome": "failed", "detail": f"exit code {code}\n{tail}"}
        return {"versions": {}, "outcomes": [outcome]}
    return dict(json.loads(report.read_text()))


def told(report: dict[str, Any], title: str) -> Iterator[str]:
    """Tell one report: a line, and more for each case that failed or was skipped."""
    counts = Counter(each["outcome"] for each in report["outcomes"])
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    yield f"{title:28}{counts['passed']:4} passed {counts['failed']:3} failed {counts['skipped']:3} skipped   {versions}"
    for each in report["outcomes"]:
        if each["outcome"] != "passed":
            yield f"  {each['outcome']} {each['case']}: {each['detail']}"


def main() -> int:
    """Run what was asked for; returns 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "environments", nargs="*", metavar="ENVIRONMENT", help=f"of {', '.join(ENVIRONMENTS)} (default: all)"
    )
    parser.add_argument(
        "--newest", action="store_true", help="with the newest packages, where a generation goes on"
    )
    parser.add_argument("--only", metavar="RUN", help="one way of running, such as url-async")
    arguments = parser.parse_args()
    failed = False
    for name in arguments.environments or ENVIRONMENTS:
        environment = ENVIRONMENTS[name]
        lacking = "" if environment.is_python else lacks_node(NODE)
        if lacking:
            print(f"{name:28}skipped: {lacking}")
            continue
        place = environment.make(newest=arguments.newest)
        for kind in environment.runs:
            if arguments.only in {None, kind}:
                report = run_one(environment, place, kind)
                print("\n".join(told(report, f"{name} {kind}")), flush=True)
                failed |= any(each["outcome"] == "failed" for each in report["outcomes"])
    return 1 if failed else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
