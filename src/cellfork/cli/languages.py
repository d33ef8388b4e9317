"""``cellfork languages``: which languages are ready in a sandbox, which are missing, and how those get installed."""

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import rich_click as click

from cellfork.cli.exits import HELP, Exit
from cellfork.model.languages import JUPYTER, KNOWN, Language

if TYPE_CHECKING:
    from cellfork.client import AsyncSandbox

SECONDS = 20.0
"""How long a program may take to tell its version."""
_VERSION = re.compile(r"\d+(\.\d+)+")


@dataclass(frozen=True, slots=True)
class Row:
    """One language: whether it is ready, in which version; ``install`` is the one command that brings what is missing."""

    name: str
    aliases: tuple[str, ...]
    ready: bool
    version: str
    install: str


@click.command("languages", epilog=HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each language, in a list.")
@click.option(
    "--isolation", default="namespaces", show_default=True, help="The runtime of the sandbox that is asked."
)
@click.option(
    "--install", "wanted", type=click.Choice(["go"]), help="Build what cellfork brings for a language."
)
def command(*, as_json: bool, isolation: str, wanted: str | None) -> int:
    """Ask a sandbox which languages it speaks, and tell how to install the others.

    Besides the languages that cellfork knows, every installed Jupyter kernel is one.
    """
    if wanted is not None:
        from cellfork.cli import go_driver

        print(go_driver.build())
        return Exit.OK
    import asyncio

    rows = asyncio.run(_ask(isolation))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        _print(rows)
    return Exit.OK


async def _ask(isolation: str) -> list[Row]:
    from cellfork.client import AsyncSandbox

    async with await AsyncSandbox.create(isolation=isolation) as sandbox:
        ready = await sandbox.list_languages()
        known = [await _row(sandbox, language, ready) for language in KNOWN.values()]
    return known + [Row(name, (), ready=True, version="", install="") for name in ready if name not in KNOWN]


async def _row(sandbox: "AsyncSandbox", language: Language, ready: list[str]) -> Row:
    if language.name not in ready:
        return Row(language.name, language.aliases, ready=False, version="", install=language.remedy)
    version = await _version(sandbox, language)
    return Row(language.name, language.aliases, ready=True, version=version, install="")


async def _version(sandbox: "AsyncSandbox", language: Language) -> str:
    """Return the first version number in what the language's program says, nothing where there is none."""
    from cellfork.model.errors import CellforkError

    try:
        said = await sandbox.commands.run(" ".join((language.program, *language.version)), timeout=SECONDS)
    except CellforkError:
        return ""
    number = _VERSION.search(said.stdout + said.stderr)
    return number[0][:40] if number else ""


def _print(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for row in rows:
        mark = Text("✓", style="green") if row.ready else Text("✗", style="yellow")
        detail = row.version if row.ready else f"missing; install it with: {row.install}"
        table.add_row(mark, Text(row.name), Text(", ".join(row.aliases), style="dim"), Text(detail))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(f'\nEvery installed Jupyter kernel is a language too: language="{JUPYTER}NAME".')
