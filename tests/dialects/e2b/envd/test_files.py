"""``/files``: uploads and downloads in every form, with what may stop them in the words of upstream."""

import asyncio
import gzip
import time
import zlib
from dataclasses import replace
from typing import Any

from cellfork.dialects.base import RequestLimits
from cellfork.dialects.e2b.envd.access import signature
from tests.dialects.e2b.envd.conftest import TOKEN, Client, end_of, output

RAW = {"content-type": "application/octet-stream"}
SAME_PATH = (
    "you cannot upload multiple files to the same path '/home/user/same' in one upload request, only the first specified "
    "file was uploaded"
)


def form(*parts: tuple[str, str | None, bytes], boundary: str = "bound") -> tuple[bytes, dict[str, str]]:
    lines = []
    for name, filename, content in parts:
        named = "" if filename is None else f'; filename="{filename}"'
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
        lines += [head.encode(), content, b"\r\n"]
    lines.append(f"--{boundary}--\r\n".encode())
    return b"".join(lines), {"content-type": f"multipart/form-data; boundary={boundary}"}


async def read(client: Client, path: str, **headers: str) -> bytes:
    answer = await client.ask("GET", f"/files?path={path}", headers=headers)
    assert answer.status == 200, answer
    assert answer.complete
    return answer.body


async def test_raw_upload(client: Client):
    """The body becomes the file; directories above are made; the answer says where it is."""
    answer = await client.ask("POST", "/files?path=a/b/f.bin", b"\0\xff", RAW)
    assert (answer.status, answer.json) == (
        200,
        [{"path": "/home/user/a/b/f.bin", "name": "f.bin", "type": "file"}],
    )
    assert await read(client, "a/b/f.bin") == b"\0\xff"


async def test_form_upload(client: Client):
    """Every part named ``file`` is written to the path in its file name; others are passed over."""
    body, headers = form(
        ("file", "one.txt", b"1"), ("other", "x", b"no"), ("file", "/tmp/d/two", b""), ("file", 'ü\\"q', b"3")
    )
    answer = await client.ask("POST", "/files", body, headers)
    assert [(file["path"], file["name"]) for file in answer.json] == [
        ("/home/user/one.txt", "one.txt"),
        ("/tmp/d/two", "two"),
        ('/home/user/ü"q', 'ü"q'),
    ]
    assert await read(client, "one.txt") == b"1"
    assert await read(client, "/tmp/d/two") == b""
    assert (await client.ask("GET", "/files?path=x")).status == 404


async def test_form_upload_to_a_path(client: Client):
    """With ``path`` in the query the name of the part does not matter, and there is room for one file."""
    body, headers = form(("file", "ignored", b"1"))
    answer = await client.ask("POST", "/files?path=here&username=root", body, headers)
    assert answer.json == [{"path": "/root/here", "name": "here", "type": "file"}]


async def test_uploads_that_are_refused(client: Client):
    """Each refusal has its status and its words; nothing of the file is there afterwards."""
    cases = [
        ("/files", *form(("file", "same", b"1"), ("file", "same", b"2")),
         SAME_PATH),
        ("/files?path=/tmp", b"", RAW, "path is a directory: /tmp"),
        ("/files", b"", RAW, "path query parameter is required for raw body upload"),
        ("/files?path=x", b"", {"content-type": "text/plain"},
         "unsupported content type: text/plain, expected multipart/form-data or application/octet-stream"),
        ("/files?path=x", b"", RAW | {"content-encoding": "br"},
         "error decompressing request body: unsupported Content-Encoding: br, supported: [gzip]"),
        ("/files?path=x", b"no gzip", RAW | {"content-encoding": "gzip"},
         "error decompressing request body: gzip: invalid header or data"),
        ("/files?path=x", gzip.compress(b"abc")[:-4], RAW | {"content-encoding": "gzip"},
         "error decompressing request body: unexpected EOF"),
        ("/files", form(("file", "x", b"1"))[0][:-20], form()[1], "error reading form: unexpected EOF"),
        ("/files", b"", {"content-type": "multipart/form-data"},
         "error parsing multipart form: no multipart boundary param in Content-Type"),
        ("/files", *form(("file", None, b"")),
         "error getting multipart custom part file name: filename not found in Content-Disposition header"),
    ]  # fmt: skip
    for target, body, headers, message in cases:
        answer = await client.ask("POST", target, body, headers)
        assert (answer.status, answer.json) == (400, {"code": 400, "message": message})
    assert (await client.ask("GET", "/files?path=x")).status == 404
    answer = await client.ask("POST", "/files?path=/usr/x", b"", RAW)
    assert answer.status == 403
    assert end_of(await client.run("ls -A /home/user | grep -q cellfork"))["exitCode"] == 1


