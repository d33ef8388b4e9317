"""Files: every method, format and stream; metadata, signatures, watching."""

import asyncio
import io
import os
import uuid

import e2b.sandbox.filesystem.filesystem
from harness import ALL, Client, Skipped, case, eventually, raises


def fresh() -> str:
    """A path that no other case uses."""
    return f"parity-{uuid.uuid4().hex[:10]}"


@case(modes=ALL)
async def write_and_read(client: Client) -> None:
    """What is written is read, as text, as bytes and as a stream; missing directories are made."""
    sandbox = await client.create()
    path = f"{fresh()}/deep/a ü.txt"
    info = await sandbox.files.write(path, "text ü\n")
    assert info.path == f"/home/user/{path}"
    assert info.name == "a ü.txt"
    assert await sandbox.files.read(path) == "text ü\n"
    assert bytes(await sandbox.files.read(path, format="bytes")) == "text ü\n".encode()
    stream = await sandbox.files.read(path, format="stream")
    assert await client.read_stream(stream) == "text ü\n".encode()


@case(modes=ALL)
async def kinds_of_content(client: Client) -> None:
    """Text, bytes and open files can be written; bytes come back as they were, empty ones too."""
    sandbox = await client.create()
    path = fresh()
    for data in (b"\x00\xff\xfe bytes", io.BytesIO(b"from a file"), b"", os.urandom(3_000_000)):
        await sandbox.files.write(path, data)
        expected = data if isinstance(data, bytes) else data.getvalue()
        assert bytes(await sandbox.files.read(path, format="bytes")) == expected
    await sandbox.files.write(path, "")
    assert await sandbox.files.read(path) == ""


@case(modes=ALL)
async def several_at_once(client: Client) -> None:
    """Several files can be written with one call."""
    sandbox = await client.create()
    path = fresh()
    files = [{"path": f"{path}/{name}", "data": name} for name in ("one", "two", "three")]
    write = sandbox.files.write_files if client.has("Filesystem.write_files") else sandbox.files.write
    written = await write(files)
    assert [each.name for each in written] == ["one", "two", "three"]
    assert await sandbox.files.read(f"{path}/two") == "two"
    assert len(await sandbox.files.list(path)) == 3


@case("Filesystem.write:gzip")
async def compressed(client: Client) -> None:
    """Content can travel compressed both ways, and in one piece instead of a form."""
    sandbox = await client.create()
    path = fresh()
    data = b"squeeze me " * 100_000
    await sandbox.files.write(path, data, gzip=True)
    assert bytes(await sandbox.files.read(path, format="bytes", gzip=True)) == data
    assert (await sandbox.files.get_info(path)).size == len(data)
    client.require("Filesystem.write:use_octet_stream")
    await sandbox.files.write(path, b"other", use_octet_stream=True)
    assert await sandbox.files.read(path) == "other"


@case("Filesystem.write:metadata")
async def metadata(client: Client) -> None:
    """A file keeps the metadata it was written with, until it is written without."""
    sandbox = await client.create()
    path = fresh()
    written = await sandbox.files.write(path, "x", metadata={"author": "me", "kind": "draft"})
    assert written.metadata == {"author": "me", "kind": "draft"}
    assert (await sandbox.files.get_info(path)).metadata == {"author": "me", "kind": "draft"}
    directory = fresh()
    await sandbox.files.write(f"{directory}/a", "x", metadata={"k": "v"})
    assert (await sandbox.files.list(directory))[0].metadata == {"k": "v"}
    await sandbox.files.write(path, "y")
    assert not (await sandbox.files.get_info(path)).metadata


@case(modes=ALL)
async def owned_by_the_user(client: Client) -> None:
    """Files belong to the user that commands run as, and lie in the home of the one who is named."""
    sandbox = await client.create()
    path = fresh()
    await sandbox.files.write(path, "a")
    info = await sandbox.files.get_info(path)
    assert (info.owner, info.group) == ("user", "user")
    assert info.size == 1 and info.permissions == "-rw-r--r--" and info.mode & 0o777 == 0o644
    await sandbox.commands.run(f"echo b >> {path}")
    assert await sandbox.files.read(path) == "ab\n"
    client.require("Filesystem.write:user")
    await sandbox.files.write(path, "r", user="root")
    assert await sandbox.files.read(f"/root/{path}", user="root") == "r"


