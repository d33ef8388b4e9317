"""Files: what is there, how it changes, uploads and downloads."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cellfork.dialects import downloads
from cellfork.model.limits import Limits
from tests.dialects.e2b.envd.conftest import Answer
from tests.dialects.opensandbox.execd.conftest import Client, failure_of, make_client, text_of
from tests.templates import IN_TMP

BOUNDARY = "opensandbox_1234_5"
Part = tuple[str, Any]


def form(*parts: Part, names: bool = True, end: bool = True) -> bytes:
    """Return the body of a form: metadata as JSON, files as bytes."""
    body = b""
    for name, content in parts:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        filename = f'; filename="{name}"' if names else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'
        body += head.encode() + data + b"\r\n"
    return body + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


async def upload(client: Client, *parts: Part, body: bytes | None = None, **options: bool) -> Answer:
    content = form(*parts, **options) if body is None else body
    pieces = [content[start : start + 1000] for start in range(0, len(content), 1000)]
    kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return await client.ask("POST", "/files/upload", pieces, kind)


async def write(client: Client, path: str, content: bytes = b"", **fields: Any) -> None:
    answer = await upload(client, ("metadata", {"path": path, **fields}), ("file", content))
    assert (answer.status, answer.body) == (200, b""), answer.body


async def info(client: Client, path: str) -> dict[str, Any]:
    answer = await client.get("/files/info", path=path)
    assert answer.status == 200, answer.body
    return dict(answer.json[path])


async def names_in(client: Client, path: str, **query: Any) -> list[str]:
    answer = await client.get("/directories/list", path=path, **query)
    assert answer.status == 200, answer.body
    names = [entry["path"].removeprefix(path + "/") for entry in answer.json]
    return [name for name in names if path != "/tmp" or name.split("/")[0] not in IN_TMP]


# ------------------------------------------------------------------------------------------------- info


async def test_what_is_told_of_a_file(client: Client) -> None:
    """Absolute path, type, size, times, whose it is, the mode's octal digits as a number."""
    await write(client, "/tmp/a", b"12345", mode=640)
    told = await info(client, "/tmp/a")
    modified = datetime.fromisoformat(told.pop("modified_at"))
    created = datetime.fromisoformat(told.pop("created_at"))
    assert abs((modified - datetime.now(UTC)).total_seconds()) < 60
    assert 0 <= (created - modified).total_seconds() < 2
    assert told == {
        "path": "/tmp/a",
        "type": "file",
        "size": 5,
        "owner": "user",
        "group": "user",
        "mode": 640,
    }


async def test_types_and_paths(client: Client) -> None:
    """A link is told as a link; the answer has each path as it was asked for."""
    await client.run("cd /tmp; mkdir d; touch f; ln -s absent l; mkfifo p; ln -s /tmp ~/t")
    paths = ["/tmp/d", "/tmp/../tmp/f", "/tmp//l", "$HOME/../../tmp/p", "~/t"]
    told = (await client.get("/files/info", path=paths)).json
    assert [told[path]["type"] for path in paths] == ["directory", "file", "symlink", "other", "symlink"]
    assert told["~/t"]["path"] == "/home/user/t"
    assert (await client.get("/files/info")).json == {}
    assert failure_of(await client.get("/files/info", path=["/tmp/f", "/tmp/absent"])) == (
        404,
        "FILE_NOT_FOUND",
    )


async def test_listing(client: Client) -> None:
    """In the order of names, each directory before what is in it, down to a depth; links are not followed."""
    await client.run("mkdir -p /tmp/d/b/c/e /tmp/d/a; touch /tmp/d/b/c/x /tmp/d/z; ln -s b /tmp/d/l")
    assert await names_in(client, "/tmp/d") == ["a", "b", "l", "z"]
    assert await names_in(client, "/tmp/d", depth=0) == []
    assert await names_in(client, "/tmp/d", depth=2) == ["a", "b", "b/c", "l", "z"]
    assert await names_in(client, "/tmp/d", depth=10**17) == ["a", "b", "b/c", "b/c/e", "b/c/x", "l", "z"]
    for path in ("/tmp/d/l", "/tmp/d/z"):
        assert failure_of(await client.get("/directories/list", path=path)) == (400, "INVALID_REQUEST_BODY")
    assert failure_of(await client.get("/directories/list")) == (400, "MISSING_QUERY")
    for depth in ("-1", "x", "1.5", "٣"):
        answer = await client.get("/directories/list", path="/tmp", depth=depth)
        assert failure_of(answer) == (400, "INVALID_REQUEST_BODY")
    assert failure_of(await client.get("/directories/list", path="/absent")) == (404, "FILE_NOT_FOUND")


