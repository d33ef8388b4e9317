"""``cellfork run``: the command line of it.  What it does is in :mod:`cellfork.cli.session`."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import rich_click as click

from cellfork.cli.exits import HELP
from cellfork.model.network import NetworkPolicy

Form = Literal["live", "json", "llm"]


@dataclass(frozen=True, slots=True)
class HostFile:
    """A host file or directory to copy, and where it goes in the sandbox."""

    source: Path
    destination: str


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Everything ``cellfork run`` was asked for.  ``limits`` holds only what was given."""

    source: str
    language: str
    form: Form = "live"
    save: Path | None = None
    timeout: float = 300.0
    limits: dict[str, Any] = field(default_factory=dict)
    envs: dict[str, str] = field(default_factory=dict)
    isolation: str = "namespaces"
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    files: tuple[HostFile, ...] = ()
    max_tokens: int = 4000
    interactive: bool = False
    """Somebody can answer ``input()``."""


@click.command("run", epilog=HELP)
@click.argument("file", required=False)
@click.option("-c", "code", metavar="CODE", help="Run CODE instead of a file.")
@click.option("-l", "--language", help="Language of the code.  [default: by the file's name, else python]")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: results, logs, error, accounting."
)
@click.option("--llm", "as_llm", is_flag=True, help="Print what a model should see, within --max-tokens.")
@click.option(
    "--max-tokens", default=4000, show_default=True, type=click.IntRange(min=1), help="Budget of --llm."
)
@click.option(
    "--save",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Save images, charts, HTML, data frames and the files that the code made to DIR.",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    default="300s",
    show_default=True,
    help="Time for all the code, such as 30s or 2m.",
)
@click.option("--memory", metavar="SIZE", help="Memory of the sandbox, such as 512M; 'none' for no limit.")
@click.option("--cpu", metavar="CORES", help="CPU time, in cores, such as 1.5; 'none' for no limit.")
@click.option("--pids", metavar="N", help="Processes and threads; 'none' for no limit.")
@click.option(
    "-e",
    "--env",
    "envs",
    metavar="K[=V]",
    multiple=True,
    help="Set K to V, or to what it is out here.  Repeatable.",
)
@click.option(
    "--file",
    "files",
    metavar="PATH[:DEST]",
    multiple=True,
    help="Copy PATH to /home/user, or to DEST, first.  Repeatable.",
)
@click.option(
    "--network",
    metavar="none|public|HOST,…",
    default="none",
    show_default=True,
    help="What the code may reach: hosts such as pypi.org, *.example.com or host:8443, 'packages' for the package "
    "indexes this machine uses, or any public host.",
)
@click.option(
    "--isolation",
    type=click.Choice(["namespaces", "none"]),
    default="namespaces",
    show_default=True,
    help="'none' runs the code unprotected: for code you trust.",
)
def command(
    file: str | None,
    code: str | None,
    language: str | None,
    *,
    as_json: bool,
    as_llm: bool,
    max_tokens: int,
    save: Path | None,
    timeout: str,
    memory: str | None,
    cpu: str | None,
    pids: str | None,
    envs: tuple[str, ...],
    files: tuple[str, ...],
    network: str,
    isolation: str,
) -> int:
    """Run code in a fresh sandbox and show what it prints, returns and raises.

    FILE is a script; "-" reads it from standard input. "# %%" lines cut it into cells, which run in order
    in one context until one fails.
    """
    from cellfork.cli.cells import language_of
    from cellfork.cli.session import run
    from cellfork.model.limits import parse_duration

    if as_json and as_llm:
        raise click.UsageError("--json and --llm exclude each other")
    request = RunRequest(
        source=_source(file, code),
        language=language or language_of(file or ""),
        form="json" if as_json else "llm" if as_llm else "live",
        save=save,
        timeout=parse_duration(timeout),
        limits=_limits(memory, cpu, pids),
        envs=dict(_env(item) for item in envs),
        isolation=isolation,
        network=_network(network),
        files=tuple(_host_file(item) for item in files),
        max_tokens=max_tokens,
        interactive=file != "-" and not (as_json or as_llm) and sys.stdin is not None and sys.stdin.isatty(),
    )
    return run(request)


def _source(file: str | None, code: str | None) -> str:
    """Return the code; exactly one of the two ways to give it must have been used."""
    if (file is None) == (code is None):
        raise click.UsageError("give either a FILE ('-' for standard input) or -c CODE")
    if code is not None:
        return code
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file or "").read_bytes()
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is not UTF-8 text (byte {error.start})") from error


def _limits(memory: str | None, cpu: str | None, pids: str | None) -> dict[str, Any]:
    """Return the limits that were given, as :class:`~cellfork.model.limits.Limits` wants them."""
    limits: dict[str, Any] = {}
    if memory is not None:
        limits["memory"] = None if memory == "none" else memory
    if cpu is not None:
        limits["cpu"] = None if cpu == "none" else _number(float, "--cpu", cpu)
    if pids is not None:
        limits["pids"] = None if pids == "none" else _number(int, "--pids", pids)
    return limits


def _network(text: str) -> NetworkPolicy:
    """Return the policy for a mode or for hosts with commas between them."""
    return NetworkPolicy.of(
        text if text in {"none", "public"} else [host.strip() for host in text.split(",")]
    )


def _number(kind: type[float], option: str, text: str) -> float:
    try:
        return kind(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {text!r} is not a number") from error


def _env(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not name:
        raise click.UsageError(f"-e {item!r}: a name is missing")
    if not equals and name not in os.environ:
        raise click.UsageError(f"-e {name}: not set in the environment")
    return name, value if equals else os.environ[name]


def _host_file(item: str) -> HostFile:
    """Split ``PATH[:DEST]``; a colon that belongs to an existing path stays with it."""
    path, colon, destination = item.rpartition(":")
    if not colon or Path(item).exists():
        path, destination = item, ""
    source = Path(path)
    if not source.exists():
        raise click.UsageError(f"--file: {path} does not exist")
    name = source.resolve().name
    if not destination or destination.endswith("/"):
        destination += name
    return HostFile(source, destination)
