"""What ``cellfork doctor`` looks at.  Nothing is guessed from version numbers where it can be tried."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from cellfork.model.errors import CellforkError, IsolationUnavailable, Missing
from cellfork.model.limits import GiB, Limits
from cellfork.render.media import human_size
from cellfork.runtimes.base import LimitTest, Runtime, RuntimeReport

DEFAULT = "namespaces"

State = Literal["present", "missing", "absent"]
"""``missing`` is needed and not there, ``absent`` would be good to have."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: where it belongs, what was found; where it is not there, its price and remedy."""

    area: str
    name: str
    state: State
    detail: str = ""
    cost: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings, and whether the default isolation works."""

    isolation: str
    available: bool
    findings: tuple[Finding, ...]
    limits: LimitTest | None = None
    """What came of hitting the limits of the default isolation."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "isolation": self.isolation,
            "available": self.available,
            "findings": [asdict(finding) for finding in self.findings],
            "limits": None if self.limits is None else asdict(self.limits),
        }


async def diagnose(*, fresh: bool = False) -> Diagnosis:
    """Look at everything; ``fresh``: hit the limits again where that was done before."""
    reports = await probe_runtimes(fresh=fresh)
    default = [report for report in reports if report.name == DEFAULT]
    available = any(report.available for report in default)
    limits = next((report.limits for report in default), None)
    findings = [finding for report in reports for finding in of_runtime(report)]
    return Diagnosis(DEFAULT, available, (*findings, *of_host(), *of_python()), limits)


async def probe_runtimes(*, fresh: bool = False) -> list[RuntimeReport]:
    """Let every runtime try itself; the default one comes first."""
    from cellfork.engine.runtimes import LazyRuntimes

    runtimes = LazyRuntimes()
    return [
        await _probe(runtimes, name, fresh=fresh)
        for name in sorted(runtimes, key=lambda name: (name != DEFAULT, name))
    ]


async def _probe(runtimes: Mapping[str, Runtime], name: str, *, fresh: bool) -> RuntimeReport:
    """Let one runtime try itself; one that cannot be loaded or breaks is not available, and says why."""
    try:
        runtime = runtimes[name]
    except CellforkError as error:
        return RuntimeReport(name, available=False, missing=(Missing("runtime", str(error), "install it"),))
    try:
        return await runtime.probe(fresh=fresh)
    except CellforkError as error:
        missing = error.missing if isinstance(error, IsolationUnavailable) else ()
        return RuntimeReport(
            name, available=False, missing=missing or (Missing("start", str(error), "see the message"),)
        )
    finally:
        await runtime.aclose()


def of_runtime(report: RuntimeReport) -> Iterator[Finding]:
    """Yield what a runtime found out about itself."""
    area = f"isolation: {report.name}"
    yield Finding(area, "sandboxes", "present" if report.available else "missing", _verdict(report))
    for name, detail in report.features.items():
        yield Finding(area, name, "present", detail)
    for missing in report.missing:
        yield Finding(area, missing.feature, "missing", "missing", missing.why, missing.fix)
    if report.limits is not None:
        yield from of_limits(report.name, report.limits)