async def test_searching(client: Client) -> None:
    """Names of files at any depth are matched; no directory is found."""
    await client.run("mkdir -p /tmp/d/x.txt/e; cd /tmp/d; touch a.txt b.py x.txt/e/c.txt; ln -s a.txt l.txt")

    async def found(**query: str) -> list[str]:
        answer = await client.get("/files/search", path="/tmp/d", **query)
        assert answer.status == 200, answer.body
        return [entry["path"].removeprefix("/tmp/d/") for entry in answer.json]

    assert await found(pattern="*.txt") == ["a.txt", "l.txt", "x.txt/e/c.txt"]
    assert await found() == ["a.txt", "b.py", "l.txt", "x.txt/e/c.txt"]
    assert await found(pattern="{a,b}.*") == ["a.txt", "b.py"]
    assert await found(pattern="none*") == []
    assert failure_of(await client.get("/files/search", pattern="*")) == (400, "MISSING_QUERY")
    assert failure_of(await client.get("/files/search", path="/absent")) == (404, "FILE_NOT_FOUND")
    assert failure_of(await client.get("/files/search", path="/tmp", pattern="[")) == (
        400,
        "INVALID_REQUEST_BODY",
    )


async def test_more_than_can_be_told(client: Client) -> None:
    """Half a list would look like a whole one, so it is an error."""
    await client.run("mkdir /tmp/d; cd /tmp/d; seq 1 10001 | xargs touch")
    for answer in (
        await client.get("/directories/list", path="/tmp/d"),
        await client.get("/files/search", path="/tmp/d"),
    ):
        assert failure_of(answer) == (400, "TOO_MANY_FILES")
    assert len((await client.get("/files/search", path="/tmp/d", pattern="99*")).json) == 111


# ---------------------------------------------------------------------------------------------- changes


async def test_modes_and_owners(client: Client) -> None:
    """A mode holds; names are kept and told, where the sandbox knows them; 0, or nothing, changes nothing."""
    await write(client, "/tmp/a", mode=644)
    assert (await client.ask("POST", "/files/permissions", {"/tmp/a": {"mode": 444}})).body == b""
    owned = {"/tmp/a": {"mode": 755, "owner": "nobody", "group": "nogroup"}}
    assert (await client.ask("POST", "/files/permissions", owned)).status == 200
    told = await info(client, "/tmp/a")
    assert (told["mode"], told["owner"], told["group"]) == (755, "nobody", "nogroup")
    assert text_of(await client.run("stat -c %a:%U /tmp/a")) == "755:user"
    await client.ask("POST", "/files/permissions", {"/tmp/a": {"mode": 0, "owner": "user", "group": ""}})
    told = await info(client, "/tmp/a")
    assert (told["mode"], told["owner"], told["group"]) == (755, "user", "nogroup")


async def test_names_go_with_their_file(client: Client) -> None:
    """Moving and rewriting keep whose a file is."""
    await write(client, "/tmp/a", b"one two", owner="nobody", group="nogroup", mode=600)
    await client.ask("POST", "/files/mv", [{"src": "/tmp/a", "dest": "/tmp/new/b"}])
    await client.ask("POST", "/files/replace", {"/tmp/new/b": {"old": "one", "new": "1"}})
    told = await info(client, "/tmp/new/b")
    assert (told["mode"], told["owner"], told["group"], told["size"]) == (600, "nobody", "nogroup", 5)


async def test_unknown_owners_and_modes(client: Client) -> None:
    """They are refused, and nothing is changed."""
    await write(client, "/tmp/a", mode=644)
    bad = [
        {"owner": "stranger"},
        {"group": "strangers"},
        {"mode": 888},
        {"mode": -1},
        {"mode": 77777},
        {"mode": "644"},
    ]
    for permission in bad:
        answer = await client.ask("POST", "/files/permissions", {"/tmp/a": permission})
        assert failure_of(answer) == (400, "INVALID_REQUEST_BODY"), permission
    assert (await info(client, "/tmp/a"))["mode"] == 644
    absent = await client.ask("POST", "/files/permissions", {"/tmp/absent": {"mode": 644}})
    assert failure_of(absent) == (404, "FILE_NOT_FOUND")


