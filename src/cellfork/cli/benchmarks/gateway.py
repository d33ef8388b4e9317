"""A peer with HTTP: Jupyter Kernel Gateway, driven through its WebSocket as its clients drive it."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from cellfork.cli.benchmarks.wire import Connection
from cellfork.model.errors import InternalError, Unsupported

NAME = "Jupyter Kernel Gateway"
START_SECONDS = 60.0


class Gateway:
    """A kernel behind a gateway, and an open WebSocket to it."""

    def __init__(self, websocket: Any) -> None:
        self._websocket = websocket
        self._session = uuid.uuid4().hex

    async def run(self, code: str) -> None:
        """Run code to its end: its reply was read and the kernel said that it is idle."""
        id = uuid.uuid4().hex
        await self._websocket.send(json.dumps(self._request(id, code)))
        idle = replied = False
        while not (idle and replied):
            message = json.loads(await self._websocket.recv())
            if message["parent_header"].get("msg_id") != id:
                continue
            kind = message["header"]["msg_type"]
            if kind == "error":
                raise InternalError(f"a benchmark's own code failed: {message['content']['evalue']}")
            idle |= kind == "status" and message["content"]["execution_state"] == "idle"
            replied |= kind == "execute_reply"

    def _request(self, id: str, code: str) -> dict[str, Any]:
        header = {
            "msg_id": id,
            "msg_type": "execute_request",
            "session": self._session,
            "username": "",
            "version": "5.3",
            "date": "",
        }
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "allow_stdin": False,
            "user_expressions": {},
        }
        return {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}


@asynccontextmanager
async def gateway() -> AsyncIterator[Gateway]:
    """Start a gateway with one kernel; end both afterwards.  Raises :class:`Unsupported` where it is not installed."""
    if find_spec("kernel_gateway") is None or find_spec("websockets") is None:
        raise Unsupported(f"{NAME} is not installed: pip install jupyter_kernel_gateway websockets")
    from websockets.asyncio.client import connect

    with tempfile.TemporaryDirectory(prefix="cellfork-bench-") as directory:
        port = _free_port()
        environment = {**os.environ, "IPYTHONDIR": directory, "JUPYTER_RUNTIME_DIR": directory}
        argv = (sys.executable, "-m", "kernel_gateway", "--ip=127.0.0.1", f"--port={port}")
        process = await asyncio.create_subprocess_exec(
            *argv, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            kernel = await asyncio.wait_for(_start_kernel(port), START_SECONDS)
            url = f"ws://127.0.0.1:{port}/api/kernels/{kernel}/channels"
            async with connect(url, max_size=None, compression=None) as websocket:
                yield Gateway(websocket)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _start_kernel(port: int) -> str:
    """Return the id of a kernel, once the gateway listens."""
    while True:
        try:
            connection = await Connection.open(port)
        except ConnectionError:
            await asyncio.sleep(0.1)
            continue
        try:
            told: dict[str, Any] = json.loads(
                await connection.request("POST", "/api/kernels", {"name": "python3"})
            )
            return str(told["id"])
        finally:
            await connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
