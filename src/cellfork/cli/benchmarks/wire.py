"""A server of our own process tree, and the least client that can time it: one connection, kept alive, no library between."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cellfork.model.errors import InternalError, StartupFailed

START_SECONDS = 60.0
LIMIT = 64 * 1024 * 1024
JSON_HEADERS = {"content-type": "application/json"}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs: its port, its key, its process."""

    port: int
    key: str
    pid: int


@dataclass(frozen=True, slots=True)
class Remote:
    """A sandbox on it: its id, and what every request to its planes carries."""

    id: str
    headers: Mapping[str, str]


@asynccontextmanager
async def server(**settings: str) -> AsyncIterator[Served]:
    """Start ``cellfork serve`` on a free port, with a state directory of its own; end it, and it everything, afterwards."""
    with tempfile.TemporaryDirectory(prefix="cellfork-bench-") as state:
        key = f"e2b_{os.urandom(20).hex()}"
        own = {"CELLFORK_API_KEY": key, "CELLFORK_STATE": state, "CELLFORK_KILL_ON_EXIT": "true"}
        argv = [
            sys.executable,
            "-m",
            "cellfork.cli.main",
            "serve",
            "--port",
            "0",
            "--json",
            "--log-level",
            "error",
        ]
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, **own, **settings},
            stdout=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
        )
        try:
            yield Served(await _port(process), key, process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
    if not line:
        raise StartupFailed("the server did not start")
    told: Json = json.loads(line)
    return int(told["port"])


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._reader = reader
        self._writer = writer
        self._host = f"127.0.0.1:{port}"

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Connect to a server on this machine."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(reader, writer, port)

    async def request(
        self,
        method: str,
        path: str,
        body: Json | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        on_piece: Callable[[bytes], None] | None = None,
    ) -> bytes:
        """Return the body of an answer; ``on_piece`` sees it as it comes.  Raises :class:`InternalError` for an error."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = {"host": self._host, "content-length": str(len(content)), **JSON_HEADERS, **(headers or {})}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in lines.items()
        )
        self._writer.write(head.encode() + b"\r\n" + content)
        status, found = await self._head()
        whole = await self._body(status, found, on_piece or (lambda _piece: None))
        if status >= 400:
            raise InternalError(f"{method} {path}: {status} {whole[:500]!r}")
        return whole

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _head(self) -> tuple[int, Mapping[str, str]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in fields}

    async def _body(
        self, status: int, headers: Mapping[str, str], on_piece: Callable[[bytes], None]
    ) -> bytes:
        if status == 204:
            return b""
        if (length := headers.get("content-length")) is not None:
            whole = await self._reader.readexactly(int(length))
            on_piece(whole)
            return whole
        pieces = []
        while size := int(await self._reader.readline(), 16):
            piece = await self._reader.readexactly(size)
            await self._reader.readexactly(2)
            on_piece(piece)
            pieces.append(piece)
        await self._reader.readexactly(2)
        return b"".join(pieces)


class Client:
    """Speaks E2B's dialect over one connection."""

    def __init__(self, served: Served, connection: Connection) -> None:
        self._served = served
        self._connection = connection

    async def create(self) -> Remote:
        """Start a sandbox."""
        body = {"templateID": "code-interpreter-v1", "timeout": 3600}
        answer = await self._connection.request(
            "POST", "/v2/sandboxes", body, {"x-api-key": self._served.key}
        )
        told: Json = json.loads(answer)
        headers = {
            "e2b-sandbox-id": told["sandboxID"],
            "e2b-sandbox-port": "49999",
            "x-access-token": told["envdAccessToken"],
        }
        if told.get("trafficAccessToken"):
            headers["e2b-traffic-access-token"] = told["trafficAccessToken"]
        return Remote(told["sandboxID"], headers)

    async def run(self, sandbox: Remote, code: str, on_piece: Callable[[bytes], None] | None = None) -> bytes:
        """Run code in the default context; return the lines.  Raises :class:`InternalError` where it failed."""
        lines = await self._connection.request("POST", "/execute", {"code": code}, sandbox.headers, on_piece)
        if b'"type":"error"' in lines or not lines.endswith(b'{"type":"end_of_execution"}\n'):
            raise InternalError(f"a benchmark's own code failed: {lines[-500:]!r}")
        return lines

    async def kill(self, sandbox: Remote) -> None:
        """End a sandbox."""
        await self._connection.request(
            "DELETE", f"/sandboxes/{sandbox.id}", headers={"x-api-key": self._served.key}
        )


class EnvdClient:
    """Runs commands as E2B's SDK does: one stream of enveloped JSON."""

    def __init__(self, sandbox: Remote, connection: Connection) -> None:
        self._headers = {
            **sandbox.headers,
            "e2b-sandbox-port": "49983",
            "content-type": "application/connect+json",
            "connect-protocol-version": "1",
        }
        self._connection = connection

    async def echo(self) -> None:
        """Run ``echo`` to its end."""
        process = {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hi"], "envs": {}}
        message = json.dumps({"process": process, "stdin": False}).encode()
        envelope = b"\0" + len(message).to_bytes(4, "big") + message
        answer = await self._connection.request("POST", "/process.Process/Start", envelope, self._headers)
        if b'"end"' not in answer:
            raise InternalError(f"a benchmark's own command failed: {answer[-500:]!r}")


class OpenSandboxClient:
    """Speaks OpenSandbox's dialect: a sandbox, and its execd under the proxy path."""

    def __init__(self, served: Served, connection: Connection) -> None:
        self._key = {"open-sandbox-api-key": served.key}
        self._connection = connection
        self._execd = ""

    async def create(self) -> None:
        """Start a sandbox."""
        body: Json = {
            "image": {"uri": "opensandbox/code-interpreter:latest"},
            "timeout": 3600,
            "resourceLimits": {"cpu": "1", "memory": "512Mi"},
            "entrypoint": ["tail", "-f", "/dev/null"],
        }
        told: Json = json.loads(await self._connection.request("POST", "/v1/sandboxes", body, self._key))
        path = f"/v1/sandboxes/{told['id']}/endpoints/44772?use_server_proxy=true"
        found: Json = json.loads(await self._connection.request("GET", path, headers=self._key))
        self._execd = "/" + found["endpoint"].partition("/")[2]

    async def run(self) -> None:
        """Run ``1 + 1``."""
        await self._stream("/code", {"code": "1 + 1", "context": {"language": "python"}})

    async def echo(self) -> None:
        """Run ``echo`` to its end."""
        await self._stream("/command", {"command": "echo hi"})

    async def _stream(self, path: str, body: Json) -> None:
        answer = await self._connection.request("POST", self._execd + path, body)
        if b"execution_complete" not in answer:
            raise InternalError(f"a benchmark's own code failed: {answer[-500:]!r}")


class TogetherClient:
    """Speaks Together's dialect: a sandbox, and its agent."""

    def __init__(self, served: Served, connection: Connection) -> None:
        self._key = {"authorization": f"Bearer {served.key}"}
        self._connection = connection
        self._agent, self._token = "", {"authorization": ""}

    async def create(self) -> None:
        """Start a sandbox."""
        body: Json = {"snapshot_alias": "default", "cpu": 1, "memory_bytes": 512 * 1024 * 1024}
        answer = await self._connection.request("POST", "/together/v1/sandboxes", body, self._key)
        agent: Json = json.loads(answer)["agent"]
        self._agent = "/" + agent["url"].split("/", 3)[3]
        self._token = {"authorization": f"Bearer {agent['token']}"}

    async def echo(self) -> None:
        """Run ``echo`` as ``exec`` of the SDK does: make it, then follow its output."""
        body: Json = {"command": "bash", "args": ["-c", "echo hi"]}
        made: Json = json.loads(
            await self._connection.request("POST", f"{self._agent}/api/v1/execs", body, self._token)
        )
        path = f"{self._agent}/api/v1/stream/execs/{made['id']}/io"
        if b'"exitCode":0' not in await self._connection.request("GET", path, headers=self._token):
            raise InternalError("a benchmark's own command failed")


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[Connection]:
    """A connection of its own."""
    connection = await Connection.open(served.port)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def client(served: Served) -> AsyncIterator[Client]:
    """A client with a connection of its own."""
    async with connected(served) as connection:
        yield Client(served, connection)
