"""From the control plane's bodies to the nouns of the engine, and back."""

import math
import re
from typing import Any, Literal, NamedTuple

import msgspec

from cellfork.dialects.base import Services
from cellfork.dialects.e2b import schema
from cellfork.dialects.e2b.errors import bad
from cellfork.dialects.e2b.network import Reach, policy_of, reach_of, told
from cellfork.dialects.e2b.notes import Notes
from cellfork.dialects.e2b.pages import Place, microseconds, rfc3339
from cellfork.dialects.keeping import new_token
from cellfork.engine.sandbox import Sandbox
from cellfork.model.limits import Limits, MiB
from cellfork.model.network import NetworkPolicy
from cellfork.model.specs import Template

V1_TIMEOUT = 15
"""Life in seconds of a sandbox whose creator, in the first version, names none."""
MOST_METADATA = 64 * 1024
"""Bytes of metadata of one sandbox, as JSON: it is kept in memory, and told in every list."""
NEVER = microseconds(253_402_300_799.0)
"""When a sandbox ends that has no deadline: the last second that every client can read."""
MCP_WARNING = "mcp: the server does nothing with it; the client starts the template's own mcp-gateway, where there is one"
_HOST_MASK = re.compile(r"[A-Za-z0-9.-]{1,253}(:([0-9]{1,5}|\$\{PORT\}))?")


class Source(NamedTuple):
    """What a sandbox is made from: a template, or a snapshot of a sandbox of one.  ``id`` and ``alias`` are told to clients."""

    template: Template
    limits: Limits
    id: str
    alias: str | None = None
    snapshot: str | None = None


def check_new(body: schema.NewSandbox, *, secure: bool) -> None:
    """Refuse what cannot be created.  Raises :class:`Refusal` (400), with upstream's words where it has some."""
    if body.auto_pause_memory is False:
        if not body.auto_pause:
            raise bad("autoPauseMemory=false only applies when autoPause is true.")
        if body.auto_resume is not None and body.auto_resume.enabled:
            raise bad(
                "autoPauseMemory=false (filesystem-only auto-pause) cannot be combined with autoResume: a filesystem-only"
                " snapshot cannot be auto-resumed by traffic and must be resumed explicitly."
            )
    if body.metadata and len(msgspec.json.encode(body.metadata)) > MOST_METADATA:
        raise bad(f"metadata takes at most {MOST_METADATA:,} bytes")
    if body.iam and body.iam.get("tokens"):
        raise bad("Sandbox IAM workload tokens are not available: this server issues no identities.")
    if body.volume_mounts:
        raise bad(
            "Volume mounts are not enabled: this server has no volumes; upload files, or start from a snapshot."
        )
    network = body.network
    if network is not None and network.allow_public_traffic is False and not secure:
        raise bad(
            "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag."
        )
    if (
        network is not None
        and network.mask_request_host
        and not _HOST_MASK.fullmatch(network.mask_request_host)
    ):
        raise bad(f"mask request host is not valid: {network.mask_request_host[:80]}")


def check_timeout(services: Services, seconds: int | None, default: float, *, least: int = 1) -> int:
    """Return a life in seconds.  Raises :class:`Refusal` (400) for one that is too short or too long."""
    wanted = int(default) if seconds is None else seconds
    most = services.limits.max_timeout
    if wanted < least:
        raise bad("Timeout must be greater than 0")
    if most is not None and wanted > most:
        raise bad(f"Timeout cannot be greater than {most / 3600:g} hours")
    return wanted


def reach_for(services: Services, body: schema.NewSandbox) -> Reach:
    """Return what a new sandbox is to reach."""
    return reach_of(body.network, allowed=body.allow_internet_access, internet=services.internet)


