"""``cellfork execd``: one sandbox as a plain execd, the API that OpenSandbox has inside each of its sandboxes."""

import json
import secrets
from collections.abc import Callable
from typing import Any, Final

import rich_click as click

from cellfork.cli.exits import HELP, Exit
from cellfork.cli.serve import EXTRA
from cellfork.model.errors import InvalidRequest, Unsupported

PORT: Final = 44772


@click.command("execd", epilog=HELP)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on."
)
@click.option(
    "--port",
    default=PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 lets the system choose.",
)
@click.option(
    "--access-token",
    envvar="EXECD_ACCESS_TOKEN",
    metavar="TOKEN",
    help="What X-EXECD-ACCESS-TOKEN has to say. Without it one is made and printed. [env: EXECD_ACCESS_TOKEN]",
)
@click.option(
    "--anonymous",
    is_flag=True,
    help="Let anybody on this machine call without a token; only on a loopback address.",
)
@click.option(
    "--template", default="default", show_default=True, metavar="NAME", help="What the sandbox starts from."
)
@click.option(
    "--limits",
    metavar="NAME=VALUE,…",
    help="Limits of the sandbox, such as memory=1G,cpu=2,pids=256,disk=2G.",
)
@click.option("--internet", metavar="none|packages|public", help="What the sandbox may reach.")
@click.option("--isolation", metavar="NAME", help="'none' runs code unprotected, only on a loopback address.")
@click.option("--json", "as_json", is_flag=True, help="Print what clients need as one line of JSON.")
def command(*, access_token: str | None, anonymous: bool, template: str, as_json: bool, **flags: Any) -> int:
    """Serve one sandbox as execd: /code, /command, /files and the rest, on a port of its own.

    The sandbox is made at the start and ends with this process. What a flag does not say is read from the environment
    and the files that `cellfork serve` reads, but for address and port.
    """
    try:
        from cellfork.server.execd import ExecdServer
        from cellfork.server.serving import run
        from cellfork.server.settings import load
    except ImportError as error:
        raise Unsupported(f"{EXTRA} ({error})") from error
    if anonymous and access_token:
        raise InvalidRequest("give an access token or --anonymous, not both")
    token = None if anonymous else access_token or secrets.token_hex(20)
    settings = load({name: value for name, value in flags.items() if value is not None}).settings
    made = token if not access_token else None
    run(ExecdServer(settings, token, template), _printer(made, settings.isolation, as_json=as_json))
    return Exit.OK


def _printer(made: str | None, isolation: str, *, as_json: bool) -> Callable[[str], None]:
    """Return what tells, once the server listens, how clients reach it; a token that was made is told this once."""

    def tell(url: str) -> None:
        if as_json:
            port = int(url.rsplit(":", 1)[1])
            told = {"url": url, "port": port, "access_token": made, "isolation": isolation}
            print(json.dumps(told), flush=True)
            return
        print(f"execd of one sandbox on {url}")
        if made is not None:
            print(f"\naccess token, shown this once: {made}")
        print(flush=True)

    return tell
