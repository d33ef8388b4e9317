"""The files in deploy/: what can be checked without the programs that read them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cellfork.server.settings import OPTIONS, variable

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = ("cellfork.service", "Dockerfile", "compose.yaml")


@pytest.mark.parametrize("name", FILES)
def test_variables_are_settings(name: str):
    """Every variable that a file sets is one that the server reads."""
    found = set(re.findall(r"^(?!#).*?\b(CELLFORK_[A-Z_]+)", (DEPLOY / name).read_text(), re.MULTILINE))
    assert found
    assert found <= {variable(setting) for setting in OPTIONS}


def test_sandboxes_outlive_a_restart_of_the_unit():
    """systemd ends the server alone, gives it groups of its own, and takes nothing from it that sandboxes are built with."""
    unit = (DEPLOY / "cellfork.service").read_text()
    lines = [line for line in unit.splitlines() if not line.startswith("#")]
    assert "KillMode=process" in lines
    assert "Delegate=yes" in lines
    refused = (
        "RestrictNamespaces",
        "ProtectProc",
        "ProcSubset",
        "ProtectHostname",
        "PrivateUsers",
        "ProtectControlGroups",
    )
    assert not [
        line for line in lines if line.startswith((*refused, "SystemCallFilter", "MemoryDenyWriteExecute"))
    ]


def test_systemd_understands_the_unit(tmp_path: Path):
    """Nothing in the unit is unknown to systemd, where that is installed."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    unit = tmp_path / "cellfork.service"
    unit.write_text(
        (DEPLOY / unit.name)
        .read_text()
        .replace("/opt/cellfork/bin/cellfork", shutil.which("true") or "/bin/true")
    )
    ended = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    told = [line for line in ended.stderr.splitlines() if unit.name in line]
    assert ended.returncode == 0, ended.stderr
    assert not told


def test_the_container_is_not_privileged():
    """The container gets what isolating takes, by name, and not everything."""
    text = "\n".join(
        line
        for line in (DEPLOY / "compose.yaml").read_text().splitlines()
        if not line.lstrip().startswith("#")
    )
    assert "privileged" not in text
    assert '"127.0.0.1:' in text  # not open to the network unless somebody says so
