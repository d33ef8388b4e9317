"""Every error that cellfork raises.

::

    CellforkError
    ├─ UsageError                 the caller asked for something wrong or impossible
    │  ├─ InvalidRequest            a value is malformed, of the wrong type or out of range
    │  ├─ Unsupported               understood, but not available here (says what would make it so)
    │  ├─ Unauthorized              the server does not know the API key, or a token is missing or wrong
    │  ├─ NotFound                  no such sandbox, context, execution or exec
    │  │  └─ PortClosed               no program inside accepts connections on the port
    │  ├─ Conflict                  not possible in the present state (already exists, already ended)
    │  │  └─ SandboxPaused            the sandbox is paused; resume it first
    │  ├─ LimitExceeded             a quota or a size bound would be passed
    │  └─ FileError                 a file operation inside the sandbox was refused
    │     ├─ PathNotFound
    │     ├─ PathExists
    │     ├─ PathNotPermitted
    │     ├─ NotADirectory
    │     ├─ IsADirectory
    │     ├─ DirectoryNotEmpty
    │     ├─ NotAFile
    │     └─ NoSpace
    ├─ UnavailableError           ours or the host's fault; the same request may work elsewhere or later
    │  ├─ IsolationUnavailable      the host lacks something that the requested isolation needs
    │  │  └─ PostureMismatch          a sandbox was not locked as it should be; it was killed before anything ran
    │  ├─ StartupFailed             a sandbox or a kernel did not start
    │  ├─ SandboxGone               the sandbox ended while it was in use (says why)
    │  └─ ProtocolViolation         the guest broke the wire protocol; its sandbox was killed
    ├─ CommandFailed              ``commands.run`` ended with an exit code other than 0
    ├─ OperationTimeout           the time given to an operation ran out
    └─ InternalError              a bug in cellfork; please report it

Code that fails inside a sandbox is *not* an exception: it is ``Execution.error``, a value.

Errors cross the wire as one of :data:`CODES`, a closed table, never as a class path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


class CellforkError(Exception):
    """Root of every error that cellfork raises."""

    code: ClassVar[str] = "error"


class UsageError(CellforkError):
    """The caller asked for something wrong or impossible."""

    code = "usage"


class InvalidRequest(UsageError):
    """A value is malformed, of the wrong type or out of range."""

    code = "invalid_request"


class Unsupported(UsageError):
    """The request is understood, but not available here; the message says what would make it so."""

    code = "unsupported"


class Unauthorized(UsageError):
    """The server does not know the API key, or a token is missing or wrong."""

    code = "unauthorized"


class NotFound(UsageError):
    """There is no such sandbox, context, execution or exec."""

    code = "not_found"


class PortClosed(NotFound):
    """No program inside the sandbox accepts connections on the port."""

    code = "port_closed"


class Conflict(UsageError):
    """The request is not possible in the present state."""

    code = "conflict"


class SandboxPaused(Conflict):
    """The sandbox is paused: nothing in it runs before it is resumed."""

    code = "sandbox_paused"


class LimitExceeded(UsageError):
    """A quota or a size bound would be passed."""

    code = "limit_exceeded"


class FileError(UsageError):
    """A file operation inside the sandbox was refused."""

    code = "file_error"


class PathNotFound(FileError):
    """Nothing exists at the path."""

    code = "path_not_found"


class PathExists(FileError):
    """Something exists at the path already."""

    code = "path_exists"


class PathNotPermitted(FileError):
    """The sandbox's user may not do this at the path."""

    code = "path_not_permitted"


class NotADirectory(FileError):
    """A directory was needed."""

    code = "not_a_directory"


class IsADirectory(FileError):
    """A file was needed, the path is a directory."""

    code = "is_a_directory"


class DirectoryNotEmpty(FileError):
    """The directory has entries and the removal was not recursive."""

    code = "directory_not_empty"


class NotAFile(FileError):
    """The path is a pipe, a socket or a device, which file operations do not touch."""

    code = "not_a_file"