async def test_a_full_disk(client: Client):
    """A file that does not fit is 507 in upstream's words, and leaves its room to others."""
    answer = await client.ask("POST", "/files?path=big", bytes(60_000_000), RAW)
    assert (answer.status, answer.json["message"]) == (507, "not enough disk space available")
    answer = await client.ask(
        "POST", "/files?path=big", bytes(60_000_000), RAW | {"content-length": "60000000"}
    )
    message = "attempted to write 60000000 bytes: not enough disk space available"
    assert (answer.status, answer.json["message"]) == (507, message)
    assert (await client.ask("POST", "/files?path=small", bytes(40_000_000), RAW)).status == 200


async def test_a_bomb_is_bounded(client: Client):
    """A body that grows without end when it is decompressed ends at the disk's size, or at the server's bound."""
    bomb = zlib.compressobj(wbits=31)
    body = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(100)) + bomb.flush()
    assert len(body) < 200_000
    answer = await client.ask("POST", "/files?path=x", body, RAW | {"content-encoding": "gzip"})
    assert answer.status == 507
    body += gzip.compress(b"")
    client.app.services = replace(client.app.services, limits=RequestLimits(upload=1 << 20))
    answer = await client.ask("POST", "/files?path=x", body, RAW | {"content-encoding": "gzip"})
    assert answer.status == 413


async def test_replacing_is_atomic(client: Client):
    """Whoever reads while a file is replaced sees one content or the other."""
    await client.ask("POST", "/files?path=f", b"a" * 1000, RAW)
    exchange, _pid = await client.start(
        "for i in $(seq 300); do sort -u <(fold -w1 f) | tr -d '\\n'; echo; done"
    )
    for number in range(60):
        await client.ask("POST", "/files?path=f", (b"a", b"b")[number % 2] * 1000, RAW)
    seen = set(output(await exchange.done()).split())
    assert seen <= {b"a", b"b"}


async def test_an_upload_that_stops_leaves_nothing(client: Client):
    """A client that goes away amid an upload leaves the old file as it was, and no other."""
    await client.ask("POST", "/files?path=f", b"old", RAW)
    exchange = client.begin("POST", "/files?path=f", [b"x" * 300_000] * 10_000, RAW)
    while len(exchange.pieces) > 9_990:
        await asyncio.sleep(0)
    exchange.leave()
    answer = await exchange.done()
    assert (exchange.aborted, answer.status) == (True, 0)
    assert await read(client, "f") == b"old"
    assert output(await client.run("ls -A")) == b"f\n"


async def test_download_headers(client: Client):
    """A download tells its length, its type, its name and its time; an empty file has the length 0."""
    await client.ask("POST", "/files?path=f.txt", b"hello", RAW)
    answer = await client.ask("GET", "/files?path=f.txt")
    assert answer.body == b"hello"
    headers = answer.headers
    assert headers["content-length"] == "5"
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["content-disposition"] == "inline; filename=f.txt"
    assert headers["accept-ranges"] == "bytes"
    assert headers["vary"] == "Accept-Encoding"
    await client.ask("POST", "/files?path=empty", b"", RAW)
    for accept in ("gzip", "identity"):
        answer = await client.ask("GET", "/files?path=empty", headers={"accept-encoding": accept})
        assert (answer.status, answer.headers["content-length"], answer.body) == (200, "0", b"")


async def test_names_cannot_begin_headers(client: Client):
    """Whatever a file is called, the headers of its download are one each."""
    for name in ("a b", 'q"uote', "line\r\nx-evil: 1", "\u00fc", "back\\slash"):
        quoted = "".join(f"%{byte:02x}" for byte in name.encode())
        assert (await client.ask("POST", f"/files?path={quoted}", b"1", RAW)).status == 200
        answer = await client.ask("GET", f"/files?path={quoted}")
        value = answer.headers["content-disposition"]
        assert value.isascii()
        assert value.isprintable()
        assert "x-evil" not in answer.headers


async def test_downloads_that_are_refused(client: Client):
    """What cannot be read is told apart: absent, a directory, no regular file, no encoding in common."""
    cases: list[tuple[str, dict[str, str], int, str]] = [
        ("missing", {}, 404, "path '/home/user/missing' does not exist"),
        ("", {}, 400, "path '/home/user' is a directory"),
        ("/dev/zero", {}, 400, "path '/dev/zero' is not a regular file"),
    ]
    await client.ask("POST", "/files?path=f", b"1", RAW)
    none = "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]"
    cases.append(("f", {"accept-encoding": "identity;q=0, br"}, 406, none))
    for path, headers, status, message in cases:
        answer = await client.ask("GET", f"/files?path={path}", headers=headers)
        assert (answer.status, answer.json) == (status, {"code": status, "message": message})


