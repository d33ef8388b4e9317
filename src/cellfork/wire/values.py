"""JSON values from the other side, made harmless for whoever encodes or walks them later."""

import json
import re
from math import isfinite
from typing import Any

MAX_DEPTH = 200
"""How deep values may nest: those who walk them may recurse."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(text: str, *, strict: bool = False) -> Any:
    """Return the JSON value in ``text``; lone surrogates, which no UTF-8 can hold, become ``�``.

    Raises ``ValueError`` for what is no JSON (``strict``: NaN, ``Infinity`` and numbers that are none of
    Python's, such as ``1e400``, are not), ``RecursionError`` for what nests far too deeply.
    """
    value = _decode_strictly(text) if strict else _decode(text)
    if "\\ud" in text or "\\uD" in text:
        value = _decode(_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", _encode(value)))
    return value


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise ValueError(number)
    return value


# Made once: that is faster, and code in the kernel may replace what is in ``json``.
_decode = json.JSONDecoder().decode
_decode_strictly = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite).decode
_encode = json.JSONEncoder(ensure_ascii=False).encode


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


def weigh(content: bytes) -> int:
    """Return the most memory, in bytes, that the JSON in ``content`` can take as Python values.

    An empty list is three bytes of JSON and eighty of memory: who keeps values has to count these.
    """
    text = len(content) if content.isascii() and b"\\u" not in content else 4 * len(content)
    return 64 + text + sum(content.count(token) * size for token, size in _WEIGHTS)


_WEIGHTS = ((b"{", 232), (b"[", 120), (b":", 128), (b",", 48), (b'"', 40))
"""What each token of JSON can stand for in CPython: containers with their first entry, entries, texts (two quotes)."""
