"""The README's way for programs written for E2B is walked as it is printed, with E2B's own package."""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.parity.environments import python_environment

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
SECTION = README[README.index("## Programs written for E2B") :].split("\n## ")[0]
PORT = 8080
"""The port that the README prints; a free one takes its place, and nothing else is changed."""


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)[number]


def commands() -> list[str]:
    return [line.removeprefix("$ ") for line in block("console").splitlines() if line.startswith("$ ")]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(script: str, directory: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {script}"],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def wait_for(url: str, process: "subprocess.Popen[str]", log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz") as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_official_client_plots_against_the_server_of_the_readme(tmp_path: Path) -> None:
    """The printed commands install both side by side and start a server; the program finds it and draws its chart."""
    port = str(free_port())
    install, key, serve, variables, run = (command.replace(str(PORT), port) for command in commands())
    pip, verb, released, *others = shlex.split(install)
    assert (pip, verb) == ("pip", "install")
    here = released.replace("cellfork", str(ROOT), 1)  # what is under test, in the place of what is released
    try:
        python = python_environment("quick-start", ["--editable", here, *others])
    except subprocess.CalledProcessError:
        pytest.skip("the packages cannot be installed: no package index answers")
    assert serve == f"cellfork serve --port {port} &"
    assert run == "python plot.py"
    (tmp_path / "plot.py").write_text(block("python"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CELLFORK_", "E2B_"))}
    environment = kept | {
        "PATH": f"{python.parent}:{kept['PATH']}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    exported = f"{key}\n{variables}\n"
    told = subprocess.run(
        [
            "bash",
            "-euc",
            f"{exported}{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'",
        ],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    environment = json.loads(told.stdout)
    with running(serve.removesuffix(" &"), tmp_path, environment) as process:
        wait_for(f"http://127.0.0.1:{port}", process, tmp_path / "server.log")
        done = subprocess.run(
            ["bash", "-euc", run], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr + (tmp_path / "server.log").read_text()
    assert done.stdout == block("text")
    assert (tmp_path / "sales.png").read_bytes().startswith(b"\x89PNG")
