"""Host names in one canonical form, and the rules that allow them.

There is one canonicaliser, for policies and for what a sandbox asks for: two that disagree are a hole.
"""

import re
from dataclasses import dataclass

PACKAGES = "packages"
"""The entry of a policy that stands for the package indexes which this machine is configured to use."""
MAX_NAME = 253
WEB_PORTS = (80, 443)

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


class BadHost(ValueError):
    """The text is not a host name that has one meaning everywhere."""


def canonical_name(text: str) -> str:
    """Return a DNS name in lower case, without its trailing dot, in ASCII.

    Raises :class:`BadHost` for everything that two programs might read in two ways: control characters, spaces,
    letters that IDNA maps to others, labels that are empty or too long, underscores, and all forms of addresses.
    """
    name = (text if text.isascii() else _to_ascii(text)).lower().removesuffix(".")
    if not name or len(name) > MAX_NAME:
        raise BadHost("a host name has 1 to 253 characters")
    if is_address_like(name):
        raise BadHost("this is an address, not a name")
    for label in name.split("."):
        if _LABEL.fullmatch(label) is None:
            raise BadHost("a host name consists of letters, digits, hyphens and dots")
        if label.startswith("xn--"):
            _check_punycode(label)
    return name


def is_address_like(text: str) -> bool:
    """Tell whether some program would read ``text`` as an IP address: brackets, colons, a number as last label."""
    last = text.lower().removesuffix(".").rpartition(".")[2]
    return text.startswith("[") or ":" in text or "%" in text or _NUMBER.fullmatch(last) is not None


def canonical_port(text: str) -> int:
    """Return the number of a port: decimal digits, no sign, no leading zero, 1 to 65535; else :class:`BadHost`."""
    if _PORT.fullmatch(text) is None or int(text) > 65535:
        raise BadHost("a port is a number from 1 to 65535")
    return int(text)


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of an allow-list: a name or all names below one, and the port where the entry names it."""

    name: str
    below: bool = False
    port: int | None = None

    @classmethod
    def parse(cls, entry: str) -> "HostRule":
        """Return the rule for ``example.com``, ``*.example.com`` or either with ``:port``; else :class:`BadHost`."""
        if "/" in entry or "@" in entry:
            raise BadHost("write the host alone, without scheme, user or path")
        host, colon, port = entry.partition(":")
        below = host.startswith("*.")
        name = canonical_name(host[2:] if below else host)
        if below and "." not in name:
            raise BadHost("a wildcard needs a domain of two labels or more, such as '*.example.com'")
        return cls(name, below, canonical_port(port) if colon else None)

    def matches(self, name: str, port: int) -> bool:
        """Tell whether a canonical name and a port are meant; ``*.example.com`` does not mean ``example.com``."""
        named = name.endswith("." + self.name) if self.below else name == self.name
        return named and (port == self.port if self.port is not None else port in WEB_PORTS)

    def __str__(self) -> str:
        """Return the entry in its canonical form."""
        return ("*." if self.below else "") + self.name + (f":{self.port}" if self.port is not None else "")


def _to_ascii(text: str) -> str:
    """Return the ASCII form of an international name, if it stands for exactly this name and no other."""
    try:
        name = text.encode("idna").decode("ascii")
        back = name.encode("ascii").decode("idna")
    except UnicodeError as error:
        raise BadHost("the name cannot be written in ASCII (IDNA)") from error
    looks_alike = any(
        letter.lower().isascii() for letter in text if not letter.isascii()
    )  # the Kelvin sign is a "k"
    if looks_alike or back != text.lower():
        raise BadHost("the name changes on its way through IDNA; write its 'xn--' form")
    return name


def _check_punycode(label: str) -> None:
    try:
        label[4:].encode("ascii").decode("punycode")
    except UnicodeError as error:
        raise BadHost("a label that begins with 'xn--' is not punycode") from error