@case(modes=ALL)
async def what_is_missing(client: Client) -> None:
    """What is not there is "not found"; a directory cannot be read; a wrong user is refused."""
    sandbox = await client.create()
    missing = fresh()
    async with raises("NotFoundException", containing=missing):
        await sandbox.files.read(missing)
    async with raises("NotFoundException"):
        await sandbox.files.get_info(missing)
    async with raises("NotFoundException"):
        await sandbox.files.list(missing)
    async with raises("NotFoundException"):
        await sandbox.files.rename(missing, f"{missing}-2")
    async with raises("InvalidArgumentException", "SandboxException"):
        await sandbox.files.read("/tmp")
    assert await sandbox.files.exists(missing) is False
    async with raises("AuthenticationException", "SandboxException"):
        await sandbox.files.read("/etc/hostname", user="nobody-at-all")


@case(modes=ALL)
async def directories(client: Client) -> None:
    """Directories are made with their parents, once; listed with kinds and by depth; removed whole."""
    sandbox = await client.create()
    root = fresh()
    assert await sandbox.files.make_dir(f"{root}/a/b") is True
    assert await sandbox.files.make_dir(f"{root}/a/b") is False
    await sandbox.files.write(f"{root}/a/file", "x")
    entries = {each.name: each for each in await sandbox.files.list(f"{root}/a")}
    assert set(entries) == {"b", "file"}
    assert entries["b"].type.value == "dir" and entries["file"].type.value == "file"
    assert entries["b"].path == f"/home/user/{root}/a/b"
    deep = await sandbox.files.list(root, depth=2)
    assert {each.name for each in deep} == {"a", "b", "file"}
    await sandbox.files.remove(root)
    assert not await sandbox.files.exists(root)
    await sandbox.files.remove(root)


@case(modes=ALL)
async def rename(client: Client) -> None:
    """A file can be moved, also over another and into a directory that is not there yet."""
    sandbox = await client.create()
    root = fresh()
    await sandbox.files.write(f"{root}/a", "content")
    info = await sandbox.files.rename(f"{root}/a", f"{root}/sub/b")
    assert (info.name, info.path) == ("b", f"/home/user/{root}/sub/b")
    assert not await sandbox.files.exists(f"{root}/a")
    assert await sandbox.files.read(f"{root}/sub/b") == "content"


@case("Filesystem.get_info", modes=ALL)
async def links(client: Client) -> None:
    """A link tells where it leads."""
    sandbox = await client.create()
    root = fresh()
    await sandbox.files.write(f"{root}/target", "x")
    await sandbox.commands.run(f"ln -s target {root}/link")
    info = await sandbox.files.get_info(f"{root}/link")
    assert info.symlink_target == f"/home/user/{root}/target"
    assert await sandbox.files.read(f"{root}/link") == "x"


@case(modes=ALL)
async def files_of_the_system(client: Client) -> None:
    """Files whose size the kernel tells as zero are read whole."""
    sandbox = await client.create()
    assert "MemTotal" in await sandbox.files.read("/proc/meminfo")


@case("Filesystem.read:stream_idle_timeout")
async def large_stream(client: Client) -> None:
    """A hundred megabytes go up and come down as streams, whole."""
    sandbox = await client.create()
    path, size = fresh(), 100 * 1024 * 1024
    await sandbox.files.write(path, _megabytes(client, size >> 20))
    assert (await sandbox.files.get_info(path)).size == size
    stream = await sandbox.files.read(path, format="stream", stream_idle_timeout=30)
    assert len(await client.read_stream(stream)) == size


def _megabytes(client: Client, count: int):
    """What can be written as a stream: an iterable, in older generations an open file."""
    chunk = b"m" * (1024 * 1024)
    if not hasattr(e2b.sandbox.filesystem.filesystem, "SyncWriteEntry"):
        return io.BytesIO(chunk * count)
    if client.flavour == "sync":
        return (chunk for _ in range(count))

    async def each():
        for _ in range(count):
            yield chunk

    return each()


# ---------------------------------------------------------------------------------------- signed URLs


