"""The dialect on a real socket, over real sandboxes whose zygote imports nothing."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cellfork.engine.engine import Engine
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.server.app import create_app
from cellfork.server.logs import make_logger
from cellfork.server.serving import serving
from cellfork.server.settings import Settings
from cellfork.server.templates import Named
from tests.server.conftest import KEY, OTHER_KEY, Recorder

BARE = Template("default", preload=(), limits=Limits(disk="64M"))
IMAGE = {"uri": "opensandbox/code-interpreter:latest"}
IDLE = ["tail", "-f", "/dev/null"]


@dataclass
class Place:
    """A server, its engine, and a client of the lifecycle API."""

    url: str
    engine: Engine
    log: Recorder
    client: httpx2.AsyncClient
    stack: AsyncExitStack
    host: Path
    """A directory that sandboxes may mount."""
    volumes: Path
    """Where named volumes are."""

    async def new_client(self, key: str | None, base: str = "") -> httpx2.AsyncClient:
        headers = {} if key is None else {"OPEN-SANDBOX-API-KEY": key}
        client = httpx2.AsyncClient(base_url=self.url + base, headers=headers, timeout=20)
        return await self.stack.enter_async_context(client)

    async def ask(self, **fields: Any) -> httpx2.Response:
        """Ask for a sandbox."""
        body = {"image": IMAGE, "entrypoint": IDLE, "timeout": 300, "resourceLimits": {"memory": "256Mi"}}
        wanted = {key: value for key, value in {**body, **fields}.items() if value is not ...}
        return await self.client.post("/v1/sandboxes", json=wanted)

    async def create(self, **fields: Any) -> dict[str, Any]:
        """Create a sandbox; return what its creator is told."""
        answer = await self.ask(**fields)
        assert answer.status_code == 202, answer.text
        return answer.json()

    async def endpoint(self, id: str, port: int, **query: str) -> tuple[str, dict[str, str]]:
        """Return the address of a port, and the headers that it asks for."""
        answer = await self.client.get(f"/v1/sandboxes/{id}/endpoints/{port}", params=query)
        assert answer.status_code == 200, answer.text
        return f"http://{answer.json()['endpoint']}", answer.json().get("headers", {})

    async def shell(self, id: str, command: str) -> str:
        """Run a command; return all that it has written."""
        url, headers = await self.endpoint(id, 44772)
        answer = await self.client.post(
            f"{url}/command", json={"command": f"({command}) 2>&1"}, headers=headers
        )
        lines = [line for line in answer.text.split("\n\n") if '"type":"stdout"' in line]
        return "\n".join(httpx2.Response(200, content=line).json()["text"] for line in lines)


@pytest.fixture
def pool() -> int:
    """How many sandboxes wait; a test says otherwise by a parameter of this name."""
    return 0


@pytest.fixture
async def place(tmp_path, pool) -> AsyncIterator[Place]:
    log = Recorder()
    engine = Engine({"namespaces": NamespacesRuntime(prefork=0, pool=pool)})
    host = tmp_path / "host"
    host.mkdir()
    host.chmod(0o777)
    settings = Settings(
        port=0,
        api_key=(KEY, f"other:{OTHER_KEY}"),
        state=tmp_path / "state",
        drain=1.0,
        templates=(Named(BARE, ("also",), has_limits=True),),
        images=(("mine/*", "also"),),
        host_volumes=(host,),
        volumes=tmp_path / "volumes",
    )
    app = create_app(settings, engine, make_logger("debug", "json", log))  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.aclose)
        url = await stack.enter_async_context(serving(app))
        made = Place(url, engine, log, None, stack, host, tmp_path / "volumes")  # type: ignore[arg-type]
        made.client = await made.new_client(KEY)
        yield made
