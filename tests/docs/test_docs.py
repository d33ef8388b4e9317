"""The documentation tells the truth: its code runs, its links lead somewhere, nothing public is missing.

Every ``python``, ``bash`` and ``console`` block of README.md and docs/ is run, page by page and in order, in one
namespace and one directory for each page.  What a block prints is compared with the ``text`` block that
follows it at once, if there is one; in a ``console`` block with the lines between the commands.  ``…`` stands
for anything.  A block that must not be run says why, in the line above it: ``<!-- not run: reason -->``.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest

import cellfork
from cellfork.model import events

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = "\n".join(path.read_text() for path in sorted((ROOT / "docs/reference").glob("*.md")))
RUNNABLE = {"python", "bash", "console"}
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
BY_CI = re.compile(r"(?:\$ )?make (?:demo|test|check)(?:\s+#.*)?")
"""Commands that CI runs itself, each as a whole."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, its language, its text, why it is not run, what it is expected to print."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    expected: str | None

    def __str__(self) -> str:
        """Name the block for a test's id."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield every fenced block: number of its first line, language, text, and the text between it and the one before."""
    lines = page.read_text().splitlines(keepends=True)
    between, language, start = 0, None, 0
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if language is None:
            language, start = line.strip("`\n"), number + 1
        else:
            yield (
                start + 1,
                language,
                "".join(lines[start:number]),
                "".join(lines[between : start - 1]).strip(),
            )
            between, language = number + 1, None


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page that are code, in order."""
    blocks: list[Block] = []
    previous_is_code = False
    for line, language, text, between in fences(page):
        if language == "text" and previous_is_code and not between:
            blocks[-1] = replace(blocks[-1], expected=text)
        previous_is_code = language in RUNNABLE
        if previous_is_code:
            reason = NOT_RUN.search(between.rpartition("\n")[2])
            blocks.append(
                Block(page, line, language, text, reason[1] if reason else by_ci(text), expected=None)
            )
    return blocks


def by_ci(text: str) -> str | None:
    """Return the reason not to run a block that consists of commands which CI runs anyway."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "CI runs these commands itself" if all(BY_CI.fullmatch(line) for line in lines) else None


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def check_output(block: Block, expected: str, actual: str) -> None:
    """Compare what was printed; ``…`` in what was expected stands for anything."""
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("…"))
    tidy = "\n".join(line.rstrip() for line in actual.strip().splitlines())
    assert re.fullmatch(pattern, tidy, re.DOTALL), f"{block} printed:\n{tidy}\ninstead of:\n{expected}"


def run_python(block: Block, namespace: dict[str, object]) -> None:
    """Run a block as if it stood at its line of the page."""
    printed = io.StringIO()
    program = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, namespace)
    except Exception:
        pytest.fail(f"{block} raised:\n{traceback.format_exc()}", pytrace=False)
    if block.expected is not None:
        check_output(block, block.expected, printed.getvalue())


def run_command(block: Block, command: str, directory: Path) -> str:
    """Run shell commands with the tools of this environment; return what they printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=directory,
        env={**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block}: exit code {done.returncode}:\n{done.stdout}"
    return done.stdout


def dialogue(text: str) -> Iterator[tuple[str, str]]:
    """Yield command and expected output of a ``console`` block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run_block(block: Block, namespace: dict[str, object], directory: Path) -> None:
    """Run one block of any language."""
    if block.language == "python":
        run_python(block, namespace)
    elif block.language == "bash":
        output = run_command(block, block.text, directory)
        if block.expected is not None:
            check_output(block, block.expected, output)
    else:
        for command, expected in dialogue(block.text):
            output = run_command(block, command, directory)
            if expected.strip():
                check_output(block, expected, output)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.page == page and not block.not_run for block in BLOCKS)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_in_the_documentation_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A reader can copy every block of a page, from the first to the last, and see what the page says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if not block.not_run:
            run_block(block, namespace, tmp_path)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.not_run], ids=str)
def test_code_that_is_not_run_says_why(block: Block):
    """No block is left out in silence: each is listed among the skipped with its reason."""
    pytest.skip(str(block.not_run))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path):
    """A relative link names a file, and a fragment names one of its headings."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if fragment:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert fragment in slugs, f"{page.name} links to {target}"


@pytest.mark.parametrize("name", [name for name in cellfork.__all__ if not name.startswith("__")])
def test_every_public_name_has_a_reference(name: str):
    """Whatever can be imported can be looked up."""
    assert re.search(rf"\b{name}\b", REFERENCE)


@pytest.mark.parametrize("event", [event.__name__ for event in get_args(events.AnyEvent)])
def test_every_event_has_a_reference(event: str):
    """Whoever reads a stream can look up what may be in it."""
    assert f"### {event} " in REFERENCE


def test_glossary_has_the_nouns():
    """The words that code and errors use are explained in one place."""
    glossary = (ROOT / "docs/glossary.md").read_text()
    nouns = ["Sandbox", "Template", "Runtime", "Guest", "Zygote", "Context", "Kernel", "Execution", "Result"]
    nouns += ["Logs", "Exec", "Limits", "NetworkPolicy", "Dialect"]
    for noun in nouns:
        assert f"| **{noun}** |" in glossary


def test_changelog_knows_this_version():
    """The changelog has a heading for what is being worked on or for the version that is released."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(cellfork.__version__)})\]", changelog, flags=re.MULTILINE
    )
