r"""Run E2B's own test suites against a server of this tree, and tell the results per file as Markdown.

The suites are not part of cellfork: check out their repositories elsewhere, install what they need there as
they say, and name the directories.  Nothing is fetched or built here.

    python scripts/parity/upstream.py --write docs/dialects/e2b.md \
        code-interpreter-python=DIR/python code-interpreter-js=DIR/js \
        base-python=DIR/packages/python-sdk base-js=DIR/packages/js-sdk \
        --python code-interpreter-python=ENVIRONMENT/bin/python --python base-python=ENVIRONMENT/bin/python \
        --tests base-python=FILE --tests base-js=FILE --names base-python --names base-js

``--tests`` names a file with the tests that need a server, one a line (``tests/x.py::test_y``, or
``tests/x.test.ts > name``); without it all tests of a suite count.
"""

import argparse
import fnmatch
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.parity.reasons import NOT_APPLICABLE
from scripts.parity.serving import ROOT, Served, run, serve, serve_names

CLIENTS = ROOT / "tests/parity/e2b"
LOGS = ROOT / "build/parity/upstream"
TIMEOUT = 3600.0
"""Seconds that one suite may take."""


@dataclass(frozen=True)
class Result:
    """How one test of a suite ended; ``reason`` tells why one that failed does not apply."""

    suite: str
    file: str
    test: str
    outcome: str
    detail: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Suite:
    """A suite of upstream's: where it is, which tests count, and how its clients find the server."""

    name: str
    directory: Path
    python: Path | None
    tests: Path | None
    by_names: bool

    @property
    def is_python(self) -> bool:
        """Whether pytest runs it; vitest runs the other ones."""
        return self.name.endswith("python")

    @property
    def note(self) -> str:
        """What the report says of it."""
        command = ["git", "log", "-1", "--format=%h of %cs"]
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        found = "by names under a domain, over TLS" if self.by_names else "by two URLs"
        return f"{self.name}: commit {done.stdout.strip() or 'unknown'}; its clients find the server {found}"


def python_suite(suite: Suite, report: Path) -> list[str]:
    """Return how a suite of pytest is run, with the packages of an environment instead of the tree's."""
    if suite.python is None:
        raise SystemExit(f"{suite.name} needs --python")
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "resolving",
        "-o",
        "junit_family=xunit1",
        f"--junitxml={report}",
    ]
    chosen = [f"@{suite.tests}"] if suite.tests else ["tests"]
    return [str(suite.python), "-P", "-m", "pytest", *options, *chosen]


def js_suite(suite: Suite, report: Path) -> list[str]:
    """Return how a suite of vitest is run."""
    options = ["--reporter=default", "--reporter=junit", f"--outputFile={report}"]
    files: list[str] = []
    if suite.tests:
        files = sorted({line.split(" > ")[0].strip() for line in suite.tests.read_text().splitlines()})
        options += ["--project", "unit", "--project", "template"]
    return ["npx", "vitest", "run", *options, *files]


def results(suite: str, report: Path, tests: Path | None) -> Iterator[Result]:
    """Read a report in JUnit's form; what is not among ``tests`` is left out."""
    wanted = {line.strip() for line in tests.read_text().splitlines()} if tests else None
    python = suite.endswith("python")
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by the runner just started
        file = case.get("file") or case.get("classname") or "?"
        name = case.get("name") or "?"
        identity = python_id(case, file, name) if python else f"{file} > {name.replace(' > ', ' ')}"
        if wanted is not None and identity not in wanted:
            continue
        yield judged(suite, file, name, case)


def python_id(case: ET.Element, file: str, name: str) -> str:
    """Return pytest's own name of a test: of a class's tests, the class's name is in between."""
    inner = (case.get("classname") or "").removeprefix(file.removesuffix(".py").replace("/", ".")).strip(".")
    return "::".join([file, *filter(None, inner.split(".")), name])


def judged(suite: str, file: str, name: str, case: ET.Element) -> Result:
    """Tell how a test ended."""
    bad = [each for each in case if each.tag in {"failure", "error"}]
    if bad:
        detail = (bad[0].get("message") or bad[0].text or "").strip()
        identity = f"{suite}/{file}::{name}"
        reason = next(
            (why for pattern, why in NOT_APPLICABLE.items() if fnmatch.fnmatch(identity, pattern)), ""
        )
        return Result(suite, file, name, "does not apply" if reason else "failed", detail, reason)
    skipped = case.find("skipped")
    if skipped is not None:
        return Result(suite, file, name, "skipped", skipped.get("message") or "by the suite itself")
    return Result(suite, file, name, "passed")


