r"""Patterns for names, as ``/files/search`` takes them: ``*``, ``**``, ``?``, ``[a-z]``, ``[!a]``, ``{one,two}``, ``\``.

They become regular expressions that cannot take longer than the name they are matched with, whatever the pattern is.
"""

import fnmatch
from collections.abc import Iterator
from typing import Final

from cellfork.dialects.opensandbox.execd.errors import Refused, invalid

LONGEST: Final = 1024
MOST_ALTERNATIVES: Final = 64
"""What all braces of a pattern multiply to."""


def compiled(pattern: str) -> str:
    """Return the regular expression of a pattern.  Raises :class:`Refused` for one that is malformed or too large."""
    if len(pattern) > LONGEST:
        raise invalid(f"a pattern has at most {LONGEST:,} characters")
    return "|".join(f"(?:{fnmatch.translate(_plain(one))})" for one in _alternatives(pattern))


def _alternatives(pattern: str) -> list[str]:
    """Return what a pattern with braces stands for."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        current = waiting.pop()
        braces = _braces(current)
        if braces is None:
            done.append(current)
        else:
            start, end = braces
            options = reversed([*_options(current[start + 1 : end])])
            waiting += [current[:start] + option + current[end + 1 :] for option in options]
        if len(done) + len(waiting) > MOST_ALTERNATIVES:
            raise invalid(f"a pattern has at most {MOST_ALTERNATIVES} alternatives")
    return done


def _braces(pattern: str) -> tuple[int, int] | None:
    """Return where the first pair of braces begins and ends."""
    start, depth = -1, 0
    for index in _significant(pattern):
        if pattern[index] == "{":
            start, depth = (index, 1) if start < 0 else (start, depth + 1)
        elif pattern[index] == "}" and depth:
            depth -= 1
            if not depth:
                return start, index
    if depth:
        raise malformed(pattern)
    return None


def _options(inside: str) -> Iterator[str]:
    """Yield what commas separate, but for those in inner braces."""
    start, depth = 0, 0
    for index in _significant(inside):
        character = inside[index]
        depth += (character == "{") - (character == "}")
        if character == "," and not depth:
            yield inside[start:index]
            start = index + 1
    yield inside[start:]


def _significant(pattern: str) -> Iterator[int]:
    """Yield the places of characters that are neither escaped nor within a set."""
    index = 0
    while index < len(pattern):
        if pattern[index] == "\\":
            index += 2
        elif pattern[index] == "[":
            index = _end_of_set(pattern, index) + 1
        else:
            yield index
            index += 1


def _end_of_set(pattern: str, start: int) -> int:
    index = start + 1 + (pattern[start + 1 : start + 2] in {"!", "^"})
    first = index
    while index < len(pattern) and (pattern[index] != "]" or index == first):
        index += 2 if pattern[index] == "\\" else 1
    if index >= len(pattern):
        raise malformed(pattern)
    return index


def _plain(pattern: str) -> str:
    """Return a pattern without escapes and in the notation of :mod:`fnmatch`."""
    made: list[str] = []
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == "[":
            end = _end_of_set(pattern, index)
            made.append(_set(pattern[index + 1 : end]))
            index = end
        elif character == "\\":
            index += 1
            if index == len(pattern):
                raise malformed(pattern)
            made.append(f"[{pattern[index]}]")
        else:
            made.append(character)
        index += 1
    return "".join(made)


def _set(inside: str) -> str:
    negated = "!" if inside[0] in "!^" else ""
    members, index = [], len(negated)
    while index < len(inside):
        if inside[index] == "\\" and index + 1 < len(inside):
            index += 1
        members.append(inside[index])
        index += 1
    if "]" in members:  # it has to come first
        members = ["]", *(member for member in members if member != "]")]
    return f"[{negated}{''.join(members)}]"


def malformed(pattern: str) -> Refused:
    """Return the refusal of a pattern."""
    return invalid(f"invalid pattern {pattern[:80]}: syntax error in pattern")
