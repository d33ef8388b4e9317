"""A file of a sandbox that is sent to a client: read in windows, so that no more of it is held than one."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from cellfork.dialects.asgi import Abort
from cellfork.engine.files import Files, Part
from cellfork.model.errors import Conflict, FileError
from cellfork.model.limits import MiB

WINDOW: Final = 2 * MiB
"""Bytes of a file that are read at once."""
MAX_UNSIZED: Final = 64 * MiB
"""What is read of a file that says it is empty, as those in ``/proc`` do."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """One file, of which the ``first`` window was read.  The rest is read as long as it is the same file."""

    files: Files
    path: str
    first: Part

    @property
    def size(self) -> int:
        """How many bytes it had when it was opened."""
        return self.first.total or len(self.first.data)

    async def parts(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield what is from ``start`` up to ``end``.  Raises :class:`Abort` where it ends early."""
        end = self.size if end is None else end
        if start < len(self.first.data):
            yield self.first.data[start:end]
            start = len(self.first.data)
        while start < end:
            try:
                part = await self.files.read_part(self.path, start, min(WINDOW, end - start), self.first.file)
            except (FileError, Conflict) as error:
                raise Abort from error
            if not part.data:
                raise Abort
            yield part.data
            start += len(part.data)


async def open_file(files: Files, path: str) -> OpenedFile:
    """Read the beginning of a file.  Raises :class:`FileError`."""
    first = await files.read_part(path, 0, WINDOW)
    if not first.total and len(first.data) == WINDOW:
        first = await files.read_part(path, 0, MAX_UNSIZED)
    return OpenedFile(files, path, first)
