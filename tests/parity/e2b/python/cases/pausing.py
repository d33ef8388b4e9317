"""Pause, resume, snapshots and forks."""

import uuid

from harness import Client, case, eventually, raises


@case("Sandbox.pause")
async def pause_keeps_all(client: Client) -> None:
    """A paused sandbox runs nothing; resumed it has its files, its processes and its variables."""
    sandbox = await client.create()
    await sandbox.files.write("kept.txt", "kept")
    await sandbox.run_code("kept = [1, 2]")
    process = await sandbox.commands.run("sleep 300", background=True, timeout=0)
    assert await sandbox.pause() in (True, None, sandbox.sandbox_id)
    assert not await sandbox.is_running()
    same = await sandbox.connect(timeout=100)
    assert await same.is_running()
    assert await same.files.read("kept.txt") == "kept"
    assert (await same.run_code("kept")).text == "[1, 2]"
    assert process.pid in [each.pid for each in await same.commands.list()]


@case("Sandbox.pause")
async def pause_twice(client: Client) -> None:
    """Pausing what is paused answers False; the class can pause and resume by id."""
    sandbox = await client.create()
    assert await client.Sandbox.pause(sandbox.sandbox_id) in (True, None)
    assert await sandbox.pause() is False
    query = client.e2b.SandboxQuery(state=[client.e2b.SandboxState.PAUSED])
    paused = await client.Sandbox.list(query=query)
    assert sandbox.sandbox_id in [item.sandbox_id for item in await paused.next_items()]
    assert (await sandbox.get_info()).state == client.e2b.SandboxState.PAUSED
    same = await client.Sandbox.connect(sandbox.sandbox_id)
    assert await same.is_running()


@case("Sandbox.beta_pause")
async def beta_pause(client: Client) -> None:
    """The older name of pause does the same."""
    sandbox = await client.create()
    await sandbox.beta_pause()
    assert not await sandbox.is_running()


@case("Sandbox.pause")
async def pause_unknown(client: Client) -> None:
    """A sandbox that is not there cannot be paused."""
    async with raises("NotFoundException"):
        await client.Sandbox.pause("i" + uuid.uuid4().hex[:19])


@case("Sandbox.pause")
async def paused_can_be_killed(client: Client) -> None:
    """A paused sandbox can be killed, and is gone."""
    sandbox = await client.create()
    await sandbox.pause()
    assert await sandbox.kill() is True
    async with raises("NotFoundException"):
        await client.Sandbox.connect(sandbox.sandbox_id)


@case("Sandbox.pause:keep_memory")
async def pause_files_only(client: Client) -> None:
    """A pause of the files alone keeps files and nothing that ran."""
    sandbox = await client.create()
    await sandbox.files.write("kept.txt", "kept")
    await sandbox.run_code("lost = 1")
    process = await sandbox.commands.run("sleep 300", background=True, timeout=0)
    boot = await sandbox.files.read("/proc/sys/kernel/random/boot_id")
    await sandbox.pause(keep_memory=False)
    same = await sandbox.connect()
    assert await same.files.read("kept.txt") == "kept"
    assert process.pid not in [each.pid for each in await same.commands.list()]
    assert (await same.run_code("lost")).error.name == "NameError"
    assert await same.files.read("/proc/sys/kernel/random/boot_id") != boot


@case("Sandbox.create:lifecycle")
async def auto_pause(client: Client) -> None:
    """With on_timeout "pause" a sandbox is paused when its time is over, and comes back with its state."""
    sandbox = await client.create(timeout=2, lifecycle={"on_timeout": "pause"})
    await sandbox.run_code("kept = 7")

    async def paused():
        return (await sandbox.get_info()).state == client.e2b.SandboxState.PAUSED

    await eventually(paused, "the sandbox paused")
    assert not await sandbox.is_running()
    same = await client.Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert (await same.run_code("kept")).text == "7"


@case("Sandbox.create:lifecycle")
async def auto_resume(client: Client) -> None:
    """With auto_resume, traffic wakes a sandbox that was paused when its time was over."""
    sandbox = await client.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    await sandbox.run_code("kept = 8")

    async def paused():
        return (await sandbox.get_info()).state == client.e2b.SandboxState.PAUSED

    await eventually(paused, "the sandbox paused")
    assert (await sandbox.run_code("kept")).text == "8"
    assert (await sandbox.get_info()).state == client.e2b.SandboxState.RUNNING


@case("Sandbox.create_snapshot")
async def snapshot(client: Client) -> None:
    """A sandbox made from a snapshot has its files, the source runs on, and the two are independent."""
    name = f"parity-{uuid.uuid4().hex[:12]}"
    source = await client.create()
    await source.files.write("a.txt", "before")
    taken = await source.create_snapshot(name=name)
    assert taken.snapshot_id
    assert any(name in each for each in taken.names)
    assert await source.is_running()
    await source.files.write("a.txt", "after")
    copy = await client.create(template=taken.snapshot_id)
    assert await copy.files.read("a.txt") == "before"
    assert await source.files.read("a.txt") == "after"
    assert (await copy.run_code("40 + 2")).text == "42"
    pages = await source.list_snapshots()
    assert taken.snapshot_id in [each.snapshot_id for each in await pages.next_items()]
    everything = await client.Sandbox.list_snapshots()
    found = []
    while everything.has_next:
        found += [each.snapshot_id for each in await everything.next_items()]
    assert taken.snapshot_id in found
    assert await client.Sandbox.delete_snapshot(taken.snapshot_id) is True
    assert await client.Sandbox.delete_snapshot(taken.snapshot_id) is False
    async with raises("SandboxException", "NotFoundException"):
        await client.create(template=taken.snapshot_id)


@case("Sandbox.create_snapshot")
async def snapshot_outlives(client: Client) -> None:
    """A snapshot outlives its sandbox."""
    source = await client.create()
    await source.files.write("a.txt", "kept")
    taken = await source.create_snapshot()
    await source.kill()
    copy = await client.create(template=taken.snapshot_id)
    assert await copy.files.read("a.txt") == "kept"
    assert await client.Sandbox.delete_snapshot(taken.snapshot_id)


@case("Sandbox.fork")
async def fork(client: Client) -> None:
    """Forks have the files of their source at that moment and go their own ways."""
    source = await client.create()
    await source.files.write("a.txt", "source")
    forks = await source.fork(count=2, timeout=100)
    assert len({each.sandbox_id for each in [source, *forks]}) == 3
    for number, each in enumerate(forks):
        assert await each.files.read("a.txt") == "source"
        await each.files.write("a.txt", f"fork {number}")
    assert await source.files.read("a.txt") == "source"
    assert await forks[0].files.read("a.txt") == "fork 0"
    assert (await forks[1].run_code("1 + 1")).text == "2"


@case("Sandbox.fork")
async def fork_unknown(client: Client) -> None:
    """A sandbox that is not there cannot be forked."""
    async with raises("NotFoundException"):
        await client.Sandbox.fork("i" + uuid.uuid4().hex[:19])
