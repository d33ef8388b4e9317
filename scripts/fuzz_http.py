"""Send what the served specifications allow, and what they do not, to a server: no answer may be an error of ours.

The server is real and so are its sockets; sandboxes are fakes, so that thousands can be created.  schemathesis makes
the requests from ``/openapi.json`` and those of the dialects as they are served, follows ids from one answer into the
next request, and checks that statuses and types are those of the specification.  What the server
logged as its own failure is an error as well, whatever the client saw.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from cellfork.engine.engine import Engine
from cellfork.runtimes.base import Runtime
from cellfork.server.app import create_app
from cellfork.server.logs import make_logger
from cellfork.server.serving import serving
from cellfork.server.settings import Settings
from cellfork.testing.fakes import FakeRuntime

KEY = "e2b_" + 40 * "a"
SPECIFICATIONS = ("/openapi.json", "/openapi/e2b.json", "/openapi/opensandbox.json")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
"""``ignored_auth`` is not among them: it cannot take away a header that every request is given.  What is done without a key
is tested by row H10 of the abuse catalogue, for every operation."""


class Failures:
    """Keeps what the server logs as a failure of its own."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def msg(self, line: str) -> None:
        """Look at one line of the log."""
        if json.loads(line).get("level") in {"error", "critical"}:
            self.found.append(line)

    debug = info = warning = error = critical = msg


@contextlib.asynccontextmanager
async def served(failures: Failures) -> AsyncIterator[str]:
    """Serve with fake sandboxes; yield the address."""
    runtimes: dict[str, Runtime] = {"fake": FakeRuntime()}
    engine = Engine(runtimes)
    with tempfile.TemporaryDirectory() as state:
        settings = Settings(
            port=0,
            api_key=(KEY,),
            isolation="fake",
            state=Path(state),
            max_sandboxes=200,
            drain=1.0,
            body_timeout=5.0,
        )
        logger: Any = make_logger("info", "json", failures)  # type: ignore[arg-type]  # it keeps lines, and writes none
        try:
            async with serving(create_app(settings, engine, logger)) as url:
                yield url
        finally:
            await engine.aclose()


async def attack(url: str, specification: str, arguments: argparse.Namespace) -> int:
    """Run schemathesis against one specification; return its exit code."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", url + specification, "--url", url,
        "--checks", ",".join(CHECKS), "--header", f"X-API-Key: {KEY}", "--header", f"OPEN-SANDBOX-API-KEY: {KEY}", "--max-examples", str(arguments.examples), "--phases", arguments.phases,
        "--request-timeout", "20", "--suppress-health-check", "all", "--warnings", "off", "--no-color",
    ]  # fmt: skip
    command += ["--max-time", str(arguments.seconds)] if arguments.seconds else []
    command += (
        ["--seed", str(arguments.seed), "--generation-deterministic"] if arguments.seed is not None else []
    )
    with tempfile.TemporaryDirectory() as scratch:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=scratch, env={**os.environ, "COLUMNS": "120"}
        )
        return await process.wait()


async def run(arguments: argparse.Namespace) -> int:
    """Fuzz every specification; return 0 where nothing was found."""
    failures, codes = Failures(), []
    async with served(failures) as url:
        for specification in SPECIFICATIONS:
            print(f"--- {specification}", flush=True)
            codes.append(await attack(url, specification, arguments))
    for line in failures.found[:5]:
        print(line, file=sys.stderr)
    print(f"{len(failures.found)} failures of the server's own in its log")
    return 1 if any(codes) or failures.found else 0


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="requests of each kind for each operation")
    parser.add_argument(
        "--phases", default="examples,coverage,fuzzing,stateful", help="phases of schemathesis"
    )
    parser.add_argument(
        "--seconds", type=int, help="time for each specification (default: as long as it takes)"
    )
    parser.add_argument("--seed", type=int, help="makes the same requests every time")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
