"""``cellfork run`` with a fake sandbox: output, exit codes, JSON, files, cells."""

import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfork.model.errors import IsolationUnavailable, Missing
from tests.cli.conftest import Invoke
from tests.cli.fakes import COST, FakeSandbox

Fake = type[FakeSandbox]


@pytest.mark.parametrize("code, expected", [("out", 0), ("", 0), ("out raise", 1), ("die", 1), ("slow", 124)])
@pytest.mark.parametrize("form", [[], ["--json"], ["--llm"]])
def test_exit_codes(invoke: Invoke, fake: Fake, code: str, expected: int, form: list[str]) -> None:
    """0 for success, 1 for code that raised or took its kernel down, 124 for a timeout; the form does not matter."""
    assert invoke("run", "-c", code, *form).code == expected


def test_streams_stay_apart(invoke: Invoke, fake: Fake) -> None:
    """Stdout and results go to stdout; stderr and the error go to stderr."""
    outcome = invoke("run", "-c", "out err four raise")
    assert outcome.out == "out\n4\n"
    assert outcome.err.startswith("err\n")
    assert "ValueError: bad" in outcome.err


def test_results_start_on_a_line_of_their_own(invoke: Invoke, fake: Fake) -> None:
    """A result does not stick to an unfinished line, and escape sequences do not get through."""
    assert invoke("run", "-c", "halfline four halfline").out == "half\n4\nhalf\n"


def test_json(invoke: Invoke, fake: Fake) -> None:
    """``--json`` prints one object of a fixed shape and nothing else."""
    outcome = invoke("run", "-c", "out err four raise", "--json")
    assert json.loads(outcome.out) == {
        "results": [{"text": "4", "json": 4, "is_main_result": True}],
        "logs": {"stdout": ["out\n"], "stderr": ["err\n"]},
        "error": {"name": "ValueError", "value": "bad", "traceback": "Traceback …\nValueError: bad"},
        "execution_count": 1,
        "artifacts": [],
        "artifacts_truncated": False,
        "accounting": {
            "wall_time": 0.5, "cpu_time": 0.25, "peak_memory": 1000, "output_bytes": 10, "truncated": False,
            "posture": None,
        },
        "isolation": "namespaces",
    }  # fmt: skip
    assert outcome.err == ""


