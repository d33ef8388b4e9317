"""Runs the fuzz targets: ``python -m tests.fuzz [--runs 1100000] [TARGET …]``.

Each target runs in a process of its own, coverage-guided where atheris is installed (``pip install atheris``; it has
wheels for x86_64), otherwise with the blind mutator of :mod:`tests.fuzz.mutations` (``--blind`` asks for that).  Inputs
that are found on the way are kept in a temporary directory and forgotten; one that fails is printed.
"""

import argparse
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random

LONG = 1_100_000
"""Inputs of a long run, all targets together."""
MOST_BYTES = 512
SLOW_SECONDS = 20
"""One input that takes longer has found something."""
MEMORY_MB = 2048
INSTRUMENTED = ("cellfork.wire", "cellfork.engine", "cellfork.render", "cellfork.runtimes", "cellfork.model")
_DONE = re.compile(r"^#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)/\S+.*?rss: (\d+)Mb", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for, one target after the other; print a table; return how many failed."""
    options = _parse(arguments)
    if options.child:
        run_here(options.child, options.runs, options.seed, blind=options.blind)
        return 0
    from tests.fuzz.targets import TARGETS

    wanted = [target for target in TARGETS if target.name in options.targets or not options.targets]
    share = sum(target.share for target in wanted)
    print(
        f"{'target':12} {'inputs':>9} {'per s':>7} {'edges':>6} {'features':>8} {'kept':>5} {'MiB':>5}",
        flush=True,
    )
    total = failed = 0
    for target in wanted:
        done, line = run_apart(target.name, -(-options.runs * target.share // share), options)
        print(line, flush=True)
        total += done
        failed += not done
    print(f"{'together':12} {total:9,}")
    return failed


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Run the fuzz targets.")
    parser.add_argument("targets", nargs="*", help="names of targets; all without")
    parser.add_argument("--runs", type=int, default=LONG, help="inputs, all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="for the choice of inputs")
    parser.add_argument(
        "--blind", action="store_true", help="do not look at coverage, even where atheris is installed"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.blind = options.blind or importlib.util.find_spec("atheris") is None
    return options


def run_apart(name: str, runs: int, options: argparse.Namespace) -> tuple[int, str]:
    """Run one target in a process of its own; return how many inputs it took (0: it failed) and a line that says so."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--child",
        name,
        "--runs",
        str(runs),
        "--seed",
        str(options.seed),
    ]
    if options.blind:
        command.append("--blind")
    start = time.monotonic()
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    speed = runs / (time.monotonic() - start)
    if ended.returncode != 0:
        told = "\n".join(
            line for line in ended.stderr.splitlines() if not line.startswith(("#", "INFO", "WARNING"))
        )
        return 0, f"{name:12} FAILED\n{ended.stdout[-4000:]}\n{told[-4000:]}"
    found = _DONE.search(ended.stderr)
    if found is None:
        return runs, f"{name:12} {runs:9,} {speed:7,.0f}  (blind)"
    done, edges, features, kept, memory = map(int, found.groups())
    return done, f"{name:12} {done:9,} {speed:7,.0f} {edges:6,} {features:8,} {kept:5,} {memory:5,}"


def run_here(name: str, runs: int, seed: int, *, blind: bool) -> None:
    """Run one target in this process; an input that fails ends it."""
    if blind:
        _run_blind(name, runs, seed)
        return
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from tests.fuzz.targets import TARGETS
    (target,) = [target for target in TARGETS if target.name == name]
    with _corpus(target.seeds()) as directory:
        limits = [f"-max_len={MOST_BYTES}", f"-timeout={SLOW_SECONDS}", f"-rss_limit_mb={MEMORY_MB}"]
        places = [f"-artifact_prefix={directory}/", str(directory / "corpus")]
        counts = [f"-runs={runs}", f"-seed={seed % 2**31 or 1}", "-print_final_stats=0", "-verbosity=1"]
        atheris.Setup([sys.argv[0], *limits, *counts, *places], _shown(target.run))
        atheris.Fuzz()


def _run_blind(name: str, runs: int, seed: int) -> None:
    from tests.fuzz.mutations import mutations
    from tests.fuzz.targets import TARGETS

    (target,) = [target for target in TARGETS if target.name == name]
    run = _shown(target.run)
    for data in islice(mutations(target.seeds(), Random(seed)), runs):
        run(data)


def _shown(run):
    """Return ``run`` so that it prints the input for which it fails."""

    def shown(data: bytes) -> None:
        try:
            run(data)
        except BaseException:
            print(f"fails for bytes.fromhex({data.hex()!r})", flush=True)
            raise

    return shown


@contextlib.contextmanager
def _corpus(seeds: list[bytes]) -> Iterator[Path]:
    """Put the seeds where libFuzzer finds them, and forget everything that it adds.

    It ends the process itself, so that the directory is removed by a child that waits for that.
    """
    directory = Path(tempfile.mkdtemp(prefix="cf-fuzz-"))
    (directory / "corpus").mkdir()
    for number, seed in enumerate(seeds):
        (directory / "corpus" / f"seed-{number}").write_bytes(seed)
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        os.read(read, 1)
        os.execvp("rm", ["rm", "-rf", "--", str(directory)])
    os.close(read)
    os.set_inheritable(write, False)
    yield directory


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
