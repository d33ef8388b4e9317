"""Environments with vendors' own packages, away from cellfork's; made when they are wanted, kept until their packages change."""

import fcntl
import json
import shutil
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build/parity"
PATIENCE = ("--retries", "10", "--timeout", "60")
"""A registry may be slow for a moment; that is no finding."""


def python_environment(name: str, packages: Sequence[str], *, again: bool = False) -> Path:
    """Return the interpreter of an environment; ``again``: made anew also where it is there, for packages without a version.

    Raises :class:`subprocess.CalledProcessError` where the packages cannot be had.
    """
    return _made(name, packages, _install_python, again=again) / "bin/python"


def javascript_environment(name: str, packages: Sequence[str], *, again: bool = False) -> Path:
    """Return the directory of an environment with packages of npm's, as :func:`python_environment` does with PyPI's."""
    return _made(name, packages, _install_javascript, again=again)


def lacks_node(oldest: int) -> str:
    """Return why packages that need this major version of Node.js cannot be run here, ``""`` where they can."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "npm is not installed"
    version = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    major = int(version.removeprefix("v").partition(".")[0])
    return f"node is {version}, and {oldest} is needed" if major < oldest else ""


def _made(
    name: str, packages: Sequence[str], install: Callable[[Path, Sequence[str]], None], *, again: bool
) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    place = BUILD / name
    stamp = place / "packages.json"
    with (BUILD / f"{name}.lock").open("w") as lock:  # a test of the documentation wants one of them too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if again or not stamp.exists() or json.loads(stamp.read_text()) != [*packages]:
            print(f"installing {name}: {', '.join(packages)}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
            install(place, packages)
            stamp.write_text(json.dumps([*packages]))
    return place


def _install_python(place: Path, packages: Sequence[str]) -> None:
    venv.create(place, with_pip=True)
    pip = [str(place / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", *PATIENCE]
    subprocess.run([*pip, "install", *packages], check=True)


def _install_javascript(place: Path, packages: Sequence[str]) -> None:
    place.mkdir(parents=True)
    (place / "package.json").write_text('{"private": true}\n')
    options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=6"]
    subprocess.run(["npm", "install", *options, *packages], cwd=place, check=True)
