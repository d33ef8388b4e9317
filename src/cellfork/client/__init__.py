"""The SDK: ``Sandbox`` and ``AsyncSandbox``, and what they hand out.  The sync form is generated from the async one."""

from cellfork.client._async.commands import AsyncCommandHandle, AsyncCommands, AsyncPty
from cellfork.client._async.execs import AsyncExecs
from cellfork.client._async.files import AsyncFiles, AsyncWatchHandle
from cellfork.client._async.network import AsyncNetwork
from cellfork.client._async.sandbox import AsyncNotebook, AsyncSandbox
from cellfork.client._sync.commands import CommandHandle, Commands, Pty
from cellfork.client._sync.execs import Execs
from cellfork.client._sync.files import Files, WatchHandle
from cellfork.client._sync.network import Network
from cellfork.client._sync.sandbox import Notebook, Sandbox
from cellfork.client.values import (
    Context,
    ExecInfo,
    ExecResult,
    ProcessInfo,
    SandboxInfo,
    SandboxMetrics,
    SnapshotInfo,
)
from cellfork.engine.values import CommandResult, CommandTimeout, EntryInfo, ExecOutput, FilesystemEvent

__all__ = [
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncExecs",
    "AsyncFiles",
    "AsyncNetwork",
    "AsyncNotebook",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncWatchHandle",
    "CommandHandle",
    "CommandResult",
    "CommandTimeout",
    "Commands",
    "Context",
    "EntryInfo",
    "ExecInfo",
    "ExecOutput",
    "ExecResult",
    "Execs",
    "Files",
    "FilesystemEvent",
    "Network",
    "Notebook",
    "ProcessInfo",
    "Pty",
    "Sandbox",
    "SandboxInfo",
    "SandboxMetrics",
    "SnapshotInfo",
    "WatchHandle",
]
