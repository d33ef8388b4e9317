"""``cellfork env``: what a client's environment needs to reach the server."""

import re
import shlex
from typing import TYPE_CHECKING

import rich_click as click

from cellfork.cli.exits import HELP, Exit
from cellfork.model.errors import InvalidRequest

if TYPE_CHECKING:
    from cellfork.server.settings import Settings

CLIENTS = ("e2b", "cellfork")
ANY_KEY = "e2b_" + 40 * "0"
"""What clients send that insist on a key, to a server that asks for none."""
_KEY_OF_E2B = re.compile(r"e2b_[0-9a-f]+")


@click.command("env", epilog=HELP)
@click.option(
    "--for", "client", type=click.Choice(CLIENTS), default="e2b", show_default=True, help="Whose clients."
)
@click.option("--url", help="Address of the server.  [default: what the settings say]")
def command(*, client: str, url: str | None) -> int:
    """Print the exports that let a client reach the server: eval "$(cellfork env --for e2b)".

    The key is that of the settings (CELLFORK_API_KEY); a server keeps only a hash of the one that it made.
    """
    from cellfork.server.keys import given_keys
    from cellfork.server.serving import url as url_of
    from cellfork.server.settings import load

    settings = load().settings
    keys = given_keys(settings)
    if not keys and not settings.anonymous:
        raise InvalidRequest(
            "the key is not known here, as a server keeps only a hash of it; set CELLFORK_API_KEY to the key that "
            "`cellfork serve` printed at its first start"
        )
    print(exports(client, settings, url or url_of(settings), keys[0] if keys else ""))
    return Exit.OK


def exports(client: str, settings: "Settings", url: str, key: str | None) -> str:
    """Return lines for a shell.  ``key``: ``""`` where none is needed, ``None`` where it is not known here."""
    told = "$CELLFORK_API_KEY" if key is None else shlex.quote(key or ANY_KEY)
    if client == "cellfork":
        return f"export CELLFORK_URL={shlex.quote(url)} CELLFORK_API_KEY={told}"
    variables = [
        f"E2B_API_URL={shlex.quote(url)}",
        f"E2B_SANDBOX_URL={shlex.quote(url)}",
        f"E2B_API_KEY={told}",
    ]
    if settings.domain:
        variables.append(f"E2B_DOMAIN={shlex.quote(settings.domain)}")
    if key is not None and key and not _KEY_OF_E2B.fullmatch(key):
        variables.append("E2B_VALIDATE_API_KEY=false")
    return "export " + " ".join(variables)
