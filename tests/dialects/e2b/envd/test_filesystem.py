"""Files and directories by RPC: entries, errors word for word, and exactly which events a change gives."""

import asyncio
from typing import Any

import pytest

from cellfork.guest import files as guest_files
from tests.dialects.e2b.envd.conftest import Client

RAW = {"content-type": "application/octet-stream"}


async def write(client: Client, path: str, content: bytes = b"x") -> None:
    answer = await client.ask("POST", f"/files?path={path}", content, RAW)
    assert answer.status == 200, answer


async def stat(client: Client, path: str) -> dict[str, Any]:
    answer = await client.call("Filesystem/Stat", {"path": path})
    assert answer.status == 200, answer
    entry: dict[str, Any] = answer.json["entry"]
    return entry


async def polled(client: Client, path: str, **fields: Any) -> str:
    answer = await client.call("Filesystem/CreateWatcher", {"path": path, **fields})
    assert answer.status == 200, answer
    id: str = answer.json["watcherId"]
    return id


async def events(client: Client, watcher: str) -> list[tuple[str, str]]:
    answer = await client.call("Filesystem/GetWatcherEvents", {"watcherId": watcher})
    assert answer.status == 200, answer
    return [
        (event["name"], event["type"].removeprefix("EVENT_TYPE_")) for event in answer.json.get("events", [])
    ]


async def test_entries(client: Client):
    """A file and a directory are described as upstream does, sizes as text, times with their zone."""
    await write(client, "d/f.txt", b"hello")
    entry = await stat(client, "d/f.txt")
    assert entry.pop("modifiedTime").endswith("Z")
    assert entry == {
        "name": "f.txt",
        "type": "FILE_TYPE_FILE",
        "path": "/home/user/d/f.txt",
        "size": "5",
        "mode": 0o644,
        "permissions": "-rw-r--r--",
        "owner": "user",
        "group": "user",
    }
    entry = await stat(client, "~/d")
    described = entry["type"], entry["path"], entry["permissions"], entry["mode"]
    assert described == ("FILE_TYPE_DIRECTORY", "/home/user/d", "drwxr-xr-x", 0o755)
    assert (await stat(client, "/tmp"))["permissions"] == "dtrwxrwxrwx"
    assert (await stat(client, "/dev/null"))["permissions"] == "Dcrw-rw-rw-"
    assert (await stat(client, "/dev/null")).get("type") is None


async def test_links(client: Client):
    """A link is described with type and mode of what it leads to in the end, and where that is."""
    await write(client, "d/f", b"hello")
    await client.run("cd d && ln -s f one && ln -s one two && ln -s nowhere broken && chmod 600 f")
    entry = await stat(client, "d/two")
    assert (entry["type"], entry["mode"], entry["permissions"]) == ("FILE_TYPE_FILE", 0o600, "Lrwxrwxrwx")
    assert (entry["symlinkTarget"], entry["isSymlink"]) == ("/home/user/d/f", True)
    broken = await stat(client, "d/broken")
    assert "type" not in broken
    assert broken["symlinkTarget"] == "/home/user/d/broken"


async def test_what_is_not_there(client: Client):
    """A missing file is not found, below a file as well."""
    await write(client, "f")
    for path, why in (("missing", "no such file or directory"), ("f/x", "not a directory")):
        answer = await client.call("Filesystem/Stat", {"path": path})
        message = f"file not found: lstat /home/user/{path}: {why}"
        assert (answer.status, *answer.error) == (404, "not_found", message)


async def test_make_dir(client: Client):
    """Directories are made with those above; what is there already is told apart from a file in the way."""
    answer = await client.call("Filesystem/MakeDir", {"path": "a/b"})
    assert answer.json["entry"]["path"] == "/home/user/a/b"
    answer = await client.call("Filesystem/MakeDir", {"path": "a"})
    assert (answer.status, *answer.error) == (409, "already_exists", "directory already exists: /home/user/a")
    await write(client, "f")
    answer = await client.call("Filesystem/MakeDir", {"path": "f"})
    message = "path already exists but it is not a directory: /home/user/f"
    assert answer.error == ("invalid_argument", message)
    assert (await client.call("Filesystem/MakeDir", {"path": "f/x"})).error[0] == "invalid_argument"
    assert (await client.call("Filesystem/MakeDir", {"path": "/proc/x"})).status < 500


