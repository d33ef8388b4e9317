"""``cellfork execd``: what it prints, whom it lets in, how it ends."""

import signal
import subprocess
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cellfork.cli.exits import Exit
from tests.cli.conftest import Invoke
from tests.server.processes import SECONDS, running

TOKEN = "your-token"


@pytest.fixture(scope="module", autouse=True)
def first_loop() -> None:
    """libuv opens a pipe for signals with its first loop, and keeps it as long as the process lives: that is no leak."""
    uvloop.new_event_loop().close()


def served(
    home: Path, *arguments: str, **environ: str
) -> AbstractContextManager[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run ``cellfork execd`` until the block ends."""
    return running(home, "execd", *arguments, environ=environ)


def ask(told: dict[str, Any], token: str | None) -> int:
    connection = HTTPConnection("127.0.0.1", told["port"], timeout=SECONDS)
    try:
        connection.request("GET", "/ping", headers={} if token is None else {"X-EXECD-ACCESS-TOKEN": token})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_token_that_was_given(tmp_path: Path) -> None:
    """It is what lets in, is not printed, and a signal ends the process with 0."""
    with served(tmp_path, "--access-token", TOKEN) as (process, told):
        assert told["url"] == f"http://127.0.0.1:{told['port']}"
        assert told["access_token"] is None
        assert told["isolation"] == "namespaces"
        assert (ask(told, TOKEN), ask(told, None), ask(told, "other")) == (200, 401, 401)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == Exit.OK
    assert TOKEN not in (tmp_path / "log").read_text()


def test_a_token_that_is_made(tmp_path: Path) -> None:
    """Without one, one is made and told once; the environment has upstream's variable for it."""
    with served(tmp_path, EXECD_ACCESS_TOKEN="") as (_process, told):
        assert len(told["access_token"]) == 40
        assert (ask(told, told["access_token"]), ask(told, None)) == (200, 401)
    with served(tmp_path, EXECD_ACCESS_TOKEN=TOKEN) as (_process, told):
        assert (ask(told, TOKEN), ask(told, None)) == (200, 401)


def test_without_a_token(tmp_path: Path) -> None:
    """Only where that was asked for."""
    with served(tmp_path, "--anonymous", EXECD_ACCESS_TOKEN="") as (_process, told):
        assert told["access_token"] is None
        assert ask(told, None) == 200


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--anonymous", "--host", "0.0.0.0"), "loopback"),
        (("--anonymous", "--access-token", "x"), "not both"),
        (("--access-token", "a\nb"), "printable"),
        (("--template", "nothing"), "nothing"),
        (("--port", "70000"), "70000"),
        (("--limits", "memory=x"), "limits"),
        (("--internet", "all"), "internet"),
        (("--host", "192.0.2.1"), "192.0.2.1"),
    ],
)
def test_what_cannot_be_served(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], reason: str
) -> None:
    """It is wrong usage, and the message says why."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("EXECD_ACCESS_TOKEN", raising=False)
    outcome = invoke("execd", *arguments)
    assert outcome.code == Exit.USAGE
    assert reason in outcome.err
    assert "Traceback" not in outcome.err
