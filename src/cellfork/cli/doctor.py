"""``cellfork doctor``: what this machine has, what it lacks, what that costs and how to get it."""

import json
from typing import TYPE_CHECKING

import rich_click as click

from cellfork.cli.exits import HELP, Exit

if TYPE_CHECKING:
    from cellfork.cli.findings import Diagnosis


@click.command("doctor", epilog=HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
@click.option(
    "--fresh", is_flag=True, help="Hit every limit again, also where that was done since the machine started."
)
def command(*, as_json: bool, fresh: bool) -> int:
    """Check whether sandboxes can be isolated here, and say what is missing and how to get it.

    Every limit is hit: the list tells how, and what answered.  Ends with 0 when the default isolation works, with 5 otherwise.
    """
    import asyncio

    from cellfork.cli.findings import diagnose

    diagnosis = asyncio.run(diagnose(fresh=fresh))
    if as_json:
        print(json.dumps(diagnosis.to_dict(), indent=1))
    else:
        _print(diagnosis)
    return Exit.OK if diagnosis.available else Exit.UNAVAILABLE


def _print(diagnosis: "Diagnosis") -> None:
    """Print one line for each finding, and below it, where something is missing, why it matters and the remedy."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    marks = {"present": ("✓", "green"), "missing": ("✗", "red"), "absent": ("–", "yellow")}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    area = ""
    for finding in diagnosis.findings:
        if finding.area != area:
            area = finding.area
            table.add_row("", Text(area, style="bold"), "")
        mark, colour = marks[finding.state]
        table.add_row(Text(mark, style=colour), Text(finding.name), Text(finding.detail))
        for label, text in (("costs", finding.cost), ("fix", finding.fix)):
            if text:
                table.add_row("", Text(label, style="dim"), Text(text, style="dim"))
    console = Console(highlight=False)
    console.print(table)
    verdict = "works here" if diagnosis.available else "does not work here"
    console.print(f"\nThe default isolation ({diagnosis.isolation}) {verdict}.")
