"""Run the cases with the packages of this environment and report as JSON.

``E2B_API_URL``, ``E2B_SANDBOX_URL`` and ``E2B_API_KEY`` (or ``E2B_DOMAIN``, or ``E2B_DEBUG``) tell where.
"""

import argparse
import asyncio
import fnmatch
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cases.code
import cases.commands
import cases.files
import cases.git
import cases.network
import cases.pausing
import cases.sandbox  # noqa: F401
from harness import CASES, Client, run, untouched


def main() -> int:
    """Run what was asked for; returns 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=["sync", "async"], default="sync")
    parser.add_argument("--mode", choices=["url", "domain", "debug"], default="url")
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time")
    parser.add_argument("--only", default="*", help="pattern of the names of cases")
    parser.add_argument("--report", type=Path, help="write the outcomes to this file")
    arguments = parser.parse_args()
    client = Client(arguments.flavour, arguments.mode)
    chosen = [case for case in CASES if fnmatch.fnmatch(case.name, arguments.only)]
    outcomes = asyncio.run(run(client, chosen, arguments.jobs))
    if arguments.only == "*" and arguments.mode == "url":
        outcomes.append(untouched(client))
    for outcome in outcomes:
        if outcome.outcome != "passed":
            print(f"{outcome.outcome:8}{outcome.case}: {outcome.detail}", flush=True)
    counts = {
        kind: sum(each.outcome == kind for each in outcomes) for kind in ("passed", "failed", "skipped")
    }
    print(" ".join(f"{count} {kind}" for kind, count in counts.items()), flush=True)
    if arguments.report:
        report = {
            "client": "python",
            "versions": client.versions,
            "flavour": arguments.flavour,
            "mode": arguments.mode,
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }
        arguments.report.write_text(json.dumps(report, indent=1))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # calls of the synchronous SDK that hang keep their threads
