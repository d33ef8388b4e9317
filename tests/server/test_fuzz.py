"""What the specifications allow, and what they do not, brings no failure of the server's own (in short; `make fuzz-http` is long)."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_http.py"


@pytest.mark.slow
def test_no_request_is_a_failure_of_the_server(tmp_path: Path):
    """Every operation, with every kind of wrong value: statuses and bodies are those of the specification, none is 5xx."""
    command = [sys.executable, str(SCRIPT), "--examples", "1", "--phases", "coverage", "--seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    assert "No issues found" in ended.stdout
