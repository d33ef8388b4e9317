"""Between Together's wire and the nouns of the engine."""

import base64
import fnmatch
import posixpath
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cellfork.engine.execs import Exec
from cellfork.engine.values import EntryInfo, ExecOutput, FilesystemEvent
from cellfork.model.specs import HOME

NAMESPACE = uuid.UUID("7c0f6b1e-4a0d-5a7e-9d1f-2f9f3a1c8e55")
"""Ids are UUIDs on this wire: each is derived from one of ours."""
PROJECT = "cellfork"
RUNNING_CODE = -1
"""The exit code of an exec that has none yet: the field is required, and clients take numbers from 0 on as real."""
ROOT_NAMES = frozenset(
    [
        "app",
        "bin",
        "boot",
        "code",
        "data",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "media",
        "mnt",
        "opt",
        "proc",
        "root",
        "run",
        "sbin",
        "srv",
        "sys",
        "tmp",
        "usr",
        "var",
        "workspace",
    ]
)
"""What the root of a sandbox holds; any other path that begins there is meant below the workspace."""
EVENT_TYPES = {"create": "ADD", "write": "CHANGE", "chmod": "CHANGE", "remove": "REMOVE", "rename": "REMOVE"}
STATUS_REASONS = {
    "deadline": "autoterminated",
    "memory": "oom_killed",
    "request": "termination_requested",
    "owner": "evicted",
}
"""Why a sandbox ended → how Together says it; anything else has crashed."""

Json = dict[str, Any]


def uuid_of(id: str) -> str:
    """Return the UUID under which this wire knows something of ours: as hard to guess as the id itself."""
    return str(uuid.uuid5(NAMESPACE, id))


def iso(seconds: float) -> str:
    """Return a Unix time as RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def inside(path: str) -> str:
    """Return the place in the sandbox that a path of the agent API means.

    The root of a sandbox is read-only.  ``/report.txt`` is in the workspace, ``/home/user``; ``/tmp/x`` is ``/tmp/x``.
    """
    clean = posixpath.normpath("/" + path.lstrip("/"))
    first = clean.split("/", 2)[1]
    if first in ROOT_NAMES:
        return clean
    return HOME if clean == "/" else HOME + clean


def exec_item(exec_: Exec) -> Json:
    """Return an exec as clients see it."""
    command, *args = exec_.spec.argv
    return {
        "id": exec_.id,
        "command": command,
        "args": args,
        "status": exec_.status,
        "pid": exec_.pid or 0,
        "pty": exec_.spec.pty is not None,
        "exitCode": RUNNING_CODE if exec_.exit_code is None else exec_.exit_code,
        "user": exec_.spec.user,
    }


def exec_output(item: ExecOutput) -> Json:
    """Return a piece of output; what a terminal shows is stdout on this wire."""
    event = {
        "type": "stderr" if item.type == "stderr" else "stdout",
        "output": item.output,
        "sequence": item.sequence,
        "timestamp": iso(item.timestamp / 1e9),
    }
    return event if item.exit_code is None else {**event, "exitCode": item.exit_code}


def file_content(path: str, content: bytes) -> Json:
    """Return a file: as text where it is text, as base64 otherwise."""
    try:
        return {"path": path, "content": content.decode("utf-8"), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"path": path, "content": base64.b64encode(content).decode("ascii"), "encoding": "base64"}


def file_info(entry: EntryInfo, path: str) -> Json:
    """Return what is known of a file, under the path that was asked for."""
    return {
        "name": entry.name,
        "path": path,
        "isDir": entry.type == "dir",
        "size": entry.size,
        "modTime": iso(entry.mtime / 1e9),
    }


def watcher_event(kind: str, paths: Sequence[str], timestamp: float) -> Json:
    """Return an event of a watcher."""
    return {"paths": list(paths), "type": kind, "timestamp": iso(timestamp)}


def is_ignored(event: FilesystemEvent, patterns: Sequence[str]) -> bool:
    """Tell whether an event's path, or a part of it, matches one of the patterns that are to be ignored."""
    parts = [event.name, *event.name.split("/")]
    return any(fnmatch.fnmatchcase(part, pattern) for pattern in patterns for part in parts)


def has_tags(tags: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Tell whether all wanted pairs are among the tags."""
    return all(tags.get(name) == value for name, value in wanted.items())


def listening_ports(table: str) -> list[Json]:
    """Return the ports that programs listen on, as the kernel's table of TCP sockets (``/proc/net/tcp``) tells."""
    ports = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == "0A":
            address, _, port = fields[1].partition(":")
            number = int(port, 16)
            ports[number] = {"port": number, "address": _address(address)}
    return [ports[number] for number in sorted(ports)]


def _address(hexadecimal: str) -> str:
    """Return an address of the kernel's table: each 32-bit word in the byte order of this machine."""
    if len(hexadecimal) == 8:
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(hexadecimal)))
    words = [bytes.fromhex(hexadecimal[start : start + 8])[::-1] for start in range(0, 32, 8)]
    joined = b"".join(words).hex()
    return ":".join(joined[start : start + 4] for start in range(0, 32, 4))