@case("Sandbox.download_url:use_signature_expiration", modes=("url", "debug"))
async def signed_urls(client: Client) -> None:
    """Signed URLs up- and download one file without any other credential, until they expire."""
    import httpx

    secure = {} if client.has("v2") else {"secure": True}
    sandbox = await client.create(**secure)
    if client.mode == "debug":
        raise Skipped("the debug mode has no tokens, so nothing to sign with")
    path = fresh()

    def put(url):
        return httpx.post(url, files={"file": ("name", b"signed")}, timeout=20)

    up = await asyncio.to_thread(put, sandbox.upload_url(path))
    assert up.status_code == 200, up.text
    down = await asyncio.to_thread(httpx.get, sandbox.download_url(path))
    assert (down.status_code, down.content) == (200, b"signed")
    later = sandbox.download_url(path, use_signature_expiration=60)
    assert (await asyncio.to_thread(httpx.get, later)).status_code == 200
    expired = sandbox.download_url(path, use_signature_expiration=-60)
    answer = await asyncio.to_thread(httpx.get, expired)
    assert answer.status_code == 401 and "expired" in answer.text, answer.text
    forged = sandbox.download_url(path).replace(path, "other")
    assert (await asyncio.to_thread(httpx.get, forged)).status_code in {401, 404, 502}
    read_only = sandbox.download_url(path)
    assert (await asyncio.to_thread(put, read_only)).status_code in {401, 404, 502}


# -------------------------------------------------------------------------------------------- watching


def kinds(events, name):
    return [event.type.value for event in events if event.name == name]


@case(modes=ALL)
async def watch(client: Client) -> None:
    """A watched directory tells what is created, written, renamed and removed in it."""
    sandbox = await client.create()
    root = fresh()
    await sandbox.files.make_dir(root)
    async with client.watching(sandbox, root) as seen:
        await sandbox.files.write(f"{root}/a", "1")

        async def written():
            return "write" in kinds(await seen(), "a")

        await eventually(written, "the writing was told")
        await sandbox.files.rename(f"{root}/a", f"{root}/b")
        await sandbox.files.remove(f"{root}/b")

        async def removed():
            return "remove" in kinds(await seen(), "b")

        await eventually(removed, "the removal was told")
        events = await seen()
    assert kinds(events, "a")[:3] == ["create", "chmod", "write"]
    assert "rename" in kinds(events, "a")


@case(modes=ALL)
async def watch_recursively(client: Client) -> None:
    """Recursive watching follows directories that are made later; the other kind does not look deeper."""
    sandbox = await client.create()
    root = fresh()
    await sandbox.files.make_dir(f"{root}/old")
    async with client.watching(sandbox, root, recursive=True) as deep, client.watching(sandbox, root) as flat:
        await sandbox.files.make_dir(f"{root}/new")

        async def told():
            return "create" in kinds(await deep(), "new")

        await eventually(told, "the new directory was told")
        await asyncio.sleep(0.2)
        await sandbox.files.write(f"{root}/new/inner", "x")
        await sandbox.files.write(f"{root}/old/inner", "x")

        async def both():
            events = await deep()
            return "write" in kinds(events, "new/inner") and "write" in kinds(events, "old/inner")

        await eventually(both, "the files inside were told")
        assert not [event for event in await flat() if "inner" in event.name]


@case("Filesystem.watch_dir:include_entry")
async def watch_with_entries(client: Client) -> None:
    """Events can tell what they are about."""
    sandbox = await client.create()
    root = fresh()
    await sandbox.files.make_dir(root)
    async with client.watching(sandbox, root, include_entry=True) as seen:
        await sandbox.files.write(f"{root}/a", "12345")

        async def written():
            return [event for event in await seen() if event.type.value == "write"]

        event = (await eventually(written, "the writing was told"))[0]
    assert event.entry.path == f"/home/user/{root}/a"
    assert event.entry.size == 5


@case(modes=ALL)
async def watch_what_cannot(client: Client) -> None:
    """What is not there, or is no directory, cannot be watched."""
    sandbox = await client.create()
    path = fresh()
    async with raises("NotFoundException", "SandboxException"):
        async with client.watching(sandbox, path):
            pass
    await sandbox.files.write(path, "x")
    async with raises("InvalidArgumentException", "SandboxException"):
        async with client.watching(sandbox, path):
            pass