async def test_move_and_remove(client: Client):
    """A move makes the directories above its destination; removing is recursive, and nothing happens twice."""
    await write(client, "f", b"abc")
    answer = await client.call("Filesystem/Move", {"source": "f", "destination": "x/y/g"})
    assert (answer.json["entry"]["path"], answer.json["entry"]["size"]) == ("/home/user/x/y/g", "3")
    answer = await client.call("Filesystem/Move", {"source": "f", "destination": "h"})
    message = "source file not found: rename /home/user/f /home/user/h: no such file or directory"
    assert answer.error == ("not_found", message)
    for _ in range(2):
        assert (await client.call("Filesystem/Remove", {"path": "x"})).json == {}
    assert (await client.call("Filesystem/Stat", {"path": "x"})).status == 404
    answer = await client.call("Filesystem/Remove", {"path": "/usr/bin/env"})
    assert (answer.status, answer.error[0]) == (403, "permission_denied")


async def test_list_dir(client: Client):
    """A list goes as deep as it is asked to, in the order of a walk, under the path that was asked for."""
    for path in ("p/b/z", "p/a/y", "p/c"):
        await write(client, path)
    await client.run("ln -s p link")
    for depth, names in ((0, ["a", "b", "c"]), (1, ["a", "b", "c"]), (2, ["a", "a/y", "b", "b/z", "c"])):
        answer = await client.call("Filesystem/ListDir", {"path": "link", "depth": depth})
        paths = [entry["path"] for entry in answer.json["entries"]]
        assert paths == [f"/home/user/link/{name}" for name in names]
    assert (await client.call("Filesystem/ListDir", {"path": "p/c/"})).error == (
        "invalid_argument",
        "path is not a directory: /home/user/p/c",
    )
    answer = await client.call("Filesystem/ListDir", {"path": "/nowhere"})
    assert answer.error == ("not_found", "path not found: lstat /nowhere: no such file or directory")


async def test_a_list_that_is_too_long_says_so(client: Client):
    """A directory with more entries than one answer holds is an error: a part would look like all of it."""
    count = guest_files.MAX_ENTRIES + 1
    await client.run(f"mkdir many && cd many && seq {count} | xargs touch")
    answer = await client.call("Filesystem/ListDir", {"path": "many"})
    assert answer.error[0] == "resource_exhausted"
    assert f"more than {guest_files.MAX_ENTRIES:,} entries" in answer.error[1]


async def test_paths_of_users(client: Client):
    """Relative paths start at the home of the user that the call names; homes of others are not expanded."""
    client.user = "root"
    answer = await client.call("Filesystem/MakeDir", {"path": "d"})
    assert answer.json["entry"]["path"] == "/root/d"
    answer = await client.call("Filesystem/Stat", {"path": "~user/d"})
    assert answer.error[0] == "invalid_argument"
    assert "cannot expand user-specific home dir" in answer.error[1]


async def test_what_is_no_path(client: Client):
    """Malformed paths are the client's error in every call."""
    for path in ("\0", "/" + "x" * 300, "/" + "x/" * 3000, "a\0b"):
        for name in ("Stat", "MakeDir", "ListDir", "Remove", "Move", "CreateWatcher"):
            fields = {"source": path, "destination": path} if name == "Move" else {"path": path}
            answer = await client.call(f"Filesystem/{name}", fields)
            assert answer.error[0] in {"invalid_argument", "not_found"}, (name, answer)


async def test_an_upload_is_three_events(client: Client):
    """A new file gives CREATE, CHMOD, WRITE and no more, at once; one that is replaced gives CHMOD and WRITE."""
    watcher = await polled(client, "~")
    for _ in range(20):
        await write(client, "f")
        assert await events(client, watcher) == [("f", "CREATE"), ("f", "CHMOD"), ("f", "WRITE")]
        await write(client, "f")
        assert await events(client, watcher) == [("f", "CHMOD"), ("f", "WRITE")]
        await client.call("Filesystem/Remove", {"path": "f"})
        assert await events(client, watcher) == [("f", "REMOVE")]


async def test_a_recursive_watch_follows_new_directories(client: Client):
    """What happens in a directory that was made a moment ago is told as well, before the next question is answered."""
    await client.call("Filesystem/MakeDir", {"path": "top"})
    deep, flat = await polled(client, "top", recursive=True), await polled(client, "top")
    for number in range(10):
        await client.call("Filesystem/MakeDir", {"path": f"top/d{number}/e"})
        await write(client, f"top/d{number}/e/f")
        told = await events(client, deep)
        assert told[:2] == [(f"d{number}", "CREATE"), (f"d{number}/e", "CREATE")]
        assert {(f"d{number}/e/f", "CREATE"), (f"d{number}/e/f", "WRITE")} <= set(told[2:])
    assert await events(client, flat) == [(f"d{number}", "CREATE") for number in range(10)]