async def test_directories(client: Client) -> None:
    """They are made with those above them; one that is there stays as it is; a mode without rights is told and does no harm."""
    made = {"/tmp/a/b": {"mode": 750}, "/tmp/c": {"mode": 644, "owner": None, "group": None}}
    assert (await client.ask("POST", "/directories", made)).status == 200
    assert (await info(client, "/tmp/a/b"))["mode"] == 750
    assert (await info(client, "/tmp/c"))["mode"] == 644
    await write(client, "/tmp/c/inside", b"x")
    assert (await client.ask("POST", "/directories", {"/tmp/c": {"mode": 700}})).status == 200
    assert (await info(client, "/tmp/c"))["mode"] == 644
    await client.run("chmod 711 /tmp/c")
    assert (await info(client, "/tmp/c"))["mode"] == 711
    file = await client.ask("POST", "/directories", {"/tmp/c/inside": {"mode": 755}})
    assert failure_of(file)[0] == 409
    assert failure_of(await client.ask("POST", "/directories", {"/tmp/c/inside/x": {}}))[0] == 400


async def test_removing(client: Client) -> None:
    """Files by one route, directories by another; what is not there needs no removing."""
    await client.run("mkdir -p /tmp/d/e; touch /tmp/d/e/f /tmp/a /tmp/b; ln -s /tmp/d /tmp/l")
    gone = await client.ask("DELETE", "/files", path=["/tmp/a", "/tmp/absent", "/tmp/l"])
    assert (gone.status, gone.body) == (200, b"")
    assert failure_of(await client.ask("DELETE", "/files", path=["/tmp/d"])) == (400, "RUNTIME_ERROR")
    assert await names_in(client, "/tmp", depth=3) == ["b", "d", "d/e", "d/e/f"]
    assert (await client.ask("DELETE", "/directories", path=["/tmp/d", "/tmp/absent"])).status == 200
    assert await names_in(client, "/tmp") == ["b"]
    for path in ("/", "/tmp/..", "/etc"):
        assert failure_of(await client.ask("DELETE", "/directories", path=path))[0] in {400, 403}


async def test_moving(client: Client) -> None:
    """Directories above the new place are made; what is there already is not replaced."""
    await client.run("mkdir /tmp/d; echo a > /tmp/a; echo b > /tmp/b; touch /tmp/d/x")
    assert (await client.ask("POST", "/files/mv", [{"src": "/tmp/a", "dest": "/tmp/n/e/a"}])).status == 200
    taken = await client.ask("POST", "/files/mv", [{"src": "/tmp/n/e/a", "dest": "/tmp/b"}])
    assert failure_of(taken) == (409, "RUNTIME_ERROR")
    assert (await client.get("/files/download", path="/tmp/b")).body == b"b\n"
    absent = await client.ask("POST", "/files/mv", [{"src": "/tmp/absent", "dest": "/tmp/x"}])
    assert failure_of(absent) == (404, "FILE_NOT_FOUND")
    assert (
        failure_of(await client.ask("POST", "/files/mv", [{"src": "/tmp/d", "dest": "/tmp/d/e"}]))[0] == 400
    )


async def test_replacing(client: Client) -> None:
    """All occurrences in every file; ``verbose`` tells how many, otherwise the body is empty."""
    await write(client, "/tmp/a", b"foo bar foo \xff foo", mode=640)
    await write(client, "/tmp/b", b"none")
    body = {"/tmp/a": {"old": "foo", "new": "é"}, "/tmp/b": {"old": "foo", "new": "x"}}
    answer = await client.ask("POST", "/files/replace?verbose=true", body)
    assert answer.json == {"/tmp/a": {"replacedCount": 3}, "/tmp/b": {"replacedCount": 0}}
    assert (await client.get("/files/download", path="/tmp/a")).body == "é bar é ".encode() + b"\xff \xc3\xa9"
    assert (await info(client, "/tmp/a"))["mode"] == 640
    quiet = await client.ask("POST", "/files/replace", body)
    assert (quiet.status, quiet.body, quiet.headers["content-length"]) == (200, b"", "0")
    empty = await client.ask("POST", "/files/replace", {"/tmp/a": {"old": "", "new": "x"}})
    assert failure_of(empty) == (400, "INVALID_REQUEST_BODY")
    absent = await client.ask("POST", "/files/replace", {"/tmp/absent": {"old": "a", "new": "x"}})
    assert failure_of(absent) == (404, "FILE_NOT_FOUND")


