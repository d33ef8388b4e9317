"""What Together's clients send, as types.  Unknown fields are ignored; wrong types are refused.

Source: the OpenAPI files of ``together-sandbox`` (management 3.1, agent 3.0.3).
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Tags = Annotated[
    dict[Annotated[str, Meta(max_length=128)], Annotated[str, Meta(max_length=1024)]], Meta(max_length=64)
]
Seconds = Annotated[int, Meta(gt=0, le=10 * 365 * 86400)]


class TerminationSnapshot(Struct):
    """What is kept of a sandbox that is terminated."""

    memory: bool = False
    aliases: Annotated[list[Name], Meta(max_length=64)] = []
    ttl: Seconds | None = None
    tags: Tags = {}


class TerminationPolicy(Struct):
    """What happens when a sandbox is terminated."""

    snapshot: TerminationSnapshot


class CreateSandbox(Struct):
    """``POST /v1/sandboxes``."""

    snapshot_id: str | None = None
    snapshot_alias: str | None = None
    cpu: Annotated[float, Meta(ge=0.1, le=16)] = 1.0
    memory_bytes: Annotated[int, Meta(ge=200_000_000, le=32_000_000_000)] = 2_000_000_000
    ttl: Seconds | None = None
    tags: Tags = {}
    termination_policy: TerminationPolicy | None = None
    experimental: dict[str, Any] | None = None


class TerminateSandbox(Struct):
    """``POST /v1/sandboxes/{id}/terminate``; ``null`` keeps nothing, whatever was agreed before."""

    snapshot: TerminationSnapshot | UnsetType | None = UNSET


class CreateSnapshot(Struct):
    """``POST /v1/snapshots``: of an image that was built before, or that stands for a template."""

    image: Annotated[str, Meta(min_length=1, max_length=256)]
    architecture: Annotated[str, Meta(max_length=64)] | None = None
    ttl: Seconds | None = None
    tags: Tags = {}


class CreateAlias(Struct):
    """``POST /v1/snapshots/{id}/aliases``."""

    alias: Name


class Authorize(Struct):
    """``POST /v1/authorize``."""

    project_id: str | None = None


class CreateExec(Struct):
    """``POST /api/v1/execs``."""

    command: str
    args: list[str]
    autostart: bool = True
    pty: bool = False
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None


class ExecInput(Struct):
    """``POST /api/v1/execs/{id}/io``."""

    type: Literal["stdin", "resize"]
    input: str


class FileAction(Struct):
    """``PATCH /api/v1/files/{path}``."""

    action: Literal["move", "copy"]
    destination: Annotated[str, Meta(min_length=1)]
    recursive: bool = False


class Size(Struct):
    """The size of a terminal in a WebSocket's message."""

    cols: Annotated[int, Meta(ge=1, le=10_000)]
    rows: Annotated[int, Meta(ge=1, le=10_000)]


class Typed(Struct):
    """What was typed, in a WebSocket's message."""

    input: str


class InputMessage(Struct, tag="input"):
    """A WebSocket's message: something was typed."""

    data: Typed


class ResizeMessage(Struct, tag="resize"):
    """A WebSocket's message: the terminal has another size."""

    data: Size
