"""What a sandbox asks for: a host, by name or address, and a port."""

from dataclasses import dataclass

from cellfork.model.hosts import BadHost, canonical_name, canonical_port
from cellfork.runtimes.egress.addresses import Address, parse_address


@dataclass(frozen=True, slots=True)
class Target:
    """A host and a port, canonical.  ``address`` is ``None`` where the host is a name."""

    host: str
    port: int
    address: Address | None = None

    @property
    def authority(self) -> str:
        """The host and the port as a Host header has them for plain HTTP."""
        return self.bracketed if self.port == 80 else f"{self.bracketed}:{self.port}"

    @property
    def bracketed(self) -> str:
        """The host, an IPv6 address in brackets."""
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_target(text: str, default_port: int | None = None) -> Target:
    """Return the target that ``host:port`` names; raises :class:`BadHost`.

    Without ``default_port`` the port must be there.
    """
    if not text.isascii():
        raise BadHost("a host name is ASCII here; write its 'xn--' form")
    host, port = _split(text)
    if port is None and default_port is None:
        raise BadHost("a port is missing")
    number = default_port if port is None else canonical_port(port)
    address = parse_address(host)
    if address is not None:
        return Target(str(address), number or 0, address)
    return Target(canonical_name(host), number or 0)


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadHost("brackets hold an IPv6 address")
        return host + bracket, rest[1:] if rest else None
    host, colon, port = text.partition(":")
    return host, port if colon else None