async def test_a_replacement_that_would_be_huge(client: Client) -> None:
    """It is refused before it is made."""
    await write(client, "/tmp/a", b"x" * 1_000_000)
    answer = await client.ask("POST", "/files/replace", {"/tmp/a": {"old": "x", "new": "y" * 1000}})
    assert failure_of(answer)[0] == 429
    assert (await info(client, "/tmp/a"))["size"] == 1_000_000


# -------------------------------------------------------------------------------------------- transfers


async def test_uploads(client: Client) -> None:
    """Pairs of metadata and file; directories above are made; null means nothing."""
    await upload(
        client,
        ("metadata", {"path": "/tmp/n/a.txt", "mode": 644, "owner": None, "group": None}),
        ("file", b"one"),
        ("metadata", {"path": "~/b", "owner": "nobody", "group": "nogroup", "mode": 755}),
        ("file", b"x" * 200_000),
    )
    assert (await client.get("/files/download", path="/tmp/n/a.txt")).body == b"one"
    assert (await info(client, "/tmp/n/a.txt"))["mode"] == 644
    told = await info(client, "/home/user/b")
    assert (told["size"], told["mode"], told["owner"]) == (200_000, 755, "nobody")


async def test_parts_in_another_order(client: Client) -> None:
    """They are paired by their number, whatever comes between them and without names of files too; nothing else stays."""
    answer = await upload(
        client,
        ("file", b"first"),
        ("file", b"second"),
        ("other", b"ignored"),
        ("metadata", {"path": "/tmp/1", "mode": 600}),
        ("metadata", {"path": "/tmp/2"}),
        ("metadata", {"path": "/tmp/3"}),
        ("file", b""),
        names=False,
    )
    assert answer.status == 200, answer.body
    for path, content, mode in (("/tmp/1", b"first", 600), ("/tmp/2", b"second", 755), ("/tmp/3", b"", 755)):
        assert (await client.get("/files/download", path=path)).body == content
        assert (await info(client, path))["mode"] == mode
    assert await names_in(client, "/tmp") == ["1", "2", "3"]


async def test_uploads_replace(client: Client) -> None:
    """The content is new, the mode stays where none is named."""
    await write(client, "/tmp/a", b"old content", mode=600)
    await write(client, "/tmp/a", b"new")
    assert (await client.get("/files/download", path="/tmp/a")).body == b"new"
    assert (await info(client, "/tmp/a"))["mode"] == 600


UPLOADS: list[tuple[list[Part], str]] = [
    ([], "INVALID_FILE_METADATA"),
    ([("metadata", {"path": "/tmp/a"})], "INVALID_FILE_CONTENT"),
    ([("file", b"x")], "INVALID_FILE_METADATA"),
    ([("metadata", {"path": "/tmp/a"}), ("file", b"x"), ("file", b"y")], "INVALID_FILE"),
    ([("metadata", {}), ("file", b"x")], "INVALID_FILE_METADATA"),
    ([("metadata", {"path": ""}), ("file", b"x")], "INVALID_FILE_METADATA"),
    ([("metadata", b"{"), ("file", b"x")], "INVALID_FILE_METADATA"),
    ([("metadata", b"\xff"), ("file", b"x")], "INVALID_FILE_METADATA"),
    ([("metadata", {"path": "/tmp/a", "mode": 999}), ("file", b"x")], "INVALID_FILE_METADATA"),
    ([("metadata", {"path": "/tmp/a", "mode": "x"}), ("file", b"x")], "INVALID_FILE_METADATA"),
    ([("metadata", b" " * 100_000), ("file", b"x")], "INVALID_FILE_METADATA"),
    ([("metadata", {"path": "/tmp/a\0"}), ("file", b"x")], "INVALID_REQUEST_BODY"),
    ([("metadata", {"path": "$NOTHING/x"}), ("file", b"x")], "INVALID_REQUEST_BODY"),
    ([("metadata", {"path": "/tmp"}), ("file", b"x")], "INVALID_FILE"),
    ([("metadata", {"path": "/tmp/a", "owner": "stranger"}), ("file", b"x")], "INVALID_REQUEST_BODY"),
]