def of_limits(runtime: str, test: LimitTest) -> Iterator[Finding]:
    """Yield how each limit was hit and what answered; what a limit that does not hold means is said by the runtime."""
    when = datetime.fromtimestamp(test.tested_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    origin = f"remembered from {when}" if test.remembered else f"hit just now, in {test.seconds:.1f} s"
    area = f"limits of {runtime} ({origin})"
    for check in test.checks:
        verdict = "" if check.holds else "NOT ENFORCED: "
        yield Finding(
            area, check.name, "present" if check.holds else "missing", f"{verdict}{check.how}: {check.answer}"
        )
    yield Finding(area, "output, wall time", "present", "counted and ended by cellfork itself, on this side")


def _verdict(report: RuntimeReport) -> str:
    return (
        "one was started and ended"
        if report.available and report.name == DEFAULT
        else ("available" if report.available else "cannot be started")
    )


def of_host() -> Iterator[Finding]:
    """Yield what this machine has: processors, memory, disk, control groups."""
    yield Finding(
        "host", "processors", "present", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"
    )
    yield _memory(_meminfo().get("MemAvailable", 0))
    yield _disk(Path(tempfile.gettempdir()))
    yield _cgroups(Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"))
    yield _user_namespaces(Path("/proc/sys"), privileged=os.geteuid() == 0)


def _meminfo() -> dict[str, int]:
    """Return /proc/meminfo in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}


def _memory(available: int) -> Finding:
    wanted = Limits().memory_bytes
    if available >= wanted:
        return Finding("host", "memory", "present", f"{available / GiB:.1f} GiB available")
    cost = "a sandbox that uses all it may have brings the machine down to its last page"
    fix = f"give sandboxes less: --memory {max(64, available // 2 // 1024**2)}M"
    return Finding("host", "memory", "absent", f"{human_size(available)} available", cost, fix)


def _disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    detail = f"{free / GiB:.1f} GiB free in {directory}"
    if free >= GiB // 4:
        return Finding("host", "disk", "present", detail)
    return Finding(
        "host", "disk", "absent", detail, "large results cannot be saved", f"free space in {directory}"
    )


def _cgroups(mounts: str) -> Finding:
    """Say which version of control groups is mounted where; whether they can be used is the runtime's finding."""
    rows = [line.split() for line in mounts.splitlines()]
    v2 = [row[1] for row in rows if len(row) > 2 and row[2] == "cgroup2"]
    v1 = [row[1] for row in rows if len(row) > 2 and row[2] == "cgroup"]
    if v2 and not v1:
        return Finding("host", "control groups", "present", f"version 2 at {v2[0]}")
    if v1:
        hybrid = f", version 2 at {v2[0]}" if v2 else ""
        return Finding("host", "control groups", "present", f"version 1 at {', '.join(v1)}{hybrid}")
    cost = "memory, CPU and the number of processes cannot be limited"
    return Finding(
        "host", "control groups", "absent", "not mounted", cost, "mount -t cgroup2 none /sys/fs/cgroup"
    )


USER_NAMESPACES = (
    ("user/max_user_namespaces", "0", True, "sysctl user.max_user_namespaces=10000"),
    ("kernel/unprivileged_userns_clone", "0", False, "sysctl kernel.unprivileged_userns_clone=1"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        False,
        (
            "give the interpreter an AppArmor profile with 'userns,', "
            "or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        ),
    ),
)
"""Setting, the value that forbids user namespaces, whether root is forbidden as well, the remedy."""


def _user_namespaces(settings: Path, *, privileged: bool) -> Finding:
    """Say whether a setting of the host forbids what sandboxes are built from."""
    for name, forbidding, even_root, fix in USER_NAMESPACES:
        file = settings / name
        if (even_root or not privileged) and file.is_file() and file.read_text().strip() == forbidding:
            detail = f"{name.replace('/', '.')} = {forbidding}"
            return Finding("host", "user namespaces", "absent", detail, "sandboxes are built from them", fix)
    return Finding("host", "user namespaces", "present", "no setting forbids them")


SCIENCE = ("numpy", "pandas", "matplotlib", "PIL", "scipy", "seaborn", "plotly", "altair", "e2b_charts")
_DISTRIBUTIONS = {"PIL": "pillow", "e2b_charts": "e2b-charts", "IPython": "ipython"}


def of_python() -> Iterator[Finding]:
    """Yield what the interpreter has that sandboxes start from."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "interpreter", "present", f"{version} at {sys.executable}")
    yield _package("IPython", "missing", "no Python kernel can be started", "pip install ipython")
    yield from _packages(SCIENCE)


def _packages(names: Sequence[str]) -> Iterator[Finding]:
    cost = "code that imports it fails, unless its sandbox may install it (network=['packages'])"
    for name in names:
        yield _package(name, "absent", cost, "pip install 'cellfork[science]'")


def _package(name: str, otherwise: State, cost: str, fix: str) -> Finding:
    if find_spec(name) is None:
        return Finding("python", name, otherwise, "not installed", cost, fix)
    try:
        version = metadata.version(_DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        version = "version unknown"
    return Finding("python", name, "present", version)
