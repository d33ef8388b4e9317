"""Kill a server again and again, at random moments, and compare what the next one finds with what clients were told.

A server, which keeps its sandboxes in a state directory, does what several clients ask at once: create, kill, count in a
variable, write files, save notes, start commands, run code that does not end.  It is killed (``kill -9``): at work, at
rest, while it adopts.  The next one has to know everything that was answered, may know what was not, and nothing else: a
counter is never lower than the last answer, a sandbox that was reported killed never returns, a command counts on, and no
process, control group, socket or file is there that belongs to no sandbox.  Now and then something else is killed
as well: the init of a sandbox, a zygote.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.crash_servers import ANSWER_SECONDS, Died, EngineServer, HttpServer, Server  # noqa: E402 - the path is set first

MOST_LIVE = 6
LOST = -1
"""Of a counter: its kernel was ended, because it did not take its interrupt in time.

Once that may have happened, it may until the next comparison: a count that nobody waits for any more is stopped whenever the server gets to it.
"""
PARTING_SECONDS = 15.0
"""In which every client has to hear that its server was killed: less than sandboxes wait for the next one."""
MOST_SECONDS = 3.0
"""How long clients work at most until the server is killed, where that depends on answers."""


@dataclass
class Known:
    """What clients know of a sandbox: for everything the values that it can have."""

    id: str
    x: set[int] = field(default_factory=lambda: {0})
    file: set[str | None] = field(default_factory=lambda: {None})
    note: set[str | None] = field(default_factory=lambda: {None})
    count: int = 0
    killing: bool = False
    doomed: bool = False
    """Whether something else of it was killed: it may be gone."""
    pid: int | None = None


@dataclass
class History:
    """What was asked, answered and seen, and what was wrong about it."""

    path: Path
    chance: random.Random
    live: dict[str, Known] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    unanswered_creates: int = 0
    kills: int = 0
    adopted: int = 0
    lost: int = 0
    """Sandboxes that ended because something else of them was killed."""
    answers: int = 0
    slowest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def check(self, fact: bool, complaint: str) -> None:
        """Note what is wrong."""
        if not fact:
            self.wrong.append(f"kill {self.kills}: {complaint}")
            print(self.wrong[-1], flush=True)

    # ------------------------------------------------------------------------------------- at work

    async def work(self, server: Server) -> None:
        """Be one client: ask for one thing after the other until the server is killed."""
        with contextlib.suppress(Died):
            while True:
                await self.step(server)
                self.answers += 1
                await asyncio.sleep(self.chance.choice((0, 0, 0.001, 0.01)))

    async def wait_a_while(self) -> None:
        """Let the clients work: for some time, or until there were some answers, however slow this machine is."""
        if self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.choice((0.02, 0.1, 0.3, 0.6)) * self.chance.random() * 2)
            return
        enough, deadline = self.answers + self.chance.randint(1, 40), time.monotonic() + MOST_SECONDS
        while self.answers < enough and time.monotonic() < deadline:  # noqa: ASYNC110 - polled on purpose
            await asyncio.sleep(self.chance.random() * 0.01)

    async def step(self, server: Server) -> None:
        """Ask for one thing, remember what can have come of it, then what did."""
        able = [known for known in self.live.values() if not known.killing and not known.doomed]
        if len(self.live) < 2 or (len(self.live) < MOST_LIVE and self.chance.random() < 0.1):
            await self.create(server)
            return
        if not able:
            await asyncio.sleep(0.01)
            return
        known = self.chance.choice(able)
        (op,) = self.chance.choices([*server.chances], [*server.chances.values()])
        await getattr(self, op)(server, known)

    async def create(self, server: Server) -> None:
        """Ask for a sandbox."""
        self.unanswered_creates += 1
        try:
            id = await server.ask("create", "n")
        except RuntimeError as error:
            self.check(False, f"a create was refused: {error}")
            return
        self.unanswered_creates -= 1
        self.live[id] = Known(id)

    async def count(self, server: Server, known: Known) -> None:
        """Count."""
        known.x |= {value + 1 for value in known.x}
        before = max(known.x)
        text = ""
        try:
            text = await self.ask(server, known, "count")
        finally:
            if not server.patient and not (text or "").isdecimal():
                known.x.add(LOST)
        if text is not None and text.isdecimal():
            known.x = {value for value in known.x if value >= int(text) or value == LOST} | {int(text)}
        self.check(known.killing or text is not None, f"a count of at most {before} gave {text}")

    async def write(self, server: Server, known: Known) -> None:
        """Write a file; whoever does so at the same time may come first or last."""
        text = str(self.chance.getrandbits(64))
        known.file.add(text)
        await self.ask(server, known, "write", text)

    async def note(self, server: Server, known: Known) -> None:
        """Save a note."""
        text = str(self.chance.getrandbits(64))
        known.note.add(text)
        await self.ask(server, known, "note", text)

    async def hang(self, server: Server, known: Known) -> None:
        """Run something that only the next server ends; nobody waits for it."""
        with contextlib.suppress(RuntimeError, TimeoutError):
            await asyncio.wait_for(server.ask("hang", known.id), 0.05)

    async def shout(self, server: Server, known: Known) -> None:
        """Have a command write a lot."""
        await self.ask(server, known, "shout")

    async def kill(self, server: Server, known: Known) -> None:
        """Kill a sandbox; from the answer on it is gone for good."""
        known.killing = True
        try:
            await server.ask("kill", known.id)
        except RuntimeError as error:
            self.check(False, f"a kill was refused: {error}")
            return
        self.live.pop(known.id, None)
        self.dead.add(known.id)

    async def ask(self, server: Server, known: Known, op: str, *args: Any) -> Any:
        """Ask for something of a sandbox; a refusal is right only where the sandbox is being killed."""
        try:
            return await asyncio.wait_for(
                server.ask(op, known.id, *args), 3 if op == "count" else ANSWER_SECONDS
            )
        except TimeoutError:
            return ""  # behind code that does not end
        except RuntimeError as error:
            self.check(known.killing or known.doomed, f"{op} was refused: {error}")
            return None

    # ----------------------------------------------------------------------------- after a restart

    async def compare(self, server: Server, began: float) -> None:
        """Compare what a new server has with what is known."""
        greeting = await asyncio.wait_for(server.greeting, ANSWER_SECONDS)
        self.slowest = max(self.slowest, time.monotonic() - began)
        adopted = {*greeting["adopted"]}
        self.adopted += len(adopted)
        for known in [*self.live.values()]:
            if known.id not in adopted:
                reason = greeting["ended"].get(known.id, "no record")
                self.check(known.killing or known.doomed, f"{known.id} was lost: {reason}")
                self.lost += not known.killing
                del self.live[known.id]
                self.dead.add(known.id)
        unknown = adopted - self.live.keys()
        self.check(not unknown & self.dead, f"killed sandboxes are back: {unknown & self.dead}")
        self.check(
            len(unknown) <= self.unanswered_creates,
            f"{len(unknown)} sandboxes that nobody asked for, with {self.unanswered_creates} creates unanswered",
        )
        self.unanswered_creates = 0
        for id in unknown:
            await server.ask("kill", id)
            self.dead.add(id)
        await asyncio.gather(*(self.compare_one(server, known) for known in self.live.values()))

    async def compare_one(self, server: Server, known: Known) -> None:
        """Compare one sandbox."""
        known.killing = False
        try:
            seen = await server.ask("look", known.id)
        except RuntimeError as error:
            self.check(known.doomed, f"{known.id} cannot be looked at: {error}")
            return
        x = int(seen["x"]) if (seen["x"] or "").isdecimal() else LOST
        self.check(x in known.x, f"{known.id} counted to {seen['x']}, not {sorted(known.x)}")
        self.check(seen["file"] in known.file, f"{known.id} has the file {seen['file']}, not {known.file}")
        note = seen["note"]
        self.check(note in known.note, f"{known.id} has the note {note}, not {known.note}")
        self.check(
            seen["count"] >= known.count, f"a command counted back from {known.count} to {seen['count']}"
        )
        self.check("RUNNING" in seen["execs"], f"{known.id} has no command any more: {seen['execs']}")
        rests = [name for name in seen["names"] if name.startswith(".cellfork")]
        self.check(not rests, f"{known.id} has temporary files: {rests}")
        known.doomed = False
        known.x, known.file, known.note = {x}, {seen["file"]}, {note}
        known.count, known.pid = seen["count"], seen["pid"]

    def look_for_orphans(self) -> None:
        """See that everything on this machine that carries the mark of the state directory belongs to a sandbox."""
        allowed = len(self.live)
        for hierarchy, names in groups_of(self.path):
            self.check(
                len(names) == allowed, f"{len(names)} control groups for {allowed} sandboxes in {hierarchy}"
            )
        forks = names_in(self.path / "forks")
        self.check(len(forks) == allowed, f"{len(forks)} doors for {allowed} sandboxes")
        zygotes = {name.partition(".")[0] for name in names_in(self.path / "zygotes")}
        self.check(len(zygotes) <= 2, f"{len(zygotes)} zygotes")
        files = {*names_in(self.path)} - {
            "archives",
            "forks",
            "zygotes",
            "id",
            "lock",
            "records.sqlite",
            "records.sqlite-wal",
            "records.sqlite-shm",
        }
        self.check(not files, f"files that nobody knows: {files}")


def names_in(path: Path) -> list[str]:
    """Return what is in a directory."""
    return [entry.name for entry in path.iterdir()]


def groups_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the control groups of a state directory for each hierarchy that has any."""
    mark = f"cellfork-k{(path / 'id').read_text()}-"
    for directory, names, _files in os.walk("/sys/fs/cgroup"):
        found = [name for name in names if name.startswith(mark)]
        if found:
            yield directory, found


