"""I: what happens to a server that serves: clients that leave, kernels that die, clocks that jump, records that tear, storms."""

import ast
import asyncio
import json
import os
import random
import signal
import sqlite3
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellfork.engine.clock import SystemClock
from cellfork.engine.engine import Engine
from cellfork.engine.runtimes import LazyRuntimes
from cellfork.engine.settings import Settings as EngineSettings
from cellfork.guest.archives import Unpacker
from cellfork.model.errors import (
    CellforkError,
    InvalidRequest,
    IsolationUnavailable,
    StartupFailed,
    Unsupported,
)
from cellfork.model.limits import Limits, MiB
from cellfork.model.specs import ExecSpec, ExecuteRequest, SandboxSpec, Template
from cellfork.runtimes.namespaces.runtime import NamespacesRuntime
from cellfork.server.templates import Named
from cellfork.testing.fakes import FakeGuest, FakeRuntime
from cellfork.testing.leaks import no_leaks
from tests.lifecycle import kept
from tests.security.catalogue import row
from tests.security.places import KEY, Made, Place, creation, keyed, place, wanted
from tests.server.conftest import Wire, connected
from tests.server.processes import served, token_of

BARE = Template("bare", preload=(), limits=Limits(memory="256M", pids=60, disk="32M"))
SMALL = Named(Template(preload=(), limits=BARE.limits), ("base",), has_limits=True)
SPEC = SandboxSpec(template=BARE, limits=BARE.limits)


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Place]:
    settings: dict[str, Any] = {"isolation": "namespaces", "templates": (SMALL,)}
    async with place(tmp_path, Engine(LazyRuntimes()), **settings) as found:
        yield found


async def begin(wire: Wire, made: Made, code: str) -> None:
    """Send code to an E2B sandbox, and do not wait."""
    body = json.dumps({"code": code})
    head = f"e2b-sandbox-id: {made.id}\r\ne2b-sandbox-port: 49999\r\nx-access-token: {made.secrets['sandbox']}\r\n"
    head += f"e2b-traffic-access-token: {made.secrets['traffic']}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    await wire.send(
        f"POST /execute HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {len(body)}\r\n\r\n{body}".encode()
    )


async def run(real: Place, made: Made, code: str) -> str:
    """Run code in an E2B sandbox; return everything that is answered."""
    async with connected(real.server.port) as wire:
        await begin(wire, made, code)
        return (await wire.rest()).decode()


# ------------------------------------------------------------------------------- clients and their kernels


@row(
    "I01", "the code is interrupted, its context goes on with its variables, nothing of the connection stays"
)
async def test_i01_clients_that_leave(real: Place):
    """A client that goes in the middle of a stream leaves no code behind that nobody waits for, and no descriptor."""
    made = await real.create("e2b")
    await run(real, made, "x = 42")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        async with connected(real.server.port) as wire:
            await begin(wire, made, "print('begun', flush=True)\nwhile True: pass")
            await asyncio.wait_for(wire.reader.readuntil(b"begun"), 10)
    started = time.monotonic()
    assert '"text":"42"' in await run(real, made, "x")
    assert time.monotonic() - started < 5
    assert len(os.listdir("/proc/self/fd")) - before < 10


