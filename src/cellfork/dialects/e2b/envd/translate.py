"""Between the nouns and envd's wire: entries of directories, events, ends of processes.  Texts are those that Go programs print."""

import signal
import stat
from collections.abc import Mapping
from typing import Literal, cast

from protobuf import Oneof
from protobuf.wkt import Timestamp

from cellfork.dialects.e2b.envd.stubs.filesystem_pb import EntryInfo, EventType, FilesystemEvent, FileType
from cellfork.dialects.e2b.envd.stubs.process_pb import ProcessConfig, ProcessEvent, ProcessInfo
from cellfork.engine import values
from cellfork.engine.execs import Exec
from cellfork.model.errors import SandboxGone

Output = Oneof[Literal["stdout"], bytes] | Oneof[Literal["stderr"], bytes] | Oneof[Literal["pty"], bytes]

PREFIX = "user.e2b."
"""How the names of the extended attributes begin that clients see as metadata of a file."""

EVENT_TYPES: Mapping[values.FilesystemEventType, EventType] = {
    "create": EventType.CREATE,
    "write": EventType.WRITE,
    "remove": EventType.REMOVE,
    "rename": EventType.RENAME,
    "chmod": EventType.CHMOD,
}
WITH_ENTRY = frozenset({"create", "write", "chmod"})
"""Events after which there is something to describe; after the others it would be something else of the same name."""

_KINDS: Mapping[int, str] = {
    stat.S_IFDIR: "d",
    stat.S_IFLNK: "L",
    stat.S_IFBLK: "D",
    stat.S_IFIFO: "p",
    stat.S_IFSOCK: "S",
    stat.S_IFCHR: "Dc",
}
_SPECIAL = ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"), (stat.S_ISVTX, "t"))
_TYPES: Mapping[int, FileType] = {stat.S_IFREG: FileType.FILE, stat.S_IFDIR: FileType.DIRECTORY}

_SIGNALS: Mapping[int, str] = {
    signal.SIGHUP: "hangup",
    signal.SIGINT: "interrupt",
    signal.SIGQUIT: "quit",
    signal.SIGILL: "illegal instruction",
    signal.SIGTRAP: "trace/breakpoint trap",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "floating point exception",
    signal.SIGKILL: "killed",
    signal.SIGUSR1: "user defined signal 1",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGUSR2: "user defined signal 2",
    signal.SIGPIPE: "broken pipe",
    signal.SIGALRM: "alarm clock",
    signal.SIGTERM: "terminated",
}


def permissions(mode: int) -> str:
    """Return a mode as Go writes it: ``-rw-r--r--``, ``drwxr-xr-x``, ``Lrwxrwxrwx``, ``dtrwxrwxrwx``."""
    special = "".join(letter for bit, letter in _SPECIAL if mode & bit)
    kind = _KINDS.get(stat.S_IFMT(mode), "")
    letters = f"d{special}" if kind == "d" else _in_go_order(kind, special)
    return (letters or "-") + stat.filemode(stat.S_IFREG | mode & 0o777)[1:]


def _in_go_order(kind: str, special: str) -> str:
    return "".join(letter for letter in "dLDpSugct" if letter in kind + special)


def entry_of(entry: values.EntryInfo, path: str) -> EntryInfo:
    """Return what clients are told of an entry that was described with :data:`PREFIX`; ``path`` is how they know it."""
    is_link = entry.type == "symlink"
    target = (entry.resolved or path) if is_link else None
    mode = entry.resolved_mode if is_link else entry.format | entry.mode
    seconds, nanos = divmod(entry.mtime, 10**9)
    return EntryInfo(
        name=entry.name,
        type=_TYPES.get(stat.S_IFMT(mode), FileType.UNSPECIFIED),
        path=path,
        size=entry.size,
        mode=mode & 0o777,
        permissions=permissions(entry.format | entry.mode),
        owner=entry.owner,
        group=entry.group,
        modified_time=Timestamp(seconds=min(max(seconds, 0), 253402300799), nanos=nanos),
        symlink_target=target,
        metadata=dict(entry.attributes),
        is_symlink=is_link,
    )


def filesystem_event(event: values.FilesystemEvent, entry: EntryInfo | None) -> FilesystemEvent:
    """Return what clients are told of a change; the watched directory itself is ``.``."""
    return FilesystemEvent(name=event.name or ".", type=EVENT_TYPES[event.type], entry=entry)


def started(pid: int) -> ProcessEvent:
    """Return the first event of a stream."""
    event: Oneof[Literal["start"], ProcessEvent.StartEvent] = Oneof("start", ProcessEvent.StartEvent(pid=pid))
    return ProcessEvent(event=event)


def keepalive() -> ProcessEvent:
    """Return the event that says nothing."""
    event: Oneof[Literal["keepalive"], ProcessEvent.KeepAlive] = Oneof("keepalive", ProcessEvent.KeepAlive())
    return ProcessEvent(event=event)


def output(item: values.ExecOutput) -> ProcessEvent:
    """Return the event of a piece of output."""
    piece = cast("Output", Oneof(item.type, item.data))  # streams are named as the fields are
    data = ProcessEvent.DataEvent(output=piece)
    event: Oneof[Literal["data"], ProcessEvent.DataEvent] = Oneof("data", data)
    return ProcessEvent(event=event)


def ended(exec_: Exec) -> ProcessEvent:
    """Return the last event: how a process ended.  Raises :class:`SandboxGone` where nobody knows."""
    if exec_.exit_code is None:
        error = exec_.gone()
        raise error if isinstance(error, SandboxGone) else SandboxGone(str(error), "lost")
    if exec_.signal is not None:
        text = f"signal: {_SIGNALS.get(exec_.signal, f'signal {exec_.signal}')}"
        end = ProcessEvent.EndEvent(exit_code=-1, exited=False, status=text, error=text)
    else:
        text = f"exit status {exec_.exit_code}"
        failure = text if exec_.exit_code else None
        end = ProcessEvent.EndEvent(exit_code=exec_.exit_code, exited=True, status=text, error=failure)
    event: Oneof[Literal["end"], ProcessEvent.EndEvent] = Oneof("end", end)
    return ProcessEvent(event=event)


def info_of(exec_: Exec) -> ProcessInfo:
    """Return what a list tells of a process."""
    cmd, *args = exec_.spec.argv
    config = ProcessConfig(cmd=cmd, args=args, envs=dict(exec_.spec.envs), cwd=exec_.spec.cwd)
    return ProcessInfo(config=config, pid=exec_.pid or 0, tag=exec_.spec.tag)
