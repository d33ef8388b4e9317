"""An ordinary user, made by root for a test: an environment to run in, control groups of its own, no rights."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

USER = 54321
SYSTEM_PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
CONTROLLERS = ("memory", "pids", "cpu", "cpuacct", "freezer")
CGROUPS = Path("/sys/fs/cgroup")
CHECKOUT = Path(__file__).parent.parent


def possible() -> str | None:
    """Return why an ordinary user cannot be made here, ``None`` where one can."""
    if os.geteuid() != 0:
        return "only root can make another user"
    if not Path(SYSTEM_PYTHON).exists():
        return f"needs {SYSTEM_PYTHON}, which an ordinary user may run"
    if not any((CGROUPS / controller).is_dir() for controller in CONTROLLERS):
        return "control groups of version 1 are not mounted here; delegation on version 2 is systemd's"
    return None


@dataclass(frozen=True)
class Ordinary:
    """Runs programs as an ordinary user: ``python`` sees this checkout's packages, ``group`` is delegated."""

    python: str
    checkout: Path
    home: Path
    group: str

    def run(
        self, argv: Sequence[str], *, delegated: bool = True, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` in the checkout; without ``delegated`` there is no control group to use."""
        environ = {"PATH": os.defpath, "HOME": str(self.home), "LANG": "C.UTF-8"}
        if delegated:
            environ["CELLFORK_CGROUP"] = self.group
        extra = options.pop("env", {})
        assert isinstance(extra, Mapping)
        return subprocess.run(  # type: ignore[call-overload]
            argv,
            env={**environ, **extra},
            user=USER,
            group=USER,
            extra_groups=[],
            text=True,
            cwd=self.checkout,
            **options,
        )


@contextmanager
def ordinary_user() -> Iterator[Ordinary]:
    """Make an ordinary user's world, and remove it: the system's Python, hard links to this one's packages, a copy of the sources."""
    place = Path(tempfile.mkdtemp(prefix="cf-user-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        with delegated_groups() as group:
            yield Ordinary(str(_environment(place)), _checkout(place), _home(place), group)
    finally:
        subprocess.run(["rm", "-rf", "--", str(place)], check=True)


@contextmanager
def delegated_groups() -> Iterator[str]:
    """Make a control group in every hierarchy of version 1 that belongs to the user; yield its name."""
    name = f"cftest-{os.getpid()}"
    made = []
    try:
        for controller in CONTROLLERS:
            path = CGROUPS / controller / name
            if path.parent.is_dir():
                path.mkdir()
                made.append(path)
                for owned in (path, *path.iterdir()):
                    os.chown(owned, USER, USER)
        yield name
    finally:
        for path in made:
            path.rmdir()


def _environment(place: Path) -> Path:
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", place / "venv"], check=True)
    (packages,) = (place / "venv").glob("lib/python*/site-packages")
    ours = Path(pytest.__file__).parent.parent
    packages.rmdir()
    # Hard links, or copies where the two are on different file systems.
    if subprocess.run(["cp", "-al", ours, packages], check=False, capture_output=True).returncode != 0:
        subprocess.run(["rm", "-rf", "--", packages], check=True)
        subprocess.run(["cp", "-a", ours, packages], check=True)
    for editable in packages.glob("*cellfork*.pth"):
        editable.unlink()
    (packages / "_checkout.pth").write_text(f"{place}/checkout/src\n")
    return place / "venv" / "bin" / "python"


def _checkout(place: Path) -> Path:
    target = place / "checkout"
    for name in ("src", "tests", "scripts", "pyproject.toml"):
        source = CHECKOUT / name
        ignored = shutil.ignore_patterns("__pycache__")
        target.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target)
    return target


def _home(place: Path) -> Path:
    home = place / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    return home
