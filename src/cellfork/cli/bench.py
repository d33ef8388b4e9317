"""``cellfork bench``: the command line of it.  What it does is in :mod:`cellfork.cli.benchmarks`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from cellfork.cli.exits import HELP, Exit

if TYPE_CHECKING:
    from cellfork.cli.benchmarks.rows import Config
    from cellfork.cli.benchmarks.stats import Row

NAMES = (
    "create", "create_cold", "pool", "posture", "execute", "first_line", "memory", "figure", "sustained", "burst", "lines",
    "bash_start", "bash_execute", "javascript_start", "javascript_execute", "r_start", "r_execute", "java_start",
    "java_execute", "go_start", "go_execute",
)  # fmt: skip
HTTP_NAMES = (
    "http_execute", "http_code", "http_command", "http_exec", "http_sdk_execute", "http_create", "http_sdk_create", "http_first_line", "http_lines", "http_rate_1",
    "http_rate_8", "http_rate_32", "http_idle",
)  # fmt: skip


@click.command("bench", epilog=HELP)
@click.option(
    "--against", type=click.Choice(["jupyter"]), help="Measure this peer too, in turns with cellfork."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the machine and all rows.")
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Print a Markdown table, as in SPECIFICATION.md."
)
@click.option("--http", "over_http", is_flag=True, help="Measure a server instead, as clients see it.")
@click.option("--rows", metavar="NAME,…", help=f"Measure only these: {', '.join((*NAMES, *HTTP_NAMES))}.")
@click.option(
    "--samples",
    default=200,
    show_default=True,
    type=click.IntRange(min=1),
    help="Samples of each row; fewer where one takes seconds.",
)
@click.option("--quick", is_flag=True, help="A few samples of each, in about a minute: to see that it works.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the JSON object to FILE as well.",
)
def command(
    against: str | None,
    *,
    as_json: bool,
    as_markdown: bool,
    over_http: bool,
    rows: str | None,
    samples: int,
    quick: bool,
    output: Path | None,
) -> int:
    """Measure cellfork on this machine, next to Jupyter if asked, and compare with the goals.

    Goals that are missed are named; they do not change the exit code.
    """
    import asyncio

    from cellfork.cli.benchmarks import machine, peers, report
    from cellfork.cli.benchmarks.rows import Config

    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    names = _names(rows, HTTP_NAMES if over_http else NAMES)
    if against:
        peers.check_installed()
    config = Config(5 if quick else samples, against == "jupyter", 6.0 if quick else 60.0)
    described = machine.describe()
    measured = asyncio.run(_measure(names, config))
    whole = report.as_json(measured, described)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(whole))
    elif as_markdown:
        print(report.as_markdown(whole["rows"]), end="")
    else:
        print("\n\n".join(map(report.as_text, measured)))
    return Exit.OK


def _names(rows: str | None, by_default: tuple[str, ...]) -> tuple[str, ...]:
    if rows is None:
        return by_default
    known = (*NAMES, *HTTP_NAMES)
    names = tuple(name.strip() for name in rows.split(",") if name.strip())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise click.UsageError(
            f"--rows: {', '.join(unknown) or 'nothing'} is no row; known: {', '.join(known)}"
        )
    return names


async def _measure(names: tuple[str, ...], config: "Config") -> list["Row"]:
    from cellfork.cli.benchmarks import http, languages
    from cellfork.cli.benchmarks.rows import ROWS
    from cellfork.model.errors import Unsupported

    rows = {**ROWS, **languages.ROWS, **http.ROWS}
    measured = []
    for name in names:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        try:
            measured.append(await rows[name](config))
        except Unsupported as error:  # a language or a package that this machine lacks
            print(f"left out: {error}", file=sys.stderr, flush=True)
    return measured