async def test_events_with_entries(client: Client):
    """Where it is asked for, an event says what is there now; one that tells of something gone does not."""
    watcher = await polled(client, ".", includeEntry=True)
    await write(client, "f", b"1234")
    answer = await client.call("Filesystem/GetWatcherEvents", {"watcherId": watcher})
    for event in answer.json["events"]:
        assert (event["entry"]["path"], event["entry"]["size"]) == ("/home/user/f", "4")
    await client.call("Filesystem/Remove", {"path": "f"})
    answer = await client.call("Filesystem/GetWatcherEvents", {"watcherId": watcher})
    (event,) = answer.json["events"]
    assert event == {"name": "f", "type": "EVENT_TYPE_REMOVE"}


async def test_a_streamed_watch(client: Client):
    """A stream begins with a start and tells events as they come; when the client goes away the watch ends."""
    exchange = client.stream(
        "Filesystem/WatchDir", {"path": "~", "includeEntry": True}, keepalive_ping_interval="1"
    )
    await exchange.until('"start"')
    await write(client, "f")
    await exchange.until("EVENT_TYPE_WRITE")
    await exchange.until('"keepalive"')
    kinds = [next(iter(message)) for message in exchange.answer.messages]
    assert kinds == ["start", "filesystem", "filesystem", "filesystem", "keepalive"]
    exchange.leave()
    await exchange.done()
    assert not client.sandbox.watches._watches


async def test_watches_that_cannot_be(client: Client):
    """A file cannot be watched, nor what is not there; watchers have ids, and an unknown one is not found."""
    await write(client, "f")
    answer = await client.call("Filesystem/CreateWatcher", {"path": "f"})
    assert answer.error == ("invalid_argument", "path /home/user/f not a directory")
    streamed = await client.stream("Filesystem/WatchDir", {"path": "/nowhere"}).done()
    message = "path /nowhere not found: stat /nowhere: no such file or directory"
    assert streamed.error == ("not_found", message)
    for name in ("GetWatcherEvents", "RemoveWatcher"):
        answer = await client.call(f"Filesystem/{name}", {"watcherId": "w1"})
        assert answer.error == ("not_found", "watcher with id w1 not found")


async def test_watchers_are_removed(client: Client):
    """A watcher that was removed is gone, inside as well."""
    watcher = await polled(client, "~")
    assert (await client.call("Filesystem/RemoveWatcher", {"watcherId": watcher})).json == {}
    answer = await client.call("Filesystem/GetWatcherEvents", {"watcherId": watcher})
    assert answer.error[0] == "not_found"
    assert not client.sandbox.watches._watches


async def test_lost_events_are_an_error(client: Client, monkeypatch: pytest.MonkeyPatch):
    """Where events were lost, the client is told that its knowledge is not whole."""
    monkeypatch.setattr("cellfork.engine.watches.MAX_EVENTS", 5)
    watcher = await polled(client, "~")
    for number in range(4):
        await write(client, f"f{number}")
    answer = await client.call("Filesystem/GetWatcherEvents", {"watcherId": watcher})
    assert answer.error == ("resource_exhausted", "watcher error: events were lost; list /home/user anew")


async def test_the_watched_directory_itself(client: Client):
    """Events of the directory that is watched carry the name that Go's library gives it."""
    await client.call("Filesystem/MakeDir", {"path": "d"})
    watcher = await polled(client, "d")
    await client.call("Filesystem/Remove", {"path": "d"})
    told = await events(client, watcher)
    assert (".", "REMOVE") in told


async def test_watchers_have_a_bound(client: Client):
    """So many watchers, and no more."""
    for _ in range(100):
        answer = await client.call("Filesystem/CreateWatcher", {"path": "~"})
        if answer.status != 200:
            break
    assert (answer.status, answer.error[0]) == (429, "resource_exhausted")


async def test_many_calls_at_once(client: Client):
    """Calls do not wait for one another, nor mix their answers."""
    names = [f"f{number}" for number in range(100)]
    await asyncio.gather(*(write(client, name, name.encode()) for name in names))
    entries = await asyncio.gather(*(stat(client, name) for name in names))
    assert [(entry["name"], entry["size"]) for entry in entries] == [(name, str(len(name))) for name in names]