def notes_for(
    body: schema.NewSandbox, source: Source, timeout: int, warnings: tuple[str, ...], *, secure: bool
) -> Notes:
    """Return what is kept with a new sandbox, with new tokens."""
    network = body.network
    private = network is not None and network.allow_public_traffic is False
    return Notes(
        template=source.id,
        alias=source.alias,
        envd_token=new_token() if secure else None,
        traffic_token=new_token() if private else None,
        mask_host=network.mask_request_host if network is not None else None,
        timeout=timeout,
        auto_pause=bool(body.auto_pause),
        auto_pause_memory=body.auto_pause_memory is not False,
        auto_resume=body.auto_resume is not None and body.auto_resume.enabled,
        network=told(network),
        warnings=(*warnings, *([MCP_WARNING] if body.mcp else [])),
    )


def sandbox_answer(services: Services, sandbox: Sandbox, notes: Notes) -> schema.Sandbox:
    """Return a sandbox as its creator, and whoever connects, is told of it."""
    return schema.Sandbox(
        template_id=notes.template,
        sandbox_id=sandbox.id,
        client_id=schema.CLIENT_ID,
        envd_version=schema.ENVD_VERSION,
        isolation=sandbox.isolation,
        alias=notes.alias,
        envd_access_token=notes.envd_token,
        traffic_access_token=notes.traffic_token,
        domain=services.domain,
        warnings=list(notes.warnings),
    )


def listed(sandbox: Sandbox, notes: Notes) -> schema.ListedSandbox:
    """Return a sandbox as lists show it."""
    return schema.ListedSandbox(**_shown(sandbox, notes))


def detail(services: Services, sandbox: Sandbox, notes: Notes) -> schema.SandboxDetail:
    """Return everything that is told about a sandbox."""
    policy = policy_of(sandbox)
    return schema.SandboxDetail(
        **_shown(sandbox, notes),
        allow_internet_access=policy.mode == "public",
        network=notes.network,
        network_access=describe(policy),
        lifecycle=schema.Lifecycle(notes.auto_resume, "pause" if notes.auto_pause else "kill"),
        limits=sandbox.limits.to_dict(),
        envd_access_token=notes.envd_token,
        domain=services.domain,
        pause_mode=pause_mode(sandbox),
        warnings=list(notes.warnings),
    )


def describe(policy: NetworkPolicy) -> str:
    """Return what a sandbox may reach, in words; every host of a list."""
    return ", ".join(policy.hosts) if policy.mode == "allow" else policy.describe()


def pause_mode(sandbox: Sandbox) -> Literal["full", "filesystem"] | None:
    """Return what a paused sandbox kept; ``None`` while it runs."""
    if sandbox.state != "paused":
        return None
    return "full" if sandbox.pausing.archive is None else "filesystem"


def place_of(sandbox: Sandbox) -> Place:
    """Return where in a list a sandbox stands."""
    return Place(microseconds(sandbox.started_at), sandbox.id)


def cpu_count(limits: Limits) -> int:
    """Return cores as E2B counts them: whole ones, at least one."""
    return max(1, math.ceil(limits.cpu or 1))


def memory_mb(limits: Limits) -> int:
    """Return the memory limit in MiB; 0 where there is none."""
    return limits.memory_bytes // MiB


def disk_mb(limits: Limits) -> int:
    """Return the disk limit in MiB."""
    return limits.disk_bytes // MiB


def _shown(sandbox: Sandbox, notes: Notes) -> dict[str, Any]:
    end = sandbox.pausing.since if sandbox.state == "paused" else sandbox.deadline
    return {
        "template_id": notes.template,
        "sandbox_id": sandbox.id,
        "client_id": schema.CLIENT_ID,
        "started_at": rfc3339(microseconds(sandbox.started_at)),
        "end_at": rfc3339(NEVER if end is None else microseconds(end)),
        "cpu_count": cpu_count(sandbox.limits),
        "memory_mb": memory_mb(sandbox.limits),
        "disk_size_mb": disk_mb(sandbox.limits),
        "state": "paused" if sandbox.state == "paused" else "running",
        "envd_version": schema.ENVD_VERSION,
        "isolation": sandbox.isolation,
        "metadata": dict(sandbox.spec.metadata),
        "volume_mounts": (),
        "alias": notes.alias,
    }