@row("I01", "a command goes on, and whoever asks for it again gets everything it wrote, once")
async def test_i01_commands_go_on(real: Place):
    """The reader of a command's stream leaves and comes back at the number that it saw last: no line is missing or told twice."""
    made = await real.create("together")
    base, shown = f"/together/agents/{made.id}/api/v1", {"authorization": f"Bearer {made.secrets['admin']}"}
    body = json.dumps(
        {"command": "sh", "args": ["-c", "for i in $(seq 400); do echo $i; sleep 0.003; done"]}
    ).encode()
    exec_ = (
        await real.wire.ask("POST", f"{base}/execs", body, content_type="application/json", **shown)
    ).json["id"]
    text, last = "", 0
    while True:
        async with connected(real.server.port) as wire:
            await wire.send(
                f"GET {base}/stream/execs/{exec_}/io?lastSequence={last} HTTP/1.1\r\nhost: localhost\r\nauthorization: {shown['authorization']}\r\n\r\n".encode()
            )
            for _ in range(random.randrange(1, 6)):
                event = json.loads(
                    (await asyncio.wait_for(wire.reader.readuntil(b"}\n\n"), 10)).rpartition(b"data: ")[2]
                )
                assert event["sequence"] == last + 1
                text, last = text + event["output"], event["sequence"]
                if "exitCode" in event:
                    assert text.split() == [str(number) for number in range(1, 401)]
                    return


@row("I03", "an error with a name, at once; the next code has a new kernel")
@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), 9)", "os.abort()", "os._exit(3)", "bytearray(400_000_000)"]
)
async def test_i03_kernels_that_die(real: Place, end: str):
    """Code whose kernel is killed, in whichever way, is answered with one error and the end; nothing hangs."""
    made = await real.create("e2b")
    started = time.monotonic()
    told = await run(real, made, f"import os\n{end}")
    assert time.monotonic() - started < 10
    assert told.count('"type":"error"') == 1
    assert told.count('"type":"end_of_execution"') == 1
    assert '"text":"42"' in await run(real, made, "6 * 7")


@row("I04", "each is answered; a kernel is started when it is asked for, and never by itself")
async def test_i04_kernels_that_die_again_and_again(real: Place):
    """Thirty kernels that end at once, one after the other: no storm of restarts, no process that stays."""
    made = await real.create("e2b")
    for _ in range(30):
        assert '"type":"error"' in await run(real, made, "import os; os._exit(1)")
    (sandbox,) = real.services.engine.list()
    await asyncio.sleep(0.5)
    usage = sandbox.usage()
    assert '"text":"42"' in await run(real, made, "6 * 7")
    assert usage.memory is not None
    assert usage.memory < 128 * MiB


@row("I08", "deadlines and timeouts do not notice")
@pytest.mark.parametrize("jump", [3600, -3600])
async def test_i08_the_clock_jumps(jump: int):
    """The machine's time jumps by an hour: no sandbox ends for it, none lives longer, no code is cut short."""
    ahead = 0

    class Jumping(SystemClock):
        def time_ns(self) -> int:
            return time.time_ns() + ahead

    engine = Engine({"fake": FakeRuntime()}, EngineSettings(clock=Jumping()))
    try:
        long, short = [
            await engine.create(SandboxSpec(isolation="fake", timeout=seconds)) for seconds in (60, 1)
        ]
        started = time.monotonic()
        ahead = jump * 10**9
        execution = await long.run(None, ExecuteRequest("1", timeout=5))
        assert execution.error is None
        assert execution.accounting.wall_time < 5
        while short.state != "ended":
            await asyncio.sleep(0.01)
            assert time.monotonic() - started < 5
        assert time.monotonic() - started > 0.9
        assert long.state == "running"
    finally:
        await engine.aclose()


@row(
    "I09",
    "no request holds the others up for as long as a second: the largest that are taken, read and refused",
)
@pytest.mark.parametrize("dialect", ["e2b", "together", "opensandbox"])
async def test_i09_no_body_blocks_the_loop(tmp_path: Path, dialect: str):
    """While bodies that are as long and as odd as allowed are read, another client is answered all the time."""
    bodies = [
        b"[" * (20 * MiB),
        b'{"a":"' + b"\\u0041" * (4 * MiB) + b'"}',
        b"[" + b"1," * (10 * MiB) + b"1]",
        b"9" * (20 * MiB),
    ]
    bodies.append(b'{"metadata": {' + b",".join(b'"%d": "1"' % number for number in range(1_000_000)) + b"}}")
    async with place(tmp_path) as fake:
        longest, over = 0.0, False

        async def beat() -> None:
            nonlocal longest
            while not over:
                started = time.monotonic()
                await asyncio.sleep(0.005)
                longest = max(longest, time.monotonic() - started)

        beating = asyncio.create_task(beat())
        for body in bodies:
            wire = await fake.again()
            headers = {"content_type": "application/json", "connection": "close", **keyed(dialect, KEY)}
            try:
                reply = await wire.ask("POST", wanted(dialect)[0], body, **headers)
            except ConnectionError:
                continue  # refused, and closed, before all of it was sent
            assert reply.status in {400, 413}, reply
        over = True
        await beating
        assert longest < 1.0


