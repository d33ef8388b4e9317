"""What the engine hands out about commands and files: plain values, quick to import."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from stat import filemode
from typing import Literal

from cellfork.model.errors import OperationTimeout

Stream = Literal["stdout", "stderr", "pty"]
FileType = Literal["file", "dir", "symlink", "other"]
FilesystemEventType = Literal["create", "write", "remove", "rename", "chmod"]

_TYPE_BITS = {"file": 0o100000, "dir": 0o040000, "symlink": 0o120000, "other": 0}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended (E2B: ``CommandResult``).

    ``exit_code`` is 128 + n for a command that signal n ended, and ``error`` then says so.
    """

    stdout: str
    stderr: str
    exit_code: int
    error: str | None = None


class CommandTimeout(OperationTimeout):
    """A command's time ran out, and it was ended.  ``stdout`` and ``stderr`` hold what it had written."""

    def __init__(self, message: str, stdout: str, stderr: str) -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """One piece of a command's output, or (``exit_code`` is a number) its end.

    ``sequence`` grows from 1, ``timestamp`` is Unix time in nanoseconds, ``type`` the stream.  A UTF-8 character is never
    cut in two.  The shape is Together's ``ExecStdout``.
    """

    sequence: int
    timestamp: int
    type: Stream
    data: bytes
    exit_code: int | None = None

    @property
    def output(self) -> str:
        """The piece as text; what is not UTF-8 is replaced."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """A file or directory (E2B: ``EntryInfo``).

    ``size`` is in bytes, ``mode`` holds the permission bits, ``mtime`` is Unix time in nanoseconds, ``symlink_target``
    where a symbolic link points to.  ``lossy``: the name is not UTF-8 and cannot be given back as it is shown.

    The rest is there where it was asked for (see :class:`~cellfork.engine.files.Files`): ``attributes``, ``format`` (the kind of
    file as ``st_mode`` has it), ``ctime`` (when anything of it changed last, Unix time in nanoseconds), and of a symbolic link
    ``resolved``, where it leads in the end (``None``: nowhere), with the ``st_mode`` of that.
    """

    name: str
    path: str
    type: FileType
    size: int
    mode: int
    owner: str
    group: str
    mtime: int
    symlink_target: str | None = None
    lossy: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    format: int = 0
    resolved: str | None = None
    resolved_mode: int = 0
    ctime: int = 0

    @property
    def permissions(self) -> str:
        """The mode as ``ls -l`` shows it."""
        return filemode(_TYPE_BITS[self.type] | self.mode)

    @property
    def modified_time(self) -> datetime:
        """When the content changed last, in UTC."""
        return datetime.fromtimestamp(self.mtime / 1e9, UTC)


@dataclass(frozen=True, slots=True)
class FilesystemEvent:
    """What happened to a file (E2B: ``FilesystemEvent``).

    ``name`` is relative to the watched directory, ``""`` is the directory itself.  ``write`` of ``""`` means that
    events were lost: list the directory anew.
    """

    name: str
    type: FilesystemEventType
