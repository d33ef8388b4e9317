"""Text from a sandbox made harmless: escape sequences out, control characters visible, progress bars collapsed.

Everything here takes untrusted text of any length and runs in linear time.
"""

import re
from typing import Any

_STRING_BODY = r"[^\x07\x1b\x90-\x9f]*"
_SEQUENCE = re.compile(
    rf"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f]){_STRING_BODY}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, modes
    r"|\x1b[ -/]+[0-~]"  # character sets
    r"|\x1b[0-OQ-WYZ\\`-~]"  # the rest: reset, keypad, a stray string terminator
)
"""One complete escape sequence (ECMA-48), in its 7-bit or its 8-bit form."""

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m\Z")

_CONTROLS = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    **dict.fromkeys(range(128, 160), "�"),
    0x7F: "\N{SYMBOL FOR DELETE}",
}
"""Control characters as visible ones: an escape becomes ``␛``."""

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

# An unfinished sequence at the end of a piece: the next piece may finish it.
_UNFINISHED = re.compile(
    rf"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f]){_STRING_BODY}\x1b?\Z"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*\Z"
    r"|\x1b[ -/]*\Z"
)
_LONGEST_SEQUENCE = 4096


def as_text(value: Any) -> str:
    """Return text for content that should be text but comes from a sandbox; lone surrogates become ``�``."""
    text = value if isinstance(value, str) else str(value)
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def strip_escapes(text: str) -> str:
    """Return ``text`` without escape sequences (CSI, OSC, DCS and the others, 7-bit and 8-bit)."""
    return _SEQUENCE.sub("", text)


def neutralise(text: str) -> str:
    """Return ``text`` with every control character but newline and tab replaced by a visible one."""
    return text.translate(_CONTROLS) if _UNSAFE.search(text) else text


def clean(text: str) -> str:
    r"""Return ``text`` as a reader would want it: no escapes, no control characters, overwritten lines collapsed.

    ``\r\n`` is a newline; of a line that was rewritten with ``\r`` (a progress bar), what was written last stays.
    """
    plain = strip_escapes(as_text(text)).replace("\r\n", "\n")
    if "\r" in plain or "\b" in plain:
        plain = "\n".join(_collapse(line) for line in plain.split("\n"))
    return neutralise(plain)


def _collapse(line: str) -> str:
    """Return what is left of a line after its carriage returns and backspaces."""
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part.strip("\b ")), "")
    if "\b" not in line:
        return line
    kept: list[str] = []
    for character in line:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)


class StreamCleaner:
    r"""Makes a live stream safe to print, piece by piece; sequences may be split between pieces.

    With ``terminal``, colours (SGR) and the characters that progress bars need (``\r`` and backspace)
    are kept; without, both go.
    """

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._held = ""
        self._coloured = False
        self._controls = {c: r for c, r in _CONTROLS.items() if not (terminal and chr(c) in "\r\b")}

    def feed(self, piece: str) -> str:
        """Return what of ``piece`` (and of what was held back before) can be printed now."""
        text = self._held + as_text(piece)
        unfinished = _UNFINISHED.search(text)
        start = unfinished.start() if unfinished else len(text)
        if not self._terminal and start == len(text) and text.endswith("\r"):
            start -= 1  # the first half of \r\n, perhaps
        if len(text) - start > _LONGEST_SEQUENCE:
            start = len(text)  # nobody writes one that long: print it, made visible
        self._held = text[start:]
        return self._printable(text[:start])

    def close(self) -> str:
        """Return what is still held back, and an end to colours where there were any."""
        rest = self._printable(self._held)
        self._held = ""
        return rest + ("\x1b[0m" if self._coloured else "")

    def _printable(self, text: str) -> str:
        if not _UNSAFE.search(text):
            return text
        if not self._terminal:
            return _SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").translate(self._controls)
        pieces = []
        end = 0
        for match in _SEQUENCE.finditer(text):
            pieces.append(text[end : match.start()].translate(self._controls))
            end = match.end()
            if _COLOUR.match(match[0]):
                self._coloured = True
                pieces.append(match[0])
        return "".join([*pieces, text[end:].translate(self._controls)])
