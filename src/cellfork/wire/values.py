"""JSON values from the other side, made harmless for whoever encodes or walks them later."""

import json
import re
from typing import Any

MAX_DEPTH = 200
"""How deep values may nest: those who walk them may recurse."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(text: str, *, strict: bool = False) -> Any:
    """Return the JSON value in ``text``; lone surrogates, which no UTF-8 can hold, become ``�``.

    Raises ``ValueError`` for what is no JSON (``strict``: NaN and ``Infinity`` are none),
    ``RecursionError`` for what nests far too deeply.
    """
    value = json.loads(text, parse_constant=_refuse if strict else None)
    if "\\ud" in text or "\\uD" in text:
        value = json.loads(_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", json.dumps(value, ensure_ascii=False)))
    return value


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def is_shallow(value: Any) -> bool:
    """Tell whether ``value`` nests at most :data:`MAX_DEPTH` deep, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return True
    return False
