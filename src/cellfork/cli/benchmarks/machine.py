"""What was measured on, and the memory of process trees.  Linux only."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = (
    "cellfork",
    "ipython",
    "ipykernel",
    "jupyter-client",
    "nbclient",
    "numpy",
    "pandas",
    "matplotlib",
)


def describe() -> dict[str, Any]:
    """Return the machine, the interpreter, the versions that matter, and the load."""
    return {
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "system": _system(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": {name: version for name in _LIBRARIES if (version := _version(name))},
        "user": "root" if os.geteuid() == 0 else "ordinary user",
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def descendants(root: int) -> set[int]:
    """Return the process ids below ``root``, itself not included."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _parent(process: int) -> int | None:
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    return int(stat.rpartition(b")")[2].split()[1])


def private_memory(processes: set[int]) -> int:
    """Return the bytes that only these processes have: private pages, clean and dirty, of each."""
    return sum(_private(process) for process in processes)


def _private(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(
        int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))
    )
