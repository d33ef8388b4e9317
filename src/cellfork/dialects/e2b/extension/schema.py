"""Bodies of the extension, as JSON.  Unlike E2B's they are exact: an unknown field is an error.

``/execute`` and ``POST /v2/sandboxes`` take an object ``cellfork`` with the fields of :class:`RunOptions` and :class:`Wishes`.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Cells = Annotated[int, Meta(ge=1, le=65535)]


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends."""


class Nothing(Body, frozen=True):
    """No fields."""


# ---------------------------------------------------------------------------------------- beside E2B's bodies


class Policy(Body, frozen=True):
    """What a sandbox may reach: the fields of ``NetworkPolicy``."""

    mode: Literal["none", "allow", "public"] = "none"
    hosts: list[str] = []
    upload: int | str | None = None
    download: int | str | None = None


class Wishes(Body, frozen=True):
    """What a new sandbox is to have that E2B cannot ask for.  ``timeout`` is in seconds (``null``: until it is killed)."""

    limits: dict[str, Any] | None = None
    network: Policy | None = None
    isolation: str | None = None
    timeout: Seconds | UnsetType | None = UNSET


class RunOptions(Body, frozen=True):
    """How code is run: its time in seconds, and whether its questions are answered.  The stream is then one of events."""

    timeout: Seconds | None = None
    input: bool = False


# ------------------------------------------------------------------------------------------------ operations


class Timeout(Body, frozen=True):
    """When a sandbox is to end, in seconds from now (``null``: when it is killed)."""

    seconds: Seconds | None


class NewContext(Body, frozen=True):
    """A context to create."""

    language: str = "python"
    cwd: str = "/home/user"
    envs: dict[str, str] = {}


class Language(Body, frozen=True):
    """A language, by a name or an alias."""

    language: str | None = None


class InContext(Body, frozen=True):
    """A context by its id (``null``: the default one of Python)."""

    context: str | None = None


class Id(Body, frozen=True):
    """A thing by its id."""

    id: str


class Input(Body, frozen=True):
    """The answer to a question of an execution."""

    id: str
    text: str


class Size(Body, frozen=True):
    """The size of a terminal."""

    rows: Cells
    cols: Cells


class NewExec(Body, frozen=True):
    """A command to create: ``argv`` as it is, or a line for a shell, or (neither) an interactive shell in a terminal."""

    argv: list[str] | None = None
    command: str | None = None
    cwd: str = "~"
    envs: dict[str, str] = {}
    user: str = "user"
    stdin: bool = False
    pty: Size | None = None
    autostart: bool = True
    timeout: float | None = None


class Pid(Body, frozen=True):
    """A command by its process id."""

    pid: int


class Output(Body, frozen=True):
    """Output of a command after a sequence number; ``wait``: where there is none yet, wait for some."""

    id: str
    after: Count = 0
    wait: bool = False


class Outcome(Body, frozen=True):
    """How a command ended; waits for it, a while.  ``forget``: once it is told, it is not kept."""

    id: str
    forget: bool = False


class Stdin(Body, frozen=True):
    """Bytes (Base64) for a command's input, and whether it ends with them."""

    id: str
    data: bytes = b""
    eof: bool = False


class Resize(Body, frozen=True):
    """A new size for a command's terminal."""

    id: str
    rows: Cells
    cols: Cells


class Path(Body, frozen=True):
    """A path inside the sandbox."""

    path: str


class ListDirectory(Body, frozen=True):
    """A directory, and how deep to look."""

    path: str
    depth: int = 1


class Move(Body, frozen=True):
    """Where something is, and where it is to be."""

    source: str
    destination: str


class OpenUpload(Body, frozen=True):
    """A file that is going to be written piece by piece."""

    path: str
    mode: Annotated[int, Meta(ge=0, le=0o7777)] | None = None
    append: bool = False


class Handle(Body, frozen=True):
    """An upload or a watch that was opened."""

    handle: int


class StartWatch(Body, frozen=True):
    """A directory to watch."""

    path: str
    recursive: bool = False
