"""Owners and modes in a sandbox where every file is one user's.

An owner or a group that a client gives is kept beside the file, as an extended attribute, and told by this API; it takes and
gives no right, and ``ls`` shows the file as it is.  A directory keeps its owner's rights whatever mode is asked for: upstream's
root enters it anyway, and here nobody else could.  The mode that was asked for is kept and told likewise.
"""

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cellfork.dialects.opensandbox.execd import schema
from cellfork.dialects.opensandbox.execd.errors import invalid, unsupported
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.values import EntryInfo

PREFIX: Final = "user.cellfork."
OWNER, GROUP, MODE = "owner", "group", "mode"
OWN_USER: Final = "user"
DIRECTORY_RIGHTS: Final = stat.S_IRWXU
_TABLES: Mapping[str, str] = {OWNER: "/etc/passwd", GROUP: "/etc/group"}


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for a file: permission bits, and whose it is to be called (``None``: nothing)."""

    mode: int | None = None
    names: Mapping[str, str] | None = None


async def wish_of(sandbox: Sandbox, asked: schema.Permission | schema.FileMetadata) -> Wish:
    """Return what is asked.  Raises :class:`Refused` for a mode that is none, and for names that the sandbox does not know."""
    names = {kind: name for kind, name in ((OWNER, asked.owner), (GROUP, asked.group)) if name}
    for kind, name in names.items():
        await _check_name(sandbox, kind, name)
    return Wish(mode_of(asked.mode), names or None)


def mode_of(digits: int | None) -> int | None:
    """Return the bits of a mode such as 644; ``None`` for none, and for 0, which asks for nothing.  Raises :class:`Refused`."""
    if not digits:
        return None
    try:
        return int(str(digits), 8)
    except ValueError:
        raise invalid(f"the mode {digits} is no octal number") from None


async def apply(sandbox: Sandbox, path: str, wish: Wish) -> None:
    """Give a file what is asked for it; a symbolic link is followed."""
    if wish == Wish():
        return
    mode = wish.mode
    attributes: dict[str, str | None] = {
        PREFIX + kind: None if name == OWN_USER else name for kind, name in (wish.names or {}).items()
    }
    if mode is not None:
        attributes[PREFIX + MODE] = None
        if await _is_directory(sandbox, path) and mode & DIRECTORY_RIGHTS != DIRECTORY_RIGHTS:
            attributes[PREFIX + MODE] = f"{mode:o}"
            mode |= DIRECTORY_RIGHTS
    entry = await sandbox.files.change(path, mode=mode, attributes=attributes, prefix=PREFIX)
    wanted = {name.removeprefix(PREFIX): value for name, value in attributes.items() if value is not None}
    if entry.type != "symlink" and any(entry.attributes.get(name) != value for name, value in wanted.items()):
        raise unsupported(f"the file system of {path[:200]} keeps no owners and groups beside its files")


def told_mode(entry: EntryInfo) -> int:
    """Return the mode of an entry as decimal digits: what was asked for, as long as that is what it has."""
    mode = entry.mode
    asked = entry.attributes.get(MODE, "")
    if asked.isascii() and asked.isdigit() and len(asked) <= 4 and not set(asked) & set("89"):
        bits = int(asked, 8)
        if entry.type == "dir" and bits | DIRECTORY_RIGHTS == mode:
            mode = bits
    return int(f"{mode:o}")


def told_owner(entry: EntryInfo) -> tuple[str, str]:
    """Return the owner and the group of an entry."""
    return entry.attributes.get(OWNER) or entry.owner, entry.attributes.get(GROUP) or entry.group


async def _is_directory(sandbox: Sandbox, path: str) -> bool:
    entry = await sandbox.files.stat(path, prefix=PREFIX)
    return entry.type == "dir" or stat.S_ISDIR(entry.resolved_mode)


async def _check_name(sandbox: Sandbox, kind: str, name: str) -> None:
    table = await sandbox.files.read_range(_TABLES[kind], 0, 64 * 1024)
    known = {line.partition(b":")[0] for line in table.splitlines()}
    if name.encode("utf-8", "replace") not in known:
        what = "user" if kind == OWNER else "group"
        raise invalid(f"failed to lookup {what} {name[:80]}: unknown {what}")