async def test_malformed_uploads(client: Client) -> None:
    """400, with the part that is wrong in the code; nothing half written stays."""
    for parts, code in UPLOADS:
        assert failure_of(await upload(client, *parts)) == (400, code), parts
        assert await names_in(client, "/tmp") in (["a"], []), parts


async def test_what_is_no_form(client: Client) -> None:
    """400, whatever it is."""
    whole = form(("metadata", {"path": "/tmp/a"}), ("file", b"x" * 100))
    for body in (b"", b"nonsense", whole[:-10], whole[:50], whole.replace(BOUNDARY.encode(), b"other")):
        assert failure_of(await upload(client, body=body))[0] == 400
    for kind in ({}, {"content-type": "text/plain"}, {"content-type": "multipart/form-data; boundary=\x80"}):
        assert failure_of(await client.ask("POST", "/files/upload", [whole], kind)) == (400, "INVALID_FILE")
    assert await names_in(client, "/tmp") == []


async def test_a_disk_that_is_full(client: Client) -> None:
    """507; the file is not there, and what was there is as it was."""
    small = await make_client(client.engine, limits=Limits(memory="256M", disk="16M"))
    await write(small, "/tmp/a", b"old")
    answer = await upload(small, ("metadata", {"path": "/tmp/a"}), ("file", b"x" * 20_000_000))
    assert failure_of(answer) == (507, "INVALID_FILE")
    assert (await small.get("/files/download", path="/tmp/a")).body == b"old"
    assert await names_in(small, "/tmp") == ["a"]


