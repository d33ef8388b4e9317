"""Dockerfiles, as far as they are built here: text → instructions, and the words of an instruction with their variables.

Source: the Dockerfile reference of Docker (docs.docker.com/reference/dockerfile).  What is not understood is refused, with its line.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MOST_INSTRUCTIONS: Final = 1000
MAX_VALUE: Final = 64 * 1024
"""Characters of what variables make of one instruction: each may hold the one before it twice."""
MAX_DEPTH: Final = 10
"""Of ``${a:-${b:-…}}``."""

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "CMD": "nothing is started in a sandbox by itself; start it with an exec",
    "ENTRYPOINT": "nothing is started in a sandbox by itself; start it with an exec",
    "EXPOSE": "every port of a sandbox can be reached",
    "HEALTHCHECK": "nothing is started in a sandbox by itself that could be checked",
    "LABEL": "a snapshot has no labels",
    "MAINTAINER": "a snapshot has no labels",
    "STOPSIGNAL": "a sandbox ends at once",
    "VOLUME": "files are kept in the snapshot wherever they are",
}
"""Instructions that change nothing of the files, and why that is no loss; the build's log says so."""
CARRIED_OUT: Final = frozenset({"ADD", "ARG", "COPY", "ENV", "RUN", "SHELL", "USER", "WORKDIR"})
FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "FROM": frozenset({"platform"}),
    "RUN": frozenset(),
    "COPY": frozenset({"chown", "chmod", "link"}),
    "ADD": frozenset({"chown", "chmod", "link"}),
}
"""Which flags each instruction may have here."""

_INSTRUCTION = re.compile(r"([A-Za-z]+)(?:[ \t]+(.*))?", re.DOTALL)
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:[ \t]+|$)")
_CONTINUED = re.compile(r"\\[ \t]*$")
_DIRECTIVE = re.compile(r"#[ \t]*([A-Za-z]+)[ \t]*=[ \t]*(\S+)[ \t]*")
_HEREDOC = re.compile(r"""(?:^|\s)[0-9]*<<-?\s*["']?[A-Za-z_][A-Za-z0-9_]*["']?(?=[\s;&|>)]|$)""")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"""[^\s'"\\$]+""")


class DockerfileError(Exception):
    """What cannot be built, and in which line it is."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}" if line else message)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its line, its name in capitals, its flags, and the rest of its text."""

    line: int
    name: str
    flags: Mapping[str, str]
    text: str

    def error(self, message: str) -> DockerfileError:
        """Return the error for something in this instruction."""
        return DockerfileError(self.line, f"{self.name}: {message}")

    def items(self) -> list[str] | None:
        """Return the items of the JSON form; ``None`` where it is in the other one."""
        if not self.text.startswith("["):
            return None
        try:
            found = json.loads(self.text)
        except (ValueError, RecursionError):
            return None  # as Docker does: then it is a line for the shell
        valid = isinstance(found, list) and all(isinstance(item, str) for item in found)
        return found if valid else None


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """What is to be built: the ``ARG`` before ``FROM``, that itself, what follows; ``notes`` are for the log."""

    arguments: tuple[Instruction, ...]
    source: Instruction
    steps: tuple[Instruction, ...]
    notes: tuple[str, ...] = ()


def parse(text: str) -> Dockerfile:
    """Return what a Dockerfile says.  Raises :class:`DockerfileError` for what is malformed and for what is not built here."""
    lines = text.removeprefix("\ufeff").split("\n")
    notes = _notes_of(lines)
    arguments: list[Instruction] = []
    source: Instruction | None = None
    steps: list[Instruction] = []
    for line, content in _logical(lines):
        found = _instruction(line, content)
        if found.name == "FROM":
            if source is not None:
                raise found.error("builds of several stages are not supported: there is one FROM")
            source = found
        elif source is not None:
            steps.append(found)
        elif found.name == "ARG":
            arguments.append(found)
        else:
            raise found.error("the first instruction is FROM; only ARG may be before it")
        if len(steps) + len(arguments) > MOST_INSTRUCTIONS:
            raise found.error(f"there are more than {MOST_INSTRUCTIONS:,} instructions")
    if source is None:
        raise DockerfileError(0, "the Dockerfile has no FROM")
    return Dockerfile(tuple(arguments), source, tuple(steps), notes)


def _notes_of(lines: list[str]) -> tuple[str, ...]:
    """Return what is to be said of the parser directives, which are before anything else."""
    notes = []
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            break
        name, value = match[1].lower(), match[2]
        if name == "escape" and value != "\\":
            raise DockerfileError(number, "another escape character is not supported")
        if name in {"syntax", "check"}:
            notes.append(f"{name}={value[:200]} has no effect: Dockerfiles are read by this server")
    return tuple(notes)


