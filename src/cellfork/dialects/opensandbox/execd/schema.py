"""What clients of execd send, as types.  Unknown fields are ignored; wrong types are refused.

Source: ``specs/execd-api.yaml`` of OpenSandbox.
"""

from typing import Annotated

from msgspec import Meta, Struct

LONGEST_TIME = 10 * 365 * 86400 * 1000
Milliseconds = Annotated[int, Meta(ge=1, le=LONGEST_TIME)]
MillisecondsOrNone = Annotated[int, Meta(ge=0, le=LONGEST_TIME)]
"""0 is no bound."""
Id = Annotated[int, Meta(ge=0, le=2**32 - 2)]
Digits = Annotated[int, Meta(ge=0, le=7777)]
"""A mode whose decimal digits are to be read as octal ones: 644."""
Text = Annotated[str, Meta(min_length=1)]


class CodeContext(Struct):
    """Where code is to run: a context, or a language's default one."""

    id: str | None = None
    language: str | None = None
    cwd: str | None = None


class RunCode(Struct):
    """``POST /code``."""

    code: Text
    context: CodeContext | None = None


class CreateContext(Struct):
    """``POST /code/context``."""

    language: str | None = None
    cwd: str | None = None


class RunCommand(Struct):
    """``POST /command``: shell text, or the arguments of a program."""

    command: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    background: bool = False
    timeout: Milliseconds | None = None
    uid: Id | None = None
    gid: Id | None = None
    envs: dict[str, str] | None = None


class CreateSession(Struct):
    """``POST /session``."""

    cwd: str | None = None


class RunInSession(Struct):
    """``POST /session/{id}/run``."""

    command: Text
    cwd: str | None = None
    timeout: MillisecondsOrNone | None = None


class CreatePty(Struct):
    """``POST /pty``."""

    cwd: str | None = None
    command: str | None = None


class PtyMessage(Struct):
    """What a client of a terminal says as text."""

    type: str
    data: str = ""
    cols: int = 0
    rows: int = 0
    signal: str = ""


class Permission(Struct):
    """Whose a file is, and who may do what with it; what is left out stays as it is."""

    owner: str | None = None
    group: str | None = None
    mode: Digits | None = None


class FileMetadata(Struct):
    """The part of an upload that tells what the next one is."""

    path: Text
    owner: str | None = None
    group: str | None = None
    mode: Digits | None = None


class Move(Struct):
    """``POST /files/mv``: one of its items."""

    src: str
    dest: str


class Replacement(Struct):
    """``POST /files/replace``: what is to be replaced in one file."""

    old: Text
    new: str
