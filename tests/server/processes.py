"""Servers in processes of their own, as users run them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.server.conftest import KEY

SECONDS = 60


@contextmanager
def running(
    home: Path, *arguments: str, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run ``cellfork …`` until the block ends; give the process, and what it told with ``--json`` when it listened.

    What it logs is in the file ``log`` of its home; an empty variable of ``environ`` is one that it does not have.
    """
    command = [sys.executable, "-m", "cellfork.cli.main", *arguments, "--port", "0", "--json"]
    env = {name: value for name, value in {**os.environ, "HOME": str(home), **environ}.items() if value}
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(
            command, env=env, cwd=home, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (home / "log").read_text()
            yield process, json.loads(line)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(SECONDS)


class Served:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], told: dict[str, Any]) -> None:
        self.process = process
        self.told = told

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.told["port"], timeout=SECONDS)

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, bytes]:
        connection = self.connect()
        try:
            told = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {"content-type": "application/json"} | told)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def create(self, **fields: Any) -> str:
        status, body = self.ask(
            "POST", "/v2/sandboxes", json.dumps({"templateID": "base", **fields}), x_api_key=KEY
        )
        assert status == 201, body
        id: str = json.loads(body)["sandboxID"]
        return id

    def run(self, id: str, code: str, token: dict[str, str]) -> bytes:
        headers = {"e2b_sandbox_id": id, "e2b_sandbox_port": "49999", **token}
        status, body = self.ask("POST", "/execute", json.dumps({"code": code}), **headers)
        assert status == 200, body
        return body

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@contextmanager
def served(home: Path, *arguments: str, keep: bool = False, **environ: str) -> Iterator[Served]:
    """Run ``cellfork serve`` until the block ends; its sandboxes end with it, unless they are to be kept."""
    env = {"XDG_STATE_HOME": str(home / "state"), "CELLFORK_API_KEY": KEY}
    if not keep:
        env["CELLFORK_KILL_ON_EXIT"] = "1"
    with running(home, "serve", "--no-warm", *arguments, environ=env | environ) as (process, told):
        yield Served(process, told)


def token_of(server: Served, id: str) -> dict[str, str]:
    status, body = server.ask("GET", f"/sandboxes/{id}", x_api_key=KEY)
    assert status == 200
    return {"X-Access-Token": json.loads(body)["envdAccessToken"]}