async def test_proc(client: Client):
    """Files of the kernel that say they are empty give what is in them, with its length."""
    answer = await client.ask("GET", "/files?path=/proc/self/status")
    assert answer.body.startswith(b"Name:")
    assert int(answer.headers["content-length"]) == len(answer.body)


async def test_gzip_both_ways(client: Client):
    """A compressed upload arrives in the clear, in several members too; a download is compressed where that is liked."""
    text = b"compress me " * 50_000
    body = gzip.compress(text[:1000]) + gzip.compress(text[1000:])
    answer = await client.ask("POST", "/files?path=f", body, RAW | {"content-encoding": "GZIP"})
    assert answer.status == 200
    assert await read(client, "f") == text
    answer = await client.ask("GET", "/files?path=f", headers={"accept-encoding": "deflate, gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert "content-length" not in answer.headers
    assert gzip.decompress(answer.body) == text
    answer = await client.ask(
        "GET", "/files?path=f", headers={"accept-encoding": "gzip", "range": "bytes=0-3"}
    )
    assert (answer.status, answer.body) == (206, b"comp")


RANGES = [
    ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
    ("bytes=3-", 206, b"3456789", "bytes 3-9/10"),
    ("bytes=-2", 206, b"89", "bytes 8-9/10"),
    ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
    ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
    ("bytes=10-", 416, None, "bytes */10"),
    ("bytes=-0", 416, None, "bytes */10"),
    ("bytes=5-3", 200, b"0123456789", None),
    ("bytes=0-1,3-4", 200, b"0123456789", None),
    ("lines=1-2", 200, b"0123456789", None),
    ("bytes=9999999999999999999-", 200, b"0123456789", None),
]


async def test_ranges(client: Client):
    """One range is served as a part; what is none, or several, gets the whole file."""
    await client.ask("POST", "/files?path=f", b"0123456789", RAW)
    for header, status, body, told in RANGES:
        answer = await client.ask("GET", "/files?path=f", headers={"range": header})
        assert (answer.status, answer.headers.get("content-range")) == (status, told), header
        if body is not None:
            assert answer.body == body
            assert answer.headers["content-length"] == str(len(body))


async def test_conditions(client: Client):
    """A file that has not changed is not sent again; a part of another file than the client's is not sent."""
    await client.ask("POST", "/files?path=f", b"0123456789", RAW)
    modified = (await client.ask("GET", "/files?path=f")).headers["last-modified"]
    answer = await client.ask("GET", "/files?path=f", headers={"if-modified-since": modified})
    assert (answer.status, answer.body) == (304, b"")
    for date, status in ((modified, 206), ("Thu, 01 Jan 1970 00:00:00 GMT", 200), ("nonsense", 200)):
        answer = await client.ask("GET", "/files?path=f", headers={"range": "bytes=1-2", "if-range": date})
        assert answer.status == status


async def test_large_files_stream(client: Client):
    """A file of many windows arrives whole, and a part of it from anywhere."""
    content = bytes(range(256)) * 40_000
    await client.ask("POST", "/files?path=f", content, RAW)
    assert await read(client, "f") == content
    answer = await client.ask("GET", "/files?path=f", headers={"range": "bytes=5000001-9999999"})
    assert answer.body == content[5000001:10000000]


async def test_a_file_that_is_replaced_while_it_is_read(client: Client):
    """A download is of one file: where another takes its place, it is aborted and not completed with that one."""
    await client.ask("POST", "/files?path=f", b"a" * 9_000_000, RAW)
    original = client.sandbox.files.read_part

    async def read_part(path, offset, length, same=None):
        if offset:
            await client.sandbox.files.write("/home/user/f", b"b" * 9_000_000)
        return await original(path, offset, length, same)

    client.sandbox.files.read_part = read_part  # type: ignore[method-assign]
    exchange = client.begin("GET", "/files?path=f")
    answer = await exchange.done()
    assert exchange.aborted
    assert not answer.complete
    assert set(answer.body) == {ord("a")}


async def test_metadata(client: Client):
    """Headers of an upload are kept with the file, told wherever it is described, and replaced with it."""
    headers = RAW | {"X-Metadata-Author": "mish", "x-metadata-Stage": "a b", "x-other": "1"}
    answer = await client.ask("POST", "/files?path=f", b"1", headers)
    probe = "import os; os.setxattr('f', 'user.probe', b'1'); os.removexattr('f', 'user.probe')"
    if end_of(await client.run(f'python3 -c "{probe}"')).get("exitCode"):
        # Files in memory have such attributes from Linux 6.6 on: before, nothing is kept, and nothing claimed.
        assert (answer.status, "metadata" in answer.json[0]) == (200, False)
        return
    kept = {"author": "mish", "stage": "a b"}
    assert answer.json[0]["metadata"] == kept
    listed = await client.call("Filesystem/ListDir", {"path": "~"})
    moved = await client.call("Filesystem/Move", {"source": "f", "destination": "g"})
    found = await client.call("Filesystem/Stat", {"path": "g"})
    assert [answer.json["entry"]["metadata"] for answer in (moved, found)] == [kept] * 2
    assert listed.json["entries"][0]["metadata"] == kept
    await client.run(
        "python3 -c \"import os; os.setxattr('g', 'user.e2b.x', b'1'); os.setxattr('g', 'user.y', b'2')\""
    )
    found = await client.call("Filesystem/Stat", {"path": "g"})
    assert found.json["entry"]["metadata"] == kept | {"x": "1"}
    answer = await client.ask("POST", "/files?path=g", b"2", RAW)
    assert "metadata" not in answer.json[0]
    assert "metadata" not in (await client.call("Filesystem/Stat", {"path": "g"})).json["entry"]


async def test_metadata_that_is_refused(client: Client):
    """Names and values have bounds and are printable; nothing is written otherwise."""
    for headers, message in (
        ({f"x-metadata-{'k' * 247}": "1"}, "exceeds 246 bytes"),
        ({"x-metadata-a": "v" * 4090}, "total metadata size 4100 exceeds 4096 bytes"),
        (
            {"x-metadata-a": "b\u00fc"},
            'metadata value for key "a" contains non-printable-ASCII byte 0xfc at offset 1',
        ),
        ({"x-metadata-a\u00fc": "b"}, "metadata key contains non-printable-ASCII byte"),
    ):
        answer = await client.ask("POST", "/files?path=f", b"1", RAW | headers)
        assert answer.status == 400
        assert answer.json["message"].startswith("invalid metadata: ")
        assert message in answer.json["message"]
    assert (await client.ask("GET", "/files?path=f")).status == 404


async def test_signatures(client: Client):
    """A signature lets whoever has no token read, or write, one file as one user until it expires, and nothing else."""
    client.token = None
    soon, past = int(time.time()) + 60, int(time.time()) - 60

    def target(
        path: str, operation: Any, user: str = "", expiration: int | None = None, /, **other: str
    ) -> str:
        signed = signature(path, operation, user, TOKEN, expiration).replace("+", "%2B").replace("/", "%2F")
        fields = {"path": path, "signature": signed} if path else {"signature": signed}
        if user:
            fields["username"] = user
        if expiration is not None:
            fields["signature_expiration"] = str(expiration)
        return "/files?" + "&".join(f"{name}={value}" for name, value in (fields | other).items())

    assert (await client.ask("POST", target("f", "write"), b"1", RAW)).status == 200
    assert (await client.ask("GET", target("f", "read"))).body == b"1"
    assert (await client.ask("GET", target("f", "read", "user", soon))).body == b"1"
    body, headers = form(("file", "anywhere", b"2"))
    assert (await client.ask("POST", target("", "write", "root"), body, headers)).status == 200

    for refused, message in (
        ("/files?path=f", "missing signature query parameter"),
        (target("f", "write"), "invalid signature"),
        (target("f", "read", path="g"), "invalid signature"),
        (target("f", "read", username="root"), "invalid signature"),
        (target("f", "read", "", soon, signature_expiration=str(soon + 1)), "invalid signature"),
        (target("f", "read", "", past), "signature is already expired"),
        ("/files?path=f&signature=v1_%ff", None),
    ):
        answer = await client.ask("GET", refused)
        if message is None:
            assert answer.status in {400, 401}
        else:
            assert (answer.status, answer.json) == (401, {"code": 401, "message": message})
    answer = await client.ask("GET", target("f", "read", "", soon, signature_expiration="1x"))
    assert answer.status == 400


async def test_a_wrong_token_is_not_saved_by_a_signature(client: Client):
    """Whoever presents a token has to present the right one."""
    await client.ask("POST", "/files?path=f", b"1", RAW)
    client.token = "wrong"
    signed = signature("f", "read", "", TOKEN, None).replace("+", "%2B").replace("/", "%2F")
    answer = await client.ask("GET", f"/files?path=f&signature={signed}")
    assert (answer.status, answer.json["message"]) == (
        401,
        "access token present in header but does not match",
    )


async def test_users_of_files(client: Client):
    """``username`` names user or root; anybody else is 401 in upstream's words."""
    answer = await client.ask("GET", "/files?path=f&username=root123")
    message = "error looking up user 'root123': user: unknown user root123"
    assert (answer.status, answer.json) == (401, {"code": 401, "message": message})
