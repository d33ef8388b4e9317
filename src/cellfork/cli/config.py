"""``cellfork config``: which settings hold, and where each comes from."""

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import rich_click as click

from cellfork.cli.exits import HELP, Exit

SECRET = "(set)"  # noqa: S105 - stands for one


@click.group("config", epilog=HELP)
def command() -> None:
    """Look at the settings of the server."""


@command.command("show", epilog=HELP)
@click.option("--json", "as_json", is_flag=True, help="Print the settings as one JSON object.")
def show(*, as_json: bool) -> int:
    """Tell every setting that holds here, and where it comes from; keys are not shown."""
    from cellfork.server.settings import OPTIONS, load

    settings, sources = load()
    told = {
        name: {"value": _told(getattr(settings, name), secret=option.secret), "from": sources[name]}
        for name, option in OPTIONS.items()
    }
    if as_json:
        print(json.dumps(told, indent=1))
        return Exit.OK
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("setting", "value", "from"):
        table.add_column(title)
    for name, item in told.items():
        value = item["value"] if isinstance(item["value"], str) else json.dumps(item["value"])
        style = "dim" if item["from"] == "default" else ""
        table.add_row(Text(name), Text(value), Text(item["from"]), style=style)
    Console(highlight=False).print(table)
    return Exit.OK


def _told(value: Any, *, secret: bool) -> Any:
    """Return a value as JSON has it; of a secret only whether there is one."""
    if secret:
        return SECRET if value else None
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _told(item, secret=False) for key, item in asdict(value).items()}
    if isinstance(value, tuple):
        return [_told(item, secret=False) for item in value]
    if hasattr(value, "items"):
        return {key: _told(item, secret=False) for key, item in value.items()}
    return value
