"""Where the modules of an image came from: all from places that no sandbox can write to, and always the same."""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence


def digest(preload: Sequence[str]) -> str:
    """Return a SHA-256 of what the image consists of: interpreter, preload list, every module with its file.

    A file is taken as its path, size and time of change.  Equal digests mean the same code, as far as that tells.
    """
    lines = [sys.version, sys.executable, *preload]
    lines += sorted(f"{name}\0{path}\0{_stamp(path)}" for name, path in _modules())
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def writable() -> list[str]:
    """Return the modules whose file lies in a file system that can be written to, by name and path."""
    return sorted(f"{name} ({path})" for name, path in _modules() if path and not _is_read_only(path))


def _modules() -> Iterator[tuple[str, str]]:
    for name, module in [*sys.modules.items()]:
        path = getattr(module, "__file__", None)
        yield name, path if isinstance(path, str) else ""


def _stamp(path: str) -> str:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def _is_read_only(path: str) -> bool:
    """Tell for a file, or for what a file holds (a module in an archive)."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return bool(os.statvfs(path or "/").f_flag & os.ST_RDONLY)