def _logical(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each instruction with the number of its first line: continued lines are one, comments are none."""
    begun, parts = 0, list[str]()
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begun = begun or number
        more = _CONTINUED.search(line)
        parts.append(line[: more.start()] if more else line)
        if more is None:
            yield begun, "".join(parts).strip()
            begun, parts = 0, []
    if any(part.strip() for part in parts):
        yield begun, "".join(parts).strip()


def _instruction(line: int, content: str) -> Instruction:
    match = _INSTRUCTION.fullmatch(content)
    name = match[1].upper() if match else content.split(maxsplit=1)[0].upper()
    if name == "ONBUILD":
        raise DockerfileError(line, "ONBUILD is not supported: nothing is built later from what is kept here")
    if match is None or name not in CARRIED_OUT | WITHOUT_EFFECT.keys() | {"FROM"}:
        raise DockerfileError(line, f"there is no instruction {name[:40]!r}")
    text = (match[2] or "").strip()
    if name in WITHOUT_EFFECT:
        return Instruction(line, name, {}, text)
    if name in {"RUN", "COPY", "ADD"} and _HEREDOC.search(text):
        raise DockerfileError(
            line, f"{name}: here-documents (<<) are not supported; use a file of the context"
        )
    flags, text = _flags(line, name, text)
    if not text:
        raise DockerfileError(line, f"{name}: something has to follow it")
    return Instruction(line, name, flags, text)


def _flags(line: int, name: str, text: str) -> tuple[dict[str, str], str]:
    flags: dict[str, str] = {}
    while name in FLAGS and (match := _FLAG.match(text)) is not None:
        if match[1] not in FLAGS[name]:
            why = (
                "builds of several stages are not supported" if match[1] == "from" else "it is not supported"
            )
            raise DockerfileError(line, f"{name} --{match[1][:40]}: {why}")
        flags[match[1]] = match[2] or ""
        text = text[match.end() :]
    return flags, text


# ------------------------------------------------------------------------------------------------- words


def words(step: Instruction, variables: Mapping[str, str], text: str | None = None) -> list[str]:
    """Return the words of an instruction (or of ``text``): quotes are taken away, variables replaced.

    A variable that is not set is nothing.  Raises :class:`DockerfileError`.
    """
    return _Reader(step, step.text if text is None else text, variables).words()


def expand(step: Instruction, variables: Mapping[str, str], text: str) -> str:
    """Return a text in which quotes are taken away and variables replaced.  Raises :class:`DockerfileError`."""
    return _Reader(step, text, variables).whole()


class _Reader:
    """Reads one text from its beginning to its end."""

    def __init__(self, step: Instruction, text: str, variables: Mapping[str, str], depth: int = 0) -> None:
        self._step = step
        self._text = text
        self._variables = variables
        self._depth = depth
        self._at = 0
        self._size = 0

    def words(self) -> list[str]:
        found: list[str] = []
        while self._at < len(self._text):
            if self._text[self._at].isspace():
                self._at += 1
            else:
                found.append(self._joined(blanks=False))
        return found

    def whole(self) -> str:
        return self._joined(blanks=True)

    def _joined(self, *, blanks: bool) -> str:
        """Read to the end or, without ``blanks``, to the next one that is not quoted."""
        pieces: list[str] = []
        while self._at < len(self._text) and (blanks or not self._text[self._at].isspace()):
            piece = self._piece()
            self._size += len(piece)
            if self._size > MAX_VALUE:
                raise self._step.error(f"variables make it longer than {MAX_VALUE:,} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _piece(self) -> str:
        match self._text[self._at]:
            case "'":
                start, self._at = self._at + 1, self._closing("'")
                return self._text[start : self._at - 1]
            case '"':
                return self._quoted()
            case "\\":
                self._at += 2
                return self._text[self._at - 1 : self._at]
            case "$":
                return self._variable()
        plain = _PLAIN.match(self._text, self._at)
        start, self._at = self._at, plain.end() if plain else self._at + 1
        return self._text[start : self._at]

    def _closing(self, quote: str) -> int:
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            raise self._step.error(f"a quote {quote} is not closed")
        return end + 1

    def _quoted(self) -> str:
        pieces: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == '"':
                self._at += 1
                return "".join(pieces)
            if character == "$":
                pieces.append(self._variable())
            elif character == "\\" and self._text[self._at + 1 : self._at + 2] in {'"', "\\", "$"}:
                pieces.append(self._text[self._at + 1])
                self._at += 2
            else:
                pieces.append(character)
                self._at += 1
            self._size += len(pieces[-1])
            if self._size > MAX_VALUE:
                raise self._step.error(f"variables make it longer than {MAX_VALUE:,} characters")
        raise self._step.error('a quote " is not closed')

    def _variable(self) -> str:
        """Read ``$name``, ``${name}``, ``${name:-word}`` and its like; any other ``$`` is itself."""
        braced = self._text.startswith("${", self._at)
        name = _NAME.match(self._text, self._at + 1 + braced)
        if name is None:
            if braced:
                raise self._step.error("after ${ comes the name of a variable")
            self._at += 1
            return "$"
        value = self._variables.get(name[0])
        self._at = name.end()
        return self._modified(name[0], value) if braced else value or ""

    def _modified(self, name: str, value: str | None) -> str:
        end = self._end_of_braces()
        modifier, self._at = self._text[self._at : end], end + 1
        if not modifier:
            return value or ""
        kind = modifier[:2] if modifier[0] == ":" else modifier[0]
        is_there = bool(value) if kind[0] == ":" else value is not None
        if kind not in {":-", "-", ":+", "+", ":?", "?"}:
            raise self._step.error(f"${{{name[:80]}{kind}…}} is not supported")
        if kind[-1] == "-" and is_there:
            return value or ""
        if kind[-1] == "+" and not is_there:
            return ""
        if self._depth >= MAX_DEPTH:
            raise self._step.error("variables are nested too deeply")
        other = _Reader(self._step, modifier[len(kind) :], self._variables, self._depth + 1).whole()
        if kind[-1] != "?":
            return other
        if not is_there:
            raise self._step.error(f"{name[:80]}: {other[:200] or 'the variable is not set'}")
        return value or ""

    def _end_of_braces(self) -> int:
        depth = 0
        for match in re.compile(r"\$\{|\}").finditer(self._text, self._at):
            depth += 1 if match[0] == "${" else -1
            if depth < 0:
                return match.start()
        raise self._step.error("${ is not closed")