def kill_something_else(history: History) -> None:
    """Kill the init of a sandbox, or rarely a zygote with everything in it, while there is no server."""
    known = history.chance.choice([*history.live.values(), None])
    if known is not None and history.chance.random() < 0.8:
        if known.pid is not None:
            known.doomed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(known.pid, signal.SIGKILL)
        return
    for note in (history.path / "zygotes").glob("*.json"):
        pid = json.loads(note.read_text())["pid"]
        with contextlib.suppress(OSError):
            if "zygote" in Path(f"/proc/{pid}/comm").read_text():
                os.kill(pid, signal.SIGKILL)
                for each in history.live.values():
                    each.doomed = True


async def campaign(
    path: Path, kills: int, seed: int, clients: int, kind: type[Server] = EngineServer
) -> History:
    """Kill a server ``kills`` times."""
    history = History(path, random.Random(seed))
    while history.kills < kills:
        began = time.monotonic()
        server = await kind.start(path)
        try:
            if history.chance.random() < 0.2:
                await asyncio.sleep(history.chance.uniform(0, 0.8))  # it adopts, or has just done so
            else:
                await history.compare(server, began)
                history.look_for_orphans()
                if len(history.live) < 2 and history.chance.random() < 0.8:
                    await history.create(server)  # on a busy machine none would ever be there in time
                workers = [asyncio.create_task(history.work(server)) for _ in range(clients)]
                await history.wait_a_while()
                await server.kill()
                done, waiting = await asyncio.wait(workers, timeout=PARTING_SECONDS)
                history.check(not waiting, f"{len(waiting)} clients wait for a server that is gone")
                for worker in done:
                    history.check(worker.exception() is None, f"a client failed: {worker.exception()!r}")
        finally:
            await server.kill()
        history.kills += 1
        if history.kills % 20 == 0:
            print(f"{history.kills} kills, {history.answers} answers, {len(history.wrong)} wrong", flush=True)
        if history.live and history.chance.random() < 0.05:
            kill_something_else(history)
    await finish(history, await kind.start(path))
    return history


