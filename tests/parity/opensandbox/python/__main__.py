"""Every public method of OpenSandbox's own packages, against a server; run in an environment that has the packages.

Usage: ``python tests/parity/opensandbox/python --flavour async --proxy``, with ``OPEN_SANDBOX_DOMAIN`` and ``OPEN_SANDBOX_API_KEY``;
``PARITY_HOST_VOLUME`` is a directory that the server lets sandboxes mount.  Prints a line for each case, and exits with 1 where one
failed or a public method was never called.
"""

import argparse
import asyncio
import importlib.metadata
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cases  # noqa: F401 - it adds the cases
from harness import CASES, Client, called, note_calls, public, run

NOT_CALLED = {
    "EgressAdapter.create": "writes a credential vault, which is not available; see the case no_vault",
    "EgressAdapter.patch": "the same",
    "EgressAdapter.delete": "the same",
    "EgressAdapter.list_credentials": "the same",
    "EgressAdapter.get_credential": "the same",
    "EgressAdapter.list_bindings": "the same",
    "EgressAdapter.get_binding": "the same",
    "SandboxManager.create_template": "builds an image; see the case no_templates",
    "SandboxManager.get_template": "the same",
    "SandboxManager.delete_template": "the same",
}
"""Public methods that no case calls, and why."""


def main() -> int:
    """Run the cases; return 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=["sync", "async"], default="async")
    parser.add_argument("--proxy", action="store_true", help="let the packages use the server as a proxy")
    parser.add_argument("--only", default="", help="part of the names of cases")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # what a package logs of an error it raises as well
    note_calls()
    client = Client(arguments.flavour, arguments.proxy)
    failed = asyncio.run(run(client, arguments.only))
    missing = sorted(public() - called - NOT_CALLED.keys())
    if missing and client.is_async and not arguments.only:
        failed += 1
        print(f"FAILED: never called: {', '.join(missing)}")
    names = ("opensandbox", "opensandbox-code-interpreter")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    way = "through the server" if client.proxy else "directly"
    print(f"{len(CASES) - failed} of {len(CASES)} cases passed ({client.flavour}, {way}; {versions})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
