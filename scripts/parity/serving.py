"""A server for somebody else's clients: `cellfork serve` on a free port, with a state of its own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEY = "e2b_" + 40 * "0"
"""The key of the servers made here; its form is the one that older clients insist on."""
DOMAIN = "sandboxes.localhost"
"""Names under it lead to this machine, for clients that resolve names themselves (RFC 6761)."""
STOPPING = 30.0
"""Seconds that a server gets to end."""


@dataclass(frozen=True)
class Served:
    """A running server: its address, its port, its log, and the authority of its certificate."""

    url: str
    port: int
    log: Path
    authority: Path | None = None

    @property
    def by_url(self) -> Mapping[str, str]:
        """The environment of a client that finds the server by two URLs."""
        return {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_API_KEY": KEY}

    @property
    def by_domain(self) -> Mapping[str, str]:
        """The environment of a client that finds the server by names, over TLS."""
        trusted = str(self.authority)
        return {
            "E2B_DOMAIN": f"{DOMAIN}:{self.port}",
            "E2B_API_KEY": KEY,
            "SSL_CERT_FILE": trusted,
            "NODE_EXTRA_CA_CERTS": trusted,
        }

    @property
    def by_debug(self) -> Mapping[str, str]:
        """The environment of a client that finds one sandbox at fixed ports."""
        return {"E2B_DEBUG": "true", "E2B_API_KEY": KEY}


@contextlib.contextmanager
def serve(directory: Path, *flags: str) -> Iterator[Served]:
    """Run a server for the length of the block; what it logs stays in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "server.log"
    with tempfile.TemporaryDirectory(prefix="cellfork-parity-") as state, log.open("w") as errors:
        command = _cellfork("serve", "--json", "--port", "0", *flags)
        command += ["--api-key", KEY, "--state", state, "--kill-on-exit", "--log-format", "json"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment()
        )
        try:
            yield _told(process, log)
        finally:
            _stop(process)


@contextlib.contextmanager
def serve_names(directory: Path, *flags: str) -> Iterator[Served]:
    """Run a server with TLS for every name under :data:`DOMAIN`."""
    made = _cellfork("cert", DOMAIN, "--out", str(directory / "tls"), "--json")
    paths = json.loads(subprocess.run(made, check=True, capture_output=True, env=_environment()).stdout)
    port = _free_port()  # the names hold it, so it has to be known before
    names = (
        "--port",
        str(port),
        "--domain",
        f"{DOMAIN}:{port}",
        "--tls-cert",
        paths["cert"],
        "--tls-key",
        paths["key"],
    )
    with serve(directory, *names, *flags) as served:
        yield replace(served, authority=Path(paths["ca"]))


def _cellfork(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cellfork.cli.main", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _told(process: "subprocess.Popen[str]", log: Path) -> Served:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise SystemExit(f"the server did not start:\n{log.read_text()[-4000:]}")
    told = json.loads(line)
    return Served(told["url"], told["port"], log)


def _stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOPPING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SystemExit("the server did not end") from None
    if code != 0:
        print(f"the server ended with exit code {code}", file=sys.stderr)


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this environment without anything of E2B's or cellfork's, and with what a client needs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("E2B_", "CELLFORK_", "PYTHON"))
    }
    return {**kept, **more}


def run(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path, timeout: float
) -> int:
    """Run a client; its output goes to a file and to stdout.  Returns its exit code; -1 where it took too long."""
    with log.open("w") as output:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env=clean_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            output.write(f"\nended after {timeout} s\n")
            return -1
    return done.returncode
