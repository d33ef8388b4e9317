"""The life of a sandbox: create, connect, list, tell, limit, end."""

import asyncio
import datetime as dt
import uuid

from harness import ALL, Client, case, eventually, raises


def label() -> dict[str, str]:
    return {"parity": uuid.uuid4().hex}


async def listed(client: Client, **options):
    """All pages of a listing, as (sandbox ids, number of pages)."""
    pages = client.Sandbox.list(**options)
    pages = await pages
    ids, count = [], 0
    while pages.has_next:
        ids += [item.sandbox_id for item in await pages.next_items()]
        count += 1
        assert count < 50, "the pages never end"
    return ids, count


@case(modes=ALL)
async def create_is_running(client: Client) -> None:
    """A sandbox that was created is running, has an id, and its envd is new enough for every feature."""
    sandbox = await client.create()
    assert sandbox.sandbox_id
    assert await sandbox.is_running()
    assert client.mode == "debug" or sandbox.sandbox_id.isalnum()


@case()
async def create_options(client: Client) -> None:
    """Metadata, variables and the life time given at creation are those of the sandbox."""
    mine = label() | {"a b": "c/d?e=ü&f", "empty": ""}
    sandbox = await client.create(metadata=mine, envs={"PARITY": 'it\'s "quoted"\n$HOME'}, timeout=77)
    info = await sandbox.get_info()
    assert info.metadata == mine
    assert info.sandbox_id == sandbox.sandbox_id
    assert 70 <= (info.end_at - info.started_at).total_seconds() <= 78
    assert (await sandbox.commands.run('printf %s "$PARITY"')).stdout == 'it\'s "quoted"\n$HOME'
    execution = await sandbox.run_code("import os; os.environ['PARITY']")
    assert execution.results[0].text == repr('it\'s "quoted"\n$HOME').strip("'\""), execution


@case("Sandbox.create:lifecycle")
async def info_is_whole(client: Client) -> None:
    """The information on a sandbox tells its template, size, state, times, network and life cycle."""
    sandbox = await client.create(lifecycle={"on_timeout": "pause", "auto_resume": True})
    info = await sandbox.get_info()
    assert info.template_id
    assert str(getattr(info.state, "value", info.state)) == "running"
    assert info.cpu_count > 0 and info.memory_mb > 0
    assert info.started_at < info.end_at and info.started_at.tzinfo
    assert dict(info.lifecycle) == {"on_timeout": "pause", "auto_resume": True}
    by_class = await client.Sandbox.get_info(sandbox.sandbox_id)
    assert by_class.sandbox_id == sandbox.sandbox_id


@case()
async def unknown_template(client: Client) -> None:
    """A template that does not exist is an error that names it."""
    async with raises("SandboxException", "NotFoundException", containing="no-such-template"):
        await client.create(template="no-such-template")


@case("v2")
async def template_base(client: Client) -> None:
    """The base template of the base SDK exists too."""
    sandbox = await client.create(template="base")
    assert (await sandbox.commands.run("echo base")).stdout == "base\n"


@case()
async def kill_ends(client: Client) -> None:
    """Killing answers True, the second time False; the sandbox no longer runs and no longer can be connected to."""
    sandbox = await client.create()
    killed = await sandbox.kill()
    assert await sandbox.is_running() is False
    assert not await sandbox.kill()
    if client.has("v2"):  # the first generation answers nothing
        assert killed is True
        assert await client.Sandbox.kill(sandbox.sandbox_id) is False
        async with raises("SandboxException", "NotFoundException"):
            await client.Sandbox.connect(sandbox.sandbox_id)
        async with raises("SandboxException", "NotFoundException"):
            await sandbox.get_info()
    async with raises("TimeoutException", "NotFoundException"):
        await sandbox.commands.run("true")


@case()
async def connect_by_id(client: Client) -> None:
    """Whoever connects by id reaches the same sandbox, its files and its variables."""
    sandbox = await client.create()
    await sandbox.run_code("kept = 41")
    await sandbox.files.write("kept.txt", "here")
    same = await client.Sandbox.connect(sandbox.sandbox_id)
    assert same.sandbox_id == sandbox.sandbox_id
    assert (await same.run_code("kept + 1")).text == "42"
    assert await same.files.read("kept.txt") == "here"


