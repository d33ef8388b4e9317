"""What a bundle carries beyond Jupyter's formats: columns of data frames, JSON of lists and dicts (charts: :mod:`.charts`).

Libraries are met through their objects only; nothing is imported that the user's code did not.
"""

import datetime as dt
import math
import uuid
from collections.abc import Iterable
from typing import Any

MAX_CELLS = 100_000
"""Cells of a data frame that travel as data; of a larger one, the first rows."""
MAX_BYTES = 8 * 1024 * 1024
"""Bytes or so that the data of a frame take; of a larger one, the first rows."""
MAX_LABELS = 1000
"""Labels of rows that travel beside the data."""
MAX_LABEL_TEXT = 16 * 1024
"""Characters of all these labels together."""
MAX_NODES = 10_000
"""Values in a list or dict that still travels as JSON."""
MAX_DEPTH = 32

FRAMES = (
    ("pandas", "DataFrame"),
    ("pandas.core.frame", "DataFrame"),
    ("polars.dataframe.frame", "DataFrame"),
    ("pyarrow.lib", "Table"),
    ("pyarrow.lib", "RecordBatch"),
)
"""Module and name of the types whose columns are data."""
PLAIN = frozenset({str, int, float, bool, type(None)})
NUMBERS = frozenset({int, float, bool, type(None)})
NAN_IS_NONE = frozenset({"str", "string", "category"})
"""Types of pandas' columns in which NaN stands for what is missing, and is no number."""


