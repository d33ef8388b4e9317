"""Requests as data: what to create and what to run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cellfork.model.limits import Limits
from cellfork.model.network import NetworkPolicy

OnDeadline = Literal["kill", "pause"]
"""What happens to a sandbox whose time is over."""
HOME = "/home/user"
"""Home and first working directory inside a sandbox."""
ROOT_HOME = "/root"
"""Home of what asks to be run as root: the same user, without any right more."""


@dataclass(frozen=True, slots=True)
class Template:
    """What a sandbox starts from.

    ``interpreter`` is the Python that runs the guest (``None``: the one that runs cellfork); its
    environment is visible read-only inside.  ``preload`` names modules that the zygote imports once;
    a name that cannot be imported there is skipped.  ``limits`` are used where a request names none.
    ``languages`` names those whose kernels are started ahead, so that the first code in one of them does not wait for it:
    at least one sandbox is kept that has them waiting, with the memory that takes, and what is left of it counts against
    the sandbox's limits.
    """

    name: str = "default"
    interpreter: str | None = None
    preload: tuple[str, ...] = ("numpy", "pandas", "matplotlib.pyplot", "PIL.Image", "e2b_charts")
    limits: Limits = field(default_factory=Limits)
    languages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Volume:
    """A directory of the host that a sandbox sees at ``path``, and what it leaves there stays.

    ``root`` is a directory that the owner of the host has named, ``below`` the way from there: names with slashes
    between them (``""``: the root itself), on which no symbolic link is followed.  What is missing of it is made.
    """

    root: str
    path: str
    below: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One sandbox to create.  ``timeout`` is its life in seconds (``None``: until it is killed).

    ``tenant`` names the trust domain: sandboxes of different tenants are never forked from one zygote.
    ``notes`` are what a dialect keeps with a sandbox, as JSON.  Neither is told inside.
    ``on_deadline`` says what happens when the timeout is over: the sandbox is killed, or paused, with its memory or (where
    ``pause_memory`` is false) with its files alone.  ``snapshot`` names one whose files the sandbox starts with; its
    template is the snapshot's then.  ``volumes`` are mounted when it starts, and are no part of its limits or snapshots.
    """

    template: Template = field(default_factory=Template)
    limits: Limits = field(default_factory=Limits)
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    envs: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = 300.0
    isolation: str = "namespaces"
    tenant: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)
    on_deadline: OnDeadline = "kill"
    pause_memory: bool = True
    snapshot: str | None = None
    volumes: tuple[Volume, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextSpec:
    """One context to create."""

    language: str = "python"
    cwd: str = HOME
    envs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """One run of code in a context.

    ``envs`` hold for this run only and are restored afterwards.  ``timeout`` is in seconds (``None``:
    no bound of its own).  ``allow_input`` says that somebody answers ``InputRequest``.
    """

    code: str
    envs: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = 300.0
    allow_input: bool = False


@dataclass(frozen=True, slots=True)
class PtySize:
    """Size of a terminal in characters."""

    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """A command to run outside any kernel.

    ``argv`` is passed as it is, no shell.  ``user`` is ``user``, or ``root``: the same user with root's home and name.
    ``stdin`` keeps the command's standard input open for ``send_stdin``.  ``tag`` is a name by which it can be found.
    """

    argv: tuple[str, ...]
    cwd: str = HOME
    envs: Mapping[str, str] = field(default_factory=dict)
    user: str = "user"
    stdin: bool = False
    pty: PtySize | None = None
    tag: str | None = None
