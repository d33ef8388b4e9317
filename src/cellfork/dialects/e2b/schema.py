"""The control plane's bodies, as they are on the wire.

Optional fields of requests may be absent or ``null``, which mean the same; unknown ones are ignored, as upstream does.  Fields that
E2B does not have (``isolation``, ``networkAccess``, ``warnings``) are additions that its SDKs pass over.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from cellfork.dialects.e2b.extension.schema import Wishes

ENVD_VERSION = "0.6.13"
"""What E2B's SDKs decide by: everything up to here is served."""
CLIENT_ID = "cellfork"
"""E2B's identifier of a machine; deprecated there, always present."""

Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Names = Annotated[list[str], Meta(max_length=1000)]
Word = Annotated[str, Meta(max_length=512)]

_WORDS = {"id": "ID", "mb": "MB"}


def _wire(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(_WORDS.get(word) or word.capitalize() for word in rest)


class Body(Struct, frozen=True, rename=_wire):
    """What a client sends."""


class Answer(Struct, frozen=True, rename=_wire, omit_defaults=True):
    """What the server sends; what is ``None`` is left out."""


# ------------------------------------------------------------------------------------------------ requests


class AutoResume(Body, frozen=True):
    """Whether traffic wakes the sandbox after a pause."""

    enabled: bool


class NetworkUpdate(Body, frozen=True):
    """What a sandbox may reach.  Replaces what held before; what is left out is cleared."""

    allow_out: Names | None = None
    deny_out: Names | None = None
    rules: dict[str, Any] | None = None
    egress_proxy: dict[str, Any] | None = None
    dns_servers: Names | None = None
    allow_internet_access: bool | None = field(default=None, name="allow_internet_access")


class NetworkConfig(Body, frozen=True):
    """What a sandbox may reach, and who may reach it."""

    allow_out: Names | None = None
    deny_out: Names | None = None
    rules: dict[str, Any] | None = None
    egress_proxy: dict[str, Any] | None = None
    dns_servers: Names | None = None
    allow_public_traffic: bool | None = None
    mask_request_host: Word | None = None
    https_ports: list[int] | None = None


class NewSandbox(Body, frozen=True):
    """A sandbox to create.  ``secure`` exists in the first version only: the second always is."""

    template_id: Word
    timeout: Seconds | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: AutoResume | None = None
    secure: bool | None = None
    allow_internet_access: bool | None = field(default=None, name="allow_internet_access")
    network: NetworkConfig | None = None
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[dict[str, Any]] | None = None
    cellfork: Wishes | None = None


class Connect(Body, frozen=True):
    """Connect, first version."""

    timeout: Seconds


class ConnectV2(Body, frozen=True):
    """Connect, second version.  ``memory`` false: wake a paused sandbox from its files alone."""

    timeout: Seconds | None = None
    memory: bool | None = None


class Resume(Body, frozen=True):
    """Resume, which came before connect."""

    timeout: Seconds | None = None
    auto_pause: bool | None = None


class Pause(Body, frozen=True):
    """Pause.  ``memory`` false keeps the files alone; ``require_healthy_guest`` refuses where the sandbox does not answer."""

    memory: bool | None = None
    require_healthy_guest: bool | None = None


class Timeout(Body, frozen=True):
    """End this many seconds from now; zero and less: now."""

    timeout: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class Refresh(Body, frozen=True):
    """Live for at least this many seconds more."""

    duration: Annotated[int, Meta(ge=0, le=3600)] | None = None


class Fork(Body, frozen=True):
    """Copies to make of a sandbox."""

    timeout: Seconds | None = None
    count: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None


class NewSnapshot(Body, frozen=True):
    """A snapshot to make."""

    name: Word | None = None


# ------------------------------------------------------------------------------------------------ answers


class Error(Struct, frozen=True, omit_defaults=True):
    """Every answer but success.  ``code`` is the status."""

    code: int
    message: str
    error_code: str | None = None


class Sandbox(Answer, frozen=True):
    """A sandbox to its creator, or to whoever connects."""

    template_id: str
    sandbox_id: str
    client_id: str
    envd_version: str
    isolation: str
    alias: str | None = None
    envd_access_token: str | None = None
    traffic_access_token: str | None = None
    domain: str | None = None
    warnings: list[str] = []
    cellfork: dict[str, Any] | None = None


class Lifecycle(Answer, frozen=True):
    """What happens at the end of a sandbox's time."""

    auto_resume: bool
    on_timeout: Literal["kill", "pause"]


class ListedSandbox(Answer, frozen=True):
    """A sandbox in a list."""

    template_id: str
    sandbox_id: str
    client_id: str
    started_at: str
    end_at: str
    cpu_count: int
    memory_mb: int
    disk_size_mb: int
    state: Literal["running", "paused"]
    envd_version: str
    isolation: str
    metadata: dict[str, str]
    volume_mounts: tuple[dict[str, str], ...]
    alias: str | None = None


class SandboxDetail(ListedSandbox, frozen=True, kw_only=True):
    """Everything that is told about a sandbox.

    ``networkAccess`` is what it may reach now, in words; ``limits`` are cellfork's, by name.
    """

    allow_internet_access: bool
    network: dict[str, Any]
    network_access: str
    lifecycle: Lifecycle
    limits: dict[str, Any]
    envd_access_token: str | None = None
    domain: str | None = None
    pause_mode: Literal["full", "filesystem"] | None = None
    warnings: list[str] = []


class Metric(Answer, frozen=True):
    """What a sandbox used at one moment.  Sizes in bytes; ``null`` where the host cannot tell, or there is no limit."""

    timestamp: str
    timestamp_unix: int
    cpu_count: int
    cpu_used_pct: float | None
    mem_used: int | None
    mem_total: int | None
    mem_cache: int | None
    disk_used: int | None
    disk_total: int | None


class Metrics(Answer, frozen=True):
    """The latest metric of each of several sandboxes."""

    sandboxes: dict[str, Metric]


class ForkResult(Answer, frozen=True):
    """One copy, or why there is none."""

    sandbox: Sandbox | None = None
    error: Error | None = None


class SnapshotInfo(Answer, frozen=True):
    """A snapshot.  ``snapshotID`` can be used wherever a template is named."""

    snapshot_id: str = field(name="snapshotID")
    names: list[str] = field(name="names")


class Template(Answer, frozen=True):
    """A template of this server."""

    template_id: str
    build_id: str
    cpu_count: int
    memory_mb: int
    disk_size_mb: int
    public: bool
    aliases: list[str]
    names: list[str]
    created_at: str
    updated_at: str
    created_by: None
    last_spawned_at: None
    spawn_count: int
    build_count: int
    envd_version: str
    build_status: Literal["ready"]


class TemplateBuild(Answer, frozen=True):
    """The one build of a template."""

    build_id: str
    status: Literal["ready"]
    created_at: str
    updated_at: str
    finished_at: str
    cpu_count: int
    memory_mb: int
    disk_size_mb: int
    envd_version: str


class TemplateWithBuilds(Answer, frozen=True):
    """A template with its one build."""

    template_id: str
    public: bool
    aliases: list[str]
    names: list[str]
    created_at: str
    updated_at: str
    last_spawned_at: None
    spawn_count: int
    builds: list[TemplateBuild]


class TemplateAlias(Answer, frozen=True):
    """What an alias stands for."""

    template_id: str
    public: bool


class TemplateTag(Answer, frozen=True):
    """A tag of a template."""

    tag: str
    build_id: str
    created_at: str
