"""The judge is judged: what the table of cases reports when something is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity.e2b.environments import ENVIRONMENTS

HARNESS = Path(__file__).parent / "python"

SDK = """
class Sandbox:
    sandbox_id = "i1"
    killed = 0
    @classmethod
    def create(cls, timeout=None): return cls()
    def kill(self): Sandbox.killed += 1
    def forgotten(self): pass
    def works(self): return 1
class AsyncSandbox(Sandbox):
    pass
"""

PROGRAM = """
import asyncio, json
from harness import Client, case, run, untouched, CASES, Skipped, raises

@case()
async def right(client):
    "It works."
    sandbox = await client.create()
    assert await sandbox.works() == 1

@case()
async def wrong(client):
    "It does not."
    sandbox = await client.create()
    assert await sandbox.works() == 2

@case("Sandbox.fork")
async def lacking(client):
    "There is no such thing."
    assert False

@case("Sandbox.create:volume")
async def lacking_argument(client):
    "There is no such argument."
    assert False

@case()
async def not_raised(client):
    "Nothing is raised where something should be."
    async with raises("ValueError"):
        pass

@case()
async def other_error(client):
    "Another error is raised."
    async with raises("ValueError"):
        raise KeyError("k")

client = Client("sync", "url")
outcomes = asyncio.run(run(client, CASES, 2))
outcomes.append(untouched(client))
import e2b_code_interpreter
print(json.dumps({"outcomes": {o.case: [o.outcome, o.detail] for o in outcomes}, "killed": e2b_code_interpreter.Sandbox.killed}))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("sdk")
    for name, module in (("e2b", "e2b"), ("e2b-code-interpreter", "e2b_code_interpreter")):
        (place / f"{module}.py").write_text(SDK if module == "e2b_code_interpreter" else "")
        about = place / f"{module}-9.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n")
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = [{str(place)!r}, {str(HARNESS)!r}]\n{PROGRAM}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name, outcome, detail",
    [
        ("__main__.right", "passed", ""),
        ("__main__.wrong", "failed", "AssertionError"),
        ("__main__.lacking", "skipped", "e2b 9.0 has no Sandbox.fork"),
        ("__main__.lacking_argument", "skipped", "e2b 9.0 has no Sandbox.create:volume"),
        ("__main__.not_raised", "failed", "nothing was raised"),
        ("__main__.other_error", "failed", "KeyError"),
        ("every_method", "failed", "Sandbox.forgotten"),
    ],
)
def test_outcomes(report, name, outcome, detail):
    """A broken rule fails, what a generation lacks is skipped by name, and a method that nobody calls fails the run."""
    assert report["outcomes"][name][0] == outcome
    assert detail in report["outcomes"][name][1]


def test_what_cases_make_is_killed(report):
    """A case leaves no sandbox, also when it failed."""
    assert report["killed"] == 2


def test_generations():
    """Each generation is pinned, and the first one, which knows no URLs, is run by names and by fixed ports."""
    assert all(
        "=" in package or "@" in package[1:] for each in ENVIRONMENTS.values() for package in each.packages
    )
    for name in ("python-1x", "javascript-1x"):
        assert {run.partition("-")[0] for run in ENVIRONMENTS[name].runs} == {"domain", "debug"}
