"""What a bundle carries beyond Jupyter's formats: columns of data frames, charts of figures, JSON of lists and dicts.

Libraries are met through their objects only; nothing is imported that the user's code did not.
"""

import datetime as dt
import math
import uuid
import warnings
from typing import Any

MAX_CELLS = 100_000
"""Cells of a data frame that travel as data; of a larger one, the first rows."""
MAX_NODES = 10_000
"""Values in a list or dict that still travels as JSON."""
MAX_DEPTH = 32


def columns_of(frame: Any) -> Any:
    """Return a pandas data frame as column name → list of JSON values.

    Of a large frame only the first rows; then the metadata tell ``rows`` and ``rows_kept``.
    """
    rows, width = frame.shape
    kept = min(rows, max(1, MAX_CELLS // max(1, width)))
    head = frame.iloc[:kept] if kept < rows else frame
    data = {
        str(name): [_cell(value) for value in head.iloc[:, i].tolist()]
        for i, name in enumerate(frame.columns)
    }
    return (data, {"rows": rows, "rows_kept": kept}) if kept < rows else data


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dt.date | dt.time):
        return None if value != value else value.isoformat()  # noqa: PLR0124 - NaT is not equal to itself
    if type(value).__name__ == "NAType":
        return None
    json_value = _Walk().convert(value, 0)
    return str(value) if json_value is NOT_JSON else json_value


def chart_of(figure: Any) -> dict[str, Any] | None:
    """Return what e2b-charts reads from a matplotlib figure; ``None`` where it finds nothing or fails."""
    try:
        from e2b_charts import chart_figure_to_dict

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return chart_figure_to_dict(figure) or None
    except Exception:  # noqa: BLE001 - it reads private attributes of whatever was drawn
        return None


def json_of(value: Any) -> Any:
    """Return a list or dict as JSON values; ``None`` where it is large, deep, or holds anything else."""
    result = _Walk().convert(value, 0)
    return None if result is NOT_JSON else result


NOT_JSON = object()


class _Walk:
    """Converts, counting values."""

    def __init__(self) -> None:
        self._left = MAX_NODES

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
            if name is None or item is NOT_JSON:
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
            return value.isoformat()
        if isinstance(value, uuid.UUID):
            return str(value)
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
            if math.prod(getattr(value, "shape", ())) > self._left:
                return NOT_JSON
            listed = value.tolist()
            return NOT_JSON if type(listed) is type(value) else self.convert(listed, depth + 1)
        return NOT_JSON
