"""``cellfork run`` with real sandboxes: what the fake one cannot show."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cellfork.cli.exits import Exit
from tests.cli.conftest import Invoke

COMMAND = [sys.executable, "-m", "cellfork.cli.main"]


def test_a_value_output_and_an_error(invoke: Invoke) -> None:
    """Everything that one run can produce arrives in one JSON object."""
    outcome = invoke("run", "--json", "-c", "import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 / 0")
    run = json.loads(outcome.out)
    assert outcome.code == 1
    assert list(run) == [
        "results", "logs", "error", "execution_count", "artifacts", "artifacts_truncated", "accounting", "isolation",
    ]  # fmt: skip
    assert "".join(run["logs"]["stdout"]) == "out\n"
    assert "".join(run["logs"]["stderr"]) == "err\n"
    assert run["error"]["name"] == "ZeroDivisionError"
    assert run["execution_count"] == 1
    assert run["isolation"] == "namespaces"
    assert run["accounting"]["wall_time"] > 0


def test_cells_share_a_context(invoke: Invoke, tmp_path: Path) -> None:
    """What one cell defines, the next one finds."""
    script = tmp_path / "cells.py"
    script.write_text("# %%\na = 20\n# %%\na + 1\n")
    outcome = invoke("run", str(script), "--json")
    assert [result["text"] for result in json.loads(outcome.out)["results"]] == ["21"]


def test_files_and_variables_arrive(invoke: Invoke, tmp_path: Path) -> None:
    """Copied files are in the working directory; variables are set, quotes and newlines included."""
    (tmp_path / "data.txt").write_text("content")
    code = "import os\nprint(open('data.txt').read(), repr(os.environ['ODD']))"
    outcome = invoke("run", "-c", code, "--file", str(tmp_path / "data.txt"), "-e", 'ODD=it\'s "so"\n$HOME')
    assert outcome.out == "content " + repr('it\'s "so"\n$HOME') + "\n"


def test_images_charts_and_data_frames_are_saved(invoke: Invoke, tmp_path: Path) -> None:
    """A figure is saved as PNG with its chart's description, a data frame as CSV."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    code = (
        "import matplotlib.pyplot as plt, pandas as pd\n"
        "plt.bar(['a', 'b'], [1, 2]); plt.show()\n"
        "pd.DataFrame({'x': [1, 2]})"
    )
    assert invoke("run", "-c", code, "--save", str(tmp_path)).code == 0
    saved = {path.name: path for path in tmp_path.iterdir()}
    assert saved["cell-1-result-1.png"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(saved["cell-1-result-1.chart.json"].read_text())["type"] == "bar"
    assert saved["cell-1-result-2.csv"].read_text().split() == ["x", "1", "2"]


def test_files_that_the_code_made_are_saved(invoke: Invoke, tmp_path: Path) -> None:
    """``--save`` brings out the files that a cell wrote."""
    code = "import os\nos.mkdir('out')\nopen('out/r.csv', 'w').write('a,b')\nopen('.secret', 'w').write('x')"
    assert invoke("run", "-c", code, "--save", str(tmp_path)).code == 0
    saved = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert saved == [Path("cell-1-files/out/r.csv")]
    assert (tmp_path / saved[0]).read_text() == "a,b"


def test_a_model_sees_all_of_it(invoke: Invoke) -> None:
    """``--llm`` shows output, stderr and the error of a real run."""
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nundefined"
    shown = invoke("run", "--llm", "-c", code).out
    assert all(
        part in shown for part in ("out", "[stderr] err", "NameError: name 'undefined' is not defined")
    )
    assert "\x1b" not in shown


def test_a_timeout(invoke: Invoke) -> None:
    """Code that runs too long is stopped, what it printed is there, the exit code is 124."""
    outcome = invoke("run", "-c", "import time\nprint('tick')\ntime.sleep(60)", "--timeout", "500ms")
    assert outcome.code == Exit.TIMEOUT
    assert outcome.out == "tick\n"
    assert "0.5 s" in outcome.err


def test_an_unknown_language(invoke: Invoke) -> None:
    """A language without a kernel is wrong usage, and the known ones are named."""
    outcome = invoke("run", "-c", "1", "-l", "klingon")
    assert outcome.code == Exit.USAGE
    assert "python" in outcome.err


def test_a_kernel_that_dies(invoke: Invoke) -> None:
    """Code that takes its kernel down has failed."""
    outcome = invoke("run", "-c", "import os; os._exit(3)")
    assert outcome.code == Exit.RAISED
    assert "KernelLost" in outcome.err


def test_output_streams_live() -> None:
    """The first line is there while the code still runs."""
    code = "import time\nprint('first')\ntime.sleep(3)\nprint('last')"
    with subprocess.Popen([*COMMAND, "run", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        first = time.monotonic()
        assert process.stdout.readline() == "last\n"
        assert time.monotonic() - first > 1.5
    assert process.returncode == 0


def test_ctrl_c() -> None:
    """Ctrl-C interrupts the code: 130, and nothing is left running."""
    command = [*COMMAND, "run", "-c", "import time\nprint('on')\ntime.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == Exit.INTERRUPTED
    assert "KeyboardInterrupt" in err


def test_a_reader_that_leaves() -> None:
    """``cellfork run … | head -1`` ends without a traceback of ours."""
    code = "for n in range(200_000): print(n)"
    with subprocess.Popen(
        [*COMMAND, "run", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_doctor_agrees_with_run(invoke: Invoke) -> None:
    """Where doctor says that the isolation works, code runs."""
    diagnosis = invoke("doctor", "--json")
    assert json.loads(diagnosis.out)["available"] == (diagnosis.code == 0)
    assert invoke("run", "-c", "1").code == diagnosis.code


def test_without_isolation(invoke: Invoke) -> None:
    """``none`` runs plain processes, says so, and is labelled."""
    outcome = invoke("run", "-c", "1 + 1", "--isolation", "none", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["isolation"] == "none"
    assert "unprotected" in outcome.err


def test_a_network_policy(invoke: Invoke) -> None:
    """``--network`` takes hosts with commas between them; what was refused is said on stderr."""
    code = "import urllib.request\ntry: urllib.request.urlopen('http://evil.example')\nexcept OSError as error: print(error.code)"
    outcome = invoke("run", "-c", code, "--network", "web.example, *.sub.example,packages")
    assert (outcome.code, outcome.out) == (0, "403\n")
    assert "cellfork: denied: evil.example:80 is not allowed" in outcome.err
    assert "allowed: web.example, *.sub.example, packages" in outcome.err


@pytest.mark.slow
def test_a_quick_benchmark(invoke: Invoke, tmp_path: Path) -> None:
    """``bench`` measures, reports and records; nothing is asserted of its numbers."""
    output = tmp_path / "deep" / "bench.json"
    outcome = invoke("bench", "--quick", "--rows", "create,execute", "--json", "--output", str(output))
    assert outcome.code == 0
    assert [row["name"] for row in json.loads(outcome.out)["rows"]] == ["create", "execute"]
    assert json.loads(output.read_text()) == json.loads(outcome.out)
