"""Between OpenSandbox's wire and the nouns of the engine.  No answer holds ``null``: its clients take that for a value."""

import platform as machine
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

from cellfork.dialects.opensandbox.errors import INVALID_EXPIRATION, INVALID_LABEL, Refused, invalid
from cellfork.dialects.opensandbox.registry import Notes
from cellfork.dialects.opensandbox.schema import Platform
from cellfork.engine.sandbox import Sandbox
from cellfork.engine.snapshots import Snapshot
from cellfork.model.limits import Limits

Json = dict[str, Any]

IDLE: Final = ("tail", "-f", "/dev/null")
"""The main process of a sandbox that has none of its own; nothing is started for it."""
DEFAULT_PAGE, LARGEST_PAGE = 20, 200
READY: Final = "Ready"
STATES: Final[Mapping[str, str]] = {"running": "Running", "paused": "Paused", "ended": "Terminated"}
MACHINES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|K|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_UNITS: Final[Mapping[str, float]] = {
    "": 1, "m": 0.001, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
RESERVED: Final = "opensandbox.io/"


def iso(seconds: float) -> str:
    """Return a Unix time as RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def moment(text: str) -> float:
    """Return the Unix time that a text says; without a zone it is UTC.  Raises :class:`Refused`."""
    try:
        told = datetime.fromisoformat(_six_digits(text))
    except ValueError:
        raise invalid("expiresAt is a time as RFC 3339 writes it, such as 2030-01-31T12:00:00Z") from None
    try:
        return (told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp()
    except OverflowError:
        raise Refused(400, INVALID_EXPIRATION, "expiresAt is out of range") from None


def _six_digits(text: str) -> str:
    """Leave of a second's fraction what Python reads: other languages write nine digits."""
    return re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text.strip())


# ----------------------------------------------------------------------------------------------- requests


def limits_of(resources: Mapping[str, str] | None, base: Limits) -> Limits:
    """Return the limits that resources in the words of Kubernetes ask for, over those of the template.

    Raises :class:`Refused`, :class:`InvalidRequest`.
    """
    wanted: dict[str, Any] = {}
    for name, text in (resources or {}).items():
        if name == "cpu":
            wanted["cpu"] = _quantity(name, text)
        elif name == "memory":
            wanted["memory"] = int(_quantity(name, text))
        elif name in {"disk", "ephemeral-storage"}:
            wanted["disk"] = int(_quantity(name, text))
        elif name == "gpu" and text.strip() == "0":
            continue
        else:
            raise invalid(
                f"resourceLimits has no {name[:60]!r} here; there are cpu, memory and ephemeral-storage"
            )
    return replace(base, **wanted)


def _quantity(name: str, text: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise invalid(f"{text[:60]!r} is no amount of {name}; write for instance 500m, 2 or 512Mi")
    return float(match[1]) * _UNITS[match[2] or ""]


def check_platform(wanted: Platform | None) -> dict[str, str] | None:
    """Return the platform that was asked for.  Raises :class:`Refused` where this machine is another one."""
    if wanted is None:
        return None
    told = {"os": wanted.os.strip().lower(), "arch": wanted.arch.strip().lower()}
    own = {"os": "linux", "arch": MACHINES.get(machine.machine(), machine.machine())}
    if told != own:
        raise invalid(
            f"this server runs on {own['os']}/{own['arch']}, not on {told['os'][:20]}/{told['arch'][:20]}"
        )
    return told


def check_labels(metadata: Mapping[str, str]) -> None:
    """Raise :class:`Refused` for what Kubernetes would not take as labels: clients rely on the same rules everywhere."""
    for key, value in metadata.items():
        prefix, slash, name = key.rpartition("/")
        if key.startswith(RESERVED):
            raise _no_label(f"Metadata key {key[:80]!r} uses the reserved prefix {RESERVED!r}")
        if slash and (len(prefix) > 253 or _SUBDOMAIN.fullmatch(prefix) is None):
            raise _no_label(f"Metadata key {key[:80]!r} is invalid: the part before / is no DNS subdomain")
        if _NAME.fullmatch(name) is None:
            raise _no_label(
                f"Metadata key {key[:80]!r} is invalid: a name has up to 63 letters, digits, '-', '_' and '.'"
            )
        if value and _NAME.fullmatch(value) is None:
            raise _no_label(
                f"Metadata value {value[:80]!r} is invalid: it has up to 63 letters, digits, '-', '_' and '.'"
            )


def _no_label(message: str) -> Refused:
    return Refused(400, INVALID_LABEL, message)


def wanted_metadata(text: str | None) -> dict[str, str]:
    """Return the pairs of ``key=value&key=value``.  Raises :class:`Refused`."""
    if not text:
        return {}
    try:
        return dict(parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=64))
    except ValueError as error:
        raise Refused(
            400, "INVALID_METADATA_FORMAT", f"Invalid metadata format: {str(error)[:200]}"
        ) from None


def has_metadata(metadata: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Tell whether all wanted pairs are there."""
    return all(metadata.get(key) == value for key, value in wanted.items())


# ------------------------------------------------------------------------------------------------ answers


def page(values: Sequence[Any], query: Mapping[str, str]) -> tuple[Sequence[Any], Json]:
    """Return the values of the page that a query asks for, and what is told about it.  Raises :class:`Refused`."""
    number = _whole(query, "page", 1, 2**31)
    size = _whole(query, "pageSize", DEFAULT_PAGE, LARGEST_PAGE)
    pages = -(-len(values) // size)
    told = {
        "page": number,
        "pageSize": size,
        "totalItems": len(values),
        "totalPages": pages,
        "hasNextPage": number < pages,
    }
    return values[(number - 1) * size : number * size], told


def _whole(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or not 1 <= int(text) <= most:
        raise invalid(f"{name} is a whole number from 1 to {most}")
    return int(text)


def state_of(sandbox: Sandbox) -> str:
    """Return the state of a sandbox in upstream's words."""
    return STATES[sandbox.state]


def created(sandbox: Sandbox, notes: Notes) -> Json:
    """Return what the creator of a sandbox is told."""
    since = sandbox.pausing.since if sandbox.state == "paused" else None
    told: Json = {
        "id": sandbox.id,
        "status": {"state": state_of(sandbox), "lastTransitionAt": iso(since or sandbox.started_at)},
        "createdAt": iso(sandbox.started_at),
        "entrypoint": list(notes.entrypoint),
    }
    if notes.metadata:
        told["metadata"] = dict(notes.metadata)
    if notes.platform is not None:
        told["platform"] = dict(notes.platform)
    if notes.extensions:
        told["extensions"] = dict(notes.extensions)
    if sandbox.deadline is not None:
        told["expiresAt"] = iso(sandbox.deadline)
    return told


def described(sandbox: Sandbox, notes: Notes) -> Json:
    """Return everything that is told of a sandbox."""
    told = created(sandbox, notes)
    if notes.image is not None:
        told["image"] = {"uri": notes.image}
    if notes.snapshot is not None:
        told["snapshotId"] = notes.snapshot
    return told


def snapshot(found: Snapshot) -> Json:
    """Return what is told of a snapshot; there is none before it is complete."""
    since = iso(found.created_at)
    told: Json = {
        "id": found.id,
        "sandboxId": found.sandbox_id,
        "status": {"state": READY, "reason": "snapshot_ready", "lastTransitionAt": since},
        "createdAt": since,
    }
    if found.names:
        told["name"] = found.names[0]
    return told
