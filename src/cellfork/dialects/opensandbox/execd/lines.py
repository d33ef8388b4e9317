"""The output of a command as lines: how execd tells it."""

import re
from collections.abc import Iterator

_END = re.compile(r"\r\n|\n|\r")


class Lines:
    r"""Cuts one stream into lines.

    ``\\n`` and ``\\r`` end a line, both together once.  An empty line is told as ``"\\n"``: empty text is never sent.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = ""
        self._after_return = False

    def take(self, text: str) -> Iterator[str]:
        """Yield the lines that ``text`` completes; what is longer than the bound comes in pieces."""
        if text:
            begun = self._after_return and text.startswith(
                "\n"
            )  # the other half of an end that is told already
            self._after_return = text.endswith("\r")
            text = text[begun:]
        *lines, rest = _END.split(text)
        for line in lines:
            whole, self._rest = self._rest + line, ""
            yield from self._pieces(whole) if whole else "\n"
        self._rest += rest
        while len(self._rest) > self._longest:
            yield self._rest[: self._longest]
            self._rest = self._rest[self._longest :]

    def end(self) -> Iterator[str]:
        """Yield what was not ended by a newline."""
        rest, self._rest = self._rest, ""
        yield from self._pieces(rest)

    def _pieces(self, line: str) -> Iterator[str]:
        return (line[start : start + self._longest] for start in range(0, len(line), self._longest))
