"""``cellfork cert``: a certificate for a wildcard domain of one's own, to try sandboxes' host names over TLS."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from cellfork.cli.exits import HELP, Exit

if TYPE_CHECKING:
    from cellfork.server.certificates import Certificate

DIRECTORY = Path("cellfork-tls")


@click.command("cert", epilog=HELP)
@click.argument("domains", metavar="DOMAIN…", nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=DIRECTORY,
    show_default=True,
    help="Directory for ca.pem, cert.pem and key.pem.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the paths as one line of JSON.")
def command(*, domains: tuple[str, ...], out: Path, as_json: bool) -> int:
    """Make a certificate for each DOMAIN, every name below it and this machine, from a new local authority.

    The authority signs this one certificate and nothing else: its key is thrown away.
    """
    from cellfork.server.certificates import check_domains, make_certificate

    made = make_certificate(domains, out.absolute())
    if as_json:
        paths = {"ca": made.authority, "cert": made.certificate, "key": made.key}
        print(json.dumps({name: str(path) for name, path in paths.items()}))
    else:
        print(_advice(made, check_domains(domains)[0]))
    return Exit.OK


def _advice(made: "Certificate", domain: str) -> str:
    """Return what is to be done with it: on the server, on clients, in the names' own system."""
    authority = made.authority
    return f"""\
Serve:
  cellfork serve --port 8443 --domain {domain}:8443 --tls-cert {made.certificate} --tls-key {made.key}

Clients have to trust {authority}:
  export SSL_CERT_FILE={authority}            # Python's ssl and httpx
  export REQUESTS_CA_BUNDLE={authority}       # requests
  export CURL_CA_BUNDLE={authority}           # curl
  export NODE_EXTRA_CA_CERTS={authority}      # Node.js
  sudo cp {authority} /usr/local/share/ca-certificates/cellfork.crt && sudo update-ca-certificates   # everything else on Debian and Ubuntu

Every name below {domain} has to lead to the server: a wildcard record in the DNS (*.{domain}), or for names
that end in .localhost a resolver that knows them (systemd-resolved does, and so do browsers).
E2B's clients then need one variable and the key:
  export E2B_DOMAIN={domain}:8443"""
