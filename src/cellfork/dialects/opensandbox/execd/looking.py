"""Files that are looked at: what they are, what is in a directory, what has a name."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.errors import Refused, invalid
from cellfork.dialects.opensandbox.execd.globs import compiled
from cellfork.dialects.opensandbox.execd.ownership import PREFIX, told_mode, told_owner
from cellfork.dialects.opensandbox.execd.paths import expanded
from cellfork.engine.files import Listing
from cellfork.engine.values import EntryInfo

MOST_PATHS: Final = 1000
"""Paths of one request."""
MOST_DEPTH: Final = 10_000
TOO_MANY: Final = "TOO_MANY_FILES"
_TYPES = {"file": "file", "dir": "directory", "symlink": "symlink", "other": "other"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_FIRST = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


class Looking:
    """``GET`` of ``/files/info``, ``/files/search`` and ``/directories/list``."""

    def routes(self) -> Routes:
        """Return what is served."""
        return (
            Route("GET", "/files/info", self.info),
            Route("GET", "/files/search", self.search),
            Route("GET", "/directories/list", self.list),
        )

    async def info(self, call: Call) -> None:
        """Tell of each path what is there; the answer has the paths as they were asked for."""
        told = {}
        for path in paths_of(call):
            entry = await call.sandbox.files.stat(expanded(call.sandbox, path), prefix=PREFIX)
            told[path] = told_entry(entry)
        await call.answer(told)

    async def search(self, call: Call) -> None:
        """List what is below a path, is no directory, and has a name like the pattern."""
        path, pattern = expanded(call.sandbox, call.wanted("path")), call.value("pattern") or "**"
        found = await call.sandbox.files.search(path, compiled(pattern), prefix=PREFIX)
        await call.answer(_all_of(found))

    async def list(self, call: Call) -> None:
        """List what is in a directory, down to ``depth``, each directory before what is in it; links are not followed."""
        path, depth = expanded(call.sandbox, call.wanted("path")), call.number("depth", 1, 0)
        entry = await call.sandbox.files.stat(path)
        if entry.type == "symlink":
            raise invalid(f"path is a symbolic link, refusing to traverse: {path[:200]}")
        if entry.type != "dir":
            raise invalid(f"path is not a directory: {path[:200]}")
        if not depth:
            await call.answer([])
            return
        found = await call.sandbox.files.list(path, min(depth, MOST_DEPTH), prefix=PREFIX)
        await call.answer(_all_of(found))


def paths_of(call: Call) -> list[str]:
    """Return the values of ``path``, of which there may be several.  Raises :class:`Refused` where there are too many."""
    paths = call.query.get("path", [])
    if len(paths) > MOST_PATHS:
        raise invalid(f"at most {MOST_PATHS:,} paths are taken at once")
    return paths


def told_entry(entry: EntryInfo) -> dict[str, Any]:
    """Return an entry as this wire has it; it was asked for with the prefix of our attributes."""
    owner, group = told_owner(entry)
    return {
        "path": entry.path,
        "type": _TYPES[entry.type],
        "size": entry.size,
        "modified_at": moment(entry.mtime),
        "created_at": moment(entry.ctime),
        "owner": owner,
        "group": group,
        "mode": told_mode(entry),
    }


def moment(nanoseconds: int) -> str:
    """Return a time as RFC 3339, to the microsecond."""
    told = _EPOCH + timedelta(microseconds=max(_FIRST, min(nanoseconds // 1000, _LAST)))
    return told.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _all_of(found: Listing) -> list[dict[str, Any]]:
    """Return what was found.  Raises :class:`Refused` where that is not all: half a list would look like a whole one."""
    if found.truncated:
        raise Refused(
            400, TOO_MANY, f"there are more than {len(found.entries):,} files; ask for a part of them"
        )
    return [told_entry(entry) for entry in found.entries]
