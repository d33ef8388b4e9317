"""Run the cases of tests/parity/opensandbox with OpenSandbox's own packages, each generation in an environment of its own.

Then LiteLLM, which knows OpenSandbox as a provider, with nothing but configuration; and the JavaScript package where there is
a Node.js that it runs on.  What was printed, and the servers' logs, is in build/parity/logs.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.parity.environments import BUILD, javascript_environment, lacks_node, python_environment
from scripts.parity.serving import KEY, ROOT, Served, run, serve

CASES = ROOT / "tests/parity/opensandbox"
PYTHON: dict[str, Sequence[str]] = {
    "opensandbox-new": ("opensandbox==1.1.1", "opensandbox-code-interpreter==1.1.1"),
    "opensandbox-old": ("opensandbox==0.1.16", "opensandbox-code-interpreter==0.1.2"),
}
"""The newest packages that were looked at, and the first line of releases."""
LITELLM = ("litellm>=1.106,<2",)
"""The newest one that can be installed; 1.106 knows OpenSandbox."""
JAVASCRIPT = ("@alibaba-group/opensandbox@0.1.11",)
NODE = 20
"""The oldest Node.js of the JavaScript package."""
WAYS: Sequence[Sequence[str]] = (
    ("--flavour", "async"),
    ("--flavour", "sync"),
    ("--flavour", "async", "--proxy"),
    ("--flavour", "sync", "--proxy"),
)
TIMEOUT = 600.0


def variables(served: Served, volume: str) -> dict[str, str]:
    """Return what leads a client to the server."""
    return {
        "OPEN_SANDBOX_DOMAIN": served.url.partition("://")[2],
        "OPEN_SANDBOX_API_BASE": f"{served.url}/v1",
        "OPEN_SANDBOX_API_KEY": KEY,
        "PARITY_HOST_VOLUME": volume,
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",  # it would look for prices of models in the internet
    }


def commands(chosen: str) -> list[tuple[str, list[str]]]:
    """Return what is to be run: a title and a command each."""
    found: list[tuple[str, list[str]]] = []
    for name, packages in PYTHON.items():
        if chosen in name:
            python = str(python_environment(name, packages))
            found += [(f"{name} {' '.join(way[1:])}", [python, str(CASES / "python"), *way]) for way in WAYS]
    if chosen in "litellm":
        python = str(python_environment("litellm", LITELLM))
        found.append(("litellm", [python, str(CASES / "litellm_case.py")]))
    lacking = lacks_node(NODE)
    if chosen in "opensandbox-js" and lacking:
        print(f"opensandbox-js skipped: {lacking}", flush=True)
    elif chosen in "opensandbox-js":
        place = javascript_environment("opensandbox-js", JAVASCRIPT)
        found.append(("opensandbox-js", ["node", str(CASES / "javascript/main.mjs"), str(place)]))
    return found


def main() -> int:
    """Run the cases with everything; return 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the name of an environment")
    failed = []
    with tempfile.TemporaryDirectory(prefix="cellfork-parity-") as volume:
        Path(volume).chmod(0o777)  # sandboxes are neither its owner nor of its group
        for title, command in commands(parser.parse_args().only):
            logs = BUILD / "logs" / title.replace(" ", "-")
            with serve(logs, "--host-volumes", volume) as served:
                code = run(command, logs, variables(served, volume), logs / "client.log", TIMEOUT)
            lines = (logs / "client.log").read_text().splitlines()
            shown = lines if code else lines[-1:]
            print(f"{title}:", *shown, sep="\n  ", flush=True)
            failed += [title] if code else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
