"""Writing results to files: ``cell-1-result-2.png`` and so on."""

import base64
import binascii
import csv
import io
import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cellfork.model.errors import InvalidRequest
from cellfork.model.execution import Execution
from cellfork.model.results import Result, json_safe
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
        yield "chart.json", _json(result.chart)
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