async def test_downloads(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, of any size, as an attachment."""
    monkeypatch.setattr(downloads, "WINDOW", 1000)
    content = bytes(range(256)) * 50
    await write(client, "/tmp/ä b", content)
    answer = await client.get("/files/download", path="/tmp/ä b")
    assert (answer.status, answer.body) == (200, content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert "filename*=UTF-8''%C3%A4%20b" in answer.headers["content-disposition"]
    assert b"Name:" in (await client.get("/files/download", path="/proc/self/status")).body


RANGES = [
    ("bytes=0-9", b"0123456789", "bytes 0-9/20"),
    ("bytes=15-", b"fghij", "bytes 15-19/20"),
    ("bytes=-3", b"hij", "bytes 17-19/20"),
    ("bytes=-100", b"0123456789abcdefghij", "bytes 0-19/20"),
    ("bytes=18-100", b"ij", "bytes 18-19/20"),
    ("bytes=2-3,5-6", b"23", "bytes 2-3/20"),
    ("bytes=50-60, 1-1", b"1", "bytes 1-1/20"),
]
NO_RANGES = [
    "bytes=20-",
    "bytes=5-2",
    "bytes=x",
    "bytes=-",
    "lines=1-2",
    "bytes=-0",
    "",
    f"bytes={'9' * 20}-",
]


async def test_ranges(client: Client) -> None:
    """The first range that can be served is; where none can, that is 416, as JSON."""
    await write(client, "/tmp/a", b"0123456789abcdefghij")
    for wanted, content, told in RANGES:
        answer = await client.ask("GET", "/files/download?path=/tmp/a", headers={"range": wanted})
        assert (answer.status, answer.headers["content-range"], answer.body) == (206, told, content), wanted
    for wanted in NO_RANGES:
        answer = await client.ask("GET", "/files/download?path=/tmp/a", headers={"range": wanted})
        assert failure_of(answer) == (416, "UNKNOWN"), wanted


async def test_lines(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a number on, so many of them, as text; not together with a range of bytes."""
    monkeypatch.setattr(downloads, "WINDOW", 7)
    await write(client, "/tmp/a", b"line1\r\nline2\nline3\nline4\nline5")

    async def lines(**query: Any) -> bytes:
        answer = await client.get("/files/download", path="/tmp/a", **query)
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        return answer.body

    assert await lines(offset=2, limit=2) == b"line2\nline3"
    assert await lines(offset=4) == b"line4\nline5"
    assert await lines(limit=2) == b"line1\nline2"
    assert await lines(offset=100) == b""
    for query in ({"offset": 0}, {"limit": 0}, {"offset": -1}, {"limit": "x"}):
        answer = await client.get("/files/download", path="/tmp/a", **query)
        assert failure_of(answer) == (400, "INVALID_REQUEST_BODY")
    both = await client.ask("GET", "/files/download?path=/tmp/a&offset=1", headers={"range": "bytes=0-1"})
    assert failure_of(both) == (400, "INVALID_REQUEST_BODY")


async def test_downloads_that_cannot_be(client: Client) -> None:
    """A missing path, an absent file, what is no file."""
    assert failure_of(await client.get("/files/download")) == (400, "MISSING_QUERY")
    assert failure_of(await client.get("/files/download", path="/absent")) == (404, "FILE_NOT_FOUND")
    for path in ("/tmp", "/dev/null"):
        assert failure_of(await client.get("/files/download", path=path)) == (400, "INVALID_FILE")
    await client.run("mkfifo /tmp/p; touch /tmp/f; chmod 0 /tmp/f")
    assert failure_of(await client.get("/files/download", path="/tmp/p")) == (400, "INVALID_FILE")
    assert failure_of(await client.get("/files/download", path="/tmp/f")) == (403, "INVALID_FILE")


async def test_a_file_that_shrinks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is torn rather than wrong."""
    monkeypatch.setattr(downloads, "WINDOW", 1000)
    await write(client, "/tmp/a", b"x" * 5000)
    read_part = client.sandbox.files.read_part

    async def and_shrink(path: str, offset: int, length: int, same: str | None = None) -> Any:
        part = await read_part(path, offset, length, same)
        await client.run("truncate -s 1500 /tmp/a")
        return part

    monkeypatch.setattr(client.sandbox.files, "read_part", and_shrink)
    running = client.begin("GET", "/files/download?path=/tmp/a")
    assert not (await running.done()).complete
    assert running.aborted


# ---------------------------------------------------------------------------------------------- hostile

PATHS = ["", "a\0b", "x" * 10_000, "/" * 5000, "$UNSET/x", "\ud800"]
READING = ["/files/info", "/files/search", "/directories/list", "/files/download"]


async def test_paths_that_are_none(client: Client) -> None:
    """Every field that takes a path refuses them, in the shape that clients read."""
    for path in PATHS:
        bodies = {
            "/files/permissions": {path: {"mode": 644}},
            "/directories": {path: {"mode": 755}},
            "/files/replace": {path: {"old": "a", "new": "b"}},
            "/files/mv": [{"src": path, "dest": "/tmp/x"}],
            "/session": {"cwd": path or "\0"},
            "/pty": {"cwd": path or "\0"},
        }
        for target, body in bodies.items():
            assert failure_of(await client.ask("POST", target, body))[0] == 400, (target, path[:20])
        if path == "\ud800":
            continue  # no query can hold it
        for target in READING:
            assert failure_of(await client.get(target, path=path))[0] == 400, (target, path[:20])
        for target in ("/files", "/directories"):
            assert failure_of(await client.ask("DELETE", target, path=path))[0] == 400, (target, path[:20])


async def test_paths_do_not_lead_out(client: Client) -> None:
    """Dots, slashes and links end inside: what is read is the sandbox's own."""
    await client.run("ln -s / /tmp/root; ln -s /proc/1/root /tmp/one")
    own = (await client.get("/files/download", path="/etc/passwd")).body
    assert own.count(b"\n") == 3
    for path in (
        "/../../../../etc/passwd",
        "/tmp/root/../etc/passwd",
        "/tmp/one/etc/passwd",
        "//etc//passwd",
        "/tmp/%2e%2e/x",
    ):
        answer = await client.get("/files/download", path=path)
        assert answer.body == own or failure_of(answer)[0] in {403, 404}, path


async def test_files_of_a_user(client: Client) -> None:
    """The SDKs' file clients with an identity: the sandbox's own, or root, and nobody else."""
    await write(client, "/tmp/a", b"x")
    for ids in ("0/0", "1000/1000"):
        assert (await client.get(f"/v1/filesystem/{ids}/files/download", path="/tmp/a")).body == b"x"
    assert failure_of(await client.get("/v1/filesystem/33/33/files/info", path="/tmp/a")) == (
        400,
        "NOT_SUPPORTED",
    )
    for path in (
        "/v1/filesystem/x/0/files/info",
        "/v1/filesystem/0/0/command",
        "/v1/filesystem/0",
        "/v1/filesystem/0/0",
    ):
        assert failure_of(await client.get(path))[0] == 404