# ----------------------------------------------------------------------------------------------- many at once


@row("I11", "as many processes, descriptors, mounts, control groups and files as before")
async def test_i11_creates_and_kills_at_once(tmp_path: Path):
    """Waves of creates and kills through all dialects at the same time leave nothing, whoever is killed in the middle of what."""
    ends = {
        "e2b": ("DELETE", "/sandboxes/{}"),
        "together": ("POST", "/together/v1/sandboxes/{}/terminate"),
        "opensandbox": ("DELETE", "/v1/sandboxes/{}"),
    }
    with no_leaks():
        settings: dict[str, Any] = {"isolation": "namespaces", "templates": (SMALL,)}
        engine = Engine(LazyRuntimes())
        async with place(tmp_path, engine, **settings) as real:

            async def live_and_die(dialect: str) -> None:
                async with connected(real.server.port) as wire:
                    reply = await creation(wire, dialect)
                    assert reply.status < 300, reply
                    id = reply.json.get("sandboxID") or reply.json["id"]
                    method, path = ends[dialect]
                    reply = await wire.ask(method, path.format(id), **keyed(dialect, KEY))
                    assert reply.status < 300, reply

            for _ in range(3):
                await asyncio.gather(*(live_and_die(dialect) for dialect in ends for _ in range(7)))
            assert engine.list() == []


@row("I12", "no place, lock, descriptor or sandbox is lost: what was begun is finished or undone")
async def test_i12_clients_that_leave_at_any_moment(tmp_path: Path):
    """Clients that go at random moments of creates and executions: every sandbox that is left is listed, and nothing else is."""
    with no_leaks():
        settings: dict[str, Any] = {"isolation": "namespaces", "templates": (SMALL,), "max_sandboxes": 30}
        engine = Engine(LazyRuntimes())
        async with place(tmp_path, engine, **settings) as real:
            made = await real.create("e2b")

            async def leave(number: int) -> None:
                async with connected(real.server.port) as wire:
                    if number % 2:
                        await begin(wire, made, "import time; time.sleep(0.01); 1")
                    else:
                        path, body = wanted(("e2b", "together", "opensandbox")[number % 3])
                        head = "".join(
                            f"{n.replace('_', '-')}: {v}\r\n"
                            for n, v in keyed(("e2b", "together", "opensandbox")[number % 3], KEY).items()
                        )
                        content = json.dumps(body)
                        await wire.send(
                            f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n{content}".encode()
                        )
                    await asyncio.sleep(random.random() * 0.05)

            await asyncio.gather(*(leave(number) for number in range(40)))
            async with asyncio.timeout(20):
                while '"text":"42"' not in await run(real, made, "6 * 7"):
                    pass
                while real.services.admission._coming:
                    await asyncio.sleep(0.05)
            for sandbox in engine.list():
                assert sandbox.state == "running"
            assert "Traceback" not in real.server.log.text