def run_suite(suite: Suite, served: Served) -> list[Result]:
    """Run one suite; returns how each test ended."""
    LOGS.mkdir(parents=True, exist_ok=True)
    report, log = LOGS / f"{suite.name}.xml", LOGS / f"{suite.name}.log"
    report.unlink(missing_ok=True)
    command = python_suite(suite, report) if suite.is_python else js_suite(suite, report)
    environment = dict(served.by_domain if suite.by_names else served.by_url)
    environment |= {"CI": "1", "PYTHONPATH": str(CLIENTS / "python")}
    environment["NODE_OPTIONS"] = f"--import {CLIENTS / 'javascript/resolving.mjs'}"
    code = run(command, suite.directory, environment, log, TIMEOUT)
    if not report.exists():
        raise SystemExit(f"{suite.name}: no report (exit code {code}); see {log}")
    return list(results(suite.name, report, suite.tests))


COLUMNS = ("passed", "failed", "does not apply", "skipped")
BEGIN, END = "<!-- upstream:begin -->\n", "<!-- upstream:end -->"
"""Where a page holds the report, for ``--write``."""


def markdown(found: list[Result]) -> Iterator[str]:
    """Tell the results: how many of each suite, why some do not apply, what failed, and every file."""
    suites = {
        name: [each for each in found if each.suite == name] for name in dict.fromkeys(r.suite for r in found)
    }
    yield from table("suite", suites)
    reasons = dict.fromkeys(each.reason for each in found if each.reason)
    if reasons:
        yield "\nTests that do not apply here, or that meet a difference which is meant:\n"
        yield "| why | tests |"
        yield "|---|---|"
        for reason in reasons:
            yield f"| {reason} | {named(each for each in found if each.reason == reason)} |"
    for title, outcome in (("Tests that failed", "failed"), ("Tests that the suites skip", "skipped")):
        of = [each for each in found if each.outcome == outcome]
        if of:
            yield f"\n{title}:\n"
            yield from (
                f"- {each.suite}, `{each.test}`: {(each.detail.splitlines() or [''])[0][:160]}" for each in of
            )
    for name, of in suites.items():
        yield f"\n#### {name}\n"
        yield from table(
            "file", {f"`{file}`": [r for r in of if r.file == file] for file in sorted({r.file for r in of})}
        )


def table(title: str, rows: Mapping[str, list[Result]]) -> Iterator[str]:
    """Yield a table that counts outcomes."""
    yield f"| {title} | " + " | ".join(COLUMNS) + " |"
    yield "|---|" + "---:|" * len(COLUMNS)
    for name, of in rows.items():
        counts = Counter(each.outcome for each in of)
        yield f"| {name} | " + " | ".join(str(counts[column] or "") for column in COLUMNS) + " |"


def named(results: Iterable[Result]) -> str:
    """Name tests, each once, with how often it is there."""
    counts = Counter(f"`{each.test}`" for each in results)
    return ", ".join(name if count == 1 else f"{name} ({count}×)" for name, count in counts.items())


def written(page: str, text: str) -> str:
    """Return a page with the report in its place; where it has none, the report alone."""
    if BEGIN not in page:
        return text
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + text + END + rest.partition(END)[2]


def pairs(values: list[str]) -> dict[str, Path]:
    """Split ``name=path``."""
    return {name: Path(path).absolute() for name, _, path in (value.partition("=") for value in values)}


def main() -> int:
    """Run the suites; returns 1 if a test failed that applies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="+", metavar="SUITE=DIRECTORY")
    parser.add_argument(
        "--python", action="append", default=[], metavar="SUITE=PYTHON", help="with E2B's packages"
    )
    parser.add_argument(
        "--names", action="append", default=[], metavar="SUITE", help="whose clients go by names"
    )
    parser.add_argument("--tests", action="append", default=[], metavar="SUITE=FILE")
    parser.add_argument("--write", type=Path, help="put the Markdown into this page")
    parser.add_argument("--flag", action="append", default=[], help="a further flag for the server")
    arguments = parser.parse_args()
    tests, pythons = pairs(arguments.tests), pairs(arguments.python)
    suites = [
        Suite(name, directory, pythons.get(name), tests.get(name), name in arguments.names)
        for name, directory in pairs(arguments.suites).items()
    ]
    found: list[Result] = []
    for suite in suites:
        with (serve_names if suite.by_names else serve)(LOGS / suite.name, *arguments.flag) as served:
            found += run_suite(suite, served)
    lines = [*(f"- {suite.note}" for suite in suites), "", *markdown(found)]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        page = arguments.write.read_text() if arguments.write.exists() else ""
        arguments.write.write_text(written(page, text))
    return 1 if any(each.outcome == "failed" for each in found) else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
