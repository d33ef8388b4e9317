"""The control plane of a real server over real sandboxes: what it says happens inside."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from cellfork.server.app import create_app
from cellfork.server.serving import serving
from cellfork.server.settings import load

KEY = "e2b_" + 40 * "a"
NOTE = "/home/user/note.txt"


class Api:
    """A client of the server."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def create(self, **fields: Any) -> dict[str, Any]:
        answer = await self.client.post("/v2/sandboxes", json={"templateID": "base", **fields})
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def call(self, sandbox: dict[str, Any], method: str, path: str, **body: Any) -> httpx2.Response:
        content: dict[str, Any] = {"json": body} if body else {}
        answer = await self.client.request(method, f"/sandboxes/{sandbox['sandboxID']}{path}", **content)
        assert answer.status_code < 300, answer.text
        return answer

    async def run(self, sandbox: dict[str, Any], code: str) -> str:
        """Run code; return what it printed, or the name of its error."""
        headers = {"E2b-Sandbox-Id": sandbox["sandboxID"], "E2b-Sandbox-Port": "49999"}
        headers["X-Access-Token"] = sandbox["envdAccessToken"]
        answer = await self.client.post("/execute", headers=headers, json={"code": code})
        assert answer.status_code == 200, answer.text
        lines = [json.loads(line) for line in answer.text.splitlines()]
        errors = [line["name"] for line in lines if line["type"] == "error"]
        return "".join([line["text"] for line in lines if line["type"] == "stdout"] + errors).strip()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    flags = {"port": "0", "api_key": KEY, "state": "none", "warm": False, "log_level": "error"}
    app = create_app(load(flags, {}, []).settings)
    async with serving(app) as url:
        headers = {"X-API-KEY": KEY}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
            yield Api(client)


async def test_variables_and_metadata_arrive(api: Api) -> None:
    """Variables of the body are data inside, whatever they hold; metadata comes back in lists."""
    told = await api.create(envVars={"A": 'it\'s "quoted"\n'}, metadata={"who": "me & you"})
    assert await api.run(told, "import os; print(repr(os.environ['A']))") == repr('it\'s "quoted"\n')
    found = await api.client.get("/v2/sandboxes", params={"metadata": "who=me%20%2526%20you"})
    assert [entry["sandboxID"] for entry in found.json()] == [told["sandboxID"]]


async def test_what_a_pause_keeps(api: Api) -> None:
    """With memory variables and files, without memory files alone; a sandbox that sleeps is 502 to its callers."""
    told = await api.create()
    await api.run(told, f"x = 41; open({NOTE!r}, 'w').write('kept')")
    for memory, found in ((True, "41"), (False, "NameError")):
        await api.call(told, "POST", "/pause", memory=memory)
        headers = {"E2b-Sandbox-Id": told["sandboxID"], "E2b-Sandbox-Port": "49983"}
        assert (await api.client.get("/health", headers=headers)).status_code == 502
        answer = await api.call(told, "POST", "/connect", timeout=60)
        assert answer.status_code == 201
        assert await api.run(told, "print(x)") == found
        assert await api.run(told, f"print(open({NOTE!r}).read())") == "kept"


async def test_snapshots_and_forks_are_independent(api: Api) -> None:
    """Each copy has the files of the moment, and changes none of the others'."""
    told = await api.create()
    write, read = f"open({NOTE!r}, 'w').write(%r)", f"print(open({NOTE!r}).read())"
    await api.run(told, write % "first")
    snapshot = (await api.call(told, "POST", "/snapshots", name="mine")).json()
    await api.run(told, write % "second")
    forks = [result["sandbox"] for result in (await api.call(told, "POST", "/fork", count=2)).json()]
    restored = await api.create(templateID=snapshot["snapshotID"])
    assert await api.run(restored, read) == "first"
    assert [await api.run(fork, read) for fork in forks] == ["second", "second"]
    await api.run(forks[0], write % "changed")
    assert await api.run(forks[1], read) == "second"
    assert await api.run(told, read) == "second"
    assert (await api.client.delete("/templates/mine")).status_code == 204


async def test_a_network_that_is_taken_away(api: Api) -> None:
    """Hosts of ``allowOut`` are the proxy's policy inside; an update that denies everything holds at once."""
    told = await api.create(network={"allowOut": ["a.example"], "denyOut": ["0.0.0.0/0"]})
    ask = """
import urllib.request
try:
    urllib.request.urlopen("https://a.example", timeout=5)
except OSError as error:
    print("not allowed" in str(error))
"""
    assert await api.run(told, "import os; print(os.environ['CELLFORK_NETWORK'])") == "allow"
    assert await api.run(told, ask) == "False"  # allowed, only that there is no such host
    await api.call(told, "PUT", "/network", denyOut=["0.0.0.0/0"])
    assert await api.run(told, ask) == "True"
    detail = (await api.call(told, "GET", "")).json()
    assert (detail["networkAccess"], detail["allowInternetAccess"]) == ("nothing", False)


async def test_metrics_are_measured(api: Api) -> None:
    """Within a second there is a sample, with numbers of this sandbox; ``/e2b`` in front of a path means the same path."""
    told = await api.create()
    metrics: list[dict[str, Any]] = []
    while not metrics:
        await asyncio.sleep(0.05)
        metrics = (await api.call(told, "GET", "/metrics")).json()
    metric = metrics[0]
    assert 0 < metric["memUsed"] < metric["memTotal"] == 512 * 2**20
    assert 0 <= metric["cpuUsedPct"] <= 100
    assert metric["diskUsed"] < metric["diskTotal"]
    answer = await api.client.get(f"/e2b/sandboxes/{told['sandboxID']}")
    assert answer.json()["sandboxID"] == told["sandboxID"]
    assert (await api.client.get("/e2b/templates/aliases/team%2Fbase")).status_code == 404