@row("I17", "once: the answer to the first try is the answer to the second")
async def test_i17_a_retry_makes_nothing_twice(tmp_path: Path):
    """A create whose connection broke before its answer, tried again with the same key, is the same sandbox."""
    async with place(tmp_path) as fake:
        body = json.dumps({"templateID": "base"})
        head = f"POST /v2/sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\nidempotency-key: once\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        for _ in range(5):
            async with connected(fake.server.port) as wire:
                await wire.send((head + body).encode())
        replies = []
        for _ in range(3):
            async with connected(fake.server.port) as wire:
                await wire.send((head + body).encode())
                replies.append((await wire.reply()).json["sandboxID"])
        assert len(set(replies)) == 1
        assert [sandbox.id for sandbox in fake.services.engine.list()] == replies[:1]


# ------------------------------------------------------------------------------------- what is not there


@row("I15", "a refusal with the reason, in every dialect; sandboxes that run go on")
@pytest.mark.parametrize(
    "error", [StartupFailed("the control groups are gone"), IsolationUnavailable("no user namespaces")]
)
async def test_i15_what_isolates_goes_away(tmp_path: Path, error: CellforkError):
    """Where this machine can start no sandbox any more, creates are refused, typed, and never given less isolation."""
    broken = False

    def on_start(_guest: FakeGuest) -> None:
        if broken:
            raise error

    engine = Engine({"fake": FakeRuntime(on_start=on_start)})
    async with place(tmp_path, engine) as fake:
        made = await fake.create("e2b")
        broken = True
        for dialect in ("e2b", "together", "opensandbox"):
            reply = await creation(fake.wire, dialect)
            lasting = dialect == "e2b" and isinstance(
                error, IsolationUnavailable
            )  # told as one not to try again
            assert reply.status == (500 if lasting else 503), (dialect, reply)
            assert not lasting or reply.headers["should-retry"] == "false"
            assert str(error) in reply.json["message"]
        assert len(engine.list()) == 1
        told = await fake.wire.ask("GET", f"/sandboxes/{made.id}", x_api_key=KEY)
        assert told.json["state"] == "running"
        assert "Traceback" not in fake.server.log.text


@row("I16", "what waited and died, or was stopped, is not given out")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_i16_what_waits_may_have_died(number: signal.Signals):
    """Sandboxes that were started ahead and lost their processes meanwhile: the next create gets one that works, and soon."""
    engine = Engine({"namespaces": NamespacesRuntime(pool=2, prefork=1)})
    try:
        first = await engine.create(SPEC)
        children = await descendants(2)
        assert children
        own = await first.run(None, ExecuteRequest("import os; os.getpid()"))
        assert own.text is not None
        await first.kill()
        for pid in await descendants(2):
            if b"zygote" not in command(pid):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        for _ in range(4):
            async with asyncio.timeout(20):
                sandbox = await engine.create(SPEC)
                execution = await sandbox.run(None, ExecuteRequest("6 * 7"))
            assert execution.text == "42"
    finally:
        await engine.aclose()


async def descendants(least: int) -> list[int]:
    """Return the processes below this one, once there are so many."""
    async with asyncio.timeout(10):
        while len(found := below(os.getpid())) < least:
            await asyncio.sleep(0.05)
    return found


def below(pid: int) -> list[int]:
    try:
        children = [
            int(child)
            for task in os.listdir(f"/proc/{pid}/task")
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        ]
    except OSError:
        return []
    return [one for child in children for one in (child, *below(child))]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return b"zygote"


# -------------------------------------------------------------------------------------------- restarts


@row(
    "I13",
    "what was given out keeps its limits, its network and its tokens; what comes is as the new settings say",
)
def test_i13_other_settings(tmp_path: Path):
    """A server that comes back with other limits, keys and isolation settings does not change the sandboxes that it finds."""
    with served(tmp_path, "--limits", "memory=300M", keep=True) as server:
        id = server.create()
        token = token_of(server, id)
        server.end(signal.SIGKILL)
    with served(tmp_path, "--limits", "memory=200M", "--max-timeout", "1h") as server:
        assert b"42" in server.run(id, "6 * 7", token)
        told = json.loads(server.ask("GET", f"/sandboxes/{id}", x_api_key=KEY)[1])
        assert told["memoryMB"] == 300
        other = json.loads(server.ask("GET", f"/sandboxes/{server.create()}", x_api_key=KEY)[1])
        assert other["memoryMB"] == 200
        headers = {"e2b_sandbox_id": id, "e2b_sandbox_port": "49999", "x_access_token": "wrong"}
        assert server.ask("POST", "/execute", '{"code": "1"}', **headers)[0] == 401


