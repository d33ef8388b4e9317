"""What cellfork must know of the Python that runs inside sandboxes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from cellfork.model.errors import StartupFailed

_DESCRIBE = (
    "import json,site,sys,os;"
    "print(json.dumps([sys.executable,sys.prefix,sys.base_prefix,'%d.%d'%sys.version_info[:2],"
    "[p for p in site.getsitepackages() if os.path.isdir(p)]]))"
)
_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python: where it and its base are, its version (``3.11``), its site-packages."""

    executable: str
    prefix: str
    base_prefix: str
    version: str
    site_packages: tuple[str, ...]


def describe(executable: str | None = None) -> Interpreter:
    """Ask ``executable`` (default: the Python that runs cellfork) about itself.

    Raises :class:`StartupFailed` where it cannot be run or is older than 3.11.
    """
    command = [executable or sys.executable, "-I", "-c", _DESCRIBE]
    try:
        answer = subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS, env={}).stdout
        path, prefix, base, version, site_packages = json.loads(answer)
        number = tuple(map(int, version.split(".")))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, AttributeError) as error:
        raise StartupFailed(f"the interpreter {command[0]!r} does not answer: {error}") from error
    if number < (3, 11):
        raise StartupFailed(
            f"the interpreter {command[0]!r} is Python {version}; sandboxes need 3.11 or newer"
        )
    return Interpreter(path, os.path.normpath(prefix), os.path.normpath(base), version, tuple(site_packages))
