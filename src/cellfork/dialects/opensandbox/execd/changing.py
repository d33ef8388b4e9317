"""Files that are changed: removed, moved, given to somebody, rewritten; directories that are made and removed."""

import contextlib
from collections.abc import Collection
from typing import Any, Final, TypeVar

from cellfork.dialects.opensandbox.execd import schema
from cellfork.dialects.opensandbox.execd.calls import Call, Route, Routes
from cellfork.dialects.opensandbox.execd.errors import RUNTIME_ERROR, Refused, invalid
from cellfork.dialects.opensandbox.execd.looking import MOST_PATHS, paths_of
from cellfork.dialects.opensandbox.execd.ownership import PREFIX, apply, wish_of
from cellfork.dialects.opensandbox.execd.paths import expanded
from cellfork.engine.sandbox import Sandbox
from cellfork.model.errors import LimitExceeded, PathNotFound
from cellfork.model.limits import MiB

LARGEST: Final = 64 * MiB
"""Bytes of a file in which text is replaced, and of what comes of it."""

Items = TypeVar("Items", bound=Collection[Any])


class Changing:
    """What changes files without sending their content."""

    def routes(self) -> Routes:
        """Return what is served."""
        return (
            Route("DELETE", "/files", self.remove),
            Route("POST", "/files/permissions", self.set_permissions),
            Route("POST", "/files/mv", self.move),
            Route("POST", "/files/replace", self.replace),
            Route("POST", "/directories", self.make_directories),
            Route("DELETE", "/directories", self.remove_directories),
        )

    async def remove(self, call: Call) -> None:
        """Remove files; what is not there needs no removing, a directory is refused."""
        files = call.sandbox.files
        for path in paths_of(call):
            place = expanded(call.sandbox, path)
            with contextlib.suppress(PathNotFound):
                if (await files.stat(place)).type == "dir":
                    raise Refused(
                        400, RUNTIME_ERROR, f"error removing file: path is a directory: {path[:200]}"
                    )
                await files.remove(place, recursive=False)
        await call.answer()

    async def remove_directories(self, call: Call) -> None:
        """Remove directories with everything in them; what is not there needs no removing."""
        for path in paths_of(call):
            with contextlib.suppress(PathNotFound):
                await call.sandbox.files.remove(expanded(call.sandbox, path))
        await call.answer()

    async def set_permissions(self, call: Call) -> None:
        """Give files a mode, an owner, a group."""
        for path, asked in _bounded(await call.body(dict[str, schema.Permission])).items():
            await apply(call.sandbox, expanded(call.sandbox, path), await wish_of(call.sandbox, asked))
        await call.answer()

    async def move(self, call: Call) -> None:
        """Move files and directories; the directory above the new place is made, what is there already stays."""
        files = call.sandbox.files
        for item in _bounded(await call.body(list[schema.Move])):
            source, target = expanded(call.sandbox, item.src), expanded(call.sandbox, item.dest)
            await files.stat(source)
            if await files.exists(target):
                raise Refused(409, RUNTIME_ERROR, f"destination path already exists: {item.dest[:200]}")
            await files.move(source, target)
        await call.answer()

    async def replace(self, call: Call) -> None:
        """Replace text in files; with ``verbose`` tell how often."""
        told = {}
        for path, item in _bounded(await call.body(dict[str, schema.Replacement])).items():
            count = await _replace(call.sandbox, expanded(call.sandbox, path), item)
            told[path] = {"replacedCount": count}
        await call.answer(told if call.value("verbose") == "true" else None)

    async def make_directories(self, call: Call) -> None:
        """Make directories and those above them; one that is there already stays as it is."""
        for path, asked in _bounded(await call.body(dict[str, schema.Permission])).items():
            place, wish = expanded(call.sandbox, path), await wish_of(call.sandbox, asked)
            if await call.sandbox.files.make_dir(place):
                await apply(call.sandbox, place, wish)
        await call.answer()


async def _replace(sandbox: Sandbox, path: str, item: schema.Replacement) -> int:
    """Replace text in one file, which keeps its mode and whose it is; return how often."""
    old, new = item.old.encode(), item.new.encode()
    content = await sandbox.files.read_range(path, 0, LARGEST + 1)
    count = content.count(old)
    if len(content) + count * (len(new) - len(old)) > LARGEST or len(content) > LARGEST:
        raise LimitExceeded(f"text is replaced in files of at most {LARGEST:,} bytes")
    if count:
        entry = await sandbox.files.stat(path, prefix=PREFIX)
        kept = {PREFIX + name: value for name, value in entry.attributes.items()}
        upload = await sandbox.files.open_upload(path)
        try:
            await upload.write(content.replace(old, new))
            await upload.commit(kept)
        except BaseException:
            upload.abort()
            raise
    return count


def _bounded(items: Items) -> Items:
    if len(items) > MOST_PATHS:
        raise invalid(f"at most {MOST_PATHS:,} paths are taken at once")
    return items
