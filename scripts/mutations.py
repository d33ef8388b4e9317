"""Remove one control at a time and show that a test turns red: the proof that the security tests bite.

Every mutation is a piece of source replaced in a copy of ``src``; the tests named with it run against the
copy.  A mutation whose tests all pass *survives*, and that is a failure of the tests.  ``--record`` writes the table into
``docs/threat-model.md``; a name or a part of one picks mutations.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "threat-model.md"
BEGIN, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"
TESTS_FAILED = 1
"""pytest's exit code; every other one but 0 says that the tests did not run."""
SECONDS = 300
SMOKE = "from cellfork import Sandbox\nwith Sandbox.create() as sandbox: assert sandbox.run_code('6 * 7').text == '42'"
"""A mutation after which no sandbox starts proves nothing of the test that it meets."""


class Mutation(NamedTuple):
    """One control, the source that makes it (``old`` becomes ``new`` in each file), the tests that must notice."""

    control: str
    edits: tuple[tuple[str, str, str], ...]
    tests: tuple[str, ...]
    vital: bool = False
    """Without it no sandbox starts at all, and that is what the tests notice."""


class Verdict(NamedTuple):
    """What became of a mutation."""

    mutation: Mutation
    red: str | None
    """The first test that turned red."""
    problem: str | None = None

    @property
    def killed(self) -> bool:
        """Whether a test noticed."""
        return self.red is not None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the mutations; return 1 where one survives."""
    from scripts.mutation_table import MUTATIONS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--record", action="store_true", help=f"write the table into {DOCUMENT.relative_to(ROOT)}"
    )
    parser.add_argument("names", nargs="*", help="parts of the names of controls; all where none is given")
    options = parser.parse_args(argv)
    chosen = [m for m in MUTATIONS if not options.names or any(name in m.control for name in options.names)]
    if baseline(chosen) != 0:
        print("the tests do not pass as they are; nothing can be said about mutations")
        return 1
    verdicts = [_tell(judge(mutation)) for mutation in chosen]
    survivors = [verdict for verdict in verdicts if not verdict.killed]
    print(
        f"{len(verdicts) - len(survivors)} of {len(verdicts)} controls are missed by a test when they are removed"
    )
    if options.record and not options.names and not survivors:
        record(verdicts)
    return 1 if survivors else 0


def judge(mutation: Mutation) -> Verdict:
    """Run the tests of a mutation against a copy of the source without its control."""
    with tempfile.TemporaryDirectory(prefix="cf-mutation-") as directory:
        Path(directory).chmod(0o755)
        copy = Path(directory) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        for file, old, new in mutation.edits:
            problem = _replace(copy / "cellfork" / file, old, new)
            if problem:
                return Verdict(mutation, None, problem)
        return _run(mutation, copy)


def baseline(mutations: Sequence[Mutation]) -> int:
    """Run every named test against the source as it is; return pytest's exit code."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    return subprocess.run(argv, cwd=ROOT, env=_environ(ROOT / "src"), check=False).returncode


def record(verdicts: Sequence[Verdict]) -> None:
    """Write the table of what was found."""
    lines = ["| control removed | test that turns red |", "|---|---|"]
    lines += [f"| {verdict.mutation.control} | `{verdict.red}` |" for verdict in verdicts]
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")
    print(f"wrote {DOCUMENT.relative_to(ROOT)}")


def _replace(path: Path, old: str, new: str) -> str | None:
    text = path.read_text()
    if text.count(old) != 1:
        return f"{path.name} has the text {text.count(old)} times: {old!r}"
    path.write_text(text.replace(old, new))
    return None


def _run(mutation: Mutation, source: Path) -> Verdict:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        *mutation.tests,
    ]
    smoke = subprocess.run(
        [sys.executable, "-c", SMOKE], env=_environ(source), capture_output=True, text=True, check=False
    )
    if smoke.returncode != 0 and not mutation.vital:
        return Verdict(mutation, None, f"no sandbox starts any more: {smoke.stderr[-300:]}")
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env=_environ(source), capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict(mutation, None, "the tests did not end")
    red = next(
        (
            line.split(" ", 1)[1].partition(" - ")[0].partition("[")[0]
            for line in done.stdout.splitlines()
            if line.startswith(("FAILED ", "ERROR ") if mutation.vital else "FAILED ")
        ),
        None,
    )
    if done.returncode == TESTS_FAILED and red is not None:
        return Verdict(mutation, red)
    problem = (
        None
        if done.returncode == 0
        else f"pytest ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
    )
    return Verdict(mutation, None, problem)


def _environ(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}


def _tell(verdict: Verdict) -> Verdict:
    stamp = time.strftime("%H:%M:%S")
    if verdict.killed:
        print(f"{stamp} red       {verdict.mutation.control}: {verdict.red}", flush=True)
    else:
        print(
            f"{stamp} SURVIVES  {verdict.mutation.control}: {verdict.problem or 'every test passed'}",
            flush=True,
        )
    return verdict


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
