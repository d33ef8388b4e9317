"""Reading the values of settings: from text (flags, environment) and from what TOML knows."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cellfork.model.errors import InvalidRequest
from cellfork.model.ids import ALPHABET, NODE_TOKEN_LENGTH
from cellfork.model.limits import Limits, parse_duration, parse_size

NONE = "none"
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_NUMBERS = frozenset({"cpu", "pids", "inodes", "open_files", "results"})
"""Limits that are numbers where they are written as text."""


def text(value: Any) -> str:
    """Return text that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidRequest("give some text")
    return value.strip()


def flag(value: Any) -> bool:
    """Return a yes or no."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise InvalidRequest(f"{value!r:.60} is neither true nor false")


def whole(least: int, most: int = 2**31) -> Callable[[Any], int]:
    """Return a reader of whole numbers within bounds."""

    def read(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidRequest(f"{value!r:.60} is not a whole number from {least} to {most}")
        return value

    return read


def whole_or_none(least: int) -> Callable[[Any], int | None]:
    """Return a reader of whole numbers, or ``none``."""
    read = whole(least)
    return lambda value: None if value == NONE else read(value)


def seconds(value: Any) -> float:
    """Return a duration in seconds."""
    return parse_duration(value)


def seconds_or_none(value: Any) -> float | None:
    """Return a duration in seconds, or ``None`` for ``none``."""
    return None if value == NONE else parse_duration(value)


def size(value: Any) -> int:
    """Return a size in bytes."""
    return parse_size(value)


def path(value: Any) -> Path | None:
    """Return an absolute path, or ``None`` for ``none``."""
    return None if value == NONE else Path(text(value)).expanduser().absolute()


def paths(value: Any) -> tuple[Path, ...]:
    """Return absolute paths."""
    return tuple(Path(text(word)).expanduser().absolute() for word in words(value))


def choice(*words: str) -> Callable[[Any], str]:
    """Return a reader of one of some words."""

    def read(value: Any) -> str:
        if value not in words:
            raise InvalidRequest(f"{value!r:.60} is none of {', '.join(words)}")
        return str(value)

    return read


def words(value: Any) -> tuple[str, ...]:
    """Return texts that are separated by commas, or a list of texts."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InvalidRequest("give texts, separated by commas or as a list")
    return tuple(part.strip() for part in parts if part.strip())


def origins(value: Any) -> tuple[str, ...]:
    """Return origins as browsers send them: ``https://app.example.com``, no path, no wildcard."""
    for origin in (found := words(value)):
        parts = urlsplit(origin)
        exact = f"{parts.scheme}://{parts.netloc}"
        if (
            parts.scheme not in {"http", "https"}
            or not parts.netloc
            or origin != exact.lower()
            or "*" in origin
        ):
            raise InvalidRequest(f"{origin!r:.80} is not an origin such as https://app.example.com")
    return found


def hosts(value: Any) -> tuple[str, ...]:
    """Return host names, names with all below them (``*.example.com``), addresses, or ``*``."""
    found = tuple(name.lower() for name in words(value))
    for name in found:
        if name != "*" and not _NAME.fullmatch(name.removeprefix("*.")) and ":" not in name:
            raise InvalidRequest(f"{name!r:.80} is not a host name; write it without its port")
    return found


def domain(value: Any) -> str:
    """Return a domain, with its port where it has one."""
    name = text(value).lower()
    host, colon, port = name.partition(":")
    if not _NAME.fullmatch(host) or (colon and not (port.isdecimal() and 0 < int(port[:6]) <= 65535)):
        raise InvalidRequest(
            f"{name!r:.80} is not a domain such as sandbox.example.com or sandbox.localhost:8080"
        )
    return name


def node_token(value: Any) -> str:
    """Return the four characters that name a machine."""
    token = text(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)
    if len(token) != NODE_TOKEN_LENGTH or not set(token) <= set(ALPHABET):
        raise InvalidRequest("a node token is four characters of [a-z0-9]")
    return token


def limits(value: Any) -> Limits:
    """Return limits from a table, or from text such as ``memory=1G,cpu=2``."""
    if isinstance(value, str):
        value = dict(_limit(word) for word in words(value))
    if not isinstance(value, Mapping):
        raise InvalidRequest("limits are names and values, such as memory=1G,cpu=2")
    return Limits.from_dict({name: None if item == NONE else item for name, item in value.items()})


def _limit(word: str) -> tuple[str, Any]:
    name, equals, value = (part.strip() for part in word.partition("="))
    if not equals or not value:
        raise InvalidRequest(f"{word!r:.60} is not NAME=VALUE")
    if name not in _NUMBERS or value == NONE:
        return name, value
    try:
        return name, float(value) if name == "cpu" else int(value)
    except ValueError:
        raise InvalidRequest(f"{name} is a number, not {value!r:.60}") from None