class NoSpace(FileError):
    """The sandbox's disk is full (bytes or inodes)."""

    code = "no_space"


class UnavailableError(CellforkError):
    """Ours or the host's fault; the same request may work elsewhere or later."""

    code = "unavailable"


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that the host lacks: its name, why it is needed, how to get it."""

    feature: str
    why: str
    fix: str


class IsolationUnavailable(UnavailableError):
    """The host lacks something that the requested isolation needs.

    ``missing`` lists each feature with its reason and its remedy.
    """

    code = "isolation_unavailable"

    def __init__(self, message: str, missing: tuple[Missing, ...] = ()) -> None:
        lines = [message, *(f"  - {m.feature}: {m.why}. Fix: {m.fix}" for m in missing)]
        super().__init__("\n".join(lines))
        self.missing = missing


class PostureMismatch(IsolationUnavailable):
    """A sandbox, seen from the host, was not locked as it should be, and was killed before any code ran in it.

    ``differences`` names each field with what was expected and what was found.
    """

    code = "posture_mismatch"

    def __init__(self, differences: tuple[str, ...]) -> None:
        why = "; ".join(differences[:4]) + (
            f"; and {len(differences) - 4} more" if len(differences) > 4 else ""
        )
        fix = "the host lacks a lock or changes what was set; please report it with this message"
        super().__init__("the sandbox was not locked as it should be", (Missing("posture", why, fix),))
        self.differences = differences


class StartupFailed(UnavailableError):
    """A sandbox or a kernel did not start."""

    code = "startup_failed"


class SandboxGone(UnavailableError):
    """The sandbox ended while it was in use; ``reason`` is one of the words of ``Killed.reason``."""

    code = "sandbox_gone"

    def __init__(self, message: str, reason: str = "lost") -> None:
        super().__init__(message)
        self.reason = reason


class ProtocolViolation(UnavailableError):
    """The guest broke the wire protocol."""

    code = "protocol_violation"


class CommandFailed(CellforkError):
    """``commands.run`` ended with an exit code other than 0.

    Carries ``exit_code``, ``stdout``, ``stderr`` and ``error`` as E2B's ``CommandExitException`` does.
    """

    code = "command_failed"

    def __init__(self, exit_code: int, stdout: str = "", stderr: str = "", error: str | None = None) -> None:
        super().__init__(f"command exited with code {exit_code}" + (f": {stderr.strip()}" if stderr else ""))
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
        self.error = error

    def __reduce__(self) -> tuple[type["CommandFailed"], tuple[int, str, str, str | None]]:
        return type(self), (self.exit_code, self.stdout, self.stderr, self.error)


class OperationTimeout(CellforkError):
    """The time given to an operation ran out."""

    code = "timeout"


class InternalError(CellforkError):
    """A bug in cellfork; please report it."""

    code = "internal"


GUEST_ERRORS: tuple[type[CellforkError], ...] = (
    InvalidRequest,
    Unsupported,
    NotFound,
    PortClosed,
    Conflict,
    LimitExceeded,
    FileError,
    PathNotFound,
    PathExists,
    PathNotPermitted,
    NotADirectory,
    IsADirectory,
    DirectoryNotEmpty,
    NotAFile,
    NoSpace,
    StartupFailed,
    InternalError,
)
"""What a guest may answer with."""

CODES: Mapping[str, type[CellforkError]] = {error.code: error for error in GUEST_ERRORS}


def from_code(code: str, message: str) -> CellforkError:
    """Return the error that a guest's answer stands for; an unknown code is a protocol violation.

    The message ends up in logs and on terminals: what is not printable in it is escaped, line ends as well.
    """
    error = CODES.get(code)
    if error is None:
        return ProtocolViolation(f"the guest answered with an unknown error code {code[:40]!r}")
    return error(printable(message))


def printable(text: str) -> str:
    r"""Return ``text`` on one line, with everything that does not print as an escape such as ``\n`` or ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
