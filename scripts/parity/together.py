"""Run the cases of tests/parity/together with Together's own package, each generation in an environment of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.parity.environments import BUILD, python_environment
from scripts.parity.serving import KEY, ROOT, Served, run, serve

CASES = ROOT / "tests/parity/together/python"
VERSIONS = {"together-new": "together-sandbox==4.1.1", "together-old": "together-sandbox==4.0.3"}
"""The newest package that was looked at, and the oldest that is promised to work."""
DEFAULT_SNAPSHOT = "00000000-0000-0000-0000-000000000001"
TIMEOUT = 300.0


def variables(served: Served) -> dict[str, str]:
    """Return what leads a client to the server."""
    return {
        "TOGETHER_BASE_URL": f"{served.url}/together",
        "TOGETHER_API_KEY": KEY,
        "TOGETHER_SNAPSHOT_ID": DEFAULT_SNAPSHOT,
    }


def main() -> int:
    """Run the cases with every version; return 1 where one failed."""
    failed = False
    for name, package in VERSIONS.items():
        python = python_environment(name, [package])
        logs = BUILD / "logs" / name
        with serve(logs) as served:
            code = run([str(python), str(CASES)], logs, variables(served), logs / "client.log", TIMEOUT)
        print((logs / "client.log").read_text(), flush=True)
        failed |= code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
