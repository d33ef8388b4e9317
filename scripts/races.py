"""Race renames, links and exchanges inside a sandbox against every file operation from outside.

Racers, in the sandbox, exchange what is at a few names as fast as they can: files, directories, links to places of
the host, of /proc and /dev, pipes, sockets, hard links, nothing.  From outside every operation of the file API
works on these names, many at a time.  Canaries are a file of the host, files that all sandboxes share, and the files of
a second sandbox; their contents must never be read, and nothing about them may change.  Each call has to end in time,
with a result or with one of the errors that the API promises.
"""

import argparse
import asyncio
import contextlib
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from cellfork.engine.engine import Engine  # noqa: E402 - the path is set first
from cellfork.engine.files import Files  # noqa: E402
from cellfork.engine.runtimes import LazyRuntimes  # noqa: E402
from cellfork.engine.sandbox import Sandbox  # noqa: E402
from cellfork.model.errors import (  # noqa: E402
    CellforkError,
    Conflict,
    FileError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from cellfork.model.limits import Limits  # noqa: E402
from cellfork.model.specs import ExecSpec, SandboxSpec, Template  # noqa: E402

PLACE = "/home/user/race"
RACERS = 4
AT_ONCE = 16
CALL_SECONDS = 30.0
"""What one call may take, on a machine that is busy with the race itself."""
PROMISED = (FileError, InvalidRequest, Conflict, LimitExceeded, NotFound)
SHARED = ("/usr/bin/env", "/usr/lib/os-release", "/etc/passwd", "/etc/hosts")

RACER = r"""
import ctypes, os, random, shutil, socket, sys
place, canary, seed = sys.argv[1:4]
chance = random.Random(seed)
libc = ctypes.CDLL(None)
os.makedirs(place, exist_ok=True)
os.chdir(place)
targets = [canary, os.path.dirname(canary), '/etc/passwd', '/etc', '/usr/bin/env', '/usr/lib', '/', '/proc/self/environ',
           '/proc/self/mem', '/proc/self/fd/3', '/proc/1/fd/3', '/proc/1/root' + canary, '/proc/self/cwd', '/dev/zero', '/dev/tty',
           '/dev/ptmx', '/dev/fd/0', '/dev/full', '/proc/kmsg', '/proc/sysrq-trigger', 'x0', 'loop', '.', '..', 'gone', '/tmp/t']
names = ['x%d' % n for n in range(6)] + ['d%d' % n for n in range(4)]
def plain(path):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b'sandbox ' * chance.randrange(4000))
    os.close(fd)
def tree(path):
    os.mkdir(path)
    for n in range(3):
        plain(path + '/f%d' % n)
    os.mkdir(path + '/e')
    os.symlink(chance.choice(targets), path + '/e/s')
def sock(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
kinds = [plain, plain, tree, tree, os.mkfifo, sock, lambda p: os.symlink(chance.choice(targets), p),
         lambda p: os.symlink(chance.choice(targets), p), lambda p: os.link(chance.choice(names), p)]
trash = '/home/user/trash-' + seed
def away(path):
    os.makedirs(trash, exist_ok=True)
    os.rename(path, trash + '/%d' % steps)
def open_up():
    for path in ('/home/user', place):  # a link may have led a chmod to them
        os.chmod(path, 0o755)
steps = 0
while True:
    steps += 1
    if steps % 300 == 0:
        shutil.rmtree(trash, ignore_errors=True)
    one, other = chance.choice(names), chance.choice(names)
    what = chance.randrange(32)
    try:
        if what < 12:
            libc.renameat2(-100, one.encode(), -100, other.encode(), 2)
        elif what < 22:
            chance.choice(kinds)(one)
        elif what < 28:
            away(one)
        elif what < 30:
            libc.renameat2(-100, one.encode(), -100, (other + '/e').encode(), 2)
        elif what == 30:
            os.truncate(one, chance.randrange(1 << 16))
        else:
            os.chmod(one, chance.choice([0o444, 0o755, 0o644, 0o755, 0]))
            open_up()
    except PermissionError:
        open_up()
    except OSError:
        pass
"""

Operation = Callable[["Race"], Awaitable[object]]


@dataclass
class Race:
    """One race: the sandbox, what must not be seen, and what came of the calls so far."""

    sandbox: Sandbox
    secrets: Sequence[bytes]
    chance: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    number: int = 0

    @property
    def files(self) -> Files:
        """The sandbox's files."""
        return self.sandbox.files

    def path(self) -> str:
        """Return one of the contested names, or something below one."""
        chance = self.chance
        top = chance.choice([*(f"x{n}" for n in range(6)), *(f"d{n}" for n in range(4))])
        below = chance.choice(["", "", "", "/f0", "/f1", "/e/s", "/e/../f2", "/e", "/../x1"])
        return f"{PLACE}/{top}{below}"

    def see(self, content: bytes) -> None:
        """Look whether a secret has come out."""
        if any(secret in content for secret in self.secrets):
            self.wrong.append("a canary was read")


async def _read(race: Race) -> None:
    race.see(await race.files.read_range(race.path(), 0, 1 << 20))


async def _stream(race: Race) -> None:
    async for piece in race.files.stream(race.path()):
        race.see(piece)


async def _write(race: Race) -> None:
    await race.files.write(race.path(), b"from outside", mode=race.chance.choice([None, 0o600, 0o755]))


async def _append(race: Race) -> None:
    await race.files.write(race.path(), b"and more", append=True)


async def _upload(race: Race) -> None:
    upload = await race.files.open_upload(race.path())
    try:
        for _ in range(3):
            await upload.write(b"piece " * 1000)
        await upload.commit()
    except BaseException:
        upload.abort()
        raise


async def _list(race: Race) -> None:
    listing = await race.files.list(
        race.chance.choice([PLACE, race.path()]), depth=race.chance.randrange(1, 4)
    )
    race.see(" ".join(entry.path for entry in listing.entries).encode())


async def _stat(race: Race) -> None:
    await race.files.stat(race.path())


async def _move(race: Race) -> None:
    elsewhere = race.chance.choice(
        [race.path(), f"/tmp/m{race.chance.randrange(4)}", f"/dev/shm/m{race.chance.randrange(4)}"]
    )
    pair = [race.path(), elsewhere]
    race.chance.shuffle(pair)
    await race.files.move(*pair)


async def _remove(race: Race) -> None:
    await race.files.remove(race.path(), recursive=race.chance.random() < 0.8)


async def _make_dir(race: Race) -> None:
    await race.files.make_dir(f"{race.path()}/g/h")


async def _watch(race: Race) -> None:
    watch = await race.sandbox.watches.start(race.path(), recursive=race.chance.random() < 0.5)
    await asyncio.sleep(0.01)
    await watch.stop()


OPERATIONS: Sequence[Operation] = (
    _read, _read, _stream, _write, _write, _append, _upload, _list, _stat, _stat, _move, _move, _remove, _make_dir, _watch,
)  # fmt: skip


async def race(count: int, seed: int, seconds: float | None = None) -> Race:
    """Make ``count`` calls (or as many as ``seconds`` allow) against :data:`RACERS` racers; return what came of them."""
    engine = Engine(LazyRuntimes())
    limits = Limits(memory="512M", cpu=2.0, pids=40, disk="64M", inodes=20_000)
    spec = SandboxSpec(template=Template(preload=()), limits=limits, timeout=None)
    with tempfile.TemporaryDirectory(prefix="cf-canary-") as directory:
        canary = Path(directory) / "canary"
        hidden = [secrets.token_hex(16).encode() for _ in range(2)]
        canary.write_bytes(hidden[0])
        before = facts_of(canary)
        try:
            neighbour, sandbox = await engine.create(spec), await engine.create(spec)
            await neighbour.files.write(f"{PLACE}/x0", hidden[1])
            await neighbour.files.write(f"{PLACE}/d0/f0", hidden[1])
            running = Race(sandbox, hidden, random.Random(seed))
            racers = [await start_racer(sandbox, str(canary), f"{seed}{n}") for n in range(RACERS)]
            until = time.monotonic() + seconds if seconds else None
            await asyncio.gather(*(call_on(running, count, until) for _ in range(AT_ONCE)))
            if not all(racer.status == "RUNNING" for racer in racers):
                running.wrong.append(
                    "a racer has ended: " + " ".join(r.log.text("stderr")[-300:] for r in racers)
                )
            await check(running, neighbour, hidden[1])
        finally:
            await engine.aclose()
        if facts_of(canary) != before or canary.read_bytes() != hidden[0]:
            running.wrong.append(f"a canary was changed: {before} → {facts_of(canary)}")
        return running


async def start_racer(sandbox: Sandbox, canary: str, seed: str) -> Any:
    """Start one racer inside."""
    return await sandbox.execs.create(ExecSpec(("python3", "-I", "-S", "-c", RACER, PLACE, canary, seed)))


async def call_on(race: Race, count: int, until: float | None) -> None:
    """Make one call after the other until there were enough."""
    while race.number < count and (until is None or time.monotonic() < until) and not race.wrong:
        race.number += 1
        operation = race.chance.choice(OPERATIONS)
        started = time.monotonic()
        name = operation.__name__.strip("_")
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await operation(race)
            race.outcomes[name] += 1
        except PROMISED as error:
            race.outcomes[f"{name}: {type(error).__name__}"] += 1
            race.see(str(error).encode())
        except (CellforkError, TimeoutError) as error:
            race.wrong.append(f"{name}: {type(error).__name__}: {error}")
        race.slowest = max(race.slowest, time.monotonic() - started)


async def check(race: Race, neighbour: Sandbox, secret: bytes) -> None:
    """Look that the neighbour has its files as they were, and that the sandbox still works."""
    for path in (f"{PLACE}/x0", f"{PLACE}/d0/f0"):
        if await neighbour.files.read(path) != secret:
            race.wrong.append("a file of the neighbour was changed")
    names = [entry.path.removeprefix(PLACE) for entry in (await neighbour.files.list(PLACE, depth=5)).entries]
    if names != ["/d0", "/d0/f0", "/x0"]:
        race.wrong.append(f"the neighbour has other files: {names}")
    with contextlib.suppress(CellforkError):
        await race.sandbox.files.stat("/home/user")
    if race.sandbox.state != "running":
        race.wrong.append(f"the sandbox ended: {race.sandbox.end_message}")


def facts_of(canary: Path) -> list[tuple[str, int, int, int, int]]:
    """Return what tells a change of the canary, its directory, and the files that sandboxes share."""
    found = []
    for path in (str(canary), str(canary.parent), *SHARED):
        with contextlib.suppress(FileNotFoundError):
            status = Path(path).stat()
            found.append((path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return found


def main() -> int:
    """Run a long race, print what came of it; return 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="calls")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the choices; printed, drawn where none is given"
    )
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    started = time.monotonic()
    done = asyncio.run(race(options.count, seed))
    for name, number in sorted(done.outcomes.items()):
        print(f"{number:8,} {name}")
    print(f"{done.number:,} calls in {time.monotonic() - started:.0f} s, the slowest {done.slowest:.2f} s")
    print(
        "\n".join(done.wrong)
        or "nothing was read or changed outside, nothing hung, every error was a promised one"
    )
    return bool(done.wrong)


if __name__ == "__main__":
    sys.exit(main())
