"""Variables that outlive a command: lines of the file that ``EXECD_ENVS`` names, for every command and session after it.

``set_env`` of the SDKs appends a line to that file with a command of its own; whatever else writes it counts as well.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import FileError
from cellfork.model.specs import HOME

VARIABLE: Final = "EXECD_ENVS"
DEFAULT_FILE: Final = f"{HOME}/.execd.env"
"""The file of a sandbox whose creator names none."""
LARGEST: Final = 64 * 1024
"""Bytes of the file that are read."""

_NAME = re.compile(r"[^\s=\0]+")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED: Mapping[str, str] = {"n": "\n", "r": "\r", "t": "\t"}


def known(sandbox: Sandbox) -> dict[str, str]:
    """Return the variables of a sandbox that a path or a line may refer to."""
    return {"HOME": HOME, "USER": "user", VARIABLE: DEFAULT_FILE, **sandbox.spec.envs}


async def environment(sandbox: Sandbox, asked: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a command beside those that its sandbox has: the file's, over them those that are ``asked`` for."""
    base = known(sandbox)
    file = base[VARIABLE]
    return {VARIABLE: file, **await _kept(sandbox, file, base), **(asked or {})}


def parse(text: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return what the lines of a file set; empty lines, comments and what is no ``NAME=value`` are passed over."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.strip().partition("=")
        if equals and _NAME.fullmatch(name) and not name.startswith("#") and "\0" not in value:
            found[name] = _value(value, base)
    return found


def substituted(text: str, replacement: Callable[[str], str]) -> str:
    """Return ``text`` with each ``$NAME`` and ``${NAME}`` replaced by what ``replacement`` returns for the name."""
    return _REFERENCE.sub(lambda match: replacement(match[1] or match[2]), text)


def _value(text: str, base: Mapping[str, str]) -> str:
    """Return a value: as it is between single quotes, with escapes between double ones; variables are replaced elsewhere."""
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1]
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text[1:-1])
    return substituted(text, lambda name: base.get(name, ""))


async def _kept(sandbox: Sandbox, file: str, base: Mapping[str, str]) -> dict[str, str]:
    try:
        data = await sandbox.files.read_range(file, 0, LARGEST)
    except FileError:
        return {}
    return parse(data.decode("utf-8", "replace"), base)
