"""Which addresses are out of reach, however they are written."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.model.hosts import BadHost
from cellfork.runtimes.egress.addresses import is_own, never, parse_address, refusal
from cellfork.runtimes.egress.targets import parse_target

REFUSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "169.254.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.80",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:5ef5:79fb::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a00:1::",
    "3ffe::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "2606:4700::5efe:a00:1",
    "2606:4700::200:5efe:7f00:1",
]
REACHABLE = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.215.14",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.1",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450:4001:80b::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2606:4700::5efe:808:808",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_public_is_refused(text):
    """Loopback, private, link-local, shared, metadata, multicast, reserved, and all of these inside of IPv6 addresses."""
    assert refusal(ip_address(text))


@pytest.mark.parametrize("text", REACHABLE)
def test_what_is_public_is_not_refused(text):
    """The table ends exactly where the ranges end."""
    assert refusal(ip_address(text)) is None


@given(st.ip_addresses())
def test_whatever_python_calls_private_is_refused(address):
    """The table leaves out nothing that the standard library knows."""
    if (
        address.is_private
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or address.is_reserved
    ):
        carried = address.version == 6 and int(address) >> 96 == int(IPv6Address("64:ff9b::")) >> 96
        assert refusal(address) or carried or getattr(address, "ipv4_mapped", None)


LOOPBACK = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f.1",
    "0x7F000001",
    "2130706433",
    "017700000001",
    "0177.1",
    "127.0x1",
    "0x7f.0x0.0x0.0x1",
    "00000177.0.0.1",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[::FFFF:127.0.0.1]",
]


@pytest.mark.parametrize("text", LOOPBACK)
def test_an_address_has_one_form(text):
    """Decimal, octal, hexadecimal, short, dotted, bracketed, mapped: the same address."""
    assert parse_address(text) == IPv4Address("127.0.0.1")


@pytest.mark.parametrize(
    "text",
    [
        "1.2.3.4.5",
        "256.1.1.1",
        "1.2.3.256",
        "0x",
        "0x1ffffffff",
        "4294967296",
        "1.16777216",
        "08.1.1.1",
        "1..2.3",
        ".1",
        "1.2.3.4..",
        "a.1",
        "foo.0x1",
        "example.123",
        "[]",
        "[::1",
        "[::1%eth0]",
        "[fe80::1%25lo]",
        "::1",
        "fe80::1%lo",
        "[1.2.3.4]",
        "[v1.x]",
        "[::1]]",
        "127.0.0.1%lo",
        "1.2.3.-4",
        "0b1.1",
    ],
)
def test_what_only_looks_like_an_address_is_refused(text):
    """Neither a name nor an address: no program gets to guess."""
    with pytest.raises(BadHost):
        parse_target(f"{text}:80")


@pytest.mark.parametrize("text", ["example.com", "1a.example", "0x7f.example", "localhost", "a.b1"])
def test_names_are_no_addresses(text):
    """A last label that is not a number makes a name."""
    assert parse_address(text) is None


@given(st.text("0123456789abcdefxX.", min_size=1, max_size=20))
def test_addresses_are_read_as_the_c_library_reads_them(text):
    """Whatever inet_aton(3) takes for an address is this address here, or refused; never a name."""
    try:
        expected = IPv4Address(socket.inet_aton(text))
    except OSError:
        return
    try:
        found = parse_address(text)
    except BadHost:
        return
    assert found == expected


def test_own_addresses_are_recognised():
    """This machine's addresses are its own, public or not; others are not."""
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("93.184.215.14"))


def test_some_addresses_are_refused_even_to_package_indexes():
    """A configured index may be private, but neither a metadata service nor link-local, multicast or nowhere."""
    for text in (
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fe80::1",
        "ff02::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "fd00:ec2::254",
    ):
        assert never(ip_address(text))
    for text in ("127.0.0.1", "10.0.0.1", "fd00::1", "::1", "203.0.113.80"):
        assert not never(ip_address(text))
