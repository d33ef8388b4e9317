"""Tracebacks trimmed to the frames of the code that was run: IPython's and Python's own, JavaScript's, Java's."""

import re

_HEADER = re.compile(r"\s*(?:Cell In\[|Input In |File )")
_FRAME_BODY = re.compile(r"\s|$|-+> ?\d")
_LIBRARY = re.compile(
    r"(?:site-packages|dist-packages)[/\\]"
    r"|[/\\]lib(?:64)?[/\\]python\d"
    r"|\.(?:pyx|pxi|pxd)\b|<frozen |File <(?:__array_function__|string)"
    r"|[/\\](?:IPython|ipykernel|cellfork)[/\\]"
)
_STACK_LINE = re.compile(r"\s+at \S")
_LIBRARY_LINE = re.compile(
    r"\s+at .*(?:\bnode:internal/|\bnode_modules[/\\]|\bext:)|\s+at (?:java|jdk|javax|sun)\."
)
"""Frames as V8 and the JVM write them, a line each, and those of their libraries."""

_ELLIPSIS = "[… {} left out]"


def user_frames(traceback: str) -> str:
    """Return ``traceback`` without the frames of libraries, saying how many were left out where.

    A traceback without any frame of the user's own is returned as it is.
    """
    lines = traceback.split("\n")
    if any(_STACK_LINE.match(line) and not _LIBRARY_LINE.match(line) for line in lines):
        return _kept([(_LIBRARY_LINE.match(line) is not None, line) for line in lines])
    blocks = _blocks(traceback)
    if not any(is_frame and not _in_library(text) for is_frame, text in blocks):
        return traceback
    return _kept([(is_frame and _in_library(text), text) for is_frame, text in blocks])


def _kept(parts: list[tuple[bool, str]]) -> str:
    """Put the parts together; notes stand where some are left out (``True``)."""
    kept: list[str] = []
    skipped = 0
    for left_out, text in parts:
        if left_out:
            skipped += 1
            continue
        kept += _note(skipped)
        skipped = 0
        kept.append(text)
    return "\n".join(kept + _note(skipped))


def _note(skipped: int) -> list[str]:
    if not skipped:
        return []
    return [_ELLIPSIS.format("1 library frame" if skipped == 1 else f"{skipped} library frames")]


def _in_library(frame: str) -> bool:
    return _LIBRARY.search(frame.lstrip("\n").partition("\n")[0]) is not None


def _blocks(traceback: str) -> list[tuple[bool, str]]:
    """Cut a traceback into frames (``True``) and what is between them (``False``)."""
    blocks: list[tuple[bool, list[str]]] = []
    for line in traceback.split("\n"):
        if _HEADER.match(line):
            blocks.append((True, [line]))
        elif blocks and (not blocks[-1][0] or _FRAME_BODY.match(line)):
            blocks[-1][1].append(line)
        else:
            blocks.append((False, [line]))
    return [(is_frame, "\n".join(lines)) for is_frame, lines in blocks]
