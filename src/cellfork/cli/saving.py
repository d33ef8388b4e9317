"""Writing results to files: ``cell-1-result-2.png`` and so on; what the code wrote itself, below ``cell-1-files``."""

import base64
import binascii
import csv
import io
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from cellfork.model.artifacts import Artifact
from cellfork.model.errors import CellforkError, InvalidRequest
from cellfork.model.execution import Execution
from cellfork.model.results import Result, json_safe
from cellfork.model.specs import HOME
from cellfork.render.text import as_text

_BINARY = {"png": "png", "jpeg": "jpg", "pdf": "pdf"}
_TEXT = {"svg": "svg", "html": "html", "markdown": "md", "latex": "tex", "javascript": "js"}


def save_results(execution: Execution, directory: Path, cell: int) -> list[str]:
    """Write every rich form of every result into ``directory`` and return the paths, in order.

    Images, SVG, HTML, Markdown, LaTeX, JavaScript and PDF as they are; a data frame as CSV and JSON, a
    chart's description as ``.chart.json``.  Plain text is not saved.  Raises
    :class:`~cellfork.model.errors.InvalidRequest` where the directory cannot be written.
    """
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number, result in enumerate(execution.results, 1):
            for extension, content in files_of(result):
                path = directory / f"cell-{cell}-result-{number}.{extension}"
                path.write_bytes(content)
                paths.append(str(path))
    except OSError as error:
        raise InvalidRequest(f"cannot save to {directory}: {error.strerror or error}") from error
    return paths


class Files(Protocol):
    """Where artifacts are read from."""

    async def read(self, path: str, format: Literal["stream"]) -> AsyncIterator[bytes]:
        """Return an iterator over a file's content."""
        ...


class Saved(Protocol):
    """Whoever wants to know what became of each artifact."""

    def __call__(self, path: str, problem: str | None) -> object:
        """Hear of a file that was saved as ``path``, or that was not, and why."""
        ...


async def save_artifacts(
    execution: Execution, files: Files, directory: Path, cell: int, *, room: int, tell: Saved
) -> None:
    """Copy the files that a cell made into ``directory``, below ``cell-1-files``, and tell of each.

    Paths are relative to ``/home/user`` there; what is elsewhere is below ``cell-1-files/_``.  The names are the sandbox's:
    none leads out of that directory, none can steer a terminal, and together the files are at most ``room``
    bytes.  One that cannot be copied is told of and left out.
    """
    base = directory / f"cell-{cell}-files"
    taken: set[Path] = set()
    for artifact in execution.artifacts:
        target = _target_of(artifact, taken)
        if target is None or artifact.lossy:
            tell(shown(artifact.path), "its name cannot be given")
            continue
        taken.add(target)
        try:
            room -= await _copy(await files.read(artifact.path, format="stream"), base / target, room)
        except (CellforkError, OSError) as error:
            problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
            tell(shown(artifact.path), shown(problem))
        else:
            tell(str(base / target), None)


def shown(text: str) -> str:
    """Return text of a sandbox's with everything replaced that may not go to a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _target_of(artifact: Artifact, taken: set[Path]) -> Path | None:
    """Return where an artifact goes, relative to the directory for them; ``None`` for a path that is no plain one."""
    inside = artifact.path.startswith(HOME + "/")
    parts = artifact.path.removeprefix(HOME).split("/")[1:]
    if not parts or any(part in {"", ".", ".."} or "\0" in part for part in parts):
        return None
    names = [shown(part).replace("\\", "_").encode("utf-8", "replace").decode() for part in parts]
    target = Path(*names) if inside else Path("_", *names)
    number = 0
    while target in taken:
        number += 1
        target = target.with_name(f"{names[-1]}.{number}")
    return target


async def _copy(content: AsyncIterator[bytes], target: Path, room: int) -> int:
    """Write ``content`` to ``target`` and return its size; what fails, or is larger than ``room``, leaves nothing."""
    size = 0
    with _new_file(target) as file:
        async for piece in content:
            size += len(piece)
            if size > room:
                raise InvalidRequest("the files are larger than the sandbox's disk can be")
            file.write(piece)
    return size


@contextmanager
def _new_file(target: Path) -> Iterator[BinaryIO]:
    """Open ``target`` for writing, never through a symbolic link; remove it where the block raises."""
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o644), "wb") as file:
        try:
            yield file
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def files_of(result: Result) -> Iterator[tuple[str, bytes]]:
    """Yield the extension and the content of each file that a result amounts to."""
    for name, extension in _BINARY.items():
        content = _decoded(getattr(result, name))
        if content is not None:
            yield extension, content
    for name, extension in _TEXT.items():
        value = getattr(result, name)
        if value is not None:
            yield extension, as_text(value).encode()
    if result.chart is not None:
        yield "chart.json", _json(result.chart.to_dict())
    if result.data is not None:
        if isinstance(result.data, Mapping):
            yield "csv", _csv(result.data)
        yield "json", _json(result.data)
    elif result.json is not None:
        yield "json", _json(result.json)


def _decoded(value: Any) -> bytes | None:
    try:
        return base64.b64decode(value) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


def _json(value: Any) -> bytes:
    return (json.dumps(json_safe(value), indent=1, default=str) + "\n").encode()


def _csv(columns: Mapping[str, Any]) -> bytes:
    """Return CSV for columns by name, each a list of values or a mapping from row labels to values."""
    values = [_column(column) for column in columns.values()]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(as_text(name) for name in columns)
    writer.writerows([_cell(value) for value in row] for row in zip_longest(*values))
    return text.getvalue().encode()


def _column(column: Any) -> list[Any]:
    if isinstance(column, Mapping):
        return list(column.values())
    return column if isinstance(column, list) else [column]


def _cell(value: Any) -> str:
    return "" if value is None else as_text(value)
