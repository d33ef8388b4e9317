"""What a self-test found, remembered until the machine starts again.

A file is believed only where nobody but this user could have written it, and only for the host that it was made on:
the same boot, kernel, user, control groups and code of cellfork.  Anything else about it, and it is as if it were not
there.
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cellfork import __version__
from cellfork.runtimes.base import LimitCheck, LimitTest
from cellfork.runtimes.namespaces.cgroups import Cgroups
from cellfork.runtimes.plan import package_directory

MAX_SIZE = 256 * 1024
KEPT = 8
"""Files that are kept; the oldest beyond go."""
CODE = ("guest", "runtimes", "wire", "model")
"""The packages that limits are made of: where one of their files changes, what was found is found again."""

Key = Mapping[str, str]


def key_of(cgroups: Cgroups) -> Key:
    """Return everything that what was found depends on."""
    layout = {name: f"v{found.version} {found.base}" for name, found in sorted(cgroups.hierarchies.items())}
    namespaces = [f"{kind} {os.stat(f'/proc/self/ns/{kind}').st_ino}" for kind in ("user", "cgroup")]
    return {
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
        "kernel": os.uname().release,
        "version": __version__,
        "code": fingerprint(Path(package_directory())),
        "user": f"{os.geteuid()}:{os.getegid()}",
        "namespaces": ", ".join(namespaces),
        "control groups": json.dumps(layout),
    }


def directory() -> Path | None:
    """Return where findings are kept; ``None`` where this user has no place of its own."""
    if os.geteuid() == 0:
        return Path("/run/cellfork")
    if place := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(place) / "cellfork"
    try:
        return Path.home() / ".cache" / "cellfork"
    except RuntimeError:
        return None


def recall(key: Key, place: Path | None) -> LimitTest | None:
    """Return what was found under ``key``, ``None`` where nothing is known that can be trusted."""
    if place is None:
        return None
    try:
        with _private_directory(place) as directory_fd:
            values = json.loads(_read_private(_name(key), directory_fd))
        return _decoded(values, key)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def remember(key: Key, test: LimitTest, place: Path | None) -> bool:
    """Keep ``test`` under ``key``; return whether that was possible.  What does not hold is not remembered."""
    if place is None or not all(check.holds for check in test.checks):
        return False
    data = json.dumps({"key": dict(key), "test": asdict(test)}, indent=1).encode()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
        with _private_directory(place) as directory_fd:
            _replace(_name(key), data, directory_fd)
            _forget_oldest(directory_fd)
    except OSError:
        return False
    return True


def _name(key: Key) -> str:
    return f"limits-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]}.json"


def fingerprint(package: Path) -> str:
    """Return a digest of the code of cellfork that limits and sandboxes are made of."""
    digest = hashlib.sha256()
    for path in sorted(path for name in CODE for path in (package / name).rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _decoded(values: Any, key: Key) -> LimitTest | None:
    """Return the test in ``values``.  Raises what malformed values raise."""
    if values["key"] != key:
        return None
    checks = tuple(LimitCheck(**check) for check in values["test"]["checks"])
    well_formed = all(
        check.holds is True
        and all(type(text) is str for text in (check.limit, check.name, check.how, check.answer))
        for check in checks
    )
    if not checks or not well_formed:
        return None
    test = LimitTest(checks, float(values["test"]["tested_at"]), float(values["test"]["seconds"]))
    return replace(test, remembered=True)


@contextmanager
def _private_directory(path: Path) -> Iterator[int]:
    """Open a directory that belongs to this user alone.  Raises ``PermissionError`` where it does not."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_private(os.fstat(fd), 0o077)
        yield fd
    finally:
        os.close(fd)


def _read_private(name: str, directory_fd: int) -> bytes:
    """Read a small, ordinary file that only this user can have written."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        status = os.fstat(fd)
        _check_private(status, 0o022)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SIZE:
            raise PermissionError("not a small, ordinary file")
        return os.read(fd, MAX_SIZE)
    finally:
        os.close(fd)


def _check_private(status: os.stat_result, forbidden: int) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & forbidden:
        raise PermissionError("somebody else may have written here")


def _replace(name: str, data: bytes, directory_fd: int) -> None:
    temporary = f".{name}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory_fd)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise


def _forget_oldest(directory_fd: int) -> None:
    ages: list[tuple[int, str]] = []
    for name in os.listdir(directory_fd):
        with contextlib.suppress(FileNotFoundError):
            ages.append((os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mtime_ns, name))
    for _age, name in sorted(ages, reverse=True)[KEPT:]:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory_fd)