@row("I14", "what was acknowledged is there; what is torn is refused, in words, and left as it is")
def test_i14_records_that_tear(tmp_path: Path):
    """The last write of the records is cut off: the sandboxes before it are found.  Records that are no records start no server."""
    with served(tmp_path, keep=True) as server:
        ids = [server.create() for _ in range(2)]
        token = token_of(server, ids[0])
        server.end(signal.SIGKILL)
    (records,) = tmp_path.rglob("records.sqlite")
    log = records.with_name("records.sqlite-wal")
    if log.exists():
        with log.open("ab") as file:
            file.write(os.urandom(3000))
    with served(tmp_path, keep=True) as server:
        assert b"42" in server.run(ids[0], "6 * 7", token)
        listed = {
            one["sandboxID"] for one in json.loads(server.ask("GET", "/v2/sandboxes", x_api_key=KEY)[1])
        }
        assert listed == {*ids}
        server.end(signal.SIGKILL)
    whole = {path: path.read_bytes() for path in records.parent.glob("records.sqlite*")}
    for path in whole:
        path.write_bytes(b"torn" * 5000)
    with pytest.raises(AssertionError, match=r"records"), served(tmp_path):
        pass
    assert records.read_bytes() == b"torn" * 5000
    for path, content in whole.items():
        path.write_bytes(content)
    with served(tmp_path) as server:
        assert b"42" in server.run(ids[0], "6 * 7", token)
        for id in ids:
            assert server.ask("DELETE", f"/sandboxes/{id}", x_api_key=KEY)[0] == 204
    sqlite3.connect(records).close()


@row("I02", "each sandbox is itself, or ended: whoever listens at a door is known by the kernel")
def test_i02_doors_that_were_exchanged(tmp_path: Path):
    """Two sandboxes of two tenants stand behind each other's doors: neither is taken for the other, and both are ended."""
    path = tmp_path / "state"
    with kept.server(path) as first:
        ids = [first("await create()"), first("await create(tenant='other')")]
        forks = [first(f"engine.get('{id}').guest.record['fork']") for id in ids]
        first.kill()
    one, other = [path / "forks" / fork for fork in forks]
    one.rename(path / "forks" / "between")
    other.rename(one)
    (path / "forks" / "between").rename(other)
    with kept.server(path) as second:
        assert second.adopted == []
        assert sorted(second.ended) == sorted(ids)
        # Whoever is looked at second may have been ended by then, as the one behind the first one's door.
        assert any("somebody else" in reason for reason in second.ended.values())
        kept.nothing_is_left(path)


@row("I19", "all are answered, in bounded time")
def test_i19_everybody_comes_back_at_once(tmp_path: Path):
    """After a kill, forty clients ask the new server for the old sandboxes at the same moment: each gets its own variables."""
    with served(tmp_path, keep=True) as server:
        ids = [server.create() for _ in range(4)]
        tokens = {id: token_of(server, id) for id in ids}
        for number, id in enumerate(ids):
            server.run(id, f"x = {number}", tokens[id])
        server.end(signal.SIGKILL)
    with served(tmp_path) as server:
        started = time.monotonic()
        asked = []
        for number, id in [*enumerate(ids)] * 10:
            connection = server.connect()
            headers = {
                "E2b-Sandbox-Id": id,
                "E2b-Sandbox-Port": "49999",
                "Content-Type": "application/json",
            } | tokens[id]
            connection.request("POST", "/execute", '{"code": "x"}', headers)
            asked.append((number, connection))
        for number, connection in asked:
            assert f'"text":"{number}"'.encode() in connection.getresponse().read()
            connection.close()
        assert time.monotonic() - started < 30


