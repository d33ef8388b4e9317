"""Cutting a file into cells."""

import re
from dataclasses import dataclass
from pathlib import PurePath

_MARKER = re.compile(r"(?:#|//) ?%%(?:[ \t]+(?P<title>.*))?[ \t]*")
_COMMENT = re.compile(r"\s*(?:#.*|//.*)?")

_LANGUAGES = {
    ".py": "python", ".ipy": "python", ".sh": "bash", ".bash": "bash",
    ".js": "javascript", ".mjs": "javascript", ".ts": "typescript", ".r": "r", ".java": "java", ".go": "go",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of code, and the title after its ``# %%``."""

    code: str
    title: str = ""


def split_cells(source: str) -> list[Cell]:
    """Cut ``source`` at its ``# %%`` (or ``// %%``) lines; a file without any is one cell.

    What comes before the first marker is a cell where it holds more than comments.  Cells marked
    ``[markdown]`` and cells without content are no code and are skipped.
    """
    cells: list[Cell] = []
    title, lines, marked = "", list[str](), False
    for line in source.splitlines(keepends=True):
        marker = _MARKER.fullmatch(line.rstrip("\r\n"))
        if marker is None:
            lines.append(line)
            continue
        _add(cells, title, lines, marked=marked)
        title, lines, marked = (marker["title"] or "").strip(), [], True
    if not marked:
        return [Cell(source)]
    _add(cells, title, lines, marked=marked)
    return cells


def _add(cells: list[Cell], title: str, lines: list[str], *, marked: bool) -> None:
    code = "".join(lines)
    is_code = (
        bool(code.strip()) if marked else any(not _COMMENT.fullmatch(line.rstrip("\r\n")) for line in lines)
    )
    if is_code and not title.lower().startswith("[markdown]"):
        cells.append(Cell(code, title))


def language_of(path: str) -> str:
    """Return the language that a file's name ends in; Python where it does not tell."""
    return _LANGUAGES.get(PurePath(path).suffix.lower(), "python")
