"""``cellfork config`` and ``cellfork env``: what holds, where it comes from, what clients need."""

import json
import shlex
from pathlib import Path

import pytest
import uvloop

from cellfork.cli.exits import Exit
from cellfork.server.settings import OPTIONS
from tests.cli.conftest import Invoke

KEY = "e2b_" + 40 * "c"


@pytest.fixture(scope="module", autouse=True)
def first_loop() -> None:
    """libuv opens a pipe for signals with its first loop, and keeps it as long as the process lives: that is no leak."""
    uvloop.new_event_loop().close()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no variable of this machine's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in OPTIONS:
        monkeypatch.delenv(f"CELLFORK_{name.upper()}", raising=False)


def test_config_show_tells_where_values_come_from(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    """Every setting is shown with its value and its source; keys are not shown."""
    Path("cellfork.toml").write_text("port = 1234\n[templates.lean]\npreload = []\n")
    monkeypatch.setenv("CELLFORK_API_KEY", KEY)
    outcome = invoke("config", "show", "--json")
    told = json.loads(outcome.out)
    assert list(told) == list(OPTIONS)
    assert told["port"] == {"value": 1234, "from": "cellfork.toml"}
    assert told["api_key"] == {"value": "(set)", "from": "environment CELLFORK_API_KEY"}
    assert told["host"]["from"] == "default"
    table = invoke("config", "show").out
    assert "1234" in table
    assert KEY not in outcome.out + table


def test_a_mistake_is_wrong_usage(invoke: Invoke):
    """A file with a mistake is an error that names it, not a bug of ours."""
    Path("cellfork.toml").write_text("prot = 1234\n")
    for command in (["config", "show"], ["env"], ["serve", "--port", "0"]):
        outcome = invoke(*command)
        assert outcome.code == Exit.USAGE
        assert "prot" in outcome.err
        assert "Traceback" not in outcome.err


def exported(text: str) -> dict[str, str]:
    command, *words = shlex.split(text)
    assert command == "export"
    return dict(word.split("=", 1) for word in words)


def test_env_prints_what_clients_need(invoke: Invoke, monkeypatch: pytest.MonkeyPatch):
    """The exports can be evaluated by a shell, whatever is in them."""
    monkeypatch.setenv("CELLFORK_API_KEY", f"alice:{KEY}")
    monkeypatch.setenv("CELLFORK_HOST", "0.0.0.0")
    monkeypatch.setenv("CELLFORK_PORT", "9999")
    url = "http://127.0.0.1:9999"
    e2b = exported(invoke("env", "--for", "e2b").out)
    assert e2b == {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": KEY}
    assert exported(invoke("env", "--for", "cellfork").out) == {"CELLFORK_URL": url, "CELLFORK_API_KEY": KEY}
    monkeypatch.setenv("CELLFORK_API_KEY", "it's;$(reboot)#secret")
    assert exported(invoke("env").out)["E2B_API_KEY"] == "it's;$(reboot)#secret"
    assert exported(invoke("env").out)["E2B_VALIDATE_API_KEY"] == "false"


def test_env_without_a_key_says_why(invoke: Invoke):
    """The key that a server made is not known to anybody but who read it: that is said, and nothing is printed to evaluate."""
    outcome = invoke("env")
    assert outcome.code == Exit.USAGE
    assert "CELLFORK_API_KEY" in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--anonymous", "--host", "0.0.0.0"],
        ["--isolation", "none", "--host", "0.0.0.0"],
        ["--api-key", "short"],
        ["--tls-cert", "cert.pem"],
        ["--tls-cert", "cert.pem", "--tls-key", "key.pem"],
        ["--cors-origins", "*"],
        ["--node-token", "TOO LONG"],
        ["--host", "192.0.2.1"],
        ["--host", "no such host.invalid"],
        ["--api-key-file", "/nowhere"],
    ],
)
def test_settings_that_let_strangers_in_are_refused(invoke: Invoke, arguments: list[str]):
    """The server does not start with settings that it cannot, or must not, keep."""
    outcome = invoke("serve", "--port", "0", "--state", "none", "--no-warm", *arguments)
    assert outcome.code == Exit.USAGE
    assert "Traceback" not in outcome.err