@case("Sandbox.connect:timeout")
async def connect_never_shortens(client: Client) -> None:
    """Connecting to a running sandbox extends its life and never shortens it."""
    sandbox = await client.create(timeout=100)
    before = (await sandbox.get_info()).end_at
    await client.Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert (await sandbox.get_info()).end_at == before
    await sandbox.connect(timeout=400)
    assert (await sandbox.get_info()).end_at > before + dt.timedelta(seconds=200)


@case()
async def timeout_ends(client: Client) -> None:
    """A sandbox ends when its time is over, and what is sent to it then is told so."""
    sandbox = await client.create(timeout=2)

    async def ended():
        return not await sandbox.is_running()

    await eventually(ended, "the sandbox ended")
    async with raises("TimeoutException"):
        await sandbox.run_code("1")


@case()
async def set_timeout(client: Client) -> None:
    """The life of a sandbox can be made longer and shorter; shorter than now ends it."""
    sandbox = await client.create(timeout=60)
    await sandbox.set_timeout(200)
    info = await sandbox.get_info()
    left = (info.end_at - dt.datetime.now(dt.UTC)).total_seconds()
    assert 190 < left <= 201
    await sandbox.set_timeout(0)

    async def ended():
        return not await sandbox.is_running()

    await eventually(ended, "the sandbox ended")


@case("v2")
async def set_timeout_unknown(client: Client) -> None:
    """A sandbox that is not there cannot be given time."""
    async with raises("NotFoundException"):
        await client.Sandbox.set_timeout("i" + uuid.uuid4().hex[:19], 10)


@case("SandboxPaginator.next_items")
async def list_pages(client: Client) -> None:
    """Listing goes by pages of the size asked for, newest first, each sandbox once."""
    mine = label()
    made = [(await client.create(metadata=mine)).sandbox_id for _ in range(5)]
    query = client.e2b.SandboxQuery(metadata=mine)
    ids, pages = await listed(client, query=query, limit=2)
    assert ids == made[::-1]
    assert pages == 3
    if client.has("Sandbox.list:order"):
        ids, _ = await listed(client, query=query, limit=3, order="asc")
        assert ids == made


@case("SandboxPaginator.next_items")
async def list_token(client: Client) -> None:
    """A listing can be continued from a token of another listing."""
    mine = label()
    made = {(await client.create(metadata=mine)).sandbox_id for _ in range(3)}
    query = client.e2b.SandboxQuery(metadata=mine)
    first = await client.Sandbox.list(query=query, limit=1)
    seen = {item.sandbox_id for item in await first.next_items()}
    rest = await client.Sandbox.list(query=query, limit=10, next_token=first.next_token)
    seen |= {item.sandbox_id for item in await rest.next_items()}
    assert seen == made
    assert not rest.has_next


@case("SandboxPaginator.next_items")
async def list_filters(client: Client) -> None:
    """A listing filters by every pair of metadata, by state, and tells the metadata of each."""
    mine = label() | {"a b": "c/d e%20"}
    sandbox = await client.create(metadata=mine)
    await client.create(metadata={"parity": mine["parity"]})
    running = [client.e2b.SandboxState.RUNNING]
    paused = [client.e2b.SandboxState.PAUSED]
    query = client.e2b.SandboxQuery
    assert (await listed(client, query=query(metadata=mine)))[0] == [sandbox.sandbox_id]
    assert (await listed(client, query=query(metadata=mine, state=running)))[0] == [sandbox.sandbox_id]
    assert (await listed(client, query=query(metadata=mine, state=paused)))[0] == []
    assert (await listed(client, query=query(metadata=mine | {"x": "y"})))[0] == []
    first = await client.Sandbox.list(query=query(metadata=mine))
    item = (await first.next_items())[0]
    assert item.metadata == mine
    assert item.state == client.e2b.SandboxState.RUNNING


