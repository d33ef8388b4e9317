"""What a sandbox says of the files that an execution made: checked before anybody believes it."""

import re
from typing import Any

from cellfork.model.artifacts import Artifact, mime_of
from cellfork.model.errors import ProtocolViolation
from cellfork.model.limits import MiB
from cellfork.wire.messages import MAX_INT
from cellfork.wire.values import parse, weigh

MAX_ARTIFACTS = 1000
MAX_PATH = 4096
MAX_WEIGHT = 32 * MiB
"""Bytes of memory that they may take when they are read."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def read_artifacts(body: bytes) -> tuple[Artifact, ...]:
    """Return the artifacts of a frame's body.  Raises :class:`ProtocolViolation` for anything else, and nothing else."""
    if weigh(body) > MAX_WEIGHT:
        raise ProtocolViolation(f"artifacts of {len(body)} bytes")
    try:
        entries = parse(body.decode("utf-8"), strict=True)
    except (ValueError, RecursionError):
        raise ProtocolViolation("artifacts that are not JSON") from None
    if not isinstance(entries, list) or len(entries) > MAX_ARTIFACTS:
        raise ProtocolViolation("artifacts are not a short list")
    return tuple(map(_artifact, entries))


def _artifact(entry: Any) -> Artifact:
    match entry:
        case [str() as path, int() as size, str() | None as digest, bool() as lossy]:
            known = not isinstance(size, bool) and 0 <= size <= MAX_INT
            readable = digest is None or _DIGEST.fullmatch(digest)
            if known and readable and 0 < len(path) <= MAX_PATH and path.startswith("/") and "\0" not in path:
                return Artifact(path, size, mime_of(path), digest, lossy)
    raise ProtocolViolation("an artifact is malformed")
