"""The notebooks, and how each side runs one."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cellfork import Sandbox
from cellfork.cli.cells import split_cells
from cellfork.model.specs import HOME
from tests.parity.outputs import Cell, Fold, cell_of_notebook

FOLDER = Path(__file__).with_name("notebooks")
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
SECONDS = 90


@dataclass(frozen=True)
class Ran:
    """The cells of a notebook that was run in the directory ``home``."""

    cells: list[Cell]
    home: str


def cells_of(name: str) -> list[tuple[str, str]]:
    """Return title and code of a notebook's cells; the code ends as an editor leaves it, without blank lines."""
    cells = split_cells((FOLDER / f"{name}.py").read_text())
    return [(cell.title, cell.code.rstrip("\n")) for cell in cells]


def run_ours(name: str) -> Ran:
    """Run a notebook in one context of one sandbox."""
    fold = Fold()
    with Sandbox.create(timeout=SECONDS) as sandbox:
        for title, code in cells_of(name):
            fold.add(title, sandbox.stream_code(code))
    return Ran(fold.cells(), HOME)


def run_theirs(name: str) -> Ran:
    """Run a notebook with nbclient and ipykernel, in an environment like the sandbox's."""
    cells = cells_of(name)
    with tempfile.TemporaryDirectory() as folder:
        home = str(Path(folder, "home"))
        os.mkdir(home)
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        env = _environment(home)
        asked.write_text(json.dumps({"cells": [code for _, code in cells], "home": home, "env": env}))
        command = [sys.executable, str(Path(__file__).with_name("peer.py")), str(asked), str(answered)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        ran = json.loads(answered.read_text())
    return Ran([cell_of_notebook(title, cell) for (title, _), cell in zip(cells, ran, strict=True)], home)


def _environment(home: str) -> dict[str, str]:
    return {
        "HOME": home,
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "SHELL": "/bin/bash",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": f"{home}-ipython",
    }