# ---------------------------------------------------------------------------------------------- copies


@row("I20", "copies have ids, tokens and random numbers of their own")
async def test_i20_forks_share_no_secret(real: Place):
    """A fork, and sandboxes of one snapshot, in each dialect: nothing that opens one opens another, nothing that is drawn is drawn twice."""
    made = await real.create("e2b")
    reply = await real.wire.ask(
        "POST", f"/sandboxes/{made.id}/fork", b'{"count": 2}', x_api_key=KEY, content_type="application/json"
    )
    if reply.headers.get("cellfork-error") == "unsupported":
        pytest.skip(
            reply.json["message"]
        )  # an ordinary user without control groups that can hold a sandbox still
    assert reply.status < 300, reply
    draw = "import random, uuid, os, secrets, tempfile\n[random.random(), uuid.uuid4().hex, os.urandom(8).hex(), secrets.token_hex(8), next(tempfile._get_candidate_names())]"
    engine = real.services.engine
    assert len(engine.list()) == 3
    notes = [sandbox.notes["e2b"] for sandbox in engine.list()]
    for name in ("envd_token", "traffic_token"):
        assert len({note[name] for note in notes}) == 3, name
    assert len({sandbox.id for sandbox in engine.list()}) == 3
    drawn = [(await sandbox.run(None, ExecuteRequest(draw))).text for sandbox in engine.list()]
    values = [value for text in drawn for value in ast.literal_eval(text or "")]
    assert len(set(values)) == len(values) == 15
    box = await real.create("opensandbox")
    snapshot = (
        await real.wire.ask(
            "POST",
            f"/v1/sandboxes/{box.id}/snapshots",
            b"{}",
            open_sandbox_api_key=KEY,
            content_type="application/json",
        )
    ).json["id"]
    body = json.dumps({"snapshotId": snapshot, "secureAccess": True}).encode()
    copies = [
        await real.wire.ask(
            "POST", "/v1/sandboxes", body, open_sandbox_api_key=KEY, content_type="application/json"
        )
        for _ in range(2)
    ]
    told = [await real.told_of(copy, "opensandbox", KEY) for copy in copies]
    secrets = [value for one in (box, *told) for value in (one.id, *one.secrets.values())]
    assert len(set(secrets)) == 9


# -------------------------------------------------------------------------------------------- archives

RECORD = struct.Struct(">cII")


def record(kind: bytes, content: bytes = b"", /, **description: Any) -> bytes:
    text = json.dumps(description).encode()
    return RECORD.pack(kind, len(text), len(content)) + text + content


