"""The dialect on a real socket, over real sandboxes whose zygote imports nothing."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from cellfork.dialects.together.snapshots import DEFAULT_ID
from cellfork.engine.engine import Engine
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.server.app import App, create_app
from cellfork.server.logs import make_logger
from cellfork.server.serving import serving
from cellfork.server.settings import Settings
from cellfork.server.templates import Named
from tests.server.conftest import KEY, OTHER_KEY, Recorder

BARE = Template("default", preload=(), limits=Limits(disk="64M"))


@dataclass
class Place:
    """A server, its engine, and clients of the management API and of agents."""

    url: str
    engine: Engine
    log: Recorder
    client: httpx2.AsyncClient
    stack: AsyncExitStack
    app: App

    async def new_client(self, base: str, token: str | None) -> httpx2.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        client = httpx2.AsyncClient(base_url=base, headers=headers, timeout=20)
        return await self.stack.enter_async_context(client)

    async def create(self, **fields: Any) -> dict[str, Any]:
        """Create a sandbox; return what its creator is told."""
        body = {"snapshot_id": DEFAULT_ID, "memory_bytes": 512 * 1024 * 1024, **fields}
        answer = await self.client.post("/v1/sandboxes", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def agent(self, told: Mapping[str, Any], token: str = "token") -> httpx2.AsyncClient:
        """Return a client of a sandbox's agent, with one of its tokens."""
        return await self.new_client(told["agent"]["url"], told["agent"][token])


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Place]:
    """A server with an engine of its own."""
    log = Recorder()
    engine = Engine({"namespaces": NamespacesRuntime(prefork=0)})
    fields: dict[str, Any] = {
        "port": 0,
        "api_key": (KEY, f"other:{OTHER_KEY}"),
        "drain": 1.0,
        "templates": (Named(BARE, (), has_limits=True),),
    }
    app = create_app(Settings(**{**fields, **settings}), engine, make_logger("debug", "json", log))  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.aclose)
        url = await stack.enter_async_context(serving(app))
        made = Place(url, engine, log, None, stack, app)  # type: ignore[arg-type]
        made.client = await made.new_client(f"{url}/together", KEY)
        yield made


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the tests of a module: they share a server, and its zygote."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory) -> AsyncIterator[Place]:
    async with served(state=tmp_path_factory.mktemp("state")) as made:
        told = (
            await made.create()
        )  # what is made for the first sandbox, the zygote above all, is no test's own
        await made.client.post(f"/v1/sandboxes/{told['id']}/terminate")
        yield made


@pytest.fixture
async def place(shared: Place) -> AsyncIterator[Place]:
    """The server of the module, without sandboxes and snapshots; what a test makes is gone after it."""
    shared.log.lines.clear()
    async with AsyncExitStack() as stack:
        own = replace(shared, stack=stack)
        own.client = await own.new_client(f"{shared.url}/together", KEY)
        yield own
    for sandbox in shared.engine.list():
        await sandbox.kill()
    for snapshot in shared.engine.snapshots():
        await shared.engine.delete_snapshot(snapshot.id)
    await shared.engine._background.join()  # sandboxes that ended by themselves


@pytest.fixture
async def agent(place: Place) -> httpx2.AsyncClient:
    """A client of the agent of a new sandbox."""
    return await place.agent(await place.create())
