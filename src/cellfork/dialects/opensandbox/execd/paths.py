"""Paths as execd reads them: ``~`` is the home, ``$NAME`` a variable of the sandbox."""

from collections.abc import Mapping

from cellfork.dialects.opensandbox.execd.environment import known, substituted
from cellfork.dialects.opensandbox.execd.errors import invalid
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import FileError


def expanded(sandbox: Sandbox, path: str, envs: Mapping[str, str] | None = None) -> str:
    """Return a path with its variables replaced.  Raises :class:`Refused` for one that is not set, and for no path."""
    if not path:
        raise invalid("a path is empty")
    variables = {**known(sandbox), **(envs or {})}

    def value(name: str) -> str:
        if name not in variables:
            raise invalid(f"path references undefined environment variables: {name[:80]}")
        return variables[name]

    return substituted(path, value)


async def directory(sandbox: Sandbox, path: str, envs: Mapping[str, str] | None = None) -> str:
    """Return the directory that a request names.  Raises :class:`Refused` where it is none."""
    place = expanded(sandbox, path, envs)
    problem = invalid(f"validation error working directory does not exist: {path[:200]}")
    try:
        entry = await sandbox.files.stat(place)
    except FileError:
        raise problem from None
    if entry.type not in {"dir", "symlink"}:
        raise problem
    return entry.path