def columns_of(frame: Any) -> Any:
    """Return a data frame (pandas, polars, pyarrow) as column name → list of JSON values.

    A name that comes again gets a number (``a``, ``a.1``).  Of a large frame only the first rows, and of a very wide one
    the first columns; then the metadata tell ``rows`` and ``rows_kept``, ``columns`` and ``columns_kept``.  Row labels of
    pandas that are not just numbers from 0 are told in the metadata as ``index``: ``names`` and, where they
    are few, ``values``, a list for each level.
    """
    rows, width = (int(size) for size in frame.shape)
    columns_kept = min(width, MAX_CELLS)
    rows_kept = min(rows, max(1, MAX_CELLS // max(1, columns_kept)))
    walk = _Walk(MAX_CELLS, frames=True)
    head = frame.iloc[:rows_kept] if rows_kept < rows and hasattr(frame, "iloc") else frame
    columns = [_column(head, i, rows_kept, walk) for i in range(columns_kept)]
    rows_kept = _rows_that_fit(columns, rows_kept)
    data = {
        name: column[:rows_kept] for name, column in zip(_names(frame, columns_kept), columns, strict=True)
    }
    metadata = _index_of(frame, rows_kept, walk)
    if rows_kept < rows:
        metadata |= {"rows": rows, "rows_kept": rows_kept}
    if columns_kept < width:
        metadata |= {"columns": width, "columns_kept": columns_kept}
    return (data, metadata) if metadata else data


def _column(frame: Any, column: int, rows: int, walk: "_Walk") -> list[Any]:
    """Return the first values of a column as JSON values."""
    values = _values(frame, column, rows)
    return values if set(map(type, values)) <= PLAIN else [_cell(value, walk) for value in values]


def _values(frame: Any, column: int, rows: int) -> list[Any]:
    """Return the first values of a column: as pandas has them, else as polars and pyarrow do."""
    if hasattr(frame, "iloc"):
        series = frame.iloc[:, column]
        values: list[Any] = series.tolist()
        return [_without_nan(value) for value in values] if str(series.dtype) in NAN_IS_NONE else values
    if hasattr(frame, "to_series"):
        return frame.to_series(column).head(rows).to_list()  # type: ignore[no-any-return]
    return frame.column(column).slice(0, rows).to_pylist()  # type: ignore[no-any-return]


def _without_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _names(frame: Any, count: int) -> list[str]:
    """Return a name of its own for each of the first columns."""
    arrow = not hasattr(frame, "iloc") and hasattr(frame, "column_names")
    columns: Iterable[Any] = frame.column_names if arrow else frame.columns
    taken: set[str] = set()
    names = []
    for name, _ in zip(map(_text, columns), range(count), strict=False):
        chosen, number = name, 0
        while chosen in taken:
            number += 1
            chosen = f"{name}.{number}"
        taken.add(chosen)
        names.append(chosen)
    return names


def _rows_that_fit(columns: list[list[Any]], rows: int) -> int:
    """Return how many rows come to at most :data:`MAX_BYTES`, at least one."""
    size = sum(map(_size, columns))
    while size > MAX_BYTES and rows > 1:
        rows = max(1, min(rows - 1, rows * MAX_BYTES // size))
        size = sum(_size(column[:rows]) for column in columns)
    return rows


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) + 3
    if isinstance(value, list):
        if set(map(type, value)) <= NUMBERS:
            return 8 * len(value)
        return 2 + sum([len(item) + 3 if type(item) is str else _size(item) for item in value])
    if isinstance(value, dict):
        return 2 + sum(len(key) + 4 + _size(item) for key, item in value.items())
    return 8


def _index_of(frame: Any, rows: int, walk: "_Walk") -> dict[str, Any]:
    """Return what is to be told of a pandas frame's row labels: nothing where they are numbers from 0."""
    index = getattr(frame, "index", None)
    if index is None or not hasattr(frame, "iloc"):
        return {}
    names = [None if name is None else _text(name) for name in index.names]
    plain = type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1
    if plain and names == [None]:
        return {}
    told: dict[str, Any] = {"names": names}
    if rows * len(names) <= MAX_LABELS:
        levels = [index[:rows].get_level_values(i).tolist() for i in range(len(names))]
        values = [[_cell(value, walk) for value in level] for level in levels]
        if _size(values) <= MAX_LABEL_TEXT:
            told["values"] = values
    return {"index": told}


def _cell(value: Any, walk: "_Walk") -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dt.date | dt.time):
        return None if value != value else value.isoformat()  # noqa: PLR0124 - NaT is not equal to itself
    if type(value).__name__ == "NAType":
        return None
    json_value = walk.convert(value, 0)
    return _text(value) if json_value is NOT_JSON else json_value


def _text(value: Any) -> str:
    """Return ``str(value)``, or what it is where that raises."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - the user's own __str__
        return f"<{type(value).__name__}>"


def json_of(value: Any) -> Any:
    """Return a list or dict as JSON values; ``None`` where it is large, deep, or holds anything else."""
    result = _Walk(MAX_NODES).convert(value, 0)
    return None if result is NOT_JSON else result


NOT_JSON = object()


class _Walk:
    """Converts, counting values; with ``frames``, pandas' frames and series are objects and lists."""

    def __init__(self, nodes: int, *, frames: bool = False) -> None:
        self._left = nodes
        self._frames = frames

    def convert(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            return NOT_JSON
        if value is None or isinstance(value, str | bool | int):
            return value
        if isinstance(value, float):
            return float(value)
        if isinstance(value, dict):
            return self._dict(value, depth)
        if isinstance(value, list | tuple):
            return self._list(value, depth)
        return self._other(value, depth)

    def _list(self, values: Any, depth: int) -> Any:
        if len(values) > self._left:
            return NOT_JSON
        converted = [self.convert(value, depth + 1) for value in values]
        return NOT_JSON if any(value is NOT_JSON for value in converted) else converted

    def _dict(self, values: dict[Any, Any], depth: int) -> Any:
        if len(values) > self._left:
            return NOT_JSON
        converted = {}
        for key, value in values.items():
            name = self._key(key)
            item = self.convert(value, depth + 1)
            if name is None or item is NOT_JSON or name in converted:
                return NOT_JSON
            converted[name] = item
        return converted

    def _key(self, key: Any) -> str | None:
        if isinstance(key, str):
            return key
        if isinstance(key, bool):
            return "true" if key else "false"
        if key is None:
            return "null"
        if isinstance(key, int | float):
            return str(key)
        converted = self._other(key, 0)
        return str(converted) if isinstance(converted, str | int | float) else None

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, dt.date | dt.time):
            return None if value != value else value.isoformat()  # noqa: PLR0124 - NaT is not equal to itself
        if isinstance(value, uuid.UUID):
            return str(value)
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
            if math.prod(getattr(value, "shape", ())) > self._left:
                return NOT_JSON
            listed = value.tolist()
            return NOT_JSON if type(listed) is type(value) else self.convert(listed, depth + 1)
        return self._frame(value, depth) if self._frames else NOT_JSON

    def _frame(self, value: Any, depth: int) -> Any:
        if type(value).__module__.partition(".")[0] != "pandas" or not hasattr(value, "shape"):
            return _missing(value)
        if math.prod(value.shape) > self._left:
            return NOT_JSON
        if len(value.shape) > 1:
            names = _names(value, value.shape[1])
            columns = {name: value.iloc[:, i].tolist() for i, name in enumerate(names)}
            return self.convert(columns, depth + 1)
        return self.convert(value.tolist(), depth + 1)


def _missing(value: Any) -> Any:
    """Return ``None`` for pandas' NA, which is no JSON otherwise."""
    return None if type(value).__name__ == "NAType" else NOT_JSON
