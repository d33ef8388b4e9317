"""The peer: ``jupyter_client`` with ipykernel, driven as a careful user of it would."""

import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from cellfork.cli.benchmarks.machine import descendants, private_memory
from cellfork.model.errors import Unsupported

NAME = "jupyter_client + ipykernel"
IMPORTS = "import numpy, pandas, matplotlib.pyplot, PIL.Image"
"""What a sandbox finds imported already."""

TIMEOUT = 60.0


def check_installed() -> None:
    """Raise :class:`~cellfork.model.errors.Unsupported` where the peer is not installed."""
    absent = [name for name in ("jupyter_client", "ipykernel", "nbclient") if find_spec(name) is None]
    if absent:
        raise Unsupported(
            f"--against jupyter needs {', '.join(absent)}: pip install ipykernel jupyter-client nbclient"
        )


@dataclass(slots=True)
class Jupyter:
    """A running kernel and its client."""

    manager: Any
    client: Any

    async def run(self, code: str, on_output: Callable[[], None] | None = None) -> None:
        """Run code to its end: its reply was read and the kernel said that it is idle.

        ``on_output`` is called at every piece of output and every result.  Raises ``RuntimeError`` where the
        code failed.
        """
        message_id = self.client.execute(code)
        while True:
            message = await self.client.get_iopub_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind = message["msg_type"]
            if kind == "error":
                raise RuntimeError("\n".join(message["content"]["traceback"]))
            if on_output and kind in {"stream", "execute_result", "display_data"}:
                on_output()
            if kind == "status" and message["content"]["execution_state"] == "idle":
                break
        await self.client.get_shell_msg(timeout=TIMEOUT)

    def memory(self) -> int:
        """Return the private memory of the kernel and its children, in bytes."""
        process = self.manager.provisioner.pid
        return private_memory({process} | descendants(process))


@contextlib.contextmanager
def _manager() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield a kernel manager over Unix sockets, the fastest transport, and how to start its kernel."""
    from jupyter_client.manager import AsyncKernelManager

    with tempfile.TemporaryDirectory(prefix="cellfork-bench-") as directory:
        environment = {
            **os.environ,
            "IPYTHONDIR": directory,
            "JUPYTER_RUNTIME_DIR": directory,
            "MPLBACKEND": _INLINE,
        }
        options = {"env": environment, "extra_arguments": ["--HistoryManager.enabled=False"]}
        yield AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{directory}/kernel"), options


@asynccontextmanager
async def jupyter() -> AsyncIterator[Jupyter]:
    """Start a kernel, wait until it is ready, and shut it down at the end."""
    with _manager() as (manager, options):
        await manager.start_kernel(**options)
        client = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=TIMEOUT)
            yield Jupyter(manager, client)
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)


_INLINE = "module://matplotlib_inline.backend_inline"


async def first_output(peer: Jupyter, code: str) -> float:
    """Return the seconds until the first output of ``code`` arrived; wait for its end."""
    start = time.perf_counter()
    first: list[float] = []
    await peer.run(code, lambda: first.append(time.perf_counter() - start))
    return first[0]


@asynccontextmanager
async def notebook() -> AsyncIterator[Callable[[str], Any]]:
    """Start a kernel under nbclient; yield a coroutine function that runs a cell."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    async def run(code: str) -> None:
        book.cells.append(new_code_cell(code))
        await client.async_execute_cell(book.cells[-1], len(book.cells) - 1)

    book = new_notebook()
    with _manager() as (manager, options):
        client = NotebookClient(book, km=manager, timeout=600, extra_arguments=options["extra_arguments"])
        async with client.async_setup_kernel(env=options["env"]):
            yield run