async def finish(history: History, server: Server) -> None:
    """Let a last server end everything; see that nothing is left."""
    await history.compare(server, time.monotonic())
    await server.end()
    await server.kill()
    history.live.clear()
    for hierarchy, names in groups_of(history.path):
        history.check(False, f"control groups are left in {hierarchy}: {names}")
    for kind in ("forks", "zygotes"):
        left = names_in(history.path / kind)
        history.check(not left, f"{kind} are left: {left}")


def main() -> int:
    """Run the campaign; return 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the choices; printed, drawn where none is given"
    )
    parser.add_argument(
        "--http", action="store_true", help="kill `cellfork serve`, whose clients come over HTTP"
    )
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    path = Path(tempfile.mkdtemp(prefix="cellfork-crashes-")) / "state"
    began = time.monotonic()
    try:
        kind = HttpServer if options.http else EngineServer
        history = asyncio.run(campaign(path, options.kills, seed, options.clients, kind))
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)
    print(
        f"{history.kills} kills in {time.monotonic() - began:.0f} s: {history.answers} answers, {history.adopted} adoptions, "
        f"{history.lost} sandboxes lost on purpose, slowest start {history.slowest:.2f} s, {len(history.wrong)} wrong"
    )
    return int(bool(history.wrong))


if __name__ == "__main__":
    sys.exit(main())
