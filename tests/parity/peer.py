"""Runs cells through nbclient and ipykernel: a program of its own, so that nothing of it stays in the tests' process.

Reads ``{"cells": [code, …], "home": directory, "env": {…}}`` from the file that its first argument names; writes to
the second a list with, for each cell, ``execution_count``, ``outputs`` (nbformat), ``pages`` (bundles for the
frontend's pager) and ``error`` (the name and the value of the error in the kernel's reply, or ``null``).
"""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

SETTINGS = {
    # The theme that cellfork uses: IPython also sets some line breaks by theme.
    "InteractiveShell.colors": "nocolor",
    "IPKernelApp.exec_files": str(Path(__file__).with_name("kernel_setup.py")),
}
TIMEOUT = 60
PAGES = {"page", "set_next_input"}


def run(cells: list[str], home: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """Run ``cells`` in one kernel whose working directory is ``home``."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    replies: dict[int, dict[str, Any]] = {}

    def note_reply(cell: Any, cell_index: int, execute_reply: dict[str, Any]) -> None:
        replies[cell_index] = execute_reply["content"]

    client = NotebookClient(
        notebook,
        allow_errors=True,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": home}},
        on_cell_executed=note_reply,
        extra_arguments=[f"--{name}={value}" for name, value in SETTINGS.items()],
    )
    client.execute(env=env)
    return [
        {"execution_count": cell.execution_count, "outputs": cell.outputs, **_told(replies.get(index, {}))}
        for index, cell in enumerate(notebook.cells)
    ]


def _page(payload: dict[str, Any]) -> dict[str, Any]:
    """Return what the frontend would show in its pager, or put into the next cell."""
    return payload["data"] if payload["source"] == "page" else {"text/plain": payload["text"]}


def _told(reply: dict[str, Any]) -> dict[str, Any]:
    failed = reply.get("status") == "error"
    return {
        "pages": [_page(item) for item in reply.get("payload", []) if item["source"] in PAGES],
        "error": {"name": reply["ename"], "value": reply["evalue"]} if failed else None,
    }


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(run(request["cells"], request["home"], request["env"])))
