"""The namespaces runtime without root: one host id, delegated control groups."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellfork

USER = 54321
SYSTEM_PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as an ordinary user already"),
    pytest.mark.skipif(
        not Path(SYSTEM_PYTHON).exists(), reason=f"needs {SYSTEM_PYTHON}, which an ordinary user may run"
    ),
]


@pytest.fixture(scope="module")
def environment() -> Iterator[str]:
    """An environment that any user can read: the system's Python, this one's packages, a copy of cellfork."""
    place = Path(tempfile.mkdtemp(prefix="cf-user-", dir="/var/tmp"))
    place.chmod(0o755)
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", place / "venv"], check=True)
    (packages,) = (place / "venv").glob("lib/python*/site-packages")
    ours = Path(pytest.__file__).parent.parent
    for name in ("IPython", "traitlets", "matplotlib_inline", "decorator", "pygments", "stack_data", "executing", "msgspec",
                 "asttokens", "pure_eval", "prompt_toolkit", "wcwidth", "jedi", "parso", "pexpect", "ptyprocess"):  # fmt: skip
        for found in [*ours.glob(name), *ours.glob(f"{name}.py")]:
            copy = shutil.copytree if found.is_dir() else shutil.copy
            copy(found, packages / found.name)
    for extra in ("ipython_pygments_lexers.py", "typing_extensions.py"):
        if (ours / extra).exists():
            shutil.copy(ours / extra, packages)
    shutil.copytree(Path(cellfork.__file__).parent, packages / "cellfork")
    yield str(place / "venv" / "bin" / "python")
    shutil.rmtree(place)


@pytest.fixture
def delegated() -> Iterator[str]:
    """A control group in every hierarchy that belongs to the user."""
    name = f"cftest-{os.getpid()}"
    made = []
    for controller in CONTROLLERS:
        path = Path("/sys/fs/cgroup") / controller / name
        if path.parent.is_dir():
            path.mkdir()
            os.chown(path, USER, USER)
            for file in path.iterdir():
                os.chown(file, USER, USER)
            made.append(path)
    if not made:
        pytest.skip("control groups of version 1 are not mounted here; delegation on version 2 is systemd's")
    yield name
    for path in made:
        path.rmdir()


def run_as_user(python: str, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", textwrap.dedent(code)],
        env={"PATH": os.defpath, "HOME": "/nonexistent", **environ},
        user=USER,
        group=USER,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=100,
        cwd="/",
    )


PROGRAM = """
import json
from cellfork import Limits, Sandbox
with Sandbox.create(limits=Limits(memory="256M", pids=40)) as sandbox:
    facts = {"isolation": sandbox.isolation, "text": sandbox.run_code("40 + 2").text}
    sandbox.files.write("note.txt", "hello")
    facts["file"] = sandbox.run_code("print(open('note.txt').read())").logs.stdout
    facts["id"] = sandbox.commands.run("id -u; id -un").stdout
    facts["writes"] = sandbox.run_code("open('/usr/x', 'w')").error.name
    facts["memory"] = sandbox.run_code("x = [bytearray(1 << 20) for _ in range(2000)]").error.value[:6]
    facts["again"] = sandbox.run_code("1 + 1").text
    facts["network"] = sandbox.run_code("import socket; socket.create_connection(('192.0.2.1', 80), 5)").error.value
print(json.dumps(facts))
"""


def test_the_same_sandbox_for_an_ordinary_user(environment, delegated):
    """With user namespaces and delegated groups, an ordinary user gets the same isolation and limits as root."""
    done = run_as_user(environment, PROGRAM, CELLFORK_CGROUP=delegated)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts == {
        "isolation": "namespaces",
        "text": "42",
        "file": ["hello\n"],
        "id": "1000\nuser\n",
        "writes": "OSError",
        "memory": "memory",
        "again": "2",
        "network": "[Errno 101] Network is unreachable",
    }


def test_without_control_groups_limits_are_refused_not_forgotten(environment):
    """Where no group can be made, a sandbox with limits is refused with what is missing and how to get it."""
    code = """
    from cellfork import IsolationUnavailable, Limits, Sandbox
    try:
        Sandbox.create()
    except IsolationUnavailable as error:
        print(sorted(m.feature for m in error.missing), "Delegate" in str(error))
    with Sandbox.create(limits=Limits(memory=None, cpu=None, pids=None)) as sandbox:
        print(sandbox.run_code("6 * 7").text)
    """
    done = run_as_user(environment, code)
    assert done.stdout.splitlines() == ["['cgroup cpu', 'cgroup memory', 'cgroup pids'] True", "42"], (
        done.stderr
    )
