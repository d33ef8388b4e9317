"""Kill what does not want to be killed, many times, and look on the host for what is left.

Each round makes a sandbox, starts a context with one adversary and ends the context (by a timeout that has to go as
far as the kernel, by a restart, or by removing it); then it starts another adversary, as a cell or in bash, and
kills the sandbox.  The time is that from the call (of a timeout: from the step that ends the kernel) to the first look that finds nothing.  What looks is independent
of what kills: it goes through /proc for the sandbox's pid namespace, and reads its control groups.
"""

import argparse
import asyncio
import datetime as dt
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from cellfork.cli.benchmarks import machine, stats  # noqa: E402 - the path is set first
from cellfork.engine.engine import Engine  # noqa: E402
from cellfork.engine.runtimes import LazyRuntimes  # noqa: E402
from cellfork.engine.sandbox import Sandbox  # noqa: E402
from cellfork.engine.settings import Settings  # noqa: E402
from cellfork.model import events  # noqa: E402
from cellfork.model.errors import CellforkError  # noqa: E402
from cellfork.model.limits import Limits  # noqa: E402
from cellfork.model.specs import ContextSpec, ExecSpec, ExecuteRequest, SandboxSpec, Template  # noqa: E402
from tests.security.adversaries import ADVERSARIES  # noqa: E402

LIMITS = Limits(memory="256M", cpu=1.0, pids=40, disk="32M", inodes=2000)
GRACE = 1.0
"""Seconds for which each step of stopping waits; the default is longer, and only makes the campaign longer."""
PATIENCE = 10.0
"""Seconds after which something that is still there counts as a survivor."""
WAYS = ("timeout", "restart", "remove")
GOAL_P99, GOAL_MAX = 250.0, 1000.0


@dataclass
class Campaign:
    """What was found: milliseconds by kind of kill, and survivors as text."""

    times: dict[str, list[float]] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    escalated: int = 0
    """Contexts whose end took that of their sandbox, as a last step."""

    @property
    def count(self) -> int:
        """How many kills there were."""
        return sum(map(len, self.times.values()))

    def note(self, kind: str, started: float, left: list[str], what: str) -> None:
        """Note one kill, just finished."""
        self.times.setdefault(kind, []).append((time.monotonic() - started) * 1000)
        self.survivors += [f"{kind}, {what}: {line}" for line in left]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        kinds = {**self.times, "all": [value for values in self.times.values() for value in values]}
        return {
            "kills": self.count,
            "survivors": len(self.survivors),
            "contexts that took their sandbox along": self.escalated,
            "milliseconds": {name: _summary(values) for name, values in sorted(kinds.items())},
        }


def _summary(values: list[float]) -> dict[str, float]:
    summary = stats.summarise(values)
    found = {
        "count": summary.count,
        "p50": summary.p50,
        "p95": summary.p95,
        "p99": summary.p99,
        "max": max(values),
    }
    return {name: round(value, 2) for name, value in found.items()}


