"""The file API against racers inside: nothing outside is read or changed, nothing hangs.  The long form: ``make races``."""

import asyncio
import os
from pathlib import Path

from cellfork import Sandbox
from scripts import races
from tests.security.catalogue import row

SECONDS = 8.0


@row("C10", "zero escapes, whatever is exchanged between a look and its use")
@row("C09", "resolved inside, as the sandbox's user")
@row("C11", "resolved inside, as the sandbox's user")
@row("C12", "the host touches nothing itself")
@row("C13", "no hang")
def test_c10_races_against_every_operation():
    """Every file operation, many at a time, on names that racers exchange: canaries untouched, errors typed, all in time."""
    seed = int.from_bytes(os.urandom(4), "big")
    done = asyncio.run(races.race(1_000_000, seed, SECONDS))
    assert done.wrong == [], f"seed {seed}"
    assert done.number > 500
    succeeded = {name for name in done.outcomes if ":" not in name}
    assert succeeded == {operation.__name__.strip("_") for operation in races.OPERATIONS}, done.outcomes


def test_a_canary_that_is_read_is_seen(tmp_path: Path):
    """Without isolation the same link leads to the host's file, its secret is read, and the race says so."""
    canary = tmp_path / "canary"
    canary.write_bytes(b"a secret of the host")
    with Sandbox.create(isolation="none") as sandbox:
        sandbox.commands.run(f"ln -s {canary} ~/link")
        content = sandbox.files.read("link", "bytes")
    race = races.Race(None, [b"a secret of the host"], None)  # type: ignore[arg-type]  # it only looks
    race.see(content)
    assert race.wrong == ["a canary was read"]
