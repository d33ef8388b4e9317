"""``cellfork serve``: the server, on this machine."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from cellfork.cli.exits import HELP, Exit
from cellfork.model.errors import Unsupported

if TYPE_CHECKING:
    from cellfork.server.app import App

EXTRA = "the server's packages are not installed; install them with: pip install 'cellfork[server]'"


class _SettingsCommand(click.RichCommand):
    """A command with one flag for each setting; the table of settings is read when the flags are asked for."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from cellfork.server.settings import OPTIONS, flag

        made = [
            click.Option(
                [f"{flag(name)}/--no-{name.replace('_', '-')}" if option.is_flag else flag(name), name],
                default=None,
                metavar=option.metavar or None,
                help=option.help,
            )
            for name, option in OPTIONS.items()
            if not option.only_files
        ]
        return [*made, *super().get_params(ctx)]


@click.command("serve", cls=_SettingsCommand, epilog=HELP)
@click.option("--json", "as_json", is_flag=True, help="Print what clients need as one line of JSON.")
def command(*, as_json: bool, **flags: Any) -> int:
    """Serve sandboxes over HTTP: one port, every dialect.

    A flag goes before the environment (CELLFORK_PORT), that before ./cellfork.toml, that before
    $XDG_CONFIG_HOME/cellfork/config.toml; `cellfork config show` tells what holds. SIGTERM lets running
    requests end.
    """
    try:
        from cellfork.server.app import create_app
        from cellfork.server.serving import run
        from cellfork.server.settings import load
    except ImportError as error:
        raise Unsupported(f"{EXTRA} ({error})") from error
    settings = load({name: value for name, value in flags.items() if value is not None}).settings
    app = create_app(settings)
    run(app, _printer(app, as_json=as_json))
    return Exit.OK


def _printer(app: "App", *, as_json: bool) -> Callable[[str], None]:
    """Return what tells, once the server listens, how clients reach it."""

    def tell(url: str) -> None:
        from cellfork.cli.env import exports

        made = app.keys.made
        if as_json:
            port = int(url.rsplit(":", 1)[1])
            told = {"url": url, "port": port, "api_key": made, "isolation": app.settings.isolation}
            print(json.dumps(told), flush=True)
            return
        print(f"cellfork serves on {url}")
        if made is not None:
            print(f"\nAPI key, shown this once: {made}")
        key = made or ("" if app.settings.anonymous else None)
        for name in ("e2b", "cellfork"):
            print(f"\n# clients of {name}")
            print(exports(name, app.settings, url, key))
        print(flush=True)

    return tell
