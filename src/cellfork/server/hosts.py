"""Which names the server answers to.

A page in a browser can give its own name the address 127.0.0.1 (DNS rebinding) and then talks to a server on
loopback as if it were its own.  What it cannot change is the Host header, so on loopback only known names are
answered.
"""

from collections.abc import Iterable

from cellfork.dialects.asgi import Scope
from cellfork.server.settings import Settings, is_loopback

REMEMBERED = 256
LOCAL = ("localhost", "*.localhost")
"""Names that resolve to loopback and to nothing else (RFC 6761)."""


class Hosts:
    """The Host headers that are answered.  ``names`` may have ``*.`` in front; ``*`` is any."""

    def __init__(self, names: Iterable[str], *, loopback: bool) -> None:
        self._names = frozenset(names)
        self._loopback = loopback
        self._known: set[bytes] = set()

    def answers(self, scope: Scope) -> bool:
        """Whether this request was meant for this server.  One Host header there must be, and only one."""
        found = [value for name, value in scope["headers"] if name == b"host"]
        if len(found) != 1:
            return False
        if found[0] in self._known:
            return True
        if not self._allows(host_name(found[0])):
            return False
        if len(self._known) < REMEMBERED:
            self._known.add(found[0])
        return True

    def _allows(self, name: str) -> bool:
        if not name:
            return False
        if "*" in self._names or name in self._names or (self._loopback and is_loopback(name)):
            return True
        return any(
            pattern.startswith("*.") and name.endswith(pattern[1:]) and len(name) >= len(pattern)
            for pattern in self._names
        )


def hosts_of(settings: Settings) -> Hosts:
    """Return the names that a server with these settings answers to."""
    names = list(settings.allowed_hosts)
    if settings.domain:
        domain = settings.domain.partition(":")[0]
        names += [domain, f"*.{domain}"]
    if settings.on_loopback:
        return Hosts([*names, *LOCAL], loopback=True)
    if settings.allowed_hosts:
        return Hosts([*names, *LOCAL, settings.host], loopback=True)
    return Hosts(["*"], loopback=True)


def host_name(value: bytes) -> str:
    """Return the name of a Host header without its port, in lower case; ``""`` where it is none."""
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        name, bracket, port = text.partition("]")
        if not bracket or (port and not port.startswith(":")):
            return ""
        name, port = name + bracket, port[1:]
    else:
        name, _, port = text.partition(":")
    if (port and not port.isdecimal()) or not name.isprintable() or set(name) & set(" /\\@?#,"):
        return ""
    return name.removesuffix(".")
