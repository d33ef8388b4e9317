"""What the cases share: one way to call both flavours of the packages, and a list of the public methods that were called."""

import asyncio
import inspect
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import code_interpreter
import opensandbox
from code_interpreter.adapters.code_adapter import CodesAdapter
from opensandbox.adapters.command_adapter import CommandsAdapter
from opensandbox.adapters.diagnostics_adapter import DiagnosticsAdapter
from opensandbox.adapters.egress_adapter import EgressAdapter
from opensandbox.adapters.filesystem_adapter import FilesystemAdapter
from opensandbox.adapters.health_adapter import HealthAdapter
from opensandbox.adapters.metrics_adapter import MetricsAdapter
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.models.sandboxes import SandboxImageSpec

IMAGE = "opensandbox/code-interpreter:latest"
CASE_SECONDS = 90.0
CLASSES = (
    opensandbox.Sandbox,
    opensandbox.SandboxManager,
    code_interpreter.CodeInterpreter,
    CodesAdapter,
    CommandsAdapter,
    DiagnosticsAdapter,
    EgressAdapter,
    FilesystemAdapter,
    HealthAdapter,
    MetricsAdapter,
)
"""Whose public methods have to be called by some case; the sync classes have the same ones."""

Case = Callable[["Client"], Awaitable[None]]
CASES: list[Case] = []
called: set[str] = set()


def case(function: Case) -> Case:
    """Add a case; its docstring is the rule."""
    CASES.append(function)
    return function


async def settle(value: Any) -> Any:
    """Return a value that a method returned, sync or async."""
    return await value if inspect.isawaitable(value) else value


@dataclass
class Client:
    """The packages in one flavour (``sync`` or ``async``), which find sandboxes directly or through the server."""

    flavour: str
    proxy: bool
    key: str = os.environ["OPEN_SANDBOX_API_KEY"]

    @property
    def is_async(self) -> bool:
        return self.flavour == "async"

    @property
    def config(self) -> Any:
        kind = ConnectionConfig if self.is_async else ConnectionConfigSync
        return kind(
            api_key=self.key, use_server_proxy=self.proxy, request_timeout=timedelta(seconds=CASE_SECONDS)
        )

    @property
    def sandboxes(self) -> Any:
        return opensandbox.Sandbox if self.is_async else opensandbox.SandboxSync

    async def manager(self) -> Any:
        kind = opensandbox.SandboxManager if self.is_async else opensandbox.SandboxManagerSync
        return await settle(kind.create(self.config))

    async def create(self, **options: Any) -> Any:
        """Return a new sandbox that nobody ends."""
        options = {"timeout": timedelta(minutes=5), "resource": {"cpu": "1", "memory": "512Mi"}, **options}
        if "snapshot_id" not in options:
            options.setdefault("image", SandboxImageSpec(IMAGE))
        return await settle(self.sandboxes.create(connection_config=self.config, **options))

    @asynccontextmanager
    async def sandbox(self, **options: Any) -> AsyncIterator[Any]:
        """A sandbox that is ended at the end."""
        sandbox = await self.create(**options)
        try:
            yield sandbox
        finally:
            await settle(sandbox.destroy() if hasattr(sandbox, "destroy") else sandbox.kill())

    @asynccontextmanager
    async def interpreter(self, **options: Any) -> AsyncIterator[Any]:
        """A code interpreter, whose sandbox is ended at the end."""
        kind = code_interpreter.CodeInterpreter if self.is_async else code_interpreter.CodeInterpreterSync
        async with self.sandbox(**options) as sandbox:
            yield await settle(kind.create(sandbox))

    @asynccontextmanager
    async def raises(self, *kinds: type[Exception]) -> AsyncIterator[list[Exception]]:
        """The block has to raise one of these; what it raised is in the list."""
        caught: list[Exception] = []
        try:
            yield caught
        except kinds as error:
            caught.append(error)
        else:
            raise AssertionError("nothing was raised")


def note_calls() -> None:
    """Let every public method of the async classes note that it was called."""
    for owner in CLASSES:
        for name, method in [*vars(owner).items()]:
            plain = getattr(method, "__func__", method)
            if not name.startswith("_") and inspect.isfunction(plain):
                setattr(owner, name, _noted(f"{owner.__name__}.{name}", method))


def public() -> set[str]:
    """Return the names of all public methods."""
    return {
        f"{owner.__name__}.{name}"
        for owner in CLASSES
        for name, method in vars(owner).items()
        if not name.startswith("_") and inspect.isfunction(getattr(method, "__func__", method))
    }


def _noted(name: str, method: Any) -> Any:
    plain = method.__func__ if isinstance(method, classmethod) else method

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        called.add(name)
        return plain(*args, **kwargs)

    return classmethod(wrapper) if isinstance(method, classmethod) else wrapper


async def run(client: Client, only: str) -> int:
    """Run the cases; print a line for each; return how many failed."""
    failed = 0
    for each in CASES:
        if only not in each.__name__:
            continue
        try:
            await asyncio.wait_for(each(client), CASE_SECONDS)
        except Exception:
            failed += 1
            print(f"FAILED {each.__name__}: {each.__doc__}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"passed {each.__name__}", flush=True)
    return failed