BEGIN = record(b"A", v=1)
HOME = record(b"D", n="home", m=0o755, t=0)
ARCHIVES = {
    "a name that leads up": BEGIN + HOME + record(b"D", n="..", m=0o755, t=0) + record(b"F", b"x", n="x", m=0o644, t=0, s=1),
    "an absolute name": BEGIN + HOME + record(b"F", b"x", n="/tmp/x", m=0o644, t=0, s=1),
    "a path": BEGIN + HOME + record(b"F", b"x", n="a/b", m=0o644, t=0, s=1),
    "NUL": BEGIN + HOME + record(b"F", b"x", n="a\0b", m=0o644, t=0, s=1),
    "out of the top": BEGIN + record(b"U") + record(b"U") + record(b"F", b"x", n="x", m=0o644, t=0, s=1),
    "a link, then through it": BEGIN + HOME + record(b"S", b"/proc/self/root/etc", n="l", t=0) + record(b"D", n="l", m=0o777, t=0) + record(b"F", b"x", n="passwd", m=0o644, t=0, s=1),
    "another name of nothing": BEGIN + HOME + record(b"L", n="x", i=7),
    "a device": BEGIN + HOME + record(b"B", n="x", m=0o60666, t=0),
    "a device by its mode": BEGIN + HOME + record(b"F", b"", n="x", m=0o60666, t=0, s=0) + record(b"E", count=2),
    "rights of the kernel": BEGIN + HOME + record(b"F", b"", n="x", m=0o6755, t=0, s=0) + record(b"X", b"\1\0\0\2", n="security.capability"),
    "a file of a pebibyte": BEGIN + HOME + record(b"F", b"x", n="x", m=0o644, t=0, s=2**50),
    "a description without end": BEGIN + RECORD.pack(b"F", 2**32 - 1, 0),
    "a content without end": BEGIN + RECORD.pack(b"F", 2, 2**32 - 1) + b"{}",
    "no end": BEGIN + HOME,
    "nothing": b"",
    "zeros": bytes(4 * MiB),
    "a million files": BEGIN + HOME + b"".join(record(b"F", b"", n=f"{number}", m=0o644, t=0, s=0) for number in range(300_000)),
    "a full disk": BEGIN + HOME + record(b"F", bytes(MiB), n="x", m=0o644, t=0, s=64 * MiB) + b"".join(record(b"C", b"\1" * (MiB // 2), o=number * MiB // 2) for number in range(2, 128)),
}  # fmt: skip


@row(
    "C14",
    "nothing is unpacked outside the sandbox, whatever its members are called and lead to; typed refusal, or a sandbox that is whole",
)
@row(
    "A20",
    "an archive that unfolds into more than the sandbox may hold is refused within its limits and in bounded time",
)
@pytest.mark.parametrize("name", ARCHIVES)
async def test_c14_a20_archives(tmp_path: Path, name: str):
    """A sandbox whose init lies hands out an archive of its own making; what is started with it is refused, or has its own places only."""
    (tmp_path / "state").mkdir(mode=0o700)
    engine = Engine(LazyRuntimes(), EngineSettings(archives=str(tmp_path / "state")))
    canary = tmp_path / "canary"
    canary.write_text("as it was")
    try:
        source = await engine.create(SPEC)
        try:
            snapshot = await engine.snapshot(source.id)
        except Unsupported as error:
            pytest.skip(str(error))  # an ordinary user without control groups that can hold a sandbox still
        (file,) = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and path.stat().st_size]
        file.write_bytes(ARCHIVES[name])
        async with asyncio.timeout(60):
            try:
                copy = await engine.create(
                    SandboxSpec(template=BARE, limits=BARE.limits, snapshot=snapshot.id)
                )
            except CellforkError:
                copy = None
        if copy is not None:
            script = "find / -xdev -user user \\( -perm /6000 -o -type b -o -type c \\) 2>/dev/null; cat /etc/passwd | head -c 1"
            _code, told = await copy.execs.run(ExecSpec(("/bin/sh", "-c", script), cwd="/"))
            assert told != "x"
            assert (await copy.run(None, ExecuteRequest("6 * 7"))).text == "42"
        assert (await source.run(None, ExecuteRequest("6 * 7"))).text == "42"
        assert canary.read_text() == "as it was"
        assert {path.name for path in tmp_path.iterdir()} == {"state", "canary"}
    finally:
        await engine.aclose()


@row("A20", "refused when its length is told, not when all of it has come")
@pytest.mark.parametrize("head", [RECORD.pack(b"F", 2**20, 0), RECORD.pack(b"F", 2, 2**30) + b"{}"])
def test_a20_records_are_bounded_before_they_come(tmp_path: Path, head: bytes):
    """Whoever unpacks waits for no more than a record may have: the memory of init is not the archive's to fill."""
    unpacker = Unpacker(os.fsencode(tmp_path))
    try:
        with pytest.raises(InvalidRequest):
            for _ in unpacker.feed(BEGIN + head):
                pass
    finally:
        unpacker.close()
