"""Values of the engine as JSON and back: the server writes what the client reads, with nothing lost.

Bytes are Base64.  Numbers that JSON does not have (NaN, infinities) travel as the text that Python writes for them.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from cellfork.engine.values import EntryInfo, ExecOutput
from cellfork.model import events
from cellfork.model.artifacts import Artifact
from cellfork.model.errors import ProtocolViolation
from cellfork.model.network import NetworkPolicy
from cellfork.model.results import ExecutionError

NAMES: Mapping[str, type[events.Event]] = {
    "started": events.Started,
    "stdout": events.Stdout,
    "stderr": events.Stderr,
    "display": events.Display,
    "update": events.Update,
    "clear": events.Clear,
    "input_request": events.InputRequest,
    "finished": events.Finished,
    "failed": events.Failed,
    "interrupted": events.Interrupted,
    "timed_out": events.TimedOut,
    "killed": events.Killed,
    "lost": events.Lost,
}
"""Events by their names in the stream."""
_NAME_OF = {kind: name for name, kind in NAMES.items()}
_write = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


# --------------------------------------------------------------------------------------------------- events


def event_line(event: events.Event) -> bytes:
    """Return an event as a line of the stream: its name in ``type``, and its fields."""
    fields = {"type": _NAME_OF[type(event)], "seq": event.seq, "timestamp": event.timestamp}
    match event:
        case events.Stdout(text=text) | events.Stderr(text=text):
            fields["text"] = text
        case events.Display() | events.Update():
            fields |= _displayed(event)
        case events.Terminal():
            fields |= _ended(event)
        case _:
            fields |= _own_fields(event)
    return _write(fields).encode() + b"\n"


def read_event(line: Mapping[str, Any]) -> events.Event:
    """Return the event of a line.  Raises :class:`ProtocolViolation` for what is none."""
    try:
        fields = dict(line)
        kind = NAMES[fields.pop("type")]
        for name, read in _READERS.items():
            if name in fields:
                fields[name] = read(fields[name])
        return kind(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolViolation(f"the server sent an event that is none: {error}") from None


def _own_fields(event: events.Event) -> dict[str, Any]:
    return {name: value for name, value in asdict(event).items() if name not in {"seq", "timestamp"}}


def _displayed(event: events.Display | events.Update) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "data": [[mime, *_tagged(value)] for mime, value in event.data.items()],
        "metadata": _tagged(dict(event.metadata)),
        "display_id": event.display_id,
    }
    if isinstance(event, events.Display):
        fields["is_main_result"] = event.is_main_result
    return fields


def _ended(event: events.Terminal) -> dict[str, Any]:
    fields = _own_fields(event)
    fields["artifacts"] = [artifact.to_dict() for artifact in event.artifacts]
    return fields


def _tagged(value: Any) -> list[Any]:
    """Return what kind of value it is, and the value: text, bytes, JSON, or what only Python writes as JSON."""
    if isinstance(value, str):
        return ["t", value]
    if isinstance(value, bytes):
        return ["b", b64encode(value).decode("ascii")]
    text = _write(value)
    return ["p", text] if "NaN" in text or "Infinity" in text else ["j", value]


def _untagged(kind: str, value: Any) -> Any:
    match kind:
        case "b":
            return b64decode(value, validate=True)
        case "p":
            return json.loads(value)
        case "t" | "j":
            return value
    raise ValueError(f"an unknown kind of value {kind!r:.20}")


def _read_accounting(fields: Mapping[str, Any]) -> events.Accounting:
    return events.Accounting(**fields)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "data": lambda data: {mime: _untagged(kind, value) for mime, kind, value in data},
    "metadata": lambda tagged: _untagged(*tagged),
    "accounting": _read_accounting,
    "error": lambda error: ExecutionError(**error),
    "artifacts": lambda artifacts: tuple(Artifact(**artifact) for artifact in artifacts),
}
"""How fields are read that are more than plain values."""


# ---------------------------------------------------------------------------------------- files and commands


def entry_of(entry: EntryInfo) -> dict[str, Any]:
    """Return an entry of a directory as JSON."""
    return asdict(entry)


def read_entry(fields: Mapping[str, Any]) -> EntryInfo:
    """Return the entry of a file or directory.  Raises :class:`ProtocolViolation`."""
    try:
        return EntryInfo(**fields)
    except TypeError as error:
        raise ProtocolViolation(f"the server sent an entry that is none: {error}") from None


def output_of(item: ExecOutput) -> list[Any]:
    """Return a piece of a command's output as JSON."""
    return [
        item.sequence,
        item.timestamp,
        item.type,
        b64encode(item.data).decode("ascii"),
        item.exit_code,
    ]


def read_output(fields: list[Any]) -> ExecOutput:
    """Return a piece of a command's output.  Raises :class:`ProtocolViolation`."""
    try:
        sequence, timestamp, kind, data, exit_code = fields
        return ExecOutput(sequence, timestamp, kind, b64decode(data, validate=True), exit_code)
    except (TypeError, ValueError) as error:
        raise ProtocolViolation(f"the server sent output that is none: {error}") from None


# -------------------------------------------------------------------------------------------------- network


def policy_fields(policy: NetworkPolicy) -> dict[str, Any]:
    """Return a network policy as JSON."""
    return {
        "mode": policy.mode,
        "hosts": list(policy.hosts),
        "upload": policy.upload_bytes,
        "download": policy.download_bytes,
    }


def read_policy(fields: Mapping[str, Any]) -> NetworkPolicy:
    """Return a network policy.  Raises :class:`InvalidRequest` for one that cannot be."""
    budgets = {name: fields[name] for name in ("upload", "download") if fields.get(name) is not None}
    return NetworkPolicy(fields["mode"], tuple(fields["hosts"]), **budgets)