def test_json_of_several_cells_is_one_object(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """Results and logs are put together, the error and the count are the last, costs add up."""
    script = tmp_path / "cells.py"
    script.write_text("# %% one\nout four\n# %% two\nout err raise\n# %% three\nout\n")
    outcome = invoke("run", str(script), "--json")
    merged = json.loads(outcome.out)
    assert outcome.code == 1
    assert merged["logs"] == {"stdout": ["out\n", "out\n"], "stderr": ["err\n"]}
    assert [result["text"] for result in merged["results"]] == ["4"]
    assert merged["error"]["name"] == "ValueError"
    assert merged["execution_count"] == 2
    assert merged["accounting"]["wall_time"] == 2 * COST.wall_time
    assert merged["accounting"]["peak_memory"] == COST.peak_memory


def test_cells_stop_at_the_first_failure(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """Cells run in order in one context, and not beyond the first that fails."""
    script = tmp_path / "cells.py"
    script.write_text("# %%\nout\n# %%\nraise\n# %%\nerr\n")
    assert invoke("run", str(script)).code == 1
    assert fake.made[0].codes == ["out\n", "raise\n"]


def test_the_timeout_is_for_all_cells(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """What the first cells used is gone for the later ones."""
    script = tmp_path / "cells.py"
    script.write_text("# %%\nout\n# %%\nout\n")
    invoke("run", str(script), "--timeout", "90s")
    first, second = fake.made[0].timeouts
    assert second < first <= 90


def test_a_file_of_comments_is_nothing_to_run(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """No cell is no failure, and the JSON is still one object."""
    script = tmp_path / "cells.py"
    script.write_text("# %% [markdown]\n# text\n")
    outcome = invoke("run", str(script), "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["results"] == []


def test_code_from_standard_input(invoke: Invoke, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` reads the code from stdin."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("out # ü".encode())))
    assert invoke("run", "-").out == "out\n"


def test_a_file_that_is_not_text(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """A binary file is wrong usage, not an exception."""
    (tmp_path / "binary").write_bytes(b"\x80\x81")
    outcome = invoke("run", str(tmp_path / "binary"))
    assert outcome.code == 2
    assert "UTF-8" in outcome.err


def test_options_reach_the_sandbox(invoke: Invoke, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits, variables, language and isolation arrive as they were given; values are never parsed as code."""
    monkeypatch.setenv("FROM_HERE", "it's")
    invoke(
        "run", "-c", "out", "-l", "bash", "--memory", "256M", "--cpu", "0.5", "--pids", "none",
        "-e", "A=b=c", "-e", "FROM_HERE",
    )  # fmt: skip
    options = fake.made[0].options
    assert (options["limits"].memory, options["limits"].cpu, options["limits"].pids) == (
        256 * 1024**2,
        0.5,
        None,
    )
    assert options["envs"] == {"A": "b=c", "FROM_HERE": "it's"}
    assert options["isolation"] == "namespaces"
    assert fake.made[0].language == "bash"


def test_files_are_copied_in(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """Files go to the home directory or where they are told to; directories with all that is in them."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.csv").write_text("a")
    (tmp_path / "with:colon").write_text("c")
    (tmp_path / "sub" / "b.txt").write_text("b")
    copies = [
        f"{tmp_path}/a.csv",
        f"{tmp_path}/a.csv:x/y.csv",
        f"{tmp_path}/a.csv:/tmp/",
        f"{tmp_path}/with:colon",
        f"{tmp_path}/sub",
    ]
    invoke("run", "-c", "out", *(part for copy in copies for part in ("--file", copy)))
    assert fake.made[0].files.written == {
        "a.csv": b"a",
        "x/y.csv": b"a",
        "/tmp/a.csv": b"a",
        "with:colon": b"c",
        "sub/b.txt": b"b",
    }


def test_saving(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """``--save`` writes the rich results and says on stderr what it wrote."""
    outcome = invoke("run", "-c", "plot frame", "--save", str(tmp_path / "out"))
    saved = [line.removeprefix("saved ") for line in outcome.err.splitlines() if line.startswith("saved ")]
    assert [Path(path).name for path in saved] == [
        "cell-1-result-1.png", "cell-1-result-1.chart.json",
        "cell-1-result-2.html", "cell-1-result-2.csv", "cell-1-result-2.json",
    ]  # fmt: skip
    assert all(Path(path).exists() for path in saved)
    assert "saved" not in outcome.out


def test_llm(invoke: Invoke, fake: Fake) -> None:
    """``--llm`` prints what a model should see, the image included, within the budget."""
    outcome = invoke("run", "-c", "out err plot raise", "--llm")
    assert "data:image/png;base64," in outcome.out
    assert "[stderr] err" in outcome.out
    assert outcome.out.rstrip().endswith("ValueError: bad")
    assert outcome.err == ""


def test_images_that_do_not_fit_are_pointed_to(invoke: Invoke, fake: Fake, tmp_path: Path) -> None:
    """An image that the budget has no room for is named, and stderr says how to get it."""
    outcome = invoke("run", "-c", "plot", "--llm", "--max-tokens", "100")
    assert "left out" in outcome.out
    assert "--save DIR" in outcome.err
    saved = invoke("run", "-c", "plot", "--llm", "--max-tokens", "100", "--save", str(tmp_path))
    assert "--save DIR" not in saved.err
    assert "saved " in saved.err


def test_no_isolation_is_said_aloud(invoke: Invoke, fake: Fake) -> None:
    """``--isolation none`` warns on stderr and labels the JSON."""
    outcome = invoke("run", "-c", "out", "--isolation", "none", "--json")
    assert "unprotected" in outcome.err
    assert json.loads(outcome.out)["isolation"] == "none"


def test_isolation_that_is_not_available(invoke: Invoke, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the isolation nothing runs: exit code 5, the reason and the remedy on stderr, nothing on stdout."""
    missing = Missing(
        "user namespaces", "sandboxes are built from them", "sysctl kernel.unprivileged_userns_clone=1"
    )
    monkeypatch.setattr(fake, "refusal", IsolationUnavailable("no sandbox can be isolated here", (missing,)))
    outcome = invoke("run", "-c", "out", "--json")
    assert outcome.code == 5
    assert outcome.out == ""
    assert "Fix: sysctl" in outcome.err


def test_a_bug_of_ours_is_told_apart(invoke: Invoke, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of our own is never mistaken for one of the user's code."""
    monkeypatch.setattr(fake, "refusal", ZeroDivisionError("ours"))
    outcome = invoke("run", "-c", "out")
    assert outcome.code == 70
    assert "bug in cellfork" in outcome.err


def test_ctrl_c_interrupts_the_code(invoke: Invoke, fake: Fake) -> None:
    """Ctrl-C stops the code, not cellfork: the sandbox is given back, and the exit code is 130."""
    threading.Thread(target=_interrupt_when_waiting, args=(fake,)).start()
    assert invoke("run", "-c", "wait").code == 130


def _interrupt_when_waiting(fake: Fake) -> None:
    while not (fake.made and fake.made[0].codes):
        time.sleep(0.01)
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


class _Terminal:
    """Our end of a terminal whose other end is standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keyboard, descriptor = os.openpty()
        self.stdin = os.fdopen(descriptor, "r")
        monkeypatch.setattr("sys.stdin", self.stdin)

    def type(self, keys: bytes) -> None:
        threading.Timer(0.1, os.write, (self.keyboard, keys)).start()

    def close(self) -> None:
        self.stdin.close()
        os.close(self.keyboard)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Terminal]:
    terminal = _Terminal(monkeypatch)
    yield terminal
    terminal.close()


def test_input_is_answered_at_the_terminal(invoke: Invoke, fake: Fake, terminal: _Terminal) -> None:
    """``input()`` shows its prompt and gets the line that is typed."""
    terminal.type("Zoë\n".encode())
    assert invoke("run", "-c", "ask").out == "name? Zoë\n"


def test_the_end_of_input_stops_the_code(invoke: Invoke, fake: Fake, terminal: _Terminal) -> None:
    """Ctrl-D is no answer: the code ends with an EOFError."""
    terminal.type(b"\x04")
    outcome = invoke("run", "-c", "ask")
    assert outcome.code == 1
    assert "EOFError" in outcome.err


def test_ctrl_c_at_a_prompt(invoke: Invoke, fake: Fake, terminal: _Terminal) -> None:
    """Ctrl-C while the code waits for an answer stops the code: 130."""
    threading.Thread(target=_interrupt_when_waiting, args=(fake,)).start()
    assert invoke("run", "-c", "ask").code == 130


@pytest.mark.parametrize("options", [["--json"], ["--llm"]])
def test_nobody_is_asked_where_output_is_for_machines(
    invoke: Invoke, fake: Fake, terminal: _Terminal, options: list[str]
) -> None:
    """With ``--json`` and ``--llm`` nobody answers: ``input()`` gets no handler."""
    assert "name?" not in invoke("run", "-c", "ask out", *options).out