async def run(count: int, seed: int, *, at_once: int = 2) -> Campaign:
    """Make ``count`` kills, half of them of contexts, half of sandboxes."""
    campaign = Campaign()
    engine = Engine(LazyRuntimes(), Settings(grace=GRACE))
    rounds = iter(range((count + 1) // 2))

    async def work() -> None:
        for number in rounds:
            await one_round(engine, campaign, random.Random(f"{seed}/{number}"), f"seed {seed}/{number}")

    try:
        await asyncio.gather(*(work() for _ in range(at_once)))
    finally:
        await engine.aclose()
    return campaign


async def one_round(engine: Engine, campaign: Campaign, chance: random.Random, name: str) -> None:
    """Make a sandbox, end a context in it, then the sandbox."""
    names = sorted(ADVERSARIES)
    first, second, way = chance.choice(names), chance.choice(names), chance.choice(WAYS)
    patience = chance.uniform(0.02, 0.3)
    spec = SandboxSpec(template=Template(preload=()), limits=LIMITS, timeout=120)
    sandbox = await engine.create(spec)
    namespace = namespace_of(sandbox)
    try:
        await end_context(sandbox, campaign, namespace, way, first, patience, name)
        await begin(sandbox, second, patience, shell=chance.random() < 0.2)
        await asyncio.sleep(chance.uniform(0, 0.05))
    finally:
        started = time.monotonic()
        await sandbox.kill()
        left = await vanish(namespace, keep=0)
        campaign.note("sandbox", started, left + groups_of(sandbox), f"{second}, {name}")


async def end_context(
    sandbox: Sandbox, campaign: Campaign, namespace: str, way: str, adversary: str, patience: float, name: str
) -> None:
    """Run an adversary in a context, end that, and look for anything but init (and a new kernel, after a restart)."""
    context = await sandbox.contexts.create(ContextSpec())
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" if way == "timeout" else ""
    endless = "\nwhile True: pass\n" if way == "timeout" else ""
    code = stubborn + ADVERSARIES[adversary] + endless
    running = sandbox.start(context, ExecuteRequest(code, timeout=patience))
    if way == "timeout":
        execution = await asyncio.wait_for(running.wait(), 60)
        since_terminate = (execution.accounting.wall_time or 0.0) - patience - GRACE
        started = time.monotonic() - max(0.0, since_terminate)
        if not took_the_kernel(execution.terminal):
            way = "remove"  # the interrupt came before the code could refuse it, or the code failed before
    else:
        await asyncio.sleep(patience)
    kept = 2 if way == "restart" else 1
    if way != "timeout":
        started = time.monotonic()
    if sandbox.state == "running" and way == "remove":
        sandbox.contexts.remove(context.id)
    elif sandbox.state == "running" and way == "restart":
        await sandbox.contexts.restart(context.id)
    if sandbox.state != "running":
        campaign.escalated += 1
        kept = 0
    left = await vanish(namespace, keep=kept)
    campaign.note(f"context, {way}", started, left, f"{adversary}, {name}")


def took_the_kernel(terminal: events.Terminal | None) -> bool:
    """Tell whether an execution ended with its kernel."""
    if isinstance(terminal, events.TimedOut):
        return terminal.step != "interrupt"
    return isinstance(terminal, events.Lost | events.Killed)


async def begin(sandbox: Sandbox, adversary: str, patience: float, *, shell: bool) -> None:
    """Start an adversary and let it be: as a cell, or below a command."""
    if sandbox.state != "running":
        return
    try:
        if shell:
            program = ("python3", "-c", ADVERSARIES[adversary])
            await sandbox.execs.create(ExecSpec(("setsid", *program)))
        else:
            sandbox.start(None, ExecuteRequest(ADVERSARIES[adversary], timeout=60))
    except CellforkError:
        return  # it may be as wild as to leave no room for a command
    await asyncio.sleep(patience)


async def vanish(namespace: str, *, keep: int) -> list[str]:
    """Wait until at most ``keep`` processes are left in a pid namespace; return those that stay for too long."""
    deadline = time.monotonic() + PATIENCE
    while len(left := list(processes_in(namespace))) > keep:
        if time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.001)
    return []


def namespace_of(sandbox: Sandbox) -> str:
    """Return the name of a sandbox's pid namespace."""
    return str(Path(f"/proc/{sandbox.guest.info['pid']}/ns/pid").readlink())


def processes_in(namespace: str) -> Iterator[str]:
    """Yield the processes of a pid namespace, as the host sees them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if str((entry / "ns/pid").readlink()) == namespace:
                    yield f"{entry.name} {(entry / 'comm').read_text().strip()}"
            except OSError:
                continue


def groups_of(sandbox: Sandbox) -> list[str]:
    """Return the control groups of a sandbox that are still there."""
    meter: Any = getattr(sandbox.guest, "_meter", None)
    group = getattr(meter, "_group", None)
    return [str(path.name) for path in group.directories if path.exists()] if group else []


def main() -> int:
    """Run the campaign, print and record it; return 1 where anything survived or a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="kills")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the choices; printed, drawn where none is given"
    )
    parser.add_argument("--record", action="store_true", help="write bench/results/kills-DATE.json")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    facts = machine.describe()
    started = time.monotonic()
    campaign = asyncio.run(run(options.count, seed))
    found = {"seed": seed, "seconds": round(time.monotonic() - started, 1), **campaign.to_dict()}
    print(json.dumps(found, indent=1, ensure_ascii=False))
    print("\n".join(campaign.survivors))
    if options.record:
        place = ROOT / "bench" / "results" / f"kills-{dt.datetime.now(dt.UTC):%Y-%m-%d}.json"
        place.write_text(json.dumps({"machine": facts, **found}, indent=1, ensure_ascii=False) + "\n")
    times = found["milliseconds"]["all"]
    return int(bool(campaign.survivors) or times["p99"] > GOAL_P99 or times["max"] > GOAL_MAX)


if __name__ == "__main__":
    sys.exit(main())
