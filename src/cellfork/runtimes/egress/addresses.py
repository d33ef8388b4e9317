"""Addresses: every way to write one, and which of them a sandbox may never reach.

``ipaddress.is_global`` is not enough: it differs between versions of Python, knows nothing of addresses that carry others
inside, and calls some metadata services global.  Sources: the special-purpose registries of IANA (RFC 6890 and its
successors), the documentation of the large clouds.
"""

import re
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from cellfork.model.hosts import BadHost, is_address_like

Address = IPv4Address | IPv6Address

_PART = re.compile(r"0[xX](?P<hex>[0-9a-fA-F]+)|0(?P<octal>[0-7]*)|(?P<decimal>[1-9][0-9]*)")

REFUSED_V4 = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared (carrier-grade NAT)"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a metadata service"),
        ("169.254.0.0/16", "link-local or a metadata service"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "for documentation"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved or broadcast"),
    )
)

GLOBAL_V6 = IPv6Network("2000::/3")
"""What IANA has given out so far; everything else is private, local, multicast or not in use."""
REFUSED_V6 = tuple(
    (IPv6Network(network), reason)
    for network, reason in (
        ("2001::/23", "reserved (Teredo, benchmarks, ORCHID)"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "6to4"),
        ("3ffe::/16", "reserved"),
        ("3fff::/20", "for documentation"),
    )
)
NAT64 = IPv6Network("64:ff9b::/96")
CARRIERS = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96")))
"""IPv4-compatible, IPv4-mapped and IPv4-translated addresses: the last 32 bits are an IPv4 address."""

NEVER_V4 = tuple(
    map(IPv4Network, ("0.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"))
)
NEVER_V6 = tuple(map(IPv6Network, ("fe80::/10", "ff00::/8", "fd00:ec2::254/128", "fd20:ce::254/128")))
"""What not even a configured package index may be: metadata services, link-local, multicast."""


def parse_address(text: str) -> Address | None:
    """Return the address that ``text`` stands for, in any form that some program understands; ``None`` for a name.

    Decimal, octal, hexadecimal, one to four parts (``127.1``), IPv6 in brackets; an IPv4 address inside of an
    IPv6 one comes out as itself.  Raises :class:`BadHost` for what looks like an address and is none, and for zone ids.
    """
    if not is_address_like(text):
        return None
    if text.startswith("[") and text.endswith("]"):
        return _parse_v6(text[1:-1])
    return _parse_v4(text.removesuffix("."))


def refusal(address: Address) -> str | None:
    """Return why a sandbox may not reach ``address`` (a word or two), ``None`` where it may."""
    address = unwrapped(address)
    if isinstance(address, IPv4Address):
        return _reason(address, REFUSED_V4)
    if address in NAT64:
        return refusal(_carried(address))
    if address not in GLOBAL_V6:
        return "private, local or reserved"
    return _reason(address, REFUSED_V6) or _isatap_refusal(address)


def never(address: Address) -> bool:
    """Tell whether ``address`` is out of reach even for a package index that this machine is configured to use."""
    address = unwrapped(address)
    if isinstance(address, IPv4Address):
        return any(address in network for network in NEVER_V4)
    if address in NAT64:
        return never(_carried(address))
    return address.is_unspecified or any(address in network for network in NEVER_V6)


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address is just another way to write; else the address."""
    if isinstance(address, IPv6Address) and address not in (IPv6Address("::"), IPv6Address("::1")):
        for network in CARRIERS:
            if address in network:
                return _carried(address)
    return address


def is_own(address: Address) -> bool:
    """Tell whether ``address`` is one of this machine's: then a socket can be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
        return True


def _parse_v6(text: str) -> Address:
    if "%" in text:
        raise BadHost("addresses with a zone are not understood here")
    try:
        return unwrapped(IPv6Address(text))
    except ValueError as error:
        raise BadHost("this is not an address") from error


def _parse_v4(text: str) -> IPv4Address:
    parts = list(_numbers(text.split(".")))
    *heads, last = parts
    if len(parts) > 4 or any(part > 255 for part in heads) or last >= 256 ** (5 - len(parts)):
        raise BadHost("this is not an address")
    value = last
    for position, part in enumerate(heads):
        value += part << (24 - 8 * position)
    return IPv4Address(value)


def _numbers(parts: list[str]) -> Iterator[int]:
    for part in parts:
        match = _PART.fullmatch(part)
        if match is None or len(part) > 24:
            raise BadHost("this is not an address")
        if match["hex"] is not None:
            yield int(match["hex"], 16)
        elif match["octal"] is not None:
            yield int(match["octal"] or "0", 8)
        else:
            yield int(part)


def _carried(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)


def _isatap_refusal(address: IPv6Address) -> str | None:
    """ISATAP: the interface id ``[02]00:5efe`` is followed by an IPv4 address."""
    if int(address) >> 32 & 0xFDFFFFFF == 0x5EFE:
        return refusal(_carried(address))
    return None


def _reason(address: Address, table: tuple[tuple[IPv4Network | IPv6Network, str], ...]) -> str | None:
    return next((reason for network, reason in table if address in network), None)