@case("Sandbox.list")
async def list_all(client: Client) -> None:
    """A listing without conditions holds what was just created."""
    sandbox = await client.create()
    if client.has("SandboxPaginator.next_items"):
        ids, _ = await listed(client)
    else:
        ids = [item.sandbox_id for item in await client.Sandbox.list()]
    assert sandbox.sandbox_id in ids


@case("Sandbox.get_metrics")
async def metrics(client: Client) -> None:
    """The use of CPU, memory and disk is told, with sane values; nothing is told of a time before the sandbox."""
    sandbox = await client.create()
    await sandbox.commands.run("head -c 1000000 /dev/urandom | sha256sum")
    samples = await eventually(sandbox.get_metrics, "a sample", 12)
    for sample in samples:
        assert sample.cpu_count >= 1
        assert sample.cpu_used_pct >= 0
        if client.has("v2"):
            assert 0 < sample.mem_used <= sample.mem_total
            assert 0 <= sample.disk_used <= sample.disk_total
            assert sample.timestamp.tzinfo is not None
    if client.has("v2"):
        end = dt.datetime.now() - dt.timedelta(days=1)
        assert await sandbox.get_metrics(end - dt.timedelta(hours=1), end) == []


@case(modes=("url",))
async def wrong_key(client: Client) -> None:
    """A wrong key is refused as such."""
    wrong = "e2b_" + "f" * 40
    async with raises("AuthenticationException"):
        await client.create(api_key=wrong)


@case("v2")
async def wrong_token(client: Client) -> None:
    """Without the token of a sandbox nothing runs in it, though its id is known."""
    sandbox = await client.create()
    stranger = await client.Sandbox.connect(sandbox.sandbox_id)
    headers = stranger.connection_config.sandbox_headers
    assert headers["X-Access-Token"]
    import httpx

    base = sandbox.raw.envd_api_url
    answer = await asyncio.to_thread(
        lambda: httpx.post(
            f"{base}/process.Process/List",
            json={},
            headers={**headers, "X-Access-Token": "wrong"},
            verify=client.mode != "domain",
        )
    )
    assert answer.status_code == 401, answer.text


@case("Sandbox.create:idempotency_key")
async def idempotency(client: Client) -> None:
    """The same idempotency key gives the same sandbox, not a second one."""
    key = uuid.uuid4().hex
    first = await client.create(idempotency_key=key)
    second = await client.create(idempotency_key=key)
    assert first.sandbox_id == second.sandbox_id


@case("Sandbox.create:mcp")
async def mcp_is_refused(client: Client) -> None:
    """An MCP gateway, which there is none of, is a clear error, and no sandbox is left behind."""
    mine = label()
    async with raises("SandboxException", "NotFoundException"):
        await client.create(template="base", mcp={"invalid_server": {}}, metadata=mine)
    assert (await listed(client, query=client.e2b.SandboxQuery(metadata=mine)))[0] == []


@case("Sandbox.create:volume_mounts")
async def volumes_are_refused(client: Client) -> None:
    """A volume, which there are none of, is a clear error, not a sandbox without it."""
    async with raises("SandboxException", "InvalidArgumentException", containing="olume"):
        await client.create(volume_mounts={"/data": "no-such-volume"})


@case("Sandbox.create:iam")
async def iam_is_refused(client: Client) -> None:
    """Workload identity, which there is none of, is a clear error, not a sandbox without it."""
    iam = {"tokens": {"aws": {"audience": "sts.example.com", "token_type": "JWT-SVID"}}}
    async with raises("SandboxException", "InvalidArgumentException", containing="IAM"):
        await client.create(iam=iam)


@case("Sandbox.get_mcp_url", modes=("url", "domain"))
async def hosts(client: Client) -> None:
    """The names of ports hold the port and the id of the sandbox."""
    sandbox = await client.create()
    assert sandbox.get_host(8000).startswith(f"8000-{sandbox.sandbox_id}.")
    assert sandbox.sandbox_id in sandbox.get_mcp_url()
