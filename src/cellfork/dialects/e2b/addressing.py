"""Which port of which sandbox a request is for: by routing headers, by host name, by the signature of a file's address."""

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from cellfork.dialects.asgi import Scope
from cellfork.dialects.e2b.notes import notes_of
from cellfork.dialects.keeping import is_token
from cellfork.engine.sandbox import Sandbox

ENVD_PORT: Final = 49983
CODE_PORT: Final = 49999

ID_HEADER: Final = b"e2b-sandbox-id"
PORT_HEADER: Final = b"e2b-sandbox-port"
TRAFFIC_HEADER: Final = b"e2b-traffic-access-token"
HIDDEN: Final = frozenset({ID_HEADER, PORT_HEADER, TRAFFIC_HEADER})
"""What programs inside are not told: how their sandbox was found, and the token that let the request in."""

LOCAL_DOMAIN = "localhost"
"""A domain that every machine resolves to itself (RFC 6761), so its names always work."""
MOST_ID = 128
MOST_PARAMETERS = 16


class Address(NamedTuple):
    """A port of a sandbox."""

    sandbox: str
    port: int


class BadAddress(ValueError):
    """The request says that it is for a sandbox, and not rightly which; the message is upstream's."""


class Addressing:
    """Reads addresses.  ``domain`` is the server's wildcard domain, with or without a port."""

    def __init__(self, domain: str | None) -> None:
        domains = {LOCAL_DOMAIN, *([_name(domain)] if domain else [])}
        self._suffixes = tuple(f".{name}" for name in sorted(domains, key=len, reverse=True))

    def owns(self, scope: Scope) -> bool:
        """Tell whether a request says that it is for a sandbox.  Cheap."""
        names = {name for name, _value in scope["headers"]}
        return ID_HEADER in names or PORT_HEADER in names or self._host_label(scope) is not None

    def address_of(self, scope: Scope) -> Address | None:
        """Return what a request is for, ``None`` where it does not say.  Raises :class:`BadAddress`.

        A host name of a sandbox is stronger than headers: a page that is served from one must not reach another
        by adding a header.  E2B's SDKs send both, and the same.
        """
        label = self._host_label(scope)
        if label is not None:
            port, id = label
            return Address(_id(id), _port(port))
        found = {name: value for name, value in scope["headers"] if name in {ID_HEADER, PORT_HEADER}}
        if not found:
            return None
        if len(found) < 2:
            raise BadAddress("missing header")
        return Address(_id(found[ID_HEADER].decode("latin-1")), _port(found[PORT_HEADER].decode("latin-1")))

    def _host_label(self, scope: Scope) -> tuple[str, str] | None:
        """Return port and id of ``{port}-{id}.{domain}``, which old clients write ``{port}-{id}-{client}.{domain}``."""
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        if b"-" not in host:
            return None
        name = _name(host.decode("latin-1"))
        suffix = next((one for one in self._suffixes if name.endswith(one)), None)
        if suffix is None:
            return None
        port, dash, rest = name.removesuffix(suffix).partition("-")
        if not dash or not port.isdecimal() or "." in rest:
            return None
        return port, rest.partition("-")[0]


def signed_for(scope: Scope, sandboxes: Iterable[Sandbox]) -> Address | None:
    """Return the sandbox whose token made the signature of a bare ``/files`` address, ``None`` where there is none.

    Such addresses are made by clients that know one URL for all sandboxes, and fetched by programs that know
    nothing else.  Every token is tried, so time tells nothing about which one fits.
    """
    operation = {"GET": "read", "HEAD": "read", "POST": "write"}.get(scope.get("method", ""))
    if scope["path"] != "/files" or operation is None:
        return None
    query = _query(scope["query_string"])
    signature = query.get("signature", "")
    if not signature:
        return None
    before = f"{query.get('path', '')}:{operation}:{query.get('username', '')}:"
    expiration = query.get("signature_expiration", "")
    after = f":{expiration}" if expiration else ""
    found = None
    for sandbox in sandboxes:
        notes = notes_of(sandbox)
        if notes is not None and notes.envd_token is not None:
            made = sign(f"{before}{notes.envd_token}{after}")
            if is_token(made, signature):
                found = sandbox
    return None if found is None else Address(found.id, ENVD_PORT)


def sign(text: str) -> str:
    """Return the signature of ``path:operation:user:token[:expiration]``, as E2B's SDKs make it."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return "v1_" + b64encode(digest).decode("ascii").rstrip("=")


def _query(query: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError:
        return {}
    return dict(pairs)


def _name(host: str) -> str:
    return host.strip().lower().partition(":")[0].removesuffix(".")


def _id(text: str) -> str:
    id = text.partition("-")[0]
    if not (id.isascii() and id.isalnum() and id == id.lower()) or len(id) > MOST_ID:
        raise BadAddress("Invalid sandbox ID")
    return id


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise BadAddress("Invalid sandbox port")
    return int(text)
